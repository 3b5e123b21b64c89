/* SPDX-License-Identifier: Apache-2.0 */
/* What two devices do with each other's memory, and with what a process is not shown. */
#include <stdlib.h>

#include "facts.h"

#define SIZE (4 * MIB)
#define WORD 0xca1dca1d

#define GEQ CU_STREAM_WAIT_VALUE_GEQ

/* A process on device 0 of two. */
static struct facts_process
start_of_two(void)
{
    setenv("CAID_SOFTCUDA_DEVICES", "2", 0);
    struct facts_process process = facts_start();
    if (GET(&process, cuDeviceGetCount) < 2) {
        facts_stop(&process);
        cr_skip_test("there is one device");
    }
    return process;
}

/* Memory of device 0, full of WORD; its fd. */
static int
export_filled(struct facts_process *process, struct facts_memory *ret_memory)
{
    *ret_memory = facts_create(process, SIZE);
    facts_context(process, 0);
    facts_fill(process, ret_memory->at, SIZE, WORD);
    return facts_export(process, ret_memory->handle);
}

/* Mapped for the importer's device with this ordinal, whose context is current from now on. */
static struct facts_memory
import_for(struct facts_process *process, int fd, int device)
{
    struct facts_memory memory = {.size = SIZE};
    cr_assert_eq(facts_import_fd(process, fd, SIZE, &memory.handle), CUDA_SUCCESS);
    facts_map(process, &memory, READWRITE, device);
    facts_context(process, device);
    return memory;
}

/* The importer's device copies from it and writes to it. */
static void
assert_shared(struct facts_process *importer, const struct facts_memory *seen,
              struct facts_process *exporter, const struct facts_memory *memory)
{
    uint64_t copy = GET(importer, cuMemAlloc, SIZE);
    MUST(importer, cuMemcpyDtoD, copy, seen->at, SIZE);
    facts_assert_filled(importer, copy, SIZE, WORD);
    facts_fill(importer, seen->at, SIZE, 7);
    facts_assert_filled(exporter, memory->at, SIZE, 7);
}

FACT(facts_peers, memory_of_one_device_is_mapped_by_a_process_on_the_other)
{
    _cleanup_process_ struct facts_process exporter = start_of_two();
    _cleanup_process_ struct facts_process importer = facts_start();
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(&exporter, &memory);
    struct facts_memory seen = import_for(&importer, fd, 1);
    assert_shared(&importer, &seen, &exporter, &memory);
}

/* The hidden device is that of the memory; its ordinal reads as CU_DEVICE_INVALID. */
FACT(facts_peers, memory_of_a_hidden_device_is_mapped)
{
    _cleanup_process_ struct facts_process exporter = start_of_two();
    _cleanup_process_ struct facts_process importer = facts_start_bare();
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(&exporter, &memory);
    facts_set_variable(&importer, "CUDA_VISIBLE_DEVICES=1");
    MUST(&importer, open, 0);
    cr_assert_eq(GET(&importer, cuDeviceGetCount), 1);
    struct facts_memory seen = import_for(&importer, fd, 0);

    CUmemAllocationProp prop;
    uint64_t at = GET(&importer, allocate_host, sizeof(prop));
    MUST(&importer, cuMemGetAllocationPropertiesFromHandle, at, seen.handle);
    facts_read(&importer, at, &prop, sizeof(prop));
    cr_assert_eq(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    cr_assert_eq(prop.location.id, CU_DEVICE_INVALID);
    assert_shared(&importer, &seen, &exporter, &memory);
}

/* One process with both devices, and a stream of each. */
struct pair {
    struct facts_process process;
    uint64_t contexts[2], streams[2], memory[2];
};

static struct pair
pair_start(void)
{
    struct pair pair = {.process = start_of_two()};
    for (int i = 0; i < 2; i++) {
        pair.contexts[i] = facts_context(&pair.process, i);
        pair.streams[i] = GET(&pair.process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
        pair.memory[i] = GET(&pair.process, cuMemAlloc, SIZE);
        facts_fill(&pair.process, pair.memory[i], SIZE, 0);
    }
    return pair;
}

static void
use_device(struct pair *pair, int i)
{
    MUST(&pair->process, cuCtxSetCurrent, pair->contexts[i]);
}

FACT(facts_peers, copies_between_devices)
{
    struct pair pair = pair_start();
    struct facts_process *process = &pair.process;
    use_device(&pair, 0);
    facts_fill(process, pair.memory[0], SIZE, WORD);
    use_device(&pair, 1);
    MUST(process, cuMemcpyDtoDAsync, pair.memory[1], pair.memory[0], SIZE, pair.streams[1]);
    MUST(process, cuStreamSynchronize, pair.streams[1]);
    facts_assert_filled(process, pair.memory[1], SIZE, WORD);
    facts_stop(process);
}

FACT(facts_peers, a_device_reaches_what_it_was_given_access_to)
{
    struct pair pair = pair_start();
    use_device(&pair, 1);
    cr_assert_eq(GET(&pair.process, cuDeviceCanAccessPeer, 1, 0), 1);
    cr_assert_eq(GET(&pair.process, cuDeviceCanAccessPeer, 0, 0), 0);
    EXPECT(&pair.process, CUDA_ERROR_INVALID_VALUE, cuMemsetD32, pair.memory[0], 5, SIZE / 4);
    MUST(&pair.process, cuCtxEnablePeerAccess, pair.contexts[0], 0);
    EXPECT(&pair.process, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess,
           pair.contexts[0], 0);
    MUST(&pair.process, cuMemsetD32, pair.memory[0], 5, SIZE / 4);
    MUST(&pair.process, cuCtxSynchronize);
    use_device(&pair, 0);
    facts_assert_filled(&pair.process, pair.memory[0], SIZE, 5);
    facts_stop(&pair.process);
}

/* Both streams are given all rounds at once; the word is the only thing between them. */
FACT(facts_peers, streams_of_two_devices_meet_on_a_host_page)
{
    enum {
        N_ROUNDS = 20
    };
    _cleanup_page_ struct facts_page page = facts_page_new();
    struct pair pair = pair_start();
    struct facts_process *process = &pair.process;
    uint64_t at = facts_page_map(process, &page, PROT_READ | PROT_WRITE);
    MUST(process, cuMemHostRegister, at, FACTS_PAGE_SIZE,
         CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    for (int i = 0; i < 2; i++) {
        use_device(&pair, i);
        uint64_t word = GET(process, cuMemHostGetDevicePointer, at, 0);
        for (uint64_t r = 0; r < N_ROUNDS; r++) {
            uint64_t turn = 2 * r + (uint64_t)i;
            MUST(process, cuStreamWaitValue64, pair.streams[i], word, turn, GEQ);
            MUST(process, cuStreamWriteValue64, pair.streams[i], word, turn + 1, 0);
        }
    }
    for (int i = 0; i < 2; i++) {
        use_device(&pair, i);
        MUST(process, cuStreamSynchronize, pair.streams[i]);
    }
    cr_assert_eq(page.words[0], 2 * N_ROUNDS);
    facts_stop(process);
}
