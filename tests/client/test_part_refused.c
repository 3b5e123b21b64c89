/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that are refused, what publishing one waits for, and which device is whose. */
#include <string.h>

#include "gpu.h"
#include "part_fixture.h"

/* ---- what is refused ---- */

static void
refused(struct fixture *f, struct caid_array *array, uint64_t offset, const char *name,
        const struct caid_part_options *options, int32_t code)
{
    uint64_t generation = 77;

    assert_failed(caid_array_publish_part(array, offset, name, options, &generation, &f->error),
                  f->error, code);
    cr_assert_eq(generation, 77);
}

CLIENT_TEST(part, options_that_are_refused)
{
    const int64_t shape = N_PART, negative = -1;
    static char metadata[4098];
    int n_gone = 0;
    const struct caid_part_options good = bytes_options(&shape, &n_gone);
    struct caid_part_options bad;
    struct fixture f;

    parts_begin(&f);
#define REFUSED(code, change)                     \
    do {                                          \
        bad = good;                               \
        change;                                   \
        refused(&f, f.whole, 0, "x", &bad, code); \
    } while (0)
    refused(&f, f.whole, 0, "x", NULL, CAID_ERR_INVALID);
    refused(&f, NULL, 0, "x", &good, CAID_ERR_INVALID);
    refused(&f, f.whole, 0, NULL, &good, CAID_ERR_INVALID_NAME);
    refused(&f, f.whole, 0, "", &good, CAID_ERR_INVALID_NAME);
    refused(&f, f.whole, 0, "tab\t", &good, CAID_ERR_INVALID_NAME);
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
    look(&f);
    cr_assert_eq(n_gone, 0, "never of what failed");
    cr_assert_eq(publish(&f, "x", &n_gone), 1, "nothing had the name");
    unlink_name(&f, "x");
    dispatch_until(&f, &n_gone, 1);
    parts_end(&f);
}

CLIENT_TEST(part, places_that_are_refused)
{
    int64_t shape = N_PART;
    int n_gone = 0;
    struct caid_part_options options = bytes_options(&shape, &n_gone);
    const int64_t far = N_BYTES, wide[] = {2};
    struct fixture f;

    parts_begin(&f);
    refused(&f, f.whole, N_BYTES - N_PART + 1, "x", &options, CAID_ERR_INVALID);
    refused(&f, f.whole, N_BYTES, "x", &options, CAID_ERR_INVALID);
    refused(&f, f.whole, UINT64_MAX, "x", &options, CAID_ERR_INVALID);
    refused(&f, f.whole, UINT64_MAX - N_PART + 1, "x", &options, CAID_ERR_INVALID);
    shape = N_BYTES + 1;
    refused(&f, f.whole, 0, "x", &options, CAID_ERR_INVALID);
    shape = INT64_MAX;
    refused(&f, f.whole, 0, "x", &options, CAID_ERR_INVALID);
    shape = 0;
    refused(&f, f.whole, 0, "x", &options, CAID_ERR_INVALID);
    options.shape = wide;
    options.strides = &far;
    refused(&f, f.whole, 0, "x", &options, CAID_ERR_INVALID);
    look(&f);
    cr_assert_eq(n_gone, 0);
    parts_end(&f);
}

CLIENT_TEST(part, arrays_that_are_refused)
{
    const int64_t shape = 8, zero = 0;
    int n_gone = 0;
    const struct caid_part_options options = bytes_options(&shape, &n_gone);
    struct caid_create_options create = CAID_INIT(create);
    struct caid_open_options rw = CAID_INIT(rw);
    struct caid_array *array;
    struct fixture f;

    parts_begin(&f);
    publish(&f, "x", NULL);
    array = open_array(&f, f.client, "x");
    refused(&f, array, 0, "y", &options, CAID_ERR_READ_ONLY);
    cr_assert(strstr(f.error.message, "\"x\""), "%s", f.error.message);
    caid_array_close(array);
    rw.mode = "rw";
    assert_ok(caid_array_open(f.client, &array, "x", &rw, &f.error), f.error);
    refused(&f, array, 0, "y", &options, CAID_ERR_INVALID);
    cr_assert(strstr(f.error.message, "part"), "%s", f.error.message);
    caid_array_close(array);
    unlink_name(&f, "x");

    create.typestr = "|u1";
    create.shape = &zero;
    create.ndim = 1;
    assert_ok(caid_array_create(f.client, &array, &create, &f.error), f.error);
    refused(&f, array, 0, "y", &options, CAID_ERR_INVALID);
    caid_array_close(array);
    create.shape = &shape;
    create.memory = "managed";
    assert_ok(caid_array_create(f.client, &array, &create, &f.error), f.error);
    refused(&f, array, 0, "y", &options, CAID_ERR_UNSUPPORTED);
    caid_array_close(array);

    caid_client_close(f.client);
    refused(&f, f.whole, 0, "y", &options, CAID_ERR_CLOSED);
    cr_assert_eq(n_gone, 0);
    caid_array_close(f.whole); /* the daemon keeps it for this process */
    caid_client_close(f.other);
    daemon_stop(&f.daemon);
}

