/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publications behind work: the call returns at once, and the name is there when the work has
 * landed, whatever becomes meanwhile of the array, the client and the daemon; not, if the work has
 * failed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_fixture.h"
#include "process.h"

#define BEHIND_TEST(name)                                               \
    CAID_TEST_BETWEEN(behind, name, begin_with_gate(), end_with_gate(), \
                      .init = driver_warm_up, .timeout = 120)
/* The real driver cannot be told to fail. */
#define SOFT_TEST(name)                                                        \
    CAID_TEST_BETWEEN(behind, name, ONLY_IF(gpu_is_soft(), begin_with_gate()), \
                      end_with_gate(), .init = driver_warm_up, .timeout = 120)

#define N_BYTES 4096

/* What waits at the gate is late. */
static _Atomic uint64_t *gate;
static CUstream late, other;

static void
begin_streams(void)
{
    gate = gpu_gate_new(&f.gpu);
    late = gpu_stream_new(&f.gpu);
    other = gpu_stream_new(&f.gpu);
    gpu_wait_at(&f.gpu, gate, late);
}

static void
begin_with_gate(void)
{
    begin_with_gpu();
    begin_streams();
}

static void
end_with_gate(void)
{
    *gate = 1;
    f.gpu.drv->cu.cuStreamDestroy(late);
    f.gpu.drv->cu.cuStreamDestroy(other);
    if (f.client)
        caid_client_close(f.client);
    f.client = NULL;
    daemon_stop(&f.daemon);
    f.gpu.drv->cu.cuMemFreeHost((void *)(uintptr_t)gate); /* the context may be dead */
    gpu_end(&f.gpu);
}

static struct caid_publish_options
on(CUstream stream)
{
    OPTIONS(caid_publish_options, options, .stream = (uint64_t)(uintptr_t)stream);
    return options;
}

static void
publish_on(struct caid_array *array, const char *name, CUstream stream)
{
    struct caid_publish_options options = on(stream);

    assert_ok(caid_array_publish_behind(array, name, &options, &error));
}

static uint64_t
published(struct caid_array *array)
{
    uint64_t generation = 0;

    assert_ok(caid_array_publish_wait(array, CAID_FOREVER, &generation, &error));
    cr_assert_gt(generation, 0);
    return generation;
}

static void
assert_absent(const char *name)
{
    struct caid_array *array;

    assert_failed(caid_array_open(f.client, &array, name, NULL, &error), CAID_ERR_NOT_FOUND);
}

/* An array that work on the stream fills. */
static struct caid_array *
make_filled(unsigned char with, CUstream stream)
{
    struct caid_array *array = make_bytes(f.client, NULL, N_BYTES);

    assert_cuda(
        f.gpu.drv->cu.cuMemsetD8Async(caid_array_get_info(array)->ptr, with, N_BYTES, stream));
    return array;
}

static void
assert_shows(const char *name, unsigned char wanted, uint64_t generation)
{
    OWNED struct caid_array *array = must_open(name, "r");
    unsigned char bytes[N_BYTES];

    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[0], wanted);
    cr_assert_eq(bytes[N_BYTES - 1], wanted);
    cr_assert_eq(caid_array_get_info(array)->generation, generation);
}

/* ---- when ---- */

BEHIND_TEST(the_work_has_landed)
{
    struct caid_array *array = make_filled(7, late);
    struct caid_publish_options options = on(late);

    options.metadata = "m";
    assert_ok(caid_array_publish_behind(array, "x", &options, &error));
    for (int i = 0; i < 20; i++) {
        assert_absent("x");
        assert_failed(caid_array_publish_wait(array, 1000000, NULL, &error), CAID_ERR_TIMEOUT);
    }
    cr_assert_null(caid_array_get_info(array)->name);
    *gate = 1;
    uint64_t generation = published(array);
    cr_assert_eq(published(array), generation, "it may be asked for again");
    cr_assert_str_eq(caid_array_get_info(array)->name, "x");
    cr_assert_str_eq(caid_array_get_info(array)->metadata, "m");
    cr_assert_eq(caid_array_get_info(array)->generation, generation);
    assert_shows("x", 7, generation);
    caid_array_close(array);
}

