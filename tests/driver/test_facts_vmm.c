/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA's virtual memory management does, as far as caid relies on it: lifetime, permission,
 * sizes. Each body runs unchanged on real hardware (CAID_CUDA_DRIVER=cuda) and on the software
 * driver, which is how the second is kept from drifting away from the first.
 */
#include <fcntl.h>

#include "facts.h"

#define SUITE facts_vmm
#define START facts_start

#define WORD 0xca1dca1d

/* For comparing figures of the whole device, on which others come and go a little. */
#define LARGE (256 * MIB)
#define SLACK (64 * MIB)

/* An allocation of size, full of WORD, in process; returns its fd. */
static int
export_filled(struct facts_process *process, uint64_t size, struct facts_memory *ret_memory)
{
    *ret_memory = facts_create(process, size);
    int fd = facts_export(process, ret_memory->handle);
    facts_context(process, 0);
    facts_fill(process, ret_memory->at, size, WORD);
    return fd;
}

static struct facts_memory
assert_imports_intact(struct facts_process *importer, int fd, uint64_t size)
{
    struct facts_memory memory = facts_import(importer, fd, size, READ);
    facts_context(importer, 0);
    facts_assert_filled(importer, memory.at, size, WORD);
    return memory;
}

/* Gives a driver that returns memory behind the scenes ten seconds to do so. */
static void
assert_free_returns_to(struct facts_process *observer, uint64_t before)
{
    uint64_t now = 0;
    for (int i = 0; i < 200; i++) {
        now = GET(observer, free_bytes);
        if (now + SLACK > before)
            return;
        facts_pause_ms(50);
    }
    cr_assert_fail("%llu bytes free, %llu before", (unsigned long long)now,
                   (unsigned long long)before);
}

static void
assert_in_use(struct facts_process *observer, uint64_t before)
{
    uint64_t now = GET(observer, free_bytes);
    cr_assert_leq(now, before - LARGE + SLACK, "%llu bytes free, %llu before",
                  (unsigned long long)now, (unsigned long long)before);
}

/* No context. */

FACT_OF_TWO(create_export_import_and_map_need_no_context, exporter, importer)
{
    struct facts_memory memory = facts_create(exporter, 2 * MIB);
    _cleanup_fd_ int fd = facts_export(exporter, memory.handle);
    memory = facts_import(importer, fd, 2 * MIB, READWRITE);
    MUST(importer, cuMemUnmap, memory.at, memory.size);
    MUST(importer, cuMemAddressFree, memory.at, memory.size);
    MUST(importer, cuMemRelease, memory.handle);
    cr_assert_eq(GET(importer, has_context), 0);
    cr_assert_eq(GET(exporter, has_context), 0);
}

FACT_OF_ONE(memory_figures_need_no_context, process)
{
    uint64_t total = GET(process, total_bytes);
    uint64_t free_bytes = GET(process, free_bytes);
    cr_assert_geq(total, 2 * MIB);
    cr_assert_leq(free_bytes, total);
    uint64_t at = GET(process, allocate_host, 2 * sizeof(size_t));
    EXPECT(process, CUDA_ERROR_INVALID_CONTEXT, cuMemGetInfo, at, at + sizeof(size_t));
    cr_assert_eq(GET(process, has_context), 0);
}

/* A context costs half a gigabyte, which is why the daemon has none. */
FACT_OF_ONE(a_process_without_a_context_costs_little, observer)
{
    uint64_t before = GET(observer, free_bytes);
    _cleanup_process_ struct facts_process first = facts_start();
    _cleanup_process_ struct facts_process second = facts_start();
    cr_assert_eq(GET(&first, has_context) + GET(&second, has_context), 0);
    uint64_t now = GET(observer, free_bytes);
    cr_assert_leq(before, now + SLACK, "%llu bytes free, %llu before", (unsigned long long)now,
                  (unsigned long long)before);
}

