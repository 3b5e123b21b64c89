/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools within one process: allocating and freeing in stream order, the figures, and what
 * becomes of memory that was freed.
 */
#include <string.h>

#include "soft_pools.h"

/* Allocations are packed, across pieces; a piece goes back when nothing in it is used. */
SOFT_TEST(soft_pool, memory_comes_and_goes_by_the_piece)
{
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr at[] = {take(pool, 100, NULL), take(pool, 100, NULL),
                        take(pool, 33 * MIB, NULL)};
    cr_assert_eq(at[1] - at[0], 512);
    cr_assert_eq(at[2] - at[0], 1024);
    assert_figures(pool, 33 * MIB + 200, 2 * CHUNK);
    CUdeviceptr last = take(pool, MIB, NULL);
    cr_assert_eq(last, at[2] + 33 * MIB);
    MUST(cuMemFreeAsync(at[2], NULL));
    MUST(cuCtxSynchronize());
    assert_figures(pool, MIB + 200, 2 * CHUNK);
    CUdeviceptr first = take(pool, MIB, NULL);
    cr_assert_eq(first, at[2], "the first place that is large enough");
    MUST(cuMemFreeAsync(last, NULL));
    MUST(cuCtxSynchronize());
    assert_figures(pool, MIB + 200, CHUNK);
    MUST(cuMemFreeAsync(first, NULL));
    MUST(cuMemFreeAsync(at[0], NULL));
    MUST(cuMemFreeAsync(at[1], NULL));
    MUST(cuCtxSynchronize());
    assert_figures(pool, 0, 0);
}

/* A mark that is reset starts again at what there is. */
SOFT_TEST(soft_pool, high_marks_are_reset_to_what_there_is)
{
    uint64_t one = 1, zero = 0;
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr kept = take(pool, 512, NULL), gone = take(pool, 4096, NULL);
    MUST(cuMemFreeAsync(gone, NULL));
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 512 + 4096);
    REFUSED(INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 512);
    MUST(cuMemFreeAsync(kept, NULL));
}

SOFT_TEST(soft_pool, freed_memory_stays_up_to_the_threshold)
{
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    keep(pool, UINT64_MAX);
    CUdeviceptr first = take(pool, MIB, stream);
    MUST(cuMemFreeAsync(first, stream));
    MUST(cuStreamSynchronize(stream));
    assert_figures(pool, 0, CHUNK);
    CUdeviceptr again = take(pool, MIB, stream);
    cr_assert_eq(again, first);
    MUST(cuMemPoolTrimTo(pool, 0));
    assert_figures(pool, MIB, CHUNK);
    MUST(cuMemFreeAsync(again, stream));
    let_pass(stream);
    MUST(cuMemPoolTrimTo(pool, 0));
    assert_figures(pool, 0, CHUNK);
    MUST(cuStreamSynchronize(stream)); /* now the host knows that it is free */
    MUST(cuMemPoolTrimTo(pool, 1));
    assert_figures(pool, 0, CHUNK);
    MUST(cuMemPoolTrimTo(pool, 0));
    assert_figures(pool, 0, 0);
    cr_assert_eq(soft_used(), 0);

    CUdeviceptr two[] = {take(pool, CHUNK, stream), take(pool, CHUNK, stream)};
    MUST(cuMemFreeAsync(two[0], stream));
    MUST(cuMemFreeAsync(two[1], stream));
    keep(pool, CHUNK);
    MUST(cuStreamSynchronize(stream));
    assert_figures(pool, 0, CHUNK);
    MUST(cuMemPoolDestroy(pool));
    cr_assert_eq(soft_used(), 0);
}

/* Each way of waiting is an occasion to give memory back. */
SOFT_TEST(soft_pool, memory_goes_back_when_the_host_waits)
{
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUevent event = soft_event(0);
    for (int way = 0; way < 3; way++) {
        MUST(cuMemFreeAsync(take(pool, MIB, stream), stream));
        MUST(cuEventRecord(event, stream));
        let_pass(stream);
        assert_figures(pool, 0, CHUNK);
        if (way == 0)
            MUST(cuStreamSynchronize(stream));
        else if (way == 1)
            MUST(cuEventSynchronize(event));
        else
            MUST(cuCtxSynchronize());
        assert_figures(pool, 0, 0);
    }
}

