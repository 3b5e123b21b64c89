/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named timelines between two clients, in each way of handing off: what a wait orders, what it
 * holds up, and what is refused. Work is held up by a gate, a word that its stream waits for; where
 * an order is asserted, it is also seen that the data is not there yet without the wait.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"
#include "process.h"

#define N_BYTES  ((size_t)4096)
#define LONG_NS  (30 * NSEC_PER_SEC)
#define PAUSE_NS (50 * NSEC_PER_MSEC)

#define MODES_TEST(name) \
    CAID_TEST_WITH(timeline, name, .init = driver_warm_up_events, .timeout = 120)
#define TIMELINE_TEST(name)                                                                \
    CAID_TEST_BETWEEN(timeline, name, begin("auto"), end(), .init = driver_warm_up_events, \
                      .timeout = 120)

static const char *const modes[] = {"memops", "host", "events"};

static struct fixture {
    struct test_gpu gpu;
    struct daemon daemon;
    struct caid_client *producer, *consumer;
    struct caid_timeline *signals, *waits;
    uint64_t from, to;      /* streams of the two */
    _Atomic uint64_t *gate; /* page-locked memory */
    pthread_t opener;
} f;

static uint64_t
new_stream(struct caid_client *client)
{
    uint64_t stream;

    assert_ok(caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error));
    return stream;
}

/* ---- a gate ---- */

static void
gate_close(uint64_t stream)
{
    *f.gate = 0;
    gpu_wait_at(&f.gpu, f.gate, (CUstream)(uintptr_t)stream);
}

static void
gate_open(void)
{
    *f.gate = 1;
}

/* When the test waits. */
static void *
open_late(void *unused)
{
    (void)unused;
    while (!thread_waits(getpid()))
        ;
    gate_open();
    return NULL;
}

static void
gate_open_late(void)
{
    cr_assert_eq(pthread_create(&f.opener, NULL, open_late, NULL), 0);
}

/* ---- the two ---- */

static void
begin(const char *mode)
{
    const struct caid_device *const *devices;

    gpu_begin(&f.gpu);
    f.gate = gpu_gate_new(&f.gpu);
    daemon_start_by(&f.daemon, mode);
    f.producer = daemon_connect(&f.daemon);
    cr_assert_gt(caid_client_devices(f.producer, &devices), 0);
    cr_assert(strcmp(mode, "auto") == 0 || strcmp(devices[0]->handoff, mode) == 0);
    cr_assert(strstr(devices[0]->kinds, "device"));
    f.consumer = daemon_connect(&f.daemon);
    f.from = new_stream(f.producer);
    f.to = new_stream(f.consumer);
    assert_ok(caid_timeline_create(f.producer, &f.signals, "t", NULL, &error));
    assert_ok(caid_timeline_open(f.consumer, &f.waits, "t", NULL, &error));
}

static void
end(void)
{
    caid_timeline_close(f.waits);
    caid_timeline_close(f.signals);
    assert_ok(caid_stream_destroy(f.producer, f.from, &error));
    assert_ok(caid_stream_destroy(f.consumer, f.to, &error));
    caid_client_close(f.consumer);
    caid_client_close(f.producer);
    daemon_stop(&f.daemon);
    gpu_gate_free(&f.gpu, f.gate);
    gpu_end(&f.gpu);
}

static uint64_t
value_of(struct caid_timeline *timeline)
{
    uint64_t value;

    assert_ok(caid_timeline_value(timeline, &value, &error));
    return value;
}

static void
signal_from(uint64_t stream, uint64_t value)
{
    assert_ok(caid_timeline_signal(f.signals, stream, value, &error));
}

static void
wait_for(uint64_t stream, uint64_t value)
{
    assert_ok(caid_timeline_wait(f.waits, stream, value, LONG_NS, 0, &error));
}

static void
sync_stream(struct caid_client *client, uint64_t stream)
{
    assert_ok(caid_stream_synchronize(client, stream, 0, &error));
}

/* ---- values ---- */

