/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

#define DELAY_US "1000" /* at most, of each operation of a stream; or ORDER_DELAY_US */
#define WORDS    1024   /* of an array */
#define PIECES   4      /* operations that go over an array */
#define BYTES    (WORDS * sizeof(uint32_t))

#define WAIT_NS UINT64_C(20000000000) /* what never ends, ends with an error */

/* ---- what a process has ---- */

static void
open_driver(struct order *o)
{
    o->drv = program_driver("soft");
    for (size_t i = 0; i < ORDER_STREAMS; i++)
        MUST_CUDA(o->drv->cu.cuStreamCreate(&o->streams[i], CU_STREAM_NON_BLOCKING));
}

static void
connect_client(struct order *o, const char *socket)
{
    const struct caid_device *const *devices;

    o->client = program_connect(socket);
    if (caid_client_devices(o->client, &devices) < 1 ||
        strcmp(devices[0]->handoff, o->mode) != 0)
        errx(1, "the daemon's streams do not wait by %s", o->mode);
}

static CUdeviceptr
array_ptr(const struct order *o, int a)
{
    return caid_array_get_info(o->arrays[a])->ptr;
}

/* The first process makes what the others open; memory is what its last user left in it. */
static void
share_arrays(struct order *o)
{
    const int64_t shape = WORDS;
    char name[32];
    OPTIONS(caid_create_options, create, .name = name, .typestr = "<u4", .shape = &shape,
            .ndim = 1);
    OPTIONS(caid_open_options, open, .mode = "rw");

    for (int i = 0; i < ORDER_ARRAYS; i++) {
        snprintf(name, sizeof(name), "array-%d", i);
        if (o->role == 0)
            MUST(caid_array_create(o->client, &o->arrays[i], &create, &error));
        else
            MUST(caid_array_open(o->client, &o->arrays[i], name, &open, &error));
        if (o->role == 0)
            MUST_CUDA(o->drv->cu.cuMemsetD32(array_ptr(o, i), 0, WORDS));
    }
    MUST_CUDA(o->drv->cu.cuCtxSynchronize());
}

/* Each step has one, which its process signals. make: the steps of this process; else the
 * others. */
static void
share_timelines(struct order *o, bool make)
{
    char name[32];

    for (int k = 0; o->scenario->kind != ORDER_BRACKETS && k < o->scenario->n_steps; k++) {
        bool mine = o->scenario->steps[k].role == o->role;
        snprintf(name, sizeof(name), "step-%d", k);
        if (mine && make)
            MUST(caid_timeline_create(o->client, &o->timelines[k], name, NULL, &error));
        else if (!mine && !make)
            MUST(caid_timeline_open(o->client, &o->timelines[k], name, NULL, &error));
    }
}

static void
make_snapshots(struct order *o)
{
    for (int k = 0; k < o->scenario->n_steps; k++)
        for (int a = 0; a < ORDER_ARRAYS; a++)
            if (o->scenario->steps[k].role == o->role && o->scenario->steps[k].reads & 1u << a)
                MUST_CUDA(o->drv->cu.cuMemAlloc(&o->snapshots[k][a], BYTES));
}

void
order_open(struct order *o, const char *socket)
{
    open_driver(o);
    connect_client(o, socket);
    make_snapshots(o);
    if (o->role == 0)
        share_arrays(o);
    share_timelines(o, true);
    pthread_barrier_wait(&o->shared->barrier);
    if (o->role != 0)
        share_arrays(o);
    share_timelines(o, false);
    pthread_barrier_wait(&o->shared->barrier);
}

void
order_close(struct order *o)
{
    char name[32];

    for (int k = 0; k < o->scenario->n_steps; k++)
        caid_timeline_close(o->timelines[k]);
    for (int i = 0; i < ORDER_ARRAYS; i++) {
        snprintf(name, sizeof(name), "array-%d", i);
        if (o->role == 0)
            MUST(caid_unlink(o->client, name, NULL, &error));
        caid_array_close(o->arrays[i]);
    }
    caid_client_close(o->client);
}

/* ---- one step ---- */

static uint32_t
new_value(uint32_t round, int k)
{
    return round * ORDER_STEPS + (uint32_t)k + 1;
}

static int
first_of(uint32_t arrays)
{
    return __builtin_ctz(arrays);
}

static CUdeviceptr
piece_of(CUdeviceptr base, int piece)
{
    return base + (CUdeviceptr)piece * (BYTES / PIECES);
}

static CUdeviceptr
array_piece(const struct order *o, int a, int piece)
{
    return piece_of(array_ptr(o, a), piece);
}

