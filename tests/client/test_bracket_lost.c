/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets of which something is lost: the process that writes, the daemon, the client, or room
 * in the socket; and many threads that begin and end them.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bracket_fixture.h"
#include "handoff/bracket.h"
#include "process.h"
#include "session/client.h"
#include "session/feature.h"

/* ---- a writer that is killed ---- */

#define NEVER_US "60000000" /* the writer's streams are that late */

static struct process
writer_start(const char *how)
{
    struct process writer;

    setenv("CAID_SOFTCUDA_DELAY_US", NEVER_US, 1);
    process_start(&writer, "writer", f.daemon.socket, "x", how, NULL);
    unsetenv("CAID_SOFTCUDA_DELAY_US");
    process_expect(&writer, "ready\n");
    return writer;
}

/* In the midst of its bracket. */
BRACKET_TEST(bracket_lost, a_reader_in_the_queue_is_told)
{
    struct caid_bracket *read;

    struct process pid = writer_start("open");
    OPTIONS(caid_bracket_options, options, .reads = &f.bx, .n_reads = 1, .stream = f.s2);
    assert_ok(caid_bracket_start(f.b, &read, &options, &error));
    cr_assert_eq(caid_bracket_wait(read, 0, &error), 1);
    process_end(&pid, SIGKILL);
    cr_assert_eq(caid_bracket_wait(read, NSEC_PER_SEC, &error), -EOWNERDEAD, "%s",
                 error.message);
    caid_bracket_free(read);
    assert_abandoned(f.ax);
    end_and_free(begin_on(f.bw, CAID_BRACKET_WRITE, f.s2));
    end_and_free(begin_on(f.ax, 0, f.s1));
}

