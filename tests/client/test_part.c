/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of arrays under names of their own: what readers get, and when the publisher is told that
 * nobody can reach one any more: not before, and once. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "part_fixture.h"
#include "process.h"

#define N_MANY 300

/* ---- what readers get ---- */

PART_TEST(part, lies_in_the_whole)
{
    uint16_t all[N_BYTES / 2], part[6][4];
    const int64_t shape[] = {6, 4};
    uint64_t generation;

    for (size_t i = 0; i < N_BYTES / 2; i++)
        all[i] = (uint16_t)i;
    assert_ok(caid_array_copy_from_host(f.whole, all, sizeof(all), &error));
    OPTIONS(caid_part_options, options, .typestr = "<u2", .shape = shape, .ndim = 2,
            .metadata = "of a whole");
    assert_ok(caid_array_publish_part(f.whole, AT, "x", &options, &generation, &error));

    struct caid_array *array = open_array(f.other, "x");
    const struct caid_array_info *info = caid_array_get_info(array);
    const struct caid_array_info *whole = caid_array_get_info(f.whole);
    cr_assert_eq(info->generation, generation);
    cr_assert_str_eq(info->metadata, "of a whole");
    cr_assert_eq(info->block, whole->block);
    cr_assert_eq(info->offset, whole->offset + AT);
    cr_assert_eq(info->nbytes, sizeof(part));
    cr_assert(info->readonly);
    assert_ok(caid_array_copy_to_host(array, part, sizeof(part), &error));
    cr_assert_arr_eq(part, all + AT / 2, sizeof(part));
    caid_array_close(array);

    /* Here, too, where the whole is mapped already. */
    array = open_array(f.client, "x");
    assert_ok(caid_array_copy_to_host(array, part, sizeof(part), &error));
    cr_assert_arr_eq(part, all + AT / 2, sizeof(part));
    caid_array_close(array);
    unlink_name("x");
}

PART_TEST(part, may_have_strides)
{
    const int64_t shape[] = {3, 2}, strides[] = {64, 8};
    const uint32_t wanted[] = {0, 2, 16, 18, 32, 34};
    uint32_t all[N_BYTES / 4], part[6];

    for (uint32_t i = 0; i < N_BYTES / 4; i++)
        all[i] = i;
    assert_ok(caid_array_copy_from_host(f.whole, all, sizeof(all), &error));
    OPTIONS(caid_part_options, options, .typestr = "<u4", .shape = shape, .strides = strides,
            .ndim = 2);
    assert_ok(caid_array_publish_part(f.whole, AT, "x", &options, NULL, &error));
    struct caid_array *array = open_array(f.other, "x");
    cr_assert_eq(caid_array_get_info(array)->strides[0], 64);
    assert_ok(caid_array_copy_to_host(array, part, sizeof(part), &error));
    for (int i = 0; i < 6; i++)
        cr_assert_eq(part[i], AT / 4 + wanted[i]);
    caid_array_close(array);
    unlink_name("x");
}

/* One element at the very end, and a scalar that is the whole. */
PART_TEST(part, may_end_where_the_whole_does)
{
    const int64_t one = 1, all = N_BYTES;
    struct caid_part_options options = bytes_options(&one, NULL);

    assert_ok(caid_array_publish_part(f.whole, N_BYTES - 1, "last", &options, NULL, &error));
    options.shape = &all;
    assert_ok(caid_array_publish_part(f.whole, 0, "all", &options, NULL, &error));
    options.ndim = 0;
    options.shape = NULL;
    assert_ok(caid_array_publish_part(f.whole, 7, "scalar", &options, NULL, &error));
    struct caid_array *array = open_array(f.other, "scalar");
    cr_assert_eq(caid_array_get_info(array)->ndim, 0);
    cr_assert_eq(caid_array_get_info(array)->nbytes, 1);
    caid_array_close(array);
    unlink_name("last");
    unlink_name("all");
    unlink_name("scalar");
}

/* ---- who is told, and when ---- */

PART_TEST(part, replaces_what_was_there)
{
    int n_gone[3] = {0};

    uint64_t first = publish("x", &n_gone[0]);
    cr_assert_gt(first, 0);
    struct caid_array *old = open_array(f.other, "x");
    cr_assert_eq(publish("x", &n_gone[1]), first + 1);
    look();
    cr_assert_eq(n_gone[0], 0, "somebody holds it");
    caid_array_close(old);
    dispatch_until(&n_gone[0], 1);
    cr_assert_eq(n_gone[1], 0, "that has the name");

    cr_assert_eq(publish("x", &n_gone[2]), first + 2);
    dispatch_until(&n_gone[1], 1);
    unlink_name("x");
    dispatch_until(&n_gone[2], 1);
    cr_assert_eq(n_gone[0], 1);
}

