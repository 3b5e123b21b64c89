/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of an arena: when they are leased, when they go back, and what happens where there
 * are none. */
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
wait_for_blocks(uint64_t n)
{
    for (int i = 0; i < TRIES && arena_look().blocks != n; i++)
        usleep(5000);
    cr_assert_eq(arena_look().blocks, n, "%llu", (unsigned long long)arena_look().blocks);
}

static void
flush(void)
{
    do
        assert_ok(caid_arena_flush(f.arena, &error));
    while (arena_look().draining > 0);
}

/* ---- which block ---- */

ARENA_TEST_OF(arena_memory, a_large_one_has_a_block_of_its_own, .block_size = 4 * MIB)
{
    arena_get(2 * MIB);
    arena_get(2 * MIB);
    cr_assert_eq(arena_look().blocks, 1, "half a block is shared");
    uint64_t large = arena_get(2 * MIB + 1);
    cr_assert_eq(arena_look().blocks, 2);
    cr_assert_eq(arena_look().bytes, 8 * MIB, "rounded up to the granularity");
    arena_get(512);
    cr_assert_eq(arena_look().blocks, 3, "nothing else is put there");
    arena_put(large);
    flush();
    cr_assert_eq(arena_look().empty_blocks, 1);
    cr_assert_eq(arena_look().empty_bytes, 4 * MIB);
}

ARENA_TEST_OF(arena_memory, an_empty_block_serves_what_is_not_much_smaller,
              .block_size = 2 * MIB)
{
    uint64_t a = arena_get(100 * MIB), b = arena_get(60 * MIB);
    arena_put(a);
    arena_put(b);
    flush();
    cr_assert_eq(arena_get(10 * MIB) == a, 0, "too small for either");
    cr_assert_eq(arena_look().n_leased, 3);
    cr_assert_eq(arena_get(55 * MIB), b, "the smallest that does");
    cr_assert_eq(arena_get(90 * MIB), a);
    cr_assert_eq(arena_look().n_leased, 3);
}

/* Room is made of what waits before the daemon is asked. */
ARENA_TEST_OF(arena_memory, what_waits_serves_before_another_block_does, .block_size = 4 * MIB)
{
    uint64_t first = arena_get(64 * MIB);
    for (int i = 0; i < 50; i++) {
        arena_put(first);
        cr_assert_eq(arena_look().pending, 1);
        flush();
        cr_assert_eq(arena_get(64 * MIB), first);
    }
    cr_assert_eq(arena_look().n_leased, 1);
}

/* ---- going back ---- */

ARENA_TEST_OF(arena_memory, empty_blocks_go_back_by_their_number, .block_size = 2 * MIB,
              .max_pending_age_ns = UINT64_MAX)
{
    uint64_t ptrs[11];

    for (size_t i = 0; i < ARRAY_SIZE(ptrs); i++)
        ptrs[i] = arena_get(2 * MIB);
    for (size_t i = 0; i < 10; i++)
        arena_put(ptrs[i]);
    flush();
    cr_assert_eq(arena_look().empty_blocks, 10);
    arena_put(ptrs[10]);
    flush();
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.empty_blocks, 0, "the 11th takes all with it");
    cr_assert_eq(info.blocks, 0);
    wait_for_leases(f.client, 0);
}

ARENA_TEST_OF(arena_memory, empty_blocks_go_back_by_their_bytes, .block_size = 2 * MIB,
              .max_pending_age_ns = UINT64_MAX)
{
    uint64_t a = arena_get(6 * MIB), b = arena_get(2 * MIB);
    assert_ok(caid_arena_set_limits(f.arena, 100, 1, 6 * MIB, &error));
    arena_put(a);
    flush();
    cr_assert_eq(arena_look().blocks, 2);
    arena_put(b);
    flush();
    cr_assert_eq(arena_look().blocks, 0);
}