/* As systemd's NoNewPrivileges=, MemoryDenyWriteExecute= and PrivateNetwork= have it. */
FACT(facts_vmm, a_hardened_process_shares_memory)
{
    _cleanup_process_ struct facts_process exporter = facts_start_bare();
    _cleanup_process_ struct facts_process importer = facts_start_bare();
    MUST(&exporter, confine);
    MUST(&exporter, open, 0);
    MUST(&importer, confine);
    MUST(&importer, open, 0);
    struct facts_memory memory = facts_create(&exporter, 2 * MIB);
    _cleanup_fd_ int fd = facts_export(&exporter, memory.handle);
    facts_import(&importer, fd, 2 * MIB, READWRITE);
}

/* Lifetime. */

FACT_OF_TWO(memory_outlives_its_killed_exporter, exporter, importer)
{
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(exporter, 4 * MIB, &memory);
    facts_kill(exporter);
    assert_imports_intact(importer, fd, 4 * MIB);
}

FACT_OF_ONE(an_fd_keeps_memory_while_no_process_uses_cuda, exporter)
{
    _cleanup_process_ struct facts_process keeper = facts_start_bare();
    struct facts_memory memory;
    int fd = export_filled(exporter, 4 * MIB, &memory);
    uint64_t number = facts_give_fd(&keeper, fd);
    fd_close(fd);
    facts_kill(exporter);
    facts_pause_ms(500);

    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_fd_ int kept = facts_take_fd(&keeper, number);
    assert_imports_intact(&importer, kept, 4 * MIB);
}

FACT_OF_ONE(a_mapping_outlives_handle_and_fd, process)
{
    struct facts_memory memory;
    fd_close(export_filled(process, 2 * MIB, &memory));
    MUST(process, cuMemRelease, memory.handle);
    facts_assert_filled(process, memory.at, 2 * MIB, WORD);
}

FACT(facts_vmm, memory_returns_with_the_last_reference)
{
    _cleanup_process_ struct facts_process owner = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_process_ struct facts_process observer = facts_start();
    uint64_t before = GET(&observer, free_bytes);
    uint64_t handle = GET(&owner, create, LARGE, 0);
    int fd = facts_export(&owner, handle);
    MUST(&owner, cuMemRelease, handle);
    assert_in_use(&observer, before); /* the fd holds it */
    cr_assert_eq(facts_import_fd(&importer, fd, LARGE, &handle), CUDA_SUCCESS);
    fd_close(fd);
    assert_in_use(&observer, before); /* the import holds it */
    MUST(&importer, cuMemRelease, handle);
    assert_free_returns_to(&observer, before);
}

FACT(facts_vmm, memory_returns_when_its_holders_are_killed)
{
    struct facts_process owner = facts_start();
    struct facts_process importer = facts_start();
    _cleanup_process_ struct facts_process observer = facts_start();
    uint64_t before = GET(&observer, free_bytes);
    int fd = facts_export(&owner, GET(&owner, create, LARGE, 0));
    facts_import(&importer, fd, LARGE, READWRITE);
    fd_close(fd);
    facts_kill(&owner);
    assert_in_use(&observer, before); /* the mapping holds it */
    facts_kill(&importer);
    assert_free_returns_to(&observer, before);
}

/* Most of the device: it only fits again when the first owner's memory is back. */
FACT_OF_TWO(memory_of_a_killed_owner_can_be_had_again_at_once, owner, heir)
{
    uint64_t n = GET(heir, free_bytes) / 4 * 3 / LARGE;
    cr_assert_eq(GET(owner, create_many, LARGE, n), n);
    facts_kill(owner);
    cr_assert_eq(GET(heir, create_many, LARGE, n), n);
}

