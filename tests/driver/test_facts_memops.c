/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stream memory operations do: the conditions at their edges, hand-offs between processes
 * with no host in between, and what a waiting stream holds up.
 */
#include "facts.h"

#define SUITE facts_memops
#define START facts_start_context

#define RW (PROT_READ | PROT_WRITE)

#define GEQ CU_STREAM_WAIT_VALUE_GEQ
#define EQ  CU_STREAM_WAIT_VALUE_EQ
#define AND CU_STREAM_WAIT_VALUE_AND
#define NOR CU_STREAM_WAIT_VALUE_NOR

#define SIZE (2 * MIB)

static uint64_t
new_stream(struct facts_process *process)
{
    return GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
}

/* Conditions. */

struct condition {
    unsigned int flag;
    uint64_t have, wanted;
    bool met;
    uint64_t release; /* what meets it, where have does not */
};

#define TOP32 UINT64_C(0x80000000)
#define ALL32 UINT64_C(0xffffffff)
#define TOP64 (UINT64_C(1) << 63)
#define ALL64 UINT64_MAX
#define DEAD  (UINT64_C(1) << 62) /* what caid stores for a dead holder */

static const struct condition conditions32[] = {
    {GEQ, 5, 5, true, 0},
    {GEQ, 6, 5, true, 0},
    {GEQ, 4, 5, false, 5},
    {GEQ, TOP32 + 4, 5, true, 0}, /* the furthest ahead */
    {GEQ, TOP32 + 5, 5, false, 5},
    {GEQ, 0, ALL32, true, 0},
    {GEQ, ALL32, 0, false, 0},
    {EQ, 5, 5, true, 0},
    {EQ, 6, 5, false, 5},
    {AND, 6, 2, true, 0},
    {AND, 4, 3, false, 7},
    {NOR, 0, 0, true, 0},
    {NOR, ALL32 - 0xffff, 0xfffe, true, 0},
    {NOR, ALL32 - 0xffff, 0xffff, false, 0},
};

static const struct condition conditions64[] = {
    {GEQ, 5, 5, true, 0},
    {GEQ, 5 + (ALL32 + 1), 6, true, 0}, /* the upper half counts */
    {GEQ, 4, 5, false, 5},
    {GEQ, TOP64 + 4, 5, true, 0},
    {GEQ, TOP64 + 5, 5, false, 5},
    {GEQ, 0, ALL64, true, 0},
    {GEQ, ALL64, 0, false, 0},
    {GEQ, DEAD, 5, true, 0},
    {GEQ, 4, 5, false, DEAD},
    {GEQ, DEAD - 2, DEAD - 1, false, DEAD},
    {GEQ, ALL64, 5, false, DEAD}, /* all ones would let nobody go */
    {EQ, ALL32 + 6, 5, false, 5},
    {EQ, ALL32 + 6, ALL32 + 6, true, 0},
    {AND, ALL32 + 1, ALL32 + 1, true, 0},
    {AND, ALL32 + 1, 1, false, 1},
    {NOR, ALL32, ALL64 - ALL32, false, 0},
    {NOR, ALL32, 0, true, 0},
};

struct waiter {
    struct facts_process process;
    uint64_t stream, at;
};

static void
wait_value(struct waiter *waiter, const struct condition *condition, bool wide)
{
    if (wide)
        MUST(&waiter->process, cuStreamWaitValue64, waiter->stream, waiter->at,
             condition->wanted, condition->flag);
    else
        MUST(&waiter->process, cuStreamWaitValue32, waiter->stream, waiter->at,
             condition->wanted, condition->flag);
}

static void
assert_condition(struct waiter *waiter, _Atomic uint64_t *word,
                 const struct condition *condition, bool wide)
{
    *word = condition->have;
    wait_value(waiter, condition, wide);
    if (!condition->met) {
        facts_pause_ms(50);
        int result = TRY(&waiter->process, cuStreamQuery, waiter->stream);
        cr_assert_eq(result, CUDA_ERROR_NOT_READY, "condition %u met: %#llx against %#llx",
                     condition->flag, (unsigned long long)condition->have,
                     (unsigned long long)condition->wanted);
        *word = condition->release;
    }
    MUST(&waiter->process, cuStreamSynchronize, waiter->stream);
}

