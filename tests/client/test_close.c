/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a close waits for, and what it does not: the GPU's work on the array, never the caller.
 * And what becomes of the memory behind it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_fixture.h"
#include "process.h"

#define CLOSE_TEST(name)                                                            \
    CAID_TEST_BETWEEN(close, name, begin_with_gpu(), end(), .init = driver_warm_up, \
                      .timeout = 120)

/* The real driver cannot be told to be late, or to fail. */
#define SOFT_TEST(name)                                                             \
    CAID_TEST_BETWEEN(close, name, ONLY_IF(gpu_is_soft(), begin_with_gpu()), end(), \
                      .init = driver_warm_up, .timeout = 120)

#define MIB        (INT64_C(1) << 20)
#define LATE_US    "400000" /* how much later work runs than it is enqueued */
#define LOOK_MS    "800"    /* when a taker looks whether it did */
#define N_LOOP     300
#define POLL_TRIES 4000
#define POLL_MS    5

static uint64_t
ptr_of(struct caid_array *array)
{
    return caid_array_get_info(array)->ptr;
}

static uint64_t
stream_number(CUstream stream)
{
    return (uint64_t)(uintptr_t)stream;
}

/* ---- work that is late ---- */

/* Closes an array that a fill is still on its way to, and lets a taker have its place: the
 * small array keeps the block that both lie in from going back as a whole. */
static void
close_with_late_work(bool on_stream)
{
    CUstream stream = gpu_stream_new(&f.gpu);
    struct caid_array *keeps = make_bytes(f.client, NULL, 1);
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    cr_assert_eq(caid_array_get_info(keeps)->block, caid_array_get_info(array)->block);

    soft_control(&f.gpu, "delay " LATE_US);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(ptr_of(array), 0xaa, MIB, stream));
    if (on_stream)
        assert_ok(caid_array_close_on(array, stream_number(stream), &error));
    else
        caid_array_close(array);
    cr_assert_eq(process_run("taker", f.daemon.socket, "1048576", LOOK_MS, NULL), 0);
    soft_control(&f.gpu, "delay 0");
    wait_for_leases(f.client, 1);
    caid_array_close(keeps);
    wait_for_leases(f.client, 0);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
}

static void
late_work(bool on_stream)
{
    if (!gpu_is_soft())
        return; /* the real driver cannot be told to be late */
    begin_with_gpu();
    close_with_late_work(on_stream);
    end();
}

CLIENT_TEST(close, others_see_no_late_write)
{
    late_work(false);
}

CLIENT_TEST(close, others_see_no_late_write_on_a_stream)
{
    late_work(true);
}

/* The work is in a context of the program's own, which is current when the array is closed. */
SOFT_TEST(others_see_no_late_write_in_another_context)
{
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUcontext other, popped;

    void *symbol = gpu_symbol(&f.gpu, "cuCtxCreate_v2");
    memcpy(&create, &symbol, sizeof(create));
    assert_cuda(create(&other, 0, 0));
    close_with_late_work(false);
    assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&popped)); /* it lives on, as the header asks */
}

CLOSE_TEST(the_clients_end_waits_for_late_work)
{
    if (gpu_is_soft())
        soft_control(&f.gpu, "delay 100000");
    CUstream stream = gpu_stream_new(&f.gpu);
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(ptr_of(array), 1, MIB, stream));
    caid_array_close(array);
    caid_client_close(f.client);
    assert_cuda(f.gpu.drv->cu.cuStreamQuery(stream));
    f.client = daemon_connect(&f.daemon);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
}

/* After that there is no thread: the close itself waits. */
CLOSE_TEST(after_the_client_it_waits_itself)
{
    if (gpu_is_soft())
        soft_control(&f.gpu, "delay 100000");
    CUstream stream = gpu_stream_new(&f.gpu);
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    caid_client_close(f.client);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(ptr_of(array), 1, MIB, stream));
    caid_array_close(array);
    assert_cuda(f.gpu.drv->cu.cuStreamQuery(stream));
    f.client = daemon_connect(&f.daemon);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
}

