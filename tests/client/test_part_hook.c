/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own side of parts (client/memory/part.h): hooks that say that memory may be used
 * again, how they are forgotten, and what is left of all of it after fork(). */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "part_fixture.h"

#include "base/clock.h"
#include "memory/array.h"
#include "memory/set.h"
#include "session/client.h"

/* What has run, in its order. */
struct record {
    char of[16];
    size_t n;
};

static void
note(struct record *record, char what)
{
    if (record->n < sizeof(record->of) - 1)
        record->of[record->n++] = what;
}

static void
note_hook(void *userdata)
{
    note(userdata, 'h');
}

static void
note_gone(void *userdata)
{
    note(userdata, 'g');
}

static void
publish_hooked(const char *name, struct record *record, void *hook_userdata)
{
    const struct part_hook hook = {note_hook, hook_userdata};
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, NULL);

    options.gone = note_gone;
    options.userdata = record;
    assert_ok(part_publish(f.whole, AT, name, &options, &hook, NULL, NULL, &error));
}

/* The client has read that it is gone. */
static void
have_told(const char *name)
{
    unlink_name(name);
    assert_ok(caid_client_ping(f.client, &error));
}

/* ---- running ---- */

PART_TEST(part_hook, runs_from_a_poll)
{
    struct record record = {0};

    part_poll(f.client); /* there is no part */
    publish_hooked("x", &record, &record);
    part_poll(f.client);
    cr_assert_str_eq(record.of, "");
    unlink_name("x");
    while (record.n == 0)
        part_poll(f.client); /* reads what has come */
    cr_assert_str_eq(record.of, "h", "and no callback of the program's");
    cr_assert(is_readable(f.client, 0));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_str_eq(record.of, "hg");
    part_poll(f.client);
    look();
    cr_assert_str_eq(record.of, "hg");
    cr_assert(!is_readable(f.client, 0));
}

PART_TEST(part_hook, runs_before_gone)
{
    struct record record = {0};

    publish_hooked("x", &record, &record);
    have_told("x");
    cr_assert_str_eq(record.of, "", "not by whoever reads");
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_str_eq(record.of, "hg");
    publish_hooked("x", &record, &record);
    have_told("x");
    assert_ok(caid_client_dispatch_parts(f.client, &error));
    cr_assert_str_eq(record.of, "hghg");
    cr_assert(!is_readable(f.client, 0));
}

CLIENT_TEST(part_hook, is_not_called_for_what_failed)
{
    struct record record = {0};
    const struct part_hook hook = {note_hook, &record};
    const int64_t shape = N_BYTES + 1;
    struct caid_part_options options = bytes_options(&shape, NULL);

    parts_begin();
    options.gone = note_gone;
    options.userdata = &record;
    assert_failed(part_publish(f.whole, 0, "x", &options, &hook, NULL, NULL, &error),
                  CAID_ERR_INVALID);
    look();
    parts_end();
    cr_assert_str_eq(record.of, "");
}

/* Nobody waits for the answer: the parts are the daemon's to report, and no memory is used again
 * for it. */
PART_TEST(part_hook, is_not_called_for_a_set_whose_call_was_left)
{
    const int64_t shape = N_PART;
    const struct caid_member one = {.key = "a", .typestr = "|u1", .ndim = 1, .shape = &shape};
    struct record record = {0};
    void *const of[] = {&record};
    const struct set_told told = {note_hook, of, note_gone, &record};
    const uint64_t timeout_ns = f.client->call_timeout_ns;
    struct caid_array *set;

    assert_ok(set_new(f.whole, &set, &error));
    kill(f.daemon.pid, SIGSTOP);
    f.client->call_timeout_ns = 20 * NSEC_PER_MSEC;
    assert_failed(set_stage(set, f.whole, &one, 1, &told, &error), CAID_ERR_TIMEOUT);
    f.client->call_timeout_ns = timeout_ns;
    kill(f.daemon.pid, SIGCONT);
    cr_assert_eq(set->info.members, 0);
    array_close_now(set);
    publish_hooked("x", &record, &record);
    unlink_name("x");
    while (record.n < 2)
        assert_ok(caid_client_dispatch(f.client, &error));
    look();
    wait_for_arrays(1);
    cr_assert_str_eq(record.of, "hg", "of x alone");
}

/* ---- forgetting ---- */

PART_TEST(part_hook, may_be_forgotten)
{
    struct record of[3] = {0}, gone = {0};

    part_forget(f.client, &of[0]); /* there is none */
    publish_hooked("a", &gone, &of[0]);
    publish_hooked("b", &gone, &of[1]);
    publish_hooked("c", &gone, &of[1]);
    publish_hooked("d", &gone, &of[1]);
    publish_hooked("e", &gone, &of[2]);
    have_told("b");
    part_forget(f.client, &of[1]); /* one has been told, two have not */
    part_forget(f.client, &of[1]);
    have_told("a");
    have_told("c");
    part_poll(f.client);
    cr_assert_str_eq(of[0].of, "h");
    cr_assert_str_eq(of[1].of, "");
    cr_assert(is_readable(f.client, 0));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_str_eq(gone.of, "ggg", "is the program's and stays");
    have_told("d");
    have_told("e");
    look();
    cr_assert_str_eq(of[1].of, "");
    cr_assert_str_eq(of[2].of, "h");
    cr_assert_str_eq(gone.of, "ggggg");
}

