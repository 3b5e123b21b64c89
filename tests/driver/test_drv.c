/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a driver, its table, errors, devices and memory figures, on fake drivers with one
 * trait each (fake_driver.c), so that every refusal can be had on any machine.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/macros.h"
#include "caid_test.h"
#include "drv.h"
#include "fake_open.h"

DEFINE_CLEANUP(struct drv *, drv_free)
#define _cleanup_drv_ _cleanup_(drv_freep)

static struct drv *
open_fake(const char *name)
{
    struct drv *drv = NULL;
    struct drv_error err = {0};
    cr_assert_eq(drv_open(&drv, fake_path(name), &err), 0, "%s", err.message);
    return drv;
}

/* Which library answers. */

CAID_TEST(drv_open, a_path_is_the_software_driver_only_when_it_says_so)
{
    _cleanup_drv_ struct drv *cuda = open_fake("fake-cuda");
    _cleanup_drv_ struct drv *soft = open_fake("fake-soft");
    cr_assert_eq(cuda->kind, DRV_CUDA);
    cr_assert_eq(soft->kind, DRV_SOFT);
    cr_assert_str_eq(soft->path, fake_path("fake-soft"));
    cr_assert_eq(cuda->version, 12040);
    cr_assert_str_eq(drv_kind_name(cuda->kind), "cuda");
    cr_assert_str_eq(drv_kind_name(soft->kind), "soft");
}

CAID_TEST(drv_open, the_environment_decides_where_the_caller_does_not)
{
    setenv("CAID_CUDA_DRIVER", fake_path("fake-soft"), 1);
    _cleanup_drv_ struct drv *by_environment = NULL, *by_argument = NULL;
    cr_assert_eq(drv_open(&by_environment, NULL, NULL), 0);
    cr_assert_eq(by_environment->kind, DRV_SOFT);
    cr_assert_eq(drv_open(&by_argument, fake_path("fake-cuda"), NULL), 0);
    cr_assert_eq(by_argument->kind, DRV_CUDA);
}

/* A driver that has been initialised keeps fds of its own, as long as the process lives. */
static void
initialise_drivers(void)
{
    struct drv *drv;
    if (drv_open(&drv, "cuda", NULL) == 0)
        drv_free(drv);
    if (drv_open(&drv, "soft", NULL) == 0)
        drv_free(drv);
}

/* What "auto" and an unset variable give depends on the machine, but is one thing. */
CAID_TEST_WITH(drv_open, auto_is_the_real_driver_where_it_finds_a_device_else_the_software_one,
               .init = initialise_drivers, .timeout = 60)
{
    _cleanup_drv_ struct drv *cuda = NULL, *soft = NULL, *found = NULL, *unset = NULL;
    int with_cuda = drv_open(&cuda, "cuda", NULL);
    int with_soft = drv_open(&soft, "soft", NULL);
    int expected = with_cuda == 0 ? 0 : with_soft;
    struct drv_error err;
    cr_assert_eq(drv_open(&found, "auto", &err), expected);
    cr_assert_eq(err.message[0] == '\0', with_cuda == 0, "reason: \"%s\"", err.message);
    unsetenv("CAID_CUDA_DRIVER");
    cr_assert_eq(drv_open(&unset, NULL, NULL), expected);
    if (expected == 0) {
        cr_assert_str_eq(found->path, cuda ? cuda->path : soft->path);
        cr_assert_str_eq(unset->path, found->path);
    }
}

CAID_TEST_WITH(drv_open, the_software_driver_is_found_beside_the_program_or_in_its_lib,
               .init = initialise_drivers, .timeout = 60)
{
    char path[4096] = "untouched";
    if (drv_soft_path(path, sizeof(path)) < 0) {
        cr_assert_str_eq(path, "untouched");
        cr_skip_test("libcaid-softcuda.so is not built");
    }
    _cleanup_drv_ struct drv *drv = NULL;
    cr_assert_eq(drv_open(&drv, "soft", NULL), 0);
    cr_assert_str_eq(drv->path, path);
    cr_assert_eq(drv->kind, DRV_SOFT);
    char small[8] = "kept";
    cr_assert_eq(drv_soft_path(small, sizeof(small)), -ENOENT);
    cr_assert_str_eq(small, "kept");
}

