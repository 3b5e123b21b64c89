/* SPDX-License-Identifier: Apache-2.0 */
/* Events of this process and of others, and copies that are enqueued. Software driver: its
 * streams can be late. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/macros.h"
#include "bracket_fixture.h"
#include "process.h"

/* What the driver keeps open for inter-process events is open before fds are counted. */
static void
ipc_events(void)
{
    CUipcEventHandle handle;
    struct test_gpu gpu;
    CUevent event;

    soft_warm_up();
    gpu_begin(&gpu);
    assert_cuda(
        gpu.drv->cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    assert_cuda(gpu.drv->cu.cuIpcGetEventHandle(&handle, event));
    assert_cuda(gpu.drv->cu.cuEventDestroy(event));
    gpu_end(&gpu);
}

#define IPC_TEST(name) CAID_TEST_WITH(event, name, .init = ipc_events, .timeout = 120)

static struct cuda_event *
event_on(uint32_t flags)
{
    struct cuda_event *event;

    assert_ok(cuda_event_new(f.a, &event, 0, flags, &error));
    return event;
}

BRACKET_TEST(event, says_how_far_a_stream_is)
{
    const uint32_t flags[] = {0, CUDA_EVENT_BLOCKING_SYNC, CUDA_EVENT_IPC};

    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        struct cuda_event *event = event_on(flags[i]);
        cr_assert_neq(cuda_event_handle(event), 0);
        cr_assert_eq(cuda_event_query(event, &error), 1, "nothing is recorded");
        assert_ok(cuda_event_synchronize(event, &error));
        be_late(f.s1);
        fill(f.ax, 1, f.s1);
        assert_ok(cuda_event_record(event, f.s1, &error));
        cr_assert_eq(cuda_event_query(event, &error), 0);
        assert_ok(cuda_event_synchronize(event, &error));
        cr_assert_eq(cuda_event_query(event, &error), 1);
        cr_assert_eq(cuda_stream_query(f.a, f.s1, 0, &error), 1);
        cuda_event_free(event);
    }
    cr_assert_eq(soft_live(&f.gpu, "events"), 0);
}

BRACKET_TEST(event, is_waited_for_by_a_stream)
{
    struct cuda_event *event = event_on(0);
    for (uint64_t stream = 1; stream <= 3; stream++) {
        uint64_t on = stream < 3 ? stream : f.s1; /* 1 and 2 are streams, too */
        be_late(on);
        fill(f.ax, (unsigned char)stream, on);
        assert_ok(cuda_event_record(event, on, &error));
        assert_ok(cuda_event_wait(event, f.s2, &error));
        get(f.bx, f.seen[0], f.s2);
        assert_ok(caid_stream_synchronize(f.b, f.s2, 0, &error));
        assert_all(f.seen[0], (unsigned char)stream);
    }
    cuda_event_free(event);
}

/* Another process, which execs, waits for the event by its 64 bytes. */
static int
run_waiter(const uint8_t handle[CUDA_EVENT_HANDLE_SIZE])
{
    char hex[2 * CUDA_EVENT_HANDLE_SIZE + 1];

    for (size_t i = 0; i < CUDA_EVENT_HANDLE_SIZE; i++)
        snprintf(hex + 2 * i, 3, "%02x", handle[i]);
    return process_run("waiter", hex, NULL);
}

IPC_TEST(is_waited_for_by_another_process)
{
    uint8_t handle[CUDA_EVENT_HANDLE_SIZE];

    fixture_begin();
    struct cuda_event *event = event_on(CUDA_EVENT_IPC);
    assert_ok(cuda_event_ipc_handle(event, handle, &error));
    be_late(f.s1);
    fill(f.ax, 9, f.s1);
    assert_ok(cuda_event_record(event, f.s1, &error));
    cr_assert_eq(run_waiter(handle), 0);
    cr_assert_eq(cuda_event_query(event, &error), 1, "it did not wait");
    cuda_event_free(event);
    fixture_end();
}

