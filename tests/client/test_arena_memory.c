/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of an arena: when they are leased, when they go back, and what happens where there are none. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena/arena.h"
#include "arena_fixture.h"
#include "base/macros.h"

#define TRIES 4000

static void
wait_for_blocks(struct arena_fixture *f, uint64_t n)
{
    for (int i = 0; i < TRIES && arena_look(f).blocks != n; i++)
        usleep(5000);
    cr_assert_eq(arena_look(f).blocks, n, "%llu", (unsigned long long)arena_look(f).blocks);
}

static void
flush(struct arena_fixture *f)
{
    do
        assert_ok(caid_arena_flush(f->arena, &f->error), f->error);
    while (arena_look(f).draining > 0);
}

/* ---- which block ---- */

CLIENT_TEST(arena_memory, a_large_one_has_a_block_of_its_own)
{
    struct caid_arena_options options = arena_blocks_of(4);
    struct arena_fixture f;

    arena_begin(&f, &options);
    arena_get(&f, 2 * MIB);
    arena_get(&f, 2 * MIB);
    cr_assert_eq(arena_look(&f).blocks, 1, "half a block is shared");
    uint64_t large = arena_get(&f, 2 * MIB + 1);
    cr_assert_eq(arena_look(&f).blocks, 2);
    cr_assert_eq(arena_look(&f).bytes, 8 * MIB, "rounded up to the granularity");
    arena_get(&f, 512);
    cr_assert_eq(arena_look(&f).blocks, 3, "nothing else is put there");
    arena_put(&f, large);
    flush(&f);
    cr_assert_eq(arena_look(&f).empty_blocks, 1);
    cr_assert_eq(arena_look(&f).empty_bytes, 4 * MIB);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, an_empty_block_serves_what_is_not_much_smaller)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct arena_fixture f;

    arena_begin(&f, &options);
    uint64_t a = arena_get(&f, 100 * MIB), b = arena_get(&f, 60 * MIB);
    arena_put(&f, a);
    arena_put(&f, b);
    flush(&f);
    cr_assert_eq(arena_get(&f, 10 * MIB) == a, 0, "too small for either");
    cr_assert_eq(arena_look(&f).n_leased, 3);
    cr_assert_eq(arena_get(&f, 55 * MIB), b, "the smallest that does");
    cr_assert_eq(arena_get(&f, 90 * MIB), a);
    cr_assert_eq(arena_look(&f).n_leased, 3);
    arena_end(&f);
}

/* Room is made of what waits before the daemon is asked. */
CLIENT_TEST(arena_memory, what_waits_serves_before_another_block_does)
{
    struct caid_arena_options options = arena_blocks_of(4);
    struct arena_fixture f;

    arena_begin(&f, &options);
    uint64_t first = arena_get(&f, 64 * MIB);
    for (int i = 0; i < 50; i++) {
        arena_put(&f, first);
        cr_assert_eq(arena_look(&f).pending, 1);
        flush(&f);
        cr_assert_eq(arena_get(&f, 64 * MIB), first);
    }
    cr_assert_eq(arena_look(&f).n_leased, 1);
    arena_end(&f);
}

/* ---- going back ---- */

CLIENT_TEST(arena_memory, empty_blocks_go_back_by_their_number)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct arena_fixture f;
    uint64_t ptrs[11];

    options.max_pending_age_ns = UINT64_MAX;
    arena_begin(&f, &options);
    for (size_t i = 0; i < ARRAY_SIZE(ptrs); i++)
        ptrs[i] = arena_get(&f, 2 * MIB);
    for (size_t i = 0; i < 10; i++)
        arena_put(&f, ptrs[i]);
    flush(&f);
    cr_assert_eq(arena_look(&f).empty_blocks, 10);
    arena_put(&f, ptrs[10]);
    flush(&f);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.empty_blocks, 0, "the 11th takes all with it");
    cr_assert_eq(info.blocks, 0);
    wait_for_leases(f.client, 0);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, empty_blocks_go_back_by_their_bytes)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct arena_fixture f;

    options.max_pending_age_ns = UINT64_MAX;
    arena_begin(&f, &options);
    uint64_t a = arena_get(&f, 6 * MIB), b = arena_get(&f, 2 * MIB);
    assert_ok(caid_arena_set_limits(f.arena, 100, 1, 6 * MIB, &f.error), f.error);
    arena_put(&f, a);
    flush(&f);
    cr_assert_eq(arena_look(&f).blocks, 2);
    arena_put(&f, b);
    flush(&f);
    cr_assert_eq(arena_look(&f).blocks, 0);
    arena_end(&f);
}

