/* SPDX-License-Identifier: Apache-2.0 */
/* Stream memory operations: what they wait for and write, in which memory, alone and in batches. */
#include "caid_test.h"

#include <sched.h>

#include "soft_words.h"

#define TOP32 UINT32_C(0x80000000)
#define TOP64 (UINT64_C(1) << 63)

/* The conditions, at their edges. */

struct row {
    unsigned int width, condition;
    uint64_t value, word;
    bool met;
};

static const struct row rows[] = {
    {4, GEQ, 7, 7, true},
    {4, GEQ, 7, 8, true},
    {4, GEQ, 7, 6, false},
    {4, GEQ, 0, UINT32_MAX, false}, /* -1 */
    {4, GEQ, UINT32_MAX, 0, true},  /* one more */
    {4, GEQ, 0, TOP32 - 1, true},
    {4, GEQ, 0, TOP32, false},
    {4, GEQ, 5, TOP32 + 4, true},
    {4, GEQ, 5, TOP32 + 5, false},
    {8, GEQ, 7, 7, true},
    {8, GEQ, 7, 6, false},
    {8, GEQ, 0, UINT64_MAX, false},
    {8, GEQ, UINT64_MAX, 0, true},
    {8, GEQ, 0, TOP64 - 1, true},
    {8, GEQ, 0, TOP64, false},
    {8, GEQ, UINT32_MAX, UINT64_C(1) << 32, true}, /* not by its lower half */
    {8, GEQ, UINT64_C(1) << 32, UINT32_MAX, false},
    {8, GEQ, 0, TOP32, true},
    {4, EQ, 7, 7, true},
    {4, EQ, 7, 8, false},
    {4, EQ, 7, 6, false},
    {4, EQ, 0, 0, true},
    {8, EQ, UINT64_MAX, UINT64_MAX, true},
    {8, EQ, 1, UINT64_C(1) << 32 | 1, false},
    {4, AND, 4, 6, true},
    {4, AND, 4, 3, false},
    {4, AND, 0, UINT32_MAX, false},
    {4, AND, UINT32_MAX, 0, false},
    {4, AND, UINT32_MAX, TOP32, true},
    {8, AND, UINT64_C(1) << 40, UINT64_C(3) << 40, true},
    {8, AND, UINT64_C(1) << 40, UINT32_MAX, false},
    {4, NOR, 0, UINT32_MAX, false},
    {4, NOR, UINT32_C(0x0f0f0f0f), UINT32_C(0xf0f0f0f0), false},
    {4, NOR, UINT32_C(0x0f0f0f0e), UINT32_C(0xf0f0f0f0), true},
    {4, NOR, 0, 0, true},
    {4, NOR, UINT32_MAX, 0, false},
    {8, NOR, 0, UINT32_MAX, true},
    {8, NOR, TOP64, TOP64 - 1, false},
    {8, NOR, TOP64, TOP64 - 2, true},
    {8, NOR, UINT64_MAX, 0, false},
};

#define N_ROWS (sizeof(rows) / sizeof(*rows))

static void
row_wait(const struct row *row, uint64_t *word, CUstream stream)
{
    if (row->width == 4)
        MUST(cuStreamWaitValue32_v2(stream, address(word), (uint32_t)row->value,
                                    row->condition));
    else
        MUST(cuStreamWaitValue64_v2(stream, address(word), row->value, row->condition));
}

/* What lies beside a 32-bit word is of no account: it would meet every condition. */
static void
row_store(const struct row *row, uint64_t *word)
{
    store(word, row->width == 4 ? row->word | TOP64 : row->word);
}

CAID_TEST(soft_memop, conditions_that_are_met_end_the_wait)
{
    soft_start_context();
    uint64_t *word = pinned();
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!rows[i].met)
            continue;
        row_store(&rows[i], word);
        row_wait(&rows[i], word, NULL);
        MUST(cuStreamSynchronize(NULL));
    }
    MUST(cuMemFreeHost(word));
}

static uint64_t
value_that_meets(const struct row *row)
{
    switch (row->condition) {
    case AND: return row->value ? row->value : 1;
    case NOR: return 0;
    default: return row->value;
    }
}

/* Two of the rows can never be met: they end with the process. */
static bool
row_is_hopeless(const struct row *row)
{
    uint64_t all = row->width == 4 ? UINT32_MAX : UINT64_MAX;
    return (row->condition == AND && row->value == 0) ||
           (row->condition == NOR && row->value == all);
}