static void
enqueue_piece(struct order *o, int k, int a, int piece, uint32_t value)
{
    const struct order_step *step = &o->scenario->steps[k];
    CUstream stream = o->streams[step->stream];
    CUdeviceptr at = array_piece(o, a, piece);

    if (!(step->writes & 1u << a)) {
        if (!step->writes)
            MUST_CUDA(o->drv->cu.cuMemcpyDtoDAsync(piece_of(o->snapshots[k][a], piece), at,
                                                   BYTES / PIECES, stream));
    } else if (step->reads) {
        CUdeviceptr from = array_piece(o, first_of(step->reads), piece);
        MUST_CUDA(o->drv->cu.cuMemcpyDtoDAsync(at, from, BYTES / PIECES, stream));
    } else {
        MUST_CUDA(o->drv->cu.cuMemsetD32Async(at, value, WORDS / PIECES, stream));
    }
}

/* The first step goes over an array from behind, the others from the front, so that without a
 * wait they meet. */
static void
enqueue_work(struct order *o, int k, uint32_t value)
{
    const struct order_step *step = &o->scenario->steps[k];

    for (int a = 0; a < ORDER_ARRAYS; a++)
        for (int i = 0; (step->reads | step->writes) & 1u << a && i < PIECES; i++)
            enqueue_piece(o, k, a, k == 0 ? PIECES - 1 - i : i, value);
}

/* Asks for the bracket: the daemon has looked at it when this returns. */
static struct caid_bracket *
start_bracket(struct order *o, const struct order_step *step)
{
    struct caid_array *reads[ORDER_ARRAYS], *writes[ORDER_ARRAYS];
    OPTIONS(caid_bracket_options, options, .reads = reads, .writes = writes,
            .stream = step->host ? 0 : STREAM(o->streams[step->stream]), .timeout_ns = WAIT_NS);
    struct caid_bracket *bracket;

    for (int a = 0; a < ORDER_ARRAYS; a++) {
        if (step->writes & 1u << a)
            writes[options.n_writes++] = o->arrays[a];
        else if (step->reads & 1u << a)
            reads[options.n_reads++] = o->arrays[a];
    }
    MUST(caid_bracket_start(o->client, &bracket, &options, &error));
    MUST(caid_client_ping(o->client, &error));
    return bracket;
}

static void
wait_for_timelines(struct order *o, int k, uint32_t round)
{
    const struct order_step *steps = o->scenario->steps;
    uint64_t stream = steps[k].host ? 0 : STREAM(o->streams[steps[k].stream]);
    bool ahead = o->scenario->kind == ORDER_AHEAD;

    for (int i = 0; i < k; i++)
        if (steps[i].role != steps[k].role)
            MUST(caid_timeline_wait(o->timelines[i], stream, round + 1,
                                    ahead ? CAID_FOREVER : WAIT_NS,
                                    ahead ? CAID_TIMELINE_AHEAD : 0, &error));
}

/* A stream waits by a call of the driver that can be left out, where the wait is not one of the
 * host. */
static const char *
waiting_call(const struct order *o, const struct order_step *step)
{
    if (step->host || step->by_call || strcmp(o->mode, "host") == 0)
        return NULL;
    if (strcmp(o->mode, "memops") == 0)
        return "cuStreamWaitValue64";
    /* There is no event to wait for before it has been recorded. */
    return o->scenario->kind == ORDER_AHEAD ? NULL : "cuStreamWaitEvent";
}

static void
give_turn(struct order *o, int k)
{
    if (k >= 0 && k < o->scenario->n_steps)
        sem_post(&o->shared->turns[k]);
}

/* NULL: without its wait, or not a bracket. asked: the next step begins before this one may go
 * on. */
static struct caid_bracket *
begin_step(struct order *o, int k, uint32_t round, bool asked)
{
    const struct order_step *step = &o->scenario->steps[k];
    bool calls = k != o->without || waiting_call(o, step);
    struct caid_bracket *bracket = NULL;

    if (calls && o->scenario->kind == ORDER_BRACKETS)
        bracket = start_bracket(o, step);
    if (asked)
        give_turn(o, k + 1);
    if (bracket)
        MUST(caid_bracket_wait(bracket, CAID_FOREVER, &error));
    else if (calls)
        wait_for_timelines(o, k, round);
    return bracket;
}

/* The same, with the driver's part of it left out where that is how this step goes without its
 * wait. */