/* A set's array has none: the stream's work is its members'. */
BEHIND_TEST(the_work_on_other_memory_has_landed)
{
    struct caid_array *array = make_bytes(f.client, NULL, 0);

    publish_on(array, "x", late);
    assert_failed(caid_array_publish_wait(array, 20000000, NULL, &error), CAID_ERR_TIMEOUT);
    *gate = 1;
    published(array);
    caid_array_close(array);
}

BEHIND_TEST(all_work_has_landed)
{
    struct caid_array *array = make_filled(7, late);

    assert_ok(caid_array_publish_behind(array, "x", NULL, &error));
    assert_failed(caid_array_publish_wait(array, 20000000, NULL, &error), CAID_ERR_TIMEOUT);
    *gate = 1;
    assert_shows("x", 7, published(array));
    caid_array_close(array);
}

/* The second one's work ends first. */
BEHIND_TEST(it_is_its_turn)
{
    struct caid_array *first = make_filled(1, late), *second = make_filled(2, other);

    publish_on(first, "x", late);
    publish_on(second, "x", other);
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(other));
    assert_failed(caid_array_publish_wait(second, 20000000, NULL, &error), CAID_ERR_TIMEOUT);
    *gate = 1;
    uint64_t generation = published(second);
    cr_assert_eq(published(first), generation - 1);
    assert_shows("x", 2, generation);
    caid_array_close(first);
    caid_array_close(second);
}

/* ---- ends ---- */

BEHIND_TEST(its_array_may_be_closed_before)
{
    struct caid_array *array = make_filled(7, late);
    struct caid_publish_options options = on(late);

    OPTIONS(caid_publish_options, now, .stream = (uint64_t)(uintptr_t)other);
    OWNED struct caid_array *old = make_filled(6, other);
    uint64_t generation;
    assert_ok(caid_array_publish(old, "x", &now, &generation, &error));
    assert_ok(caid_array_publish_behind(array, "x", &options, &error));
    assert_ok(caid_array_close_on(array, (uint64_t)(uintptr_t)other, &error));
    usleep(20 * 1000);
    cr_assert_eq(status_of(f.client).leases, 2, "it is still to be published");
    *gate = 1;
    wait_for_leases(f.client, 1);
    assert_shows("x", 7, generation + 1);
}

BEHIND_TEST(its_array_is_closed_with_another_only_after)
{
    struct caid_array *array = make_bytes(f.client, NULL, 0);
    struct caid_array *with = make_bytes(f.client, NULL, 8);

    publish_on(array, "x", late);
    assert_failed(caid_array_close_with(array, with, &error), CAID_ERR_INVALID);
    *gate = 1;
    published(array);
    assert_ok(caid_array_close_with(array, with, &error));
    cr_assert_eq(status_of(f.client).leases, 2);
    caid_array_close(with);
    wait_for_leases(f.client, 0);
}

static void *
open_gate_later(void *unused)
{
    usleep(50 * 1000);
    *gate = 1;
    return unused;
}

BEHIND_TEST(the_clients_end_waits)
{
    struct caid_array *array = make_filled(7, late), *more = make_filled(8, late);
    pthread_t thread;

    publish_on(array, "x", late);
    publish_on(more, "y", late);
    caid_array_close(more);
    cr_assert_eq(pthread_create(&thread, NULL, open_gate_later, NULL), 0);
    caid_client_close(f.client);
    cr_assert_eq(*gate, 1);
    pthread_join(thread, NULL);
    assert_failed(caid_array_publish_behind(array, "z", NULL, &error), CAID_ERR_CLOSED);
    uint64_t generation = published(array); /* the answer has come */
    caid_array_close(array);
    f.client = daemon_connect(&f.daemon);
    assert_shows("x", 7, generation);
    caid_array_close(must_open("y", "r"));
}