CAID_TEST(soft_memop, conditions_that_are_not_met_hold_the_stream)
{
    CUstream streams[N_ROWS];
    soft_start_context();
    uint64_t *words = pinned(), *done = pinned(), *scratch = pinned();
    CUstream other = stream_new();
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].met)
            continue;
        streams[i] = stream_new();
        row_store(&rows[i], &words[i]);
        row_wait(&rows[i], &words[i], streams[i]);
        MUST(cuStreamWriteValue64_v2(streams[i], address(&done[i]), 1, 0));
    }
    let_others_run(other, scratch);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].met)
            continue;
        cr_assert_eq(load(&done[i]), 0, "row %zu", i);
        cr_assert_eq(cu.cuStreamQuery(streams[i]), CUDA_ERROR_NOT_READY);
        store(&words[i], value_that_meets(&rows[i]));
        if (row_is_hopeless(&rows[i]))
            continue;
        MUST(cuStreamSynchronize(streams[i]));
        cr_assert_eq(load(&done[i]), 1);
    }
}

/* Kinds of memory. */

static void
check_works_on(CUdeviceptr at)
{
    uint64_t *word = (uint64_t *)(uintptr_t)at;
    CUstream stream = stream_new();
    MUST(cuStreamWriteValue32_v2(stream, at + 4, 0x1234, 0));
    MUST(cuStreamWaitValue32_v2(stream, at + 4, 0x1234, EQ));
    MUST(cuStreamWriteValue64_v2(stream, at, UINT64_MAX - 1, 0));
    MUST(cuStreamWaitValue64_v2(stream, at, UINT64_MAX - 1, EQ));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(load(word), UINT64_MAX - 1);
    MUST(cuStreamWriteValue32_v2(stream, at, 0, 0));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(load(word), UINT64_MAX << 32, "a word is written and not its neighbour");
    MUST(cuStreamDestroy_v2(stream));
}

CAID_TEST(soft_memop, they_work_on_device_and_pinned_memory)
{
    CUdeviceptr legacy;
    soft_start_context();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    uint64_t *host = pinned();
    MUST(cuMemAlloc_v2(&legacy, PAGE));
    check_works_on(legacy);
    check_works_on(mapping.at + GRAN - 8);
    check_works_on(address(host));
    MUST(cuMemFree_v2(legacy));
    MUST(cuMemFreeHost(host));
    soft_unmap(&mapping);
}

/* Its address is what counts. */
CAID_TEST(soft_memop, a_word_may_be_longer_than_its_allocation)
{
    CUdeviceptr at;
    soft_start_context();
    MUST(cuMemAlloc_v2(&at, 4));
    MUST(cuStreamWriteValue64_v2(NULL, at, UINT64_MAX, 0));
    MUST(cuStreamWaitValue64_v2(NULL, at, UINT64_MAX, EQ));
    MUST(cuStreamSynchronize(NULL));
    cr_assert_eq(load((uint64_t *)(uintptr_t)at), UINT64_MAX);
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree_v2(at));
}

CAID_TEST(soft_memop, they_work_on_registered_memory)
{
    soft_start_context();
    uint64_t *own = aligned_alloc(8, 64);
    MUST(cuMemHostRegister_v2(own, 64, 0));
    check_works_on(address(own + 7));
    cr_assert_eq(cu.cuStreamWaitValue64_v2(NULL, address(own + 8), 0, 0),
                 CUDA_ERROR_INVALID_VALUE, "behind its end");
    MUST(cuMemHostUnregister(own));
    free(own);
}