static struct caid_bracket *
begin_faulty(struct order *o, int k, uint32_t round, bool asked)
{
    const char *call = waiting_call(o, &o->scenario->steps[k]);
    char rule[64];

    if (k != o->without || !call)
        return begin_step(o, k, round, asked);
    snprintf(rule, sizeof(rule), "fail %s=skip", call);
    program_control(o->drv->path, rule);
    struct caid_bracket *bracket = begin_step(o, k, round, asked);
    program_control(o->drv->path, "clear");
    return bracket;
}

static void
end_step(struct order *o, int k, uint32_t round, struct caid_bracket *bracket)
{
    const struct order_step *step = &o->scenario->steps[k];

    if (step->host)
        MUST_CUDA(o->drv->cu.cuStreamSynchronize(o->streams[step->stream]));
    if (bracket)
        MUST(caid_bracket_end(bracket, &error));
    caid_bracket_free(bracket);
    if (o->timelines[k])
        MUST(caid_timeline_signal(o->timelines[k],
                                  step->host ? 0 : STREAM(o->streams[step->stream]), round + 1,
                                  &error));
}

/* ---- a round ---- */

/* The next step begins when this one has ended, when its work is enqueued, or when it has asked
 * to begin: that takes turns by round. */
static void
run_in_order(struct order *o, uint32_t round)
{
    for (int k = 0; k < o->scenario->n_steps; k++) {
        if (o->scenario->steps[k].role != o->role)
            continue;
        if (k > 0)
            program_wait(&o->shared->turns[k]);
        struct caid_bracket *bracket = begin_faulty(o, k, round, round % 3 == 2);
        enqueue_work(o, k, new_value(round, k));
        if (round % 3 == 1)
            give_turn(o, k + 1);
        end_step(o, k, round, bracket);
        if (round % 3 == 0)
            give_turn(o, k + 1);
    }
}

/* The last step first, where streams can wait for what nobody has enqueued yet; else whenever. */
static void
run_ahead(struct order *o, uint32_t round)
{
    bool reverse = strcmp(o->mode, "memops") == 0;

    for (int k = o->scenario->n_steps - 1; k >= 0; k--) {
        if (o->scenario->steps[k].role != o->role)
            continue;
        if (reverse && k < o->scenario->n_steps - 1)
            program_wait(&o->shared->turns[k]);
        begin_faulty(o, k, round, false);
        enqueue_work(o, k, new_value(round, k));
        end_step(o, k, round, NULL);
        if (reverse)
            give_turn(o, k - 1);
    }
}

/* What the steps do one after the other. */
static void
foresee(struct order *o, uint32_t round)
{
    for (int k = 0; k < o->scenario->n_steps; k++) {
        const struct order_step *step = &o->scenario->steps[k];
        memcpy(o->expected[k], o->contents, sizeof(o->contents));
        for (int a = 0; a < ORDER_ARRAYS; a++)
            if (step->writes & 1u << a)
                o->contents[a] = step->reads ? o->contents[first_of(step->reads)]
                                             : new_value(round, k);
    }
}

static void
check_words(struct order *o, CUdeviceptr at, uint32_t expected)
{
    uint32_t words[WORDS];

    MUST_CUDA(o->drv->cu.cuMemcpyDtoH(words, at, BYTES));
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != expected) {
            o->shared->n_wrong++;
            return;
        }
}

static void
check_all(struct order *o)
{
    for (int k = 0; k < o->scenario->n_steps; k++)
        for (int a = 0; a < ORDER_ARRAYS; a++)
            if (o->snapshots[k][a] && !o->scenario->steps[k].writes)
                check_words(o, o->snapshots[k][a], o->expected[k][a]);
    for (int a = 0; o->role == 0 && a < ORDER_ARRAYS; a++)
        check_words(o, array_ptr(o, a), o->contents[a]);
}

void
order_round(struct order *o, uint32_t round)
{
    const char *us = getenv("ORDER_DELAY_US");
    char delay[48];

    snprintf(delay, sizeof(delay), "delay %s %u", us ? us : DELAY_US,
             round * ORDER_ROLES + (unsigned)o->role);
    program_control(o->drv->path, delay);
    foresee(o, round);
    if (o->scenario->kind == ORDER_AHEAD)
        run_ahead(o, round);
    else
        run_in_order(o, round);
    for (size_t i = 0; i < ORDER_STREAMS; i++)
        MUST_CUDA(o->drv->cu.cuStreamSynchronize(o->streams[i]));
    pthread_barrier_wait(&o->shared->barrier); /* nothing is under way */
    check_all(o);
    pthread_barrier_wait(&o->shared->barrier);
}
