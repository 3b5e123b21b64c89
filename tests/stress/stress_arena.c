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
#include "caid/caid.h"
#include "drv.h"

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

static uint32_t
rnd(struct worker *w, uint32_t below)
{
    w->random = w->random * 1664525 + 1013904223;
    return (w->random >> 16) % below;
}

static void
must(int r, const struct caid_error *error, const char *what)
{
    if (r < 0)
        errx(1, "%s: %s", what, error->message);
}

static void
must_cuda(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        errx(1, "%s: %d", what, (int)result);
}

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
    struct caid_error error;

    slot->nbytes = 1 + rnd(w, 4) * sizes[rnd(w, ARRAY_SIZE(sizes))];
    slot->tag = w->tag++;
    int r = caid_arena_alloc(slot->arena, slot->nbytes, flags, &slot->ptr, &error);
    if (r < 0 && error.code == CAID_ERR_TIMEOUT && flags)
        return r;
    must(r, &error, "alloc");
    memset((void *)(uintptr_t)slot->ptr, slot->tag, mark_of(slot));
    return 0;
}

static void
release(struct worker *w, const struct slot *slot)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)slot->ptr;
    const struct drv_table *cu = &w->shared->drv->cu;
    struct caid_error error;

    for (uint64_t i = 0; i < mark_of(slot); i++)
        if (bytes[i] != slot->tag)
            errx(1, "byte %d is %d, not %d", (int)i, bytes[i], slot->tag);
    if (rnd(w, 2)) /* late work */
        must_cuda(cu->cuMemsetD8Async(slot->ptr, 0xee, mark_of(slot), w->stream), "memset");
    uint32_t flags = rnd(w, 2) ? CAID_ARENA_NOWAIT : 0;
    int r = caid_arena_free(slot->arena, slot->ptr, flags, &error);
    if (r < 0 && flags && error.code == CAID_ERR_TIMEOUT)
        r = caid_arena_free(slot->arena, slot->ptr, 0, &error);
    must(r, &error, "free");
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
    struct caid_part_options options = CAID_INIT(options);
    const int64_t shape = 1;
    struct caid_error error;

    must(alloc(w, &slot, 0), &error, "alloc");
    options.typestr = "|u1";
    options.shape = &shape;
    options.ndim = 1;
    must(caid_arena_publish(slot.arena, slot.ptr, w->name, &options, NULL, &error), &error,
         "publish");
    release(w, &slot);
    if (rnd(w, 2))
        must(caid_unlink(w->shared->client, w->name, NULL, &error), &error, "unlink");
    must(caid_client_dispatch(w->shared->client, &error), &error, "dispatch");
}

static void
own_arena(struct worker *w)
{
    struct caid_arena_options options = CAID_INIT(options);
    struct caid_error error;
    struct slot slot;

    options.block_size = 2 << 20;
    options.max_pending_age_ns = 1;
    must(caid_arena_new(w->shared->client, &slot.arena, &options, &error), &error, "new");
    for (int i = 0; i < 20; i++) {
        alloc(w, &slot, 0);
        release(w, &slot);
    }
    caid_arena_close(slot.arena);
}

static void
ask(struct worker *w, struct caid_arena *arena)
{
    struct caid_arena_info info = CAID_INIT(info);
    struct caid_allocation found = CAID_INIT(found);
    struct caid_error error;

    must(caid_arena_info(arena, &info, &error), &error, "info");
    if (info.allocated + info.pending_bytes + info.draining_bytes > info.bytes)
        errx(1, "more than is leased");
    if (caid_arena_find(arena, rnd(w, 1000), &found, &error) == 0)
        errx(1, "an allocation at the address of a small number");
    must(caid_arena_set_limits(arena, rnd(w, 20), 0.1, 1u << 30, &error), &error, "limits");
}

