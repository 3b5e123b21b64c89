/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory at every place: the n-th allocation of the library's fails, for every n until
 * nothing fails any more. Each failure is an error with a code, leaves no lease at the daemon,
 * and no fd and no memory here. (Allocations inside shared libraries are not counted.)
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "nomem.h"

static int
see_entry(const struct caid_entry *entry, void *userdata)
{
    (void)userdata;
    cr_assert_eq(entry->name[0], 'x');
    return 0;
}

static int
see_details(const struct caid_details *details, void *userdata)
{
    return see_entry(details->entry, userdata);
}

static void
see_nothing(const struct caid_change *change, void *userdata)
{
    (void)change;
    (void)userdata;
}

/* It may not have come so far; or there was no memory for the first one. */
static void
unlink_again(struct caid_client *client, const char *name)
{
    int r = caid_unlink(client, name, NULL, NULL);
    r = caid_unlink(client, name, NULL, NULL);
    (void)r;
}

static int
send_and_take(struct caid_client *client, struct caid_array *array)
{
    uint8_t ticket[CAID_TICKET_SIZE] = {0};
    struct caid_array *taken = NULL;

    int r = caid_array_send(array, ticket, &error);
    if (r == 0)
        r = caid_array_take(client, &taken, ticket, NULL, &error);
    if (r < 0 && caid_array_take(client, &taken, ticket, NULL, NULL) < 0)
        taken = NULL; /* it was not sent, or has been taken */
    caid_array_close(taken);
    return r;
}

static int
publish_and_watch(struct caid_client *client, struct caid_array *array)
{
    struct caid_array *companion = NULL, *opened = NULL;
    struct caid_watch *watch;

    OPTIONS(caid_create_options, pinned, .typestr = "|u1", .memory = "pinned");
    OPTIONS(caid_publish_options, options, .metadata = "m", .flags = CAID_PUBLISH_NEW);
    int r = caid_array_create(client, &companion, &pinned, &error);
    options.companion = companion;
    if (r == 0)
        r = caid_array_publish(array, "published", &options, NULL, &error);
    if (r == 0)
        r = caid_array_open_companion(array, &opened, &error);
    caid_array_close(opened);
    caid_array_close(companion);
    if (r == 0)
        r = send_and_take(client, array);
    if (r == 0)
        r = caid_array_publish_behind(array, "published", NULL, &error);
    if (r == 0)
        r = caid_array_publish_wait(array, CAID_FOREVER, NULL, &error);
    if (r == 0)
        r = caid_rename(client, "published", "renamed", NULL, false, NULL, &error);
    if (r == 0)
        r = caid_rename(client, "renamed", "published", NULL, true, NULL, &error);
    if (r == 0)
        r = caid_expire(client, "published", NULL, 0, UINT64_MAX, NULL, &error);
    if (r == 0)
        r = caid_watch_new(client, &watch, "published", NULL, see_nothing, NULL, &error);
    if (r == 0) {
        r = caid_client_dispatch(client, &error);
        caid_watch_close(watch);
    }
    if (r == 0)
        r = caid_watch_prefix(client, &watch, "publ", NULL, see_nothing, NULL, &error);
    if (r == 0) {
        r = caid_client_dispatch(client, &error);
        caid_watch_close(watch);
    }
    unlink_again(client, "published");
    unlink_again(client, "renamed");
    return r;
}

/* Parts that were published, and that were said to be gone: the same, when the client is closed. */
static int n_parts, n_gone;

static void
count_gone(void *userdata)
{
    ++*(int *)userdata;
}

static int
use_parts(struct caid_client *client, struct caid_array *array)
{
    int32_t device;

    OPTIONS(caid_part_options, options, .typestr = "|u1", .gone = count_gone,
            .userdata = &n_gone);
    int r = caid_client_find_device(client, 0, &device, &error);
    for (uint64_t i = 0; r == 0 && i < 3; i++) {
        r = caid_array_publish_part(array, i, "part", &options, NULL, &error);
        n_parts += r == 0;
    }
    if (r == 0)
        r = caid_client_dispatch_parts(client, &error);
    unlink_again(client, "part");
    return r;
}

static int
make_arrays(struct caid_client *client)
{
    const char *const kinds[] = {"device", "pinned", "managed"};
    struct caid_array *array;
    int r = 0;

    OPTIONS(caid_create_options, options, .typestr = "<f8");
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(kinds); i++) {
        options.memory = kinds[i];
        r = caid_array_create(client, &array, &options, &error);
        if (r < 0)
            break;
        if (i == 0)
            r = publish_and_watch(client, array);
        if (r == 0 && i == 0)
            r = use_parts(client, array);
        caid_array_close(array);
    }
    return r;
}

static int
use_events(struct caid_client *client, uint64_t stream)
{
    struct cuda_event *event;

    int r = cuda_event_new(client, &event, 0, 0, &error);
    if (r < 0)
        return r;
    r = cuda_event_record(event, stream, &error);
    cuda_event_free(event);
    return r;
}

