/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait for a word: what else waits then, what ends them, and who sees what. */
#include "caid_test.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "soft_words.h"

/* While a stream waits. */

static CUresult
free_device(void *at)
{
    return cu.cuMemFree_v2((CUdeviceptr)(uintptr_t)at);
}

static CUresult
free_host(void *at)
{
    return cu.cuMemFreeHost(at);
}

static CUresult
unregister(void *at)
{
    return cu.cuMemHostUnregister(at);
}

static void
check_blocks(CUresult (*call)(void *), void *at)
{
    struct blocked blocked;
    uint64_t *word = pinned();
    CUstream stream = stream_new();
    MUST(cuStreamWaitValue64_v2(stream, address(word), 1, GEQ));
    blocked_start(&blocked, call, at);
    cr_assert(blocked_waits(&blocked));
    store(word, 1);
    cr_assert_eq(blocked_join(&blocked), CUDA_SUCCESS);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFreeHost(word));
}

CAID_TEST(soft_memop_wait, freeing_waits_for_a_wait)
{
    CUdeviceptr device;
    void *host;
    soft_start_context();
    unsigned char *own = malloc(PAGE);
    MUST(cuMemAlloc_v2(&device, PAGE));
    MUST(cuMemHostAlloc(&host, PAGE, 0));
    MUST(cuMemHostRegister_v2(own, PAGE, 0));
    check_blocks(free_device, (void *)(uintptr_t)device);
    check_blocks(free_host, host);
    check_blocks(unregister, own);
    free(own);
}

/* These would hang here if they waited. */
CAID_TEST(soft_memop_wait, mapping_does_not_wait_for_a_wait)
{
    CUdeviceptr device;
    soft_start_context();
    uint64_t *word = pinned();
    unsigned char *own = malloc(PAGE);
    CUstream stream = stream_new();
    struct soft_mapping before = soft_map(GRAN, 3);
    MUST(cuStreamWaitValue64_v2(stream, address(word), 1, GEQ));
    struct soft_mapping after = soft_map(GRAN, 3);
    soft_set_access(&before, 1);
    soft_unmap(&before);
    soft_unmap(&after);
    MUST(cuMemHostRegister_v2(own, PAGE, 0));
    MUST(cuMemAlloc_v2(&device, PAGE));
    CUstream other = stream_new();
    MUST(cuMemsetD8Async(device, 1, PAGE, other));
    MUST(cuStreamSynchronize(other));
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    store(word, 1);
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemHostUnregister(own));
    MUST(cuMemFree_v2(device));
    MUST(cuMemFreeHost(word));
    free(own);
}

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

CAID_TEST(soft_memop_wait, memory_unmapped_under_a_wait_faults)
{
    soft_start_context();
    uint64_t *begun = pinned();
    CUstream stream = stream_new();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    begin_wait(stream, begun, mapping.at);
    soft_unmap(&mapping);
    cr_assert_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
}

/* Pages of the program's own, which it may unmap at any time: here, too, a fault and no crash. */
CAID_TEST(soft_memop_wait, registered_pages_unmapped_under_a_wait_fault)
{
    soft_start_context();
    uint64_t *begun = pinned();
    CUstream stream = stream_new();
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2(at, PAGE, 0));
    begin_wait(stream, begun, address(at));
    munmap(at, PAGE);
    cr_assert_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
}

CAID_TEST(soft_memop_wait, a_fault_ends_waits)
{
    soft_start_context();
    uint64_t *word = pinned();
    CUstream stream = stream_new(), other = stream_new();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    begin_wait(stream, &word[1], address(word));
    begin_wait(other, &word[2], mapping.at);
    soft_unmap(&mapping);
    cr_assert_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(cu.cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}

/* Several processes around one memfd page. */

static void *
share_map(int fd, int prot)
{
    void *at = mmap(NULL, 2 * PAGE, prot, MAP_SHARED, fd, 0);
    cr_assert_neq(at, MAP_FAILED);
    return at;
}

static int
share_new(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, (off_t)(2 * PAGE)), 0);
    return fd;
}

#define N_HANDED UINT64_C(500)

/* Fills the second page, then signals in the first; waits for the answer. */
static void
produce(int fd)
{
    soft_start_context();
    uint64_t *flag = share_map(fd, PROT_READ | PROT_WRITE);
    CUdeviceptr data = address(flag) + PAGE;
    MUST(cuMemHostRegister_v2(flag, 2 * PAGE, 0));
    CUstream stream = stream_new();
    for (uint64_t i = 1; i <= N_HANDED; i++) {
        MUST(cuMemsetD32Async(data, (unsigned int)i, PAGE / 4, stream));
        MUST(cuStreamWriteValue64_v2(stream, address(flag), i, 0));
        MUST(cuStreamWaitValue64_v2(stream, address(flag + 1), i, GEQ));
    }
    _exit(cu.cuStreamSynchronize(stream) == CUDA_SUCCESS ? 0 : 1);
}