static void
assert_refused(const char *choice, int expected, int result, const char *why)
{
    struct drv *drv = NULL;
    struct drv_error err = {.result = -1};
    cr_assert_eq(drv_open(&drv, choice, &err), expected, "%s", choice);
    cr_assert_null(drv);
    cr_assert_eq(err.result, result, "%s: %d", choice, err.result);
    cr_assert_not_null(strstr(err.message, why), "\"%s\" lacks \"%s\"", err.message, why);
    cr_assert_eq(drv_open(&drv, choice, NULL), expected);
}

CAID_TEST(drv_open, refusals_name_the_library_and_the_reason)
{
    assert_refused("/nonexistent/libcuda.so", -ENODEV, 0, "/nonexistent/libcuda.so");
    assert_refused(fake_path("fake-old"), -ENODEV, 0, "fake-old.so: no cuGetProcAddress_v2");
    assert_refused(fake_path("fake-no-device"), -ENODEV, 100,
                   "fake-no-device.so: cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA");
    assert_refused(fake_path("fake-empty"), -ENODEV, 0, "fake-empty.so: no device");
    assert_refused("hard", -EINVAL, 0, "\"hard\": neither auto, cuda, soft nor a path");
}

CAID_TEST(drv_open, freeing_nothing_is_fine)
{
    cr_assert_null(drv_free(NULL));
}

/* The table. */

CAID_TEST(drv_table, each_entry_is_asked_for_by_name_and_pinned_version)
{
    static const struct fake_lookup expected[] = {
#define SYMBOL(name, lookup, pinned, ret, args) {.symbol = lookup, .version = pinned},
#include "symbols.def"
#undef SYMBOL
    };
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    const struct fake_state *fake = fake_state_of(drv);
    cr_assert_eq(fake->n_lookups, ARRAY_SIZE(expected));
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        cr_expect_str_eq(fake->lookups[i].symbol, expected[i].symbol);
        cr_expect_eq(fake->lookups[i].version, expected[i].version);
        cr_expect_eq(fake->lookups[i].flags, 0);
    }
}

CAID_TEST(drv_table, what_the_driver_lacks_answers_not_found)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    CUdeviceptr ptr = 1;
    cr_assert_eq(drv->cu.cuMemAlloc(&ptr, 4096), CUDA_ERROR_NOT_FOUND);
    cr_assert_eq(ptr, 1);
    cr_assert_eq(drv->cu.cuCtxSynchronize(), CUDA_ERROR_NOT_FOUND);
    cr_assert_eq(drv->cu.cuStreamDestroy(NULL), CUDA_ERROR_NOT_FOUND);
#define SYMBOL(name, lookup, version, ret, args) cr_expect(drv->cu.name, #name);
#include "symbols.def"
#undef SYMBOL
}

CAID_TEST_WITH(drv_table, the_software_driver_lacks_nothing, .init = initialise_drivers,
               .timeout = 60)
{
    _cleanup_drv_ struct drv *drv = NULL;
    if (drv_open(&drv, "soft", NULL) < 0)
        cr_skip_test("libcaid-softcuda.so is not built");
    CUresult (*lookup)(const char *, void **, int, cuuint64_t,
                       CUdriverProcAddressQueryResult *);
    void *found = dlsym(dlopen(drv->path, RTLD_NOW | RTLD_NOLOAD), "cuGetProcAddress_v2");
    memcpy(&lookup, &found, sizeof(lookup));
    CUdriverProcAddressQueryResult status;
#define SYMBOL(name, symbol, version, ret, args)                                           \
    cr_expect_eq(lookup(symbol, &found, version, 0, &status), CUDA_SUCCESS, "%s", symbol); \
    cr_expect_eq(status, CU_GET_PROC_ADDRESS_SUCCESS, "%s", symbol);
#include "symbols.def"
#undef SYMBOL
}

/* Errors. */

