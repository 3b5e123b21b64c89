/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels through their C API: what readers get, and when a producer waits; by the host and by
 * streams; what is refused; and the ends of producers, readers and daemons.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "client_fixture.h"
#include "process.h"

#define BYTES     64
#define SLOTS     4
#define DEPTH_MAX 16 /* the largest one */

static const int64_t shape[] = {BYTES};

/* The test produces and reads by two clients. */
static struct {
    struct caid_client *client;
    struct caid_channel *put, *get, *next;
    struct caid_frame frame;
    uint64_t stream;
} o;

static void
begin_channels(void)
{
    begin_with_gpu();
    memset(&o, 0, sizeof(o));
    o.client = daemon_connect(&f.daemon);
}

static void
end_channels(void)
{
    caid_channel_close(o.get);
    caid_channel_close(o.put);
    caid_channel_close(o.next);
    if (o.stream)
        assert_ok(caid_stream_destroy(f.client, o.stream, &error));
    caid_client_close(o.client);
    end();
}

#define CHANNEL_TEST(name)                                                                     \
    CAID_TEST_BETWEEN(channel, name, begin_channels(), end_channels(), .init = driver_warm_up, \
                      .timeout = 120)

#define SOFT_TEST(name)                                                                        \
    CAID_TEST_BETWEEN(channel, name, ONLY_IF(gpu_is_soft(), begin_channels()), end_channels(), \
                      .init = driver_warm_up, .timeout = 120)

static struct caid_channel_options
options_of(const char *mode)
{
    OPTIONS(caid_channel_options, options, .mode = mode, .typestr = "|u1", .shape = shape,
            .ndim = 1, .slots = SLOTS, .memory = "pinned");

    return options;
}

static struct caid_channel *
create(struct caid_client *client, const char *mode)
{
    const struct caid_channel_options options = options_of(mode);
    struct caid_channel *channel;

    assert_ok(caid_channel_create(client, &channel, "c", &options, &error));
    return channel;
}

static struct caid_channel *
open_deep(struct caid_client *client, uint32_t depth)
{
    OPTIONS(caid_channel_options, options, .depth = depth, .wait = true);
    struct caid_channel *channel;

    assert_ok(caid_channel_open(client, &channel, "c", &options, &error));
    return channel;
}

/* Waits for no producer. */
static struct caid_channel *
open_now(struct caid_client *client, uint32_t depth)
{
    OPTIONS(caid_channel_options, options, .depth = depth);
    struct caid_channel *channel;

    assert_ok(caid_channel_open(client, &channel, "c", &options, &error));
    return channel;
}

static void
begin_both(const char *mode)
{
    o.put = create(o.client, mode);
    o.get = open_deep(f.client, 1);
}

static unsigned char *
bytes_of(struct caid_channel *channel, const struct caid_frame *frame)
{
    unsigned char *first = caid_array_get_info(caid_channel_array(channel))->host_ptr;

    return first + frame->offset;
}

static int
try_put(struct caid_channel *channel, uint64_t timeout_ns)
{
    struct caid_frame frame;

    int r = caid_channel_begin(channel, 0, timeout_ns, &frame, &error);
    if (r < 0)
        return r;
    memset(bytes_of(channel, &frame), (int)frame.sequence, BYTES);
    memset(frame.info, (int)frame.sequence, sizeof(frame.info));
    return caid_channel_commit(channel, &frame, &error);
}

static void
put(int n)
{
    while (n-- > 0)
        assert_ok(try_put(o.put, CAID_FOREVER));
}

static int
try_get(uint64_t timeout_ns)
{
    return caid_channel_get(o.get, 0, timeout_ns, 0, &o.frame, &error);
}

static void
check_bytes(struct caid_channel *channel, const struct caid_frame *frame)
{
    for (int i = 0; i < BYTES; i++) {
        cr_assert_eq(bytes_of(channel, frame)[i], (unsigned char)frame->sequence);
        cr_assert_eq(frame->info[i], (unsigned char)frame->sequence);
    }
}

/* The next frame is that one, whole, and stays open. */
static void
get_open(uint64_t sequence, uint64_t missed)
{
    assert_ok(try_get(CAID_FOREVER));
    cr_assert_eq(o.frame.sequence, sequence, "%d", (int)o.frame.sequence);
    cr_assert_eq(o.frame.missed, missed, "%d", (int)o.frame.missed);
    check_bytes(o.get, &o.frame);
}

static void
end_frame(void)
{
    assert_ok(caid_channel_end(o.get, &o.frame, 0, &error));
}

static void
get_next(uint64_t sequence, uint64_t missed)
{
    get_open(sequence, missed);
    end_frame();
}

/* The host gets that one, of a stream. */
static void
get_streamed(uint64_t sequence)
{
    assert_ok(try_get(CAID_FOREVER));
    cr_assert_eq(o.frame.sequence, sequence, "%d", (int)o.frame.sequence);
    end_frame();
}

/* ---- by the host ---- */

CHANNEL_TEST(latest_gives_the_newest)
{
    begin_both("latest");
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    put(1);
    get_next(1, 0);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    put(20);
    get_open(21, 19);
    put(20);
    check_bytes(o.get, &o.frame);
    end_frame();
    get_next(41, 19);
}

CHANNEL_TEST(latest_ends_at_the_largest_depth)
{
    struct caid_channel_options options = options_of("latest");

    options.slots = DEPTH_MAX + 2;
    assert_ok(caid_channel_create(o.client, &o.put, "c", &options, &error));
    o.get = open_deep(f.client, DEPTH_MAX);
    for (uint64_t i = 1; i < 3 * DEPTH_MAX; i++) {
        put(1);
        get_next(i, 0);
    }
}

CHANNEL_TEST(latest_fills_few_slots_again_and_again)
{
    struct caid_channel_options options = options_of("latest");
    uint32_t slots = 0;

    options.slots = 4 * SLOTS;
    assert_ok(caid_channel_create(o.client, &o.put, "c", &options, &error));
    o.get = open_deep(f.client, 1);
    for (uint64_t i = 1; i < 3 * options.slots; i++) {
        put(1);
        get_next(i, 0);
        slots |= UINT32_C(1) << o.frame.slot;
    }
    cr_assert_leq(__builtin_popcount(slots), 3);
}