BRACKET_TEST(event, that_is_none_is_refused)
{
    uint8_t handle[CUDA_EVENT_HANDLE_SIZE] = {0};
    struct cuda_event *none = NULL;

    struct cuda_event *event = event_on(0);
    assert_failed(cuda_event_ipc_handle(event, handle, &error), CAID_ERR_UNSUPPORTED);
    assert_failed(cuda_event_record(event, 0, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_wait(event, 0, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_open(f.a, &none, 0, handle, &error), CAID_ERR_DRIVER);
    cr_assert_neq(error.cuda_result, 0);
    assert_failed(cuda_event_open(f.a, &none, 0, NULL, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_new(f.a, &none, 0, 16, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_new(f.a, &none, 0, CUDA_EVENT_IPC | CUDA_EVENT_OF_STREAM, &error),
                  CAID_ERR_INVALID);
    assert_failed(cuda_event_new(f.a, &none, 7, CUDA_EVENT_OF_STREAM, &error), CAID_ERR_DEVICE);
    assert_failed(cuda_event_new(f.a, &none, 7, 0, &error), CAID_ERR_DEVICE);
    assert_failed(cuda_event_new(f.a, NULL, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_new(NULL, &none, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_query(NULL, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_record(NULL, f.s1, &error), CAID_ERR_INVALID);
    capture_begin(f.s1);
    assert_failed(cuda_event_record(event, f.s1, &error), CAID_ERR_INVALID);
    assert_failed(cuda_event_wait(event, f.s1, &error), CAID_ERR_INVALID);
    capture_end(f.s1);
    cr_assert_null(none);
    cr_assert_eq(cuda_event_handle(NULL), 0);
    cuda_event_free(NULL);
    cuda_event_free(event);
}

static void
two_devices(void)
{
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    soft_warm_up();
}

CAID_TEST_WITH(event, of_another_device_is_refused, .init = two_devices, .timeout = 120)
{
    struct cuda_event *event;

    fixture_begin();
    assert_ok(cuda_event_new(f.a, &event, 1, 0, &error));
    assert_failed(cuda_event_record(event, f.s1, &error), CAID_ERR_DEVICE);
    assert_ok(cuda_event_wait(event, f.s1, &error)); /* that may be of any */
    cuda_event_free(event);
    fixture_end();
}

/* It is made by the record, where the stream is: in a context of the program's own, too. */
BRACKET_TEST(event, of_a_stream_is_of_any_context)
{
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUcontext own, popped;
    CUstream stream;

    void *symbol = gpu_symbol(&f.gpu, "cuCtxCreate_v2");
    memcpy(&create, &symbol, sizeof(create));
    assert_cuda(create(&own, 0, 0));
    assert_cuda(f.gpu.drv->cu.cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&popped));
    const uint64_t streams[] = {f.s1, (uintptr_t)stream};
    for (size_t i = 0; i < ARRAY_SIZE(streams); i++) {
        struct cuda_event *event = event_on(CUDA_EVENT_OF_STREAM);
        cr_assert_eq(cuda_event_handle(event), 0);
        cr_assert_eq(cuda_event_query(event, &error), 1);
        assert_ok(cuda_event_synchronize(event, &error));
        assert_ok(cuda_event_wait(event, f.s2, &error));
        be_late(streams[i]);
        fill(f.ax, 1, streams[i]);
        assert_ok(cuda_event_record(event, streams[i], &error));
        cr_assert_neq(cuda_event_handle(event), 0);
        cr_assert_eq(cuda_event_query(event, &error), 0);
        assert_ok(cuda_event_wait(event, f.s2, &error));
        cr_assert_eq(cuda_stream_query(f.a, f.s2, 0, &error), 0);
        assert_ok(cuda_event_synchronize(event, &error));
        assert_failed(cuda_event_record(event, streams[!i], &error), CAID_ERR_DEVICE);
        cuda_event_free(event);
    }
    cr_assert_eq(soft_live(&f.gpu, "events"), 0);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
}

BRACKET_TEST(event, outlives_its_client)
{
    struct caid_client *driver;
    struct cuda_event *event;
    assert_ok(cuda_driver_open(&driver, "soft", &error));
    assert_ok(cuda_event_new(driver, &event, 0, 0, &error));
    assert_ok(cuda_event_record(event, f.s1, &error)); /* no daemon is asked */
    pid_t pid = fork();
    if (pid == 0) {
        bool forked = cuda_event_query(event, &error) == -EPERM &&
                      error.code == CAID_ERR_FORKED;
        cuda_event_free(event);
        _exit(!forked);
    }
    cr_assert_eq(process_wait(pid), 0);
    caid_client_close(driver);
    assert_failed(cuda_event_query(event, &error), CAID_ERR_CLOSED);
    assert_failed(cuda_event_record(event, f.s1, &error), CAID_ERR_CLOSED);
    cuda_event_free(event);
    cr_assert_eq(soft_live(&f.gpu, "events"), 0);
}

static const char *const failing[] = {"cuEventCreate",      "cuCtxPushCurrent",
                                      "cuEventRecord",      "cuStreamWaitEvent",
                                      "cuEventSynchronize", "cuIpcGetEventHandle"};

static int
use_event(void)
{
    uint8_t handle[CUDA_EVENT_HANDLE_SIZE];
    struct cuda_event *event;

    int r = cuda_event_new(f.a, &event, 0, CUDA_EVENT_IPC, &error);
    if (r < 0)
        return r;
    r = cuda_event_record(event, f.s1, &error);
    if (r == 0)
        r = cuda_event_wait(event, f.s2, &error);
    if (r == 0)
        r = cuda_event_synchronize(event, &error);
    if (r == 0)
        r = cuda_event_ipc_handle(event, handle, &error);
    cuda_event_free(event);
    return r;
}

IPC_TEST(faults_are_errors)
{
    char command[80];

    fixture_begin();
    for (size_t i = 0; i < ARRAY_SIZE(failing); i++) {
        snprintf(command, sizeof(command), "fail %s@1=UNKNOWN", failing[i]);
        soft_control(&f.gpu, command);
        assert_failed(use_event(), CAID_ERR_DRIVER);
        cr_assert(strstr(error.message, failing[i]), "%s", error.message);
        soft_control(&f.gpu, "clear");
        assert_ok(use_event());
        cr_assert_eq(soft_live(&f.gpu, "events"), 0, "%s", failing[i]);
    }
    fixture_end();
}

/* ---- copies on a stream ---- */

static const int64_t rows[] = {64, 32}, row_strides[] = {64, 1};

static struct caid_copy
copy_on(uint64_t stream)
{
    (void)f;
    OPTIONS(caid_copy, copy, .itemsize = 1, .shape = rows, .ndim = 2, .stream = stream);
    return copy;
}

/* Half of the bytes of each row, by each of the driver's ways. */
static void
copy_late(bool dst_on_host, bool src_on_host, bool in_rows)
{
    struct caid_copy copy = copy_on(f.s1);
    unsigned char *from = f.seen[0], *to = f.seen[1];

    memset(from, 6, N_BYTES);
    memset(to, 0, N_BYTES);
    uint64_t a = caid_array_get_info(f.ax)->ptr, src = src_on_host ? (uintptr_t)from : a + 2048;
    memset((void *)(uintptr_t)a, 0, N_BYTES);
    memset((void *)(uintptr_t)src, 6, 2048);
    copy.src = src;
    copy.dst = dst_on_host ? (uintptr_t)to : a;
    copy.dst_on_host = dst_on_host;
    copy.src_on_host = src_on_host;
    copy.shape = (int64_t[]){32, 32};
    copy.dst_strides = copy.src_strides = in_rows ? row_strides : NULL;
    be_late(f.s1);
    assert_ok(caid_copy(f.a, &copy, &error));
    const unsigned char *result = dst_on_host ? to : (const unsigned char *)(uintptr_t)a;
    cr_assert_eq(result[0], 0, "it has happened before the stream came to it");
    assert_ok(caid_stream_synchronize(f.a, f.s1, 0, &error));
    for (size_t i = 0; i < 2048; i++)
        cr_assert_eq(result[i], in_rows ? (i % 64 < 32 ? 6 : 0) : (i < 1024 ? 6 : 0),
                     "byte %zu", i);
}

BRACKET_TEST(event, copies_on_a_stream_are_enqueued)
{
    for (int i = 0; i < 2; i++) {
        copy_late(false, true, i);
        copy_late(true, false, i);
        copy_late(false, false, i);
    }
    cr_assert_eq(soft_calls(&f.gpu, "cuMemcpy2DAsync"), 3);
    cr_assert_eq(soft_calls(&f.gpu, "cuMemcpy2DUnaligned"), 0);
    soft_control(&f.gpu,
                 "fail cuMemcpy2DAsync=INVALID_VALUE"); /* a pitch that it does not take */
    copy_late(false, false, true);
    soft_control(&f.gpu, "clear");
}

/* From host to host there is no copy for the stream: the call waits for what comes before. */
BRACKET_TEST(event, copies_of_the_host_wait_for_the_stream)
{
    struct caid_copy copy = copy_on(f.s1);
    be_late(f.s1);
    get(f.ax, f.seen[0], f.s1);
    cr_assert_neq(f.seen[0][0], 0, "the stream is not late");
    copy.src = (uintptr_t)f.seen[0];
    copy.dst = (uintptr_t)f.seen[1];
    copy.src_on_host = copy.dst_on_host = true;
    assert_ok(caid_copy(f.a, &copy, &error));
    cr_assert_eq(f.seen[1][0], 0);
    cr_assert_eq(f.seen[1][2047], 0);
}

BRACKET_TEST(event, copies_on_a_stream_that_fail_are_errors)
{
    static unsigned char from[N_BYTES];
    struct caid_client *driver;

    struct caid_copy copy = copy_on(f.s1);
    copy.src = (uintptr_t)from;
    copy.src_on_host = true;
    copy.dst = caid_array_get_info(f.ax)->ptr;
    soft_control(&f.gpu, "fail cuMemcpyHtoDAsync=UNKNOWN");
    assert_failed(caid_copy(f.a, &copy, &error), CAID_ERR_DRIVER);
    cr_assert(strstr(error.message, "cuMemcpyHtoDAsync"), "%s", error.message);
    soft_control(&f.gpu, "clear");
    capture_begin(f.s1);
    cr_assert_lt(caid_copy(f.a, &copy, &error), 0);
    capture_end(f.s1);
    assert_ok(caid_copy(f.a, &copy, &error));
    copy.shape = (int64_t[]){0, 1};
    copy.dst = 0;
    assert_ok(caid_copy(f.a, &copy, &error)); /* nothing */

    assert_ok(cuda_driver_open(&driver, "soft", &error));
    copy = copy_on(2);
    copy.src = (uintptr_t)from;
    copy.src_on_host = true;
    copy.dst = caid_array_get_info(f.ax)->ptr;
    assert_ok(caid_copy(driver, &copy, &error));
    assert_ok(caid_stream_synchronize(driver, 2, 0, &error));
    caid_client_close(driver);
}
