/* SPDX-License-Identifier: Apache-2.0 */
/* caid_stream_*: streams of one's own and of others, and callbacks. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"

#define STREAM_TEST(suite, name) \
    CAID_TEST_BETWEEN(suite, name, begin(), end(), .init = driver_warm_up, .timeout = 120)

static struct fixture {
    struct test_gpu gpu;
    struct caid_client *client;
    uint64_t stream;
} f;

/* Without a daemon: none is needed. */
static void
begin(void)
{
    gpu_begin(&f.gpu);
    assert_ok(cuda_driver_open(&f.client, gpu_is_soft() ? "soft" : NULL, &error));
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &f.stream, &error));
}

static void
end(void)
{
    assert_ok(caid_stream_destroy(f.client, f.stream, &error));
    caid_client_close(f.client);
    gpu_end(&f.gpu);
}

STREAM_TEST(stream, made_and_destroyed)
{
    uint64_t other;

    cr_assert_gt(f.stream, 2);
    assert_ok(caid_stream_create(f.client, 0, 0, &other, &error));
    cr_assert_neq(other, f.stream);
    assert_ok(caid_stream_destroy(f.client, other, &error));
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &error), 1);
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &error));
    assert_ok(caid_stream_check(f.client, f.stream, 0, &error));
}

STREAM_TEST(stream, refusals)
{
    uint64_t stream = 0;

    assert_failed(caid_stream_create(f.client, 0, 6, &stream, &error), CAID_ERR_INVALID);
    assert_failed(caid_stream_create(f.client, 99, 0, &stream, &error), CAID_ERR_DEVICE);
    assert_failed(caid_stream_create(f.client, 0, 0, NULL, &error), CAID_ERR_INVALID);
    cr_assert_eq(stream, 0);
    assert_failed(caid_stream_synchronize(f.client, 0, 0, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "ambiguous"), "%s", error.message);
    assert_failed(cuda_stream_query(f.client, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_stream_check(f.client, 0, 0, &error), CAID_ERR_INVALID);
    for (stream = 0; stream <= 2; stream++)
        assert_failed(caid_stream_destroy(f.client, stream, &error), CAID_ERR_INVALID);
    assert_failed(cuda_stream_add_callback(f.client, f.stream, 0, NULL, NULL, &error),
                  CAID_ERR_INVALID);
}

/* 1 and 2 are streams of the current context, or of the device's primary one. */
STREAM_TEST(stream, default_streams)
{
    CUcontext popped;

    for (int current = 1; current >= 0; current--) {
        for (uint64_t stream = 1; stream <= 2; stream++) {
            assert_ok(caid_stream_synchronize(f.client, stream, 0, &error));
            assert_ok(caid_stream_check(f.client, stream, 0, &error));
            cr_assert_eq(cuda_stream_query(f.client, stream, 0, &error), 1);
        }
        if (current)
            assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&popped));
    }
    assert_failed(caid_stream_synchronize(f.client, 1, 99, &error), CAID_ERR_DEVICE);
    assert_cuda(f.gpu.drv->cu.cuCtxPushCurrent(f.gpu.context));
}

struct told {
    atomic_int n, at, result;
};

static void
tell(int32_t result, void *userdata)
{
    struct told *told = userdata;

    told->result = result;
    told->at = ++told->n;
}

STREAM_TEST(stream, callbacks_in_order)
{
    struct told first = {0}, second = {0};

    assert_ok(cuda_stream_add_callback(f.client, f.stream, 0, tell, &first, &error));
    assert_ok(cuda_stream_add_callback(f.client, f.stream, 0, tell, &second, &error));
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &error));
    cr_assert(first.n == 1 && second.n == 1 && first.result == 0);
}

CLIENT_TEST(stream, query_tells_of_work)
{
    struct told told = {0};

    if (!gpu_is_soft())
        return;
    begin();
    soft_control(&f.gpu, "delay 200000");
    assert_ok(cuda_stream_add_callback(f.client, f.stream, 0, tell, &told, &error));
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &error), 0);
    cr_assert_eq(told.n, 0);
    soft_control(&f.gpu, "delay 0");
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &error));
    cr_assert_eq(told.n, 1);
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &error), 1);
    end();
}
