/* SPDX-License-Identifier: Apache-2.0 */
/* What memory pools do, in their basics: memory that is had and given back in a stream's order. */
#include "facts.h"

#define SIZE (4 * MIB)

/* A process with a stream. */
struct user {
    struct facts_process process;
    uint64_t stream;
};

static struct user
user_start(void)
{
    struct user user = {.process = facts_start_context()};
    user.stream = GET(&user.process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    return user;
}

/* A body with a process and a stream of it. */
#define POOL_FACT(name)                                                    \
    static void name##_by(struct facts_process *process, uint64_t stream); \
    FACT(facts_pools, name)                                                \
    {                                                                      \
        struct user user = user_start();                                   \
        name##_by(&user.process, user.stream);                             \
        facts_stop(&user.process);                                         \
    }                                                                      \
    static void name##_by(struct facts_process *process, uint64_t stream UNUSED)

static uint64_t
new_pool(struct facts_process *process, CUmemAllocationHandleType type)
{
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = type,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    return GET(process, cuMemPoolCreate, facts_put(process, &props, sizeof(props)));
}

static uint64_t
get_attribute(struct facts_process *process, uint64_t pool, CUmemPool_attribute attribute)
{
    uint64_t at = GET(process, allocate_host, 8);
    MUST(process, cuMemPoolGetAttribute, pool, attribute, at);
    return GET(process, load, at);
}

/* In the order of a stream. */

POOL_FACT(memory_is_used_and_freed_in_the_order_of_a_stream)
{
    uint64_t copy = GET(process, cuMemAlloc, SIZE);
    uint64_t at = GET(process, cuMemAllocAsync, SIZE, stream);
    MUST(process, cuMemsetD32Async, at, 5, SIZE / 4, stream);
    MUST(process, cuMemcpyDtoDAsync, copy, at, SIZE, stream);
    MUST(process, cuMemFreeAsync, at, stream);
    MUST(process, cuStreamSynchronize, stream);
    facts_assert_filled(process, copy, SIZE, 5);
}

POOL_FACT(none_of_these_waits_for_the_stream)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t gate = facts_page_map(process, &page, PROT_READ | PROT_WRITE);
    MUST(process, cuLaunchHostFunc, stream, GET(process, host_function, FACTS_HOLD), gate);
    uint64_t at = GET(process, cuMemAllocAsync, SIZE, stream);
    MUST(process, cuMemsetD32Async, at, 5, SIZE / 4, stream);
    MUST(process, cuMemFreeAsync, at, stream);
    EXPECT(process, CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    page.words[0] = 1;
    MUST(process, cuStreamSynchronize, stream);
}

POOL_FACT(another_stream_may_use_and_free_it_after_an_event)
{
    uint64_t other = GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    uint64_t event = GET(process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    uint64_t copy = GET(process, cuMemAlloc, SIZE);
    uint64_t at = GET(process, cuMemAllocAsync, SIZE, stream);
    MUST(process, cuMemsetD32Async, at, 5, SIZE / 4, stream);
    MUST(process, cuEventRecord, event, stream);
    MUST(process, cuStreamWaitEvent, other, event, 0);
    MUST(process, cuMemcpyDtoDAsync, copy, at, SIZE, other);
    MUST(process, cuMemFreeAsync, at, other);
    MUST(process, cuStreamSynchronize, other);
    facts_assert_filled(process, copy, SIZE, 5);
}

POOL_FACT(an_ordinary_free_takes_it_too)
{
    uint64_t at = GET(process, cuMemAllocAsync, SIZE, stream);
    MUST(process, cuStreamSynchronize, stream);
    MUST(process, cuMemFree, at);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemFree, at);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync, at, stream);
}

/* Pools. */

POOL_FACT(a_device_has_a_pool)
{
    uint64_t pool = GET(process, cuDeviceGetMemPool, 0);
    cr_assert_eq(GET(process, cuDeviceGetMemPool, 0), pool);
    uint64_t at = GET(process, cuMemAllocAsync, SIZE, stream);
    cr_assert_eq(facts_attribute(process, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), pool);
}

