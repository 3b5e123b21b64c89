/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

#define N_HELD 3

/* A part that was opened, and the value that it has to have for as long as it is. */
struct held {
    struct caid_array *array; /* NULL: there was none of that name */
    uint32_t value;
};

struct reader {
    struct parts_process *p;
    struct held held[N_HELD];
    CUdeviceptr copy;
};

/* ---- common to all processes ---- */

void
parts_open(struct parts_process *p)
{
    p->drv = program_driver("soft");
    p->client = program_connect(p->socket);
    MUST_CUDA(p->drv->cu.cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
}

const char *
parts_name(char room[16], uint32_t i)
{
    snprintf(room, 16, "parts/%u", i);
    return room;
}

/* ---- what a part shows ---- */

static void
check_words(const char *what, const uint32_t words[PARTS_WORDS], uint32_t value)
{
    for (size_t i = 0; i < PARTS_WORDS; i++)
        if (words[i] != value)
            errx(1, "%s: word %zu is %u, not %u", what, i, words[i], value);
}

static void
check_contents(const struct held *held, const char *when)
{
    const struct caid_array_info *info = caid_array_get_info(held->array);
    uint32_t words[PARTS_WORDS];
    char what[64];

    snprintf(what, sizeof(what), "%s, %s", info->name, when);
    MUST(caid_array_copy_to_host(held->array, words, PARTS_BYTES, &error));
    check_words(what, words, held->value);
}

/* NULL where there is none of that name. */
static struct held
open_part(struct parts_process *p, uint32_t i)
{
    struct held held = {0};
    char room[16];

    if (MUST_OR(-ENOENT,
                caid_array_open(p->client, &held.array, parts_name(room, i), NULL, &error)) < 0)
        return (struct held){0};
    const struct caid_array_info *info = caid_array_get_info(held.array);
    if (info->ndim != 1 || info->shape[0] != PARTS_WORDS || info->nbytes != PARTS_BYTES ||
        strcmp(info->typestr, "<u4") != 0 || !info->readonly || !info->metadata)
        errx(1, "%s is not what was published", room);
    held.value = (uint32_t)strtoul(info->metadata, NULL, 10);
    check_contents(&held, "opened");
    p->shared->n_opened++;
    return held;
}

/* ---- the reader ---- */

/* Its work on the part goes on when the part is closed, and reads what it would have read
 * before. */
static void
close_at_work(struct reader *d, struct held *held)
{
    CUdeviceptr at = caid_array_get_info(held->array)->ptr;
    uint32_t words[PARTS_WORDS];

    MUST_CUDA(d->p->drv->cu.cuMemcpyDtoDAsync(d->copy, at, PARTS_BYTES, d->p->stream));
    caid_array_close(TAKE_PTR(held->array));
    MUST_CUDA(d->p->drv->cu.cuStreamSynchronize(d->p->stream));
    MUST_CUDA(d->p->drv->cu.cuMemcpyDtoH(words, d->copy, PARTS_BYTES));
    check_words("closed with work under way", words, held->value);
}

static void
let_go(struct reader *d, struct held *held)
{
    if (!held->array)
        return;
    check_contents(held, "held for a while");
    if (rnd(d->p, 2))
        close_at_work(d, held);
    else
        caid_array_close(TAKE_PTR(held->array));
}

static void
loop(struct reader *d)
{
    struct parts_role *role = &d->p->shared->reader;

    program_control(d->p->drv->path, ACTOR_FAST);
    sem_post(&role->reached);
    while (!role->stop) {
        struct held *held = &d->held[rnd(d->p, N_HELD)];
        let_go(d, held);
        *held = open_part(d->p, rnd(d->p, PARTS_NAMES - 1));
    }
}

static void
hold(struct reader *d)
{
    for (uint32_t i = 0; i < PARTS_NAMES - 1; i++)
        d->held[i] = open_part(d->p, i);
}

/* With work on them that is never done. */
static void
close_all(struct reader *d)
{
    program_control(d->p->drv->path, ACTOR_SLOW);
    for (size_t i = 0; i < N_HELD; i++) {
        if (!d->held[i].array)
            continue;
        CUdeviceptr at = caid_array_get_info(d->held[i].array)->ptr;
        MUST_CUDA(d->p->drv->cu.cuMemcpyDtoDAsync(d->copy, at, PARTS_BYTES, d->p->stream));
        caid_array_close(TAKE_PTR(d->held[i].array));
    }
}

static void
go_to_moment(struct reader *d)
{
    sem_t *reached = &d->p->shared->reader.reached;
    enum reader_moment moment = d->p->shared->now.reader;

    if (moment == READER_looping) {
        loop(d);
        return;
    }
    if (moment == READER_unsent)
        actor_stop_before_send(reached);
    if (moment == READER_sent)
        actor_stop_after_send(reached);
    hold(d);
    if (moment == READER_working)
        close_all(d);
    MUST(caid_client_ping(d->p->client, &error));
    sem_post(reached);
}

_Noreturn void
parts_reader(struct parts_process *p)
{
    struct reader d = {.p = p};

    parts_open(p);
    MUST_CUDA(p->drv->cu.cuMemAlloc(&d.copy, PARTS_BYTES));
    go_to_moment(&d);
    program_wait(&p->shared->reader.go);
    for (size_t i = 0; i < N_HELD; i++)
        let_go(&d, &d.held[i]);
    caid_client_close(p->client);
    exit(0);
}

/* ---- the witness ---- */

/* Whether the change that was under way may have been made: the daemon may have been asked, and
 * nobody knows. */
static bool
may_be_changed(const struct parts_case *c)
{
    return c->victims & VICTIM_publisher &&
           (c->publisher == PUBLISHER_sent || c->publisher == PUBLISHER_looping);
}

static void
check_name(struct parts_process *p, uint32_t i)
{
    uint32_t acked = p->shared->acked[i], asked = p->shared->asked[i];
    struct held held = open_part(p, i); /* none has the value 0 */
    char room[16];

    if (held.value != acked && !(may_be_changed(&p->shared->now) && held.value == asked))
        errx(1, "%s shows %u, not %u; %u was asked for", parts_name(room, i), held.value, acked,
             asked);
    if (!held.array)
        return;
    MUST(caid_unlink(p->client, parts_name(room, i), NULL, &error));
    check_contents(&held, "without its name");
    caid_array_close(held.array);
}

_Noreturn void
parts_witness(struct parts_process *p)
{
    parts_open(p);
    for (uint32_t i = 0; i < PARTS_NAMES; i++)
        check_name(p, i);
    caid_client_close(p->client);
    exit(0);
}
