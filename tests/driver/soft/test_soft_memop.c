/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: what is refused, batches, and what ends a wait. What they wait for and
 * write, and what waits for them, is in test_facts_memops.c and test_facts_host.c.
 */
#include "caid_test.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "soft_test.h"

#define GEQ CU_STREAM_WAIT_VALUE_GEQ
#define EQ  CU_STREAM_WAIT_VALUE_EQ

static CUdeviceptr
address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

static void
store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static uint64_t
load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Parts of a batch. */

static CUstreamBatchMemOpParams
op_write(uint64_t *at, uint64_t value)
{
    CUstreamBatchMemOpParams params = {
        .writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, address(at), {.value64 = value}, 0, 0}};
    return params;
}

static CUstreamBatchMemOpParams
op_wait(uint64_t *at, uint64_t value)
{
    CUstreamBatchMemOpParams params = {
        .waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64, address(at), {.value64 = value}, EQ, 0}};
    return params;
}

static CUstreamBatchMemOpParams
op_barrier(CUstreamBatchMemOpType type, unsigned int flags)
{
    CUstreamBatchMemOpParams params = {.memoryBarrier = {type, flags}};
    return params;
}

static void
check_works_on(CUdeviceptr at)
{
    uint64_t *word = (uint64_t *)(uintptr_t)at;
    MUST(cuStreamWriteValue64_v2(NULL, at, UINT64_MAX - 1, 0));
    MUST(cuStreamWaitValue64_v2(NULL, at, UINT64_MAX - 1, EQ));
    MUST(cuStreamSynchronize(NULL));
    cr_assert_eq(load(word), UINT64_MAX - 1);
}

