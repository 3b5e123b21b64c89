/* SPDX-License-Identifier: Apache-2.0 */
/* What vmm.c undoes when a step fails. How real memory behaves is in test_facts_vmm.c. */
#include <errno.h>

#include "base/macros.h"
#include "caid_test.h"
#include "fake_open.h"
#include "vmm.h"

#define SIZE ((size_t)2 << 20)

DEFINE_CLEANUP(struct drv *, drv_free)

static struct drv *
open_fake(void)
{
    struct drv *drv = NULL;
    struct drv_error err = {0};
    cr_assert_eq(drv_open(&drv, fake_path("fake-cuda"), &err), 0, "%s", err.message);
    return drv;
}

static void
assert_nothing_alive(const struct fake_state *fake)
{
    cr_assert_eq(fake->n_handles, 0);
    cr_assert_eq(fake->n_ranges, 0);
    cr_assert_eq(fake->n_mappings, 0);
}

static int
use(const struct drv *drv, struct drv_error *err)
{
    struct vmm_alloc alloc;
    struct vmm_map map = {0};
    int r = vmm_alloc_create(drv, 0, SIZE, &alloc, err);
    if (r < 0)
        return r;
    r = vmm_map_new(drv, &alloc, 0, VMM_READ_WRITE, &map, err);
    vmm_map_free(drv, &map);
    vmm_alloc_release(drv, &alloc, NULL);
    return r;
}

/* The n-th driver call fails, for every n until none does. */
CAID_TEST(vmm, a_failure_at_any_step_leaves_nothing_behind)
{
    static const struct {
        int expected;
        const char *call;
    } steps[] = {
        {-ENOMEM, "cuMemCreate"},
        {-ENOMEM, "cuMemAddressReserve"},
        {-EINVAL, "cuMemMap"},
        {-ENOTSUP, "cuMemSetAccess"},
    };
    _cleanup_(drv_freep) struct drv *drv = open_fake();
    struct fake_state *fake = fake_state_of(drv);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        struct drv_error err = {0};
        fake->fail_at = (int)i;
        cr_assert_eq(use(drv, &err), steps[i].expected, "step %zu", i);
        cr_assert_str_eq(err.call, steps[i].call);
        assert_nothing_alive(fake);
    }
    fake->fail_at = -1;
    cr_assert_eq(use(drv, NULL), 0);
    assert_nothing_alive(fake);
}

CAID_TEST(vmm, a_failed_map_leaves_the_result_alone)
{
    _cleanup_(drv_freep) struct drv *drv = open_fake();
    struct vmm_alloc alloc = {.handle = 7, .size = SIZE};
    struct vmm_map map = {.ptr = 1, .size = 2, .mode = VMM_READ};
    fake_state_of(drv)->fail_at = 1;
    cr_assert_eq(vmm_map_new(drv, &alloc, 0, VMM_READ_WRITE, &map, NULL), -EINVAL);
    cr_assert_eq(map.ptr, 1);
    cr_assert_eq(map.size, 2);
    cr_assert_eq(map.mode, VMM_READ);
}

CAID_TEST(vmm, a_map_carries_the_access_it_was_made_with)
{
    _cleanup_(drv_freep) struct drv *drv = open_fake();
    struct fake_state *fake = fake_state_of(drv);
    struct vmm_alloc alloc = {.handle = 7, .size = SIZE};
    struct vmm_map map;
    cr_assert_eq(vmm_map_new(drv, &alloc, 0, VMM_READ, &map, NULL), 0);
    cr_assert_eq(fake->access, CU_MEM_ACCESS_FLAGS_PROT_READ);
    cr_assert_eq(map.size, SIZE);
    cr_assert_neq(map.ptr, 0);
    vmm_map_free(drv, &map);
    cr_assert_eq(map.ptr, 0);
    vmm_map_free(drv, &map); /* a zeroed one is no map */
    assert_nothing_alive(fake);
}

CAID_TEST(vmm, a_range_that_does_not_unmap_keeps_its_address)
{
    _cleanup_(drv_freep) struct drv *drv = open_fake();
    struct fake_state *fake = fake_state_of(drv);
    struct vmm_alloc alloc = {.handle = 7, .size = SIZE};
    struct vmm_map map;
    cr_assert_eq(vmm_map_new(drv, &alloc, 0, VMM_READ_WRITE, &map, NULL), 0);
    fake->fail_at = 0;
    vmm_map_free(drv, &map);
    cr_assert_eq(fake->n_ranges, 1);
    cr_assert_eq(map.ptr, 0);
}

CAID_TEST(vmm, a_release_reports_and_is_done)
{
    _cleanup_(drv_freep) struct drv *drv = open_fake();
    struct fake_state *fake = fake_state_of(drv);
    struct vmm_alloc alloc;
    struct drv_error err;
    cr_assert_eq(vmm_alloc_create(drv, 0, SIZE, &alloc, NULL), 0);
    fake->fail_at = 0;
    cr_assert_eq(vmm_alloc_release(drv, &alloc, &err), -EIO);
    cr_assert_eq(err.result, CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(alloc.handle, 0);
    assert_nothing_alive(fake);
}

CAID_TEST(vmm, an_old_driver_without_export_says_so)
{
    _cleanup_(drv_freep) struct drv *drv = open_fake();
    struct vmm_alloc alloc = {.handle = 7, .size = SIZE};
    int fd = -7;
    cr_assert_eq(vmm_alloc_export(drv, &alloc, &fd, NULL), -ENOSYS);
    cr_assert_eq(fd, -7);
    cr_assert_eq(vmm_alloc_import(drv, 0, SIZE, &alloc, NULL), -ENOSYS);
}