/* After the end of its bracket, with the work still to be done: the readers' streams are let go. */
BRACKET_TEST(bracket_lost, a_reader_that_was_let_go_is_told)
{
    struct process pid = writer_start("end");
    struct caid_bracket *read = begin_on(f.bx, 0, f.s2);
    get(f.bx, f.seen[0], f.s2);
    cr_assert_eq(cuda_stream_query(f.b, f.s2, 0, &error), 0, "it does not wait");
    struct caid_bracket *early = begin_on(f.bx, 0, f.s3);
    assert_ok(caid_bracket_end(early, &error));
    assert_ok(caid_bracket_check(early, &error));

    process_end(&pid, SIGKILL);
    assert_failed(caid_stream_synchronize(f.b, f.s2, 0, &error), CAID_ERR_ABANDONED);
    for (int i = 0; i < 2; i++)
        assert_failed(caid_bracket_check(read, &error), CAID_ERR_ABANDONED);
    cr_assert(strstr(error.message, "\"x\""), "%s", error.message);
    assert_failed(caid_bracket_end(read, &error), CAID_ERR_ABANDONED);
    assert_failed(caid_bracket_end(read, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_check(early, &error), CAID_ERR_ABANDONED);
    wait_for_brackets(f.a, 0);

    assert_abandoned(f.ax);
    assert_ok(caid_array_discard(f.ax, &error));
    end_and_free(begin_on(f.ax, 0, f.s1));
    caid_bracket_free(early);
    caid_bracket_free(read);
}

/* What was there before is nothing to who writes it anew. */
BRACKET_TEST(bracket_lost, a_writer_that_was_let_go_goes_on)
{
    struct process pid = writer_start("end");
    struct caid_bracket *write = begin_on(f.bw, CAID_BRACKET_WRITE, f.s2);
    fill(f.bw, 5, f.s2);
    cr_assert_eq(cuda_stream_query(f.b, f.s2, 0, &error), 0, "it does not wait");
    process_end(&pid, SIGKILL);
    assert_ok(caid_stream_synchronize(f.b, f.s2, 0, &error));
    end_and_free(write);
    end_and_free(begin_on(f.ax, 0, f.s1));
}

/* A client that closes while its process lives on keeps nobody out. */
static void
close_with_bracket(const char *mode, uint32_t flags)
{
    struct caid_bracket *open, *waits;
    struct caid_array *x;

    fixture_begin();
    struct caid_client *client = daemon_connect(&f.daemon);
    OPTIONS(caid_open_options, options, .mode = mode);
    assert_ok(caid_array_open(client, &x, "x", &options, &error));
    assert_ok(caid_array_begin(x, &open, flags, f.s3, CAID_FOREVER, &error));
    OPTIONS(caid_bracket_options, asked, .reads = &x, .n_reads = 1);
    if (flags)
        assert_ok(caid_bracket_start(client, &waits, &asked, &error));
    caid_client_close(client);
    assert_failed(caid_bracket_end(open, &error), CAID_ERR_CLOSED);
    caid_bracket_free(open);
    if (flags)
        caid_bracket_free(waits);
    caid_array_close(x);
    if (flags)
        assert_abandoned(f.ax);
    end_and_free(begin_on(f.bw, CAID_BRACKET_WRITE, f.s2));
    end_and_free(begin_on(f.ax, 0, f.s1));
    fixture_end();
}

CAID_TEST_WITH(bracket_lost, a_client_that_closes_ends_its_brackets, .init = soft_warm_up,
               .timeout = 120)
{
    close_with_bracket("r", 0);
    close_with_bracket("rw", CAID_BRACKET_WRITE);
}

/* The host is told by the begin that waited. */
BRACKET_TEST(bracket_lost, a_host_that_was_let_go_is_told)
{
    struct caid_bracket *read;

    struct process pid = writer_start("end");
    OPTIONS(caid_bracket_options, options, .reads = &f.bx, .n_reads = 1);
    assert_ok(caid_bracket_start(f.b, &read, &options, &error));
    cr_assert_eq(caid_bracket_wait(read, 20 * NSEC_PER_MSEC, &error), 1);
    process_end(&pid, SIGKILL);
    cr_assert_eq(caid_bracket_wait(read, NSEC_PER_SEC, &error), -EOWNERDEAD, "%s",
                 error.message);
    caid_bracket_free(read);
    wait_for_brackets(f.a, 0);
}

/* ---- the daemon ---- */

BRACKET_TEST(bracket_lost, ends_with_the_daemon)
{
    struct caid_bracket *none = NULL, *waits;

    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
    OPTIONS(caid_bracket_options, options, .reads = &f.bx, .n_reads = 1);
    assert_ok(caid_bracket_start(f.b, &waits, &options, &error));
    daemon_end(&f.daemon, SIGKILL);
    assert_failed(caid_bracket_wait(waits, CAID_FOREVER, &error), CAID_ERR_DISCONNECTED);
    assert_failed(caid_array_begin(f.bx, &none, 0, f.s2, 0, &error), CAID_ERR_DISCONNECTED);
    assert_failed(caid_array_discard(f.bw, &error), CAID_ERR_DISCONNECTED);
    assert_failed(caid_client_ping(f.a, &error), CAID_ERR_DISCONNECTED);
    assert_failed(caid_bracket_end(write, &error), CAID_ERR_DISCONNECTED);
    cr_assert_null(none);
    caid_bracket_free(write);
    caid_bracket_free(waits);
}

/* ---- the client ---- */

BRACKET_TEST(bracket_lost, ends_with_the_client)
{
    struct caid_bracket *none = NULL, *waits;

    struct caid_bracket *write = begin_on(f.bw, CAID_BRACKET_WRITE, f.s2);
    OPTIONS(caid_bracket_options, options, .reads = &f.ax, .n_reads = 1);
    assert_ok(caid_bracket_start(f.a, &waits, &options, &error));
    caid_client_close(f.b);
    assert_failed(caid_bracket_wait(waits, CAID_FOREVER, &error), CAID_ERR_ABANDONED);
    caid_bracket_free(waits);
    assert_failed(caid_array_begin(f.bw, &none, 0, f.s2, 0, &error), CAID_ERR_CLOSED);
    assert_failed(caid_bracket_end(write, &error), CAID_ERR_CLOSED);
    caid_bracket_free(write);
    caid_array_close(f.bw);
    caid_array_close(f.bx);
    f.b = NULL;
    f.bw = f.bx = NULL;
}

BRACKET_TEST(bracket_lost, is_not_a_childs)
{
    struct caid_bracket *write = begin_on(f.bw, CAID_BRACKET_WRITE, f.s2);
    pid_t pid = fork();
    if (pid == 0) {
        bool forked = caid_bracket_end(write, &error) == -EPERM &&
                      error.code == CAID_ERR_FORKED &&
                      caid_bracket_check(write, &error) == -EPERM &&
                      caid_bracket_wait(write, 0, &error) == -EPERM &&
                      caid_array_discard(f.bw, &error) == -EPERM;
        caid_bracket_free(write);
        _exit(!forked);
    }
    cr_assert_eq(process_wait(pid), 0);
    end_and_free(write);
    end_and_free(begin_on(f.ax, 0, f.s1));
}

/* ---- a daemon that does not read ---- */

#define N_ENDS 2000

static bool
has_unsent(struct caid_client *client)
{
    pthread_mutex_lock(&client->lock);
    bool unsent = bracket_feature.has_unsent(client);
    pthread_mutex_unlock(&client->lock);
    return unsent;
}

/* Ends more brackets than the socket takes. */
static void
end_many(struct caid_bracket *const brackets[N_ENDS])
{
    for (int i = 0; i < N_ENDS; i++)
        end_and_free(brackets[i]);
    cr_assert(has_unsent(f.b), "the socket takes them all");
}

static void
begin_many(struct caid_bracket *brackets[N_ENDS])
{
    end_and_free(begin_on(f.bx, 0, f.s2)); /* so that the stream has its slot */
    for (int i = 0; i < N_ENDS; i++)
        brackets[i] = begin_on(f.bx, 0, i % 2 ? f.s2 : 0);
}

BRACKET_TEST(bracket_lost, no_end_is_lost)
{
    static struct caid_bracket *brackets[N_ENDS];

    struct caid_array *y = make_bytes(f.b, "y", 16);
    begin_many(brackets);
    struct caid_bracket *write = begin_on(y, CAID_BRACKET_WRITE, f.s2);
    kill(f.daemon.pid, SIGSTOP);
    end_many(brackets);
    end_and_free(write);
    caid_array_close(y); /* after the end */
    kill(f.daemon.pid, SIGCONT);
    wait_for_brackets(f.a, 0);
    assert_ok(caid_array_open(f.a, &y, "y", NULL, &error));
    end_and_free(begin_on(y, 0, f.s1));
    caid_array_close(y);
}

static void *
go_on(void *daemon)
{
    const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};

    nanosleep(&pause, NULL);
    kill(((struct daemon *)daemon)->pid, SIGCONT);
    return NULL;
}

