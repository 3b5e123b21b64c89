/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named timelines between two clients, in each way of handing off: what a wait orders, what it
 * holds up, and what is refused. Work is held up by a gate, a word that its stream waits for; where an
 * order is asserted, it is also seen that the data is not there yet without the wait.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"

#define N_BYTES  ((size_t)4096)
#define LATE_NS  (200 * NSEC_PER_MSEC) /* when a gate is opened */
#define SOON_NS  (150 * NSEC_PER_MSEC) /* much less than that, on a busy machine too */
#define LONG_NS  (30 * NSEC_PER_SEC)
#define PAUSE_NS (50 * NSEC_PER_MSEC)

#define TIMELINE_TEST(name) \
    CAID_TEST_WITH(timeline, name, .init = driver_warm_up_events, .timeout = 120)

static const char *const modes[] = {"memops", "host", "events"};

struct fixture {
    struct test_gpu gpu;
    struct daemon daemon;
    struct caid_client *producer, *consumer;
    struct caid_timeline *signals, *waits;
    uint64_t from, to;      /* streams of the two */
    _Atomic uint64_t *gate; /* page-locked memory */
    pthread_t opener;
    struct caid_error error;
};

static uint64_t
new_stream(struct fixture *f, struct caid_client *client)
{
    uint64_t stream;

    assert_ok(caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &f->error),
              f->error);
    return stream;
}

/* ---- a gate ---- */

static void
gate_close(struct fixture *f, uint64_t stream)
{
    CUdeviceptr at;

    *f->gate = 0;
    assert_cuda(f->gpu.drv->cu.cuMemHostGetDevicePointer(&at, f->gate, 0));
    assert_cuda(f->gpu.drv->cu.cuStreamWaitValue64((CUstream)(uintptr_t)stream, at, 1,
                                                   CU_STREAM_WAIT_VALUE_GEQ));
}

static void
gate_open(struct fixture *f)
{
    *f->gate = 1;
}

static void *
open_late(void *arg)
{
    const struct timespec pause = {.tv_nsec = LATE_NS};

    nanosleep(&pause, NULL);
    gate_open(arg);
    return NULL;
}

static void
gate_open_late(struct fixture *f)
{
    cr_assert_eq(pthread_create(&f->opener, NULL, open_late, f), 0);
}

/* ---- the two ---- */

static void
begin(struct fixture *f, const char *mode)
{
    const struct caid_device *devices;
    char config[64];
    void *gate;

    gpu_begin(&f->gpu);
    assert_cuda(f->gpu.drv->cu.cuMemHostAlloc(&gate, sizeof(*f->gate), 0));
    f->gate = gate;
    snprintf(config, sizeof(config), "[handoff]\nmode = %s\n", mode);
    daemon_start_with(&f->daemon, config);
    f->producer = daemon_connect(&f->daemon);
    cr_assert_gt(caid_client_devices(f->producer, &devices), 0);
    cr_assert(strcmp(mode, "auto") == 0 || strcmp(devices[0].handoff, mode) == 0);
    cr_assert(strstr(devices[0].kinds, "device"));
    f->consumer = daemon_connect(&f->daemon);
    f->from = new_stream(f, f->producer);
    f->to = new_stream(f, f->consumer);
    assert_ok(caid_timeline_create(f->producer, &f->signals, "t", NULL, &f->error), f->error);
    assert_ok(caid_timeline_open(f->consumer, &f->waits, "t", NULL, &f->error), f->error);
}

static void
end(struct fixture *f)
{
    caid_timeline_close(f->waits);
    caid_timeline_close(f->signals);
    assert_ok(caid_stream_destroy(f->producer, f->from, &f->error), f->error);
    assert_ok(caid_stream_destroy(f->consumer, f->to, &f->error), f->error);
    caid_client_close(f->consumer);
    caid_client_close(f->producer);
    daemon_stop(&f->daemon);
    assert_cuda(f->gpu.drv->cu.cuMemFreeHost((void *)f->gate));
    gpu_end(&f->gpu);
}

static uint64_t
value_of(struct fixture *f, struct caid_timeline *timeline)
{
    uint64_t value;

    assert_ok(caid_timeline_value(timeline, &value, &f->error), f->error);
    return value;
}

