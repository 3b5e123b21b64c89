/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA's virtual memory management does, as far as caid relies on it: lifetime, permission,
 * sizes. Each body runs unchanged on real hardware (CAID_CUDA_DRIVER=cuda) and on the software
 * driver, which is how the second is kept from drifting away from the first.
 */
#include <fcntl.h>
#include <time.h>

#include "caid_test.h"
#include "cuda_abi.h"
#include "facts.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define WORD      UINT64_C(0xca1dca1d)
#define READ      CU_MEM_ACCESS_FLAGS_PROT_READ
#define READWRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* For comparing figures of the whole device, on which others come and go a little. */
#define LARGE (256 * MIB)
#define SLACK (64 * MIB)

/* An allocation of size, full of WORD, in process; returns its fd. */
static int
export_filled(struct facts_process *process, uint64_t size)
{
    facts_create(process, size);
    int fd = facts_export(process);
    facts_map(process, size, READWRITE);
    facts_get(process, FACTS_FILL, WORD);
    return fd;
}

static void
assert_imports_intact(struct facts_process *importer, int fd, uint64_t size)
{
    cr_assert_eq(facts_import(importer, fd, size), CUDA_SUCCESS);
    facts_map(importer, size, READ);
    cr_assert_eq(facts_get(importer, FACTS_COUNT, WORD), size / 4);
}

/* Gives a driver that returns memory behind the scenes ten seconds to do so. */
static void
assert_free_returns_to(struct facts_process *observer, uint64_t before)
{
    uint64_t now = 0;
    for (int i = 0; i < 200; i++) {
        now = facts_get(observer, FACTS_FREE_BYTES, 0);
        if (now + SLACK > before)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    cr_assert_fail("%llu bytes free, %llu before", (unsigned long long)now,
                   (unsigned long long)before);
}

static void
assert_in_use(struct facts_process *observer, uint64_t before)
{
    uint64_t now = facts_get(observer, FACTS_FREE_BYTES, 0);
    cr_assert_leq(now, before - LARGE + SLACK, "%llu bytes free, %llu before",
                  (unsigned long long)now, (unsigned long long)before);
}

/* No context. */

CAID_TEST(facts_vmm, create_export_import_and_map_need_no_context)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    facts_create(&exporter, 2 * MIB);
    _cleanup_fd_ int fd = facts_export(&exporter);
    cr_assert_eq(facts_import(&importer, fd, 2 * MIB), CUDA_SUCCESS);
    facts_reserve(&importer, 2 * MIB, 0);
    cr_assert_eq(facts_do(&importer, FACTS_MAP, 2 * MIB), CUDA_SUCCESS);
    cr_assert_eq(facts_do(&importer, FACTS_ACCESS, READWRITE), CUDA_SUCCESS);
    cr_assert_eq(facts_do(&importer, FACTS_UNMAP, 0), CUDA_SUCCESS);
    cr_assert_eq(facts_do(&importer, FACTS_RELEASE, 0), CUDA_SUCCESS);
    cr_assert_eq(facts_get(&importer, FACTS_HAS_CONTEXT, 0), 0);
    cr_assert_eq(facts_get(&exporter, FACTS_HAS_CONTEXT, 0), 0);
}

CAID_TEST(facts_vmm, memory_figures_need_no_context)
{
    _cleanup_process_ struct facts_process process = facts_start();
    uint64_t total = facts_get(&process, FACTS_TOTAL_BYTES, 0);
    uint64_t free_bytes = facts_get(&process, FACTS_FREE_BYTES, 0);
    cr_assert_geq(total, 2 * MIB);
    cr_assert_leq(free_bytes, total);
    cr_assert_eq(facts_get(&process, FACTS_HAS_CONTEXT, 0), 0);
}

/* Lifetime. */

CAID_TEST(facts_vmm, memory_outlives_its_killed_exporter)
{
    struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_fd_ int fd = export_filled(&exporter, 4 * MIB);
    facts_kill(&exporter);
    assert_imports_intact(&importer, fd, 4 * MIB);
}

CAID_TEST(facts_vmm, an_fd_keeps_memory_while_no_process_uses_cuda)
{
    struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process keeper = facts_start_bare();
    int fd = export_filled(&exporter, 4 * MIB);
    facts_keep(&keeper, fd);
    fd_close(fd);
    facts_kill(&exporter);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);

    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_fd_ int kept = facts_give(&keeper);
    assert_imports_intact(&importer, kept, 4 * MIB);
}

