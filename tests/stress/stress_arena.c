/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on few arenas of one client, for ThreadSanitizer. Threads allocate, write (by the
 * host and by streams that are late), free what others have allocated, flush, trim, defer, publish,
 * ask, and make arenas of their own that end while others are busy. What one wrote is there until
 * it is freed; at the end nothing may be left.
 *      usage: stress_arena SOCKET [STEPS]
 */
#include <err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/macros.h"
#include "program.h"

#define THREADS 6
#define ARENAS  2
#define SLOTS   40 /* allocations that wait for whoever comes first */
#define MARK    64
#define TRIES   20000 /* of a millisecond */

struct slot {
    uint64_t ptr, nbytes;
    struct caid_arena *arena;
    unsigned char tag;
};

struct shared {
    struct caid_client *client;
    struct caid_arena *arenas[ARENAS];
    struct drv *drv;
    CUcontext context;
    pthread_barrier_t begin;
    pthread_mutex_t lock;
    struct slot slots[SLOTS]; /* under lock; ptr 0: empty */
    int steps;
};

struct worker {
    struct shared *shared;
    pthread_t thread;
    CUstream stream;
    uint32_t random;
    unsigned char tag;
    char name[16];
};

/* ---- allocations ---- */

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
    slot->tag = w->tag++;
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
    const struct drv_table *cu = &w->shared->drv->cu;

    for (uint64_t i = 0; i < mark_of(slot); i++)
        if (bytes[i] != slot->tag)
            errx(1, "byte %d is %d, not %d", (int)i, bytes[i], slot->tag);
    if (rnd(w, 2)) /* late work */
        MUST_CUDA(cu->cuMemsetD8Async(slot->ptr, 0xee, mark_of(slot), w->stream));
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
    struct shared *shared = w->shared;
    struct slot mine = {.arena = shared->arenas[rnd(w, ARENAS)]}, other;
    uint32_t at = rnd(w, SLOTS);

    if (alloc(w, &mine, rnd(w, 2) ? CAID_ARENA_NOWAIT : 0) < 0)
        mine.ptr = 0;
    pthread_mutex_lock(&shared->lock);
    other = shared->slots[at];
    shared->slots[at] = mine;
    pthread_mutex_unlock(&shared->lock);
    if (other.ptr)
        release(w, &other);
}

/* ---- the rest ---- */

static void
publish(struct worker *w)
{
    struct slot slot = {.arena = w->shared->arenas[rnd(w, ARENAS)]};
    const int64_t shape = 1;
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1);

    MUST(alloc(w, &slot, 0));
    MUST(caid_arena_publish(slot.arena, slot.ptr, w->name, &options, NULL, &error));
    release(w, &slot);
    if (rnd(w, 2))
        MUST(caid_unlink(w->shared->client, w->name, NULL, &error));
    MUST(caid_client_dispatch(w->shared->client, &error));
}

