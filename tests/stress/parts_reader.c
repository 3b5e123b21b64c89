/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_HELD 3

/* A part that was opened, and the value that it has to have for as long as it is. */
struct held {
    struct caid_array *array; /* NULL: there was none of that name */
    uint32_t value;
};

struct reader {
    struct actor *a;
    struct held held[N_HELD];
    CUdeviceptr copy;
};

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
open_part(struct actor *a, uint32_t i)
{
    struct parts_shared *shared = a->shared;
    struct caid_array *array;
    char room[16];

    if (MUST_OR(-ENOENT,
                caid_array_open(a->client, &array, parts_name(room, i), NULL, &error)) < 0)
        return (struct held){0};
    const struct caid_array_info *info = caid_array_get_info(array);
    if (info->ndim != 1 || info->shape[0] != PARTS_WORDS || info->nbytes != PARTS_BYTES ||
        strcmp(info->typestr, "<u4") != 0 || !info->readonly || !info->metadata)
        errx(1, "%s is not what was published", room);
    struct held held = {array, (uint32_t)strtoul(info->metadata, NULL, 10)};
    check_contents(&held, "opened");
    shared->n_opened++;
    return held;
}

/* ---- the reader ---- */

/* Work on what is held that goes on when it is closed. */
static void
close_at_work(struct reader *d, struct held *held)
{
    CUdeviceptr at = caid_array_get_info(held->array)->ptr;

    MUST_CUDA(d->a->drv->cu.cuMemcpyDtoDAsync(d->copy, at, PARTS_BYTES, d->a->stream));
    caid_array_close(TAKE_PTR(held->array));
}

/* The work reads what it would have read before. */
static void
let_go(struct reader *d, struct held *held)
{
    uint32_t words[PARTS_WORDS];

    if (!held->array)
        return;
    check_contents(held, "held for a while");
    if (rnd(d->a, 2)) {
        caid_array_close(TAKE_PTR(held->array));
        return;
    }
    close_at_work(d, held);
    MUST_CUDA(d->a->drv->cu.cuStreamSynchronize(d->a->stream));
    MUST_CUDA(d->a->drv->cu.cuMemcpyDtoH(words, d->copy, PARTS_BYTES));
    check_words("closed with work under way", words, held->value);
}

static void
loop(struct reader *d)
{
    actor_fast(d->a);
    actor_reached(d->a);
    while (!d->a->role->end) {
        struct held *held = &d->held[rnd(d->a, N_HELD)];
        let_go(d, held);
        *held = open_part(d->a, rnd(d->a, PARTS_NAMES - 1));
    }
}

static void
go_to_moment(struct reader *d, enum reader_moment moment)
{
    if (moment == READER_looping) {
        loop(d);
        return;
    }
    if (moment == READER_unsent)
        actor_stop_before_send(d->a);
    if (moment == READER_sent)
        actor_stop_after_send(d->a);
    for (uint32_t i = 0; i < PARTS_NAMES - 1; i++)
        d->held[i] = open_part(d->a, i);
    if (moment == READER_working) {
        actor_slow(d->a); /* never done */
        for (size_t i = 0; i < N_HELD; i++)
            if (d->held[i].array)
                close_at_work(d, &d->held[i]);
    }
    MUST(caid_client_ping(d->a->client, &error));
    actor_reached(d->a);
}

void
parts_reader(struct actor *a, unsigned unused UNUSED)
{
    const struct parts_shared *shared = a->shared;
    struct reader d = {.a = a};

    actor_open(a);
    MUST_CUDA(a->drv->cu.cuMemAlloc(&d.copy, PARTS_BYTES));
    go_to_moment(&d, shared->now.reader);
    actor_wait(a);
    for (size_t i = 0; i < N_HELD; i++)
        let_go(&d, &d.held[i]);
    caid_client_close(a->client);
}

/* ---- the witness ---- */

/* Whether the change that was under way may have been made: the daemon may have been asked, and
 * nobody knows. */
static bool
may_be_changed(const struct parts_case *c)
{
    return c->killed[PUBLISHER] &&
           (c->publisher == PUBLISHER_sent || c->publisher == PUBLISHER_looping);
}

void
parts_witness(struct actor *a, unsigned unused UNUSED)
{
    const struct parts_shared *shared = a->shared;
    char room[16];

    actor_open(a);
    for (uint32_t i = 0; i < PARTS_NAMES; i++) {
        uint32_t acked = shared->acked[i], asked = shared->asked[i];
        struct held held = open_part(a, i); /* none has the value 0 */
        if (held.value != acked && !(may_be_changed(&shared->now) && held.value == asked))
            errx(1, "%s shows %u, not %u; %u was asked for", parts_name(room, i), held.value,
                 acked, asked);
        if (!held.array)
            continue;
        MUST(caid_unlink(a->client, parts_name(room, i), NULL, &error));
        check_contents(&held, "without its name");
        caid_array_close(held.array);
    }
    caid_client_close(a->client);
}