static void
assert_conditions(const struct condition *conditions, size_t n, bool wide)
{
    struct waiter waiter = {.process = facts_start_context()};
    _cleanup_page_ struct facts_page page = facts_page_new();
    waiter.at = facts_page_register(&waiter.process, &page, RW);
    waiter.stream = new_stream(&waiter.process);
    for (size_t i = 0; i < n; i++)
        assert_condition(&waiter, &page.words[0], &conditions[i], wide);
    facts_stop(&waiter.process);
}

FACT(facts_memops, conditions_of_32_bits)
{
    assert_conditions(conditions32, ARRAY_SIZE(conditions32), false);
}

FACT(facts_memops, conditions_of_64_bits)
{
    assert_conditions(conditions64, ARRAY_SIZE(conditions64), true);
}

FACT(facts_memops, a_device_says_that_it_has_them)
{
    _cleanup_process_ struct facts_process process = facts_start();
    cr_assert_eq(GET(&process, cuDeviceGetAttribute,
                     CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0),
                 1);
    cr_assert_eq(GET(&process, cuDeviceGetAttribute,
                     CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0),
                 1);
    cr_assert_eq(GET(&process, cuDeviceGetAttribute,
                     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0),
                 1);
}

/* Writes, and batches. */

FACT_OF_ONE(a_write_has_its_width, process)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t at = facts_page_register(process, &page, RW);
    uint64_t stream = new_stream(process);
    page.words[0] = page.words[1] = page.words[2] = ALL64;
    MUST(process, cuStreamWriteValue32, stream, at, 1, 0);
    MUST(process, cuStreamWriteValue64, stream, at + 8, 2, 0);
    MUST(process, cuStreamSynchronize, stream);
    cr_assert_eq(page.words[0], ALL64 - ALL32 + 1);
    cr_assert_eq(page.words[1], 2);
    cr_assert_eq(page.words[2], ALL64);
}

FACT_OF_ONE(a_batch_runs_in_its_order, process)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t at = facts_page_register(process, &page, RW);
    uint64_t stream = new_stream(process);
    CUstreamBatchMemOpParams ops[3] = {0};
    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[0].writeValue.address = at;
    ops[0].writeValue.value64 = 1;
    ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = at + 8;
    ops[1].waitValue.value = 1;
    ops[1].waitValue.flags = GEQ;
    ops[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[2].writeValue.address = at + 16;
    ops[2].writeValue.value = 3;
    MUST(process, cuStreamBatchMemOp, stream, 3, facts_put(process, ops, sizeof(ops)), 0);
    facts_pause_ms(50);
    EXPECT(process, CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    cr_assert_eq(page.words[2], 0);
    page.words[1] = 1;
    MUST(process, cuStreamSynchronize, stream);
    cr_assert_eq(page.words[0], 1);
    cr_assert_eq(page.words[2], 3);
}

FACT_OF_ONE(memory_of_a_pool_and_managed_memory_have_none, process)
{
    uint64_t stream = new_stream(process);
    uint64_t managed = GET(process, cuMemAllocManaged, SIZE, CU_MEM_ATTACH_GLOBAL);
    uint64_t pooled = GET(process, cuMemAllocAsync, SIZE, stream);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32, stream, managed, 0, GEQ);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32, stream, pooled, 0, GEQ);
    MUST(process, cuStreamSynchronize, stream);
}

/* Hand-offs. */

#define N_ROUNDS 20
#define PART     (64 * KIB)

/* One side of a hand-off of shared memory, by a word that both can see. */
struct side {
    struct facts_process process;
    uint64_t stream, shared, word;
};

/* All rounds are enqueued at once: round r is filled when the word is 2r, and read at 2r + 1. */
static void
enqueue_producer(struct side *side)
{
    for (uint64_t r = 0; r < N_ROUNDS; r++) {
        MUST(&side->process, cuStreamWaitValue64, side->stream, side->word, 2 * r, GEQ);
        MUST(&side->process, cuMemsetD32Async, side->shared, 100 + r, PART / 4, side->stream);
        MUST(&side->process, cuStreamWriteValue64, side->stream, side->word, 2 * r + 1, 0);
    }
}

