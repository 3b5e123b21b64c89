/* SPDX-License-Identifier: Apache-2.0 */
/* Watches: whoever reads them, none misses the latest news; and all the ways in which they end.
 * */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "fake.h"
#include "process.h"

#define WATCH_TEST(suite, name) CAID_TEST_BETWEEN(suite, name, begin(), end(), .timeout = 60)

#define FOREVER  UINT64_MAX
#define MSEC     UINT64_C(1000000)
#define N_ROUNDS 300

static struct fixture {
    struct daemon daemon;
    struct caid_client *client, *other; /* the other one publishes */
    struct caid_array *array;
} f;

static void
begin(void)
{
    daemon_start(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    f.other = daemon_connect(&f.daemon);
    f.array = make_bytes(f.other, NULL, 0);
}

static void
end(void)
{
    caid_array_close(f.array);
    caid_client_close(f.other);
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
}

static uint64_t
publish(const char *name)
{
    uint64_t generation;

    assert_ok(caid_array_publish(f.array, name, NULL, &generation, &error));
    return generation;
}

static struct caid_watch *
watch(const char *name)
{
    struct caid_watch *ret;

    assert_ok(caid_watch_new(f.client, &ret, name, NULL, NULL, NULL, &error));
    return ret;
}

static uint64_t
next(struct caid_watch *of)
{
    struct caid_change change;

    assert_ok(caid_watch_next(of, FOREVER, &change, &error));
    return change.generation;
}

static void
assert_no_news(struct caid_watch *of, uint64_t timeout_ns)
{
    struct caid_change change;

    int r = caid_watch_next(of, timeout_ns, &change, &error);
    cr_assert_eq(r, -ETIMEDOUT, "%d", r);
    cr_assert_eq(error.code, CAID_ERR_TIMEOUT);
}

/* ---- one thread ---- */

WATCH_TEST(watch, tells_the_latest)
{
    struct caid_change change;

    uint64_t first = publish("x");
    struct caid_watch *x = watch("x");
    assert_ok(caid_watch_next(x, FOREVER, &change, &error));
    cr_assert_str_eq(change.name, "x");
    cr_assert_null(change.pool);
    cr_assert_eq(change.generation, first, "what is there already is news");
    assert_no_news(x, 0);

    publish("x");
    cr_assert_eq(next(x), first + 1);
    for (int i = 0; i < 10; i++)
        publish("x");
    uint64_t last = first + 11;
    while (next(x) != last)
        ;
    assert_no_news(x, 5 * MSEC);
    assert_ok(caid_unlink(f.other, "x", NULL, &error));
    cr_assert_eq(next(x), 0);
    publish("x");
    cr_assert_gt(next(x), last, "a name's generations never come again");
    caid_watch_close(x);
}

WATCH_TEST(watch, a_name_that_never_comes)
{
    struct caid_watch *x = watch("never");
    assert_no_news(x, 0);
    assert_no_news(x, 20 * MSEC);
    publish("another");
    assert_no_news(x, 20 * MSEC);
    caid_watch_close(x);
}

WATCH_TEST(watch, many_are_told_apart)
{
    struct caid_watch *watches[20];
    char name[8];

    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        watches[i] = watch(name);
    }
    cr_assert_eq(status_of(f.client).watches, 20);
    for (int i = 19; i >= 0; i--) {
        snprintf(name, sizeof(name), "n%d", i);
        uint64_t generation = publish(name);
        cr_assert_eq(next(watches[i]), generation);
        if (i < 19)
            cr_assert_eq(next(watches[i + 1]), 0, "the array moved on");
    }
    for (int i = 0; i < 20; i++)
        caid_watch_close(watches[i]);
    cr_assert_eq(status_of(f.client).watches, 0, "cancelled");
}