/* The program does nothing any more: the client's thread sees to it. */
ARENA_TEST_OF(arena_memory, empty_blocks_go_back_by_their_age, .block_size = 2 * MIB,
              .max_pending_age_ns = 1000000)
{
    struct gate gate;

    uint64_t a = arena_get(6 * MIB);
    arena_get(1); /* stays */
    gate_shut(&gate);
    arena_put(a);
    assert_ok(caid_arena_flush(f.arena, &error));
    usleep(600 * 1000);
    cr_assert_eq(arena_look().draining, 1, "not before the work is done");
    gate_open(&gate);
    wait_for_blocks(1);
    wait_for_leases(f.client, 1);
}

ARENA_TEST_OF(arena_memory, empty_blocks_stay_while_the_arena_is_deferred,
              .block_size = 2 * MIB, .max_pending_age_ns = 1)
{
    uint64_t a = arena_get(6 * MIB);
    assert_ok(caid_arena_defer_begin(f.arena, &error));
    arena_put(a);
    assert_ok(caid_arena_defer_end(f.arena, &error));
    flush();
    assert_ok(caid_arena_defer_begin(f.arena, &error));
    uint64_t blocks = arena_look().blocks; /* none where the thread has been faster */
    usleep(600 * 1000);
    cr_assert_eq(arena_look().blocks, blocks);
    assert_ok(caid_arena_defer_end(f.arena, &error));
    wait_for_blocks(0);
}

/* A thread may have the arena's lock while it waits in a driver call. */
ARENA_TEST(arena_memory, the_clients_thread_does_not_wait_for_an_arena)
{
    struct gate gate;

    uint64_t a = arena_get(40 * MIB);
    struct caid_array *array = make_bytes(f.client, NULL, 1000);
    gate_shut(&gate);
    arena_put(a);
    assert_ok(caid_arena_flush(f.arena, &error));
    arena_lock(f.arena);
    gate_open(&gate);
    usleep(600 * 1000); /* it comes to look at what drains */
    caid_array_close(array);
    wait_for_leases(f.client, 1);
    arena_unlock(f.arena);
    wait_for_blocks(0); /* it has come again */
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
    if (!gpu_is_soft())
        return;
    FILE *trace = open_trace();
    arena_begin(NULL);
    arena_put(arena_get(100 * MIB));
    assert_ok(caid_arena_trim(f.arena, &error));
    struct unmapping seen = read_trace(trace);
    cr_assert_gt(seen.n, 0);
    cr_assert_eq(seen.n_relaxed, seen.n);
    fclose(trace);
    arena_end();
}

/* The daemon's memory; this process's driver has read its own setting. A small one is not a
 * fifth full before blocks stay. */
static void
begin_with(const char *memory)
{
    struct caid_arena_options options = arena_blocks_of(4);
    char uuid[64]; /* nobody else's device */

    options.max_pending_ratio = 1;
    setenv("CAID_SOFTCUDA_MEMORY", memory, 1);
    snprintf(uuid, sizeof(uuid), "GPU-00000000-0000-0000-0000-%012x", (unsigned int)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 1);
    arena_begin(&options);
}

/* Where the device has so much memory alone. */
#define SHORT_TEST(name, memory)                                                      \
    CAID_TEST_BETWEEN(arena_memory, name, ONLY_IF(gpu_is_soft(), begin_with(memory)), \
                      arena_end(), .init = driver_warm_up, .timeout = 120)

SHORT_TEST(others_can_have_what_was_trimmed, "128M")
{
    struct caid_arena *theirs;
    uint64_t ptr;

    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_arena_new(other, &theirs, NULL, &error));
    arena_put(arena_get(100 * MIB));
    assert_failed(caid_arena_alloc(theirs, 100 * MIB, 0, &ptr, &error), CAID_ERR_NO_MEMORY);
    assert_ok(caid_arena_trim(f.arena, &error));
    assert_ok(caid_client_ping(f.client, &error)); /* it has been told */
    assert_ok(caid_arena_alloc(theirs, 100 * MIB, 0, &ptr, &error));
    caid_arena_close(theirs);
    caid_client_close(other);
}

/* ---- shortage: R12 ---- */

