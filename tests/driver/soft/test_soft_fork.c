/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks of a process whose other threads are inside the driver. Each child looks at itself with
 * system calls alone, the rest of the process being as it was at that moment.
 */
#include "caid_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "soft_test.h"

#define N_FORKS   200
#define N_THREADS 3
#define MAX_FDS   256

static _Atomic bool stopped;
static CUcontext current;

static void
start_threads(pthread_t *threads, void *(*run)(void *))
{
    stopped = false;
    for (int i = 0; i < N_THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, run, NULL), 0);
}

static void
stop_threads(pthread_t *threads)
{
    stopped = true;
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* The exit status of a child that runs check() and ends. One that hangs does until the test's time
 * is over. */
static int
fork_and_check(int (*check)(void))
{
    int status;
    pid_t pid = soft_fork();
    if (pid == 0)
        _exit(check());
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool
has_memory_fd(void)
{
    char path[64], link[128];
    for (int fd = 0; fd < MAX_FDS; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, link, sizeof(link) - 1);
        link[n < 0 ? 0 : n] = '\0';
        if (strstr(link, "memfd:caid-softcuda"))
            return true;
    }
    return false;
}

static bool
has_memory_mapped(void)
{
    static char text[(size_t)4 << 20];
    size_t length = 0;
    ssize_t n;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while ((n = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)n;
    close(fd);
    text[length] = '\0';
    return length == 0 || strstr(text, "memfd:caid-softcuda");
}

enum {
    KEEPS_FD = 1,
    KEEPS_MAPPING = 2
};

static int
check_memory(void)
{
    return (has_memory_fd() ? KEEPS_FD : 0) | (has_memory_mapped() ? KEEPS_MAPPING : 0);
}

/* Makes memory and gives it back, all the time. */
static void *
use_memory(void *arg UNUSED)
{
    CUmemAllocationProp prop = soft_prop(0);
    MUST(cuCtxSetCurrent(current));
    while (!stopped) {
        CUdeviceptr at;
        CUmemGenericAllocationHandle handle;
        MUST(cuMemAlloc_v2(&at, 4096));
        MUST(cuMemFree_v2(at));
        MUST(cuMemAllocAsync(&at, 4096, CU_STREAM_PER_THREAD));
        MUST(cuMemFreeAsync(at, CU_STREAM_PER_THREAD));
        MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        MUST(cuMemCreate(&handle, GRAN, &prop, 0));
        MUST(cuMemRelease(handle));
    }
    return NULL;
}

CAID_TEST(soft_fork, no_child_holds_memory_that_is_being_made_or_freed)
{
    pthread_t threads[N_THREADS];
    int found = 0;
    current = soft_start_context();
    start_threads(threads, use_memory);
    for (int i = 0; i < N_FORKS; i++)
        found |= fork_and_check(check_memory);
    stop_threads(threads);
    cr_assert(!(found & KEEPS_FD), "a child has a descriptor");
    cr_assert(!(found & KEEPS_MAPPING), "a child has a mapping");
}

/* A look at the rules comes before all others. */
static void *
meet_rules(void *arg UNUSED)
{
    int n;
    while (!stopped)
        MUST(cuDeviceGetCount(&n));
    return NULL;
}

static int
check_call(void)
{
    int n;
    return cu.cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1;
}

CAID_TEST(soft_fork, a_child_can_call_where_there_are_rules)
{
    pthread_t threads[N_THREADS];
    setenv("CAID_SOFTCUDA_FAIL", "cuMemCreate@1000=OUT_OF_MEMORY", 1);
    soft_start();
    start_threads(threads, meet_rules);
    for (int i = 0; i < N_FORKS; i++)
        cr_assert_eq(fork_and_check(check_call), 0);
    stop_threads(threads);
}

/* The default stream waits for all threads' own ones, whose locks it takes. */
static void *
query_default_stream(void *arg UNUSED)
{
    MUST(cuCtxSetCurrent(current));
    while (!stopped)
        cu.cuStreamQuery(CU_STREAM_LEGACY);
    return NULL;
}

static pid_t parent;

/* The last that is done at a thread's end. */
static void
end_child(void *arg UNUSED)
{
    if (getpid() != parent)
        _exit(0);
}

/* Forks with a stream of the thread's own, and ends, in both processes. */
static void *
fork_and_end(void *key)
{
    int status = 0;
    MUST(cuCtxSetCurrent(current));
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    pthread_setspecific(*(pthread_key_t *)key, key);
    pid_t pid = soft_fork();
    if (pid != 0)
        waitpid(pid, &status, 0);
    return (void *)(intptr_t)status;
}

CAID_TEST(soft_fork, a_child_can_end_its_thread)
{
    pthread_t threads[N_THREADS], forker;
    pthread_key_t key;
    void *status;
    parent = getpid();
    current = soft_start_context();
    cr_assert_eq(pthread_key_create(&key, end_child), 0);
    start_threads(threads, query_default_stream);
    for (int i = 0; i < N_FORKS; i++) {
        cr_assert_eq(pthread_create(&forker, NULL, fork_and_end, &key), 0);
        pthread_join(forker, &status);
        cr_assert_eq(status, NULL);
    }
    stop_threads(threads);
    pthread_key_delete(key);
}
