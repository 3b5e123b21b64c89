/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

/* More than all that anyone can hold at a time: three names, three of a reader that loops, one
 * of each that is on its way to be gone. */
#define N_SLOTS 12

struct publisher {
    struct parts_process *p;
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
    struct pollfd fd = {.fd = caid_client_get_fd(u->p->client), .events = POLLIN};

    if (poll(&fd, 1, HANG_S * 1000) != 1)
        errx(1, "the publisher is not told that parts are gone: %u are left", u->n_left);
}

static void
dispatch(struct publisher *u)
{
    MUST(caid_client_dispatch(u->p->client, &error));
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
        dispatch(u);
    }
}

/* ---- publishing ---- */

static void
make_source(struct publisher *u)
{
    if (u->shared->now.arena) {
        /* The least that there is; memory is used again as soon as it may be. */
        OPTIONS(caid_arena_options, options, .block_size = 1, .max_pending_ratio = -1);
        MUST(caid_arena_new(u->p->client, &u->arena, &options, &error));
        return;
    }
    const int64_t shape[] = {N_SLOTS, PARTS_WORDS};
    OPTIONS(caid_create_options, options, .typestr = "<u4", .shape = shape, .ndim = 2);
    MUST(caid_array_create(u->p->client, &u->array, &options, &error));
}

static void
close_source(struct publisher *u)
{
    caid_array_close(TAKE_PTR(u->array));
    caid_arena_close(TAKE_PTR(u->arena));
}

static void
write_part(struct publisher *u, uint64_t at, uint32_t value)
{
    MUST_CUDA(u->p->drv->cu.cuMemsetD32Async(at, value, PARTS_WORDS, u->p->stream));
}

static uint64_t
publish_slot(struct publisher *u, const char *name, uint32_t value,
             struct caid_part_options *options, struct ticket *ticket)
{
    size_t slot = take_slot(u);
    uint64_t generation;

    ticket->in_use = &u->in_use[slot];
    write_part(u, caid_array_get_info(u->array)->ptr + slot * PARTS_BYTES, value);
    MUST(caid_array_publish_part(u->array, slot * PARTS_BYTES, name, options, &generation,
                                 &error));
    return generation;
}

/* The allocation is freed at once: what the name shows stays. */
static uint64_t
publish_allocation(struct publisher *u, const char *name, uint32_t value,
                   struct caid_part_options *options)
{
    uint64_t at, generation;

    MUST(caid_arena_alloc(u->arena, PARTS_BYTES, 0, &at, &error));
    write_part(u, at, value);
    MUST(caid_arena_publish(u->arena, at, name, options, &generation, &error));
    MUST(caid_arena_free(u->arena, at, 0, &error));
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
    uint32_t value = ++u->value;
    char metadata[16], room[16];
    OPTIONS(caid_part_options, options, .typestr = "<u4", .shape = &shape, .ndim = 1,
            .metadata = metadata, .gone = gone, .userdata = ticket);

    if (!ticket)
        err(1, "calloc");
    ticket->publisher = u;
    snprintf(metadata, sizeof(metadata), "%u", value);
    options.stream = rnd(u->p, 2) ? STREAM(u->p->stream) : 0;
    u->shared->asked[i] = value;
    uint64_t generation = u->arena
                              ? publish_allocation(u, parts_name(room, i), value, &options)
                              : publish_slot(u, parts_name(room, i), value, &options, ticket);
    check_generation(u, i, generation);
    u->shared->acked[i] = value;
    u->n_left++;
    u->shared->n_published++;
}

static void
unlink_name(struct publisher *u, uint32_t i)
{
    char room[16];

    u->shared->asked[i] = 0;
    MUST(caid_unlink(u->p->client, parts_name(room, i), NULL, &error));
    u->shared->acked[i] = 0;
}

/* ---- to the moment ---- */

static void
loop(struct publisher *u)
{
    struct parts_role *role = &u->shared->publisher;

    sem_post(&role->reached);
    while (!role->stop) {
        uint32_t i = rnd(u->p, PARTS_NAMES);
        if (u->shared->acked[i] && rnd(u->p, 6) == 0)
            unlink_name(u, i);
        else
            publish(u, i);
        if (rnd(u->p, 3) == 0)
            dispatch(u);
    }
}

static void
go_to_moment(struct publisher *u)
{
    sem_t *reached = &u->shared->publisher.reached;
    enum publisher_moment moment = u->shared->now.publisher;

    if (moment == PUBLISHER_looping) {
        loop(u);
        return;
    }
    if (moment == PUBLISHER_leased)
        actor_stay(reached);
    if (moment == PUBLISHER_writing) {
        program_control(u->p->drv->path, ACTOR_SLOW);
        sem_post(reached);
    } else if (moment == PUBLISHER_unsent) {
        actor_stop_before_send(reached);
    } else if (moment == PUBLISHER_sent) {
        actor_stop_after_send(reached);
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
    MUST(caid_client_ping(u->p->client, &error));
    sem_post(reached);
}

/* All that was freed has come back: no block is left. */
static void
check_arena(struct publisher *u)
{
    OPTIONS(caid_arena_info, info);

    MUST(caid_arena_trim(u->arena, &error));
    MUST(caid_arena_info(u->arena, &info, &error));
    if (info.published || info.allocations || info.pending || info.draining || info.blocks)
        errx(1,
             "the arena still has %u parts, %u allocations, %u pending, %u draining, %u blocks",
             (unsigned)info.published, (unsigned)info.allocations, (unsigned)info.pending,
             (unsigned)info.draining, (unsigned)info.blocks);
}

static _Noreturn void
finish(struct publisher *u)
{
    while (u->n_left > 0) {
        dispatch(u);
        if (u->n_left > 0)
            wait_for_news(u);
    }
    if (u->arena)
        check_arena(u);
    close_source(u);
    caid_client_close(u->p->client);
    exit(0);
}

_Noreturn void
parts_publisher(struct parts_process *p)
{
    struct publisher u = {.p = p, .shared = p->shared};
    struct parts_role *role = &p->shared->publisher;

    parts_open(p);
    u.value = p->shared->number * 100000;
    make_source(&u);
    for (uint32_t i = 0; i < PARTS_NAMES && p->shared->now.publisher != PUBLISHER_leased; i++)
        publish(&u, i);
    sem_post(&role->reached);
    program_wait(&role->go);
    go_to_moment(&u);
    program_wait(&role->go);
    sem_post(&role->reached);
    program_wait(&role->go);
    finish(&u);
}