static void
signal_from(struct fixture *f, uint64_t stream, uint64_t value)
{
    assert_ok(caid_timeline_signal(f->signals, stream, value, &f->error), f->error);
}

static void
wait_for(struct fixture *f, uint64_t stream, uint64_t value)
{
    assert_ok(caid_timeline_wait(f->waits, stream, value, LONG_NS, 0, &f->error), f->error);
}

static void
sync_stream(struct fixture *f, struct caid_client *client, uint64_t stream)
{
    assert_ok(caid_stream_synchronize(client, stream, 0, &f->error), f->error);
}

/* ---- values ---- */

TIMELINE_TEST(host_to_host)
{
    struct fixture f;

    begin(&f, "auto");
    cr_assert_eq(value_of(&f, f.waits), 0);
    signal_from(&f, 0, 1);
    wait_for(&f, 0, 1);
    cr_assert_eq(value_of(&f, f.waits), 1);
    signal_from(&f, 0, 7); /* any value that is more */
    wait_for(&f, 0, 3);
    cr_assert_eq(value_of(&f, f.signals), 7);
    signal_from(&f, 0, CAID_TIMELINE_MAX);
    wait_for(&f, 0, CAID_TIMELINE_MAX);
    cr_assert_eq(value_of(&f, f.waits), CAID_TIMELINE_MAX);
    end(&f);
}

TIMELINE_TEST(refusals)
{
    struct caid_timeline *other = NULL;
    struct fixture f;

    begin(&f, "auto");
    signal_from(&f, 0, 5);
    assert_failed(caid_timeline_signal(f.signals, 0, 0, &f.error), f.error, CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.signals, 0, 5, &f.error), f.error, CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.signals, f.from, 4, &f.error), f.error,
                  CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.signals, 0, CAID_TIMELINE_MAX + 1, &f.error), f.error,
                  CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.waits, 0, 6, &f.error), f.error, CAID_ERR_PERMISSION);
    assert_failed(caid_timeline_wait(f.waits, 0, 0, 0, 0, &f.error), f.error, CAID_ERR_INVALID);
    assert_failed(caid_timeline_wait(f.waits, 0, CAID_TIMELINE_MAX + 1, 0, 0, &f.error),
                  f.error, CAID_ERR_INVALID);
    assert_failed(caid_timeline_wait(f.waits, 0, 1, 0, 8, &f.error), f.error, CAID_ERR_INVALID);
    assert_failed(caid_timeline_wait(f.waits, 0, 6, 0, 0, &f.error), f.error, CAID_ERR_TIMEOUT);
    cr_assert(strstr(f.error.message, "\"t\""), "%s", f.error.message);
    assert_failed(caid_timeline_create(f.consumer, &other, "t", NULL, &f.error), f.error,
                  CAID_ERR_EXISTS);
    assert_failed(caid_timeline_open(f.consumer, &other, "u", NULL, &f.error), f.error,
                  CAID_ERR_NOT_FOUND);
    assert_failed(caid_timeline_create(f.consumer, &other, "", NULL, &f.error), f.error,
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_timeline_value(NULL, NULL, &f.error), f.error, CAID_ERR_INVALID);
    cr_assert_null(other);
    cr_assert_eq(value_of(&f, f.waits), 5);
    end(&f);
}

/* Arrays have names of their own, and so has each pool. */
TIMELINE_TEST(names)
{
    struct caid_timeline *again;
    struct fixture f;

    begin(&f, "auto");
    caid_array_close(make_bytes(f.producer, "t", 1));
    caid_timeline_close(f.signals);
    assert_failed(caid_timeline_open(f.consumer, &again, "t", NULL, &f.error), f.error,
                  CAID_ERR_NOT_FOUND);
    assert_ok(caid_timeline_create(f.producer, &f.signals, "t", NULL, &f.error), f.error);
    assert_ok(caid_timeline_open(f.consumer, &again, "t", NULL, &f.error), f.error);
    signal_from(&f, 0, 2);
    cr_assert_eq(value_of(&f, again), 2); /* the new one's */
    caid_timeline_close(again);
    end(&f);
}

