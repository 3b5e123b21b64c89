/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of the producer and the readers of two channels, one "latest" and one "fifo", at any
 * moment, with streams that are late. Who is killed is started anew, the next producer also while
 * the former one lives. The others go on; every byte of a frame that nobody was told about is its
 * own; and of a "fifo" no frame is missing that was not.
 *
 * And processes that join and leave in a loop.
 */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stress.h"

#define WORDS 2048
#define BYTES (WORDS * sizeof(uint32_t))
#define DEPTH 2
#define FEW   3 /* frames by which one goes on */
#define LOOK_NS \
    (100 * NSEC_PER_MSEC) /* that a reader waits before it looks whether it is to end */
#define HANG_NS (60 * NSEC_PER_SEC)

enum channel_role {
    PRODUCER,
    NEXT, /* producer */
    VIEWER,
    SLOW_VIEWER, /* with two frames at a time */
    HOST_VIEWER,
    RECORDER,
    SLOW_RECORDER,
    CHANNEL_ROLES
};

struct channel_shared {
    _Atomic uint64_t n_frames[CHANNEL_ROLES];
    _Atomic unsigned n_told;
};

/* What a frame's info says. */
struct label {
    uint64_t sequence;
    uint64_t before; /* of the frame before it, by the same producer; 0: this is its first */
};

static void
count(struct actor *a)
{
    struct channel_shared *shared = a->shared;

    atomic_fetch_add(&shared->n_frames[a->role - a->s->roles], 1);
}

/* ---- the producer ---- */

struct output {
    struct caid_channel *channel;
    uint64_t before;
};

/* Waits for its turn. */
static struct caid_channel *
produce(struct actor *a, const char *mode)
{
    const int64_t shape = WORDS;
    OPTIONS(caid_channel_options, options, .mode = mode, .typestr = "<u4", .shape = &shape,
            .ndim = 1, .slots = 16);
    struct caid_channel *channel;

    while (caid_channel_create(a->client, &channel, mode, &options, &error) < 0) {
        if (error.code != CAID_ERR_BUSY)
            errx(1, "%s", error.message);
        if (a->role->end)
            return NULL;
        usleep(1000);
    }
    return channel;
}

static void
put(struct actor *a, struct output *out)
{
    struct caid_frame frame;
    CUdeviceptr at = caid_array_get_info(caid_channel_array(out->channel))->ptr;

    MUST(caid_channel_begin(out->channel, STREAM(a->stream), HANG_NS, &frame, &error));
    for (int half = 0; half < 2; half++)
        MUST_CUDA(a->drv->cu.cuMemsetD32Async(at + frame.offset + (size_t)half * BYTES / 2,
                                              (uint32_t)frame.sequence, WORDS / 2, a->stream));
    if (rnd(a, 8) == 0) {
        MUST(caid_channel_abandon(out->channel, &frame, &error));
        return;
    }
    struct label label = {frame.sequence, out->before};
    memcpy(frame.info, &label, sizeof(label));
    MUST(caid_channel_commit(out->channel, &frame, &error));
    out->before = frame.sequence;
}

static void
producer(struct actor *a, unsigned unused UNUSED)
{
    actor_open(a);
    actor_fast(a);
    struct output latest = {produce(a, "latest"), 0}, fifo = {NULL, 0};
    if (latest.channel)
        fifo.channel = produce(a, "fifo");
    while (fifo.channel && !a->role->end) {
        put(a, &latest);
        put(a, &fifo);
        count(a);
        usleep(rnd(a, 500));
    }
    caid_channel_close(latest.channel);
    caid_channel_close(fifo.channel);
    caid_client_close(a->client);
}

/* ---- a reader ---- */

struct input {
    struct actor *a;
    const char *name;
    struct caid_channel *channel;
    uint32_t depth;
    bool on_host;
    CUdeviceptr copies[DEPTH];
    struct caid_frame frames[DEPTH];
    size_t n;        /* of them open */
    uint64_t before; /* the sequence of the last one */
    bool told;       /* that something is missing, or nothing was got before */
};