CAID_TEST(facts_vmm, a_mapping_outlives_handle_and_fd)
{
    _cleanup_process_ struct facts_process process = facts_start();
    int fd = export_filled(&process, 2 * MIB);
    cr_assert_eq(facts_do(&process, FACTS_RELEASE, 0), CUDA_SUCCESS);
    fd_close(fd);
    cr_assert_eq(facts_get(&process, FACTS_COUNT, WORD), 2 * MIB / 4);
}

CAID_TEST(facts_vmm, memory_returns_with_the_last_reference)
{
    _cleanup_process_ struct facts_process owner = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_process_ struct facts_process observer = facts_start();
    uint64_t before = facts_get(&observer, FACTS_FREE_BYTES, 0);
    facts_create(&owner, LARGE);
    int fd = facts_export(&owner);
    facts_get(&owner, FACTS_RELEASE, 0);
    assert_in_use(&observer, before); /* the fd holds it */
    cr_assert_eq(facts_import(&importer, fd, LARGE), CUDA_SUCCESS);
    fd_close(fd);
    assert_in_use(&observer, before); /* the import holds it */
    facts_get(&importer, FACTS_RELEASE, 0);
    assert_free_returns_to(&observer, before);
}

CAID_TEST(facts_vmm, memory_returns_when_its_holders_are_killed)
{
    struct facts_process owner = facts_start();
    struct facts_process importer = facts_start();
    _cleanup_process_ struct facts_process observer = facts_start();
    uint64_t before = facts_get(&observer, FACTS_FREE_BYTES, 0);
    facts_create(&owner, LARGE);
    int fd = facts_export(&owner);
    cr_assert_eq(facts_import(&importer, fd, LARGE), CUDA_SUCCESS);
    facts_reserve(&importer, LARGE, 0);
    facts_get(&importer, FACTS_MAP, LARGE);
    facts_get(&importer, FACTS_ACCESS, READWRITE);
    fd_close(fd);
    facts_kill(&owner);
    assert_in_use(&observer, before); /* the mapping holds it */
    facts_kill(&importer);
    assert_free_returns_to(&observer, before);
}

CAID_TEST(facts_vmm, many_exports_live_at_once)
{
    _cleanup_process_ struct facts_process process = facts_start();
    cr_assert_eq(facts_get(&process, FACTS_EXPORT_MANY, 200), 200);
}

/* Permission. */

CAID_TEST(facts_vmm, a_read_only_mapping_refuses_a_memset)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_fd_ int fd = export_filled(&exporter, 2 * MIB);
    assert_imports_intact(&importer, fd, 2 * MIB);
    cr_assert_eq(facts_do(&importer, FACTS_FILL, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(facts_get(&importer, FACTS_COUNT, WORD), 2 * MIB / 4);
    cr_assert_eq(facts_get(&exporter, FACTS_COUNT, WORD), 2 * MIB / 4);
}

/* Read-only guards against mistakes, not against malice: that is why pools are the boundary. */
CAID_TEST(facts_vmm, a_read_only_mapping_can_be_widened_by_its_holder)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    _cleanup_fd_ int fd = export_filled(&exporter, 2 * MIB);
    assert_imports_intact(&importer, fd, 2 * MIB);
    cr_assert_eq(facts_do(&importer, FACTS_ACCESS, READWRITE), CUDA_SUCCESS);
    cr_assert_eq(facts_do(&importer, FACTS_FILL, 5), CUDA_SUCCESS);
    cr_assert_eq(facts_get(&exporter, FACTS_COUNT, 5), 2 * MIB / 4);
}

CAID_TEST(facts_vmm, another_uid_may_import)
{
    if (geteuid() != 0)
        cr_skip_test("only root can become another user");
    if (!facts_others_reach())
        cr_skip_test("the build lies in a folder that others may not enter");
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start_bare();
    _cleanup_fd_ int fd = export_filled(&exporter, 2 * MIB);
    cr_assert_eq(facts_do(&importer, FACTS_SET_UID, 65534), 0);
    facts_get(&importer, FACTS_OPEN, 0);
    assert_imports_intact(&importer, fd, 2 * MIB);
}

/* Handles and addresses. */

