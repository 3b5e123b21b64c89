/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How timelines end: closed, with signals on their way; with a client; with a process that is
 * killed; without the daemon; in a forked child. Nobody waits for ever (I7), nor is held up by who
 * does.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"
#include "process.h"

#define LATE_US    "200000"
#define LONG_NS    (30 * NSEC_PER_SEC)
#define AT_ONCE_NS (LONG_NS / 3)
#define POLL_TRIES 10000
#define POLL_STEP              \
    {                          \
        .tv_nsec = 5 * 1000000 \
    }

static const char *const modes[] = {"host", "events", "memops"};

static struct fixture {
    struct test_gpu gpu;
    struct daemon daemon;
    struct caid_client *client; /* waits */
    struct caid_timeline *timeline;
    uint64_t stream;
} f;

#define MODES_TEST(name) \
    CAID_TEST_WITH(timeline_end, name, .init = soft_warm_up_events, .timeout = 120)
#define END_TEST(name)                                                                         \
    CAID_TEST_BETWEEN(timeline_end, name, begin("memops"), end(), .init = soft_warm_up_events, \
                      .timeout = 120)

/* Pages of timelines. */
static uint64_t
n_mapped(void)
{
    char line[512];
    uint64_t n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    cr_assert(maps);
    while (fgets(line, sizeof(line), maps))
        n += strstr(line, "/memfd:caid-timelines") != NULL;
    fclose(maps);
    return n;
}

static void
begin(const char *mode)
{
    f = (struct fixture){0};
    gpu_begin(&f.gpu);
    daemon_start_by(&f.daemon, mode);
    f.client = daemon_connect(&f.daemon);
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &f.stream, &error));
}

static void
end(void)
{
    caid_timeline_close(f.timeline);
    if (f.stream)
        assert_ok(caid_stream_destroy(f.client, f.stream, &error));
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
    cr_assert_leq(soft_live(&f.gpu, "registrations"), n_mapped());
    gpu_end(&f.gpu);
}

static void
open_timeline(void)
{
    assert_ok(caid_timeline_open(f.client, &f.timeline, "t", NULL, &error));
}

static void
poll_until(bool (*fn)(void), const char *what)
{
    const struct timespec step = POLL_STEP;

    for (int i = 0; i < POLL_TRIES && !fn(); i++)
        nanosleep(&step, NULL);
    cr_assert(fn(), "%s", what);
}

static bool
no_page_is_left(void)
{
    return status_of(f.client).pages == 0;
}

static bool
nothing_is_mapped(void)
{
    (void)f;
    return n_mapped() == 0;
}

static void
sync_ok(void)
{
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &error));
}

/* Told once, to whoever asks first. */
static void
sync_abandoned(void)
{
    uint64_t before = clock_now_ns();

    assert_failed(caid_stream_synchronize(f.client, f.stream, 0, &error), CAID_ERR_ABANDONED);
    cr_assert_lt(clock_now_ns() - before, AT_ONCE_NS);
    sync_ok();
    assert_ok(caid_stream_check(f.client, f.stream, 0, &error));
}

/* ---- another process ---- */

static struct process
signaller_start(const char *delay_us)
{
    struct process s;

    setenv("CAID_SOFTCUDA_DELAY_US", delay_us, 1);
    process_start(&s, "signaller", f.daemon.socket, "t", NULL);
    unsetenv("CAID_SOFTCUDA_DELAY_US");
    return s;
}

static void
signaller_do(const struct process *s, const char *what)
{
    for (; *what; what++) {
        cr_assert_eq(write(s->in, what, 1), 1);
        process_expect(s, (char[]){*what, 0});
    }
}

/* ---- killed ---- */

