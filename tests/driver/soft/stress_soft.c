/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_soft THREADS STEPS SEED: threads that share streams, events, pools and memory, and
 * enqueue, wait, map, unmap, allocate, trim and destroy at random. What it shows is that nothing
 * crashes, hangs or is left over, and under a sanitizer that nothing races. Contents are checked
 * where one thread alone orders the work on them.
 */
#include "soft_test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define N_SHARED 4
#define N_POOLS  2
#define N_SLOTS  12
#define LOOK     64 /* bytes */
#define LARGEST  (3 * MIB)

static CUcontext context;
static CUstream shared_streams[N_SHARED];
static CUevent shared_events[N_SHARED];
static CUdeviceptr shared_memory;
static CUmemoryPool pools[N_POOLS]; /* small: they run out */

#define AREA ((size_t)65536) /* of each stream in the shared memory: its own orders the work */

/* Memory of a pool. */
struct slot {
    CUdeviceptr at;
    size_t size;
    unsigned char value;
};

struct worker {
    pthread_t thread;
    unsigned int number;
    int n_steps;
    uint64_t random;
    CUstream stream; /* that its slots are in the order of */
    struct slot slots[N_SLOTS];
};

static unsigned int
pick(struct worker *worker, unsigned int n)
{
    worker->random = worker->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned int)(worker->random >> 33) % n;
}

static CUstream
pick_stream(struct worker *worker, CUdeviceptr *ret_area)
{
    unsigned int i = pick(worker, N_SHARED + 3), area = i < N_SHARED ? i : N_SHARED;
    CUstream stream = i < N_SHARED    ? shared_streams[i]
                      : i == N_SHARED ? NULL
                                      : CU_STREAM_LEGACY;
    if (i == N_SHARED + 2) {
        stream = CU_STREAM_PER_THREAD;
        area = N_SHARED + 1 + worker->number;
    }
    *ret_area = shared_memory + area * AREA;
    return stream;
}

static void
check(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* A stream and memory of the thread's own: the bytes must come out as ordered. */
static void
own_work(struct worker *worker)
{
    unsigned char value = (unsigned char)(1 + pick(worker, 255)), seen[4096];
    CUstream first, second;
    CUevent event;
    struct soft_mapping mapping = soft_map(GRAN, 3);
    MUST(cuStreamCreate(&first, pick(worker, 2)));
    MUST(cuStreamCreate(&second, pick(worker, 2)));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemsetD8Async(mapping.at, value, GRAN / 2, first));
    MUST(cuEventRecord(event, first));
    MUST(cuStreamWaitEvent(second, event, 0));
    MUST(cuMemcpyDtoDAsync_v2(mapping.at + GRAN / 2, mapping.at, GRAN / 2, second));
    MUST(cuStreamDestroy_v2(first));
    MUST(cuEventDestroy_v2(event));
    MUST(cuMemcpyDtoHAsync_v2(seen, mapping.at + GRAN - sizeof(seen), sizeof(seen), second));
    for (size_t i = 0; i < sizeof(seen); i++)
        check(seen[i] == value, "wrong bytes");
    MUST(cuStreamDestroy_v2(second));
    soft_unmap(&mapping);
}

static void
take(struct worker *worker, struct slot *slot)
{
    size_t size = 1 + pick(worker, pick(worker, 4) ? 5000 : LARGEST);
    CUmemoryPool pool = pools[pick(worker, N_POOLS)];
    CUresult result = cu.cuMemAllocFromPoolAsync(&slot->at, size, pool, worker->stream);
    check(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "allocation");
    if (result != CUDA_SUCCESS)
        return;
    slot->size = size;
    slot->value = (unsigned char)pick(worker, 256);
    MUST(cuMemsetD8Async(slot->at, slot->value, size < LOOK ? size : LOOK, worker->stream));
}

static void
give(struct worker *worker, struct slot *slot)
{
    unsigned char seen[LOOK];
    size_t n = slot->size < LOOK ? slot->size : LOOK;
    MUST(cuMemcpyDtoHAsync_v2(seen, slot->at, n, worker->stream)); /* waits */
    for (size_t i = 0; i < n; i++)
        check(seen[i] == slot->value, "the memory is its owner's");
    if (pick(worker, 4))
        MUST(cuMemFreeAsync(slot->at, worker->stream));
    else
        MUST(cuMemFree_v2(slot->at));
    slot->size = 0;
}