/* Work that was ended is not taken for abandoned because the client goes next. */
BRACKET_TEST(bracket_lost, a_client_that_ends_sends_its_ends)
{
    static struct caid_bracket *brackets[N_ENDS];
    struct caid_array *y;
    pthread_t thread;

    y = make_bytes(f.b, "y", 16);
    begin_many(brackets);
    struct caid_bracket *write = begin_on(y, CAID_BRACKET_WRITE, f.s2);
    kill(f.daemon.pid, SIGSTOP);
    end_many(brackets);
    end_and_free(write);
    cr_assert_eq(pthread_create(&thread, NULL, go_on, &f.daemon), 0);
    caid_client_close(f.b);
    pthread_join(thread, NULL);
    caid_array_close(y);
    caid_array_close(f.bx);
    caid_array_close(f.bw);
    f.b = NULL;
    f.bx = f.bw = NULL;
    assert_ok(caid_array_open(f.a, &y, "y", NULL, &error));
    end_and_free(begin_on(y, 0, f.s1));
    caid_array_close(y);
    wait_for_brackets(f.a, 0);
}

/* The daemon grants it when nobody waits for it any more: then it sees the cancellation, and the
 * closes, and the hang-up. */
BRACKET_TEST(bracket_lost, nothing_was_done_in_a_begin_that_timed_out)
{
    struct caid_array *y = make_bytes(f.b, "y", 16);
    struct caid_bracket *write;

    kill(f.daemon.pid, SIGSTOP);
    assert_failed(caid_array_begin(y, &write, CAID_BRACKET_WRITE, 0, 20 * NSEC_PER_MSEC,
                                   &error),
                  CAID_ERR_TIMEOUT);
    caid_array_close(y);
    caid_array_close(f.bx);
    caid_array_close(f.bw);
    caid_client_close(f.b);
    f.b = NULL;
    f.bx = f.bw = NULL;
    kill(f.daemon.pid, SIGCONT);
    assert_ok(caid_array_open(f.a, &y, "y", NULL, &error));
    end_and_free(begin_on(y, 0, f.s1));
    caid_array_close(y);
    wait_for_brackets(f.a, 0);
}

/* ---- driver calls that fail ---- */