/* With a signal on its way, that comes late, and one that was never made. */
static void
killed(const char *mode)
{
    const char *never = "30000000";
    uint64_t value;

    begin(mode);
    struct process s = signaller_start(never);
    signaller_do(&s, "hhs");
    open_timeline();
    /* Inter-process events are the ones that hang: they are not made to. */
    bool on_stream = strcmp(mode, "memops") == 0;
    if (on_stream)
        assert_ok(caid_timeline_wait(f.timeline, f.stream, 3, LONG_NS, 0, &error));
    else if (strcmp(mode, "host") == 0)
        assert_failed(caid_timeline_wait(f.timeline, f.stream, 3, NSEC_PER_MSEC, 0, &error),
                      CAID_ERR_TIMEOUT);
    process_end(&s, SIGKILL);

    uint64_t before = clock_now_ns();
    assert_failed(caid_timeline_wait(f.timeline, 0, 3, LONG_NS, 0, &error), CAID_ERR_ABANDONED);
    cr_assert_lt(clock_now_ns() - before, AT_ONCE_NS);
    assert_failed(caid_timeline_wait(f.timeline, 0, 4, LONG_NS, 0, &error), CAID_ERR_ABANDONED);
    if (on_stream)
        sync_abandoned();
    /* What has been reached stays so. */
    assert_ok(caid_timeline_wait(f.timeline, 0, 2, 0, 0, &error));
    assert_ok(caid_timeline_wait(f.timeline, f.stream, 2, 0, 0, &error));
    sync_ok();
    assert_failed(caid_timeline_value(f.timeline, &value, &error), CAID_ERR_ABANDONED);
    cr_assert_eq(value, 2);
    end();
}

MODES_TEST(killed_with_a_signal_on_its_way)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        killed(modes[i]);
}

static void *
wait_forever(void *unused)
{
    (void)unused;
    cr_assert_eq(caid_timeline_wait(f.timeline, 0, 9, CAID_FOREVER, 0, &error), -EOWNERDEAD);
    return NULL;
}

/* Threads that sleep are woken. */
END_TEST(killed_while_hosts_wait)
{
    const struct timespec pause = {.tv_nsec = 100 * 1000000};
    pthread_t threads[3];

    struct process s = signaller_start("0");
    signaller_do(&s, "s");
    open_timeline();
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, wait_forever, NULL), 0);
    nanosleep(&pause, NULL);
    process_end(&s, SIGKILL);
    uint64_t before = clock_now_ns();
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        pthread_join(threads[i], NULL);
    cr_assert_lt(clock_now_ns() - before, AT_ONCE_NS);
}

/* Events of another process: opened once, and waited for by the stream. */
MODES_TEST(events_of_another_process)
{
    begin("events");
    struct process s = signaller_start("1000000");
    signaller_do(&s, "s");
    open_timeline();
    for (uint64_t value = 1; value <= 3; value++) {
        assert_ok(caid_timeline_wait(f.timeline, f.stream, value, LONG_NS, 0, &error));
        cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &error), 0, "the host is held");
        sync_ok();
        signaller_do(&s, "ws");
    }
    cr_assert_eq(soft_calls(&f.gpu, "cuIpcOpenEventHandle"), 1);
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitEvent"), 3);
    signaller_do(&s, "w");
    cr_assert_eq(process_end(&s, 0), 0);
    end();
}

/* ---- closed ---- */

/* The values on their way still come, those that nobody is to signal any more do not. */
static void
closed(const char *mode)
{
    struct caid_timeline *again, *signals;
    uint64_t from;

    begin(mode);
    struct caid_client *producer = daemon_connect(&f.daemon);
    assert_ok(caid_stream_create(producer, 0, CAID_STREAM_NON_BLOCKING, &from, &error));
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    soft_control(&f.gpu, "delay " LATE_US);
    assert_ok(caid_timeline_signal(signals, from, 3, &error));
    soft_control(&f.gpu, "delay 0");
    caid_timeline_close(signals);
    assert_failed(caid_timeline_open(f.client, &again, "t", NULL, &error), CAID_ERR_NOT_FOUND);
    assert_ok(caid_timeline_wait(f.timeline, f.stream, 3, LONG_NS, 0, &error));
    sync_ok();
    assert_failed(caid_timeline_wait(f.timeline, 0, 4, LONG_NS, 0, &error), CAID_ERR_ABANDONED);
    assert_ok(caid_timeline_wait(f.timeline, 0, 3, 0, 0, &error));
    cr_assert_eq(status_of(f.client).pages, 1, "whoever has it open keeps it");
    caid_timeline_close(f.timeline);
    f.timeline = NULL;
    /* What streams have used stays, and nothing else. */
    if (strcmp(mode, "memops") == 0) {
        uint64_t n = n_mapped();
        cr_assert(n == 1 || n == 2, "%d mapped", (int)n); /* the wait may have come too late */
    } else {
        poll_until(no_page_is_left, "the daemon keeps a page");
        poll_until(nothing_is_mapped, "a page is still mapped");
    }
    assert_ok(caid_stream_destroy(producer, from, &error));
    caid_client_close(producer);
    end();
}

MODES_TEST(closed_with_a_signal_on_its_way)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        closed(modes[i]);
}