static bool
is_told(struct input *in, int r)
{
    if (r >= 0)
        return false;
    if (error.code != CAID_ERR_ABANDONED)
        stress_fail(in->a->s, "%s: %s", in->name, error.message);
    atomic_fetch_add(&((struct channel_shared *)in->a->shared)->n_told, 1);
    in->told = true;
    return true;
}

static CUdeviceptr
place(const struct input *in, const struct caid_frame *frame)
{
    return caid_array_get_info(caid_channel_array(in->channel))->ptr + frame->offset;
}

static uint64_t
stream_of(const struct input *in)
{
    return in->on_host ? 0 : STREAM(in->a->stream);
}

/* In order, and in a "fifo" after the one before. */
static void
check_label(struct input *in, const struct caid_frame *frame)
{
    struct label label;

    memcpy(&label, frame->info, sizeof(label));
    if (label.sequence != frame->sequence || frame->sequence <= in->before)
        stress_fail(in->a->s, "%s: frame %d after %d says that it is %d", in->name,
                    (int)frame->sequence, (int)in->before, (int)label.sequence);
    if (strcmp(in->name, "fifo") == 0 && !in->told && label.before != in->before)
        stress_fail(in->a->s, "fifo: frame %d comes after %d, and not after %d",
                    (int)frame->sequence, (int)in->before, (int)label.before);
    in->before = frame->sequence;
    in->told = false;
}

/* false: there is none. */
static bool
get(struct input *in)
{
    struct caid_frame *frame = &in->frames[in->n];
    int r = caid_channel_get(in->channel, stream_of(in), in->n ? 0 : LOOK_NS, 0, frame, &error);

    if (r < 0 && error.code == CAID_ERR_TIMEOUT)
        return false;
    if (is_told(in, r))
        return false;
    check_label(in, frame);
    if (!in->on_host)
        MUST_CUDA(in->a->drv->cu.cuMemcpyDtoDAsync(in->copies[in->n], place(in, frame), BYTES,
                                                   in->a->stream));
    in->n++;
    return true;
}

static void
check_words(struct input *in, CUdeviceptr at, const struct caid_frame *frame)
{
    uint32_t words[WORDS];

    if (in->on_host)
        memcpy(words, (void *)(uintptr_t)at, BYTES); /* the software driver's memory */
    else
        MUST_CUDA(in->a->drv->cu.cuMemcpyDtoH(words, at, BYTES));
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != (uint32_t)frame->sequence)
            stress_fail(in->a->s, "%s: frame %d has %u at %zu", in->name, (int)frame->sequence,
                        words[i], i);
}

/* Ends what is open, the last one first, and looks at what was read. */
static void
finish(struct input *in)
{
    bool told = false;

    for (size_t i = in->n; i-- > 0;) {
        if (in->on_host)
            check_words(in, place(in, &in->frames[i]), &in->frames[i]);
        told |=
            is_told(in, caid_channel_end(in->channel, &in->frames[i], stream_of(in), &error));
    }
    if (!in->on_host)
        told |= is_told(in, caid_stream_synchronize(in->a->client, STREAM(in->a->stream), 0,
                                                    &error));
    for (size_t i = 0; !in->on_host && !told && i < in->n; i++)
        check_words(in, in->copies[i], &in->frames[i]);
    in->n = 0;
}

static void
reader(struct actor *a, unsigned role)
{
    struct input in = {
        .a = a,
        .name = role < RECORDER ? "latest" : "fifo",
        .depth = role == SLOW_VIEWER || role == SLOW_RECORDER ? DEPTH : 1,
        .on_host = role == HOST_VIEWER,
        .told = true,
    };
    OPTIONS(caid_channel_options, options, .depth = in.depth, .wait = true,
            .timeout_ns = HANG_NS);

    actor_open(a);
    actor_fast(a);
    for (int i = 0; i < DEPTH; i++)
        MUST_CUDA(a->drv->cu.cuMemAlloc(&in.copies[i], BYTES));
    MUST(caid_channel_open(a->client, &in.channel, in.name, &options, &error));
    while (!a->role->end) {
        while (in.n < in.depth && get(&in))
            ;
        if (in.n)
            count(a);
        finish(&in);
    }
    caid_channel_close(in.channel);
    caid_client_close(a->client);
}

/* ---- kills ---- */