CHANNEL_TEST(fifo_gives_all)
{
    begin_both("fifo");
    put(SLOTS);
    assert_failed(try_put(o.put, 0), CAID_ERR_TIMEOUT);
    get_open(1, 0);
    assert_failed(try_put(o.put, 0), CAID_ERR_TIMEOUT);
    end_frame();
    put(1);
    for (uint64_t i = 2; i <= SLOTS + 1; i++)
        get_next(i, 0);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    for (uint64_t i = SLOTS + 2; i < 100; i++) {
        put(1);
        get_next(i, 0);
    }
}

CHANNEL_TEST(a_fifo_without_readers_keeps_nothing)
{
    o.put = create(o.client, "fifo");
    put(3 * SLOTS);
    o.get = open_deep(f.client, 1);
    put(1);
    get_next(3 * SLOTS + 1, 0);
    caid_channel_close(o.get);
    o.get = NULL;
    put(3 * SLOTS);
}

CHANNEL_TEST(ends_out_of_order_are_held_back)
{
    struct caid_frame frames[3];

    o.put = create(o.client, "fifo");
    o.get = open_deep(f.client, 3);
    put(SLOTS);
    for (uint64_t i = 0; i < 3; i++) {
        get_open(i + 1, 0);
        frames[i] = o.frame;
    }
    assert_failed(try_get(0), CAID_ERR_INVALID);
    assert_ok(caid_channel_end(o.get, &frames[1], 0, &error));
    assert_failed(caid_channel_end(o.get, &frames[1], 0, &error), CAID_ERR_INVALID);
    assert_failed(try_put(o.put, 0), CAID_ERR_TIMEOUT);
    assert_ok(caid_channel_end(o.get, &frames[0], 0, &error));
    put(2);
    assert_failed(try_put(o.put, 0), CAID_ERR_TIMEOUT);
    assert_ok(caid_channel_end(o.get, &frames[2], 0, &error));
    put(1);
    for (uint64_t i = 4; i <= 7; i++)
        get_next(i, 0);
}

CHANNEL_TEST(what_is_given_up_is_no_frame)
{
    struct caid_frame frame;

    begin_both("fifo");
    for (int i = 0; i < 3 * SLOTS; i++) {
        assert_ok(caid_channel_begin(o.put, 0, CAID_FOREVER, &frame, &error));
        assert_failed(caid_channel_begin(o.put, 0, 0, &o.frame, &error), CAID_ERR_INVALID);
        assert_ok(caid_channel_abandon(o.put, &frame, &error));
        assert_failed(caid_channel_commit(o.put, &frame, &error), CAID_ERR_INVALID);
        assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    }
    put(1);
    get_next(3 * SLOTS + 1, 0);
}

static void *
put_many(void *arg)
{
    for (int i = 0; i < *(int *)arg; i++)
        assert_ok(try_put(o.put, CAID_FOREVER));
    return NULL;
}

static uint64_t n_requests;

static int
add_requests(const struct caid_metric *metric, void *userdata)
{
    (void)userdata;
    if (strcmp(metric->name, "requests_total") == 0 && strcmp(metric->kind, "metrics") != 0)
        n_requests += metric->value;
    return 0;
}

static uint64_t
count_requests(void)
{
    n_requests = 0;
    assert_ok(caid_metrics(f.client, add_requests, NULL, &error));
    return n_requests;
}

/* Also no driver call, whichever waits for the other. */
CHANNEL_TEST(nobody_is_asked_on_the_way)
{
    int n = 1000;
    pthread_t thread;

    begin_both("fifo");
    put(1);
    get_next(1, 0);
    uint64_t before = count_requests();
    cr_assert_eq(pthread_create(&thread, NULL, put_many, &n), 0);
    for (uint64_t i = 2; i <= 1001; i++)
        get_next(i, 0);
    pthread_join(thread, NULL);
    cr_assert_eq(count_requests(), before);
}

/* ---- without a driver ---- */

static void
start_framer(struct process *process, const char *what, const char *mode)
{
    process_start(process, "framer", f.daemon.socket, "c", what, mode, NULL);
    process_expect(process, "!");
}

static void
tell(const struct process *process, const char *what)
{
    for (; *what; what++) {
        const char one[] = {*what, '\0'};
        cr_assert_eq(write(process->in, one, 1), 1);
        process_expect(process, one);
    }
}

/* Two processes in which there is none. */
CHANNEL_TEST(host_memory_needs_no_driver)
{
    const char *driver = getenv("CAID_CUDA_DRIVER");
    struct process put, get;

    setenv("CAID_CUDA_DRIVER", "/nonexistent", 1);
    start_framer(&put, "put", "fifo");
    start_framer(&get, "get", "fifo");
    if (driver)
        setenv("CAID_CUDA_DRIVER", driver, 1);
    else
        unsetenv("CAID_CUDA_DRIVER");
    for (int i = 0; i < 3 * SLOTS; i++) {
        tell(&put, "p");
        tell(&get, "g");
    }
    tell(&get, "c");
    tell(&put, "c");
    process_end(&get, 0);
    process_end(&put, 0);
}

/* It is registered for the first stream. */
SOFT_TEST(host_memory_is_registered_for_streams)
{
    uint64_t before = soft_calls(&f.gpu, "cuMemHostRegister");
    uint64_t stream;

    begin_both("fifo");
    put(2);
    get_next(1, 0);
    cr_assert_eq(soft_calls(&f.gpu, "cuMemHostRegister"), before);
    const struct caid_array_info *info = caid_array_get_info(caid_channel_array(o.get));
    cr_assert_eq(info->ptr, (uintptr_t)info->host_ptr);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error));
    before = soft_calls(&f.gpu, "cuMemHostRegister");
    assert_ok(caid_channel_get(o.get, stream, CAID_FOREVER, 0, &o.frame, &error));
    cr_assert_gt(soft_calls(&f.gpu, "cuMemHostRegister"), before);
    assert_cuda(f.gpu.drv->cu.cuMemHostGetDevicePointer(&(CUdeviceptr){0}, info->host_ptr, 0));
    assert_ok(caid_channel_end(o.get, &o.frame, stream, &error));
    assert_ok(caid_stream_destroy(f.client, stream, &error));
}