/* The program does nothing any more: the client's thread sees to it. */
CLIENT_TEST(arena_memory, empty_blocks_go_back_by_their_age)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct arena_fixture f;
    struct gate gate;

    options.max_pending_age_ns = 1000000;
    arena_begin(&f, &options);
    uint64_t a = arena_get(&f, 6 * MIB);
    arena_get(&f, 1); /* stays */
    gate_shut(&f, &gate);
    arena_put(&f, a);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    usleep(600 * 1000);
    cr_assert_eq(arena_look(&f).draining, 1, "not before the work is done");
    gate_open(&f, &gate);
    wait_for_blocks(&f, 1);
    wait_for_leases(f.client, 1);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, empty_blocks_stay_while_the_arena_is_deferred)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct arena_fixture f;

    options.max_pending_age_ns = 1;
    arena_begin(&f, &options);
    uint64_t a = arena_get(&f, 6 * MIB);
    assert_ok(caid_arena_defer_begin(f.arena, &f.error), f.error);
    arena_put(&f, a);
    assert_ok(caid_arena_defer_end(f.arena, &f.error), f.error);
    flush(&f);
    assert_ok(caid_arena_defer_begin(f.arena, &f.error), f.error);
    uint64_t blocks = arena_look(&f).blocks; /* none where the thread has been faster */
    usleep(600 * 1000);
    cr_assert_eq(arena_look(&f).blocks, blocks);
    assert_ok(caid_arena_defer_end(f.arena, &f.error), f.error);
    wait_for_blocks(&f, 0);
    arena_end(&f);
}

/* A thread may have the arena's lock while it waits in a driver call. */
CLIENT_TEST(arena_memory, the_clients_thread_does_not_wait_for_an_arena)
{
    struct arena_fixture f;
    struct gate gate;

    arena_begin(&f, NULL);
    uint64_t a = arena_get(&f, 40 * MIB);
    struct caid_array *array = make_bytes(f.client, NULL, 1000);
    gate_shut(&f, &gate);
    arena_put(&f, a);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    arena_lock(f.arena);
    gate_open(&f, &gate);
    usleep(600 * 1000); /* it comes to look at what drains */
    caid_array_close(array);
    wait_for_leases(f.client, 1);
    arena_unlock(f.arena);
    wait_for_blocks(&f, 0); /* it has come again */
    arena_end(&f);
}

static void
trace_path(char *ret, size_t size, const char *process)
{
    snprintf(ret, size, "/tmp/caid-arena-trace.%s", process);
}

static void
traced_warm_up(void)
{
    char path[64];

    trace_path(path, sizeof(path), "%p");
    setenv("CAID_SOFTCUDA_TRACE", path, 1);
    driver_warm_up();
    unsetenv("CAID_SOFTCUDA_TRACE"); /* nor the daemon's */
}

static FILE *
open_trace(void)
{
    char path[64], process[16];

    snprintf(process, sizeof(process), "%d", (int)getpid());
    trace_path(path, sizeof(path), process);
    FILE *trace = fopen(path, "re");
    cr_assert(trace, "%s", path);
    unlink(path);
    return trace;
}

struct unmapping {
    int n, n_relaxed;
};

/* By other threads than this one. There is one, and it begins in the mode of all threads. */
static struct unmapping
read_trace(FILE *trace)
{
    struct unmapping seen = {0};
    char line[512], call[64];
    bool relaxed = false;
    int pid, thread;

    while (fgets(line, sizeof(line), trace)) {
        if (sscanf(line, "%d %d %*s %63[^(]", &pid, &thread, call) != 3 || thread == getpid())
            continue;
        if (strcmp(call, "cuThreadExchangeStreamCaptureMode") == 0)
            relaxed = !relaxed;
        if (strcmp(call, "cuMemUnmap") != 0)
            continue;
        seen.n++;
        seen.n_relaxed += relaxed;
    }
    return seen;
}

