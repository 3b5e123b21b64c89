/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a page of host memory that processes share can do: registered with CUDA in each of them,
 * read-only where it is mapped so, and sealed. caid's timelines are made of such pages.
 */
#include <fcntl.h>

#include "facts.h"

#define SUITE facts_host
#define START facts_start_context

#define RW (PROT_READ | PROT_WRITE)
#define RO PROT_READ

#define GEQ CU_STREAM_WAIT_VALUE_GEQ

static uint64_t
new_stream(struct facts_process *process)
{
    return GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
}

/* Registration. */

FACT_OF_TWO(streams_of_two_processes_meet_on_a_shared_page, writer, waiter)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t written = facts_page_register(writer, &page, RW);
    uint64_t seen = facts_page_register(waiter, &page, RO);
    uint64_t stream = new_stream(waiter);
    MUST(waiter, cuStreamWaitValue64, stream, seen, 7, GEQ);
    EXPECT(waiter, CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    MUST(writer, cuStreamWriteValue64, new_stream(writer), written, 7, 0);
    MUST(waiter, cuStreamSynchronize, stream);
    MUST(writer, cuCtxSynchronize);
    cr_assert_eq(page.words[0], 7);
}

FACT(facts_host, a_store_by_a_process_without_cuda_releases_a_stream)
{
    _cleanup_process_ struct facts_process other = facts_start_bare();
    _cleanup_process_ struct facts_process waiter = facts_start_context();
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t stored = facts_page_map(&other, &page, RW);
    uint64_t seen = facts_page_register(&waiter, &page, RO);
    uint64_t stream = new_stream(&waiter);
    MUST(&waiter, cuStreamWaitValue64, stream, seen, 7, GEQ);
    MUST(&waiter, cuStreamWaitValue32, stream, seen + 8, 9, CU_STREAM_WAIT_VALUE_EQ);
    EXPECT(&waiter, CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    MUST(&other, store, stored, 7);
    MUST(&other, store, stored + 8, 9);
    MUST(&waiter, cuStreamSynchronize, stream);
}

FACT_OF_ONE(a_read_only_mapping_is_registered_as_read_only, process)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t at = facts_page_map(process, &page, RO);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemHostRegister, at, FACTS_PAGE_SIZE,
           CU_MEMHOSTREGISTER_DEVICEMAP);
    MUST(process, cuMemHostRegister, at, FACTS_PAGE_SIZE,
         CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY);
    uint64_t device = GET(process, cuMemHostGetDevicePointer, at, 0);
    facts_assert_filled(process, device, FACTS_PAGE_SIZE, 0);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemsetD32, device, 1, 1);
    MUST(process, cuMemHostUnregister, at);
}

/* The offender has lost its context, and keeps it lost; nobody else notices. */
FACT(facts_host, a_write_to_a_read_only_page_faults_the_offender_alone)
{
    _cleanup_process_killed_ struct facts_process offender = facts_start_context();
    _cleanup_process_ struct facts_process bystander = facts_start_context();
    _cleanup_page_ struct facts_page page = facts_page_new();
    _cleanup_page_ struct facts_page other = facts_page_new();
    uint64_t at = facts_page_register(&offender, &page, RO);
    uint64_t seen = facts_page_register(&bystander, &page, RO);
    uint64_t unregistered = facts_page_map(&offender, &other, RW);
    uint64_t stream = new_stream(&offender);

    MUST(&offender, cuStreamWriteValue64, stream, at, 1, 0);
    EXPECT(&offender, CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize, stream);
    EXPECT(&offender, CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize);
    EXPECT(&offender, CUDA_ERROR_LAUNCH_FAILED, cuMemAlloc, MIB);
    EXPECT(&offender, CUDA_ERROR_LAUNCH_FAILED, cuMemHostRegister, unregistered,
           FACTS_PAGE_SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);
    cr_assert_eq(page.words[0], 0);

    page.words[0] = 3;
    stream = new_stream(&bystander);
    MUST(&bystander, cuStreamWaitValue64, stream, seen, 3, GEQ);
    MUST(&bystander, cuStreamSynchronize, stream);
    facts_fill(&bystander, GET(&bystander, cuMemAlloc, MIB), MIB, 5);
}

/* What a killed process's streams still write, they write before its exit can be seen. */
FACT(facts_host, a_killed_process_writes_nothing_after_its_exit)
{
    enum {
        N_WRITES = 300
    };
    struct facts_process writer = facts_start_context();
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t at = facts_page_register(&writer, &page, RW);
    uint64_t memory = GET(&writer, cuMemAlloc, 64 * MIB);
    uint64_t stream = new_stream(&writer);
    MUST(&writer, cuStreamWaitValue64, stream, at, 1, GEQ);
    for (uint64_t i = 1; i <= N_WRITES; i++) {
        MUST(&writer, cuMemsetD32Async, memory, i, 16 * MIB, stream);
        MUST(&writer, cuStreamWriteValue64, stream, at + 8, i, 0);
    }
    page.words[0] = 1;
    for (int i = 0; i < 20000 && page.words[1] < 5; i++)
        facts_pause_ms(1);
    facts_kill(&writer);
    uint64_t written = page.words[1];
    cr_assert_geq(written, 5);
    facts_pause_ms(500);
    cr_assert_eq(page.words[1], written);
}

/* Seals of a memfd. They are the kernel's; what they leave to a GPU is the fact. */

static int
punch_hole(const struct facts_page *page)
{
    return fallocate(page->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, FACTS_PAGE_SIZE);
}

FACT(facts_host, a_page_sealed_against_its_size_can_be_punched)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    page.words[0] = 7;
    cr_assert_eq(fcntl(page.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    cr_assert_eq(ftruncate(page.fd, 0), -1);
    cr_assert_eq(punch_hole(&page), 0);
    cr_assert_eq(page.words[0], 0);
}

FACT_OF_TWO(a_page_sealed_against_writing_keeps_its_earlier_writers, owner, reader)
{
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t written = facts_page_register(owner, &page, RW);
    cr_assert_eq(fcntl(page.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE),
                 0);
    cr_assert_eq(punch_hole(&page), -1);
    cr_assert_eq(mmap(NULL, FACTS_PAGE_SIZE, RW, MAP_SHARED, page.fd, 0), MAP_FAILED);

    uint64_t seen = facts_page_register(reader, &page, RO);
    uint64_t stream = new_stream(reader);
    MUST(reader, cuStreamWaitValue64, stream, seen, 7, GEQ);
    MUST(owner, cuStreamWriteValue64, new_stream(owner), written, 7, 0);
    MUST(reader, cuStreamSynchronize, stream);
    page.words[1] = 1; /* as the owner's own mapping may */
    cr_assert_eq(GET(reader, load, facts_page_map(reader, &page, RO) + 8), 1);
}