/* Opened twice, by its creator too; each is closed for itself. */
TIMELINE_TEST(opened_twice)
{
    struct caid_timeline *own, *second;
    struct fixture f;

    begin(&f, "auto");
    assert_ok(caid_timeline_open(f.producer, &own, "t", NULL, &f.error), f.error);
    assert_ok(caid_timeline_open(f.consumer, &second, "t", NULL, &f.error), f.error);
    signal_from(&f, 0, 1);
    cr_assert_eq(value_of(&f, own), 1);
    caid_timeline_close(own);
    caid_timeline_close(second);
    signal_from(&f, 0, 2);
    wait_for(&f, 0, 2);
    caid_timeline_close(f.waits);
    assert_ok(caid_timeline_open(f.consumer, &f.waits, "t", NULL, &f.error), f.error);
    cr_assert_eq(value_of(&f, f.waits), 2);
    end(&f);
}

struct seen {
    int n;
    uint64_t value, submitted, holders, pid;
};

static int
see(const struct caid_timeline_entry *entry, void *userdata)
{
    struct seen *seen = userdata;

    cr_assert(strncmp(entry->name, "t", 1) == 0 && entry->pool);
    if (strcmp(entry->name, "t") == 0)
        *seen =
            (struct seen){seen->n, entry->value, entry->submitted, entry->holders, entry->pid};
    seen->n++;
    return entry->name[1] == '5' ? 5 : 0;
}

TIMELINE_TEST(list)
{
    struct caid_list_options options = CAID_INIT(options);
    struct caid_timeline *more[8];
    struct seen seen = {0};
    struct fixture f;
    char name[8];

    begin(&f, "auto");
    signal_from(&f, 0, 9);
    assert_ok(caid_timelines(f.consumer, NULL, see, &seen, &f.error), f.error);
    cr_assert(seen.n == 1 && seen.value == 9 && seen.submitted == 9 && seen.holders == 1 &&
              seen.pid == (uint64_t)getpid());
    for (size_t i = 0; i < ARRAY_SIZE(more); i++) {
        snprintf(name, sizeof(name), "t%zu", i);
        assert_ok(caid_timeline_create(f.producer, &more[i], name, NULL, &f.error), f.error);
    }
    options.all = true;
    seen = (struct seen){0};
    cr_assert_eq(caid_timelines(f.consumer, &options, see, &seen, &f.error), 5);
    cr_assert_eq(seen.n, 7);
    for (size_t i = 0; i < ARRAY_SIZE(more); i++)
        caid_timeline_close(more[i]);
    seen.n = 0;
    assert_ok(caid_timelines(f.consumer, &options, see, &seen, &f.error), f.error);
    cr_assert_eq(seen.n, 1);
    assert_failed(caid_timelines(f.consumer, NULL, NULL, NULL, &f.error), f.error,
                  CAID_ERR_INVALID);
    end(&f);
}

/* ---- the host waits ---- */

static void *
signal_late(void *arg)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    struct fixture *f = arg;
    struct caid_error error;

    nanosleep(&pause, NULL);
    return (void *)(intptr_t)caid_timeline_signal(f->signals, 0, 1, &error);
}

TIMELINE_TEST(host_waits_for_a_signal)
{
    struct fixture f;
    pthread_t thread;
    void *r;

    begin(&f, "auto");
    uint64_t before = clock_now_ns();
    assert_failed(caid_timeline_wait(f.waits, 0, 1, PAUSE_NS, 0, &f.error), f.error,
                  CAID_ERR_TIMEOUT);
    cr_assert_geq(clock_now_ns() - before, PAUSE_NS);
    before = clock_now_ns();
    cr_assert_eq(pthread_create(&thread, NULL, signal_late, &f), 0);
    assert_ok(caid_timeline_wait(f.waits, 0, 1, CAID_FOREVER, 0, &f.error), f.error);
    cr_assert_geq(clock_now_ns() - before, PAUSE_NS);
    pthread_join(thread, &r);
    cr_assert_null(r);
    end(&f);
}

/* ---- order ---- */

/* Fills an array when the gate is open, and signals. */
static void
produce(struct fixture *f, struct caid_array *array, uint64_t value)
{
    gate_close(f, f->from);
    assert_cuda(f->gpu.drv->cu.cuMemsetD8Async(caid_array_get_info(array)->ptr, 0xaa, N_BYTES,
                                               (CUstream)(uintptr_t)f->from));
    signal_from(f, f->from, value);
}