FACT(facts_vmm, thousands_of_exports_live_at_once)
{
    setenv("CAID_SOFTCUDA_MEMORY", "32G", 1);
    _cleanup_process_ struct facts_process process = facts_start();
    uint64_t n = GET(&process, raise_fd_limit) - 200;
    if (n > 2000)
        n = 2000;
    cr_assert_eq(GET(&process, export_many, n), n);
}

/* Permission. */

FACT_OF_TWO(a_read_only_mapping_refuses_a_memset, exporter, importer)
{
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(exporter, 2 * MIB, &memory);
    struct facts_memory seen = assert_imports_intact(importer, fd, 2 * MIB);
    EXPECT(importer, CUDA_ERROR_INVALID_VALUE, cuMemsetD32, seen.at, 0, 1);
    facts_assert_filled(importer, seen.at, 2 * MIB, WORD);
    facts_assert_filled(exporter, memory.at, 2 * MIB, WORD);
}

/* A copy or fill is checked before it is enqueued; a stream's write is not. */
FACT(facts_vmm, a_write_through_a_read_only_mapping_faults_the_offender_alone)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_killed_ struct facts_process offender = facts_start();
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(&exporter, 2 * MIB, &memory);
    struct facts_memory seen = assert_imports_intact(&offender, fd, 2 * MIB);
    MUST(&offender, cuStreamWriteValue64, 0, seen.at, 0, 0);
    EXPECT(&offender, CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize);
    EXPECT(&offender, CUDA_ERROR_LAUNCH_FAILED, cuMemAlloc, MIB);
    facts_assert_filled(&exporter, memory.at, 2 * MIB, WORD);
    facts_fill(&exporter, memory.at, 2 * MIB, 5);
}

/* Read-only guards against mistakes, not against malice: that is why pools are the boundary. */
FACT_OF_TWO(a_read_only_mapping_can_be_widened_by_its_holder, exporter, importer)
{
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(exporter, 2 * MIB, &memory);
    struct facts_memory seen = assert_imports_intact(importer, fd, 2 * MIB);
    MUST(importer, set_access, seen.at, seen.size, READWRITE, 0);
    facts_fill(importer, seen.at, seen.size, 5);
    facts_assert_filled(exporter, memory.at, 2 * MIB, 5);
}

FACT(facts_vmm, another_uid_may_import)
{
    facts_need_other_users();
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start_bare();
    struct facts_memory memory;
    _cleanup_fd_ int fd = export_filled(&exporter, 2 * MIB, &memory);
    MUST(&importer, set_uid, 65534);
    MUST(&importer, open, 0);
    assert_imports_intact(&importer, fd, 2 * MIB);
}

/* Handles and addresses. */

FACT_OF_TWO(an_imported_handle_cannot_be_exported, exporter, importer)
{
    _cleanup_fd_ int fd = facts_export(exporter, GET(exporter, create, 2 * MIB, 0));
    uint64_t handle;
    cr_assert_eq(facts_import_fd(importer, fd, 2 * MIB, &handle), CUDA_SUCCESS);
    EXPECT(importer, CUDA_ERROR_INVALID_VALUE, export_fd, handle);
}

FACT_OF_ONE(an_exported_fd_closes_on_exec, exporter)
{
    uint64_t handle = GET(exporter, create, 2 * MIB, 0);
    cr_assert_eq(GET(exporter, export_fd, handle), FD_CLOEXEC);
}

/* The range ends well below 0x7f0000000000: above that the kernel may have put a library. */
FACT(facts_vmm, two_processes_may_have_the_same_address)
{
    const uint64_t hint = UINT64_C(0x7e0000000000);
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    uint64_t handles[] = {GET(&exporter, create, 2 * MIB, 0), 0};
    _cleanup_fd_ int fd = facts_export(&exporter, handles[0]);
    cr_assert_eq(facts_import_fd(&importer, fd, 2 * MIB, &handles[1]), CUDA_SUCCESS);
    struct facts_process *both[] = {&exporter, &importer};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(GET(both[i], cuMemAddressReserve, 512 * GIB, 0, hint, 0), hint);
        MUST(both[i], cuMemMap, hint, 2 * MIB, 0, handles[i], 0);
        MUST(both[i], set_access, hint, 2 * MIB, READWRITE, 0);
        facts_context(both[i], 0);
    }
    facts_fill(&exporter, hint, 2 * MIB, WORD);
    facts_assert_filled(&importer, hint, 2 * MIB, WORD);
}