/* Else it would end the captures of others. Nothing else was left to the client's thread before. */
CAID_TEST_WITH(arena_memory, what_goes_back_is_unmapped_with_captures_left_alone,
               .init = traced_warm_up, .timeout = 120)
{
    struct arena_fixture f;

    if (!gpu_is_soft())
        return;
    FILE *trace = open_trace();
    arena_begin(&f, NULL);
    arena_put(&f, arena_get(&f, 100 * MIB));
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    struct unmapping seen = read_trace(trace);
    cr_assert_gt(seen.n, 0);
    cr_assert_eq(seen.n_relaxed, seen.n);
    fclose(trace);
    arena_end(&f);
}

/* The daemon's memory; this process's driver has read its own setting. A small one is not a fifth full
 * before blocks stay. */
static void
begin_with(struct arena_fixture *f, const char *memory)
{
    struct caid_arena_options options = arena_blocks_of(4);
    char uuid[64]; /* nobody else's device */

    options.max_pending_ratio = 1;
    setenv("CAID_SOFTCUDA_MEMORY", memory, 1);
    snprintf(uuid, sizeof(uuid), "GPU-00000000-0000-0000-0000-%012x", (unsigned int)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 1);
    arena_begin(f, &options);
}

CLIENT_TEST(arena_memory, others_can_have_what_was_trimmed)
{
    struct caid_arena *theirs;
    struct arena_fixture f;
    uint64_t ptr;

    if (!gpu_is_soft())
        return;
    begin_with(&f, "128M");
    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_arena_new(other, &theirs, NULL, &f.error), f.error);
    arena_put(&f, arena_get(&f, 100 * MIB));
    assert_failed(caid_arena_alloc(theirs, 100 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_NO_MEMORY);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    assert_ok(caid_client_ping(f.client, &f.error), f.error); /* it has been told */
    assert_ok(caid_arena_alloc(theirs, 100 * MIB, 0, &ptr, &f.error), f.error);
    caid_arena_close(theirs);
    caid_client_close(other);
    arena_end(&f);
}

/* ---- shortage: R12 ---- */

struct opener {
    struct arena_fixture *f;
    struct gate gate;
};

static void *
open_later(void *arg)
{
    struct opener *opener = arg;

    usleep(200 * 1000);
    __atomic_store_n(opener->gate.word, 1, __ATOMIC_RELEASE);
    return NULL;
}

CLIENT_TEST(arena_memory, r12_the_gpu_is_waited_for_where_memory_is_short)
{
    struct opener opener;
    struct arena_fixture f;
    pthread_t thread;

    if (!gpu_is_soft())
        return;
    begin_with(&f, "64M");
    uint64_t a = arena_get(&f, 40 * MIB);
    opener.f = &f;
    gate_shut(&f, &opener.gate);
    arena_put(&f, a);
    cr_assert_eq(pthread_create(&thread, NULL, open_later, &opener), 0);
    cr_assert_eq(arena_get(&f, 40 * MIB), a, "flushed, waited for, and tried once more");
    cr_assert_eq(arena_look(&f).n_leased, 1);
    pthread_join(thread, NULL);
    gate_open(&f, &opener.gate);

    /* Of a size that the block does not do for: it goes back. */
    arena_put(&f, a);
    arena_put(&f, arena_get(&f, 60 * MIB));
    cr_assert_eq(arena_look(&f).n_leased, 2);
    arena_end(&f);
}