CAID_TEST(drv_fail, results_map_to_errno)
{
    static const struct {
        CUresult result;
        int expected;
    } cases[] = {
        {CUDA_SUCCESS, 0},
        {CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM},
        {CUDA_ERROR_INVALID_VALUE, -EINVAL},
        {CUDA_ERROR_NOT_SUPPORTED, -ENOTSUP},
        {CUDA_ERROR_NO_DEVICE, -ENODEV},
        {CUDA_ERROR_INVALID_DEVICE, -ENODEV},
        {CUDA_ERROR_NOT_PERMITTED, -EPERM},
        {CUDA_ERROR_NOT_FOUND, -ENOSYS},
        {CUDA_ERROR_LAUNCH_FAILED, -EIO},
        {(CUresult)12345, -EIO},
    };
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        cr_expect_eq(drv_fail(drv, NULL, "cuX", cases[i].result), cases[i].expected);
}

CAID_TEST(drv_fail, the_message_names_call_result_and_reason)
{
    /* This driver has no cuGetErrorName: the words are our own. */
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    struct drv_error err;
    drv_fail(drv, &err, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(err.result, 2);
    cr_assert_str_eq(err.call, "cuMemCreate");
    cr_assert_str_eq(err.message, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    drv_fail(drv, &err, "cuX", (CUresult)12345);
    cr_assert_str_eq(err.message, "cuX: CUDA error (12345): not known to this driver");
}

CAID_TEST(drv_fail, success_leaves_the_error_alone)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    struct drv_error err = {.result = 7, .call = "before", .message = "before"};
    cr_assert_eq(drv_fail(drv, &err, "cuInit", CUDA_SUCCESS), 0);
    cr_assert_eq(err.result, 7);
    cr_assert_str_eq(err.message, "before");
}

/* Devices. */

CAID_TEST(drv_device, is_described)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    int n = 0;
    cr_assert_eq(drv_device_count(drv, &n, NULL), 0);
    cr_assert_eq(n, 1);
    struct drv_device device;
    cr_assert_eq(drv_device_get(drv, 0, &device, NULL), 0);
    cr_assert_eq(device.ordinal, 0);
    cr_assert_str_eq(device.name, "Fake 0");
    cr_assert_str_eq(device.uuid, "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00");
    cr_assert_eq(device.total, 1 << 30);
    cr_assert_eq(device.granularity, 1 << 21);
    cr_assert(device.vmm_fd);
    cr_assert(!device.ipc && !device.memops && !device.readonly_host && !device.mps);
    cr_assert_str_eq(device.compute_mode, "default");
}

static struct drv_device
soft_device(const char *attributes)
{
    _cleanup_drv_ struct drv *drv = NULL;
    struct drv_device device;
    setenv("CAID_SOFTCUDA_ATTRIBUTES", attributes, 1);
    if (drv_open(&drv, "soft", NULL) < 0)
        cr_skip_test("libcaid-softcuda.so is not built");
    cr_assert_eq(drv_device_get(drv, 0, &device, NULL), 0);
    return device;
}

CAID_TEST(drv_device, has_what_it_says)
{
    struct drv_device device = soft_device("133=1,20=2");
    cr_assert(device.ipc && device.memops && device.readonly_host && device.mps);
    cr_assert_str_eq(device.compute_mode, "prohibited");
}

CAID_TEST(drv_device, lacks_what_it_says)
{
    struct drv_device device = soft_device("122=0,113=0,125=0,20=3");
    cr_assert(!device.ipc && !device.memops && !device.readonly_host && !device.mps);
    cr_assert_str_eq(device.compute_mode, "exclusive");
}

CAID_TEST(drv_device, without_fd_handles_says_so)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    fake_state_of(drv)->no_posix_fd = true;
    struct drv_device device;
    cr_assert_eq(drv_device_get(drv, 0, &device, NULL), 0);
    cr_assert(!device.vmm_fd);
    cr_assert_eq(device.granularity, 0);
}