/* ---- by streams ---- */

#define N_STREAMED 40

static void
fill_on_stream(const struct caid_frame *frame)
{
    uint64_t at = caid_array_get_info(caid_channel_array(o.put))->ptr + frame->offset;

    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(at, (unsigned char)frame->sequence, BYTES,
                                              (CUstream)(uintptr_t)o.stream));
}

static void
begin_streams(const char *mode, uint32_t depth)
{
    struct caid_channel_options options = options_of(mode);

    options.memory = "device";
    options.slots = 8;
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &o.stream, &error));
    assert_ok(caid_channel_create(o.client, &o.put, "c", &options, &error));
    o.get = open_deep(f.client, depth);
}

static void
put_on_stream(void)
{
    struct caid_frame frame;

    assert_ok(caid_channel_begin(o.put, o.stream, CAID_FOREVER, &frame, &error));
    fill_on_stream(&frame);
    assert_ok(caid_channel_commit(o.put, &frame, &error));
}

static void
give_up_on_stream(void)
{
    struct caid_frame frame;

    assert_ok(caid_channel_begin(o.put, o.stream, CAID_FOREVER, &frame, &error));
    assert_ok(caid_channel_abandon(o.put, &frame, &error));
}

/* What a frame has when the streams that wait for it read it. */
static void
read_on(uint64_t stream, unsigned char *ret)
{
    uint64_t at = caid_array_get_info(caid_channel_array(o.get))->ptr + o.frame.offset;

    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoHAsync(ret, at, BYTES, (CUstream)(uintptr_t)stream));
}

static void
stream_through(const char *mode)
{
    static unsigned char got[N_STREAMED][BYTES];
    uint64_t sequences[N_STREAMED], reading;

    begin_streams(mode, 2);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    for (int i = 0; i < N_STREAMED; i++) {
        put_on_stream();
        assert_ok(caid_channel_get(o.get, reading, CAID_FOREVER, 0, &o.frame, &error));
        sequences[i] = o.frame.sequence;
        read_on(reading, got[i]);
        assert_ok(caid_channel_end(o.get, &o.frame, reading, &error));
    }
    assert_ok(caid_stream_synchronize(f.client, reading, 0, &error));
    for (int i = 0; i < N_STREAMED; i++)
        for (int j = 0; j < BYTES; j++)
            cr_assert_eq(got[i][j], (unsigned char)sequences[i]);
    assert_ok(caid_stream_destroy(f.client, reading, &error));
}

CHANNEL_TEST(streams_hand_latest_over)
{
    stream_through("latest");
}

CHANNEL_TEST(streams_hand_fifo_over)
{
    stream_through("fifo");
}

/* A frame that a stream is still to fill is there for streams, not for the host. */
/* A reader that is let in meanwhile counts from its first frame on. */
CHANNEL_TEST(the_host_gets_what_has_landed)
{
    struct caid_frame late;

    begin_streams("latest", 1);
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    put_on_stream();
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    gpu_wait_at(&f.gpu, gate, (CUstream)(uintptr_t)o.stream);
    put_on_stream();
    struct caid_channel *more = open_deep(f.client, 1);
    assert_ok(caid_channel_get(more, 0, 0, 0, &late, &error));
    cr_assert_eq(late.sequence, 1);
    assert_ok(caid_channel_end(more, &late, 0, &error));
    assert_ok(try_get(0));
    cr_assert_eq(o.frame.sequence, 1);
    end_frame();
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    atomic_store(gate, 1);
    assert_ok(try_get(CAID_FOREVER));
    cr_assert_eq(o.frame.sequence, 2);
    end_frame();
    put_on_stream();
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    assert_ok(caid_channel_get(more, 0, 0, 0, &late, &error));
    cr_assert_eq(late.sequence, 3);
    cr_assert_eq(late.missed, 1, "%d", (int)late.missed);
    caid_channel_close(more);
    gpu_gate_free(&f.gpu, gate);
}

static void
begin_by_host(void)
{
    gpu_begin(&f.gpu);
    daemon_start_by(&f.daemon, "host");
    f.client = daemon_connect(&f.daemon);
    memset(&o, 0, sizeof(o));
    o.client = daemon_connect(&f.daemon);
}

/* A get that fails has taken nothing. */
CAID_TEST_BETWEEN(channel, a_frame_that_was_not_there_in_time_is_got_again,
                  ONLY_IF(gpu_is_soft(), begin_by_host()), end_channels(),
                  .init = driver_warm_up, .timeout = 120)
{
    uint64_t reading;

    begin_streams("latest", 1);
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    gpu_wait_at(&f.gpu, gate, (CUstream)(uintptr_t)o.stream);
    put_on_stream();
    put_on_stream();
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    assert_failed(caid_channel_get(o.get, reading, 0, 0, &o.frame, &error), CAID_ERR_TIMEOUT);
    atomic_store(gate, 1);
    assert_ok(caid_channel_get(o.get, reading, CAID_FOREVER, 0, &o.frame, &error));
    cr_assert_eq(o.frame.sequence, 2);
    cr_assert_eq(o.frame.missed, 1);
    assert_ok(caid_channel_end(o.get, &o.frame, reading, &error));
    assert_ok(caid_stream_destroy(f.client, reading, &error));
    gpu_gate_free(&f.gpu, gate);
}

