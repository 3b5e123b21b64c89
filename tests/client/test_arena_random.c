/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of an arena against a model of it: live allocations never overlap, no late work
 * writes to freed memory once it is used again, and the figures of the queue follow from the frees
 * by Numba's rules. Work is late by chance: the software driver's delays.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "arena_fixture.h"
#include "base/macros.h"

#define N_LIVE    200
#define N_STREAMS 3
#define N_STEPS   6000
#define MARK      64 /* bytes that are written, at either end */
#define COUNT     10
#define N_DRAIN   32 /* batches; while there are so many, what is freed stays pending */

struct live {
    uint64_t ptr, nbytes;
    unsigned char tag;
};

struct model {
    CUstream streams[N_STREAMS];
    struct live live[N_LIVE];
    size_t n_live;
    uint64_t allocated, n_allocs;
    uint64_t pending, pending_bytes, max_bytes;
    unsigned int deferred;
    uint64_t state; /* of the random numbers */
    int step;
};

static uint64_t
chance(struct model *m, uint64_t below)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (m->state >> 33) % below;
}

/* ---- the memory ---- */

static uint64_t
mark_of(const struct live *live)
{
    return live->nbytes < MARK ? live->nbytes : MARK;
}

/* Now, whatever the streams do. */
static void
write_now(struct model *m, uint64_t at, unsigned char with, uint64_t n)
{
    if (gpu_is_soft()) {
        memset((void *)(uintptr_t)at, with, n);
        return;
    }
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(at, with, n, m->streams[0]));
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(m->streams[0]));
}

static void
write_late(struct model *m, uint64_t at, unsigned char with, uint64_t n)
{
    CUstream stream = m->streams[chance(m, N_STREAMS)];

    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(at, with, n, stream));
}

static void
must_hold(struct model *m, uint64_t at, unsigned char tag, uint64_t n)
{
    unsigned char bytes[MARK];

    if (gpu_is_soft())
        memcpy(bytes, (void *)(uintptr_t)at, n);
    else
        assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(bytes, at, n));
    for (uint64_t i = 0; i < n; i++)
        cr_assert_eq(bytes[i], tag, "step %d: %#" PRIx64 " has %d, not %d", m->step, at + i,
                     bytes[i], tag);
}

static void
must_be_intact(struct model *m, const struct live *live)
{
    uint64_t n = mark_of(live);

    must_hold(m, live->ptr, live->tag, n);
    must_hold(m, live->ptr + live->nbytes - n, live->tag, n);
}

/* ---- steps ---- */

static void
must_be_alone(const struct model *m, uint64_t ptr, uint64_t nbytes)
{
    for (size_t i = 0; i < m->n_live; i++) {
        const struct live *other = &m->live[i];
        cr_assert(ptr + nbytes <= other->ptr || other->ptr + other->nbytes <= ptr,
                  "step %d: %#" PRIx64 " and %#" PRIx64, m->step, ptr, other->ptr);
    }
}

static uint64_t
random_size(struct model *m)
{
    switch (chance(m, 8)) {
    case 0: return 1 + chance(m, 3 * MIB);
    case 1: return 1 + chance(m, 600 * 1024);
    case 2: return 512 * (1 + chance(m, 4));
    default: return 1 + chance(m, 20000);
    }
}

static void
step_alloc(struct model *m)
{
    struct live *live = &m->live[m->n_live];

    if (m->n_live == N_LIVE)
        return;
    live->nbytes = random_size(m);
    live->ptr = arena_get(live->nbytes);
    live->tag = (unsigned char)(1 + m->step % 200);
    must_be_alone(m, live->ptr, live->nbytes);
    write_now(m, live->ptr, live->tag, mark_of(live));
    write_now(m, live->ptr + live->nbytes - mark_of(live), live->tag, mark_of(live));
    m->n_live++;
    m->n_allocs++;
    m->allocated += live->nbytes;
    uint64_t pending = arena_look().pending;
    if (pending != m->pending) { /* there was no room */
        cr_assert(pending == 0 && m->deferred == 0, "step %d", m->step);
        m->pending = m->pending_bytes = 0;
    }
}

/* All or nothing is. */
static void
was_flushed(struct model *m)
{
    struct caid_arena_info info = arena_look();

    if (m->deferred > 0 || (info.pending > 0 && info.draining >= N_DRAIN))
        return;
    m->pending = m->pending_bytes = 0;
}