/* While the waits of a begin are enqueued: it is given back, and has not been. */
BRACKET_TEST(bracket_lost, a_begin_that_fails_is_undone)
{
    const char *const commands[] = {"fail cuMemHostRegister=UNKNOWN",
                                    "fail cuStreamWaitValue64=UNKNOWN",
                                    "fail cuCtxPushCurrent@2=UNKNOWN"};
    struct caid_bracket *write = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        be_late(f.s1);
        struct caid_bracket *before = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
        end_and_free(before);
        assert_cuda(f.gpu.drv->cu.cuCtxSetCurrent(NULL)); /* so that the client pushes one */
        soft_control(&f.gpu, commands[i]);
        assert_failed(caid_array_begin(f.bw, &write, CAID_BRACKET_WRITE, f.s2, CAID_FOREVER,
                                       &error),
                      CAID_ERR_DRIVER);
        soft_control(&f.gpu, "clear");
        assert_cuda(f.gpu.drv->cu.cuCtxSetCurrent(f.gpu.context));
        cr_assert_null(write);
        wait_for_brackets(f.a, 0);
        synchronize();
        end_and_free(begin_on(f.bx, 0, f.s2));
    }
}

/* Where no signal can be enqueued the end waits for the stream itself. */
BRACKET_TEST(bracket_lost, an_end_without_a_signal_waits)
{
    be_late(f.s1);
    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
    fill(f.ax, 5, f.s1);
    soft_control(&f.gpu, "fail cuStreamWriteValue64=UNKNOWN");
    assert_ok(caid_bracket_end(write, &error));
    soft_control(&f.gpu, "clear");
    caid_bracket_free(write);
    cr_assert_eq(cuda_stream_query(f.a, f.s1, 0, &error), 1, "it has not waited");
    end_and_free(begin_on(f.bx, 0, f.s2));
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitValue64"), 0);
}

/* What nobody can tell the end of is not whole. */
BRACKET_TEST(bracket_lost, an_end_that_knows_nothing_abandons)
{
    const char *const commands[] = {
        "fail cuStreamWriteValue64=UNKNOWN,cuStreamSynchronize=UNKNOWN",
        "fail cuStreamWriteValue64=LAUNCH_FAILED", /* as of a context that is dead */
    };

    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
        soft_control(&f.gpu, commands[i]);
        assert_failed(caid_bracket_end(write, &error), CAID_ERR_DRIVER);
        cr_assert(strstr(error.message, "cuStreamWriteValue64"), "%s", error.message);
        soft_control(&f.gpu, "clear");
        caid_bracket_free(write);
        assert_abandoned(f.bx);
        end_and_free(begin_on(f.bw, CAID_BRACKET_WRITE, f.s2));
        end_and_free(begin_on(f.bx, 0, f.s2));
    }
}

/* ---- threads ---- */

#define N_THREADS 6
#define N_ROUNDS  40

struct crowd {
    struct caid_array *arrays[2]; /* each client's own handle of "sum" */
    atomic_int next, failed;
    char message[600];
};

static int
note(struct crowd *crowd, int r, const struct caid_error *error)
{
    if (r < 0 && atomic_fetch_add(&crowd->failed, 1) == 0)
        snprintf(crowd->message, sizeof(crowd->message), "%s", error->message);
    return r;
}

/* One more, which nobody else sees half done. */
static int
increment(struct caid_client *client, struct caid_array *array, uint64_t stream,
          struct caid_error *error)
{
    struct caid_bracket *bracket;
    uint64_t n = 0;

    int r = caid_array_begin(array, &bracket, CAID_BRACKET_WRITE, stream, CAID_FOREVER, error);
    if (r < 0)
        return r;
    OPTIONS(caid_copy, copy, .itemsize = sizeof(n), .stream = stream,
            .src = caid_array_get_info(array)->ptr, .dst = (uintptr_t)&n, .dst_on_host = true);
    r = caid_copy(client, &copy, error);
    if (r == 0 && stream != 0)
        r = caid_stream_synchronize(client, stream, 0, error);
    n++;
    copy.dst = copy.src;
    copy.dst_on_host = false;
    copy.src = (uintptr_t)&n;
    copy.src_on_host = true;
    if (r == 0)
        r = caid_copy(client, &copy, error);
    if (r == 0)
        r = caid_bracket_end(bracket, error);
    if (stream != 0) /* n has to stay */
        caid_stream_synchronize(client, stream, 0, NULL);
    caid_bracket_free(bracket);
    return r;
}