static void
defer(struct worker *w, struct caid_arena *arena)
{
    struct caid_error error;

    must(caid_arena_defer_begin(arena, &error), &error, "defer_begin");
    exchange(w);
    must(caid_arena_defer_end(arena, &error), &error, "defer_end");
}

static void
step(struct worker *w)
{
    struct caid_arena *arena = w->shared->arenas[rnd(w, ARENAS)];
    struct caid_error error;

    switch (rnd(w, 40)) {
    case 0: must(caid_arena_flush(arena, &error), &error, "flush"); break;
    case 1: must(caid_arena_trim(arena, &error), &error, "trim"); break;
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
    struct caid_arena_info info = CAID_INIT(info);
    struct caid_error error;
    uint64_t ptr;

    pthread_barrier_wait(&w->shared->begin);
    must(caid_arena_alloc(arena, 1 << 20, 0, &ptr, &error), &error, "alloc");
    pthread_barrier_wait(&w->shared->begin);
    must(caid_arena_info(arena, &info, &error), &error, "info");
    if (info.n_leased != 1)
        errx(1, "%llu blocks for one", (unsigned long long)info.n_leased);
    pthread_barrier_wait(&w->shared->begin);
    must(caid_arena_free(arena, ptr, 0, &error), &error, "free");
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    const struct drv_table *cu = &w->shared->drv->cu;
    CUcontext context;

    must_cuda(cu->cuCtxPushCurrent(w->shared->context), "push");
    must_cuda(cu->cuStreamCreate(&w->stream, 1), "stream");
    begin(w);
    for (int i = 0; i < w->shared->steps; i++)
        step(w);
    must_cuda(cu->cuStreamDestroy(w->stream), "stream");
    must_cuda(cu->cuCtxPopCurrent(&context), "pop");
    return NULL;
}

/* ---- all of it ---- */

static void
begin_all(struct shared *shared, const char *socket)
{
    struct caid_connect_options options = CAID_INIT(options);
    struct drv_error cause;
    struct caid_error error;

    options.socket = socket;
    must(caid_connect(&shared->client, &options, &error), &error, "connect");
    for (size_t i = 0; i < ARENAS; i++)
        must(caid_arena_new(shared->client, &shared->arenas[i], NULL, &error), &error, "new");
    if (drv_open(&shared->drv, "soft", &cause) < 0)
        errx(1, "%s", cause.message);
    must_cuda(shared->drv->cu.cuDevicePrimaryCtxRetain(&shared->context, 0), "retain");
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
    struct caid_arena_info info = CAID_INIT(info);
    struct caid_status status = CAID_INIT(status);
    struct caid_error error;

    for (size_t i = 0; i < SLOTS; i++)
        if (shared->slots[i].ptr)
            must(caid_arena_free(shared->slots[i].arena, shared->slots[i].ptr, 0, &error),
                 &error, "free");
    for (size_t i = 0; i < ARENAS; i++) {
        int tries = 0;
        do {
            must(caid_client_dispatch(shared->client, &error), &error, "dispatch");
            must(caid_arena_trim(shared->arenas[i], &error), &error, "trim");
            must(caid_arena_info(shared->arenas[i], &info, &error), &error, "info");
            patience(&tries, "blocks are left");
        } while (info.blocks > 0);
        if (info.allocations + info.pending + info.draining + info.published > 0)
            errx(1, "an arena is not empty");
        caid_arena_close(shared->arenas[i]);
    }
    int tries = 0;
    do {
        must(caid_client_status(shared->client, &status, &error), &error, "status");
        patience(&tries, "leases are left");
    } while (status.leases > 0);
    caid_client_close(shared->client);
    must_cuda(shared->drv->cu.cuDevicePrimaryCtxRelease(0), "release");
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
        struct caid_error error;
        pthread_join(workers[i].thread, NULL);
        caid_unlink(shared.client, workers[i].name, NULL, &error); /* if it is there */
    }
    end_all(&shared);
    return 0;
}
