/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas: what is handed out, what is told of it, and which calls are refused. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arena_fixture.h"
#include "base/macros.h"
#include "process.h"

#define N_MANY 1000

ARENA_TEST(arena, memory_can_be_written_and_read)
{
    const uint64_t sizes[] = {1, 511, 512, 513, 100000, 3 * MIB, 40 * MIB};
    unsigned char to[4] = {1, 2, 3, 4}, from[4] = {0};
    uint64_t ptrs[ARRAY_SIZE(sizes)];

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        ptrs[i] = arena_get(sizes[i]);
        assert_cuda(f.gpu.drv->cu.cuMemsetD8(ptrs[i], (unsigned char)i, sizes[i]));
    }
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(from, ptrs[i], 1));
        cr_assert_eq(from[0], i, "nothing else wrote there");
        assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(from, ptrs[i] + sizes[i] - 1, 1));
        cr_assert_eq(from[0], i);
    }
    assert_cuda(f.gpu.drv->cu.cuMemcpyHtoD(ptrs[4], to, sizeof(to)));
    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(from, ptrs[4], sizeof(from)));
    cr_assert_eq(memcmp(from, to, sizeof(to)), 0);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        arena_put(ptrs[i]);
}

ARENA_TEST(arena, has_no_memory_before_it_is_asked_for_some)
{
    cr_assert_eq(arena_look().blocks, 0);
    wait_for_leases(f.client, 0);
    assert_ok(caid_arena_flush(f.arena, &error));
    assert_ok(caid_arena_trim(f.arena, &error));
}

ARENA_TEST(arena, tells_what_it_has)
{
    uint64_t a = arena_get(1000), b = arena_get(0), c = arena_get(17 * MIB);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.blocks, 2, "one of 32 MiB, and one for the large one");
    cr_assert_eq(info.bytes, 50 * MIB, "%llu", (unsigned long long)info.bytes);
    cr_assert_eq(info.allocations, 3);
    cr_assert_eq(info.allocated, 1001 + 17 * MIB, "bytes as asked for; none is one");
    cr_assert_eq(info.n_allocs, 3);
    cr_assert_eq(info.n_leased, 2);
    cr_assert_eq(info.pending + info.draining + info.published + info.empty_blocks, 0);
    wait_for_leases(f.client, 2);

    arena_put(a);
    arena_put(b);
    info = arena_look();
    cr_assert_eq(info.allocations, 1);
    cr_assert_eq(info.allocated, 17 * MIB);
    cr_assert_eq(info.pending, 2);
    cr_assert_eq(info.pending_bytes, 1001);
    cr_assert_eq(info.n_flushes, 0);
    arena_put(c);
}

ARENA_TEST(arena, many_small_ones_share_blocks)
{
    static uint64_t ptrs[N_MANY];

    for (size_t i = 0; i < N_MANY; i++)
        ptrs[i] = arena_get(4096);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.blocks, 1);
    cr_assert_eq(info.allocations, N_MANY);
    for (size_t i = 0; i < N_MANY; i++)
        arena_put(ptrs[i]);
    assert_ok(caid_arena_trim(f.arena, &error));
    info = arena_look();
    cr_assert_eq(info.blocks + info.bytes + info.pending + info.draining, 0);
    wait_for_leases(f.client, 0);
}

/* ---- finding ---- */

static struct caid_allocation
find(uint64_t ptr)
{
    struct caid_allocation found = CAID_INIT(found);

    assert_ok(caid_arena_find(f.arena, ptr, &found, &error));
    return found;
}

static void
find_nothing(uint64_t ptr)
{
    struct caid_allocation found = CAID_INIT(found);

    assert_failed(caid_arena_find(f.arena, ptr, &found, &error), CAID_ERR_NOT_FOUND);
}

ARENA_TEST(arena, finds_what_an_address_lies_in)
{
    find_nothing(0);
    uint64_t a = arena_get(1000), b = arena_get(600);
    struct caid_allocation found = find(a + 999);
    cr_assert_eq(found.ptr, a);
    cr_assert_eq(found.nbytes, 1000);
    cr_assert_neq(found.block, 0);
    cr_assert_eq(found.block, find(b).block);
    cr_assert_eq(find(b).offset - found.offset, b - a);
    find_nothing(a + 1000);
    find_nothing(a - 1);
    find_nothing(UINT64_MAX);

    arena_put(a);
    cr_assert_eq(find(a).nbytes, 1000, "freed, and still there");
    assert_ok(caid_arena_trim(f.arena, &error));
    find_nothing(a);
    cr_assert_eq(find(b + 599).ptr, b);
}