BEHIND_TEST(a_child_has_none)
{
    struct caid_array *array = make_filled(7, late);

    publish_on(array, "x", late);
    pid_t pid = fork();
    if (pid == 0) {
        int r = caid_array_publish_behind(array, "y", NULL, &error);
        int code = error.code, again = caid_array_publish_wait(array, 0, NULL, &error);
        caid_array_close(array);
        caid_client_close(f.client);
        _exit(r < 0 && code == CAID_ERR_FORKED && again < 0 && error.code == code ? 0 : 1);
    }
    cr_assert_eq(process_wait(pid), 0);
    *gate = 1;
    assert_shows("x", 7, published(array));
    caid_array_close(array);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static atomic_bool without_threads;

/* In place of the C library's. */
int
pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (without_threads)
        return EAGAIN;
    if (!real)
        *(void **)(void *)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(ret, attr, run, arg);
}

BEHIND_TEST(without_a_thread_the_call_waits)
{
    struct caid_array *array = make_filled(7, late);
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, open_gate_later, NULL), 0);
    without_threads = true;
    publish_on(array, "x", late);
    cr_assert_eq(*gate, 1);
    assert_shows("x", 7, published(array));
    without_threads = false;
    pthread_join(thread, NULL);
    caid_array_close(array);
}
#endif

/* ---- failures ---- */