static void
read_to(struct fixture *f, struct caid_array *array, unsigned char *bytes)
{
    assert_cuda(f->gpu.drv->cu.cuMemcpyDtoHAsync(bytes, caid_array_get_info(array)->ptr,
                                                 N_BYTES, (CUstream)(uintptr_t)f->to));
    assert_cuda(f->gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)f->to));
}

/* The two see the same memory, each by its own lease. */
static void
order(const char *mode, bool on_stream, bool waits)
{
    unsigned char *bytes = malloc(N_BYTES);
    struct caid_array *written, *read;
    struct fixture f;

    begin(&f, mode);
    written = make_bytes(f.producer, "a", (int64_t)N_BYTES);
    assert_ok(caid_array_open(f.consumer, &read, "a", NULL, &f.error), f.error);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(caid_array_get_info(written)->ptr, 0, N_BYTES));
    assert_cuda(f.gpu.drv->cu.cuCtxSynchronize());

    produce(&f, written, 1);
    uint64_t before = clock_now_ns();
    if (waits) {
        gate_open_late(&f);
        wait_for(&f, on_stream ? f.to : 0, 1);
    }
    uint64_t held = clock_now_ns() - before;
    read_to(&f, read, bytes);
    if (waits)
        pthread_join(f.opener, NULL);
    else
        gate_open(&f);
    for (size_t i = 0; i < N_BYTES; i++)
        cr_assert_eq(bytes[i], waits ? 0xaa : 0, "%s: byte %zu", mode, i);
    /* A stream that can wait does not hold the host. In one process an event cannot be opened. */
    if (waits && on_stream && strcmp(mode, "memops") == 0)
        cr_assert_lt(held, SOON_NS);
    else if (waits)
        cr_assert_geq(held, LATE_NS / 2);
    sync_stream(&f, f.producer, f.from);

    caid_array_close(read);
    caid_array_close(written);
    free(bytes);
    end(&f);
}

static void
each_order(bool on_stream)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        order(modes[i], on_stream, false);
        order(modes[i], on_stream, true);
    }
}

TIMELINE_TEST(stream_to_stream)
{
    each_order(true);
}

TIMELINE_TEST(stream_to_host)
{
    each_order(false);
}

/* In the order in which they were enqueued, and each when the stream comes to it. */
TIMELINE_TEST(values_come_one_by_one)
{
    struct fixture f;

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        begin(&f, modes[i]);
        for (uint64_t value = 1; value <= 100; value++)
            signal_from(&f, f.from, value);
        wait_for(&f, 0, 50);
        cr_assert_geq(value_of(&f, f.waits), 50);
        wait_for(&f, f.to, 100);
        sync_stream(&f, f.consumer, f.to);
        cr_assert_eq(value_of(&f, f.waits), 100);
        end(&f);
    }
}

/* A timeline that the host and streams signal in turn. */
TIMELINE_TEST(host_does_not_overtake_a_stream)
{
    struct fixture f;

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        begin(&f, modes[i]);
        gate_close(&f, f.from);
        signal_from(&f, f.from, 1);
        assert_failed(caid_timeline_signal(f.signals, 0, 2, &f.error), f.error,
                      CAID_ERR_INVALID);
        gate_open(&f);
        wait_for(&f, 0, 1);
        signal_from(&f, 0, 2);
        signal_from(&f, f.from, 3);
        wait_for(&f, 0, 3);
        end(&f);
    }
}

/* ---- what has not been submitted (I7) ---- */

static uint64_t
n_waits(const struct fixture *f)
{
    return soft_calls(&f->gpu, "cuStreamWaitValue64");
}

TIMELINE_TEST(no_stream_waits_for_what_is_not_submitted)
{
    struct fixture f;

    if (!gpu_is_soft())
        return;
    begin(&f, "memops");
    assert_failed(caid_timeline_wait(f.waits, f.to, 1, PAUSE_NS, 0, &f.error), f.error,
                  CAID_ERR_TIMEOUT);
    cr_assert_eq(n_waits(&f), 0);
    signal_from(&f, 0, 1);
    wait_for(&f, f.to, 1); /* it is there: nothing to wait for */
    cr_assert_eq(n_waits(&f), 0);
    end(&f);
}