/* The end of the older frame waits for the newer one's, which another stream has yet to come to. */
CHANNEL_TEST(streams_end_out_of_order)
{
    struct caid_frame first;
    uint64_t late;

    begin_streams("fifo", 2);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &late, &error));
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    for (int i = 0; i < 8; i++)
        put_on_stream();
    assert_ok(caid_channel_get(o.get, o.stream, CAID_FOREVER, 0, &first, &error));
    assert_ok(caid_channel_get(o.get, late, CAID_FOREVER, 0, &o.frame, &error));
    gpu_wait_at(&f.gpu, gate, (CUstream)(uintptr_t)late);
    assert_ok(caid_channel_end(o.get, &o.frame, late, &error));
    assert_failed(try_get(0), CAID_ERR_INVALID);
    assert_ok(caid_channel_end(o.get, &first, o.stream, &error));
    assert_failed(caid_channel_begin(o.put, 0, 100 * NSEC_PER_MSEC, &first, &error),
                  CAID_ERR_TIMEOUT);
    atomic_store(gate, 1);
    assert_ok(caid_channel_begin(o.put, 0, CAID_FOREVER, &first, &error));
    assert_ok(caid_channel_abandon(o.put, &first, &error));
    assert_ok(caid_stream_destroy(f.client, late, &error));
    gpu_gate_free(&f.gpu, gate);
}

/* ---- captures ---- */