/* Memory that is closed and not drained is waited for rather than refused. */
CLIENT_TEST(close, a_create_that_needs_the_memory_waits_for_it)
{
    if (!gpu_is_soft())
        return;
    setenv("CAID_SOFTCUDA_MEMORY", "64M", 1); /* the daemon's; this driver has read its own */
    setenv("CAID_SOFTCUDA_UUID", "GPU-00000000-0000-0000-0000-000000000009", 1);
    begin_with_gpu();
    CUstream stream = gpu_stream_new(&f.gpu);
    soft_control(&f.gpu, "delay 50000");
    for (int i = 0; i < 5; i++) {
        struct caid_array *array = make_bytes(f.client, NULL, 40 * MIB);
        assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(ptr_of(array), 1, MIB, stream));
        caid_array_close(array);
    }
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
    end();
}

/* ---- a stream that waits ---- */

struct gate {
    _Atomic uint32_t *flag;
    CUdeviceptr ptr;
    CUstream stream;
};

/* Nothing on its stream goes on until it is opened. */
static void
gate_begin(struct gate *gate)
{
    CUresult (*wait_value)(CUstream, CUdeviceptr, uint32_t, unsigned int);
    void *symbol = gpu_symbol(&f.gpu, "cuStreamWaitValue32_v2"), *memory;
    uint64_t ptr;

    memcpy(&wait_value, &symbol, sizeof(wait_value));
    assert_ok(cuda_host_alloc(f.client, 0, 4096, CUDA_HOST_MAPPED, &memory, &ptr, &error));
    gate->flag = memory;
    *gate->flag = 0;
    gate->ptr = ptr;
    gate->stream = gpu_stream_new(&f.gpu);
    assert_cuda(wait_value(gate->stream, gate->ptr, 1, 0));
}

static void
gate_open(struct gate *gate)
{
    *gate->flag = 1;
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(gate->stream));
}

static void
gate_end(struct gate *gate)
{
    void *memory = (void *)(uintptr_t)gate->flag;

    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(gate->stream));
    assert_ok(cuda_host_free(f.client, 0, memory, &error));
}

CLOSE_TEST(waits_for_the_context_without_blocking)
{
    struct gate gate;

    gate_begin(&gate);
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    caid_array_close(array);
    for (int i = 0; i < 50; i++) {
        usleep(1000);
        cr_assert_eq(status_of(f.client).leases, 1, "the context has not drained");
    }
    gate_open(&gate);
    wait_for_leases(f.client, 0);
    gate_end(&gate);
}

static void *
close_here(void *array)
{
    caid_array_close(array);
    return NULL;
}

/* A thread to which no context is current counts on the device's primary one. */
CLOSE_TEST(by_a_thread_without_a_context)
{
    struct gate gate;
    pthread_t thread;

    gate_begin(&gate);
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    cr_assert_eq(pthread_create(&thread, NULL, close_here, array), 0);
    pthread_join(thread, NULL);
    usleep(20 * 1000);
    cr_assert_eq(status_of(f.client).leases, 1, "the context has not drained");
    gate_open(&gate);
    wait_for_leases(f.client, 0);
    gate_end(&gate);
}

CLOSE_TEST(on_a_stream_waits_for_that_alone)
{
    struct gate gate;

    gate_begin(&gate);
    CUstream stream = gpu_stream_new(&f.gpu);
    struct caid_array *here = make_bytes(f.client, NULL, MIB);
    struct caid_array *there = make_bytes(f.client, NULL, MIB);
    assert_ok(caid_array_close_on(here, stream_number(stream), &error));
    wait_for_leases(f.client, 1);
    assert_ok(caid_array_close_on(there, stream_number(gate.stream), &error));
    usleep(20 * 1000);
    cr_assert_eq(status_of(f.client).leases, 1, "the stream has not drained");
    gate_open(&gate);
    wait_for_leases(f.client, 0);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
    gate_end(&gate);
}

CLOSE_TEST(on_the_default_streams)
{
    for (uint64_t stream = 1; stream <= 2; stream++) {
        struct caid_array *array = make_bytes(f.client, NULL, MIB);
        assert_ok(caid_array_close_on(array, stream, &error));
    }
    struct caid_array *empty = make_bytes(f.client, NULL, 0);
    assert_ok(caid_array_close_on(empty, 1, &error));
    wait_for_leases(f.client, 0);
}