CAID_TEST(soft_memop, other_memory_is_refused)
{
    CUdeviceptr managed;
    uint64_t pageable = 0;
    soft_start_context();
    MUST(cuMemAllocManaged(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, managed, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue64_v2(NULL, managed, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, address(&pageable), 0, 0),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue32_v2(NULL, address(&pageable), 0, 0),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue32_v2(NULL, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree_v2(managed));
}

CAID_TEST(soft_memop, read_only_mappings_are_waited_on)
{
    soft_start_context();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    uint64_t *word = (uint64_t *)(uintptr_t)mapping.at;
    store(word, 3);
    soft_set_access(&mapping, 1);
    MUST(cuStreamWaitValue64_v2(NULL, mapping.at, 3, 0));
    MUST(cuStreamSynchronize(NULL));
    soft_set_access(&mapping, 0);
    cr_assert_eq(cu.cuStreamWaitValue64_v2(NULL, mapping.at, 3, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue64_v2(NULL, mapping.at, 3, 0), CUDA_ERROR_INVALID_VALUE);
    soft_unmap(&mapping);
}

/* The call does not know better, other than a fill. */
CAID_TEST(soft_memop, a_write_to_a_read_only_mapping_faults)
{
    soft_start_context();
    struct soft_mapping mapping = soft_map(GRAN, 1);
    cr_assert_eq(cu.cuMemsetD8_v2(mapping.at, 1, 8), CUDA_ERROR_INVALID_VALUE);
    CUstreamBatchMemOpParams op = op_write((uint64_t *)(uintptr_t)mapping.at, 4);
    MUST(cuStreamBatchMemOp_v2(NULL, 1, &op, 0));
    cr_assert_eq(cu.cuStreamSynchronize(NULL), CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(*(volatile uint64_t *)(uintptr_t)mapping.at, 0);
    cr_assert_eq(cu.cuStreamWaitValue64_v2(NULL, mapping.at, 0, 0), CUDA_ERROR_LAUNCH_FAILED);
    soft_unmap(&mapping);
}

CAID_TEST(soft_memop, bad_arguments_are_refused)
{
    soft_start_context();
    CUdeviceptr at = address(pinned());
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWaitValue64_v2(NULL, at + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue32_v2(NULL, at + 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue64_v2(NULL, at + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at, 0, 4), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at, 0, 1U << 29), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue32_v2(NULL, at, 0, 2), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWriteValue32_v2(NULL, at, 0,
                                            CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER),
                 CUDA_ERROR_INVALID_VALUE, "of the first ABI");
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at, 0, CU_STREAM_WAIT_VALUE_FLUSH | EQ),
                 CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at, 0, CU_STREAM_WAIT_VALUE_FLUSH | 4),
                 CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFreeHost((void *)(uintptr_t)at));
    MUST(cuCtxSetCurrent(NULL));
    cr_assert_eq(cu.cuStreamWaitValue32_v2(NULL, at, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
}

/* Batches. */

static CUstreamBatchMemOpParams
op_barrier(CUstreamBatchMemOpType type, unsigned int flags)
{
    CUstreamBatchMemOpParams params = {.memoryBarrier = {type, flags}};
    return params;
}

CAID_TEST(soft_memop, a_batch_is_done_in_order)
{
    soft_start_context();
    uint64_t *word = pinned();
    CUstreamBatchMemOpParams ops[] = {
        op_write(&word[0], 1),
        op_wait(&word[0], 1),
        op_barrier(CU_STREAM_MEM_OP_BARRIER, CU_STREAM_MEMORY_BARRIER_TYPE_SYS),
        op_barrier(CU_STREAM_MEM_OP_BARRIER, CU_STREAM_MEMORY_BARRIER_TYPE_GPU),
        op_write(&word[0], 2),
        op_wait(&word[1], 5),
        op_write(&word[2], 3),
    };
    CUstream stream = stream_new();
    MUST(cuStreamBatchMemOp_v2(stream, 7, ops, 0));
    ops[6] = op_write(&word[2], 9); /* the array was read */
    while (load(&word[0]) != 2)
        sched_yield();
    cr_assert_eq(load(&word[2]), 0);
    store(&word[1], 5);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(load(&word[2]), 3);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFreeHost(word));
}

/* One operation that is refused, and none of them is done. */
CAID_TEST(soft_memop, a_batch_is_checked_as_a_whole)
{
    soft_start_context();
    uint64_t *word = pinned(), pageable;
    CUstreamBatchMemOpParams ops[] = {op_write(word, 1), op_write(word, 2)};
    CUstreamBatchMemOpParams bad[] = {
        op_write(&pageable, 1),
        op_barrier((CUstreamBatchMemOpType)0, 0),
        op_barrier((CUstreamBatchMemOpType)7, 0),
        op_barrier(CU_STREAM_MEM_OP_BARRIER, 2),
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        ops[1] = bad[i];
        cr_assert_eq(cu.cuStreamBatchMemOp_v2(NULL, 2, ops, 0), CUDA_ERROR_INVALID_VALUE);
    }
    ops[1] = op_barrier(CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, 0);
    cr_assert_eq(cu.cuStreamBatchMemOp_v2(NULL, 2, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuStreamBatchMemOp_v2(NULL, 1, ops, 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamBatchMemOp_v2(NULL, 1, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamBatchMemOp_v2(NULL, 0, NULL, 0)); /* none of them, none wrong */
    MUST(cuStreamSynchronize(NULL));
    cr_assert_eq(load(word), 0);
    MUST(cuMemFreeHost(word));
}

CAID_TEST(soft_memop, a_batch_has_a_limit)
{
    static CUstreamBatchMemOpParams ops[256];
    soft_start_context();
    uint64_t *word = pinned();
    for (uint64_t i = 0; i < 256; i++)
        ops[i] = op_write(word, i + 1);
    cr_assert_eq(cu.cuStreamBatchMemOp_v2(NULL, 256, ops, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamBatchMemOp_v2_ptsz(NULL, 255, ops, 0));
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    cr_assert_eq(load(word), 255);
    MUST(cuMemFreeHost(word));
}

/* Order and time. */

CAID_TEST(soft_memop, a_write_comes_after_the_work_before_it)
{
    struct gate gate;
    soft_start_context();
    uint64_t *word = pinned();
    CUstream stream = stream_new();
    gate_close(&gate, stream);
    MUST(cuStreamWriteValue32_v2(stream, address(word), 1, 0));
    cr_assert_eq(load(word), 0);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(load(word), 1);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFreeHost(word));
}

/* The delay is long enough to outlast the test, which ends without waiting for it. */
CAID_TEST(soft_memop, the_delay_setting_stretches_them)
{
    setenv("CAID_SOFTCUDA_DELAY_US", "60000000", 1);
    soft_start_context();
    uint64_t *word = pinned();
    CUstream stream = stream_new();
    MUST(cuStreamWriteValue64_v2(stream, address(word), 1, 0));
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    cr_assert_eq(load(word), 0);
}

/* Streams of one process hand data to each other, each round the other way. */
CAID_TEST(soft_memop, streams_hand_over_to_each_other)
{
    setenv("CAID_SOFTCUDA_DELAY_US", "50", 1);
    setenv("CAID_SOFTCUDA_JITTER_SEED", "7", 1);
    soft_start_context();
    uint64_t *flag = pinned();
    unsigned char *data = (unsigned char *)pinned();
    CUstream streams[2] = {stream_new(), stream_new()};
    for (unsigned int i = 1; i <= 100; i++) {
        CUstream from = streams[i % 2], to = streams[(i + 1) % 2];
        MUST(cuMemsetD8Async(address(data), (unsigned char)i, PAGE, from));
        MUST(cuStreamWriteValue64_v2(from, address(flag), i, 0));
        MUST(cuStreamWaitValue64_v2(to, address(flag), i, GEQ));
    }
    MUST(cuCtxSynchronize());
    cr_assert_eq(data[0], 100);
    cr_assert_eq(data[PAGE - 1], 100);
    MUST(cuStreamDestroy_v2(streams[0]));
    MUST(cuStreamDestroy_v2(streams[1]));
    MUST(cuMemFreeHost(flag));
    MUST(cuMemFreeHost(data));
}

/* The first ABI, and which versions of the names give which. */
CAID_TEST(soft_memop, the_first_abi_is_switched_off)
{
    static const int off[] = {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1,
                              CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1,
                              CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1,
                              CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES};
    static const int on[] = {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                             CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR};
    int value;
    soft_start_context();
    uint64_t *word = pinned();
    CUstreamBatchMemOpParams ops[] = {op_write(word, 1)};
    for (size_t i = 0; i < 4; i++) {
        MUST(cuDeviceGetAttribute(&value, (CUdevice_attribute)off[i], 0));
        cr_assert_eq(value, 0);
    }
    for (size_t i = 0; i < 2; i++) {
        MUST(cuDeviceGetAttribute(&value, (CUdevice_attribute)on[i], 0));
        cr_assert_eq(value, 1);
    }
    cr_assert_eq(cu.cuStreamWaitValue32(NULL, address(word), 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuStreamWaitValue64(NULL, address(word), 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuStreamWriteValue32(NULL, address(word), 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuStreamWriteValue64(NULL, address(word), 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuStreamBatchMemOp(NULL, 1, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
    MUST(cuStreamSynchronize(NULL));
    cr_assert_eq(load(word), 0);
    MUST(cuMemFreeHost(word));
}

CAID_TEST(soft_memop, versions_of_calls_are_told_apart)
{
    void *fn;
    soft_start();
    MUST(cuGetProcAddress_v2("cuStreamWaitValue64", &fn, 11060, 0, NULL));
    cr_assert_eq(fn, (void *)cu.cuStreamWaitValue64);
    MUST(cuGetProcAddress_v2("cuStreamWaitValue64", &fn, 11070, 0, NULL));
    cr_assert_eq(fn, (void *)cu.cuStreamWaitValue64_v2);
    MUST(cuGetProcAddress_v2("cuStreamWriteValue32", &fn, 13000,
                             CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    cr_assert_eq(fn, (void *)cu.cuStreamWriteValue32_v2_ptsz);
    MUST(cuGetProcAddress_v2("cuStreamWaitValue64", &fn, 8000, 0, NULL));
    cr_assert_null(fn, "64 bits came with CUDA 9");
}