POOL_FACT(a_pool_says_what_is_used_and_reserved)
{
    uint64_t pool = new_pool(process, CU_MEM_HANDLE_TYPE_NONE);
    cr_assert_eq(get_attribute(process, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    cr_assert_eq(get_attribute(process, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);

    uint64_t at = GET(process, cuMemAllocFromPoolAsync, SIZE, pool, stream);
    MUST(process, cuStreamSynchronize, stream);
    cr_assert_eq(get_attribute(process, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), SIZE);
    cr_assert_geq(get_attribute(process, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), SIZE);
    MUST(process, cuMemFreeAsync, at, stream);
    MUST(process, cuStreamSynchronize, stream);
    cr_assert_eq(get_attribute(process, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    cr_assert_eq(get_attribute(process, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), SIZE);
    MUST(process, cuMemPoolDestroy, pool);
}

POOL_FACT(a_pool_has_no_more_than_the_device)
{
    uint64_t size = 2 * GET(process, total_bytes);
    EXPECT(process, CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync, size, stream);
    MUST(process, cuMemAllocAsync, SIZE, stream);
}

POOL_FACT(its_memory_has_no_legacy_handle)
{
    uint64_t at = GET(process, cuMemAllocAsync, SIZE, stream);
    MUST(process, cuStreamSynchronize, stream);
    uint64_t handle = GET(process, allocate_host, sizeof(CUipcMemHandle));
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, handle, at);
}

/* Between processes. */

/* The fd of a pool that was made for it. */
static int
export_pool(struct facts_process *process, uint64_t pool)
{
    uint64_t at = GET(process, allocate_host, 8);
    MUST(process, cuMemPoolExportToShareableHandle, at, pool,
         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    int number;
    facts_read(process, at, &number, sizeof(number));
    cr_assert_eq(GET(process, fd_flags, number), 0, "unlike that of virtual memory management");
    return facts_take_fd(process, (uint64_t)number);
}

static uint64_t
import_pool(struct facts_process *process, int fd)
{
    uint64_t number = facts_give_fd(process, fd);
    return GET(process, cuMemPoolImportFromShareableHandle, number,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static uint64_t
import_pointer(struct user *exporter, uint64_t at, struct user *importer, uint64_t pool)
{
    CUmemPoolPtrExportData data;
    uint64_t data_at = GET(&exporter->process, allocate_host, sizeof(data));
    MUST(&exporter->process, cuMemPoolExportPointer, data_at, at);
    facts_read(&exporter->process, data_at, &data, sizeof(data));
    data_at = facts_put(&importer->process, &data, sizeof(data));
    return GET(&importer->process, cuMemPoolImportPointer, pool, data_at);
}

FACT(facts_pools, another_process_imports_a_pool_and_memory_of_it)
{
    struct user exporter = user_start(), importer = user_start();
    uint64_t pool = new_pool(&exporter.process, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    _cleanup_fd_ int fd = export_pool(&exporter.process, pool);
    uint64_t at = GET(&exporter.process, cuMemAllocFromPoolAsync, SIZE, pool, exporter.stream);
    MUST(&exporter.process, cuMemsetD32Async, at, 5, SIZE / 4, exporter.stream);
    MUST(&exporter.process, cuStreamSynchronize, exporter.stream);

    uint64_t imported = import_pool(&importer.process, fd);
    uint64_t seen = import_pointer(&exporter, at, &importer, imported);
    facts_assert_filled(&importer.process, seen, SIZE, 5);
    facts_fill(&importer.process, seen, SIZE, 6);
    facts_assert_filled(&exporter.process, at, SIZE, 6);
    EXPECT(&importer.process, CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync, SIZE, imported,
           importer.stream);
    MUST(&importer.process, cuMemFreeAsync, seen, importer.stream);
    MUST(&importer.process, cuStreamSynchronize, importer.stream);
    EXPECT(&importer.process, CUDA_ERROR_INVALID_VALUE, count_words, seen, SIZE, 6);
    facts_assert_filled(&exporter.process, at, SIZE, 6);
    facts_stop(&importer.process);
    facts_stop(&exporter.process);
}

FACT(facts_pools, imported_memory_outlives_its_killed_exporter)
{
    struct user exporter = user_start(), importer = user_start();
    uint64_t pool = new_pool(&exporter.process, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    _cleanup_fd_ int fd = export_pool(&exporter.process, pool);
    uint64_t at = GET(&exporter.process, cuMemAllocFromPoolAsync, SIZE, pool, exporter.stream);
    MUST(&exporter.process, cuStreamSynchronize, exporter.stream);
    facts_fill(&exporter.process, at, SIZE, 5);
    uint64_t imported = import_pool(&importer.process, fd);
    uint64_t seen = import_pointer(&exporter, at, &importer, imported);
    facts_kill(&exporter.process);
    facts_assert_filled(&importer.process, seen, SIZE, 5);
    facts_stop(&importer.process);
}

POOL_FACT(only_a_pool_made_for_it_is_exported)
{
    uint64_t pool = new_pool(process, CU_MEM_HANDLE_TYPE_NONE);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemPoolExportToShareableHandle,
           GET(process, allocate_host, 8), pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}