/* The order of the stream is all the protection that the memory's next user needs. */
SOFT_TEST(soft_pool, a_stream_gets_back_what_it_freed)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr first = take(pool, 4096, stream);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(first, 1, 4096, stream));
    MUST(cuMemFreeAsync(first, stream));
    CUdeviceptr second = take(pool, 4096, stream);
    cr_assert_eq(second, first);
    MUST(cuMemsetD8Async(second, 2, 4096, stream));
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(*(unsigned char *)(uintptr_t)second, 2);
    MUST(cuMemFreeAsync(second, stream));
    MUST(cuStreamSynchronize(stream));
    assert_figures(pool, 0, 0);
}

SOFT_TEST(soft_pool, another_stream_does_not_get_what_is_not_free_yet)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING),
             other = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    keep(pool, UINT64_MAX);
    CUdeviceptr first = take(pool, CHUNK, stream);
    gate_close(&gate, stream);
    MUST(cuMemFreeAsync(first, stream));
    CUdeviceptr second = take(pool, CHUNK, other);
    cr_assert_neq(second, first);
    gate_open(&gate);
    let_pass(stream);
    CUdeviceptr third = take(pool, CHUNK, other);
    cr_assert_eq(third, first, "the free has happened");
    MUST(cuMemFreeAsync(second, other));
    MUST(cuMemFreeAsync(third, other));
}

/* Without the policy, only waiting on the host tells that the free has happened. */
SOFT_TEST(soft_pool, opportunistic_reuse_can_be_switched_off)
{
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING),
             other = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    keep(pool, UINT64_MAX);
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    CUdeviceptr first = take(pool, CHUNK, stream);
    MUST(cuMemFreeAsync(first, stream));
    let_pass(stream);
    CUdeviceptr second = take(pool, CHUNK, other);
    cr_assert_neq(second, first);
    MUST(cuStreamSynchronize(stream));
    CUdeviceptr third = take(pool, CHUNK, other);
    cr_assert_eq(third, first);
    MUST(cuMemFreeAsync(second, other));
    MUST(cuMemFreeAsync(third, other));
}

/* Who waits for an event behind the free may have the memory: its work comes later. */
SOFT_TEST(soft_pool, a_stream_that_waits_for_the_free_gets_the_memory)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING),
             other = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUevent event = soft_event(CU_EVENT_DISABLE_TIMING);
    CUdeviceptr first = take(pool, CHUNK, stream);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(first, 1, CHUNK, stream));
    MUST(cuEventRecord(event, stream));
    MUST(cuStreamWaitEvent(other, event, 0)); /* too early: the free comes later */
    MUST(cuMemFreeAsync(first, stream));
    CUdeviceptr second = take(pool, CHUNK, other);
    cr_assert_neq(second, first);
    MUST(cuEventRecord(event, stream));
    MUST(cuStreamWaitEvent(other, event, 0));
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    CUdeviceptr third = take(pool, CHUNK, other);
    cr_assert_neq(third, first);
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1);
    CUdeviceptr fourth = take(pool, CHUNK, other);
    cr_assert_eq(fourth, first);
    MUST(cuMemsetD8Async(fourth, 2, CHUNK, other));
    gate_open(&gate);
    MUST(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)(uintptr_t)fourth, 2);
    MUST(cuMemFree_v2(second));
    MUST(cuMemFree_v2(third));
    MUST(cuMemFree_v2(fourth));
}

/* With no memory left the driver makes the stream wait for what another one will have freed. */
SOFT_TEST(soft_pool, a_full_pool_waits_for_other_streams)
{
    struct gate gate;
    CUdeviceptr second;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING),
             other = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(GRAN);
    CUdeviceptr first = take(pool, CHUNK, stream); /* the least that a pool can have */
    gate_close(&gate, stream);
    REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&second, 1, pool, other));
    MUST(cuMemFreeAsync(first, stream));
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&second, CHUNK, pool, other));
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1);
    second = take(pool, CHUNK, other);
    cr_assert_eq(second, first);
    cr_assert_eq(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY, "it waits for the free");
    gate_open(&gate);
    MUST(cuStreamSynchronize(other));
    MUST(cuMemFreeAsync(second, other));
    MUST(cuStreamSynchronize(other));
    assert_figures(pool, 0, 0);
}

/* Memory of which nobody ever waited for the allocation may still be its earlier owner's. */
SOFT_TEST(soft_pool, a_plain_free_keeps_to_the_order_of_the_allocation)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING),
             other = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr first = take(pool, CHUNK, stream);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(first, 1, CHUNK, stream));
    MUST(cuMemFreeAsync(first, stream));
    MUST(cuMemFree_v2(take(pool, CHUNK, stream)));
    CUdeviceptr second = take(pool, CHUNK, other);
    cr_assert_neq(second, first);
    gate_open(&gate);
    MUST(cuMemFreeAsync(second, other));
}