/* An end cannot be lost for want of memory: the next bracket of the array begins. */
static int
use_bracket(struct caid_array *array, uint32_t flags, uint64_t stream)
{
    struct caid_bracket *bracket;

    int r = caid_array_begin(array, &bracket, flags, stream, CAID_FOREVER, &error);
    if (r < 0)
        return r;
    r = caid_bracket_end(bracket, &error);
    caid_bracket_free(bracket);
    return r;
}

/* An array of the scenario's own: what a connection that is lost was writing stays its
 * process's. */
static char own_name[16];

static int
use_brackets(struct caid_client *client, struct caid_client *other)
{
    struct caid_open_options rw = CAID_INIT(rw);
    struct caid_array *mine = NULL, *others = NULL;
    uint64_t stream = 0;

    rw.mode = "rw";
    int r = caid_array_open(client, &mine, own_name, &rw, &error);
    if (r == 0)
        r = caid_array_open(other, &others, own_name, NULL, &error);
    if (r == 0)
        r = caid_stream_create(client, 0, 0, &stream, &error);
    if (r == 0)
        r = use_events(client, stream);
    if (r == 0)
        r = use_bracket(mine, CAID_BRACKET_WRITE, stream);
    if (r == 0)
        r = use_bracket(others, 0, 1);
    if (r == 0)
        r = use_bracket(others, 0, 0);
    if (r == 0)
        r = caid_array_discard(mine, &error);
    if (stream)
        caid_stream_destroy(client, stream, NULL);
    caid_array_close(mine);
    caid_array_close(others);
    return r;
}

static int
wait_for_one(struct caid_timeline *waits, uint64_t stream)
{
    int r = caid_timeline_wait(waits, 0, 1, CAID_FOREVER, 0, &error);
    if (r == 0)
        r = caid_timeline_wait(waits, stream, 2, 0, CAID_TIMELINE_AHEAD, &error);
    return r;
}

static int
signal_twice(struct caid_timeline *signals, struct caid_timeline *waits, uint64_t stream)
{
    int r = caid_timeline_signal(signals, stream, 1, &error);
    if (r == 0)
        r = wait_for_one(waits, stream);
    int signalled = caid_timeline_signal(signals, 0, 2, NULL);
    (void)signalled; /* the first one may not have been */
    return r;
}

static int
use_timelines(struct caid_client *client, struct caid_client *other)
{
    struct caid_timeline *signals = NULL, *waits = NULL;
    uint64_t stream = 0;

    int r = caid_timeline_create(client, &signals, own_name, NULL, &error);
    if (r == 0)
        r = caid_timeline_open(other, &waits, own_name, NULL, &error);
    if (r == 0)
        r = caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error);
    if (r == 0)
        r = signal_twice(signals, waits, stream);
    caid_timeline_close(waits);
    caid_timeline_close(signals);
    if (stream)
        caid_stream_destroy(client, stream, NULL);
    return r;
}

/* Channels have names of the scenario's own, too. */
static char channel_name[2][32];
static const char *const channel_modes[] = {"latest", "fifo"};
static const int64_t frame_shape[] = {16};

static int
put_frame(struct caid_channel *channel, uint64_t stream)
{
    struct caid_frame frame;

    int r = caid_channel_begin(channel, stream, CAID_FOREVER, &frame, &error);
    if (r == 0)
        r = caid_channel_commit(channel, &frame, &error);
    return r;
}

static int
get_frame(struct caid_channel *channel, uint64_t stream)
{
    struct caid_frame frame;
    struct pollfd poll_fd = {.fd = caid_channel_get_fd(channel, &error), .events = POLLIN};

    if (poll_fd.fd < 0)
        return poll_fd.fd;
    cr_assert_eq(poll(&poll_fd, 1, -1), 1);
    int r = caid_channel_get(channel, stream, CAID_FOREVER, 0, &frame, &error);
    if (r == 0)
        r = caid_channel_end(channel, &frame, stream, &error);
    return r;
}

/* Both ends are one client's: a reader waits for another producer where its own has hung up. */
static int
use_channel(struct caid_client *client, int i, uint64_t stream)
{
    const char *name = channel_name[i];
    struct caid_channel *puts = NULL, *gets = NULL;

    OPTIONS(caid_channel_options, created, .mode = channel_modes[i], .typestr = "|u1",
            .shape = frame_shape, .ndim = 1, .slots = 4,
            .memory = stream ? "device" : "pinned");
    OPTIONS(caid_channel_options, opened, .wait = true);
    int r = caid_channel_create(client, &puts, name, &created, &error);
    if (r == 0)
        r = caid_channel_open(client, &gets, name, &opened, &error);
    for (int n = 0; r == 0 && n < 6; n++) {
        r = put_frame(puts, stream);
        if (r == 0)
            r = get_frame(gets, stream);
    }
    caid_channel_close(gets);
    caid_channel_close(puts);
    return r;
}

