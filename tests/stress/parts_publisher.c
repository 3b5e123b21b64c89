/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

/* More than all that anyone can hold at a time: three names, three of a reader that loops, one
 * of each that is on its way to be gone. */
#define N_SLOTS 12

struct publisher {
    struct actor *a;
    struct parts_shared *shared;
    struct caid_array *array; /* of slots */
    struct caid_arena *arena;
    bool in_use[N_SLOTS];
    uint32_t value, n_left; /* parts that are not gone */
};

/* One part: what its `gone` gets. */
struct ticket {
    struct publisher *publisher;
    bool *in_use; /* the slot's; NULL: of an arena */
};

/* ---- parts that are gone ---- */

static void
gone(void *userdata)
{
    struct ticket *ticket = userdata;

    if (ticket->publisher->n_left-- == 0)
        errx(1, "more parts are gone than there were");
    if (ticket->in_use)
        *ticket->in_use = false;
    free(ticket);
}

static void
wait_for_news(struct publisher *u)
{
    struct pollfd fd = {.fd = caid_client_get_fd(u->a->client), .events = POLLIN};

    if (poll(&fd, 1, 20000) != 1)
        errx(1, "the publisher is not told that parts are gone: %u are left", u->n_left);
}

static size_t
take_slot(struct publisher *u)
{
    for (;;) {
        for (size_t i = 0; i < N_SLOTS; i++)
            if (!u->in_use[i]) {
                u->in_use[i] = true;
                return i;
            }
        wait_for_news(u);
        MUST(caid_client_dispatch(u->a->client, &error));
    }
}

/* ---- publishing ---- */

static void
make_source(struct publisher *u)
{
    if (u->shared->now.arena) {
        /* The least that there is; memory is used again as soon as it may be. */
        OPTIONS(caid_arena_options, options, .block_size = 1, .max_pending_ratio = -1);
        MUST(caid_arena_new(u->a->client, &u->arena, &options, &error));
        return;
    }
    const int64_t shape[] = {N_SLOTS, PARTS_WORDS};
    OPTIONS(caid_create_options, options, .typestr = "<u4", .shape = shape, .ndim = 2);
    MUST(caid_array_create(u->a->client, &u->array, &options, &error));
}

/* What an arena gave is freed at once: what the name shows stays. */
static uint64_t
publish_value(struct publisher *u, uint32_t i, struct caid_part_options *options,
              struct ticket *ticket)
{
    uint64_t at, generation, offset = 0;
    char room[16];

    if (u->arena) {
        MUST(caid_arena_alloc(u->arena, PARTS_BYTES, 0, &at, &error));
    } else {
        size_t slot = take_slot(u);
        ticket->in_use = &u->in_use[slot];
        offset = slot * PARTS_BYTES;
        at = caid_array_get_info(u->array)->ptr + offset;
    }
    MUST_CUDA(u->a->drv->cu.cuMemsetD32Async(at, u->value, PARTS_WORDS, u->a->stream));
    const char *name = parts_name(room, i);
    if (u->arena) {
        MUST(caid_arena_publish(u->arena, at, name, options, &generation, &error));
        MUST(caid_arena_free(u->arena, at, 0, &error));
    } else {
        MUST(caid_array_publish_part(u->array, offset, name, options, &generation, &error));
    }
    return generation;
}

/* Of a name that shows something the next one, of another one a higher one than it ever had. */
static void
check_generation(struct publisher *u, uint32_t i, uint64_t generation)
{
    uint64_t before = u->shared->generations[i];

    if (generation <= before || (u->shared->acked[i] && generation != before + 1))
        errx(1, "the generation of name %u is %u after %u", i, (unsigned)generation,
             (unsigned)before);
    u->shared->generations[i] = generation;
}