BEHIND_TEST(what_is_refused)
{
    struct caid_array *array = make_filled(7, late);
    struct caid_publish_options options = on(late);

    assert_failed(caid_array_publish_wait(array, 0, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_publish_wait(NULL, 0, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_publish_behind(NULL, "x", NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_publish_behind(array, "", NULL, &error), CAID_ERR_INVALID_NAME);
    options.flags = 1u << 31;
    assert_failed(caid_array_publish_behind(array, "x", &options, &error), CAID_ERR_INVALID);
    gpu_capture_begin(&f.gpu, other, CU_STREAM_CAPTURE_MODE_RELAXED);
    options = on(other);
    assert_failed(caid_array_publish_behind(array, "x", &options, &error), CAID_ERR_INVALID);
    cr_assert(gpu_capture_end(&f.gpu, other));
    assert_failed(caid_array_publish_wait(array, 0, NULL, &error), CAID_ERR_INVALID);

    publish_on(array, "x", late);
    options = on(late);
    assert_failed(caid_array_publish_behind(array, "y", &options, &error), CAID_ERR_INVALID);
    *gate = 1;
    published(array);
    assert_absent("y");
    caid_array_close(array);
}

/* What the daemon answers is kept, and the array can be published after that. */
BEHIND_TEST(what_the_daemon_refuses)
{
    OWNED struct caid_array *there = make_bytes(f.client, "x", 1),
                            *array = make_filled(7, other);
    struct caid_publish_options options = on(other);

    options.flags = CAID_PUBLISH_NEW;
    assert_ok(caid_array_publish_behind(array, "x", &options, &error));
    assert_failed(caid_array_publish_wait(array, CAID_FOREVER, NULL, &error), CAID_ERR_EXISTS);
    assert_failed(caid_array_publish_wait(array, 0, NULL, &error), CAID_ERR_EXISTS);
    publish_on(array, "y", other);
    assert_shows("y", 7, published(array));
}

static void
fails_by(const char *command, CUstream stream)
{
    wait_for_leases(f.client, 0); /* no close is to fail */
    OWNED struct caid_array *array = make_filled(7, other);
    struct caid_publish_options options = on(stream);

    soft_control(&f.gpu, command);
    int r = caid_array_publish_behind(array, "x", &options, &error);
    if (r == 0)
        r = caid_array_publish_wait(array, CAID_FOREVER, NULL, &error);
    cr_assert_lt(r, 0, "%s", command);
    cr_assert_eq(error.code, CAID_ERR_DRIVER, "%s: %s", command, error.message);
    cr_assert_neq(error.cuda_result, 0);
    soft_control(&f.gpu, "clear");
    cr_assert_eq(soft_live(&f.gpu, "events"), 0);
    assert_absent("x");
}

SOFT_TEST(work_that_fails_is_not_published)
{
    *gate = 1;
    fails_by("fail cuEventSynchronize=LAUNCH_FAILED", other);
    fails_by("fail cuCtxSynchronize=LAUNCH_FAILED", NULL);
    fails_by("fail cuEventRecord=UNKNOWN", other);
    fails_by("fail cuEventCreate=UNKNOWN", other);
    fails_by("fail cuStreamGetCtx=UNKNOWN", other);
    fails_by("fail cuCtxPushCurrent=UNKNOWN", other);
    fails_by("fail cuCtxPushCurrent=UNKNOWN", NULL);
}

SOFT_TEST(work_of_a_context_that_dies_is_not_published)
{
    struct caid_array *array = make_filled(7, late);

    publish_on(array, "x", late);
    soft_control(&f.gpu, "fault 0 LAUNCH_FAILED");
    *gate = 1;
    assert_failed(caid_array_publish_wait(array, CAID_FOREVER, NULL, &error), CAID_ERR_DRIVER);
    assert_absent("x");
    struct caid_publish_options options = on(other);
    assert_failed(caid_array_publish_behind(array, "x", &options, &error), CAID_ERR_DRIVER);
    caid_array_close(array);
}

/* While a stream captures a graph nothing is known of the context's work. */
SOFT_TEST(it_waits_until_no_stream_captures)
{
    struct caid_array *array = make_filled(7, other);

    *gate = 1;
    soft_control(&f.gpu, "fail cuCtxSynchronize=STREAM_CAPTURE_UNSUPPORTED");
    assert_ok(caid_array_publish_behind(array, "x", NULL, &error));
    assert_failed(caid_array_publish_wait(array, 20000000, NULL, &error), CAID_ERR_TIMEOUT);
    assert_ok(caid_flush(f.client, -1, NULL, &error)); /* does not hang */
    soft_control(&f.gpu, "clear");
    assert_shows("x", 7, published(array));
    caid_array_close(array);
}

/* ---- the daemon ends ---- */

BEHIND_TEST(without_a_daemon_it_fails)
{
    struct caid_array *array = make_filled(7, late), *more = make_filled(7, late);

    publish_on(array, "x", late);
    publish_on(more, "x", late);
    caid_array_close(more);
    daemon_end(&f.daemon, SIGKILL);
    *gate = 1;
    assert_failed(caid_array_publish_wait(array, CAID_FOREVER, NULL, &error),
                  CAID_ERR_DISCONNECTED);
    caid_array_close(array);
}

static void
begin_supervised(void)
{
    gpu_begin(&f.gpu);
    daemon_start_supervised(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    begin_streams();
}

#define RESTART_TEST(name)                                               \
    CAID_TEST_BETWEEN(behind, name, begin_supervised(), end_with_gate(), \
                      .init = driver_warm_up, .timeout = 120)

RESTART_TEST(it_is_asked_of_the_next_daemon)
{
    struct caid_array *array = make_filled(7, late), *closed = make_filled(8, late);

    publish_on(array, "x", late);
    publish_on(closed, "y", late);
    assert_ok(caid_array_close_on(closed, (uint64_t)(uintptr_t)other, &error));
    cr_assert_eq(kill((pid_t)status_of(f.client).pid, SIGKILL), 0);
    *gate = 1;
    assert_shows("x", 7, published(array));
    wait_for_leases(f.client, 1);
    caid_array_close(must_open("y", "r"));
    caid_array_close(array);
}

/* The daemon has taken the request, or has not: it takes effect once. */
RESTART_TEST(a_request_under_way_takes_effect_once)
{
    struct caid_array *array = make_filled(7, other);
    uint64_t generation = 0;

    *gate = 1;
    for (int i = 0; i < 5; i++) {
        pid_t pid = (pid_t)status_of(f.client).pid;
        cr_assert_eq(kill(pid, SIGSTOP), 0);
        publish_on(array, "x", other);
        assert_failed(caid_array_publish_wait(array, 20000000, NULL, &error), CAID_ERR_TIMEOUT);
        if (i % 2)
            cr_assert_eq(kill(pid, SIGCONT), 0);
        cr_assert_eq(kill(pid, SIGKILL), 0);
        uint64_t next = published(array);
        cr_assert(i == 0 || next == generation + 1);
        generation = next;
    }
    assert_shows("x", 7, generation);
    caid_array_close(array);
}