/* Others' pages go when they are closed, while their creator lives, and come again. */
END_TEST(opened_again)
{
    struct caid_timeline *signals;

    struct caid_client *producer = daemon_connect(&f.daemon);
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    for (uint64_t value = 1; value <= 30; value++) {
        open_timeline();
        assert_ok(caid_timeline_signal(signals, 0, value, &error));
        assert_ok(caid_timeline_wait(f.timeline, f.stream, value, 0, 0, &error));
        caid_timeline_close(f.timeline);
        f.timeline = NULL;
        if (value % 10 == 0)
            assert_ok(caid_flush(f.client, -1, NULL, &error));
    }
    cr_assert_eq(status_of(f.client).pages, 1);
    caid_timeline_close(signals);
    poll_until(nothing_is_mapped, "a page is still mapped");
    caid_client_close(producer);
}

/* The creator's client closes, its process lives on: who waits is let go all the same. */
END_TEST(client_closed)
{
    struct caid_timeline *signals;

    struct caid_client *producer = daemon_connect(&f.daemon);
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    assert_ok(caid_timeline_signal(signals, 0, 1, &error));
    assert_ok(caid_timeline_wait(f.timeline, f.stream, 2, 0, CAID_TIMELINE_AHEAD, &error));
    caid_client_close(producer);
    sync_abandoned();
    assert_failed(caid_timeline_signal(signals, 0, 2, &error), CAID_ERR_CLOSED);
    caid_timeline_close(signals);
}

/* And what its streams are to signal yet comes, to a page that stays for it. */
static void
client_closed_early(const char *mode)
{
    struct caid_timeline *signals;

    begin(mode);
    struct caid_client *producer = daemon_connect(&f.daemon);
    CUstream from = gpu_stream_new(&f.gpu);
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    gpu_wait_at(&f.gpu, gate, from);
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    assert_ok(caid_timeline_signal(signals, (uintptr_t)from, 3, &error));
    caid_timeline_close(signals);
    caid_client_close(producer);
    assert_failed(caid_timeline_wait(f.timeline, 0, 3, 0, 0, &error), CAID_ERR_TIMEOUT);
    *gate = 1;
    assert_ok(caid_timeline_wait(f.timeline, 0, 3, LONG_NS, 0, &error));
    assert_failed(caid_timeline_wait(f.timeline, 0, 4, LONG_NS, 0, &error), CAID_ERR_ABANDONED);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(from));
    gpu_gate_free(&f.gpu, gate);
    caid_timeline_close(f.timeline);
    assert_ok(caid_stream_destroy(f.client, f.stream, &error));
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
    cr_assert_eq(n_mapped(), strcmp(mode, "memops") == 0);
    gpu_end(&f.gpu);
}

/* Not by events: one that stays keeps an fd of the driver's open. */
MODES_TEST(client_closed_with_a_signal_on_its_way)
{
    client_closed_early("host");
    client_closed_early("memops");
}

/* A client that goes while its stream waits: the page stays, for the stream, and nobody is held
 * up. What it leaves behind is this process's until it exits. */
MODES_TEST(waiter_closed)
{
    struct caid_timeline *signals;

    begin("memops");
    struct caid_client *producer = daemon_connect(&f.daemon);
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    assert_ok(caid_timeline_wait(f.timeline, f.stream, 1, 0, CAID_TIMELINE_AHEAD, &error));
    caid_timeline_close(f.timeline);
    uint64_t before = clock_now_ns();
    caid_client_close(f.client);
    cr_assert_lt(clock_now_ns() - before, AT_ONCE_NS);
    cr_assert_eq(f.gpu.drv->cu.cuStreamQuery((CUstream)(uintptr_t)f.stream),
                 CUDA_ERROR_NOT_READY);
    assert_ok(caid_timeline_signal(signals, 0, 1, &error));
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)f.stream));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy((CUstream)(uintptr_t)f.stream));
    caid_timeline_close(signals);
    caid_client_close(producer);
    cr_assert_gt(n_mapped(), 0);
    daemon_stop(&f.daemon);
    gpu_end(&f.gpu);
}