struct opener {
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

SHORT_TEST(r12_the_gpu_is_waited_for_where_memory_is_short, "64M")
{
    struct opener opener;
    pthread_t thread;

    uint64_t a = arena_get(40 * MIB);
    gate_shut(&opener.gate);
    arena_put(a);
    cr_assert_eq(pthread_create(&thread, NULL, open_later, &opener), 0);
    cr_assert_eq(arena_get(40 * MIB), a, "flushed, waited for, and tried once more");
    cr_assert_eq(arena_look().n_leased, 1);
    pthread_join(thread, NULL);
    gate_open(&opener.gate);

    /* Of a size that the block does not do for: it goes back. */
    arena_put(a);
    arena_put(arena_get(60 * MIB));
    cr_assert_eq(arena_look().n_leased, 2);
}

/* The shortage is told, and not why the GPU could not be waited for. */
SHORT_TEST(r12_what_cannot_be_waited_for_is_no_room, "64M")
{
    struct gate gate;
    uint64_t ptr;

    uint64_t a = arena_get(40 * MIB);
    gate_shut(&gate);
    arena_put(a);
    soft_control(&f.gpu, "fail cuEventSynchronize=UNKNOWN");
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &error), CAID_ERR_NO_MEMORY);
    soft_control(&f.gpu, "clear");
    gate_open(&gate);
    cr_assert_eq(arena_get(40 * MIB), a);
}

SHORT_TEST(r12_a_smaller_block_is_better_than_none, "10M")
{
    uint64_t ptr;

    for (int i = 0; i < 5; i++)
        arena_get(2 * MIB);
    cr_assert_eq(arena_look().blocks, 3);
    cr_assert_eq(arena_look().bytes, 10 * MIB);
    assert_failed(caid_arena_alloc(f.arena, 1, 0, &ptr, &error), CAID_ERR_NO_MEMORY);
}

/* Large blocks are unmapped by the client's thread, which the second try waits for. */
SHORT_TEST(r12_what_was_given_back_is_free, "1G")
{
    uint64_t ptrs[3];

    for (int i = 0; i < 20; i++) {
        for (size_t j = 0; j < ARRAY_SIZE(ptrs); j++)
            ptrs[j] = arena_get(300 * MIB);
        for (size_t j = 0; j < ARRAY_SIZE(ptrs); j++)
            arena_put(ptrs[j]);
        arena_put(arena_get(900 * MIB));
    }
}

/* The driver takes its time to have the memory back. */
SHORT_TEST(r12_what_was_given_back_is_waited_for, "1G")
{
    soft_control(&f.gpu, "fail cuMemRelease=delay:20000");
    for (int i = 0; i < 20; i++) {
        arena_put(arena_get(700 * MIB));
        arena_put(arena_get(900 * MIB));
    }
    soft_control(&f.gpu, "clear");
}

SHORT_TEST(r12_not_while_the_arena_is_deferred, "64M")
{
    struct gate gate;
    uint64_t ptr;

    uint64_t a = arena_get(40 * MIB);
    assert_ok(caid_arena_defer_begin(f.arena, &error));
    arena_put(a);
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &error), CAID_ERR_NO_MEMORY);
    cr_assert_eq(arena_look().pending, 1);
    assert_ok(caid_arena_defer_end(f.arena, &error));
    cr_assert_eq(arena_get(40 * MIB), a);

    /* Nor is waited for what drains. */
    gate_shut(&gate);
    arena_put(a);
    assert_ok(caid_arena_flush(f.arena, &error));
    assert_ok(caid_arena_defer_begin(f.arena, &error));
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &error), CAID_ERR_NO_MEMORY);
    assert_ok(caid_arena_defer_end(f.arena, &error));
    gate_open(&gate);
}