struct slow {
    struct caid_client *client;
    atomic_bool entered, go, left, seen;
};

static void
run_slowly(void *userdata)
{
    struct slow *slow = userdata;

    slow->entered = true;
    while (!slow->go)
        usleep(1000);
    slow->left = true;
}

static void *
poll_once(void *arg)
{
    struct slow *slow = arg;

    part_poll(slow->client);
    return NULL;
}

static void *
forget(void *arg)
{
    struct slow *slow = arg;

    part_forget(slow->client, slow);
    slow->seen = slow->left;
    return NULL;
}

static void *
close_client(void *arg)
{
    struct slow *slow = arg;

    caid_client_close(slow->client);
    slow->seen = slow->left;
    return NULL;
}

/* One thread is in a hook while another one comes to the end that `finish` is. */
static void
finish_while_it_runs(void *(*finish)(void *), int *n_gone)
{
    struct slow slow = {.client = f.client};
    const struct part_hook hook = {run_slowly, &slow};
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, n_gone);
    pthread_t threads[2];

    assert_ok(part_publish(f.whole, AT, "x", &options, &hook, NULL, NULL, &error));
    have_told("x");
    caid_array_close(f.whole);
    f.whole = NULL;
    wait_for_leases(f.other, 0);
    cr_assert_eq(pthread_create(&threads[0], NULL, poll_once, &slow), 0);
    while (!slow.entered)
        usleep(1000);
    cr_assert_eq(pthread_create(&threads[1], NULL, finish, &slow), 0);
    usleep(50 * 1000); /* in which it would return, if it did not wait */
    slow.go = true;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    cr_assert(slow.seen, "it still ran");
}

PART_TEST(part_hook, that_runs_is_waited_for)
{
    int n_gone = 0;

    finish_while_it_runs(forget, &n_gone);
    dispatch_until(&n_gone, 1);
}

PART_TEST(part_hook, that_runs_is_waited_for_by_a_close)
{
    int n_gone = 0;

    finish_while_it_runs(close_client, &n_gone);
    cr_assert_eq(n_gone, 1);
    f.client = daemon_connect(&f.daemon);
}

/* ---- endings ---- */

/* Of what has been told the memory is free; of the rest nobody knows. */
PART_TEST(part_hook, runs_no_more_once_the_client_is_closed)
{
    struct record told = {0}, live = {0};

    publish_hooked("told", &told, &told);
    publish_hooked("live", &live, &live);
    have_told("told");
    struct caid_client *client = client_ref(f.client); /* an arena has one */
    caid_array_close(f.whole);
    f.whole = NULL;
    caid_client_close(f.client);
    cr_assert_str_eq(told.of, "hg");
    cr_assert_str_eq(live.of, "g");
    unlink_name("live");
    part_poll(client);
    part_forget(client, &live);
    part_forget(client, &told);
    cr_assert_str_eq(live.of, "g");
    client_unref(client);
    f.client = daemon_connect(&f.daemon);
}

CLIENT_TEST(part_hook, does_not_run_when_the_daemon_dies)
{
    struct record told = {0}, live = {0};

    parts_begin();
    publish_hooked("told", &told, &told);
    publish_hooked("live", &live, &live);
    have_told("told");
    daemon_end(&f.daemon, SIGKILL);
    cr_assert_lt(caid_client_ping(f.client, NULL), 0);
    part_poll(f.client);
    part_poll(f.client);
    cr_assert_str_eq(told.of, "h", "that is known");
    cr_assert_str_eq(live.of, "");
    caid_array_close(f.whole);
    caid_client_close(f.client);
    cr_assert_str_eq(told.of, "hg");
    cr_assert_str_eq(live.of, "g");
    caid_client_close(f.other);
    daemon_stop(&f.daemon);
}

/* Exits 0 when all is as it should be in a child. */
static void
be_a_child(struct record *record)
{
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, NULL);

    caid_array_publish_part(f.whole, AT, "y", &options, NULL, &error);
    if (error.code != CAID_ERR_FORKED)
        _exit(1);
    part_poll(f.client);
    part_forget(f.client, record);
    caid_client_dispatch_parts(f.client, &error);
    if (error.code != CAID_ERR_FORKED)
        _exit(2);
    caid_array_close(f.whole);
    caid_client_close(f.client);
    _exit(record->n == 0 ? 0 : 3);
}

PART_TEST(part_hook, nothing_runs_in_a_child)
{
    struct record record = {0};
    int status;

    publish_hooked("x", &record, &record);
    publish_hooked("y", &record, &record);
    have_told("x");
    pid_t pid = fork();
    if (pid == 0)
        be_a_child(&record);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0, "%#x", status);
    unlink_name("y");
    look();
    cr_assert_eq(record.n, 4, "%s", record.of);
}
