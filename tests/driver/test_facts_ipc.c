/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA's legacy inter-process handles do: memory of cuMemAlloc() and events, opened by
 * another process.
 */
#include "facts.h"

#define SUITE facts_ipc
#define START facts_start_context

#define SIZE (4 * MIB)
#define WORD 0xca1dca1d

struct exported {
    uint64_t at;
    CUipcMemHandle handle;
};

/* Memory of SIZE, full of WORD. */
static struct exported
export_memory(struct facts_process *process)
{
    struct exported exported = {.at = GET(process, cuMemAlloc, SIZE)};
    facts_fill(process, exported.at, SIZE, WORD);
    uint64_t at = GET(process, allocate_host, sizeof(exported.handle));
    MUST(process, cuIpcGetMemHandle, at, exported.at);
    facts_read(process, at, &exported.handle, sizeof(exported.handle));
    return exported;
}

static uint64_t
put_handle(struct facts_process *process, const CUipcMemHandle *handle)
{
    return facts_put(process, handle, sizeof(*handle));
}

static uint64_t
open_memory(struct facts_process *process, const struct exported *exported)
{
    return GET(process, open_ipc_memory, put_handle(process, &exported->handle),
               CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* An event made for other processes, and its handle. */
static uint64_t
export_event(struct facts_process *process, CUipcEventHandle *ret_handle)
{
    uint64_t event =
        GET(process, cuEventCreate, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    uint64_t at = GET(process, allocate_host, sizeof(*ret_handle));
    MUST(process, cuIpcGetEventHandle, at, event);
    facts_read(process, at, ret_handle, sizeof(*ret_handle));
    return event;
}

static uint64_t
put_event_handle(struct facts_process *process, const CUipcEventHandle *handle)
{
    return facts_put(process, handle, sizeof(*handle));
}

/* Memory. */

FACT_OF_TWO(opened_memory_is_the_exporters, exporter, importer)
{
    struct exported exported = export_memory(exporter);
    uint64_t seen = open_memory(importer, &exported);
    facts_assert_filled(importer, seen, SIZE, WORD);
    facts_fill(importer, seen, SIZE, 5);
    facts_assert_filled(exporter, exported.at, SIZE, 5);
}

FACT_OF_ONE(own_memory_cannot_be_opened, exporter)
{
    struct exported exported = export_memory(exporter);
    EXPECT(exporter, CUDA_ERROR_INVALID_CONTEXT, open_ipc_memory,
           put_handle(exporter, &exported.handle), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

FACT_OF_TWO(a_second_open_gives_the_same_address_and_counts, exporter, importer)
{
    struct exported exported = export_memory(exporter);
    uint64_t seen = open_memory(importer, &exported);
    cr_assert_eq(open_memory(importer, &exported), seen);
    MUST(importer, cuIpcCloseMemHandle, seen);
    facts_assert_filled(importer, seen, SIZE, WORD);
    MUST(importer, cuIpcCloseMemHandle, seen);
    EXPECT(importer, CUDA_ERROR_INVALID_VALUE, count_words, seen, SIZE, WORD);
    EXPECT(importer, CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle, seen);
}

FACT_OF_TWO(opened_memory_cannot_be_exported, exporter, importer)
{
    struct exported exported = export_memory(exporter);
    uint64_t seen = open_memory(importer, &exported);
    uint64_t at = GET(importer, allocate_host, sizeof(CUipcMemHandle));
    EXPECT(importer, CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, at, seen);
}

/* Documented as undefined; this is what drivers do. */
FACT_OF_TWO(opened_memory_outlives_its_killed_exporter, exporter, importer)
{
    struct exported exported = export_memory(exporter);
    uint64_t seen = open_memory(importer, &exported);
    facts_kill(exporter);
    facts_assert_filled(importer, seen, SIZE, WORD);
}

FACT_OF_TWO(opened_memory_outlives_its_free, exporter, importer)
{
    struct exported exported = export_memory(exporter);
    uint64_t seen = open_memory(importer, &exported);
    MUST(exporter, cuMemFree, exported.at);
    facts_assert_filled(importer, seen, SIZE, WORD);
    MUST(importer, cuIpcCloseMemHandle, seen);
}

FACT(facts_ipc, another_uid_may_open_memory_but_no_event)
{
    facts_need_other_users();
    _cleanup_process_ struct facts_process exporter = facts_start_context();
    _cleanup_process_ struct facts_process importer = facts_start_bare();
    struct exported exported = export_memory(&exporter);
    CUipcEventHandle handle;
    export_event(&exporter, &handle);

    MUST(&importer, set_uid, 65534);
    MUST(&importer, open, 0);
    facts_context(&importer, 0);
    facts_assert_filled(&importer, open_memory(&importer, &exported), SIZE, WORD);
    EXPECT(&importer, CUDA_ERROR_MAP_FAILED, open_ipc_event,
           put_event_handle(&importer, &handle));
}

/* Events. */

FACT_OF_ONE(an_own_event_cannot_be_opened, exporter)
{
    CUipcEventHandle handle;
    export_event(exporter, &handle);
    EXPECT(exporter, CUDA_ERROR_INVALID_CONTEXT, open_ipc_event,
           put_event_handle(exporter, &handle));
}

FACT_OF_ONE(only_an_event_made_for_it_is_exported, process)
{
    uint64_t plain = GET(process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    uint64_t at = GET(process, allocate_host, sizeof(CUipcEventHandle));
    EXPECT(process, CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle, at, plain);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuEventCreate, CU_EVENT_INTERPROCESS);
}

/* A producer whose stream is held by the page's first word, then fills memory, then records an
 * event; and a consumer whose stream waits for the event, then copies. */
struct hand_off {
    uint64_t filled_stream, copied_stream, copy;
};

static struct hand_off
hand_off(struct facts_process *producer, struct facts_process *consumer,
         const struct facts_page *page)
{
    struct exported exported = export_memory(producer);
    uint64_t gate = facts_page_register(producer, page, PROT_READ | PROT_WRITE);
    CUipcEventHandle handle;
    uint64_t event = export_event(producer, &handle);
    struct hand_off it = {
        .filled_stream = GET(producer, cuStreamCreate, CU_STREAM_NON_BLOCKING),
        .copied_stream = GET(consumer, cuStreamCreate, CU_STREAM_NON_BLOCKING),
        .copy = GET(consumer, cuMemAlloc, SIZE),
    };
    uint64_t seen = open_memory(consumer, &exported);
    uint64_t opened = GET(consumer, open_ipc_event, put_event_handle(consumer, &handle));
    facts_fill(consumer, it.copy, SIZE, 0);

    MUST(producer, cuStreamWaitValue64, it.filled_stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ);
    MUST(producer, cuMemsetD32Async, exported.at, 7, SIZE / 4, it.filled_stream);
    MUST(producer, cuEventRecord, event, it.filled_stream);
    MUST(consumer, cuStreamWaitEvent, it.copied_stream, opened, 0);
    MUST(consumer, cuMemcpyDtoDAsync, it.copy, seen, SIZE, it.copied_stream);
    EXPECT(consumer, CUDA_ERROR_NOT_READY, cuStreamQuery, it.copied_stream);
    return it;
}

FACT_OF_TWO(an_event_orders_streams_of_two_processes, producer, consumer)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    struct hand_off it = hand_off(producer, consumer, &page);
    page.words[0] = 1;
    MUST(consumer, cuStreamSynchronize, it.copied_stream);
    facts_assert_filled(consumer, it.copy, SIZE, 7);
}

FACT_OF_TWO(an_event_that_is_over_outlives_its_killed_producer, producer, consumer)
{
    CUipcEventHandle handle;
    uint64_t event = export_event(producer, &handle);
    uint64_t opened = GET(consumer, open_ipc_event, put_event_handle(consumer, &handle));
    MUST(producer, cuEventRecord, event, 0);
    MUST(producer, cuEventSynchronize, event);
    facts_kill(producer);
    uint64_t stream = GET(consumer, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    MUST(consumer, cuEventQuery, opened);
    MUST(consumer, cuStreamWaitEvent, stream, opened, 0);
    MUST(consumer, cuStreamSynchronize, stream);
}

/* Why caid's own fences are not made of events: nothing ends this wait. */
FACT(facts_ipc, a_waiter_hangs_when_the_producer_is_killed_with_work_unfinished)
{
    struct facts_process producer = facts_start_context();
    _cleanup_process_killed_ struct facts_process consumer = facts_start_context();
    _cleanup_page_ struct facts_page page = facts_page_new();
    struct hand_off it = hand_off(&producer, &consumer, &page);
    facts_kill(&producer);
    page.words[0] = 1;
    facts_pause_ms(1000);
    EXPECT(&consumer, CUDA_ERROR_NOT_READY, cuStreamQuery, it.copied_stream);
}
