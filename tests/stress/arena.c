/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on few arenas of one client, for ThreadSanitizer. Threads allocate, write (by the
 * host and by streams that are late), free what others have allocated, flush, trim, defer, publish,
 * ask, and make arenas of their own that end while others are busy. What one wrote is there until
 * it is freed; at the end nothing may be left.
 */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "stress.h"

#define THREADS 6
#define ARENAS  2
#define SLOTS   40 /* allocations that wait for whoever comes first */
#define MARK    64
#define TRIES   20000 /* of a millisecond */

struct slot {
    uint64_t ptr, nbytes; /* ptr 0: empty */
    struct caid_arena *arena;
    unsigned char tag;
};

static struct caid_arena *arenas[ARENAS];
static CUcontext context;
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slots[SLOTS]; /* under lock */
static __thread CUstream stream;
static __thread unsigned char last_tag;

static uint64_t
mark_of(const struct slot *slot)
{
    return slot->nbytes < MARK ? slot->nbytes : MARK;
}

static int
alloc(struct worker *w, struct slot *slot, uint32_t flags)
{
    const uint32_t sizes[] = {1, 700, 5000, 100000, 1 << 20, 5 << 20};

    slot->nbytes = 1 + rnd(w, 4) * sizes[rnd(w, ARRAY_SIZE(sizes))];
    slot->tag = last_tag++;
    int r = caid_arena_alloc(slot->arena, slot->nbytes, flags, &slot->ptr, &error);
    if (r < 0 && error.code == CAID_ERR_TIMEOUT && flags)
        return r;
    MUST(r);
    memset((void *)(uintptr_t)slot->ptr, slot->tag, mark_of(slot));
    return 0;
}

static void
release(struct worker *w, const struct slot *slot)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)slot->ptr;

    for (uint64_t i = 0; i < mark_of(slot); i++)
        if (bytes[i] != slot->tag)
            errx(1, "byte %d is %d, not %d", (int)i, bytes[i], slot->tag);
    if (rnd(w, 2)) /* late work */
        MUST_CUDA(w->a->drv->cu.cuMemsetD8Async(slot->ptr, 0xee, mark_of(slot), stream));
    uint32_t flags = rnd(w, 2) ? CAID_ARENA_NOWAIT : 0;
    int r = caid_arena_free(slot->arena, slot->ptr, flags, &error);
    if (r < 0 && flags && error.code == CAID_ERR_TIMEOUT)
        r = caid_arena_free(slot->arena, slot->ptr, 0, &error);
    MUST(r);
}

/* Frees what another thread has left there, and leaves something of its own. */
static void
exchange(struct worker *w)
{
    struct slot mine = {.arena = arenas[rnd(w, ARENAS)]}, other;
    uint32_t at = rnd(w, SLOTS);

    if (alloc(w, &mine, rnd(w, 2) ? CAID_ARENA_NOWAIT : 0) < 0)
        mine.ptr = 0;
    pthread_mutex_lock(&lock);
    other = slots[at];
    slots[at] = mine;
    pthread_mutex_unlock(&lock);
    if (other.ptr)
        release(w, &other);
}

/* ---- the rest ---- */

static void
publish(struct worker *w, struct caid_arena *arena)
{
    struct slot slot = {.arena = arena};
    const int64_t shape = 1;
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1);
    char name[16];

    snprintf(name, sizeof(name), "part%u", w->index);
    MUST(alloc(w, &slot, 0));
    MUST(caid_arena_publish(arena, slot.ptr, name, &options, NULL, &error));
    release(w, &slot);
    if (rnd(w, 2))
        MUST(caid_unlink(w->a->client, name, NULL, &error));
    MUST(caid_client_dispatch(w->a->client, &error));
}

static void
own_arena(struct worker *w)
{
    OPTIONS(caid_arena_options, options, .block_size = 2 << 20, .max_pending_age_ns = 1);
    struct slot slot;

    MUST(caid_arena_new(w->a->client, &slot.arena, &options, &error));
    for (int i = 0; i < 20; i++) {
        alloc(w, &slot, 0);
        release(w, &slot);
    }
    caid_arena_close(slot.arena);
}