static void
start(struct stress *s, unsigned role)
{
    role_start(s, role, role < VIEWER ? producer : reader, role);
}

/* All go on: the producers together. */
static void
await_frames(struct stress *s)
{
    struct channel_shared *shared = s->shared;
    uint64_t before[CHANNEL_ROLES], hang_ns = clock_now_ns() + HANG_NS;

    for (int i = 0; i < CHANNEL_ROLES; i++)
        before[i] = atomic_load(&shared->n_frames[i]);
    for (int i = VIEWER; i < CHANNEL_ROLES; i++)
        while (atomic_load(&shared->n_frames[i]) < before[i] + FEW) {
            if (clock_now_ns() > hang_ns)
                stress_fail(s, "actor %d gets no frames", i);
            usleep(500);
        }
}

static void
run(struct stress *s, unsigned first, unsigned n)
{
    unsigned producing = PRODUCER, victim;

    start(s, producing);
    for (unsigned i = VIEWER; i < CHANNEL_ROLES; i++)
        start(s, i);
    for (s->number = first; s->number < first + n; s->number++) {
        await_frames(s);
        victim = rnd(s, 3) == 0 ? producing : VIEWER + rnd(s, CHANNEL_ROLES - VIEWER);
        snprintf(s->what, sizeof(s->what), "actor %u is killed", victim);
        if (victim == producing) {
            producing = producing == PRODUCER ? NEXT : PRODUCER;
            if (rnd(s, 2)) { /* it waits for the kill */
                start(s, producing);
                role_kill(s, victim);
                stress_count(s, "producers killed, with the next one waiting");
                continue;
            }
        }
        role_kill(s, victim);
        stress_count(s, victim < VIEWER ? "producers killed" : "readers killed");
        start(s, victim < VIEWER ? producing : victim);
    }
    await_frames(s);
    for (unsigned i = CHANNEL_ROLES; i-- > VIEWER;) {
        s->roles[i].end = true;
        role_join(s, i);
    }
    s->roles[producing].end = true;
    role_join(s, producing);
}

static void
report(const struct stress *s)
{
    const struct channel_shared *shared = s->shared;
    uint64_t n = 0;

    for (int i = VIEWER; i < CHANNEL_ROLES; i++)
        n += shared->n_frames[i];
    printf("%6d times readers got frames, %u times they were told that one is lost\n", (int)n,
           shared->n_told);
}

const struct scenario scenario_channel = {
    .name = "channel",
    .variable = "CAID_STRESS_KILLS",
    .amount = 100,
    .least = 10,
    .warm = 10,
    .shared_size = sizeof(struct channel_shared),
    .run = run,
    .report = report,
};

/* ---- joins ---- */

static void
joiner(struct actor *a, unsigned n)
{
    a->client = program_connect(a->s->source.socket);
    for (unsigned i = 0; i < n; i++) {
        struct input in = {.a = a,
                           .name = i % 2 ? "fifo" : "latest",
                           .on_host = true,
                           .told = true};
        OPTIONS(caid_channel_options, options, .depth = 1 + i % DEPTH, .wait = true,
                .timeout_ns = HANG_NS);
        MUST(caid_channel_open(a->client, &in.channel, in.name, &options, &error));
        while (i % 3 && !get(&in))
            ;
        if (i % 5)
            finish(&in);
        caid_channel_close(in.channel); /* every fifth with a frame that is open */
    }
    caid_client_close(a->client);
}

static void
run_joins(struct stress *s, unsigned first UNUSED, unsigned n)
{
    start(s, PRODUCER);
    for (unsigned i = VIEWER; i < CHANNEL_ROLES; i++)
        role_start(s, i, joiner, n / (CHANNEL_ROLES - VIEWER));
    for (unsigned i = VIEWER; i < CHANNEL_ROLES; i++)
        role_join(s, i);
    s->roles[PRODUCER].end = true;
    role_join(s, PRODUCER);
}

const struct scenario scenario_joins = {
    .name = "joins",
    .variable = "CAID_STRESS_CREATES",
    .amount = 500,
    .least = 20,
    .warm = 20,
    .shared_size = sizeof(struct channel_shared),
    .run = run_joins,
};