/* A put whose stream has begun to capture a graph. The one before it has not landed. */
static _Atomic uint64_t *
begin_captured(const char *mode, struct caid_frame *ret)
{
    CUstream stream;

    begin_streams(mode, 1);
    stream = (CUstream)(uintptr_t)o.stream;
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    gpu_wait_at(&f.gpu, gate, stream);
    put_on_stream();
    assert_ok(caid_channel_begin(o.put, o.stream, CAID_FOREVER, ret, &error));
    fill_on_stream(ret);
    gpu_capture_begin(&f.gpu, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    return gate;
}

static void
end_captured(_Atomic uint64_t *gate)
{
    cr_assert(gpu_capture_end(&f.gpu, (CUstream)(uintptr_t)o.stream));
    atomic_store(gate, 1);
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    gpu_gate_free(&f.gpu, gate);
}

CHANNEL_TEST(a_put_is_committed_after_a_capture)
{
    struct caid_frame frame;
    _Atomic uint64_t *gate = begin_captured("fifo", &frame);

    atomic_store(gate, 1);
    assert_failed(caid_channel_commit(o.put, &frame, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "captures"), "%s", error.message);
    assert_failed(caid_channel_begin(o.put, 0, 0, &o.frame, &error), CAID_ERR_INVALID);
    end_captured(gate);
    assert_ok(caid_channel_commit(o.put, &frame, &error));
    put_on_stream();
    for (uint64_t i = 1; i <= 3; i++)
        get_streamed(i);
}

/* The producer ends as one that died, and nothing comes after that: the frame before is there
 * first. Nobody waits for it. */
static _Atomic uint64_t *
give_captured_up(const char *mode)
{
    struct caid_frame frame;

    _Atomic uint64_t *gate = begin_captured(mode, &frame);
    assert_failed(caid_channel_abandon(o.put, &frame, &error), CAID_ERR_ABANDONED);
    cr_assert(strstr(error.message, "captures"), "%s", error.message);
    assert_failed(caid_channel_abandon(o.put, &frame, &error), CAID_ERR_INVALID);
    assert_failed(caid_channel_begin(o.put, 0, 0, &frame, &error), CAID_ERR_ABANDONED);
    /* what is too early is seen then */
    assert_failed(try_get(50 * NSEC_PER_MSEC), CAID_ERR_TIMEOUT);
    return gate;
}

/* Perhaps after a frame that landed before that. */
static void
check_told(void)
{
    while (try_get(CAID_FOREVER) == 0)
        end_frame();
    cr_assert_eq(error.code, CAID_ERR_ABANDONED, "%s", error.message);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
}

CHANNEL_TEST(a_put_is_given_up_in_a_capture_latest)
{
    end_captured(give_captured_up("latest"));
    check_told();
}

CHANNEL_TEST(a_put_is_given_up_in_a_capture_fifo)
{
    end_captured(give_captured_up("fifo"));
    get_streamed(1);
    check_told();
}

/* Nobody ends it: the reader does, and holds nobody up. */
CHANNEL_TEST(a_frame_is_given_up_in_a_capture)
{
    CUstream stream;

    begin_streams("fifo", 1);
    stream = (CUstream)(uintptr_t)o.stream;
    put_on_stream();
    assert_ok(caid_channel_get(o.get, o.stream, CAID_FOREVER, 0, &o.frame, &error));
    gpu_capture_begin(&f.gpu, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_failed(caid_channel_end(o.get, &o.frame, o.stream, &error), CAID_ERR_INVALID);
    assert_failed(caid_channel_abandon(o.get, &o.frame, &error), CAID_ERR_ABANDONED);
    cr_assert(gpu_capture_end(&f.gpu, stream));
    assert_failed(caid_channel_abandon(o.get, &o.frame, &error), CAID_ERR_INVALID);
    assert_failed(try_get(0), CAID_ERR_ABANDONED);
    for (int i = 0; i < 20; i++)
        put_on_stream();
}

/* It leaves when the frame before has landed, and its readers are told. */
CHANNEL_TEST(a_channel_closes_after_a_put_was_given_up_in_a_capture)
{
    _Atomic uint64_t *gate = give_captured_up("fifo");

    cr_assert(gpu_capture_end(&f.gpu, (CUstream)(uintptr_t)o.stream));
    caid_channel_close(o.put);
    atomic_store(gate, 1);
    get_streamed(1);
    check_told();
    o.put = NULL;
    gpu_gate_free(&f.gpu, gate);
}

/* Its process lives on. */
CHANNEL_TEST(a_client_closes_after_a_put_was_given_up_in_a_capture)
{
    _Atomic uint64_t *gate = give_captured_up("fifo");

    atomic_store(gate, 1);
    get_streamed(1);
    caid_client_close(o.client);
    check_told();
    end_captured(gate);
    caid_channel_close(o.put);
    o.put = NULL;
    o.client = daemon_connect(&f.daemon);
}

CHANNEL_TEST(ahead_a_frame_is_got_before_it_is_put)
{
    unsigned char *got; /* page-locked: a copy to other memory would wait for the stream */
    uint64_t reading;

    begin_streams("fifo", 2);
    assert_cuda(f.gpu.drv->cu.cuMemHostAlloc((void **)&got, 2 * BYTES, 0));
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    for (int i = 0; i < 2; i++) {
        assert_ok(caid_channel_get(o.get, reading, 0, CAID_CHANNEL_AHEAD, &o.frame, &error));
        read_on(reading, got + i * BYTES);
        assert_ok(caid_channel_end(o.get, &o.frame, reading, &error));
    }
    put_on_stream();
    give_up_on_stream();
    assert_ok(caid_stream_synchronize(f.client, reading, 0, &error));
    for (int i = 0; i < 8; i++) /* another frame takes the place of what was given up */
        put_on_stream();
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    for (int j = 0; j < BYTES; j++)
        cr_assert_eq(got[j], 1);
    assert_failed(try_get(0), CAID_ERR_ABANDONED);
    for (uint64_t i = 3; i <= 10; i++)
        get_streamed(i);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    assert_ok(caid_stream_destroy(f.client, reading, &error));
    assert_cuda(f.gpu.drv->cu.cuMemFreeHost(got));
}

/* Each void one is told of once, and none that was not got ahead. */
CHANNEL_TEST(ahead_frames_end_out_of_order)
{
    struct caid_frame frames[3];
    uint64_t reading;

    begin_streams("fifo", 3);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    for (int i = 0; i < 3; i++)
        assert_ok(caid_channel_get(o.get, reading, 0, CAID_CHANNEL_AHEAD, &frames[i], &error));
    for (int i = 2; i >= 0; i--)
        assert_ok(caid_channel_end(o.get, &frames[i], reading, &error));
    put_on_stream();
    give_up_on_stream();
    put_on_stream();
    assert_failed(try_get(0), CAID_ERR_ABANDONED);
    give_up_on_stream();
    put_on_stream();
    get_streamed(5);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    assert_ok(caid_stream_destroy(f.client, reading, &error));
}

/* Ends what was got ahead on the stream. */
static void
assert_void(const struct caid_frame *frame, uint64_t stream)
{
    assert_failed(caid_channel_end(o.get, frame, stream, &error), CAID_ERR_ABANDONED);
}

/* A void one that is told of by its own end is not told of by the next get, whether or not an older
 * one was in doubt then, or a younger one is later. */
CHANNEL_TEST(ahead_a_void_frame_is_told_of_once)
{
    struct caid_frame frames[7];
    uint64_t reading;

    begin_streams("fifo", 7);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    for (int i = 0; i < 7; i++)
        assert_ok(caid_channel_get(o.get, reading, 0, CAID_CHANNEL_AHEAD, &frames[i], &error));
    assert_ok(caid_channel_end(o.get, &frames[0], reading, &error));
    put_on_stream();
    give_up_on_stream();
    assert_void(&frames[1], reading);
    assert_ok(caid_channel_end(o.get, &frames[2], reading, &error));
    assert_ok(caid_channel_end(o.get, &frames[4], reading, &error));
    put_on_stream();
    give_up_on_stream();
    put_on_stream();
    assert_failed(try_get(0), CAID_ERR_TIMEOUT); /* the fourth is open */
    assert_void(&frames[3], reading);
    assert_ok(caid_channel_end(o.get, &frames[6], reading, &error));
    give_up_on_stream();
    assert_void(&frames[5], reading);
    put_on_stream();
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    assert_ok(caid_stream_destroy(f.client, reading, &error));
}

/* ---- what is refused ---- */

static void
assert_misfit(struct caid_channel_options options, const char *what)
{
    struct caid_channel *channel;

    assert_failed(caid_channel_create(f.client, &channel, "c", &options, &error),
                  CAID_ERR_INVALID);
    cr_assert(strstr(error.message, what), "%s: %s", what, error.message);
}

/* Options with one that is another. */
#define BUT(field, value)                                            \
    ({                                                               \
        struct caid_channel_options options_ = options_of("latest"); \
        options_.field = value;                                      \
        options_;                                                    \
    })

CHANNEL_TEST(what_does_not_fit_is_refused)
{
    const struct caid_channel_options options = options_of("latest");
    const int64_t other[] = {BYTES + 1};
    struct caid_channel *channel;

    begin_both("latest");
    assert_failed(caid_channel_create(f.client, &channel, "c", &options, &error),
                  CAID_ERR_BUSY);
    assert_misfit(BUT(mode, "fifo"), "another mode");
    assert_misfit(BUT(shape, other), "another shape");
    assert_misfit(BUT(typestr, "|i1"), "another type");
    assert_misfit(BUT(slots, SLOTS + 1), "another number of slots");
    assert_misfit(BUT(memory, "device"), "another memory");
    assert_misfit(BUT(slots, 1), "slots");
    assert_misfit(BUT(mode, "newest"), "newest");
    OPTIONS(caid_channel_options, deep, .depth = 3);
    assert_failed(caid_channel_open(f.client, &channel, "c", &deep, &error), CAID_ERR_LIMIT);
    cr_assert(strstr(error.message, "4 slots: its readers' depths, 1, with 3 more"), "%s",
              error.message);
    deep.depth = 17;
    assert_failed(caid_channel_open(f.client, &channel, "c", &deep, &error), CAID_ERR_INVALID);
    assert_failed(caid_channel_open(f.client, &channel, "d", NULL, &error), CAID_ERR_NOT_FOUND);
    OWNED struct caid_array *array = make_bytes(f.client, "d", BYTES);
    assert_failed(caid_channel_open(f.client, &channel, "d", NULL, &error), CAID_ERR_INVALID);
}

static void
two_devices(void)
{
    setenv("CAID_CUDA_DRIVER", "soft", 1);
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    driver_warm_up();
}

CAID_TEST_BETWEEN(channel, a_stream_of_another_device_is_refused, begin_channels(),
                  end_channels(), .init = two_devices, .timeout = 120)
{
    struct caid_frame frame;
    uint64_t far;

    begin_streams("latest", 1);
    struct caid_channel_options options = BUT(device, 1);
    options.memory = "device";
    options.slots = 8;
    assert_misfit(options, "there with another device");
    assert_ok(caid_stream_create(f.client, 1, CAID_STREAM_NON_BLOCKING, &far, &error));
    assert_failed(caid_channel_begin(o.put, far, 0, &frame, &error), CAID_ERR_DEVICE);
    put_on_stream();
    assert_failed(caid_channel_get(o.get, far, 0, 0, &frame, &error), CAID_ERR_DEVICE);
    cr_assert(strstr(error.message, "another device"), "%s", error.message);
    assert_ok(caid_channel_get(o.get, o.stream, 0, 0, &frame, &error));
    assert_ok(caid_channel_end(o.get, &frame, o.stream, &error));
    assert_ok(caid_stream_destroy(f.client, far, &error));
}

CHANNEL_TEST(the_other_side_is_refused)
{
    struct caid_frame frame;

    begin_both("latest");
    assert_failed(caid_channel_begin(o.get, 0, 0, &frame, &error), CAID_ERR_INVALID);
    assert_failed(caid_channel_get(o.put, 0, 0, 0, &frame, &error), CAID_ERR_INVALID);
    assert_failed(caid_channel_get(o.get, 0, 0, CAID_CHANNEL_AHEAD, &frame, &error),
                  CAID_ERR_INVALID);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &o.stream, &error));
    assert_failed(caid_channel_begin(o.put, o.stream, 0, &frame, &error), CAID_ERR_INVALID);
    put(1);
    get_open(1, 0);
    assert_failed(try_get(0), CAID_ERR_INVALID);
    end_frame();
}