CAID_TEST(drv_device, unknown_is_refused)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-cuda");
    struct drv_device device = {.ordinal = 77};
    struct drv_error err;
    cr_assert_eq(drv_device_get(drv, 1, &device, &err), -ENODEV);
    cr_assert_eq(err.result, CUDA_ERROR_INVALID_DEVICE);
    cr_assert_str_eq(err.call, "cuDeviceGet");
    cr_assert_eq(device.ordinal, 77);
}

/* Memory figures. */

#define FAKE_UUID "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00"

CAID_TEST(drv_memory, is_told_by_uuid)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-soft");
    uint64_t free_bytes = 0, total = 0;
    cr_assert_eq(drv_memory_info(drv, FAKE_UUID, &free_bytes, &total, NULL), 0);
    cr_assert_eq(free_bytes, 600);
    cr_assert_eq(total, 1000);
}

CAID_TEST(drv_memory, of_an_unknown_device_is_an_error_that_names_it)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-soft");
    uint64_t free_bytes = 1, total = 2;
    struct drv_error err = {.result = -1};
    cr_assert_eq(drv_memory_info(drv, "GPU-0", &free_bytes, &total, &err), -ENODEV);
    cr_assert_str_eq(err.message,
                     "device GPU-0: nvmlDeviceGetHandleByUUID: NVML error 6: Not Found");
    cr_assert_eq(err.result, 0);
    cr_assert_eq(free_bytes, 1);
    cr_assert_eq(total, 2);
}

CAID_TEST(drv_memory, without_nvml_is_not_there)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-no-nvml");
    uint64_t free_bytes, total;
    struct drv_error err;
    cr_assert_null(drv->nvml);
    cr_assert_eq(drv_memory_info(drv, FAKE_UUID, &free_bytes, &total, &err), -ENOSYS);
    cr_assert_not_null(strstr(err.message, FAKE_UUID));
}

CAID_TEST(drv_memory, a_failed_start_of_nvml_is_tried_again)
{
    struct drv *drv = open_fake("fake-soft");
    struct fake_state *fake = fake_state_of(drv);
    uint64_t free_bytes, total;
    fake->fail_at = 0;
    cr_assert_eq(drv_memory_info(drv, FAKE_UUID, &free_bytes, &total, NULL), -EIO);
    cr_assert_eq(drv_memory_info(drv, FAKE_UUID, &free_bytes, &total, NULL), 0);
    cr_assert_eq(drv_memory_info(drv, FAKE_UUID, &free_bytes, &total, NULL), 0);
    cr_assert_eq(fake->n_nvml_inits, 1);
    drv_free(drv);
    cr_assert_eq(fake->n_nvml_inits, 0);
}

CAID_TEST(drv_persistence, is_on_off_or_not_known)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-soft");
    _cleanup_drv_ struct drv *without = open_fake("fake-no-nvml");
    struct fake_state *fake = fake_state_of(drv);
    bool on = true;
    cr_assert_eq(drv_persistence(drv, FAKE_UUID, &on), 0);
    cr_assert(!on);
    fake->persistence = 1;
    cr_assert_eq(drv_persistence(drv, FAKE_UUID, &on), 0);
    cr_assert(on);
    fake->persistence = -1;
    cr_assert_eq(drv_persistence(drv, FAKE_UUID, &on), -ENOSYS);
    cr_assert_eq(drv_persistence(drv, "GPU-0", &on), -ENODEV);
    cr_assert_eq(drv_persistence(without, FAKE_UUID, &on), -ENOSYS);
    cr_assert(on, "left alone");
}

static void *
ask_memory(void *data)
{
    uint64_t free_bytes = 0, total = 0;
    for (int i = 0; i < 100; i++) {
        if (drv_memory_info(data, FAKE_UUID, &free_bytes, &total, NULL) < 0)
            return NULL;
    }
    return data;
}

CAID_TEST(drv_memory, may_be_asked_from_many_threads)
{
    _cleanup_drv_ struct drv *drv = open_fake("fake-soft");
    pthread_t threads[8];
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, ask_memory, drv), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        void *answer = NULL;
        pthread_join(threads[i], &answer);
        cr_expect_eq(answer, drv);
    }
    cr_assert_eq(fake_state_of(drv)->n_nvml_inits, 1);
}