/* Its last work is late. */
static void
step_free(struct model *m)
{
    if (m->n_live == 0)
        return;
    size_t i = chance(m, m->n_live);
    struct live live = m->live[i];
    must_be_intact(m, &live);
    write_late(m, live.ptr, 0xee, mark_of(&live));
    write_late(m, live.ptr + live.nbytes - mark_of(&live), 0xee, mark_of(&live));
    arena_put(live.ptr);
    m->live[i] = m->live[--m->n_live];
    m->allocated -= live.nbytes;
    m->pending++;
    m->pending_bytes += live.nbytes;
    if (m->pending > COUNT || m->pending_bytes > m->max_bytes)
        was_flushed(m);
}

static void
step_flush(struct model *m)
{
    if (chance(m, 4) == 0)
        assert_ok(caid_arena_trim(f.arena, &error));
    else
        assert_ok(caid_arena_flush(f.arena, &error));
    was_flushed(m);
}

static void
step_defer(struct model *m)
{
    if (chance(m, 3) && m->deferred > 0) {
        assert_ok(caid_arena_defer_end(f.arena, &error));
        m->deferred--;
    } else if (m->deferred < 2) {
        assert_ok(caid_arena_defer_begin(f.arena, &error));
        m->deferred++;
    }
}

/* Any address in it leads to it. */
static void
step_find(struct model *m)
{
    struct caid_allocation found = CAID_INIT(found);

    if (m->n_live == 0)
        return;
    const struct live *live = &m->live[chance(m, m->n_live)];
    must_be_intact(m, live);
    assert_ok(caid_arena_find(f.arena, live->ptr + chance(m, live->nbytes), &found, &error));
    cr_assert_eq(found.ptr, live->ptr);
    cr_assert_eq(found.nbytes, live->nbytes);
}

static void
compare(struct model *m)
{
    struct caid_arena_info info = arena_look();

    cr_assert_eq(info.allocations, m->n_live, "step %d", m->step);
    cr_assert_eq(info.allocated, m->allocated, "step %d", m->step);
    cr_assert_eq(info.n_allocs, m->n_allocs, "step %d", m->step);
    cr_assert_eq(info.pending, m->pending, "step %d: %" PRIu64 ", not %" PRIu64, m->step,
                 info.pending, m->pending);
    cr_assert_eq(info.pending_bytes, m->pending_bytes, "step %d", m->step);
    cr_assert_leq(info.allocated + info.pending_bytes + info.draining_bytes + info.empty_bytes,
                  info.bytes, "step %d", m->step);
}

static void
step(struct model *m)
{
    uint64_t which = chance(m, 100);

    if (which < 46)
        step_alloc(m);
    else if (which < 90)
        step_free(m);
    else if (which < 97)
        step_find(m);
    else if (which < 99)
        step_defer(m);
    else
        step_flush(m);
    compare(m);
}

/* ---- histories ---- */

static void
history(uint64_t seed)
{
    struct caid_arena_options options = arena_blocks_of(4);
    struct model m = {.state = seed};

    options.max_pending_age_ns = 1000000; /* the client's thread takes part */
    arena_begin(&options);
    m.max_bytes = 5 * MIB;
    assert_ok(caid_arena_set_limits(f.arena, COUNT, 0.5, 10 * MIB, &error));
    for (size_t i = 0; i < N_STREAMS; i++)
        m.streams[i] = gpu_stream_new(&f.gpu);
    for (m.step = 0; m.step < N_STEPS; m.step++)
        step(&m);
    for (size_t i = 0; i < m.n_live; i++)
        must_be_intact(&m, &m.live[i]);
    caid_arena_close(f.arena);
    f.arena = NULL;
    wait_for_leases(f.client, 0);
    for (size_t i = 0; i < N_STREAMS; i++)
        assert_cuda(f.gpu.drv->cu.cuStreamDestroy(m.streams[i]));
    arena_end();
}

static void
late_driver(void)
{
    setenv("CAID_SOFTCUDA_DELAY_US", "400", 1);
    setenv("CAID_SOFTCUDA_JITTER_SEED", "6", 1);
    driver_warm_up();
}

#define RANDOM_TEST(name) \
    CAID_TEST_WITH(arena_random, name, .init = late_driver, .timeout = 200)

RANDOM_TEST(history_1)
{
    history(1);
}

RANDOM_TEST(history_2)
{
    history(2222);
}

RANDOM_TEST(history_3)
{
    history(UINT64_C(0x9e3779b97f4a7c15));
}
