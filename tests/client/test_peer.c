/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two devices: memory on either, reached from either, over the peer link. On the software
 * driver, which has as many devices as it is told to.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"
#include "process.h"

#define N_BYTES 10000

static struct fixture {
    struct daemon daemon;
    struct caid_client *client;
    const struct caid_device *const *devices;
} f;

static void
two_devices(void)
{
    setenv("CAID_CUDA_DRIVER", "soft", 1);
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    driver_warm_up();
}

#define PEER_TEST(name) \
    CAID_TEST_BETWEEN(peer, name, begin(), end(), .init = two_devices, .timeout = 120)

static void
begin(void)
{
    daemon_start(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    cr_assert_eq(caid_client_devices(f.client, &f.devices), 2);
}

static void
end(void)
{
    wait_for_leases(f.client, 0);
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
}

static struct caid_array *
make_on(int32_t device, const char *memory, const char *name)
{
    const int64_t n = N_BYTES;
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .device = device, .memory = memory, .name = name,
            .typestr = "|u1", .shape = &n, .ndim = 1);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    return array;
}

static struct caid_array *
open_from(const char *name, const char *mode, int32_t device)
{
    struct caid_array *array;

    OPTIONS(caid_open_options, options, .mode = mode,
            .device_uuid = device >= 0 ? f.devices[device]->uuid : NULL);
    assert_ok(caid_array_open(f.client, &array, name, &options, &error));
    return array;
}

static void
fill(struct caid_array *array, unsigned char with)
{
    unsigned char bytes[N_BYTES];

    memset(bytes, with, sizeof(bytes));
    assert_ok(caid_array_copy_from_host(array, bytes, sizeof(bytes), &error));
}

static void
assert_filled(struct caid_array *array, unsigned char wanted)
{
    unsigned char bytes[N_BYTES];

    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    for (size_t i = 0; i < sizeof(bytes); i++)
        cr_assert_eq(bytes[i], wanted, "byte %zu is %d, not %d", i, bytes[i], wanted);
}

PEER_TEST(each_device_has_its_arrays)
{
    struct caid_memory_info info = CAID_INIT(info);

    struct caid_array *arrays[2];
    for (int32_t i = 0; i < 2; i++) {
        arrays[i] = make_on(i, NULL, NULL);
        cr_assert_eq(caid_array_get_info(arrays[i])->device, i);
        cr_assert_eq(caid_array_get_info(arrays[i])->mapped_ordinal, i);
        cr_assert_eq(caid_array_get_info(arrays[i])->mapped_device, i);
        assert_ok(caid_memory_info(f.client, i, &info, &error));
        cr_assert_eq(info.arrays, 1);
        fill(arrays[i], (unsigned char)i);
    }
    for (int32_t i = 0; i < 2; i++) {
        assert_filled(arrays[i], (unsigned char)i);
        caid_array_close(arrays[i]);
    }
}

/* One mapping serves both devices, once each has asked for it. */
PEER_TEST(a_device_reaches_the_others_memory)
{
    struct test_gpu gpu;
    uint64_t maps;

    gpu_begin(&gpu);
    struct caid_array *array = make_on(1, NULL, "far");
    fill(array, 7);
    maps = soft_calls(&gpu, "cuMemMap");
    struct caid_array *near = open_from("far", "rw", 0);
    const struct caid_array_info *info = caid_array_get_info(near);
    cr_assert(info->device == 1 && info->mapped_ordinal == 0 && info->mapped_device == 0);
    cr_assert_eq(info->ptr, caid_array_get_info(array)->ptr);
    cr_assert_eq(soft_calls(&gpu, "cuMemMap"), maps);
    /* Fills mind whether the device may reach the memory; copies do not. */
    assert_cuda(gpu.drv->cu.cuMemsetD8(info->ptr, 8, N_BYTES));
    assert_cuda(gpu.drv->cu.cuCtxSynchronize());
    assert_filled(near, 8);
    assert_filled(array, 8);

    struct caid_array *read_only = open_from("far", "r", 0);
    cr_assert_neq(gpu.drv->cu.cuMemsetD8(caid_array_get_info(read_only)->ptr, 9, N_BYTES),
                  CUDA_SUCCESS);
    assert_filled(read_only, 8);
    caid_array_close(read_only);
    caid_array_close(near);
    caid_array_close(array);
    gpu_end(&gpu);
}