TIMELINE_TEST(ahead)
{
    struct fixture f;

    begin(&f, "auto");
    assert_ok(caid_timeline_wait(f.waits, f.to, 2, 0, CAID_TIMELINE_AHEAD, &f.error), f.error);
    cr_assert_eq(cuda_stream_query(f.consumer, f.to, 0, &f.error), 0);
    signal_from(&f, 0, 1);
    cr_assert_eq(cuda_stream_query(f.consumer, f.to, 0, &f.error), 0);
    signal_from(&f, f.from, 2);
    sync_stream(&f, f.consumer, f.to);
    cr_assert_eq(value_of(&f, f.waits), 2);
    end(&f);
}

/* Where the host has to wait for the stream, a timeout is heeded. */
TIMELINE_TEST(ahead_on_the_host)
{
    struct fixture f;

    begin(&f, "host");
    assert_failed(caid_timeline_wait(f.waits, f.to, 1, PAUSE_NS, CAID_TIMELINE_AHEAD, &f.error),
                  f.error, CAID_ERR_TIMEOUT);
    signal_from(&f, f.from, 1);
    assert_ok(caid_timeline_wait(f.waits, f.to, 1, LONG_NS, CAID_TIMELINE_AHEAD, &f.error),
              f.error);
    end(&f);
}

/* A page is registered once for each client, and not at all for the host. */
TIMELINE_TEST(registered_once)
{
    struct fixture f;

    if (!gpu_is_soft())
        return;
    begin(&f, "memops");
    uint64_t before = soft_calls(&f.gpu, "cuMemHostRegister");
    signal_from(&f, 0, 1);
    wait_for(&f, 0, 1);
    cr_assert_eq(soft_calls(&f.gpu, "cuMemHostRegister"), before);
    for (uint64_t value = 2; value < 20; value++) {
        signal_from(&f, f.from, value);
        assert_ok(caid_timeline_wait(f.waits, f.to, value + 1, 0, CAID_TIMELINE_AHEAD,
                                     &f.error),
                  f.error);
    }
    cr_assert_eq(soft_calls(&f.gpu, "cuMemHostRegister"), before + 2);
    signal_from(&f, f.from, 20);
    sync_stream(&f, f.consumer, f.to);
    end(&f);
}

/* ---- captures ---- */

TIMELINE_TEST(a_stream_that_captures_is_refused)
{
    CUresult (*begin_capture)(CUstream, CUstreamCaptureMode);
    CUresult (*end_capture)(CUstream, void **);
    CUresult (*destroy)(void *);
    struct fixture f;
    void *graph;

    begin(&f, "auto");
    void *symbol = gpu_symbol(&f.gpu, "cuStreamBeginCapture_v2");
    memcpy(&begin_capture, &symbol, sizeof(symbol));
    symbol = gpu_symbol(&f.gpu, "cuStreamEndCapture");
    memcpy(&end_capture, &symbol, sizeof(symbol));
    symbol = gpu_symbol(&f.gpu, "cuGraphDestroy");
    memcpy(&destroy, &symbol, sizeof(symbol));
    CUstream stream = (CUstream)(uintptr_t)f.from;

    signal_from(&f, f.from, 1); /* known, and then it captures */
    sync_stream(&f, f.producer, f.from);
    assert_cuda(begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_failed(caid_timeline_signal(f.signals, f.from, 2, &f.error), f.error,
                  CAID_ERR_INVALID);
    cr_assert(strstr(f.error.message, "captures"), "%s", f.error.message);
    assert_failed(caid_timeline_wait(f.waits, f.from, 2, 0, CAID_TIMELINE_AHEAD, &f.error),
                  f.error, CAID_ERR_INVALID);
    assert_failed(caid_stream_synchronize(f.producer, f.from, 0, &f.error), f.error,
                  CAID_ERR_INVALID);
    assert_cuda(end_capture(stream, &graph)); /* and the capture has not been ended by that */
    assert_cuda(destroy(graph));
    signal_from(&f, f.from, 2);
    wait_for(&f, 0, 2);
    end(&f);
}