CLIENT_TEST(arena, legacy_memory_has_a_handle)
{
    struct caid_ipc_handle of_a, of_b;

    OPTIONS(caid_arena_options, options, .memory = "legacy");
    arena_begin(&options);
    uint64_t a = arena_get(1000), b = arena_get(1000);
    assert_ok(caid_arena_ipc_handle(f.arena, a, &of_a, &error));
    assert_ok(caid_arena_ipc_handle(f.arena, b + 7, &of_b, &error));
    cr_assert_eq(memcmp(of_a.handle, of_b.handle, sizeof(of_a.handle)), 0, "of one block");
    cr_assert_eq(of_b.offset - of_a.offset, b + 7 - a);
    cr_assert_geq(of_a.size, 32 * MIB);
    arena_put(a);
    assert_failed(caid_arena_ipc_handle(f.arena, a, &of_a, &error), CAID_ERR_NOT_FOUND);
    assert_failed(caid_arena_ipc_handle(f.arena, b, NULL, &error), CAID_ERR_INVALID);
    arena_end();

    arena_begin(NULL);
    a = arena_get(1000);
    assert_failed(caid_arena_ipc_handle(f.arena, a, &of_a, &error), CAID_ERR_UNSUPPORTED);
    arena_end();
}

/* ---- what is refused ---- */

static void
refuse_new(const struct caid_arena_options *options, int32_t code)
{
    struct caid_arena *arena = NULL;

    assert_failed(caid_arena_new(f.client, &arena, options, &error), code);
    cr_assert_null(arena);
}

ARENA_TEST(arena, refuses_options_that_make_no_sense)
{
    struct caid_arena *arena = NULL;
    char pool[300];

    assert_failed(caid_arena_new(NULL, &arena, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_new(f.client, NULL, NULL, &error), CAID_ERR_INVALID);
    OPTIONS(caid_arena_options, options, .device = 99);
    refuse_new(&options, CAID_ERR_DEVICE);
    options.device = -1;
    refuse_new(&options, CAID_ERR_DEVICE);
    options.device = 0;
    options.memory = "pinned";
    refuse_new(&options, CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "pinned"), "%s", error.message);
    options.memory = NULL;
    options.block_size = UINT64_MAX;
    refuse_new(&options, CAID_ERR_INVALID);
    options.block_size = 1; /* a granule */
    memset(pool, 'x', sizeof(pool) - 1);
    pool[sizeof(pool) - 1] = 0;
    options.pool = pool;
    refuse_new(&options, CAID_ERR_INVALID_NAME);
    options.pool = "not there";
    assert_ok(caid_arena_new(f.client, &arena, &options, &error));
    uint64_t ptr;
    cr_assert_lt(caid_arena_alloc(arena, 1, 0, &ptr, &error), 0);
    caid_arena_close(arena);
}

ARENA_TEST(arena, refuses_to_free_what_it_did_not_allocate)
{
    uint64_t ptr = arena_get(10000);
    const uint64_t wrong[] = {0, ptr + 512, ptr - 1, ptr + 10000, UINT64_MAX};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_failed(caid_arena_free(f.arena, wrong[i], 0, &error), CAID_ERR_INVALID);
    cr_assert_eq(arena_look().allocations, 1);
    arena_put(ptr);
    assert_failed(caid_arena_free(f.arena, ptr, 0, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "already"), "%s", error.message);
    cr_assert_eq(arena_look().pending, 1);
}