static uint64_t
enqueue_consumer(struct side *side)
{
    uint64_t copies = GET(&side->process, cuMemAlloc, N_ROUNDS * PART);
    for (uint64_t r = 0; r < N_ROUNDS; r++) {
        MUST(&side->process, cuStreamWaitValue64, side->stream, side->word, 2 * r + 1, GEQ);
        MUST(&side->process, cuMemcpyDtoDAsync, copies + r * PART, side->shared, PART,
             side->stream);
        MUST(&side->process, cuStreamWriteValue64, side->stream, side->word, 2 * r + 2, 0);
    }
    return copies;
}

static void
assert_hands_off(struct side *producer, struct side *consumer)
{
    producer->stream = new_stream(&producer->process);
    consumer->stream = new_stream(&consumer->process);
    uint64_t copies = enqueue_consumer(consumer);
    enqueue_producer(producer);
    MUST(&consumer->process, cuStreamSynchronize, consumer->stream);
    for (uint32_t r = 0; r < N_ROUNDS; r++)
        facts_assert_filled(&consumer->process, copies + r * PART, PART, 100 + r);
    facts_stop(&consumer->process);
    facts_stop(&producer->process);
}

/* Two processes that share device memory of SIZE. */
static void
start_sides(struct side *producer, struct side *consumer)
{
    producer->process = facts_start_context();
    consumer->process = facts_start_context();
    struct facts_memory memory = facts_create(&producer->process, SIZE);
    producer->shared = memory.at;
    int fd = facts_export(&producer->process, memory.handle);
    consumer->shared = facts_import(&consumer->process, fd, SIZE, READWRITE).at;
    fd_close(fd);
}

FACT(facts_memops, hand_off_by_a_shared_host_page)
{
    struct side producer, consumer;
    _cleanup_page_ struct facts_page page = facts_page_new();
    start_sides(&producer, &consumer);
    producer.word = facts_page_register(&producer.process, &page, RW);
    consumer.word = facts_page_register(&consumer.process, &page, RW);
    assert_hands_off(&producer, &consumer);
}

FACT(facts_memops, hand_off_by_shared_device_memory)
{
    struct side producer, consumer;
    start_sides(&producer, &consumer);
    facts_fill(&producer.process, producer.shared, SIZE, 0);
    producer.word = producer.shared + SIZE - 8;
    consumer.word = consumer.shared + SIZE - 8;
    assert_hands_off(&producer, &consumer);
}

/* On hardware each waiting stream holds one of the process's connections to the device. There are
 * CUDA_DEVICE_MAX_CONNECTIONS, 8 by default, of them: with one more stream waiting this hangs. */
FACT_OF_ONE(seven_waiting_streams_leave_room_for_the_one_that_signals, process)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t at = facts_page_register(process, &page, RW);
    uint64_t streams[8];
    for (int i = 0; i < 8; i++)
        streams[i] = new_stream(process);
    for (int i = 0; i < 7; i++)
        MUST(process, cuStreamWaitValue64, streams[i], at, 1, GEQ);
    MUST(process, cuStreamWriteValue64, streams[7], at, 1, 0);
    MUST(process, cuCtxSynchronize);
}

/* What a waiting stream holds up. */

/* A process with a stream that is to wait until the page's first word is 1. What else it needs is
 * made before held_wait(): not every call is known to go on beside a waiting stream. */
struct held {
    struct facts_process process;
    struct facts_page page;
    uint64_t stream, word;
};

static struct held
held_start(void)
{
    struct held held = {.process = facts_start_context(), .page = facts_page_new()};
    held.word = facts_page_register(&held.process, &held.page, RW);
    held.stream = new_stream(&held.process);
    return held;
}

static void
held_wait(struct held *held)
{
    MUST(&held->process, cuStreamWaitValue64, held->stream, held->word, 1, GEQ);
}