/* Nor is a client that goes held up by streams of others that wait, whatever its own have used. */
END_TEST(closed_while_others_wait)
{
    struct caid_timeline *signals, *mine;
    uint64_t from;

    struct caid_client *producer = daemon_connect(&f.daemon);
    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    assert_ok(caid_timeline_wait(f.timeline, f.stream, 1, 0, CAID_TIMELINE_AHEAD, &error));
    assert_ok(caid_timeline_create(other, &mine, "u", NULL, &error));
    assert_ok(caid_stream_create(other, 0, CAID_STREAM_NON_BLOCKING, &from, &error));
    assert_ok(caid_timeline_signal(mine, from, 1, &error));
    assert_ok(caid_stream_synchronize(other, from, 0, &error));
    assert_ok(caid_stream_destroy(other, from, &error));

    uint64_t before = clock_now_ns();
    caid_timeline_close(mine);
    caid_client_close(other);
    cr_assert_lt(clock_now_ns() - before, AT_ONCE_NS);
    assert_ok(caid_timeline_signal(signals, 0, 1, &error));
    sync_ok();
    caid_timeline_close(signals);
    caid_client_close(producer);
}

/* ---- without the daemon ---- */

/* Whoever has a timeline open goes on with it. */
static void
daemon_lost(const char *mode)
{
    struct caid_timeline *signals, *more;
    uint64_t from;

    begin(mode);
    struct caid_client *producer = daemon_connect(&f.daemon);
    assert_ok(caid_stream_create(producer, 0, CAID_STREAM_NON_BLOCKING, &from, &error));
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    daemon_end(&f.daemon, SIGKILL);
    for (uint64_t value = 1; value < 10; value++) {
        assert_ok(caid_timeline_signal(signals, value % 2 ? from : 0, value, &error));
        assert_ok(caid_timeline_wait(f.timeline, f.stream, value, LONG_NS, 0, &error));
        assert_ok(caid_timeline_wait(f.timeline, 0, value, LONG_NS, 0, &error));
    }
    sync_ok();
    assert_failed(caid_timeline_create(producer, &more, "u", NULL, &error),
                  CAID_ERR_DISCONNECTED);
    /* And when it is closed, nobody has to tell. */
    assert_ok(caid_stream_destroy(producer, from, &error));
    caid_timeline_close(signals);
    caid_client_close(producer);
    assert_failed(caid_timeline_wait(f.timeline, 0, 10, LONG_NS, 0, &error),
                  CAID_ERR_ABANDONED);
    end();
}

MODES_TEST(daemon_killed)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        daemon_lost(modes[i]);
}

/* ---- a context that dies ---- */

/* What it was to signal is given up, though its process lives and asks for nothing. */
static void
context_dies(const char *mode)
{
    begin(mode);
    struct process s = signaller_start("30000000");
    signaller_do(&s, "hs");
    open_timeline();
    if (strcmp(mode, "memops") == 0)
        assert_ok(caid_timeline_wait(f.timeline, f.stream, 2, 0, 0, &error));
    signaller_do(&s, "f");
    uint64_t before = clock_now_ns();
    assert_failed(caid_timeline_wait(f.timeline, 0, 2, LONG_NS, 0, &error), CAID_ERR_ABANDONED);
    cr_assert_lt(clock_now_ns() - before, AT_ONCE_NS);
    assert_ok(caid_timeline_wait(f.timeline, 0, 1, 0, 0, &error));
    if (strcmp(mode, "memops") == 0)
        sync_abandoned();
    process_end(&s, SIGKILL);
    end();
}

MODES_TEST(context_dead)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        context_dies(modes[i]);
}

/* ---- fork ---- */

END_TEST(forked)
{
    struct caid_timeline *signals;
    uint64_t value;
    struct caid_client *producer = daemon_connect(&f.daemon);
    assert_ok(caid_timeline_create(producer, &signals, "t", NULL, &error));
    open_timeline();
    pid_t pid = fork();
    if (pid == 0) {
        bool right = caid_timeline_signal(signals, 0, 1, &error) == -EPERM &&
                     caid_timeline_wait(f.timeline, 0, 1, 0, 0, &error) == -EPERM &&
                     caid_timeline_value(f.timeline, &value, &error) == -EPERM &&
                     error.code == CAID_ERR_FORKED && n_mapped() == 0;
        caid_timeline_close(signals);
        caid_timeline_close(f.timeline);
        caid_client_close(producer);
        caid_client_close(f.client);
        _exit(right ? 0 : 1);
    }
    cr_assert_eq(process_wait(pid), 0);
    assert_ok(caid_timeline_signal(signals, 0, 1, &error));
    assert_ok(caid_timeline_wait(f.timeline, 0, 1, 0, 0, &error));
    caid_timeline_close(signals);
    caid_client_close(producer);
}