static void
pool_step(struct worker *worker)
{
    struct slot *slot = &worker->slots[pick(worker, N_SLOTS)];
    CUmemoryPool pool = pools[pick(worker, N_POOLS)], own;
    uint64_t zero = 0;
    CUdeviceptr at;
    switch (pick(worker, 16)) {
    case 0: MUST(cuStreamSynchronize(worker->stream)); break;
    case 1: MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero)); break;
    case 2: /* a pool that ends while its memory is in use */
        own = soft_pool(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_LOCATION_TYPE_DEVICE, 0);
        MUST(cuMemAllocFromPoolAsync(&at, 4096, own, worker->stream));
        MUST(cuMemsetD8Async(at, 1, 4096, worker->stream));
        MUST(cuMemFreeAsync(at, worker->stream));
        MUST(cuMemPoolDestroy(own));
        break;
    default: (slot->size ? give : take)(worker, slot);
    }
}

static void
host_step(void *data)
{
    __atomic_add_fetch((int *)data, 1, __ATOMIC_RELAXED);
}

static void
shared_step(struct worker *worker)
{
    static int n_called;
    CUevent event = shared_events[pick(worker, N_SHARED)];
    CUdeviceptr area;
    CUstream stream = pick_stream(worker, &area);
    CUresult result;
    switch (pick(worker, 18)) {
    case 0: MUST(cuMemsetD8Async(area + pick(worker, 8) * 4096, 1, 4096, stream)); break;
    case 1: MUST(cuMemcpyDtoDAsync_v2(area, area + AREA / 2, 64, stream)); break;
    case 2: MUST(cuEventRecord(event, stream)); break;
    case 3: MUST(cuStreamWaitEvent(stream, event, 0)); break;
    case 4: MUST(cuLaunchHostFunc(stream, host_step, &n_called)); break;
    case 5: MUST(cuStreamSynchronize(stream)); break;
    case 6: MUST(cuEventSynchronize(event)); break;
    case 7:
        result = cu.cuStreamQuery(stream);
        check(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY, "query");
        break;
    case 8: own_work(worker); break;
    default: pool_step(worker); break;
    }
}

static void *
work(void *arg)
{
    struct worker *worker = arg;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&worker->stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < worker->n_steps; i++)
        shared_step(worker);
    for (int i = 0; i < N_SLOTS; i++)
        if (worker->slots[i].size)
            give(worker, &worker->slots[i]);
    MUST(cuStreamDestroy_v2(worker->stream));
    return NULL;
}

static void
run_workers(int n_threads, int n_steps, uint64_t seed)
{
    struct worker *workers = calloc((size_t)n_threads, sizeof(*workers));
    check(workers != NULL, "no memory");
    for (int i = 0; i < n_threads; i++) {
        workers[i].number = (unsigned int)i;
        workers[i].n_steps = n_steps;
        workers[i].random = seed * 1000 + (uint64_t)i;
        check(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
    }
    for (int i = 0; i < n_threads; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
}

int
main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: stress_soft THREADS STEPS SEED\n");
        return 2;
    }
    setenv("CAID_SOFTCUDA_DELAY_US", "20", 0);
    setenv("CAID_SOFTCUDA_JITTER_SEED", argv[3], 0);
    context = soft_start_context();
    MUST(cuMemAlloc_v2(&shared_memory, (N_SHARED + 1 + strtoul(argv[1], NULL, 10)) * AREA));
    for (unsigned int i = 0; i < N_SHARED; i++) {
        MUST(cuStreamCreate(&shared_streams[i], i % 2));
        MUST(cuEventCreate(&shared_events[i], CU_EVENT_DISABLE_TIMING));
    }
    for (size_t i = 0; i < N_POOLS; i++)
        pools[i] =
            soft_pool(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_LOCATION_TYPE_DEVICE, (8 + 8 * i) * MIB);
    run_workers(atoi(argv[1]), atoi(argv[2]), strtoull(argv[3], NULL, 10));
    for (int i = 0; i < N_SHARED; i++) {
        MUST(cuEventDestroy_v2(shared_events[i]));
        MUST(cuStreamDestroy_v2(shared_streams[i]));
    }
    MUST(cuMemFree_v2(shared_memory));
    MUST(cuCtxSynchronize());
    for (int i = 0; i < N_POOLS; i++)
        MUST(cuMemPoolDestroy(pools[i]));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    check(soft_used() == 0, "memory is left over");
    return 0;
}