/* A CPU that saw the flag sees the data; a stream that waited for the flag copies it. */
CAID_TEST(soft_memop_wait, data_is_seen_by_who_saw_the_flag)
{
    int fd = share_new(), status;
    pid_t child = soft_fork();
    if (child == 0)
        produce(fd);
    soft_start_context();
    uint64_t *flag = share_map(fd, PROT_READ | PROT_WRITE);
    volatile uint32_t *data = (uint32_t *)flag + PAGE / 4;
    uint32_t *copy = (uint32_t *)pinned();
    MUST(cuMemHostRegister_v2(flag, 2 * PAGE, 0));
    CUstream stream = stream_new();
    for (uint64_t i = 1; i <= N_HANDED; i++) {
        if (i % 2) {
            while (load(flag) < i)
                sched_yield();
            cr_assert_eq(data[0], i);
            cr_assert_eq(data[PAGE / 4 - 1], i);
        }
        MUST(cuStreamWaitValue64_v2(stream, address(flag), i, GEQ));
        MUST(cuMemcpyAsync(address(copy), address(flag) + PAGE, PAGE, stream));
        MUST(cuStreamSynchronize(stream));
        cr_assert_eq(copy[0], i);
        cr_assert_eq(copy[PAGE / 4 - 1], i);
        store(flag + 1, i); /* by the CPU: nobody is told */
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemHostUnregister(flag));
    MUST(cuMemFreeHost(copy));
    munmap(flag, 2 * PAGE);
    close(fd);
}

/* The one who should have signalled is killed: its waiter goes on waiting, and can still be
 * released by somebody else. */

static void
never_signal(int fd)
{
    soft_start_context();
    uint64_t *flag = share_map(fd, PROT_READ | PROT_WRITE);
    MUST(cuMemHostRegister_v2(flag, PAGE, 0));
    CUstream stream = stream_new();
    begin_wait(stream, flag + 1, address(flag + 2));
    MUST(cuStreamWriteValue64_v2(stream, address(flag), 1, 0));
    pause();
}

CAID_TEST(soft_memop_wait, a_waiter_survives_its_signaller)
{
    int fd = share_new(), status;
    pid_t child = soft_fork();
    if (child == 0)
        never_signal(fd);
    soft_start_context();
    uint64_t *flag = share_map(fd, PROT_READ | PROT_WRITE);
    void *view = share_map(fd, PROT_READ);
    MUST(cuMemHostRegister_v2(view, PAGE, CU_MEMHOSTREGISTER_READ_ONLY));
    uint64_t *scratch = pinned();
    CUstream stream = stream_new(), other = stream_new();
    MUST(cuStreamWaitValue64_v2(stream, address(view), 1, GEQ));
    while (load(flag + 1) != 1)
        sched_yield();
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status));
    let_others_run(other, scratch);
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    store(flag, UINT64_C(1) << 62); /* as who cleans up after the dead does */
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuStreamDestroy_v2(other));
    MUST(cuMemHostUnregister(view));
    MUST(cuMemFreeHost(scratch));
    munmap(view, 2 * PAGE);
    munmap(flag, 2 * PAGE);
    close(fd);
}

/* A process whose streams wait can end, by itself or by a signal. */

static void
wait_for_ever(int fd, bool leave)
{
    soft_start_context();
    uint64_t *flag = share_map(fd, PROT_READ | PROT_WRITE);
    MUST(cuMemHostRegister_v2(flag, PAGE, 0));
    begin_wait(stream_new(), flag, address(flag + 9));
    MUST(cuStreamWaitValue64_v2(NULL, address(flag + 9), 1, EQ));
    if (leave)
        exit(0);
    store(flag + 1, 1);
    pause();
}

CAID_TEST(soft_memop_wait, processes_end_while_their_streams_wait)
{
    int fd = share_new(), status;
    uint64_t *flag = share_map(fd, PROT_READ | PROT_WRITE);
    pid_t child = soft_fork();
    if (child == 0)
        wait_for_ever(fd, true);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    child = soft_fork();
    if (child == 0)
        wait_for_ever(fd, false);
    while (load(flag + 1) != 1)
        sched_yield();
    kill(child, SIGTERM);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    munmap(flag, 2 * PAGE);
    close(fd);
}