/* As the whole array does, and the other way round. */
PART_TEST(part, and_whole_arrays_replace_each_other)
{
    uint64_t generation;
    int n_gone = 0;

    struct caid_array *array = make_bytes(f.other, NULL, 8);
    assert_ok(caid_array_publish(array, "x", NULL, &generation, &error));
    cr_assert_eq(publish("x", &n_gone), generation + 1);
    look();
    cr_assert_eq(n_gone, 0);
    assert_ok(caid_array_publish(array, "x", NULL, NULL, &error));
    dispatch_until(&n_gone, 1);
    caid_array_close(array);
    unlink_name("x");
}

/* Its memory stays for those that open it later. */
PART_TEST(part, outlives_the_whole)
{
    unsigned char bytes[N_PART];
    int n_gone = 0;

    publish("x", &n_gone);
    caid_array_close(f.whole);
    f.whole = NULL;
    wait_for_leases(f.other, 0);
    assert_ok(caid_flush(f.other, -1, NULL, &error));
    struct caid_array *array = open_array(f.other, "x");
    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[0], 1);
    cr_assert_eq(bytes[N_PART - 1], 1);
    caid_array_close(array);
    look();
    cr_assert_eq(n_gone, 0);
    unlink_name("x");
    dispatch_until(&n_gone, 1);
}

PART_TEST(part, one_array_may_have_many)
{
    static int n_gone[N_MANY];
    char name[8];
    int n = 0;

    for (int i = 0; i < N_MANY; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        publish_at((uint64_t)i * 8, name, &n_gone[i]); /* they overlap */
    }
    for (int i = 0; i < N_MANY; i += 2) {
        snprintf(name, sizeof(name), "n%d", i);
        unlink_name(name);
    }
    look();
    for (int i = 0; i < N_MANY; i++)
        cr_assert_eq(n_gone[i], (i + 1) % 2, "part %d", i);
    for (int i = 1; i < N_MANY; i += 2) {
        snprintf(name, sizeof(name), "n%d", i);
        unlink_name(name);
    }
    look();
    for (int i = 0; i < N_MANY; i++)
        n += n_gone[i];
    cr_assert_eq(n, N_MANY);
}

/* Where nobody wants to hear of it, none is left behind either (CAID_TEST). */
PART_TEST(part, needs_no_callback)
{
    for (int i = 0; i < N_MANY; i++)
        publish("x", NULL);
    cr_assert(!is_readable(f.client, 0), "there is nothing to be called back for");
    unlink_name("x");
}

/* ---- readers in other processes ---- */

static struct process
reader_start(void)
{
    struct process reader;

    process_start(&reader, "reader", f.daemon.socket, "x", "1", NULL);
    process_expect(&reader, "ready\n");
    return reader;
}

PART_TEST(part, is_gone_when_another_process_closes_it)
{
    int n_gone = 0;

    publish("x", &n_gone);
    struct process reader = reader_start();
    unlink_name("x");
    look();
    cr_assert_eq(n_gone, 0);
    cr_assert_eq(write(reader.in, "c", 1), 1);
    dispatch_until(&n_gone, 1);
    cr_assert_eq(process_end(&reader, 0), 0);
}

PART_TEST(part, is_gone_when_another_process_exits)
{
    int n_gone = 0;

    publish("x", &n_gone);
    struct process first = reader_start(), second = reader_start();
    unlink_name("x");
    cr_assert_eq(process_end(&first, 0), 0);
    look();
    cr_assert_eq(n_gone, 0, "there is another one");
    cr_assert_eq(process_end(&second, 0), 0);
    dispatch_until(&n_gone, 1);
}

PART_TEST(part, is_gone_when_another_process_is_killed)
{
    int n_gone = 0;

    publish("x", &n_gone);
    struct process reader = reader_start();
    publish("x", NULL);
    look();
    cr_assert_eq(n_gone, 0);
    process_end(&reader, SIGKILL);
    dispatch_until(&n_gone, 1);
    unlink_name("x");
}

/* ---- the fd, and dispatch ---- */

PART_TEST(part, the_fd_tells_of_what_others_read)
{
    int n_gone = 0;

    publish("x", &n_gone);
    cr_assert(!is_readable(f.client, 0));
    unlink_name("x");
    assert_ok(caid_client_ping(f.client, &error));
    cr_assert_eq(n_gone, 0, "from dispatch alone");
    cr_assert(is_readable(f.client, 0));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(n_gone, 1);
    cr_assert(!is_readable(f.client, 0));
}

/* The fd is made when one has gone already. */
PART_TEST(part, the_fd_may_come_late)
{
    int n_gone = 0;

    publish("x", &n_gone);
    unlink_name("x");
    assert_ok(caid_client_ping(f.client, &error));
    cr_assert(is_readable(f.client, 0));
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(n_gone, 1);
}