/* A word's address is what counts: it may be longer than its allocation. */
SOFT_TEST(soft_memop, they_work_on_memory_of_the_device_and_of_the_host)
{
    struct soft_mapping mapping = soft_map(GRAN, 3);
    uint64_t *host = soft_pinned(), *own = aligned_alloc(8, 64);
    CUdeviceptr legacy = soft_memory(4);
    MUST(cuMemHostRegister_v2(own, 64, 0));
    check_works_on(legacy);
    check_works_on(mapping.at + GRAN - 8);
    check_works_on(address(host));
    check_works_on(address(own + 7));
    REFUSED(INVALID_VALUE, cuStreamWaitValue32_v2(NULL, legacy + 4, 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWaitValue64_v2(NULL, address(own + 8), 0, 0));
    soft_set_access(&mapping, 0);
    REFUSED(INVALID_VALUE, cuStreamWaitValue64_v2(NULL, mapping.at, 3, 0));
    REFUSED(INVALID_VALUE, cuStreamWriteValue64_v2(NULL, mapping.at, 3, 0));
    MUST(cuMemHostUnregister(own));
    MUST(cuMemFree_v2(legacy));
    MUST(cuMemFreeHost(host));
    soft_unmap(&mapping);
    free(own);
}

SOFT_TEST(soft_memop, bad_arguments_are_refused)
{
    uint64_t pageable = 0;
    CUdeviceptr at = address(soft_pinned());
    REFUSED(INVALID_VALUE, cuStreamWaitValue32_v2(NULL, address(&pageable), 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWriteValue32_v2(NULL, 0, 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWaitValue32_v2(NULL, at + 2, 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWaitValue64_v2(NULL, at + 4, 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWriteValue32_v2(NULL, at + 1, 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWriteValue64_v2(NULL, at + 4, 0, 0));
    REFUSED(INVALID_VALUE, cuStreamWaitValue32_v2(NULL, at, 0, 4));
    REFUSED(INVALID_VALUE, cuStreamWaitValue32_v2(NULL, at, 0, 1U << 29));
    REFUSED(INVALID_VALUE, cuStreamWriteValue32_v2(NULL, at, 0, 2));
    REFUSED(INVALID_VALUE, cuStreamWriteValue32_v2(NULL, at, 0, 1)); /* of the first ABI */
    REFUSED(NOT_SUPPORTED, cuStreamWaitValue32_v2(NULL, at, 0, CU_STREAM_WAIT_VALUE_FLUSH));
    REFUSED(INVALID_VALUE, cuStreamWaitValue32_v2(NULL, at, 0, CU_STREAM_WAIT_VALUE_FLUSH | 4));
    MUST(cuMemFreeHost((void *)(uintptr_t)at));
    MUST(cuCtxSetCurrent(NULL));
    REFUSED(INVALID_CONTEXT, cuStreamWaitValue32_v2(NULL, at, 0, 0));
}

/* One operation that is refused, and none of them is done. */
SOFT_TEST(soft_memop, a_batch_is_checked_as_a_whole)
{
    static CUstreamBatchMemOpParams ops[256];
    uint64_t *word = soft_pinned(), pageable;
    CUstreamBatchMemOpParams bad[] = {
        op_write(&pageable, 1),
        op_barrier((CUstreamBatchMemOpType)0, 0),
        op_barrier((CUstreamBatchMemOpType)7, 0),
        op_barrier(CU_STREAM_MEM_OP_BARRIER, 2),
    };
    for (uint64_t i = 0; i < 256; i++)
        ops[i] = op_write(word, i + 1);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        ops[1] = bad[i];
        REFUSED(INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 2, ops, 0));
    }
    ops[1] = op_barrier(CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, 0);
    REFUSED(NOT_SUPPORTED, cuStreamBatchMemOp_v2(NULL, 2, ops, 0));
    REFUSED(INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 1, ops, 1));
    REFUSED(INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 1, NULL, 0));
    REFUSED(INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 256, ops, 0));
    MUST(cuStreamBatchMemOp_v2(NULL, 0, NULL, 0)); /* none of them, none wrong */
    MUST(cuStreamSynchronize(NULL));
    cr_assert_eq(load(word), 0);
    ops[0] = op_barrier(CU_STREAM_MEM_OP_BARRIER, CU_STREAM_MEMORY_BARRIER_TYPE_SYS);
    ops[1] = op_barrier(CU_STREAM_MEM_OP_BARRIER, CU_STREAM_MEMORY_BARRIER_TYPE_GPU);
    MUST(cuStreamBatchMemOp_v2_ptsz(NULL, 255, ops, 0));
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    cr_assert_eq(load(word), 255);
}

/* What ends a wait. */

/* Waits until the stream's wait has begun: it comes right behind this write. */
static void
begin_wait(CUstream stream, uint64_t *begun, CUdeviceptr at)
{
    CUstreamBatchMemOpParams ops[] = {op_write(begun, 1),
                                      op_wait((uint64_t *)(uintptr_t)at, 77)};
    MUST(cuStreamBatchMemOp_v2(stream, 2, ops, 0));
    while (load(begun) != 1)
        sched_yield();
}

SOFT_TEST(soft_memop, memory_unmapped_under_a_wait_faults_and_ends_other_waits)
{
    uint64_t *word = soft_pinned();
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUstream other = soft_stream(CU_STREAM_NON_BLOCKING);
    struct soft_mapping mapping = soft_map(GRAN, 3);
    begin_wait(stream, &word[1], address(word));
    begin_wait(other, &word[2], mapping.at);
    soft_unmap(&mapping);
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(other));
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
    REFUSED(LAUNCH_FAILED, cuCtxSynchronize());
}

/* Pages of the program's own, which it may unmap at any time: here, too, a fault and no crash. */
SOFT_TEST(soft_memop, registered_pages_unmapped_under_a_wait_fault)
{
    uint64_t *begun = soft_pinned();
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2(at, PAGE, 0));
    begin_wait(stream, begun, address(at));
    munmap(at, PAGE);
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
}

/* A process whose streams wait can end, by itself or by a signal. */

static void
wait_for_ever(uint64_t *flag, bool leave)
{
    soft_start_context();
    MUST(cuMemHostRegister_v2(flag, PAGE, 0));
    begin_wait(soft_stream(CU_STREAM_NON_BLOCKING), flag, address(flag + 9));
    MUST(cuStreamWaitValue64_v2(NULL, address(flag + 9), 1, EQ));
    if (leave)
        exit(0);
    store(flag + 1, 1);
    pause();
}

SOFT_TEST_LATE(soft_memop, processes_end_while_their_streams_wait)
{
    int status;
    uint64_t *flag =
        mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(flag, MAP_FAILED);
    pid_t child = soft_fork();
    if (child == 0)
        wait_for_ever(flag, true);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    child = soft_fork();
    if (child == 0)
        wait_for_ever(flag, false);
    while (load(flag + 1) != 1)
        sched_yield();
    kill(child, SIGTERM);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}