WATCH_TEST(watch, what_is_refused)
{
    struct caid_watch *x = NULL;
    struct caid_change change;

    assert_failed(caid_watch_new(f.client, &x, "", NULL, NULL, NULL, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_watch_new(f.client, &x, "tab\t", NULL, NULL, NULL, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_watch_new(f.client, &x, "x", "no-pool", NULL, NULL, &error),
                  CAID_ERR_NOT_FOUND);
    assert_failed(caid_watch_new(f.client, NULL, "x", NULL, NULL, NULL, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_watch_new(NULL, &x, "x", NULL, NULL, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_watch_next(NULL, 0, &change, &error), CAID_ERR_INVALID);
    cr_assert_null(x);
    caid_watch_close(NULL);
    cr_assert_eq(status_of(f.client).watches, 0);
}

/* ---- callbacks ---- */

struct seen {
    int n;
    uint64_t generation;
    struct caid_watch *to_close;
    struct caid_client *to_use;
};

static void
see(const struct caid_change *change, void *userdata)
{
    struct seen *seen = userdata;

    seen->n++;
    seen->generation = change->generation;
    if (seen->to_use)
        caid_client_ping(seen->to_use, NULL);
    caid_watch_close(seen->to_close);
    seen->to_close = NULL;
}

static struct caid_watch *
watch_fn(const char *name, struct seen *seen)
{
    struct caid_watch *ret;

    assert_ok(caid_watch_new(f.client, &ret, name, NULL, see, seen, &error));
    return ret;
}

static bool
is_readable(struct caid_client *client, int timeout_ms)
{
    struct pollfd fd = {.fd = caid_client_get_fd(client), .events = POLLIN};

    cr_assert_geq(fd.fd, 0);
    return poll(&fd, 1, timeout_ms) == 1;
}

static void
dispatch_until(const struct seen *seen, uint64_t generation)
{
    while (seen->generation != generation) {
        cr_assert(is_readable(f.client, -1));
        assert_ok(caid_client_dispatch(f.client, &error));
    }
}

WATCH_TEST(watch, calls_back_from_dispatch)
{
    struct seen seen = {0};

    int fd = caid_client_get_fd(f.client);
    cr_assert_eq(caid_client_get_fd(f.client), fd, "the same at every call");
    seen.to_use = f.client;
    struct caid_watch *x = watch_fn("x", &seen);
    cr_assert(!is_readable(f.client, 0));
    uint64_t generation = publish("x");
    cr_assert_eq(seen.n, 0, "from dispatch alone");
    dispatch_until(&seen, generation);
    cr_assert_eq(seen.n, 1);
    cr_assert(!is_readable(f.client, 0));
    for (int i = 0; i < 50; i++)
        dispatch_until(&seen, publish("x"));
    publish("x");
    assert_ok(caid_client_ping(f.client, &error));
    caid_watch_close(x);
    publish("x");
    assert_ok(caid_client_ping(f.client, &error));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(seen.n, 51, "none after the close");
}

/* News that came with another call are not lost to a loop that waits for the fd. */
WATCH_TEST(watch, the_fd_tells_of_what_others_read)
{
    struct seen seen = {0};

    struct caid_watch *x = watch_fn("x", &seen), *quiet = watch("quiet");
    cr_assert(!is_readable(f.client, 0));
    uint64_t generation = publish("x");
    assert_ok(caid_client_ping(f.client, &error));
    cr_assert(is_readable(f.client, 0));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(seen.generation, generation);
    cr_assert(!is_readable(f.client, 0));

    publish("quiet");
    assert_ok(caid_client_ping(f.client, &error));
    cr_assert(is_readable(f.client, 0), "also of a watch that has no callback");
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_gt(next(quiet), 0);
    caid_watch_close(x);
    caid_watch_close(quiet);
}

/* The fd is made when news are waiting already. */
WATCH_TEST(watch, the_fd_may_come_late)
{
    struct seen seen = {0};

    struct caid_watch *x = watch_fn("x", &seen);
    publish("x");
    assert_ok(caid_client_ping(f.client, &error));
    cr_assert(is_readable(f.client, 0));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(seen.n, 1);
    caid_watch_close(x);
}

WATCH_TEST(watch, is_closed_from_its_callback)
{
    struct seen seen = {0};

    seen.to_close = watch_fn("x", &seen);
    publish("x");
    publish("x");
    while (seen.n == 0)
        assert_ok(caid_client_dispatch(f.client, &error));
    publish("x");
    assert_ok(caid_client_ping(f.client, &error));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(seen.n, 1);
    cr_assert_eq(status_of(f.client).watches, 0);
}

/* ---- threads ---- */

struct waiter {
    pthread_t thread;
    struct caid_watch *watch;
    struct caid_change change;
    struct caid_error error;
    uint64_t until; /* the generation that ends it; 0: an error does */
    int r, n;
};

static void *
wait_for_news(void *arg)
{
    struct waiter *waiter = arg;
    uint64_t last = 0;

    do {
        waiter->r = caid_watch_next(waiter->watch, FOREVER, &waiter->change, &waiter->error);
        if (waiter->r == 0 && waiter->change.generation <= last)
            waiter->r = -EILSEQ; /* went back */
        last = waiter->change.generation;
        waiter->n++;
    } while (waiter->r == 0 && (waiter->until == 0 || last < waiter->until));
    return NULL;
}

static void
waiter_start(struct waiter *waiter, struct caid_watch *of, uint64_t until)
{
    *waiter = (struct waiter){.watch = of, .until = until};
    cr_assert_eq(pthread_create(&waiter->thread, NULL, wait_for_news, waiter), 0);
}

static int
waiter_join(struct waiter *waiter)
{
    pthread_join(waiter->thread, NULL);
    return waiter->r;
}

WATCH_TEST(watch, one_thread_waits_while_others_call)
{
    struct waiter waiters[2];

    struct caid_watch *x = watch("x"), *y = watch("y");
    waiter_start(&waiters[0], x, N_ROUNDS);
    waiter_start(&waiters[1], y, 1);
    for (int i = 0; i < N_ROUNDS; i++) {
        publish("x");
        assert_ok(caid_client_ping(f.client, &error));
    }
    cr_assert_eq(waiter_join(&waiters[0]), 0, "%s", waiters[0].error.message);
    cr_assert_gt(waiters[0].n, 0);
    publish("y");
    cr_assert_eq(waiter_join(&waiters[1]), 0, "%s", waiters[1].error.message);
    caid_watch_close(x);
    caid_watch_close(y);
}

static void *
ping(void *arg)
{
    return caid_client_ping(arg, NULL) == 0 ? arg : NULL;
}

/* Who has waited long enough leaves; who waits for a reply reads on. */
WATCH_TEST(watch, a_reader_that_leaves_is_replaced)
{
    pthread_t thread;
    void *answered;

    struct caid_watch *x = watch("x");
    for (int i = 0; i < 5; i++) {
        kill(f.daemon.pid, SIGSTOP);
        cr_assert_eq(pthread_create(&thread, NULL, ping, f.client), 0);
        assert_no_news(x, 30 * MSEC); /* whichever of the two reads */
        kill(f.daemon.pid, SIGCONT);
        pthread_join(thread, &answered);
        cr_assert_eq(answered, f.client);
    }
    caid_watch_close(x);
}

static void *
wait_a_little(void *arg)
{
    struct caid_change change;
    return caid_watch_next(arg, 50 * MSEC, &change, NULL) == -ETIMEDOUT ? arg : NULL;
}

WATCH_TEST(watch, a_waiter_that_reads_first_is_replaced)
{
    pthread_t thread;
    void *timed_out;

    struct caid_watch *x = watch("x");
    kill(f.daemon.pid, SIGSTOP);
    cr_assert_eq(pthread_create(&thread, NULL, wait_a_little, x), 0);
    usleep(10 * 1000);
    pid_t helper = fork();
    if (helper == 0) {
        usleep(200 * 1000);
        kill(f.daemon.pid, SIGCONT);
        _exit(0);
    }
    assert_ok(caid_client_ping(f.client, &error));
    pthread_join(thread, &timed_out);
    cr_assert_eq(timed_out, x);
    cr_assert_eq(waitpid(helper, NULL, 0), helper);
    caid_watch_close(x);
}

/* Whether the waiter reads for all, or sleeps while another one does. */
WATCH_TEST(watch, close_wakes_who_waits)
{
    struct waiter waiters[3];

    for (int stopped = 0; stopped < 2; stopped++) {
        struct caid_watch *x = watch("x"), *y = watch("y");
        waiter_start(&waiters[0], x, 0);
        waiter_start(&waiters[1], y, 0);
        waiter_start(&waiters[2], y, 0);
        threads_wait();
        if (stopped)
            kill(f.daemon.pid, SIGSTOP); /* nobody answers the cancellation */
        caid_watch_close(x);
        cr_assert_eq(waiter_join(&waiters[0]), -ECANCELED);
        cr_assert_eq(waiters[0].error.code, CAID_ERR_CANCELLED);
        caid_watch_close(y);
        cr_assert_eq(waiter_join(&waiters[1]), -ECANCELED);
        cr_assert_eq(waiter_join(&waiters[2]), -ECANCELED);
        kill(f.daemon.pid, SIGCONT);
    }
    cr_assert_eq(status_of(f.client).watches, 0);
}

WATCH_TEST(watch, the_daemon_dies)
{
    struct waiter waiters[2];
    struct seen seen = {0};
    struct caid_change change;

    struct caid_watch *x = watch("x"), *y = watch("y"), *z = watch_fn("z", &seen);
    waiter_start(&waiters[0], x, 0);
    waiter_start(&waiters[1], y, 0);
    threads_wait();
    daemon_end(&f.daemon, SIGKILL);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(waiter_join(&waiters[i]), -ECONNRESET);
        cr_assert_eq(waiters[i].error.code, CAID_ERR_DISCONNECTED);
    }
    cr_assert(is_readable(f.client, 0));
    cr_assert_eq(caid_client_dispatch(f.client, &error), -ECONNRESET);
    assert_failed(caid_watch_next(z, 0, &change, &error), CAID_ERR_DISCONNECTED);
    cr_assert_eq(seen.n, 0);
    caid_watch_close(x);
    caid_watch_close(y);
    caid_watch_close(z);
}

WATCH_TEST(watch, the_client_is_closed)
{
    struct waiter waiter;
    struct caid_change change;

    struct caid_watch *x = watch("x"), *y = watch("y");
    waiter_start(&waiter, x, 0);
    threads_wait();
    caid_client_close(f.client);
    cr_assert_eq(waiter_join(&waiter), -EBADF);
    assert_failed(caid_watch_next(y, 0, &change, &error), CAID_ERR_CLOSED);
    caid_watch_close(x);
    caid_watch_close(y);
    f.client = daemon_connect(&f.daemon);
}

/* A daemon that does not read is not waited for: what did not fit is sent when it reads again.
 * */
WATCH_TEST(watch, close_never_blocks)
{
    struct caid_watch *watches[N_ROUNDS];
    char name[8];

    for (int i = 0; i < N_ROUNDS; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        watches[i] = watch(name);
    }
    kill(f.daemon.pid, SIGSTOP);
    for (int i = 0; i < N_ROUNDS; i++)
        caid_watch_close(watches[i]);
    kill(f.daemon.pid, SIGCONT);
    cr_assert_eq(status_of(f.client).watches, 0);
}

/* ---- a daemon that breaks the protocol ---- */

static void
answer_watch(struct fake *fake, uint32_t id, uint64_t generation)
{
    struct msg_watch_result result = {.generation = generation};

    fake->id = id;
    fake_result(fake, MSG_WATCH, &result, NULL, 0);
}

/* Answers the watch and the ping after it, and returns the next watch's id. */
static uint32_t
begin_watch(struct fake *fake)
{
    if (fake_request(fake) != MSG_WATCH)
        return 0;
    uint32_t id = fake->id;
    fake_request(fake);
    fake_pong(fake);
    return id;
}

static void
script_same_again(struct fake *fake)
{
    answer_watch(fake, begin_watch(fake), 5);
    if (fake_request(fake) == MSG_WATCH)
        answer_watch(fake, fake->id, 5);
    fake_drain(fake);
}

static void
script_limit(struct fake *fake)
{
    answer_watch(fake, begin_watch(fake), 5);
    if (fake_request(fake) == MSG_WATCH)
        fake_error(fake, PROTO_ERR_LIMIT, "too many", 0);
    fake_drain(fake);
}

static void
script_nothing_there(struct fake *fake)
{
    answer_watch(fake, begin_watch(fake), 0); /* is what the client said it knew */
    fake_drain(fake);
}

CAID_TEST(watch, news_that_are_none)
{
    struct caid_change change;
    struct caid_watch *x;
    struct fake fake;

    struct caid_client *client = fake_start(&fake, script_same_again, NULL);
    assert_ok(caid_watch_new(client, &x, "x", NULL, NULL, NULL, &error));
    assert_ok(caid_watch_next(x, FOREVER, &change, &error));
    cr_assert_eq(change.generation, 5);
    assert_failed(caid_watch_next(x, FOREVER, &change, &error), CAID_ERR_PROTOCOL);
    caid_watch_close(x);
    fake_stop(&fake);

    client = fake_start(&fake, script_nothing_there, NULL);
    if (caid_watch_new(client, &x, "x", NULL, NULL, NULL, &error) == 0) {
        assert_failed(caid_watch_next(x, FOREVER, &change, &error), CAID_ERR_PROTOCOL);
        caid_watch_close(x);
    }
    cr_assert_eq(error.code, CAID_ERR_PROTOCOL);
    fake_stop(&fake);
}

CAID_TEST(watch, is_refused_later)
{
    struct seen seen = {0};
    struct caid_change change;
    struct caid_watch *x;
    struct fake fake;
    int r = 0;

    struct caid_client *client = fake_start(&fake, script_limit, NULL);
    assert_ok(caid_watch_new(client, &x, "x", NULL, see, &seen, &error));
    while (r == 0) {
        cr_assert(is_readable(client, -1));
        r = caid_client_dispatch(client, &error);
    }
    cr_assert_eq(seen.n, 1);
    cr_assert_eq(error.code, CAID_ERR_LIMIT, "%s", error.message);
    assert_ok(caid_client_dispatch(client, &error));
    assert_failed(caid_watch_next(x, 0, &change, &error), CAID_ERR_LIMIT);
    caid_watch_close(x);
    fake_stop(&fake);
}

/* ---- all names with a prefix ---- */

static struct caid_watch *
watch_prefix(const char *prefix)
{
    struct caid_watch *ret;

    assert_ok(caid_watch_prefix(f.client, &ret, prefix, NULL, NULL, NULL, &error));
    return ret;
}

static void
assert_next(struct caid_watch *of, const char *name, uint64_t generation)
{
    struct caid_change change;

    assert_ok(caid_watch_next(of, FOREVER, &change, &error));
    cr_assert_str_eq(change.name, name);
    cr_assert_eq(change.generation, generation);
}

WATCH_TEST(watch, names_with_a_prefix)
{
    uint64_t first = publish("run/1");
    struct caid_watch *run = watch_prefix("run/"), *all = watch_prefix("");

    assert_next(run, "run/1", first);
    assert_no_news(run, 0);
    uint64_t second = publish("run/2"); /* renamed */
    assert_next(run, "run/2", second);
    assert_next(run, "run/1", 0);
    publish("else");
    assert_next(run, "run/2", 0);
    assert_no_news(run, 5 * MSEC);
    caid_watch_close(run);
    caid_watch_close(all); /* with news */
    cr_assert_eq(status_of(f.client).watches, 0);
}

/* One that waits is told of each name, of each the latest, whatever comes while it is told. */
WATCH_TEST(watch, many_names_with_a_prefix)
{
    enum {
        N = 3000
    }; /* more than a packet */

    static uint64_t last[N];
    struct caid_change change;
    struct caid_watch *all;
    char name[16];
    int n_left = N;

    for (int i = 0; i < N; i++) {
        struct caid_array *array = make_bytes(f.other, NULL, 0);
        snprintf(name, sizeof(name), "n/%04d", i);
        assert_ok(caid_array_publish(array, name, NULL, &last[i], &error));
        caid_array_close(array);
    }
    all = watch_prefix("n/");
    for (int i = 0; i < N; i++) {
        assert_ok(
            caid_watch_next(all, 0, &change, &error)); /* that are there are there at once */
        snprintf(name, sizeof(name), "n/%04d", i);
        cr_assert_str_eq(change.name, name);
        cr_assert_eq(change.generation, last[i]);
        if (i == N / 2)
            assert_ok(caid_unlink(f.other, "n/0000", NULL, &error));
    }
    assert_next(all, "n/0000", 0);
    for (int i = 1; i < N; i++) {
        snprintf(name, sizeof(name), "n/%04d", i);
        assert_ok(caid_unlink(f.other, name, NULL, &error));
    }
    while (--n_left > 0)
        assert_ok(caid_watch_next(all, FOREVER, &change, &error));
    assert_no_news(all, 0);
    caid_watch_close(all);
}

static void
see_name(const struct caid_change *change, void *userdata)
{
    strcat(userdata, change->name);
}

WATCH_TEST(watch, names_with_a_prefix_by_a_callback)
{
    char names[64] = "";
    struct caid_watch *all;

    assert_ok(caid_watch_prefix(f.client, &all, "", NULL, see_name, names, &error));
    publish("a");
    publish("b");
    while (strcmp(names, "b") != 0 && strcmp(names, "aba") != 0) { /* a may have been seen */
        cr_assert(is_readable(f.client, -1));
        assert_ok(caid_client_dispatch(f.client, &error));
    }
    caid_watch_close(all);
}

/* Answers what begins the watch, and returns the number of the list's request. */
static uint32_t
begin_look(struct fake *fake)
{
    if (fake_request(fake) != MSG_CHANGES)
        return 0;
    uint32_t id = fake->id;
    fake_request(fake);
    uint32_t ping = fake->id;
    fake->id = id;
    fake_result(fake, MSG_CHANGES, &(struct msg_none){}, NULL, 0);
    fake->id = ping;
    fake_pong(fake);
    fake_request(fake); /* changes, again */
    return fake_request(fake) == MSG_LIST ? fake->id : 0;
}

static const struct msg_list_result *listed;

static void
script_list(struct fake *fake)
{
    if (begin_look(fake) != 0)
        fake_result(fake, MSG_LIST, listed, NULL, 0);
    fake_drain(fake);
}

static void
assert_refuses(const char *first, const char *second, uint64_t generation, bool more)
{
    struct msg_entry entries[2] = {{.typestr = MSG_STR("|u1"), .generation = 1},
                                   {.typestr = MSG_STR("|u1"), .generation = generation}};
    struct msg_list_result result = {entries, !!first + !!second, more};
    struct caid_change change;
    struct caid_watch *run;
    struct fake fake;

    entries[0].name = msg_str_opt(first);
    entries[1].name = msg_str_opt(second);
    listed = &result;
    struct caid_client *client = fake_start(&fake, script_list, NULL);
    int r = caid_watch_prefix(client, &run, "run/", NULL, NULL, NULL, &error);
    if (r == 0) {
        while ((r = caid_watch_next(run, FOREVER, &change, &error)) == 0)
            ;
        caid_watch_close(run);
    }
    cr_assert_eq(error.code, CAID_ERR_PROTOCOL, "%s", error.message);
    fake_stop(&fake);
}

CAID_TEST(watch, lists_that_are_none)
{
    assert_refuses("run/1", "run", 1, false);
    assert_refuses("run/1", "run/1", 1, false);
    assert_refuses("run/2", "run/1", 1, false);
    assert_refuses("run/1", "run/2", 0, false);
    assert_refuses(NULL, NULL, 1, true);
}