/* ---- ends ---- */

static void
producer_dies(const char *mode, uint64_t first, uint64_t missed)
{
    struct process framer;

    start_framer(&framer, "put", mode);
    o.get = open_deep(f.client, 1);
    tell(&framer, "ppb");
    uint64_t pages = status_of(f.client).pages;
    process_end(&framer, SIGKILL);
    while (status_of(f.client).pages == pages) /* the daemon has heard of it */
        sched_yield();
    if (first)
        get_next(first, 0);
    if (first)
        get_next(first + 1, 0);
    assert_failed(try_get(CAID_FOREVER), CAID_ERR_ABANDONED);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    o.put = create(o.client, mode);
    if (!first)
        get_next(2, missed); /* the last whole one of the former producer */
    put(1);
    get_next(3, 0);
}

CHANNEL_TEST(a_producer_that_dies_is_told_of_once_latest)
{
    producer_dies("latest", 0, 1);
}

CHANNEL_TEST(a_producer_that_dies_is_told_of_once_fifo)
{
    producer_dies("fifo", 1, 0);
}

static void
producer_closes(const char *mode, uint64_t first)
{
    struct process framer;

    start_framer(&framer, "put", mode);
    o.get = open_deep(f.client, 1);
    tell(&framer, "pp");
    tell(&framer, "c");
    for (uint64_t i = first; i <= 2; i++)
        get_next(i, i - 1 == 1 && first == 2);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    o.put = create(o.client, mode);
    put(1);
    get_next(3, 0);
    process_end(&framer, 0);
}

CHANNEL_TEST(a_producer_that_closes_is_followed_latest)
{
    producer_closes("latest", 2);
}

CHANNEL_TEST(a_producer_that_closes_is_followed_fifo)
{
    producer_closes("fifo", 1);
}

CHANNEL_TEST(a_reader_that_dies_holds_nothing)
{
    struct process framer;

    o.put = create(o.client, "fifo");
    start_framer(&framer, "get", "fifo");
    put(2);
    tell(&framer, "gh");
    put(SLOTS - 1);
    assert_failed(try_put(o.put, 0), CAID_ERR_TIMEOUT);
    kill(framer.pid, SIGKILL);
    put(3 * SLOTS);
    process_end(&framer, 0);
}

/* The next producer need not wait until this one is closed. */
static void
context_dies(const char *mode)
{
    struct caid_channel_options options = options_of(mode);
    struct caid_frame frame;
    int r;

    begin_streams(mode, 1);
    put_on_stream();
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    assert_ok(caid_channel_begin(o.put, o.stream, CAID_FOREVER, &frame, &error));
    soft_control(&f.gpu, "fail *=LAUNCH_FAILED");
    cr_assert_lt(caid_channel_commit(o.put, &frame, &error), 0);
    soft_control(&f.gpu, "clear");
    assert_failed(caid_channel_begin(o.put, 0, 0, &frame, &error), CAID_ERR_ABANDONED);
    options.memory = "device";
    options.slots = 8;
    do
        r = caid_channel_create(f.client, &o.next, "c", &options, &error);
    while (r < 0 && error.code == CAID_ERR_BUSY);
    assert_ok(r);
    while (try_get(0) == 0) /* of a "fifo", what was whole */
        end_frame();
    cr_assert_eq(error.code, CAID_ERR_ABANDONED);
    caid_channel_close(o.put);
    o.put = o.next;
    o.next = NULL;
    assert_ok(caid_channel_begin(o.put, 0, CAID_FOREVER, &frame, &error));
    assert_ok(caid_channel_commit(o.put, &frame, &error));
    assert_ok(try_get(CAID_FOREVER));
    end_frame();
}

SOFT_TEST(a_producer_whose_context_dies_makes_room_latest)
{
    context_dies("latest");
}

SOFT_TEST(a_producer_whose_context_dies_makes_room_fifo)
{
    context_dies("fifo");
}

