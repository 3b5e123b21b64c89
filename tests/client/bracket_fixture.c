/* SPDX-License-Identifier: Apache-2.0 */
#include "bracket_fixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "process.h"

struct fixture f;

#define TRIES 40000

static const struct timespec step = {.tv_nsec = 1000 * 1000};

static uint64_t
new_stream(void)
{
    uint64_t stream;

    assert_ok(caid_stream_create(f.a, 0, CAID_STREAM_NON_BLOCKING, &stream, &error));
    return stream;
}

static unsigned char *
new_page_locked(void)
{
    void *memory;

    assert_ok(cuda_host_alloc(f.a, 0, N_BYTES, 0, &memory, NULL, &error));
    memset(memory, 0xee, N_BYTES);
    return memory;
}

void
fixture_begin(void)
{
    static const unsigned char zeros[N_BYTES];
    struct caid_open_options rw = CAID_INIT(rw);

    rw.mode = "rw";
    gpu_begin(&f.gpu);
    daemon_start(&f.daemon);
    f.a = daemon_connect(&f.daemon);
    f.b = daemon_connect(&f.daemon);
    f.ax = make_bytes(f.a, "x", N_BYTES);
    assert_ok(caid_array_copy_from_host(f.ax, zeros, N_BYTES, &error));
    assert_ok(caid_array_open(f.b, &f.bx, "x", NULL, &error));
    assert_ok(caid_array_open(f.b, &f.bw, "x", &rw, &error));
    f.s1 = new_stream();
    f.s2 = new_stream();
    f.s3 = new_stream();
    f.seen[0] = new_page_locked();
    f.seen[1] = new_page_locked();
}

static void
end_stream(uint64_t stream)
{
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)stream));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy((CUstream)(uintptr_t)stream));
}

void
fixture_end(void)
{
    end_stream(f.s1);
    end_stream(f.s2);
    end_stream(f.s3);
    assert_ok(cuda_host_free(f.a, 0, f.seen[0], &error));
    assert_ok(cuda_host_free(f.a, 0, f.seen[1], &error));
    caid_array_close(f.ax);
    caid_array_close(f.bx);
    caid_array_close(f.bw);
    caid_client_close(f.a);
    caid_client_close(f.b);
    daemon_stop(&f.daemon);
    gpu_end(&f.gpu);
}

/* ---- streams ---- */

static void
sleep_late(CUstream stream, CUresult result, void *data)
{
    const struct timespec pause = {.tv_nsec = LATE_NS};

    (void)stream;
    (void)result;
    nanosleep(&pause, NULL);
    for (int i = 0; i < TRIES && !thread_waits((pid_t)(intptr_t)data); i++)
        nanosleep(&step, NULL);
}

void
be_late(uint64_t stream)
{
    assert_cuda(f.gpu.drv->cu.cuStreamAddCallback((CUstream)(uintptr_t)stream, sleep_late,
                                                  (void *)(intptr_t)gettid(), 0));
}

void
synchronize(void)
{
    assert_cuda(f.gpu.drv->cu.cuCtxSynchronize());
}

void
fill(struct caid_array *array, unsigned char value, uint64_t stream)
{
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(caid_array_get_info(array)->ptr, value, N_BYTES,
                                              (CUstream)(uintptr_t)stream));
}

void
get(struct caid_array *array, unsigned char *to, uint64_t stream)
{
    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoHAsync(to, caid_array_get_info(array)->ptr, N_BYTES,
                                                (CUstream)(uintptr_t)stream));
}

void
assert_all(const unsigned char bytes[N_BYTES], unsigned char value)
{
    for (size_t i = 0; i < N_BYTES; i++)
        cr_assert_eq(bytes[i], value, "byte %zu is %d, not %d", i, bytes[i], value);
}

void
capture_begin(uint64_t stream)
{
    gpu_capture_begin(&f.gpu, (CUstream)(uintptr_t)stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

void
capture_end(uint64_t stream)
{
    cr_assert(gpu_capture_end(&f.gpu, (CUstream)(uintptr_t)stream));
}

/* ---- brackets ---- */

struct caid_bracket *
begin_on(struct caid_array *array, uint32_t flags, uint64_t stream)
{
    struct caid_bracket *bracket;

    assert_ok(caid_array_begin(array, &bracket, flags, stream, CAID_FOREVER, &error));
    return bracket;
}

void
end_and_free(struct caid_bracket *bracket)
{
    assert_ok(caid_bracket_end(bracket, &error));
    caid_bracket_free(bracket);
}

void
assert_abandoned(struct caid_array *array)
{
    struct caid_bracket *bracket = NULL;

    assert_failed(caid_array_begin(array, &bracket, 0, 0, CAID_FOREVER, &error),
                  CAID_ERR_ABANDONED);
    cr_assert_null(bracket);
}

static void *
begin_here(void *arg)
{
    struct elsewhere *e = arg;

    e->r =
        caid_array_begin(e->array, &e->bracket, e->flags, e->stream, e->timeout_ns, &e->error);
    return NULL;
}

int
begin_elsewhere(struct elsewhere *e)
{
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, begin_here, e), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    return e->r;
}

/* ---- the daemon ---- */

void
wait_for_brackets(struct caid_client *client, uint64_t n)
{
    for (int i = 0; i < TRIES && status_of(client).brackets != n; i++)
        nanosleep(&step, NULL);
    cr_assert_eq(status_of(client).brackets, n);
}

static int
see_waiting(const struct caid_details *details, void *userdata)
{
    *(uint64_t *)userdata = details->entry->waiting;
    return 0;
}

static uint64_t
count_waiting(struct caid_client *client)
{
    uint64_t n = 0;

    assert_ok(caid_show(client, "x", NULL, see_waiting, &n, &error));
    return n;
}

void
wait_for_waiting(struct caid_client *client, uint64_t n)
{
    for (int i = 0; i < TRIES && count_waiting(client) != n; i++)
        nanosleep(&step, NULL);
    cr_assert_eq(count_waiting(client), n);
}