/* ---- what it waits for ---- */

static void
fill_late_and_publish(struct fixture *f, struct test_gpu *gpu, bool stream_is_named)
{
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, NULL);
    unsigned char bytes[N_PART];

    CUstream stream = gpu_stream_new(gpu);
    write_bytes(f, 1);
    if (gpu_is_soft())
        soft_control(gpu, "delay 100000");
    assert_cuda(
        gpu->drv->cu.cuMemsetD8Async(caid_array_get_info(f->whole)->ptr, 2, N_BYTES, stream));
    options.stream = stream_is_named ? (uint64_t)(uintptr_t)stream : 0;
    assert_ok(caid_array_publish_part(f->whole, AT, "x", &options, NULL, &f->error), f->error);
    assert_cuda(gpu->drv->cu.cuStreamQuery(stream));
    if (gpu_is_soft())
        soft_control(gpu, "delay 0");
    struct caid_array *array = open_array(f, f->other, "x");
    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &f->error), f->error);
    cr_assert_eq(bytes[0], 2);
    caid_array_close(array);
    unlink_name(f, "x");
    assert_cuda(gpu->drv->cu.cuStreamDestroy(stream));
}

CLIENT_TEST(part, waits_for_the_work_that_writes)
{
    struct test_gpu gpu;
    struct fixture f;

    parts_begin(&f);
    gpu_begin(&gpu);
    fill_late_and_publish(&f, &gpu, false);
    fill_late_and_publish(&f, &gpu, true);
    gpu_end(&gpu);
    parts_end(&f);
}

/* What is incomplete is not shown. */
CLIENT_TEST(part, fails_when_the_work_has_failed)
{
    const int64_t shape = N_PART;
    int n_gone = 0;
    const struct caid_part_options options = bytes_options(&shape, &n_gone);
    struct caid_array *array;
    struct test_gpu gpu;
    struct fixture f;

    if (!gpu_is_soft())
        return;
    parts_begin(&f);
    gpu_begin(&gpu);
    soft_control(&gpu, "fault 0 LAUNCH_FAILED");
    refused(&f, f.whole, AT, "x", &options, CAID_ERR_DRIVER);
    assert_failed(caid_array_open(f.other, &array, "x", NULL, &f.error), f.error,
                  CAID_ERR_NOT_FOUND);
    gpu_end(&gpu);
    parts_end(&f);
    cr_assert_eq(n_gone, 0);
}

/* ---- devices ---- */

CLIENT_TEST(part, the_device_of_an_ordinal)
{
    struct caid_client *alone;
    struct fixture f;
    int32_t index = 7;

    parts_begin(&f);
    assert_ok(caid_client_find_device(f.client, 0, &index, &f.error), f.error);
    cr_assert_eq(index, caid_array_get_info(f.whole)->device);
    index = 7;
    assert_failed(caid_client_find_device(f.client, 999, &index, &f.error), f.error,
                  CAID_ERR_DEVICE);
    cr_assert(strstr(f.error.message, "999"), "%s", f.error.message);
    assert_failed(caid_client_find_device(f.client, -1, &index, &f.error), f.error,
                  CAID_ERR_DEVICE);
    cr_assert_eq(index, 7);
    assert_failed(caid_client_find_device(f.client, 0, NULL, &f.error), f.error,
                  CAID_ERR_INVALID);
    assert_failed(caid_client_find_device(NULL, 0, &index, &f.error), f.error,
                  CAID_ERR_INVALID);
    assert_ok(cuda_driver_open(&alone, gpu_is_soft() ? "soft" : NULL, &f.error), f.error);
    assert_ok(caid_client_find_device(alone, 0, &index, &f.error), f.error);
    cr_assert_eq(index, 0);
    caid_client_close(alone);
    parts_end(&f);
}