ARENA_TEST(arena, refuses_arguments_that_are_missing)
{
    struct caid_arena_info info = CAID_INIT(info);
    struct caid_allocation found = CAID_INIT(found);
    struct caid_ipc_handle handle;
    uint64_t ptr;

    assert_failed(caid_arena_alloc(NULL, 1, 0, &ptr, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_alloc(f.arena, 1, 0, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_alloc(f.arena, 1, 8, &ptr, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_free(NULL, 1, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_free(f.arena, 1, 8, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_find(NULL, 1, &found, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_ipc_handle(NULL, 1, &handle, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_publish(NULL, 1, "x", NULL, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_publish(f.arena, 1, "x", NULL, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_flush(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_trim(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_defer_begin(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_defer_end(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_defer_end(f.arena, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_set_limits(NULL, 1, 1, 1, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_info(NULL, &info, &error), CAID_ERR_INVALID);
    assert_failed(caid_arena_info(f.arena, NULL, &error), CAID_ERR_INVALID);
    caid_arena_close(NULL);
}

ARENA_TEST(arena, sizes_that_no_device_has)
{
    const uint64_t sizes[] = {UINT64_MAX,     UINT64_MAX - 511,
                              UINT64_MAX / 2, UINT64_C(1) << 62,
                              INT64_MAX,      (uint64_t)INT64_MAX - 3 * MIB};
    uint64_t ptr = 7;

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        assert_failed(caid_arena_alloc(f.arena, sizes[i], 0, &ptr, &error), CAID_ERR_NO_MEMORY);
        cr_assert_eq(ptr, 7, "written on success only");
    }
    cr_assert_eq(arena_look().blocks, 0);
    arena_put(arena_get(1));
}

/* Nothing is flushed or given back for what can never be. */
ARENA_TEST(arena, more_than_the_device_has)
{
    const struct caid_device *const *devices;
    char wanted[2][32];
    uint64_t ptr = 7;

    cr_assert_gt(caid_client_devices(f.client, &devices), 0);
    uint64_t total = devices[0]->total;
    arena_put(arena_get(40 * MIB));
    assert_ok(caid_arena_set_limits(f.arena, 10, 1, UINT64_MAX, &error));
    assert_failed(caid_arena_alloc(f.arena, total + 1, 0, &ptr, &error), CAID_ERR_NO_MEMORY);
    snprintf(wanted[0], sizeof(wanted[0]), "%llu", (unsigned long long)total + 1);
    snprintf(wanted[1], sizeof(wanted[1]), "has %llu", (unsigned long long)total);
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        cr_assert(strstr(error.message, wanted[i]), "%s", error.message);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.pending, 1);
    cr_assert_eq(info.n_flushes, 0);
    cr_assert_eq(info.blocks, 1);
    cr_assert_eq(ptr, 7);
}

/* ---- without waiting ---- */

ARENA_TEST(arena, asks_nobody_where_it_must_not)
{
    uint64_t ptr, ptrs[11];

    assert_failed(caid_arena_alloc(f.arena, 100, CAID_ARENA_NOWAIT, &ptr, &error),
                  CAID_ERR_TIMEOUT);
    cr_assert_eq(caid_arena_alloc(f.arena, 100, CAID_ARENA_NOWAIT, &ptr, NULL), -ETIMEDOUT);
    for (size_t i = 0; i < 11; i++)
        ptrs[i] = arena_get(100);
    assert_ok(caid_arena_alloc(f.arena, 100, CAID_ARENA_NOWAIT, &ptr, &error));
    for (size_t i = 0; i < 10; i++)
        assert_ok(caid_arena_free(f.arena, ptrs[i], CAID_ARENA_NOWAIT, &error));
    assert_failed(caid_arena_free(f.arena, ptrs[10], CAID_ARENA_NOWAIT, &error),
                  CAID_ERR_TIMEOUT);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.pending, 10, "nothing was done");
    cr_assert_eq(info.allocations, 2);
    arena_put(ptrs[10]);
    cr_assert_eq(arena_look().pending, 0, "that one was the 11th");

    assert_ok(caid_arena_defer_begin(f.arena, &error));
    assert_ok(caid_arena_set_limits(f.arena, 0, 0, 0, &error));
    assert_ok(caid_arena_free(f.arena, ptr, CAID_ARENA_NOWAIT, &error));
    assert_ok(caid_arena_defer_end(f.arena, &error));
}

/* ---- fork ---- */

static void
child(uint64_t a)
{
    struct caid_arena_info info = CAID_INIT(info);
    struct caid_arena *other = NULL;
    uint64_t ptr;

    if (caid_arena_alloc(f.arena, 1, 0, &ptr, &error) == 0 || error.code != CAID_ERR_FORKED)
        _exit(1);
    if (caid_arena_free(f.arena, a, 0, &error) == 0 || error.code != CAID_ERR_FORKED)
        _exit(2);
    if (caid_arena_flush(f.arena, &error) == 0 || error.code != CAID_ERR_FORKED)
        _exit(3);
    if (caid_arena_info(f.arena, &info, &error) == 0 || error.code != CAID_ERR_FORKED)
        _exit(4);
    if (caid_arena_new(f.client, &other, NULL, &error) == 0)
        _exit(5);
    caid_arena_close(f.arena);
    caid_client_close(f.client);
    _exit(0);
}

ARENA_TEST(arena, refuses_use_after_fork)
{
    unsigned char byte = 0;
    uint64_t a = arena_get(100), b = arena_get(20 * MIB);
    arena_put(b);
    assert_ok(caid_arena_flush(f.arena, &error));
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(a, 5, 100));
    pid_t pid = fork();
    if (pid == 0)
        child(a);
    cr_assert_eq(process_wait(pid), 0);
    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoH(&byte, a, 1));
    cr_assert_eq(byte, 5);
    arena_put(a);
    assert_ok(caid_arena_trim(f.arena, &error));
    wait_for_leases(f.client, 0);
}

static void *
alloc_one(void *mark)
{
    uint64_t ptr = 0;

    return caid_arena_alloc(f.arena, 1000, 0, &ptr, &error) == 0 ? mark : NULL;
}

/* One thread waits for the daemon, and one for what that gets. */
ARENA_TEST(arena, closes_in_a_child_while_threads_wait)
{
    pthread_t threads[2];
    void *allocated;
    int status;

    kill(f.daemon.pid, SIGSTOP);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, alloc_one, &f), 0);
        usleep(200 * 1000);
    }
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60); /* one that hangs is to end */
        caid_arena_close(f.arena);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    kill(f.daemon.pid, SIGCONT);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        pthread_join(threads[i], &allocated);
        cr_assert_eq(allocated, &f);
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: %#x", status);
}