/* It has let go of everything, for good: what ends later does not make it a living one again. */
SOFT_TEST(a_reader_whose_context_dies_holds_nothing)
{
    struct caid_frame first;

    begin_streams("fifo", 2);
    put_on_stream();
    put_on_stream();
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    assert_ok(caid_channel_get(o.get, o.stream, CAID_FOREVER, 0, &first, &error));
    assert_ok(caid_channel_get(o.get, o.stream, CAID_FOREVER, 0, &o.frame, &error));
    soft_control(&f.gpu, "fail *=LAUNCH_FAILED");
    cr_assert_lt(caid_channel_end(o.get, &first, o.stream, &error), 0);
    soft_control(&f.gpu, "clear");
    assert_failed(caid_channel_end(o.get, &o.frame, o.stream, &error), CAID_ERR_ABANDONED);
    assert_failed(try_get(0), CAID_ERR_ABANDONED);
    for (int i = 0; i < 20; i++)
        put_on_stream();
}

static void *
get_one(void *arg)
{
    *(int *)arg = caid_channel_get(o.get, 0, CAID_FOREVER, 0, &o.frame, NULL);
    return NULL;
}

/* One of two threads asks for the next producer: the other one has its own time all the same. */
CHANNEL_TEST(who_waits_beside_another_thread_has_its_own_time)
{
    struct caid_frame frame;
    pthread_t thread;
    int r = -1;

    caid_channel_close(create(o.client, "latest"));
    o.get = open_now(f.client, 2);
    cr_assert_eq(pthread_create(&thread, NULL, get_one, &r), 0);
    for (int i = 0; i < 50; i++)
        assert_failed(caid_channel_get(o.get, 0, NSEC_PER_MSEC, 0, &frame, &error),
                      CAID_ERR_TIMEOUT);
    o.put = create(o.client, "latest");
    put(1);
    pthread_join(thread, NULL);
    cr_assert_eq(r, 0);
    end_frame();
}

/* Who waits is woken by what it waits for, or told. */
CHANNEL_TEST(a_reader_waits_for_producers_to_come)
{
    pthread_t thread;
    int r = -1;

    o.put = create(o.client, "latest");
    caid_channel_close(o.put);
    o.get = open_now(f.client, 1);
    cr_assert_eq(pthread_create(&thread, NULL, get_one, &r), 0);
    o.put = create(o.client, "latest");
    put(1);
    pthread_join(thread, NULL);
    cr_assert_eq(r, 0);
    end_frame();
}

CHANNEL_TEST(a_client_that_closes_ends_its_channels)
{
    pthread_t thread;
    int r = 0;

    begin_both("latest");
    cr_assert_eq(pthread_create(&thread, NULL, get_one, &r), 0);
    caid_client_close(f.client);
    pthread_join(thread, NULL);
    cr_assert_lt(r, 0);
    assert_failed(try_get(0), CAID_ERR_CLOSED);
    caid_channel_close(o.get);
    put(3);
    f.client = daemon_connect(&f.daemon);
    o.get = open_deep(f.client, 1);
    get_next(3, 0);
}

CHANNEL_TEST(joins_and_leaves_use_the_same_page)
{
    begin_both("fifo");
    uint64_t pages = status_of(f.client).pages;
    for (int i = 0; i < 20; i++) {
        caid_channel_close(o.get);
        o.get = open_deep(f.client, 1);
        put(1);
        get_next((uint64_t)i + 1, 0);
    }
    cr_assert_leq(status_of(f.client).pages, pages + 1);
}

/* ---- the fd ---- */

static int
fd_of_reader(void)
{
    int fd = caid_channel_get_fd(o.get, &error);

    cr_assert_geq(fd, 0, "%s", error.message);
    cr_assert_eq(caid_channel_get_fd(o.get, &error), fd);
    return fd;
}

/* timeout: -1: until it is. */
static bool
is_ready(int fd, int timeout)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int n;

    while ((n = poll(&poll_fd, 1, timeout)) < 0)
        cr_assert_eq(errno, EINTR);
    return n == 1;
}

static int
get_when_ready(int fd, uint64_t stream)
{
    int r;

    do {
        cr_assert(is_ready(fd, -1));
        r = caid_channel_get(o.get, stream, 0, 0, &o.frame, &error);
    } while (r == -ETIMEDOUT);
    return r;
}

CHANNEL_TEST(the_fd_tells_of_each_frame)
{
    begin_both("fifo");
    int fd = fd_of_reader();
    assert_failed(caid_channel_get_fd(o.put, &error), CAID_ERR_INVALID);
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    for (uint64_t i = 0; i < 60; i += 3) {
        cr_assert(!is_ready(fd, 0));
        put(3);
        for (uint64_t j = 1; j <= 3; j++) {
            cr_assert(is_ready(fd, -1));
            get_open(i + j, 0);
            cr_assert(!is_ready(fd, 1)); /* as many are open as may be */
            end_frame();
        }
    }
}

CHANNEL_TEST(the_fd_tells_of_what_is_newer)
{
    begin_both("latest");
    int fd = fd_of_reader();
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    for (uint64_t i = 3; i < 60; i += 3) {
        cr_assert(!is_ready(fd, 0));
        put(3);
        cr_assert(is_ready(fd, -1));
        get_next(i, 2);
    }
}

/* For the host a frame is there when it is whole, for a stream when it has been put. */
CHANNEL_TEST(the_fd_is_the_hosts_or_a_streams)
{
    uint64_t reading;

    begin_streams("latest", 1);
    int fd = fd_of_reader();
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    gpu_wait_at(&f.gpu, gate, (CUstream)(uintptr_t)o.stream);
    assert_failed(caid_channel_get(o.get, reading, 0, 0, &o.frame, &error), CAID_ERR_TIMEOUT);
    put_on_stream();
    assert_ok(get_when_ready(fd, reading));
    assert_ok(caid_channel_end(o.get, &o.frame, reading, &error));
    atomic_store(gate, 1);
    assert_ok(caid_stream_synchronize(f.client, reading, 0, &error));
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    atomic_store(gate, 0);
    gpu_wait_at(&f.gpu, gate, (CUstream)(uintptr_t)o.stream);
    put_on_stream();
    cr_assert(!is_ready(fd, 0));
    atomic_store(gate, 1);
    assert_ok(get_when_ready(fd, 0));
    cr_assert_eq(o.frame.sequence, 2);
    end_frame();
    assert_ok(caid_stream_destroy(f.client, reading, &error));
    gpu_gate_free(&f.gpu, gate);
}