static void
ask(struct worker *w, struct caid_arena *arena)
{
    OPTIONS(caid_arena_info, info);
    OPTIONS(caid_allocation, found);

    MUST(caid_arena_info(arena, &info, &error));
    if (info.allocated + info.pending_bytes + info.draining_bytes > info.bytes)
        errx(1, "more than is leased");
    if (caid_arena_find(arena, rnd(w, 1000), &found, &error) == 0)
        errx(1, "an allocation at the address of a small number");
    MUST(caid_arena_set_limits(arena, rnd(w, 20), 0.1, 1u << 30, &error));
}

static void
step(struct worker *w, struct caid_arena *arena)
{
    switch (rnd(w, 40)) {
    case 0: MUST(caid_arena_flush(arena, &error)); break;
    case 1: MUST(caid_arena_trim(arena, &error)); break;
    case 2:
        MUST(caid_arena_defer_begin(arena, &error));
        exchange(w);
        MUST(caid_arena_defer_end(arena, &error));
        break;
    case 3: publish(w, arena); break;
    case 4: own_arena(w); break;
    case 5: ask(w, arena); break;
    default: exchange(w); break;
    }
}

/* All want a first block at once: one of them leases it for all. */
static void
begin(void)
{
    OPTIONS(caid_arena_info, info);
    uint64_t ptr;

    pthread_barrier_wait(&barrier);
    MUST(caid_arena_alloc(arenas[0], 1 << 20, 0, &ptr, &error));
    pthread_barrier_wait(&barrier);
    MUST(caid_arena_info(arenas[0], &info, &error));
    if (info.n_leased != 1)
        errx(1, "%d blocks for one", (int)info.n_leased);
    pthread_barrier_wait(&barrier);
    MUST(caid_arena_free(arenas[0], ptr, 0, &error));
}

static void
work(struct worker *w)
{
    const struct drv_table *cu = &w->a->drv->cu;

    MUST_CUDA(cu->cuCtxSetCurrent(context));
    MUST_CUDA(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    begin();
    for (unsigned i = 0; i < w->n; i++)
        step(w, arenas[rnd(w, ARENAS)]);
    MUST_CUDA(cu->cuStreamDestroy(stream));
}

/* Parts are gone, and memory is back. */
static void
end_arena(struct caid_client *client, struct caid_arena *arena)
{
    OPTIONS(caid_arena_info, info);

    for (int tries = 0; tries == 0 || info.blocks > 0; tries++) {
        if (tries == TRIES)
            errx(1, "blocks are left");
        if (tries > 0)
            usleep(1000);
        MUST(caid_client_dispatch(client, &error));
        MUST(caid_arena_trim(arena, &error));
        MUST(caid_arena_info(arena, &info, &error));
    }
    if (info.allocations + info.pending + info.draining + info.published > 0)
        errx(1, "an arena is not empty");
    caid_arena_close(arena);
}

static void
act(struct actor *a, unsigned n)
{
    struct worker workers[THREADS];

    actor_open(a);
    MUST_CUDA(a->drv->cu.cuCtxGetCurrent(&context));
    for (size_t i = 0; i < ARENAS; i++)
        MUST(caid_arena_new(a->client, &arenas[i], NULL, &error));
    pthread_barrier_init(&barrier, NULL, THREADS);
    workers_start(workers, THREADS, a, work, n);
    workers_join(workers, THREADS);
    ledger_unlink_all(&a->s->source);
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].ptr)
            MUST(caid_arena_free(slots[i].arena, slots[i].ptr, 0, &error));
    for (size_t i = 0; i < ARENAS; i++)
        end_arena(a->client, arenas[i]);
    caid_client_close(a->client);
}

const struct scenario scenario_arena = {.name = "arena",
                                        .amount = 1500,
                                        .warm = 10,
                                        .actor = act};