static int
use_channels(struct caid_client *client)
{
    uint64_t stream = 0;

    int r = use_channel(client, 0, 0);
    if (r == 0)
        r = caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error);
    if (r == 0)
        r = use_channel(client, 1, stream);
    if (stream)
        caid_stream_destroy(client, stream, NULL);
    return r;
}

static int
use_two_clients(const struct daemon *daemon, struct caid_client *client)
{
    struct caid_client *other;

    OPTIONS(caid_connect_options, options, .socket = daemon->socket);
    int r = caid_connect(&other, &options, &error);
    if (r < 0)
        return r;
    r = use_brackets(client, other);
    if (r == 0)
        r = use_timelines(client, other);
    caid_client_close(other);
    return r;
}

static int
publish_set(struct caid_client *client, struct caid_array *array)
{
    static const char *const keys[] = {"x", "xx"};
    struct caid_array *set = NULL, *opened[2], *members[] = {array, array};

    int r = caid_publish_many(client, "set/", keys, members, 2, NULL, NULL, &error);
    if (r == 0)
        r = caid_array_open(client, &set, "set/", NULL, &error);
    if (r == 0)
        r = caid_set_list(set, see_entry, NULL, &error);
    if (r == 0)
        r = caid_set_open_many(set, opened, keys, 2, NULL, &error);
    for (size_t i = 0; r == 0 && i < 2; i++)
        caid_array_close(opened[i]);
    caid_array_close(set);
    unlink_again(client, "set/");
    return r;
}

/* With a client that may have lost its connection: no check beyond what each call promises. */
static int
use_arrays(struct caid_client *client)
{
    static const char *const names[] = {"x", "x", "x"};
    struct caid_array *array = NULL, *more[3];
    struct caid_status status = CAID_INIT(status);
    char bytes[64] = {0};

    int r = caid_array_open(client, &array, "x", NULL, &error);
    if (r == 0)
        r = caid_array_copy_to_host(array, bytes, sizeof(bytes), &error);
    if (r == 0)
        r = caid_array_open_many(client, more, names, 3, NULL, &error);
    if (r == 0)
        for (size_t i = 0; i < 3; i++)
            caid_array_close(more[i]);
    if (r == 0)
        r = publish_set(client, array);
    if (r == 0)
        r = caid_list(client, NULL, see_entry, NULL, &error);
    if (r == 0)
        r = caid_show(client, "x", NULL, see_details, NULL, &error);
    if (r == 0)
        r = caid_client_status(client, &status, &error);
    if (r == 0)
        r = make_arrays(client);
    caid_array_close(array);
    return r;
}

static int
scenario(const struct daemon *daemon)
{
    struct caid_client *client;

    OPTIONS(caid_connect_options, options, .socket = daemon->socket);
    int r = caid_connect(&client, &options, &error);
    if (r < 0)
        return r;
    r = use_arrays(client);
    if (r == 0)
        r = use_two_clients(daemon, client);
    if (r == 0)
        r = use_channels(client);
    caid_client_close(client);
    return r;
}

/* The daemon hears of a hang-up a little later than we make it. */
static void
wait_until_alone(struct caid_client *witness)
{
    while (status_of(witness).connections > 1)
        ;
}

CLIENT_TEST(nomem, at_every_place)
{
    struct daemon daemon;
    bool reached;
    int n = 0;

    daemon_start(&daemon);
    struct caid_client *witness = daemon_connect(&daemon);
    struct caid_array *array = make_bytes(witness, "x", 64);
    do {
        error = (struct caid_error){0};
        snprintf(own_name, sizeof(own_name), "x%d", n);
        for (int i = 0; i < 2; i++)
            snprintf(channel_name[i], sizeof(channel_name[i]), "x%d-%s", n, channel_modes[i]);
        struct caid_array *own = make_bytes(witness, own_name, 64);
        nomem_countdown = n + 1;
        int r = scenario(&daemon);
        reached = nomem_countdown == 0;
        nomem_countdown = 0;
        cr_assert_eq(n_gone, n_parts, "allocation %d", n);
        /* A failure may also cost nothing: what was not told at once is told later. */
        if (r < 0)
            cr_assert(reached && error.code != 0 && error.message[0], "allocation %d: %d", n,
                      r);
        wait_until_alone(witness);
        caid_array_close(own);
        assert_ok(caid_unlink(witness, own_name, NULL, &error));
        for (int i = 0; i < 2; i++)
            if (caid_unlink(witness, channel_name[i], NULL, &error) < 0)
                cr_assert_eq(error.code, CAID_ERR_NOT_FOUND);
        wait_for_leases(witness, 1);
        cr_assert_lt(++n, 1000);
    } while (reached);
    cr_assert_gt(n, 20, "the scenario allocates");
    caid_array_close(array);
    caid_client_close(witness);
    daemon_stop(&daemon);
}