static void
land_for_stream(const char *mode)
{
    unsigned char bytes[BYTES];
    uint64_t reading;

    begin_streams(mode, 1);
    int fd = fd_of_reader();
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &reading, &error));
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    put_on_stream();
    assert_ok(caid_stream_synchronize(f.client, o.stream, 0, &error));
    gpu_wait_at(&f.gpu, gate, (CUstream)(uintptr_t)o.stream);
    put_on_stream();
    for (unsigned char i = 1; i <= 2; i++) {
        assert_ok(get_when_ready(fd, reading));
        cr_assert_eq(o.frame.sequence, i);
        read_on(reading, bytes);
        assert_ok(caid_channel_end(o.get, &o.frame, reading, &error));
        assert_ok(caid_stream_synchronize(f.client, reading, 0, &error));
        cr_assert_eq(bytes[0], i);
        assert_failed(caid_channel_get(o.get, reading, 0, 0, &o.frame, &error),
                      CAID_ERR_TIMEOUT);
        cr_assert(!is_ready(fd, 0));
        atomic_store(gate, 1);
    }
    assert_ok(caid_stream_destroy(f.client, reading, &error));
    gpu_gate_free(&f.gpu, gate);
}

/* A stream that hands off by the host gets what has landed, and the fd tells of that. */
CAID_TEST_BETWEEN(channel, a_stream_by_host_gets_what_has_landed_latest,
                  ONLY_IF(gpu_is_soft(), begin_by_host()), end_channels(),
                  .init = driver_warm_up, .timeout = 120)
{
    land_for_stream("latest");
}

CAID_TEST_BETWEEN(channel, a_stream_by_host_gets_what_has_landed_fifo,
                  ONLY_IF(gpu_is_soft(), begin_by_host()), end_channels(),
                  .init = driver_warm_up, .timeout = 120)
{
    land_for_stream("fifo");
}

static void
fd_follows(const char *mode, uint64_t first)
{
    struct process framer;

    start_framer(&framer, "put", mode);
    o.get = open_deep(f.client, 1);
    int fd = fd_of_reader();
    tell(&framer, "ppb");
    process_end(&framer, SIGKILL);
    while (get_when_ready(fd, 0) == 0) {
        cr_assert_eq(o.frame.sequence, first++);
        end_frame();
    }
    cr_assert_eq(error.code, CAID_ERR_ABANDONED);
    caid_channel_close(create(o.client, mode));
    o.put = create(o.client, mode);
    put(1);
    do {
        assert_ok(get_when_ready(fd, 0));
        end_frame();
    } while (o.frame.sequence < 3);
    cr_assert_eq(o.frame.sequence, 3);
}

CHANNEL_TEST(the_fd_follows_producers_latest)
{
    fd_follows("latest", 2);
}

CHANNEL_TEST(the_fd_follows_producers_fifo)
{
    fd_follows("fifo", 1);
}

CHANNEL_TEST(the_fd_tells_of_the_end)
{
    begin_both("latest");
    int fd = dup(fd_of_reader());
    assert_failed(try_get(0), CAID_ERR_TIMEOUT);
    pid_t pid = fork();
    if (pid == 0) {
        bool forked = caid_channel_get_fd(o.get, NULL) < 0;
        caid_channel_close(o.get);
        _exit(!forked);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert(!is_ready(fd, 0));
    caid_client_close(f.client);
    cr_assert(is_ready(fd, -1));
    assert_failed(try_get(0), CAID_ERR_CLOSED);
    caid_channel_close(o.get);
    cr_assert(is_ready(fd, 0));
    close(fd);
    f.client = daemon_connect(&f.daemon);
    o.get = open_deep(f.client, 1);
    close(dup(fd_of_reader()));
}

/* While the thread waits whether somebody asks for the next producer, too. */
CHANNEL_TEST(a_duplicate_of_the_fd_tells_of_the_close)
{
    begin_both("latest");
    caid_channel_close(o.put);
    o.put = NULL;
    for (uint64_t i = 0; i < 30; i++) {
        int fd = dup(fd_of_reader());
        clock_pause_ns(i * 50 * NSEC_PER_USEC);
        caid_channel_close(o.get);
        cr_assert(is_ready(fd, 0));
        close(fd);
        o.get = open_now(f.client, 1);
    }
}

/* ---- the daemon's ---- */

static void
begin_supervised(void)
{
    gpu_begin(&f.gpu);
    daemon_start_supervised(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    memset(&o, 0, sizeof(o));
    o.client = daemon_connect(&f.daemon);
}

static void
kill_daemon(void)
{
    cr_assert_eq(kill((pid_t)status_of(f.client).pid, SIGKILL), 0);
}

CAID_TEST_BETWEEN(channel, frames_go_on_without_the_daemon,
                  ONLY_IF(gpu_is_soft(), begin_supervised()), end_channels(),
                  .init = driver_warm_up, .timeout = 120)
{
    struct process framer;

    start_framer(&framer, "put", "fifo");
    o.get = open_deep(f.client, 1);
    kill_daemon();
    for (uint64_t i = 1; i <= 3; i++) {
        tell(&framer, "p");
        get_next(i, 0);
    }
    status_of(f.client);
    struct caid_channel *more = open_deep(o.client, 1);
    tell(&framer, "p");
    get_next(4, 0);
    assert_ok(caid_channel_get(more, 0, CAID_FOREVER, 0, &o.frame, &error));
    cr_assert_eq(o.frame.sequence, 4);
    assert_ok(caid_channel_end(more, &o.frame, 0, &error));
    caid_channel_close(more);
    kill_daemon();
    process_end(&framer, SIGKILL);
    assert_failed(try_get(CAID_FOREVER), CAID_ERR_ABANDONED);
    o.put = create(o.client, "fifo");
    put(1);
    get_next(5, 0);
}