CAID_TEST(facts_vmm, an_imported_handle_cannot_be_exported)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    facts_create(&exporter, 2 * MIB);
    _cleanup_fd_ int fd = facts_export(&exporter);
    cr_assert_eq(facts_import(&importer, fd, 2 * MIB), CUDA_SUCCESS);
    cr_assert_eq(facts_do(&importer, FACTS_EXPORT, 0), CUDA_ERROR_INVALID_VALUE);
}

CAID_TEST(facts_vmm, an_exported_fd_closes_on_exec)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    facts_create(&exporter, 2 * MIB);
    cr_assert_eq(facts_get(&exporter, FACTS_EXPORT, 0), FD_CLOEXEC);
}

/* The range ends well below 0x7f0000000000: above that the kernel may have put a library. */
CAID_TEST(facts_vmm, two_processes_may_have_the_same_address)
{
    const uint64_t hint = UINT64_C(0x7e0000000000);
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    facts_create(&exporter, 2 * MIB);
    _cleanup_fd_ int fd = facts_export(&exporter);
    cr_assert_eq(facts_import(&importer, fd, 2 * MIB), CUDA_SUCCESS);
    struct facts_process *both[] = {&exporter, &importer};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(facts_reserve(both[i], 512 * GIB, hint), hint);
        facts_get(both[i], FACTS_MAP, 2 * MIB);
        facts_get(both[i], FACTS_ACCESS, READWRITE);
        facts_get(both[i], FACTS_CONTEXT, 0);
    }
    facts_get(&exporter, FACTS_FILL, WORD);
    cr_assert_eq(facts_get(&importer, FACTS_COUNT, WORD), 2 * MIB / 4);
}

/* Sizes. */

static void
assert_maps_whole(struct facts_process *process, uint64_t size)
{
    facts_reserve(process, 2 * size, 0);
    cr_assert_eq(facts_do(process, FACTS_MAP, size - 2 * MIB), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(facts_do(process, FACTS_MAP, size + 2 * MIB), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(facts_do(process, FACTS_MAP, size), CUDA_SUCCESS);
}

CAID_TEST(facts_vmm, a_mapping_has_the_size_of_its_allocation)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    facts_create(&exporter, 4 * MIB);
    assert_maps_whole(&exporter, 4 * MIB);
}

CAID_TEST(facts_vmm, an_imported_mapping_has_the_size_of_its_allocation)
{
    _cleanup_process_ struct facts_process exporter = facts_start();
    _cleanup_process_ struct facts_process importer = facts_start();
    facts_create(&exporter, 4 * MIB);
    _cleanup_fd_ int fd = facts_export(&exporter);
    cr_assert_eq(facts_import(&importer, fd, 4 * MIB), CUDA_SUCCESS);
    assert_maps_whole(&importer, 4 * MIB);
}

CAID_TEST(facts_vmm, an_allocation_is_a_multiple_of_the_granularity)
{
    _cleanup_process_ struct facts_process process = facts_start();
    uint64_t granularity = facts_get(&process, FACTS_GRANULARITY, 0);
    cr_assert_eq(granularity, 2 * MIB);
    cr_assert_eq(facts_do(&process, FACTS_CREATE, granularity / 2), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(facts_do(&process, FACTS_CREATE, granularity + 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(facts_do(&process, FACTS_CREATE, 3 * granularity), CUDA_SUCCESS);
}

/* Contents. */

CAID_TEST(facts_vmm, fresh_memory_carries_nothing_within_a_process)
{
    _cleanup_process_ struct facts_process process = facts_start();
    fd_close(export_filled(&process, 64 * MIB));
    facts_get(&process, FACTS_UNMAP, 0);
    facts_get(&process, FACTS_RELEASE, 0);
    facts_create(&process, 64 * MIB);
    facts_map(&process, 64 * MIB, READWRITE);
    cr_assert_eq(facts_get(&process, FACTS_COUNT, WORD), 0);
}

CAID_TEST(facts_vmm, fresh_memory_carries_nothing_from_another_process)
{
    struct facts_process owner = facts_start();
    _cleanup_process_ struct facts_process heir = facts_start();
    fd_close(export_filled(&owner, 64 * MIB));
    facts_kill(&owner);
    facts_create(&heir, 64 * MIB);
    facts_map(&heir, 64 * MIB, READWRITE);
    cr_assert_eq(facts_get(&heir, FACTS_COUNT, WORD), 0);
}