/* The shortage is told, and not why the GPU could not be waited for. */
CLIENT_TEST(arena_memory, r12_what_cannot_be_waited_for_is_no_room)
{
    struct arena_fixture f;
    struct gate gate;
    uint64_t ptr;

    if (!gpu_is_soft())
        return;
    begin_with(&f, "64M");
    uint64_t a = arena_get(&f, 40 * MIB);
    gate_shut(&f, &gate);
    arena_put(&f, a);
    soft_control(&f.gpu, "fail cuEventSynchronize=UNKNOWN");
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_NO_MEMORY);
    soft_control(&f.gpu, "clear");
    gate_open(&f, &gate);
    cr_assert_eq(arena_get(&f, 40 * MIB), a);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, r12_a_smaller_block_is_better_than_none)
{
    struct arena_fixture f;
    uint64_t ptr;

    if (!gpu_is_soft())
        return;
    begin_with(&f, "10M");
    for (int i = 0; i < 5; i++)
        arena_get(&f, 2 * MIB);
    cr_assert_eq(arena_look(&f).blocks, 3);
    cr_assert_eq(arena_look(&f).bytes, 10 * MIB);
    assert_failed(caid_arena_alloc(f.arena, 1, 0, &ptr, &f.error), f.error, CAID_ERR_NO_MEMORY);
    arena_end(&f);
}

/* Large blocks are unmapped by the client's thread, which the second try waits for. */
CLIENT_TEST(arena_memory, r12_what_was_given_back_is_free)
{
    struct arena_fixture f;
    uint64_t ptrs[3];

    if (!gpu_is_soft())
        return;
    begin_with(&f, "1G");
    for (int i = 0; i < 20; i++) {
        for (size_t j = 0; j < ARRAY_SIZE(ptrs); j++)
            ptrs[j] = arena_get(&f, 300 * MIB);
        for (size_t j = 0; j < ARRAY_SIZE(ptrs); j++)
            arena_put(&f, ptrs[j]);
        arena_put(&f, arena_get(&f, 900 * MIB));
    }
    arena_end(&f);
}

/* The driver takes its time to have the memory back. */
CLIENT_TEST(arena_memory, r12_what_was_given_back_is_waited_for)
{
    struct arena_fixture f;

    if (!gpu_is_soft())
        return;
    begin_with(&f, "1G");
    soft_control(&f.gpu, "fail cuMemRelease=delay:20000");
    for (int i = 0; i < 20; i++) {
        arena_put(&f, arena_get(&f, 700 * MIB));
        arena_put(&f, arena_get(&f, 900 * MIB));
    }
    soft_control(&f.gpu, "clear");
    arena_end(&f);
}