static void
held_stop(struct held *held)
{
    held->page.words[0] = 1;
    MUST(&held->process, cuStreamSynchronize, held->stream);
    facts_stop(&held->process);
    facts_page_deinit(&held->page);
}

static void
assert_ends_with_the_wait(struct held *held)
{
    cr_assert(facts_is_blocked(&held->process), "it does not wait for the stream");
    held->page.words[0] = 1;
    EXPECT_END(&held->process, CUDA_SUCCESS);
    held_stop(held);
}

FACT(facts_memops, unregistering_waits_for_a_waiting_stream)
{
    _cleanup_page_ struct facts_page other = facts_page_new();
    struct held held = held_start();
    uint64_t at = facts_page_map(&held.process, &other, RW);
    MUST(&held.process, cuMemHostRegister, at, FACTS_PAGE_SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);
    held_wait(&held);
    BEGIN(&held.process, cuMemHostUnregister, at);
    assert_ends_with_the_wait(&held);
}

FACT(facts_memops, freeing_memory_waits_for_a_waiting_stream)
{
    struct held held = held_start();
    uint64_t at = GET(&held.process, cuMemAlloc, SIZE);
    held_wait(&held);
    BEGIN(&held.process, cuMemFree, at);
    assert_ends_with_the_wait(&held);
}

FACT(facts_memops, freeing_host_memory_waits_for_a_waiting_stream)
{
    struct held held = held_start();
    uint64_t at = GET(&held.process, cuMemHostAlloc, SIZE, CU_MEMHOSTALLOC_PORTABLE);
    held_wait(&held);
    BEGIN(&held.process, cuMemFreeHost, at);
    assert_ends_with_the_wait(&held);
}

FACT_OF_ONE(closing_opened_memory_waits_for_a_waiting_stream, exporter)
{
    CUipcMemHandle handle;
    uint64_t at = GET(exporter, allocate_host, sizeof(handle));
    MUST(exporter, cuIpcGetMemHandle, at, GET(exporter, cuMemAlloc, SIZE));
    facts_read(exporter, at, &handle, sizeof(handle));

    struct held held = held_start();
    uint64_t seen = GET(&held.process, open_ipc_memory,
                        facts_put(&held.process, &handle, sizeof(handle)),
                        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    held_wait(&held);
    BEGIN(&held.process, cuIpcCloseMemHandle, seen);
    assert_ends_with_the_wait(&held);
}

FACT(facts_memops, allocating_mapping_and_registering_do_not_wait)
{
    _cleanup_page_ struct facts_page other = facts_page_new();
    struct held held = held_start();
    struct facts_process *process = &held.process;
    uint64_t page = facts_page_map(process, &other, RW);
    held_wait(&held);
    struct facts_memory memory = facts_create(process, SIZE);
    MUST(process, cuMemUnmap, memory.at, SIZE);
    MUST(process, cuMemRelease, memory.handle);
    MUST(process, cuMemHostRegister, page, FACTS_PAGE_SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);
    MUST(process, cuMemAlloc, SIZE);
    MUST(process, cuMemHostAlloc, SIZE, 0);
    uint64_t stream = new_stream(process);
    MUST(process, cuMemFreeAsync, GET(process, cuMemAllocAsync, SIZE, stream), stream);
    MUST(process, cuStreamSynchronize, stream);
    MUST(process, cuStreamDestroy, stream);
    EXPECT(process, CUDA_ERROR_NOT_READY, cuStreamQuery, held.stream);
    held_stop(&held);
}

/* So the owner of a mapping has to know when its work has ended. */
FACT(facts_memops, unmapping_does_not_wait_for_work_on_the_mapping)
{
    struct held held = held_start();
    struct facts_memory memory = facts_create(&held.process, SIZE);
    held_wait(&held);
    MUST(&held.process, cuMemsetD32Async, memory.at, 5, SIZE / 4, held.stream);
    MUST(&held.process, cuMemUnmap, memory.at, memory.size);
    EXPECT(&held.process, CUDA_ERROR_NOT_READY, cuStreamQuery, held.stream);
    facts_kill(&held.process);
    facts_page_deinit(&held.page);
}