/* Sizes. */

static void
assert_maps_whole(struct facts_process *process, uint64_t handle, uint64_t size)
{
    uint64_t at = GET(process, cuMemAddressReserve, 2 * size, 0, 0, 0);
    EXPECT(process, CUDA_ERROR_NOT_SUPPORTED, cuMemMap, at, size - 2 * MIB, 0, handle, 0);
    EXPECT(process, CUDA_ERROR_NOT_SUPPORTED, cuMemMap, at, size + 2 * MIB, 0, handle, 0);
    MUST(process, cuMemMap, at, size, 0, handle, 0);
}

FACT_OF_ONE(a_mapping_has_the_size_of_its_allocation, exporter)
{
    assert_maps_whole(exporter, GET(exporter, create, 4 * MIB, 0), 4 * MIB);
}

FACT_OF_TWO(an_imported_mapping_has_the_size_of_its_allocation, exporter, importer)
{
    _cleanup_fd_ int fd = facts_export(exporter, GET(exporter, create, 4 * MIB, 0));
    uint64_t handle;
    cr_assert_eq(facts_import_fd(importer, fd, 4 * MIB, &handle), CUDA_SUCCESS);
    assert_maps_whole(importer, handle, 4 * MIB);
}

FACT_OF_ONE(an_allocation_is_a_multiple_of_the_granularity, process)
{
    uint64_t granularity = GET(process, granularity);
    cr_assert_eq(granularity, 2 * MIB);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, create, granularity / 2, 0);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, create, granularity + 1, 0);
    MUST(process, create, 3 * granularity, 0);
}

/* Contents. */

static void
assert_has_none(struct facts_process *process, uint64_t size, uint32_t word)
{
    struct facts_memory memory = facts_create(process, size);
    facts_context(process, 0);
    cr_assert_eq(GET(process, count_words, memory.at, size, word), 0);
}

FACT_OF_ONE(fresh_memory_carries_nothing_within_a_process, process)
{
    struct facts_memory memory;
    fd_close(export_filled(process, 64 * MIB, &memory));
    MUST(process, cuMemUnmap, memory.at, memory.size);
    MUST(process, cuMemAddressFree, memory.at, memory.size);
    MUST(process, cuMemRelease, memory.handle);
    assert_has_none(process, 64 * MIB, WORD);
}

FACT_OF_TWO(fresh_memory_carries_nothing_from_another_process, owner, heir)
{
    struct facts_memory memory;
    fd_close(export_filled(owner, 64 * MIB, &memory));
    facts_kill(owner);
    assert_has_none(heir, 64 * MIB, WORD);
}

FACT(facts_vmm, fresh_legacy_memory_carries_nothing)
{
    _cleanup_process_ struct facts_process process = facts_start_context();
    _cleanup_process_ struct facts_process heir = facts_start_context();
    uint64_t at = GET(&process, cuMemAlloc, 64 * MIB);
    facts_fill(&process, at, 64 * MIB, WORD);
    MUST(&process, cuMemFree, at);
    at = GET(&process, cuMemAlloc, 64 * MIB);
    cr_assert_eq(GET(&process, count_words, at, 64 * MIB, WORD), 0);
    facts_fill(&process, at, 64 * MIB, WORD);
    MUST(&process, cuMemFree, at);
    at = GET(&heir, cuMemAlloc, 64 * MIB);
    cr_assert_eq(GET(&heir, count_words, at, 64 * MIB, WORD), 0);
}
