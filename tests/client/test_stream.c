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

struct fixture {
    struct test_gpu gpu;
    struct caid_client *client;
    uint64_t stream;
    struct caid_error error;
};

/* Without a daemon: none is needed. */
static void
begin(struct fixture *f)
{
    gpu_begin(&f->gpu);
    assert_ok(cuda_driver_open(&f->client, gpu_is_soft() ? "soft" : NULL, &f->error), f->error);
    assert_ok(caid_stream_create(f->client, 0, CAID_STREAM_NON_BLOCKING, &f->stream, &f->error),
              f->error);
}

static void
end(struct fixture *f)
{
    assert_ok(caid_stream_destroy(f->client, f->stream, &f->error), f->error);
    caid_client_close(f->client);
    gpu_end(&f->gpu);
}

CLIENT_TEST(stream, made_and_destroyed)
{
    struct fixture f;
    uint64_t other;

    begin(&f);
    cr_assert_gt(f.stream, 2);
    assert_ok(caid_stream_create(f.client, 0, 0, &other, &f.error), f.error);
    cr_assert_neq(other, f.stream);
    assert_ok(caid_stream_destroy(f.client, other, &f.error), f.error);
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &f.error), 1);
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &f.error), f.error);
    assert_ok(caid_stream_check(f.client, f.stream, 0, &f.error), f.error);
    end(&f);
}

CLIENT_TEST(stream, refusals)
{
    struct fixture f;
    uint64_t stream = 0;

    begin(&f);
    assert_failed(caid_stream_create(f.client, 0, 6, &stream, &f.error), f.error,
                  CAID_ERR_INVALID);
    assert_failed(caid_stream_create(f.client, 99, 0, &stream, &f.error), f.error,
                  CAID_ERR_DEVICE);
    assert_failed(caid_stream_create(f.client, 0, 0, NULL, &f.error), f.error,
                  CAID_ERR_INVALID);
    cr_assert_eq(stream, 0);
    assert_failed(caid_stream_synchronize(f.client, 0, 0, &f.error), f.error, CAID_ERR_INVALID);
    cr_assert(strstr(f.error.message, "ambiguous"), "%s", f.error.message);
    assert_failed(cuda_stream_query(f.client, 0, 0, &f.error), f.error, CAID_ERR_INVALID);
    assert_failed(caid_stream_check(f.client, 0, 0, &f.error), f.error, CAID_ERR_INVALID);
    for (stream = 0; stream <= 2; stream++)
        assert_failed(caid_stream_destroy(f.client, stream, &f.error), f.error,
                      CAID_ERR_INVALID);
    assert_failed(cuda_stream_add_callback(f.client, f.stream, 0, NULL, NULL, &f.error),
                  f.error, CAID_ERR_INVALID);
    end(&f);
}

/* 1 and 2 are streams of the current context, or of the device's primary one. */
CLIENT_TEST(stream, default_streams)
{
    CUcontext popped;
    struct fixture f;

    begin(&f);
    for (int current = 1; current >= 0; current--) {
        for (uint64_t stream = 1; stream <= 2; stream++) {
            assert_ok(caid_stream_synchronize(f.client, stream, 0, &f.error), f.error);
            assert_ok(caid_stream_check(f.client, stream, 0, &f.error), f.error);
            cr_assert_eq(cuda_stream_query(f.client, stream, 0, &f.error), 1);
        }
        if (current)
            assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&popped));
    }
    assert_failed(caid_stream_synchronize(f.client, 1, 99, &f.error), f.error, CAID_ERR_DEVICE);
    assert_cuda(f.gpu.drv->cu.cuCtxPushCurrent(f.gpu.context));
    end(&f);
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

CLIENT_TEST(stream, callbacks_in_order)
{
    struct told first = {0}, second = {0};
    struct fixture f;

    begin(&f);
    assert_ok(cuda_stream_add_callback(f.client, f.stream, 0, tell, &first, &f.error), f.error);
    assert_ok(cuda_stream_add_callback(f.client, f.stream, 0, tell, &second, &f.error),
              f.error);
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &f.error), f.error);
    cr_assert(first.n == 1 && second.n == 1 && first.result == 0);
    end(&f);
}

CLIENT_TEST(stream, query_tells_of_work)
{
    struct told told = {0};
    struct fixture f;

    if (!gpu_is_soft())
        return;
    begin(&f);
    soft_control(&f.gpu, "delay 200000");
    assert_ok(cuda_stream_add_callback(f.client, f.stream, 0, tell, &told, &f.error), f.error);
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &f.error), 0);
    cr_assert_eq(told.n, 0);
    soft_control(&f.gpu, "delay 0");
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &f.error), f.error);
    cr_assert_eq(told.n, 1);
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &f.error), 1);
    end(&f);
}