TIMELINE_TEST(host_to_host)
{
    cr_assert_eq(value_of(f.waits), 0);
    signal_from(0, 1);
    wait_for(0, 1);
    cr_assert_eq(value_of(f.waits), 1);
    signal_from(0, 7); /* any value that is more */
    wait_for(0, 3);
    cr_assert_eq(value_of(f.signals), 7);
    signal_from(0, CAID_TIMELINE_MAX);
    wait_for(0, CAID_TIMELINE_MAX);
    cr_assert_eq(value_of(f.waits), CAID_TIMELINE_MAX);
}

TIMELINE_TEST(refusals)
{
    struct caid_timeline *other = NULL;

    signal_from(0, 5);
    assert_failed(caid_timeline_signal(f.signals, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.signals, 0, 5, &error), CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.signals, f.from, 4, &error), CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.signals, 0, CAID_TIMELINE_MAX + 1, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_timeline_signal(f.waits, 0, 6, &error), CAID_ERR_PERMISSION);
    assert_failed(caid_timeline_wait(f.waits, 0, 0, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_timeline_wait(f.waits, 0, CAID_TIMELINE_MAX + 1, 0, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_timeline_wait(f.waits, 0, 1, 0, 8, &error), CAID_ERR_INVALID);
    assert_failed(caid_timeline_wait(f.waits, 0, 6, 0, 0, &error), CAID_ERR_TIMEOUT);
    cr_assert(strstr(error.message, "\"t\""), "%s", error.message);
    assert_failed(caid_timeline_create(f.consumer, &other, "t", NULL, &error), CAID_ERR_EXISTS);
    assert_failed(caid_timeline_open(f.consumer, &other, "u", NULL, &error),
                  CAID_ERR_NOT_FOUND);
    assert_failed(caid_timeline_create(f.consumer, &other, "", NULL, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_timeline_value(NULL, NULL, &error), CAID_ERR_INVALID);
    cr_assert_null(other);
    cr_assert_eq(value_of(f.waits), 5);
}

/* Arrays have names of their own, and so has each pool. */
TIMELINE_TEST(names)
{
    struct caid_timeline *again;

    caid_array_close(make_bytes(f.producer, "t", 1));
    caid_timeline_close(f.signals);
    assert_failed(caid_timeline_open(f.consumer, &again, "t", NULL, &error),
                  CAID_ERR_NOT_FOUND);
    assert_ok(caid_timeline_create(f.producer, &f.signals, "t", NULL, &error));
    assert_ok(caid_timeline_open(f.consumer, &again, "t", NULL, &error));
    signal_from(0, 2);
    cr_assert_eq(value_of(again), 2); /* the new one's */
    caid_timeline_close(again);
}

/* Opened twice, by its creator too; each is closed for itself. */
TIMELINE_TEST(opened_twice)
{
    struct caid_timeline *own, *second;

    assert_ok(caid_timeline_open(f.producer, &own, "t", NULL, &error));
    assert_ok(caid_timeline_open(f.consumer, &second, "t", NULL, &error));
    signal_from(0, 1);
    cr_assert_eq(value_of(own), 1);
    caid_timeline_close(own);
    caid_timeline_close(second);
    signal_from(0, 2);
    wait_for(0, 2);
    caid_timeline_close(f.waits);
    assert_ok(caid_timeline_open(f.consumer, &f.waits, "t", NULL, &error));
    cr_assert_eq(value_of(f.waits), 2);
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
    struct caid_timeline *more[8];
    struct seen seen = {0};
    char name[8];

    signal_from(0, 9);
    assert_ok(caid_timelines(f.consumer, NULL, see, &seen, &error));
    cr_assert(seen.n == 1 && seen.value == 9 && seen.submitted == 9 && seen.holders == 1 &&
              seen.pid == (uint64_t)getpid());
    for (size_t i = 0; i < ARRAY_SIZE(more); i++) {
        snprintf(name, sizeof(name), "t%zu", i);
        assert_ok(caid_timeline_create(f.producer, &more[i], name, NULL, &error));
    }
    OPTIONS(caid_list_options, options, .all = true);
    seen = (struct seen){0};
    cr_assert_eq(caid_timelines(f.consumer, &options, see, &seen, &error), 5);
    cr_assert_eq(seen.n, 7);
    for (size_t i = 0; i < ARRAY_SIZE(more); i++)
        caid_timeline_close(more[i]);
    seen.n = 0;
    assert_ok(caid_timelines(f.producer, &options, see, &seen, &error));
    cr_assert_eq(seen.n, 1);
    assert_failed(caid_timelines(f.consumer, NULL, NULL, NULL, &error), CAID_ERR_INVALID);
}

/* ---- the host waits ---- */

static void *
signal_late(void *unused)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};

    (void)unused;
    nanosleep(&pause, NULL);
    return (void *)(intptr_t)caid_timeline_signal(f.signals, 0, 1, &error);
}