static void
publish(struct publisher *u, uint32_t i)
{
    struct ticket *ticket = calloc(1, sizeof(*ticket));
    const int64_t shape = PARTS_WORDS;
    char metadata[16];
    OPTIONS(caid_part_options, options, .typestr = "<u4", .shape = &shape, .ndim = 1,
            .metadata = metadata, .gone = gone, .userdata = ticket);

    if (!ticket)
        err(1, "calloc");
    ticket->publisher = u;
    snprintf(metadata, sizeof(metadata), "%u", ++u->value);
    options.stream = rnd(u->a, 2) ? STREAM(u->a->stream) : 0;
    u->shared->asked[i] = u->value;
    check_generation(u, i, publish_value(u, i, &options, ticket));
    u->shared->acked[i] = u->value;
    u->n_left++;
    u->shared->n_published++;
}

static void
unlink_name(struct publisher *u, uint32_t i)
{
    char room[16];

    u->shared->asked[i] = 0;
    MUST(caid_unlink(u->a->client, parts_name(room, i), NULL, &error));
    u->shared->acked[i] = 0;
}

/* ---- to the moment ---- */

static void
loop(struct publisher *u)
{
    actor_reached(u->a);
    while (!u->a->role->end) {
        uint32_t i = rnd(u->a, PARTS_NAMES);
        if (u->shared->acked[i] && rnd(u->a, 6) == 0)
            unlink_name(u, i);
        else
            publish(u, i);
        if (rnd(u->a, 3) == 0)
            MUST(caid_client_dispatch(u->a->client, &error));
    }
}

static void
close_source(struct publisher *u)
{
    caid_array_close(TAKE_PTR(u->array));
    caid_arena_close(TAKE_PTR(u->arena));
}

static void
go_to_moment(struct publisher *u, enum publisher_moment moment)
{
    switch (moment) {
    case PUBLISHER_looping: loop(u); return;
    case PUBLISHER_leased: actor_stay(u->a);
    case PUBLISHER_writing:
        actor_slow(u->a);
        actor_reached(u->a);
        break;
    case PUBLISHER_unsent: actor_stop_before_send(u->a); break;
    case PUBLISHER_sent: actor_stop_after_send(u->a); break;
    default: break;
    }
    publish(u, 0);
    if (moment < PUBLISHER_published)
        errx(1, "a publish has ended that could not");
    if (moment == PUBLISHER_closed)
        close_source(u);
    if (moment == PUBLISHER_told) {
        unlink_name(u, PARTS_NAMES - 1);
        wait_for_news(u);
    }
    MUST(caid_client_ping(u->a->client, &error));
    actor_reached(u->a);
}

/* All that was freed has come back: no block is left. */
static void
check_arena(struct caid_arena *arena)
{
    OPTIONS(caid_arena_info, info);

    MUST(caid_arena_trim(arena, &error));
    MUST(caid_arena_info(arena, &info, &error));
    if (info.published || info.allocations || info.pending || info.draining || info.blocks)
        errx(1,
             "an arena has %d parts, %d allocations, %d pending, %d draining, %d blocks left",
             (int)info.published, (int)info.allocations, (int)info.pending, (int)info.draining,
             (int)info.blocks);
}

void
parts_publisher(struct actor *a, unsigned unused UNUSED)
{
    struct publisher u = {.a = a, .shared = a->shared, .value = a->s->number * 100000};
    enum publisher_moment moment = u.shared->now.publisher;

    actor_open(a);
    make_source(&u);
    for (uint32_t i = 0; i < PARTS_NAMES && moment != PUBLISHER_leased; i++)
        publish(&u, i);
    actor_reached(a);
    actor_wait(a);
    go_to_moment(&u, moment);
    actor_wait(a);
    actor_reached(a);
    actor_wait(a);
    while (u.n_left > 0) {
        MUST(caid_client_dispatch(a->client, &error));
        if (u.n_left > 0)
            wait_for_news(&u);
    }
    if (u.arena)
        check_arena(u.arena);
    close_source(&u);
    caid_client_close(a->client);
}
