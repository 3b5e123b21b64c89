/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_soft_pool THREADS STEPS SEED: threads that allocate and free in stream order, from pools
 * that they share and from pools of their own, with waits, trims and resets of marks between. Each
 * checks that its memory is its own: what it filled is still there when its stream reads it. In
 * the end nothing is left.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "soft_test.h"

#define N_SLOTS   12
#define N_POOLS   2
#define LOOK      64 /* bytes */
#define LARGEST   (3 * MIB)
#define N_THREADS 64

static CUcontext context;
static CUmemoryPool pools[N_POOLS];
static unsigned int n_steps;

struct slot {
    CUdeviceptr at;
    size_t size;
    unsigned char value;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    CUstream stream;
    CUevent event;
    struct slot slots[N_SLOTS];
};

static uint64_t
draw(struct worker *worker, uint64_t n)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return worker->random % n;
}

static void
check(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

static void
take(struct worker *worker, struct slot *slot)
{
    size_t size = 1 + draw(worker, draw(worker, 4) ? 5000 : LARGEST);
    CUmemoryPool pool = pools[draw(worker, N_POOLS)];
    CUresult result = cu.cuMemAllocFromPoolAsync(&slot->at, size, pool, worker->stream);
    check(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "allocation");
    if (result != CUDA_SUCCESS)
        return;
    slot->size = size;
    slot->value = (unsigned char)draw(worker, 256);
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
    if (draw(worker, 4))
        MUST(cuMemFreeAsync(slot->at, worker->stream));
    else
        MUST(cuMemFree_v2(slot->at));
    slot->size = 0;
}

/* A pool that ends while its memory is in use. */
static void
use_own_pool(struct worker *worker)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr at;
    MUST(cuMemPoolCreate(&pool, &props));
    if (cu.cuMemAllocFromPoolAsync(&at, 4096, pool, worker->stream) == CUDA_SUCCESS) {
        MUST(cuMemsetD8Async(at, 1, 4096, worker->stream));
        MUST(cuMemFreeAsync(at, worker->stream));
    }
    MUST(cuMemPoolDestroy(pool));
}

static void
look(struct worker *worker)
{
    uint64_t used, high, zero = 0;
    CUmemoryPool pool = pools[draw(worker, N_POOLS)];
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &high));
    if (draw(worker, 8) == 0)
        MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
}

static void
step(struct worker *worker)
{
    struct slot *slot = &worker->slots[draw(worker, N_SLOTS)];
    switch (draw(worker, 24)) {
    case 0: MUST(cuStreamSynchronize(worker->stream)); break;
    case 1:
        MUST(cuEventRecord(worker->event, worker->stream));
        MUST(cuEventSynchronize(worker->event));
        break;
    case 2: MUST(cuMemPoolTrimTo(pools[draw(worker, N_POOLS)], draw(worker, LARGEST))); break;
    case 3: use_own_pool(worker); break;
    case 4: look(worker); break;
    default:
        if (slot->size)
            give(worker, slot);
        else
            take(worker, slot);
    }
}

static void *
work(void *arg)
{
    struct worker *worker = arg;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&worker->stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&worker->event, CU_EVENT_DISABLE_TIMING));
    for (unsigned int i = 0; i < n_steps; i++)
        step(worker);
    for (int i = 0; i < N_SLOTS; i++)
        if (worker->slots[i].size)
            give(worker, &worker->slots[i]);
    MUST(cuEventDestroy_v2(worker->event));
    MUST(cuStreamDestroy_v2(worker->stream));
    return NULL;
}

int
main(int argc, char **argv)
{
    static struct worker workers[N_THREADS];
    unsigned int n = argc > 1 ? (unsigned int)atoi(argv[1]) : 4;
    n_steps = argc > 2 ? (unsigned int)atoi(argv[2]) : 1000;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    setenv("CAID_SOFTCUDA_MEMORY", "64M", 0); /* small: it runs out */
    setenv("CAID_SOFTCUDA_DELAY_US", "20", 0);
    setenv("CAID_SOFTCUDA_JITTER_SEED", "1", 0);
    context = soft_start_context();
    MUST(cuDeviceGetDefaultMemPool(&pools[0], 0));
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                            .maxSize = 8 * MIB};
    MUST(cuMemPoolCreate(&pools[1], &props));
    for (unsigned int i = 0; i < n && i < N_THREADS; i++) {
        workers[i].random = (seed << 8 | i) * 0x9e3779b97f4a7c15 | 1;
        check(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "a thread");
    }
    for (unsigned int i = 0; i < n && i < N_THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    MUST(cuCtxSynchronize());
    check(soft_used() == 0, "nothing is left");
    MUST(cuMemPoolDestroy(pools[1]));
    printf("%u threads, %u steps each: all right\n", n, n_steps);
    return 0;
}