TIMELINE_TEST(host_waits_for_a_signal)
{
    pthread_t thread;
    void *r;

    uint64_t before = clock_now_ns();
    assert_failed(caid_timeline_wait(f.waits, 0, 1, PAUSE_NS, 0, &error), CAID_ERR_TIMEOUT);
    cr_assert_geq(clock_now_ns() - before, PAUSE_NS);
    before = clock_now_ns();
    cr_assert_eq(pthread_create(&thread, NULL, signal_late, NULL), 0);
    assert_ok(caid_timeline_wait(f.waits, 0, 1, CAID_FOREVER, 0, &error));
    cr_assert_geq(clock_now_ns() - before, PAUSE_NS);
    pthread_join(thread, &r);
    cr_assert_null(r);
}

/* ---- order ---- */

/* Fills an array when the gate is open, and signals. */
static void
produce(struct caid_array *array, uint64_t value)
{
    gate_close(f.from);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(caid_array_get_info(array)->ptr, 0xaa, N_BYTES,
                                              (CUstream)(uintptr_t)f.from));
    signal_from(f.from, value);
}

static void
read_to(struct caid_array *array, unsigned char *bytes)
{
    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoHAsync(bytes, caid_array_get_info(array)->ptr, N_BYTES,
                                                (CUstream)(uintptr_t)f.to));
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)f.to));
}

/* The two see the same memory, each by its own lease. */
static void
order(const char *mode, bool on_stream, bool waits)
{
    unsigned char *bytes = malloc(N_BYTES);
    struct caid_array *written, *read;

    begin(mode);
    written = make_bytes(f.producer, "a", (int64_t)N_BYTES);
    assert_ok(caid_array_open(f.consumer, &read, "a", NULL, &error));
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(caid_array_get_info(written)->ptr, 0, N_BYTES));
    assert_cuda(f.gpu.drv->cu.cuCtxSynchronize());

    produce(written, 1);
    if (waits) {
        gate_open_late();
        wait_for(on_stream ? f.to : 0, 1);
    }
    bool held = *f.gate == 1;
    read_to(read, bytes);
    if (waits)
        pthread_join(f.opener, NULL);
    else
        gate_open();
    for (size_t i = 0; i < N_BYTES; i++)
        cr_assert_eq(bytes[i], waits ? 0xaa : 0, "%s: byte %zu", mode, i);
    /* A stream that can wait does not hold the host. In one process an event cannot be opened. */
    cr_assert_eq(held, waits && !(on_stream && strcmp(mode, "memops") == 0));
    sync_stream(f.producer, f.from);

    caid_array_close(read);
    caid_array_close(written);
    free(bytes);
    end();
}

static void
each_order(bool on_stream)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        order(modes[i], on_stream, false);
        order(modes[i], on_stream, true);
    }
}

MODES_TEST(stream_to_stream)
{
    each_order(true);
}

MODES_TEST(stream_to_host)
{
    each_order(false);
}

/* In the order in which they were enqueued, and each when the stream comes to it. */
MODES_TEST(values_come_one_by_one)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        begin(modes[i]);
        for (uint64_t value = 1; value <= 100; value++)
            signal_from(f.from, value);
        wait_for(0, 50);
        cr_assert_geq(value_of(f.waits), 50);
        wait_for(f.to, 100);
        sync_stream(f.consumer, f.to);
        cr_assert_eq(value_of(f.waits), 100);
        end();
    }
}