CLIENT_TEST(arena_memory, a_quota_is_an_error_of_its_own)
{
    uint64_t ptr;

    arena_begin_with(NULL, "[user-pools]\nquota = 48M\n");
    uint64_t a = arena_get(MIB);
    assert_failed(caid_arena_alloc(f.arena, 60 * MIB, 0, &ptr, &error), CAID_ERR_QUOTA);
    arena_put(a);
    arena_put(arena_get(40 * MIB)); /* the first block makes room */
    arena_end();
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

    uint64_t ptr;

    if (!gpu_is_soft())
        return;
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        arena_begin(NULL);
        soft_control(&f.gpu, faults[i].command);
        assert_failed(caid_arena_alloc(f.arena, 100, 0, &ptr, &error), faults[i].code);
        soft_control(&f.gpu, "clear");
        struct caid_arena_info info = arena_look();
        cr_assert_eq(info.blocks + info.allocations + info.n_leased, 0);
        wait_for_leases(f.client, 0);
        arena_put(arena_get(100));
        arena_end();
    }
}

/* ---- the end of the connection ---- */

ARENA_TEST(arena_memory, goes_on_without_the_daemon_in_what_is_there)
{
    unsigned char byte = 0;
    uint64_t ptr;

    uint64_t a = arena_get(100), b = arena_get(40 * MIB);
    daemon_end(&f.daemon, SIGKILL);
    for (int i = 0; i < 100; i++) {
        uint64_t c = arena_get(4096);
        assert_cuda(f.gpu.drv->cu.cuMemsetD8(c, 3, 4096));
        arena_put(c);
    }
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 9, 100));
    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(&byte, a, 1));
    cr_assert_eq(byte, 9);
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &error), CAID_ERR_DISCONNECTED);
    arena_put(b);
    flush();
    cr_assert_eq(arena_get(40 * MIB), b);
    assert_ok(caid_arena_trim(f.arena, &error));
}

ARENA_TEST(arena_memory, goes_on_after_the_client_was_closed)
{
    uint64_t ptr;

    uint64_t a = arena_get(100);
    caid_client_close(f.client);
    f.client = NULL;
    for (int i = 0; i < 50; i++)
        arena_put(arena_get(4096));
    assert_failed(caid_arena_alloc(f.arena, 40 * MIB, 0, &ptr, &error), CAID_ERR_CLOSED);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 9, 100));
    arena_put(a);
    assert_ok(caid_arena_trim(f.arena, &error));
    cr_assert_eq(arena_look().blocks, 0);
}

/* What was allocated ends, as soon as the GPU is done with it. */
ARENA_TEST(arena_memory, closing_ends_all_allocations)
{
    struct gate gate;

    uint64_t a = arena_get(100);
    arena_get(40 * MIB);
    arena_put(arena_get(50 * MIB));
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 1, 100));
    gate_shut(&gate);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(a, 2, 100, gate.stream));
    caid_arena_close(f.arena);
    f.arena = NULL;
    usleep(50 * 1000);
    wait_for_leases(f.client, 3);
    gate_open(&gate);
    wait_for_leases(f.client, 0);
}

CLIENT_TEST(arena_memory, several_arenas_of_one_client)
{
    struct caid_arena_options options = arena_blocks_of(2);
    struct caid_arena *arenas[5];
    uint64_t ptrs[5];

    options.max_pending_age_ns = 1000000;
    arena_begin(NULL);
    for (size_t i = 0; i < 5; i++) {
        assert_ok(caid_arena_new(f.client, &arenas[i], &options, &error));
        assert_ok(caid_arena_alloc(arenas[i], 100, 0, &ptrs[i], &error));
    }
    wait_for_leases(f.client, 5);
    assert_failed(caid_arena_free(arenas[0], ptrs[1], 0, &error), CAID_ERR_INVALID);
    for (size_t i = 0; i < 5; i++) {
        assert_ok(caid_arena_free(arenas[i], ptrs[i], 0, &error));
        assert_ok(caid_arena_flush(arenas[i], &error));
        if (i % 2)
            caid_arena_close(arenas[i]);
    }
    wait_for_leases(f.client, 0); /* the client's thread looks at each of them */
    for (size_t i = 0; i < 5; i += 2)
        caid_arena_close(arenas[i]);
    arena_end();
}