static void
own_arena(struct worker *w)
{
    OPTIONS(caid_arena_options, options, .block_size = 2 << 20, .max_pending_age_ns = 1);
    struct slot slot;

    MUST(caid_arena_new(w->shared->client, &slot.arena, &options, &error));
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
defer(struct worker *w, struct caid_arena *arena)
{
    MUST(caid_arena_defer_begin(arena, &error));
    exchange(w);
    MUST(caid_arena_defer_end(arena, &error));
}

static void
step(struct worker *w)
{
    struct caid_arena *arena = w->shared->arenas[rnd(w, ARENAS)];

    switch (rnd(w, 40)) {
    case 0: MUST(caid_arena_flush(arena, &error)); break;
    case 1: MUST(caid_arena_trim(arena, &error)); break;
    case 2: defer(w, arena); break;
    case 3: publish(w); break;
    case 4: own_arena(w); break;
    case 5: ask(w, arena); break;
    default: exchange(w); break;
    }
}

/* All want a first block at once: one of them leases it for all. */
static void
begin(struct worker *w)
{
    struct caid_arena *arena = w->shared->arenas[0];
    OPTIONS(caid_arena_info, info);
    uint64_t ptr;

    pthread_barrier_wait(&w->shared->begin);
    MUST(caid_arena_alloc(arena, 1 << 20, 0, &ptr, &error));
    pthread_barrier_wait(&w->shared->begin);
    MUST(caid_arena_info(arena, &info, &error));
    if (info.n_leased != 1)
        errx(1, "%llu blocks for one", (unsigned long long)info.n_leased);
    pthread_barrier_wait(&w->shared->begin);
    MUST(caid_arena_free(arena, ptr, 0, &error));
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    const struct drv_table *cu = &w->shared->drv->cu;
    CUcontext context;

    MUST_CUDA(cu->cuCtxPushCurrent(w->shared->context));
    MUST_CUDA(cu->cuStreamCreate(&w->stream, 1));
    begin(w);
    for (int i = 0; i < w->shared->steps; i++)
        step(w);
    MUST_CUDA(cu->cuStreamDestroy(w->stream));
    MUST_CUDA(cu->cuCtxPopCurrent(&context));
    return NULL;
}

/* ---- all of it ---- */

static void
begin_all(struct shared *shared, const char *socket)
{
    struct drv_error cause;

    shared->client = program_connect(socket);
    for (size_t i = 0; i < ARENAS; i++)
        MUST(caid_arena_new(shared->client, &shared->arenas[i], NULL, &error));
    if (drv_open(&shared->drv, "soft", &cause) < 0)
        errx(1, "%s", cause.message);
    MUST_CUDA(shared->drv->cu.cuDevicePrimaryCtxRetain(&shared->context, 0));
    pthread_barrier_init(&shared->begin, NULL, THREADS);
    pthread_mutex_init(&shared->lock, NULL);
}

static void
patience(int *tries, const char *what)
{
    if (++*tries > TRIES)
        errx(1, "%s", what);
    if (*tries > 1)
        usleep(1000);
}

/* Parts are gone, memory is back, and the daemon has no lease of it. */
static void
end_all(struct shared *shared)
{
    OPTIONS(caid_arena_info, info);
    OPTIONS(caid_status, status);

    for (size_t i = 0; i < SLOTS; i++)
        if (shared->slots[i].ptr)
            MUST(caid_arena_free(shared->slots[i].arena, shared->slots[i].ptr, 0, &error));
    for (size_t i = 0; i < ARENAS; i++) {
        int tries = 0;
        do {
            MUST(caid_client_dispatch(shared->client, &error));
            MUST(caid_arena_trim(shared->arenas[i], &error));
            MUST(caid_arena_info(shared->arenas[i], &info, &error));
            patience(&tries, "blocks are left");
        } while (info.blocks > 0);
        if (info.allocations + info.pending + info.draining + info.published > 0)
            errx(1, "an arena is not empty");
        caid_arena_close(shared->arenas[i]);
    }
    int tries = 0;
    do {
        MUST(caid_client_status(shared->client, &status, &error));
        patience(&tries, "leases are left");
    } while (status.leases > 0);
    caid_client_close(shared->client);
    MUST_CUDA(shared->drv->cu.cuDevicePrimaryCtxRelease(0));
    drv_free(shared->drv);
}

int
main(int argc, char **argv)
{
    struct worker workers[THREADS];
    static struct shared shared;

    if (argc < 2)
        errx(1, "usage: stress_arena SOCKET [STEPS]");
    shared.steps = argc > 2 ? atoi(argv[2]) : 1500;
    begin_all(&shared, argv[1]);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.shared = &shared, .random = i + 1};
        snprintf(workers[i].name, sizeof(workers[i].name), "part%u", i);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            errx(1, "no thread");
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        caid_unlink(shared.client, workers[i].name, NULL, &error); /* if it is there */
    }
    end_all(&shared);
    return 0;
}
