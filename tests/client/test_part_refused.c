/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that are refused, what publishing one waits for, and which device is whose. */
#include <string.h>

#include "gpu.h"
#include "part_fixture.h"

/* ---- what is refused ---- */

static void
refused(struct caid_array *array, uint64_t offset, const char *name,
        const struct caid_part_options *options, int32_t code)
{
    uint64_t generation = 77;

    assert_failed(caid_array_publish_part(array, offset, name, options, &generation, &error),
                  code);
    cr_assert_eq(generation, 77);
}

PART_TEST(part, options_that_are_refused)
{
    const int64_t shape = N_PART, negative = -1;
    static char metadata[4098];
    int n_gone = 0;
    const struct caid_part_options good = bytes_options(&shape, &n_gone);
    struct caid_part_options bad;

#define REFUSED(code, change)                 \
    do {                                      \
        bad = good;                           \
        change;                               \
        refused(f.whole, 0, "x", &bad, code); \
    } while (0)
    refused(f.whole, 0, "x", NULL, CAID_ERR_INVALID);
    refused(NULL, 0, "x", &good, CAID_ERR_INVALID);
    refused(f.whole, 0, NULL, &good, CAID_ERR_INVALID_NAME);
    refused(f.whole, 0, "", &good, CAID_ERR_INVALID_NAME);
    refused(f.whole, 0, "tab\t", &good, CAID_ERR_INVALID_NAME);
    memset(metadata, 'm', sizeof(metadata) - 1);
    REFUSED(CAID_ERR_INVALID, bad.struct_size = 0);
    REFUSED(CAID_ERR_INVALID, bad.typestr = NULL);
    REFUSED(CAID_ERR_INVALID, bad.typestr = "<x4");
    REFUSED(CAID_ERR_INVALID, bad.typestr = "\xff");
    REFUSED(CAID_ERR_INVALID, bad.descr = "\xff");
    REFUSED(CAID_ERR_INVALID, bad.metadata = metadata);
    REFUSED(CAID_ERR_INVALID, bad.metadata = "\xff");
    REFUSED(CAID_ERR_INVALID, bad.shape = NULL);
    REFUSED(CAID_ERR_INVALID, bad.shape = &negative);
    REFUSED(CAID_ERR_INVALID, bad.strides = &negative);
    REFUSED(CAID_ERR_INVALID, bad.ndim = 33);
    REFUSED(CAID_ERR_INVALID, (bad.ndim = UINT32_MAX, bad.shape = NULL));
#undef REFUSED
    look();
    cr_assert_eq(n_gone, 0, "never of what failed");
    cr_assert_eq(publish("x", &n_gone), 1, "nothing had the name");
    unlink_name("x");
    dispatch_until(&n_gone, 1);
}

PART_TEST(part, places_that_are_refused)
{
    int64_t shape = N_PART;
    int n_gone = 0;
    struct caid_part_options options = bytes_options(&shape, &n_gone);
    const int64_t far = N_BYTES, wide[] = {2};

    refused(f.whole, N_BYTES - N_PART + 1, "x", &options, CAID_ERR_INVALID);
    refused(f.whole, N_BYTES, "x", &options, CAID_ERR_INVALID);
    refused(f.whole, UINT64_MAX, "x", &options, CAID_ERR_INVALID);
    refused(f.whole, UINT64_MAX - N_PART + 1, "x", &options, CAID_ERR_INVALID);
    shape = N_BYTES + 1;
    refused(f.whole, 0, "x", &options, CAID_ERR_INVALID);
    shape = INT64_MAX;
    refused(f.whole, 0, "x", &options, CAID_ERR_INVALID);
    shape = 0;
    refused(f.whole, 0, "x", &options, CAID_ERR_INVALID);
    options.shape = wide;
    options.strides = &far;
    refused(f.whole, 0, "x", &options, CAID_ERR_INVALID);
    look();
    cr_assert_eq(n_gone, 0);
}