CLIENT_TEST(arena_memory, r12_not_while_the_arena_is_deferred)
{
    struct arena_fixture f;
    struct gate gate;
    uint64_t ptr;

    if (!gpu_is_soft())
        return;
    begin_with(&f, "64M");
    uint64_t a = arena_get(&f, 40 * MIB);
    assert_ok(caid_arena_defer_begin(f.arena, &f.error), f.error);
    arena_put(&f, a);
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_NO_MEMORY);
    cr_assert_eq(arena_look(&f).pending, 1);
    assert_ok(caid_arena_defer_end(f.arena, &f.error), f.error);
    cr_assert_eq(arena_get(&f, 40 * MIB), a);

    /* Nor is waited for what drains. */
    gate_shut(&f, &gate);
    arena_put(&f, a);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    assert_ok(caid_arena_defer_begin(f.arena, &f.error), f.error);
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_NO_MEMORY);
    assert_ok(caid_arena_defer_end(f.arena, &f.error), f.error);
    gate_open(&f, &gate);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, a_quota_is_an_error_of_its_own)
{
    struct arena_fixture f;
    uint64_t ptr;

    arena_begin_with(&f, NULL, "[user-pools]\nquota = 48M\n");
    uint64_t a = arena_get(&f, MIB);
    assert_failed(caid_arena_alloc(f.arena, 60 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_QUOTA);
    arena_put(&f, a);
    arena_put(&f, arena_get(&f, 40 * MIB)); /* the first block makes room */
    arena_end(&f);
}

/* ---- driver calls that fail ---- */

CLIENT_TEST(arena_memory, a_block_that_cannot_be_had)
{
    static const struct {
        const char *command;
        int32_t code;
    } faults[] = {{"fail cuMemMap=UNKNOWN", CAID_ERR_DRIVER},
                  {"fail cuMemImportFromShareableHandle=OPERATING_SYSTEM", CAID_ERR_DRIVER},
                  {"fail cuMemAddressReserve=OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
                  {"fail cuDevicePrimaryCtxRetain=UNKNOWN", CAID_ERR_DRIVER}};
    struct arena_fixture f;
    uint64_t ptr;

    if (!gpu_is_soft())
        return;
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        arena_begin(&f, NULL);
        soft_control(&f.gpu, faults[i].command);
        assert_failed(caid_arena_alloc(f.arena, 100, 0, &ptr, &f.error), f.error,
                      faults[i].code);
        soft_control(&f.gpu, "clear");
        struct caid_arena_info info = arena_look(&f);
        cr_assert_eq(info.blocks + info.allocations + info.n_leased, 0);
        wait_for_leases(f.client, 0);
        arena_put(&f, arena_get(&f, 100));
        arena_end(&f);
    }
}

/* ---- the end of the connection ---- */

CLIENT_TEST(arena_memory, goes_on_without_the_daemon_in_what_is_there)
{
    struct arena_fixture f;
    unsigned char byte = 0;
    uint64_t ptr;

    arena_begin(&f, NULL);
    uint64_t a = arena_get(&f, 100), b = arena_get(&f, 40 * MIB);
    daemon_end(&f.daemon, SIGKILL);
    for (int i = 0; i < 100; i++) {
        uint64_t c = arena_get(&f, 4096);
        assert_cuda(f.gpu.drv->cu.cuMemsetD8(c, 3, 4096));
        arena_put(&f, c);
    }
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 9, 100));
    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(&byte, a, 1));
    cr_assert_eq(byte, 9);
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_DISCONNECTED);
    arena_put(&f, b);
    flush(&f);
    cr_assert_eq(arena_get(&f, 40 * MIB), b);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, goes_on_after_the_client_was_closed)
{
    struct arena_fixture f;
    uint64_t ptr;

    arena_begin(&f, NULL);
    uint64_t a = arena_get(&f, 100);
    caid_client_close(f.client);
    f.client = NULL;
    for (int i = 0; i < 50; i++)
        arena_put(&f, arena_get(&f, 4096));
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &f.error), f.error,
                  CAID_ERR_CLOSED);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 9, 100));
    arena_put(&f, a);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).blocks, 0);
    arena_end(&f);
}

/* What was allocated ends, as soon as the GPU is done with it. */
CLIENT_TEST(arena_memory, closing_ends_all_allocations)
{
    struct arena_fixture f;
    struct gate gate;

    arena_begin(&f, NULL);
    uint64_t a = arena_get(&f, 100);
    arena_get(&f, 40 * MIB);
    arena_put(&f, arena_get(&f, 50 * MIB));
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 1, 100));
    gate_shut(&f, &gate);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(a, 2, 100, gate.stream));
    caid_arena_close(f.arena);
    f.arena = NULL;
    usleep(50 * 1000);
    wait_for_leases(f.client, 3);
    gate_open(&f, &gate);
    wait_for_leases(f.client, 0);
    arena_end(&f);
}

CLIENT_TEST(arena_memory, several_arenas_of_one_client)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct caid_arena *arenas[5];
    struct arena_fixture f;
    uint64_t ptrs[5];

    options.max_pending_age_ns = 1000000;
    arena_begin(&f, NULL);
    for (size_t i = 0; i < 5; i++) {
        assert_ok(caid_arena_new(f.client, &arenas[i], &options, &f.error), f.error);
        assert_ok(caid_arena_alloc(arenas[i], 100, 0, &ptrs[i], &f.error), f.error);
    }
    wait_for_leases(f.client, 5);
    assert_failed(caid_arena_free(arenas[0], ptrs[1], 0, &f.error), f.error, CAID_ERR_INVALID);
    for (size_t i = 0; i < 5; i++) {
        assert_ok(caid_arena_free(arenas[i], ptrs[i], 0, &f.error), f.error);
        assert_ok(caid_arena_flush(arenas[i], &f.error), f.error);
        if (i % 2)
            caid_arena_close(arenas[i]);
    }
    wait_for_leases(f.client, 0); /* the client's thread looks at each of them */
    for (size_t i = 0; i < 5; i += 2)
        caid_arena_close(arenas[i]);
    arena_end(&f);
}