static int
look(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    struct caid_bracket *bracket;

    int r = caid_array_begin(array, &bracket, 0, stream, CAID_FOREVER, error);
    if (r < 0)
        return r;
    r = caid_bracket_end(bracket, error);
    caid_bracket_free(bracket);
    return r;
}

static void *
count_up(void *arg)
{
    struct crowd *crowd = arg;
    int me = atomic_fetch_add(&crowd->next, 1);
    struct caid_client *client = me % 2 ? f.b : f.a;
    uint64_t stream = 0;

    if (me % 3 != 0)
        note(crowd, caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error),
             &error);
    for (int i = 0; i < N_ROUNDS && !crowd->failed; i++) {
        note(crowd, increment(client, crowd->arrays[me % 2], stream, &error), &error);
        note(crowd, look(crowd->arrays[me % 2], stream, &error), &error);
    }
    if (stream != 0)
        note(crowd, caid_stream_destroy(client, stream, &error), &error);
    return NULL;
}

BRACKET_TEST(bracket_lost, no_increment_is)
{
    struct caid_open_options rw = CAID_INIT(rw);
    pthread_t threads[N_THREADS];
    struct crowd crowd = {0};
    uint64_t sum = 0;

    soft_control(&f.gpu, "delay 300 7");
    rw.mode = "rw";
    crowd.arrays[0] = make_bytes(f.a, "sum", sizeof(sum));
    assert_ok(caid_array_copy_from_host(crowd.arrays[0], &sum, sizeof(sum), &error));
    assert_ok(caid_array_open(f.b, &crowd.arrays[1], "sum", &rw, &error));
    for (int i = 0; i < N_THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, count_up, &crowd), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    soft_control(&f.gpu, "delay 0");
    cr_assert_eq(crowd.failed, 0, "%s", crowd.message);
    struct caid_bracket *read = begin_on(crowd.arrays[0], 0, 0);
    assert_ok(caid_array_copy_to_host(crowd.arrays[0], &sum, sizeof(sum), &error));
    end_and_free(read);
    cr_assert_eq(sum, N_THREADS * N_ROUNDS);
    caid_array_close(crowd.arrays[0]);
    caid_array_close(crowd.arrays[1]);
}

/* Two that nest in opposite order: one of them is told, and the other goes on. */
struct nest {
    struct caid_array *outer, *inner;
    pthread_barrier_t *both;
    struct caid_error error;
    int r;
};

static void *
nest(void *arg)
{
    struct nest *n = arg;
    struct caid_bracket *outer, *inner;

    n->r = caid_array_begin(n->outer, &outer, CAID_BRACKET_WRITE, 0, CAID_FOREVER, &n->error);
    if (n->r < 0)
        return NULL;
    pthread_barrier_wait(n->both);
    n->r = caid_array_begin(n->inner, &inner, CAID_BRACKET_WRITE, 0, CAID_FOREVER, &n->error);
    if (n->r == 0) {
        caid_bracket_end(inner, NULL);
        caid_bracket_free(inner);
    }
    caid_bracket_end(outer, NULL);
    caid_bracket_free(outer);
    return NULL;
}

CAID_TEST_WITH(bracket_lost, nesting_in_opposite_order_is_told, .init = soft_warm_up,
               .timeout = 120)
{
    struct caid_open_options rw = CAID_INIT(rw);
    struct caid_array *y, *by;
    pthread_barrier_t both;
    pthread_t thread;

    fixture_begin();
    rw.mode = "rw";
    y = make_bytes(f.a, "y", 16);
    assert_ok(caid_array_open(f.b, &by, "y", &rw, &error));
    pthread_barrier_init(&both, NULL, 2);
    struct nest a = {.outer = f.ax, .inner = y, .both = &both};
    struct nest b = {.outer = by, .inner = f.bw, .both = &both};
    cr_assert_eq(pthread_create(&thread, NULL, nest, &b), 0);
    nest(&a);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&both);
    cr_assert_eq((a.r == -EDEADLK) + (b.r == -EDEADLK), 1, "%d, %d", a.r, b.r);
    cr_assert_eq((a.r == 0) + (b.r == 0), 1, "%d, %d", a.r, b.r);
    end_and_free(begin_on(by, 0, f.s2)); /* nobody has abandoned it */
    caid_array_close(y);
    caid_array_close(by);
    fixture_end();
}