CLIENT_TEST(part, arrays_that_are_refused)
{
    const int64_t shape = 8, zero = 0;
    int n_gone = 0;
    const struct caid_part_options options = bytes_options(&shape, &n_gone);
    struct caid_open_options rw = CAID_INIT(rw);
    struct caid_array *array;

    parts_begin();
    publish("x", NULL);
    array = open_array(f.client, "x");
    refused(array, 0, "y", &options, CAID_ERR_READ_ONLY);
    cr_assert(strstr(error.message, "\"x\""), "%s", error.message);
    caid_array_close(array);
    rw.mode = "rw";
    assert_ok(caid_array_open(f.client, &array, "x", &rw, &error));
    refused(array, 0, "y", &options, CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "part"), "%s", error.message);
    caid_array_close(array);
    unlink_name("x");

    OPTIONS(caid_create_options, create, .typestr = "|u1", .shape = &zero, .ndim = 1);
    assert_ok(caid_array_create(f.client, &array, &create, &error));
    refused(array, 0, "y", &options, CAID_ERR_INVALID);
    caid_array_close(array);
    create.shape = &shape;
    create.memory = "managed";
    assert_ok(caid_array_create(f.client, &array, &create, &error));
    refused(array, 0, "y", &options, CAID_ERR_UNSUPPORTED);
    caid_array_close(array);

    caid_client_close(f.client);
    refused(f.whole, 0, "y", &options, CAID_ERR_CLOSED);
    cr_assert_eq(n_gone, 0);
    caid_array_close(f.whole); /* the daemon keeps it for this process */
    caid_client_close(f.other);
    daemon_stop(&f.daemon);
}

/* ---- what it waits for ---- */

static void
fill_late_and_publish(struct test_gpu *gpu, bool stream_is_named)
{
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, NULL);
    unsigned char bytes[N_PART];

    CUstream stream = gpu_stream_new(gpu);
    write_bytes(1);
    if (gpu_is_soft())
        soft_control(gpu, "delay 100000");
    assert_cuda(
        gpu->drv->cu.cuMemsetD8Async(caid_array_get_info(f.whole)->ptr, 2, N_BYTES, stream));
    options.stream = stream_is_named ? (uint64_t)(uintptr_t)stream : 0;
    assert_ok(caid_array_publish_part(f.whole, AT, "x", &options, NULL, &error));
    assert_cuda(gpu->drv->cu.cuStreamQuery(stream));
    if (gpu_is_soft())
        soft_control(gpu, "delay 0");
    struct caid_array *array = open_array(f.other, "x");
    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[0], 2);
    caid_array_close(array);
    unlink_name("x");
    assert_cuda(gpu->drv->cu.cuStreamDestroy(stream));
}

PART_TEST(part, waits_for_the_work_that_writes)
{
    struct test_gpu gpu;

    gpu_begin(&gpu);
    fill_late_and_publish(&gpu, false);
    fill_late_and_publish(&gpu, true);
    gpu_end(&gpu);
}

/* What is incomplete is not shown. */
CLIENT_TEST(part, fails_when_the_work_has_failed)
{
    const int64_t shape = N_PART;
    int n_gone = 0;
    const struct caid_part_options options = bytes_options(&shape, &n_gone);
    struct caid_array *array;
    struct test_gpu gpu;

    if (!gpu_is_soft())
        return;
    parts_begin();
    gpu_begin(&gpu);
    soft_control(&gpu, "fault 0 LAUNCH_FAILED");
    refused(f.whole, AT, "x", &options, CAID_ERR_DRIVER);
    assert_failed(caid_array_open(f.other, &array, "x", NULL, &error), CAID_ERR_NOT_FOUND);
    gpu_end(&gpu);
    parts_end();
    cr_assert_eq(n_gone, 0);
}

/* ---- devices ---- */

PART_TEST(part, the_device_of_an_ordinal)
{
    struct caid_client *alone;
    int32_t index = 7;

    assert_ok(caid_client_find_device(f.client, 0, &index, &error));
    cr_assert_eq(index, caid_array_get_info(f.whole)->device);
    index = 7;
    assert_failed(caid_client_find_device(f.client, 999, &index, &error), CAID_ERR_DEVICE);
    cr_assert(strstr(error.message, "999"), "%s", error.message);
    assert_failed(caid_client_find_device(f.client, -1, &index, &error), CAID_ERR_DEVICE);
    cr_assert_eq(index, 7);
    assert_failed(caid_client_find_device(f.client, 0, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_client_find_device(NULL, 0, &index, &error), CAID_ERR_INVALID);
    assert_ok(cuda_driver_open(&alone, gpu_is_soft() ? "soft" : NULL, &error));
    assert_ok(caid_client_find_device(alone, 0, &index, &error));
    cr_assert_eq(index, 0);
    caid_client_close(alone);
}
