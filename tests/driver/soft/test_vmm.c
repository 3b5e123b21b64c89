/* SPDX-License-Identifier: Apache-2.0 */
/* What vmm.c undoes when a step fails. How real memory behaves is in test_facts_vmm.c. */
#include <errno.h>
#include <string.h>

#include "caid_test.h"
#include "soft_test.h"
#include "vmm.h"

#define SIZE GRAN

DEFINE_CLEANUP(struct drv *, drv_free)

static struct drv *
open_soft(void)
{
    struct drv *drv = NULL;
    struct drv_error err = {0};
    soft_start();
    cr_assert_eq(drv_open(&drv, SOFTCUDA_PATH, &err), 0, "%s", err.message);
    return drv;
}

/* From now on; an empty rule is none. */
static void
set_rule(const char *rule)
{
    char reply[64], text[64] = "fail ";
    cr_assert_eq(cu.caid_softcuda_control("clear", reply, sizeof(reply)), 0);
    strcat(text, rule);
    if (rule[0])
        cr_assert_eq(cu.caid_softcuda_control(text, reply, sizeof(reply)), 0, "%s", reply);
}

static void
assert_alive(size_t n_handles, size_t n_ranges, size_t n_mappings)
{
    cr_assert_eq(soft_live("handles"), n_handles);
    cr_assert_eq(soft_live("reservations"), n_ranges);
    cr_assert_eq(soft_live("mappings"), n_mappings);
}

static int
use(const struct drv *drv, struct drv_error *err)
{
    struct vmm_alloc alloc;
    struct vmm_map map = {.ptr = 1, .size = 2, .mode = VMM_READ};
    int r = vmm_alloc_create(drv, 0, SIZE, false, &alloc, err);
    if (r < 0)
        return r;
    r = vmm_map_new(drv, &alloc, 0, 0, VMM_READ_WRITE, &map, err);
    if (r < 0)
        cr_assert(map.ptr == 1 && map.size == 2 && map.mode == VMM_READ, "left alone");
    else
        vmm_map_free(drv, &map);
    vmm_alloc_release(drv, &alloc, NULL);
    return r;
}

CAID_TEST(vmm, a_failure_at_any_step_leaves_nothing_behind)
{
    static const struct {
        const char *rule, *call;
        int expected;
    } steps[] = {
        {"cuMemCreate=OUT_OF_MEMORY", "cuMemCreate", -ENOMEM},
        {"cuMemCreate=late:LAUNCH_FAILED", "cuMemCreate", -EIO},
        {"cuMemAddressReserve=OUT_OF_MEMORY", "cuMemAddressReserve", -ENOMEM},
        {"cuMemMap=INVALID_VALUE", "cuMemMap", -EINVAL},
        {"cuMemMap=late:LAUNCH_FAILED", "cuMemMap", -EIO},
        {"cuMemSetAccess=NOT_SUPPORTED", "cuMemSetAccess", -ENOTSUP},
    };
    _cleanup_(drv_freep) struct drv *drv = open_soft();
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        struct drv_error err = {0};
        set_rule(steps[i].rule);
        cr_assert_eq(use(drv, &err), steps[i].expected, "step %zu", i);
        cr_assert_str_eq(err.call, steps[i].call);
        assert_alive(0, 0, 0);
    }
    set_rule("");
    cr_assert_eq(use(drv, NULL), 0);
    assert_alive(0, 0, 0);
}

CAID_TEST(vmm, a_map_carries_the_access_it_was_made_with)
{
    _cleanup_(drv_freep) struct drv *drv = open_soft();
    struct vmm_alloc alloc;
    struct vmm_map map;
    cr_assert_eq(vmm_alloc_create(drv, 0, SIZE, false, &alloc, NULL), 0);
    cr_assert_eq(vmm_map_new(drv, &alloc, 0, 0, VMM_READ, &map, NULL), 0);
    ATTRIBUTE_IS(ACCESS_FLAGS, map.ptr, CU_MEM_ACCESS_FLAGS_PROT_READ);
    cr_assert_eq(map.size, SIZE);
    vmm_map_free(drv, &map);
    cr_assert_eq(map.ptr, 0);
    vmm_map_free(drv, &map); /* a zeroed one is no map */
    vmm_alloc_release(drv, &alloc, NULL);
    assert_alive(0, 0, 0);
}

CAID_TEST(vmm, a_range_that_does_not_unmap_keeps_its_address)
{
    _cleanup_(drv_freep) struct drv *drv = open_soft();
    struct vmm_alloc alloc;
    struct vmm_map map;
    cr_assert_eq(vmm_alloc_create(drv, 0, SIZE, false, &alloc, NULL), 0);
    cr_assert_eq(vmm_map_new(drv, &alloc, 0, 0, VMM_READ_WRITE, &map, NULL), 0);
    CUdeviceptr at = map.ptr;
    set_rule("cuMemUnmap=INVALID_VALUE");
    vmm_map_free(drv, &map);
    cr_assert_eq(map.ptr, 0);
    vmm_alloc_release(drv, &alloc, NULL);
    assert_alive(0, 1, 1);
    set_rule("");
    MUST(cuMemUnmap(at, SIZE));
    MUST(cuMemAddressFree(at, SIZE));
}

CAID_TEST(vmm, a_release_reports_and_is_done)
{
    _cleanup_(drv_freep) struct drv *drv = open_soft();
    struct vmm_alloc alloc;
    struct drv_error err;
    cr_assert_eq(vmm_alloc_create(drv, 0, SIZE, false, &alloc, NULL), 0);
    set_rule("cuMemRelease=late:LAUNCH_FAILED");
    cr_assert_eq(vmm_alloc_release(drv, &alloc, &err), -EIO);
    cr_assert_eq(err.result, CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(alloc.handle, 0);
    assert_alive(0, 0, 0);
}

CAID_TEST(vmm, a_refused_export_or_import_leaves_the_result_alone)
{
    _cleanup_(drv_freep) struct drv *drv = open_soft();
    struct vmm_alloc alloc = {.handle = 7, .size = SIZE};
    int fd = -7;
    cr_assert_eq(vmm_alloc_export(drv, &alloc, &fd, NULL), -EINVAL);
    cr_assert_eq(fd, -7);
    cr_assert_lt(vmm_alloc_import(drv, 0, SIZE, &alloc, NULL), 0);
    cr_assert_eq(alloc.handle, 7);
}