/* A timeline that the host and streams signal in turn. */
MODES_TEST(host_does_not_overtake_a_stream)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        begin(modes[i]);
        gate_close(f.from);
        signal_from(f.from, 1);
        assert_failed(caid_timeline_signal(f.signals, 0, 2, &error), CAID_ERR_INVALID);
        gate_open();
        wait_for(0, 1);
        signal_from(0, 2);
        signal_from(f.from, 3);
        wait_for(0, 3);
        end();
    }
}

/* ---- what has not been submitted (I7) ---- */

static uint64_t
n_waits(void)
{
    return soft_calls(&f.gpu, "cuStreamWaitValue64");
}

MODES_TEST(no_stream_waits_for_what_is_not_submitted)
{
    if (!gpu_is_soft())
        return;
    begin("memops");
    assert_failed(caid_timeline_wait(f.waits, f.to, 1, PAUSE_NS, 0, &error), CAID_ERR_TIMEOUT);
    cr_assert_eq(n_waits(), 0);
    signal_from(0, 1);
    wait_for(f.to, 1); /* it is there: nothing to wait for */
    cr_assert_eq(n_waits(), 0);
    end();
}

TIMELINE_TEST(ahead)
{
    assert_ok(caid_timeline_wait(f.waits, f.to, 2, 0, CAID_TIMELINE_AHEAD, &error));
    cr_assert_eq(cuda_stream_query(f.consumer, f.to, 0, &error), 0);
    signal_from(0, 1);
    cr_assert_eq(cuda_stream_query(f.consumer, f.to, 0, &error), 0);
    signal_from(f.from, 2);
    sync_stream(f.consumer, f.to);
    cr_assert_eq(value_of(f.waits), 2);
}

/* Where the host has to wait for the stream, a timeout is heeded. */
MODES_TEST(ahead_on_the_host)
{
    begin("host");
    assert_failed(caid_timeline_wait(f.waits, f.to, 1, PAUSE_NS, CAID_TIMELINE_AHEAD, &error),
                  CAID_ERR_TIMEOUT);
    signal_from(f.from, 1);
    assert_ok(caid_timeline_wait(f.waits, f.to, 1, LONG_NS, CAID_TIMELINE_AHEAD, &error));
    end();
}

/* A page is registered once for each client, and not at all for the host. */
MODES_TEST(registered_once)
{
    if (!gpu_is_soft())
        return;
    begin("memops");
    uint64_t before = soft_calls(&f.gpu, "cuMemHostRegister");
    signal_from(0, 1);
    wait_for(0, 1);
    cr_assert_eq(soft_calls(&f.gpu, "cuMemHostRegister"), before);
    for (uint64_t value = 2; value < 20; value++) {
        signal_from(f.from, value);
        assert_ok(caid_timeline_wait(f.waits, f.to, value + 1, 0, CAID_TIMELINE_AHEAD, &error));
    }
    cr_assert_eq(soft_calls(&f.gpu, "cuMemHostRegister"), before + 2);
    signal_from(f.from, 20);
    sync_stream(f.consumer, f.to);
    end();
}

/* ---- captures ---- */

TIMELINE_TEST(a_stream_that_captures_is_refused)
{
    CUstream stream = (CUstream)(uintptr_t)f.from;

    signal_from(f.from, 1); /* known, and then it captures */
    sync_stream(f.producer, f.from);
    gpu_capture_begin(&f.gpu, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_failed(caid_timeline_signal(f.signals, f.from, 2, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "captures"), "%s", error.message);
    assert_failed(caid_timeline_wait(f.waits, f.from, 2, 0, CAID_TIMELINE_AHEAD, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_stream_synchronize(f.producer, f.from, 0, &error), CAID_ERR_INVALID);
    cr_assert(gpu_capture_end(&f.gpu, stream)); /* which has not been ended by that */
    signal_from(f.from, 2);
    wait_for(0, 2);
}