SOFT_TEST(soft_pool, a_pool_ends_with_its_last_allocation)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr at = take(pool, MIB, stream), last = take(pool, MIB, stream);
    MUST(cuMemPoolDestroy(pool));
    REFUSED(INVALID_VALUE, cuMemPoolDestroy(pool));
    REFUSED(INVALID_VALUE, cuMemPoolTrimTo(pool, 0));
    REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(&at, MIB, pool, stream));
    MUST(cuMemsetD8Async(at, 1, MIB, stream));
    MUST(cuMemFree_v2(at));
    cr_assert_eq(soft_used(), CHUNK);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(last, 1, MIB, stream));
    MUST(cuMemFreeAsync(last, stream));
    cr_assert_eq(soft_used(), CHUNK, "the free has not happened");
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(soft_used(), 0);
}

/* Against a model: what is used, the marks, and that no two allocations share a byte. */

#define N_SLOTS 64

struct model {
    CUmemoryPool pool;
    CUstream streams[3];
    uint64_t random;

    struct slot {
        CUdeviceptr at;
        size_t size;
        int stream;
        unsigned char value;
    } slots[N_SLOTS];

    uint64_t used, used_high;
};

static uint64_t
draw(struct model *model, uint64_t n)
{
    model->random ^= model->random << 13;
    model->random ^= model->random >> 7;
    model->random ^= model->random << 17;
    return model->random % n;
}

static void
model_take(struct model *model, struct slot *slot)
{
    slot->size = draw(model, 4) ? 1 + draw(model, 100000) : 1 + draw(model, 3 * CHUNK);
    slot->stream = (int)draw(model, 3);
    slot->value = (unsigned char)(1 + draw(model, 255));
    slot->at = take(model->pool, slot->size, model->streams[slot->stream]);
    MUST(cuMemsetD8Async(slot->at, slot->value, slot->size < 9000 ? slot->size : 9000,
                         model->streams[slot->stream]));
    model->used += slot->size;
    if (model->used > model->used_high)
        model->used_high = model->used;
}

static void
model_give(struct model *model, struct slot *slot)
{
    unsigned char seen[9000];
    size_t n = slot->size < sizeof(seen) ? slot->size : sizeof(seen);
    CUstream stream = model->streams[slot->stream];
    MUST(cuMemcpyDtoHAsync_v2(seen, slot->at, n, stream));
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(seen[i], slot->value);
    if (draw(model, 3))
        MUST(cuMemFreeAsync(slot->at, stream));
    else
        MUST(cuMemFree_v2(slot->at));
    model->used -= slot->size;
    slot->size = 0;
}

static void
model_compare(struct model *model)
{
    uint64_t used = figure(model->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    uint64_t reserved = figure(model->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    cr_assert_eq(used, model->used);
    cr_assert_eq(figure(model->pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), model->used_high);
    cr_assert_geq(reserved, used);
    cr_assert_geq(figure(model->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), reserved);
    cr_assert_eq(reserved % CHUNK, 0);
    cr_assert_eq(soft_used(), reserved);
}

static void
model_step(struct model *model)
{
    struct slot *slot = &model->slots[draw(model, N_SLOTS)];
    switch (draw(model, 12)) {
    case 0: MUST(cuStreamSynchronize(model->streams[draw(model, 3)])); break;
    case 1: MUST(cuMemPoolTrimTo(model->pool, draw(model, 4 * CHUNK))); break;
    case 2: keep(model->pool, draw(model, 4 * CHUNK)); break;
    default:
        if (slot->size)
            model_give(model, slot);
        else
            model_take(model, slot);
    }
}

CAID_TEST(soft_pool, figures_and_contents_agree_with_a_model)
{
    struct model model = {.random = 88172645463325252};
    setenv("CAID_SOFTCUDA_MEMORY", "16G", 1);
    setenv("CAID_SOFTCUDA_DELAY_US", "20", 1);
    setenv("CAID_SOFTCUDA_JITTER_SEED", "5", 1);
    soft_start_context();
    model.pool = pool_new(0);
    for (int i = 0; i < 3; i++)
        model.streams[i] = soft_stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 3000; i++) {
        model_step(&model);
        model_compare(&model);
    }
    for (int i = 0; i < N_SLOTS; i++)
        if (model.slots[i].size)
            model_give(&model, &model.slots[i]);
    keep(model.pool, 0);
    MUST(cuCtxSynchronize());
    model_compare(&model);
    cr_assert_eq(figure(model.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    MUST(cuMemPoolDestroy(model.pool));
    for (int i = 0; i < 3; i++)
        MUST(cuStreamDestroy_v2(model.streams[i]));
}