/* What is closed with an array keeps its lease until the work on that one is done. */
CLOSE_TEST(with_another_is_when_that_has_ended)
{
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    struct caid_array *a = make_bytes(f.client, NULL, 0), *b = make_bytes(f.client, NULL, 0);
    struct caid_array *more = make_bytes(f.client, NULL, 8);

    assert_failed(caid_array_close_with(a, a, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_close_with(a, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_close_with(more, array, &error), CAID_ERR_INVALID);
    assert_ok(caid_array_close_with(a, array, &error));
    assert_ok(caid_array_close_with(b, array, &error));
    caid_array_close(more);
    wait_for_leases(f.client, 3);
    if (gpu_is_soft()) {
        CUstream stream = gpu_stream_new(&f.gpu);
        soft_control(&f.gpu, "delay 100000");
        assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(ptr_of(array), 1, MIB, stream));
        assert_ok(caid_array_close_on(array, stream_number(stream), &error));
        cr_assert_eq(status_of(f.client).leases, 3);
        soft_control(&f.gpu, "delay 0");
        wait_for_leases(f.client, 0);
        assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
        return;
    }
    caid_array_close(array);
    wait_for_leases(f.client, 0);
}

CLOSE_TEST(what_fails_leaves_the_array_open)
{
    struct caid_array *array = make_bytes(f.client, NULL, 8);
    assert_failed(caid_array_close_on(array, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_close_on(NULL, 1, &error), CAID_ERR_INVALID);
    if (gpu_is_soft()) { /* the real driver follows a handle that is none */
        assert_failed(caid_array_close_on(array, 0x1234567, &error), CAID_ERR_DRIVER);
        soft_control(&f.gpu, "fail cuEventRecord=OUT_OF_MEMORY");
        assert_failed(caid_array_close_on(array, 1, &error), CAID_ERR_NO_MEMORY);
        soft_control(&f.gpu, "clear");
        cr_assert_eq(soft_live(&f.gpu, "events"), 0);
    }
    assert_ok(caid_array_copy_from_host(array, "still it", 8, &error));
    cr_assert_eq(status_of(f.client).leases, 1);
    caid_array_close(array);
    wait_for_leases(f.client, 0);
}

/* A context in which nothing can run any more has nothing to wait for. */
SOFT_TEST(goes_through_when_the_context_is_dead)
{
    struct caid_array *a = make_bytes(f.client, NULL, MIB),
                      *b = make_bytes(f.client, NULL, MIB);
    struct caid_array *c = make_bytes(f.client, NULL, MIB);
    CUstream stream = gpu_stream_new(&f.gpu);
    soft_control(&f.gpu, "fault 0 LAUNCH_FAILED");
    caid_array_close(a);
    assert_ok(caid_array_close_on(b, stream_number(stream), &error));
    assert_ok(caid_array_close_on(c, 1, &error));
    wait_for_leases(f.client, 0);
}

/* What is on the default stream waits for blocking streams: its event would end their capture. */
CLOSE_TEST(on_a_default_stream_that_a_capture_would_hold_up_is_refused)
{
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    CUstream stream;

    assert_cuda(f.gpu.drv->cu.cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    gpu_capture_begin(&f.gpu, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_failed(caid_array_close_on(array, 1, &error), CAID_ERR_INVALID);
    cr_assert(gpu_capture_end(&f.gpu, stream));
    assert_ok(caid_array_close_on(array, 1, &error));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
}

/* While a stream captures a graph nothing is known of the context's work (the software driver
 * does not capture: it only says so). */
SOFT_TEST(waits_until_no_stream_captures)
{
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    soft_control(&f.gpu, "fail cuCtxSynchronize=STREAM_CAPTURE_UNSUPPORTED");
    caid_array_close(array);
    usleep(20 * 1000);
    cr_assert_eq(status_of(f.client).leases, 1);
    /* The one who captures does not hang, whatever it asks for. */
    assert_ok(caid_flush(f.client, -1, NULL, &error));
    cr_assert_eq(status_of(f.client).leases, 1);
    soft_control(&f.gpu, "clear");
    wait_for_leases(f.client, 0);
}

/* What cannot be waited for is kept: no CAID_TEST, which looks for that. */
Test(close, while_a_stream_captures_the_client_ends, .init = driver_warm_up, .timeout = 120)
{
    if (!gpu_is_soft())
        return;
    begin_with_gpu();
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    soft_control(&f.gpu, "fail cuCtxSynchronize=STREAM_CAPTURE_UNSUPPORTED");
    caid_array_close(array);
    array = make_bytes(f.client, NULL, MIB);
    caid_client_close(f.client);
    caid_array_close(array);
    soft_control(&f.gpu, "clear");
    cr_assert_gt(soft_live(&f.gpu, "mappings"), 0, "work may still use it");
    f.client = daemon_connect(&f.daemon);
    cr_assert_eq(status_of(f.client).arrays, 2, "given to nobody");
    end();
}

/* ---- without a context ---- */

static void
driver_without_context(void)
{
    struct drv_error error = {0};
    struct drv *drv;

    cr_assert_eq(drv_open(&drv, gpu_is_soft() ? "soft" : NULL, &error), 0, "%s", error.message);
    drv_free(drv);
}

CAID_TEST_WITH(close, is_at_once_without_a_context, .init = driver_without_context,
               .timeout = 120)
{
    daemon_start(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    struct caid_array *array = make_bytes(f.client, NULL, MIB);
    caid_array_close(array);
    cr_assert_eq(status_of(f.client).leases, 0);
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
}

/* ---- idle blocks ---- */

static void
wait_until_called(const char *function, uint64_t more_than)
{
    for (int i = 0; i < POLL_TRIES && soft_calls(&f.gpu, function) <= more_than; i++)
        usleep(POLL_MS * 1000);
    cr_assert_gt(soft_calls(&f.gpu, function), more_than);
}

SOFT_TEST(and_create_in_a_loop_make_no_driver_call)
{
    for (int i = 0; i < N_LOOP; i++)
        caid_array_close(make_bytes(f.client, NULL, MIB));
    wait_for_leases(f.client, 0);
    uint64_t before = soft_calls(&f.gpu, "cuMemMap");
    for (int i = 0; i < N_LOOP; i++)
        caid_array_close(make_bytes(f.client, NULL, MIB));
    cr_assert_lt(soft_calls(&f.gpu, "cuMemMap"), before + N_LOOP / 10, "a few blocks at most");
}

SOFT_TEST(idle_blocks_go_after_a_while)
{
    struct caid_array *array = make_bytes(f.client, "x", MIB);
    uint64_t unmapped = soft_calls(&f.gpu, "cuMemUnmap");
    uint64_t released = soft_calls(&f.gpu, "cuMemRelease");
    caid_array_close(array);
    wait_until_called("cuMemUnmap", unmapped);
    wait_until_called("cuMemRelease", released);
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);

    /* The daemon has been told: it sends the block again. */
    assert_ok(caid_array_open(f.client, &array, "x", NULL, &error));
    caid_array_close(array);
}

SOFT_TEST(large_blocks_go_at_once)
{
    for (int i = 0; i < 20; i++) {
        uint64_t unmapped = soft_calls(&f.gpu, "cuMemUnmap");
        caid_array_close(make_bytes(f.client, NULL, 100 * MIB));
        wait_until_called("cuMemUnmap", unmapped);
    }
}

/* ---- fork ---- */

/* The child has not got the client's thread. */
CLOSE_TEST(in_a_child_leaves_the_parent_alone)
{
    struct caid_array *array = make_bytes(f.client, "x", MIB);
    caid_array_close(make_bytes(f.client, NULL, MIB)); /* starts the thread */
    wait_for_leases(f.client, 1);
    pid_t pid = fork();
    if (pid == 0) {
        caid_array_close(array);
        caid_client_close(f.client);
        _exit(0);
    }
    cr_assert_eq(process_wait(pid), 0);
    cr_assert_eq(status_of(f.client).leases, 1);
    caid_array_close(array);
    wait_for_leases(f.client, 0);
}