static void
count_change(const struct caid_change *change, void *userdata)
{
    (void)change;
    count(userdata);
}

static int
edges_of(int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    cr_assert_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
    return epoll;
}

static bool
has_edge(int epoll)
{
    struct epoll_event event;

    return epoll_wait(epoll, &event, 1, 0) == 1;
}

PART_TEST(part, may_be_dispatched_beside_watches)
{
    int n_gone = 0, n_changes = 0;
    struct caid_watch *watch;

    int edges = edges_of(caid_client_get_fd(f.client));
    assert_ok(caid_watch_new(f.client, &watch, "x", NULL, count_change, &n_changes, &error));
    cr_assert(!is_readable(f.client, 0));
    publish("x", &n_gone);
    unlink_name("x");
    assert_ok(caid_client_ping(f.client, &error));
    cr_assert(has_edge(edges));
    assert_ok(caid_client_dispatch_parts(f.client, &error));
    cr_assert_eq(n_gone, 1);
    cr_assert_eq(n_changes, 0);
    cr_assert(!has_edge(edges), "who waits for parts alone sleeps on");
    cr_assert(is_readable(f.client, 0), "for the watch");
    assert_ok(caid_client_dispatch(f.client, &error));
    cr_assert_eq(n_changes, 1);
    caid_watch_close(watch);
    close(edges);
    assert_failed(caid_client_dispatch_parts(NULL, &error), CAID_ERR_INVALID);
}

struct again {
    int n_gone, n_left;
    bool close;
};

static void
publish_again(void *userdata)
{
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, NULL);
    struct again *again = userdata;

    again->n_gone++;
    if (again->close) {
        again->close = false;
        caid_client_close(f.client);
        return;
    }
    if (again->n_left-- <= 0)
        return;
    options.gone = publish_again;
    options.userdata = again;
    assert_ok(caid_array_publish_part(f.whole, AT, "x", &options, NULL, &error));
    unlink_name("x");
    assert_ok(caid_client_dispatch(f.client, &error)); /* in a dispatch */
}

PART_TEST(part, a_callback_may_publish_and_dispatch)
{
    struct again again = {.n_left = 20};

    publish_again(&again);
    while (again.n_gone < 21)
        look();
    look();
    cr_assert_eq(again.n_gone, 21);
}

PART_TEST(part, a_callback_may_close_the_client)
{
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, NULL);
    struct again again = {.close = true};
    int n_gone = 0;

    options.gone = publish_again;
    options.userdata = &again;
    assert_ok(caid_array_publish_part(f.whole, AT, "x", &options, NULL, &error));
    publish("y", &n_gone);
    caid_array_close(f.whole);
    f.whole = NULL;
    wait_for_leases(f.other, 0); /* what a process holds as its connection ends, it keeps */
    unlink_name("x");
    assert_ok(caid_client_ping(f.client, &error));
    assert_failed(caid_client_dispatch(f.client, &error), CAID_ERR_CLOSED);
    cr_assert_eq(again.n_gone, 1);
    cr_assert_eq(n_gone, 1, "left by the close");
    unlink_name("y");
    f.client = daemon_connect(&f.daemon);
}

/* ---- endings ---- */

PART_TEST(part, a_client_that_closes_calls_back_for_all)
{
    int n_gone[3] = {0};

    publish("x", &n_gone[0]);
    publish("y", &n_gone[1]);
    publish("z", &n_gone[2]);
    unlink_name("y"); /* may have been told, or not */
    unlink_name("z");
    look();
    cr_assert_eq(n_gone[2], 1);
    caid_array_close(f.whole);
    f.whole = NULL;
    caid_client_close(f.client);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(n_gone[i], 1, "part %d: %d times", i, n_gone[i]);

    struct caid_array *array = open_array(f.other, "x");
    unsigned char bytes[N_PART];
    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[0], 1, "it lives on");
    caid_array_close(array);
    unlink_name("x");
    f.client = daemon_connect(&f.daemon);
}

/* Nobody knows of what was out when the daemon went: the callback waits for the last word. */
CLIENT_TEST(part, the_daemon_dies)
{
    int n_gone = 0;

    parts_begin();
    publish("x", &n_gone);
    daemon_end(&f.daemon, SIGKILL);
    cr_assert(is_readable(f.client, -1));
    assert_failed(caid_client_dispatch(f.client, &error), CAID_ERR_DISCONNECTED);
    assert_failed(caid_client_dispatch_parts(f.client, &error), CAID_ERR_DISCONNECTED);
    cr_assert_eq(n_gone, 0);
    caid_array_close(f.whole);
    cr_assert_eq(n_gone, 0);
    caid_client_close(f.client);
    cr_assert_eq(n_gone, 1);
    caid_client_close(f.other);
    daemon_stop(&f.daemon);
}