PEER_TEST(other_kinds)
{
    struct caid_array *other = NULL;

    struct caid_array *pinned = make_on(1, "pinned", "pinned");
    fill(pinned, 3);
    struct caid_array *pinned_near = open_from("pinned", "rw", 0);
    assert_filled(pinned_near, 3);
    caid_array_close(pinned_near);
    caid_array_close(pinned);

    OWNED struct caid_array *legacy = make_on(1, "legacy", "legacy");
    fill(legacy, 4);
    OPTIONS(caid_open_options, options, .device_uuid = f.devices[0]->uuid);
    assert_failed(caid_array_open(f.client, &other, "legacy", &options, &error),
                  CAID_ERR_UNSUPPORTED);
    cr_assert_null(other);
    assert_filled(legacy, 4);
}

PEER_TEST(what_is_refused)
{
    struct caid_array *other = NULL;

    OWNED struct caid_array *array = make_on(1, NULL, "x");
    OPTIONS(caid_open_options, options, .device_uuid = "GPU-nowhere");
    assert_failed(caid_array_open(f.client, &other, "x", &options, &error), CAID_ERR_DEVICE);
    options.device_uuid = "\xff";
    assert_failed(caid_array_open(f.client, &other, "x", &options, &error), CAID_ERR_INVALID);
    cr_assert_null(other);
}

static int
run_peer(const char *visible, const char *name, const char *from, const char *to)
{
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    int r = process_run("peer", f.daemon.socket, name, from, to, NULL);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return r;
}

/* Whatever CUDA_VISIBLE_DEVICES says, an array is the same one. */
PEER_TEST(processes_that_see_other_devices)
{
    OWNED struct caid_array *zero = make_on(0, NULL, "zero"), *one = make_on(1, NULL, "one");
    fill(zero, 1);
    fill(one, 101);
    cr_assert_eq(run_peer("1", "zero", "1", "2"), 0);
    cr_assert_eq(run_peer("1,0", "zero", "2", "3"), 0);
    cr_assert_eq(run_peer("0", "one", "101", "102"), 0);
    cr_assert_eq(run_peer("1", "one", "102", "103"), 0);
    cr_assert_eq(run_peer("", "one", "103", "104"), 1, "no device at all");
    assert_filled(zero, 3);
    assert_filled(one, 103);
}

/* Memory that every context may use is waited for in every one. */
static void
close_with_work_elsewhere(struct test_gpu *gpu, const char *memory)
{
    const struct drv *drv = gpu->drv;
    struct caid_array *array = make_on(0, memory, NULL);
    uint64_t ptr = caid_array_get_info(array)->ptr;
    CUcontext far, popped;

    assert_cuda(drv->cu.cuDevicePrimaryCtxRetain(&far, 1));
    assert_cuda(drv->cu.cuCtxPushCurrent(far));
    CUstream stream = gpu_stream_new(gpu);
    soft_control(gpu, "delay 300000");
    assert_cuda(drv->cu.cuMemsetD8Async(ptr, 1, N_BYTES, stream));
    assert_cuda(drv->cu.cuCtxPopCurrent(&popped));
    caid_array_close(array);
    caid_client_close(f.client); /* after the work */
    assert_cuda(drv->cu.cuCtxPushCurrent(far));
    assert_cuda(drv->cu.cuStreamQuery(stream));
    soft_control(gpu, "delay 0");
    assert_cuda(drv->cu.cuStreamDestroy(stream));
    assert_cuda(drv->cu.cuCtxPopCurrent(&popped));
    drv->cu.cuDevicePrimaryCtxRelease(1);
    f.client = daemon_connect(&f.daemon);
}

PEER_TEST(a_close_waits_for_all_devices)
{
    struct test_gpu gpu;

    gpu_begin(&gpu);
    close_with_work_elsewhere(&gpu, "pinned");
    close_with_work_elsewhere(&gpu, "mapped");
    close_with_work_elsewhere(&gpu, "managed");
    gpu_end(&gpu);
}

PEER_TEST(ordinals_have_indices)
{
    int32_t index;

    for (int32_t i = 0; i < 2; i++) {
        assert_ok(caid_client_find_device(f.client, i, &index, &error));
        cr_assert_eq(index, i);
    }
    assert_failed(caid_client_find_device(f.client, 2, &index, &error), CAID_ERR_DEVICE);
}
