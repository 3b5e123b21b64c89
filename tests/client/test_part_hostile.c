/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that is old, refuses, hangs up, or says impossible things of parts: calls return an
 * error, and no callback claims more than is known. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "caid_test.h"
#include "daemon.h"
#include "fake.h"

#include "memory/part.h"
#include "session/client.h"
#include "session/feature.h"

#define N_PARTS 2

/* ---- the daemon's side ---- */

static void
answer_publish(struct fake *fake, uint64_t generation, uint64_t part)
{
    const struct msg_publish_part_result result = {.generation = generation, .part = part};

    fake_result(fake, MSG_PUBLISH_PART, &result, NULL, 0);
}

struct told {
    uint64_t ids[3];
    uint32_t n;
};

static void
answer_parts(struct fake *fake, uint32_t id, const struct told *told)
{
    const struct msg_parts_result result = {.parts = {told->ids, told->n}};

    fake->id = id;
    fake_result(fake, MSG_PARTS, &result, NULL, 0);
}

/* Waits for this request, and notes the id of the one for parts when that comes before. */
static void
wait_for(struct fake *fake, enum msg_method wanted, uint32_t *parts)
{
    enum msg_method method;

    while ((method = fake_request(fake)) != wanted && method != MSG_UNKNOWN)
        if (method == MSG_PARTS)
            *parts = fake->id;
}

/* The id of the request for parts, which has come or comes. */
static uint32_t
take_parts_request(struct fake *fake, uint32_t *parts)
{
    uint32_t id = *parts;

    *parts = 0;
    if (id == 0 && fake_request(fake) == MSG_PARTS)
        id = fake->id;
    return id;
}

struct story {
    const char *name;
    uint64_t ids[N_PARTS]; /* that published parts get */
    struct told told[2];   /* one after the other; n 0: no more, unless it is the first */
    int n_gone[N_PARTS];   /* when the connection has ended */
};

static void
script_story(struct fake *fake)
{
    const struct story *story = fake->data;
    uint32_t parts = 0;

    fake_open(fake);
    for (size_t i = 0; i < N_PARTS; i++) {
        wait_for(fake, MSG_PUBLISH_PART, &parts);
        answer_publish(fake, i + 1, story->ids[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(story->told) && (i == 0 || story->told[i].n > 0); i++)
        answer_parts(fake, take_parts_request(fake, &parts), &story->told[i]);
    fake_drain(fake);
}

/* ---- this side ---- */

static struct fixture {
    struct fake fake;
    struct caid_client *client;
    struct caid_array *whole;
    int n_gone[N_PARTS], n_hooked[N_PARTS];
    bool unknown; /* whether the last part that was refused may be there */
} f;

static void
begin(void (*script)(struct fake *fake), const void *data)
{
    f = (struct fixture){0};
    f.client = fake_start(&f.fake, script, data);
    OPTIONS(caid_open_options, options, .mode = "rw");
    assert_ok(caid_array_open(f.client, &f.whole, "whole", &options, &error));
}

static void
end(void)
{
    caid_array_close(f.whole);
    fake_stop(&f.fake);
}

static void
count(void *userdata)
{
    ++*(int *)userdata;
}

static int
publish(size_t i)
{
    static const int64_t shape = 8;
    const struct part_hook hook = {count, &f.n_hooked[i]};

    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1,
            .gone = count, .userdata = &f.n_gone[i]);
    return part_publish(f.whole, 0, "x", &options, &hook, NULL, &f.unknown, &error);
}

static void
wait_until_readable(void)
{
    struct pollfd fd = {.fd = caid_client_get_fd(f.client), .events = POLLIN};

    cr_assert_eq(poll(&fd, 1, -1), 1);
}

/* Until the connection has ended. */
static void
dispatch_to_the_end(int32_t code)
{
    error.code = 0;
    do
        wait_until_readable();
    while (caid_client_dispatch(f.client, &error) == 0);
    cr_assert_eq(error.code, code, "%d: %s", error.code, error.message);
}

static void
assert_gone(const char *name, int first, int second)
{
    cr_assert_eq(f.n_gone[0], first, "%s: %d", name, f.n_gone[0]);
    cr_assert_eq(f.n_gone[1], second, "%s: %d", name, f.n_gone[1]);
}

/* ---- what cannot be ---- */

static const struct story stories[] = {
    {"none at all", {5, 6}, {{{0}, 0}}, {0, 0}},
    {"one that was never given", {5, 6}, {{{7}, 1}}, {0, 0}},
    {"one among others that was never given", {5, 6}, {{{5, 7, 6}, 3}}, {0, 0}},
    {"one twice", {5, 6}, {{{5, 6, 5}, 3}}, {0, 0}},
    {"one again", {5, 6}, {{{6}, 1}, {{6}, 1}}, {0, 1}},
    {"one again, among others", {5, 6}, {{{6}, 1}, {{5, 6}, 2}}, {0, 1}},
};

CLIENT_TEST(part_hostile, parts_that_cannot_be_gone)
{
    for (size_t i = 0; i < ARRAY_SIZE(stories); i++) {
        const struct story *s = &stories[i];
        begin(script_story, s);
        for (size_t j = 0; j < N_PARTS; j++)
            assert_ok(publish(j));
        dispatch_to_the_end(CAID_ERR_PROTOCOL);
        assert_gone(s->name, s->n_gone[0], s->n_gone[1]);
        for (size_t j = 0; j < N_PARTS; j++)
            part_forget(f.client, &f.n_hooked[j]);
        end();
        assert_gone(s->name, 1, 1);
        for (size_t j = 0; j < N_PARTS; j++)
            cr_assert_eq(f.n_hooked[j], s->n_gone[j], "%s", s->name);
    }
}

static void
script_malformed(struct fake *fake)
{
    uint32_t parts = 0;

    fake_open(fake);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    answer_publish(fake, 1, 5);
    wait_for(fake, MSG_PARTS, &parts);
    fake_pong(fake);
    fake_drain(fake);
}

CLIENT_TEST(part_hostile, an_answer_without_parts)
{
    begin(script_malformed, NULL);
    assert_ok(publish(0));
    dispatch_to_the_end(CAID_ERR_PROTOCOL);
    assert_gone("malformed", 0, 0);
    end();
    assert_gone("malformed", 1, 0);
}

/* ---- what publishing is answered ---- */

/* After the first part, whose id is 5: what the second one is answered. */
struct second {
    const char *name;
    int32_t code;
    bool told, answered; /* the first is told to be gone before; else it hangs up */
    uint64_t generation, id;
};

static const struct second seconds[] = {
    {"same id", CAID_ERR_PROTOCOL, false, true, 2, 5},
    {"lower id", CAID_ERR_PROTOCOL, false, true, 2, 4},
    /* What has been told is not known by its id any more, and its hook may be still to come. */
    {"id again", CAID_ERR_PROTOCOL, true, true, 2, 5},
    {"generation", CAID_ERR_PROTOCOL, false, true, 0, 6},
    {"hang-up", CAID_ERR_DISCONNECTED, false, false, 0, 0},
};

static void
script_second(struct fake *fake)
{
    static const struct told one = {{5}, 1};
    const struct second *second = fake->data;
    uint32_t parts = 0;

    fake_open(fake);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    answer_publish(fake, 1, 5);
    if (second->told)
        answer_parts(fake, take_parts_request(fake, &parts), &one);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    if (!second->answered)
        return;
    answer_publish(fake, second->generation, second->id);
    fake_drain(fake);
}

static void
publish_well_and_badly(const struct second *second)
{
    begin(script_second, second);
    assert_ok(publish(0));
    cr_assert(!f.unknown, "%s", second->name);
    assert_failed(publish(1), second->code);
    cr_assert(f.unknown, "%s", second->name);
    assert_failed(publish(1), second->code);
    cr_assert(!f.unknown, "%s: nobody is asked any more", second->name);
    assert_gone(second->name, 0, 0);
    end();
    assert_gone(second->name, 1, 0);
}

CLIENT_TEST(part_hostile, publishing_is_answered_badly)
{
    for (size_t i = 0; i < ARRAY_SIZE(seconds); i++)
        publish_well_and_badly(&seconds[i]);
}

static void
script_old(struct fake *fake)
{
    uint32_t parts;

    fake_open(fake);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    fake_error(fake, PROTO_ERR_UNKNOWN_METHOD, "publish_part", 0);
    fake_go_on(fake);
}

CLIENT_TEST(part_hostile, a_daemon_that_is_too_old)
{
    begin(script_old, NULL);
    f.unknown = true;
    assert_failed(publish(0), CAID_ERR_UNKNOWN_METHOD);
    cr_assert(!f.unknown);
    cr_assert(strstr(error.message, "too old"), "%s", error.message);
    cr_assert(strstr(error.message, f.fake.path), "%s", error.message);
    assert_ok(caid_client_ping(f.client, &error));
    end();
    assert_gone("old", 0, 0);
}

/* ---- refusals, and the end of the connection ---- */

static void
script_refuse_once(struct fake *fake)
{
    static const struct told both = {{5, 6}, 2};
    uint32_t parts = 0;

    fake_open(fake);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    answer_publish(fake, 1, 5);
    wait_for(fake, MSG_PARTS, &parts);
    fake_error(fake, PROTO_ERR_LIMIT, "too many requests", 0);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    answer_publish(fake, 2, 6);
    answer_parts(fake, take_parts_request(fake, &parts), &both);
    fake_drain(fake);
}

/* The refusal is told once; the next part asks again, for all. */
CLIENT_TEST(part_hostile, a_daemon_that_refuses_to_tell)
{
    begin(script_refuse_once, NULL);
    assert_ok(publish(0));
    dispatch_to_the_end(CAID_ERR_LIMIT);
    assert_ok(caid_client_dispatch(f.client, &error));
    assert_gone("refused", 0, 0);
    assert_ok(publish(1));
    while (f.n_gone[1] == 0) {
        wait_until_readable();
        assert_ok(caid_client_dispatch(f.client, &error));
    }
    assert_gone("told", 1, 1);
    end();
    assert_gone("told", 1, 1);
}

static atomic_bool left;

static void
script_last_words(struct fake *fake)
{
    static const struct told one = {{6}, 1};
    uint32_t parts = 0;

    fake_open(fake);
    for (uint64_t i = 0; i < N_PARTS; i++) {
        wait_for(fake, MSG_PUBLISH_PART, &parts);
        answer_publish(fake, 1, 5 + i);
    }
    answer_parts(fake, take_parts_request(fake, &parts), &one);
    left = true;
}

/* What it said before it left holds. */
CLIENT_TEST(part_hostile, a_daemon_that_leaves)
{
    begin(script_last_words, NULL);
    for (size_t i = 0; i < N_PARTS; i++)
        assert_ok(publish(i));
    while (!left)
        usleep(1000);
    dispatch_to_the_end(CAID_ERR_DISCONNECTED);
    assert_gone("last words", 0, 1);
    end();
    assert_gone("last words", 1, 1);
}

/* ---- a request that the socket does not take ---- */

#define N_WHOLES 32

static atomic_bool asked, full, room;

static void
script_slow(struct fake *fake)
{
    static const struct told one = {{5}, 1};
    uint32_t parts = 0;

    for (int i = 0; i < N_WHOLES + 1; i++)
        fake_open(fake);
    wait_for(fake, MSG_PUBLISH_PART, &parts);
    asked = true;
    while (!full)
        usleep(1000);
    answer_publish(fake, 1, 5);
    while (!room)
        usleep(1000);
    answer_parts(fake, take_parts_request(fake, &parts), &one);
    fake_drain(fake);
}

static void *
publish_first(void *arg)
{
    return publish(0) == 0 ? arg : NULL;
}

static bool
has_unsent(struct caid_client *client, bool (*what)(const struct caid_client *client))
{
    pthread_mutex_lock(&client->lock);
    bool unsent = what(client);
    pthread_mutex_unlock(&client->lock);
    return unsent;
}

static bool
has_queued(const struct caid_client *client)
{
    return !TAILQ_EMPTY(&client->unsent);
}

/* It is sent when there is room again, without the program's help. */
CLIENT_TEST(part_hostile, a_daemon_that_does_not_read)
{
    struct caid_array *wholes[N_WHOLES];
    const int smallest = 1;
    pthread_t thread;
    void *published;

    asked = full = room = false;
    begin(script_slow, NULL);
    for (int i = 0; i < N_WHOLES; i++)
        assert_ok(caid_array_open(f.client, &wholes[i], "y", NULL, &error));
    setsockopt(f.client->sock, SOL_SOCKET, SO_SNDBUF, &smallest, sizeof(smallest));
    cr_assert_eq(pthread_create(&thread, NULL, publish_first, &f), 0);
    while (!asked)
        usleep(1000);
    for (int i = 0; i < N_WHOLES; i++)
        caid_array_close(wholes[i]); /* tells the daemon */
    cr_assert(has_unsent(f.client, call_has_unsent), "the socket takes it all");
    full = true;
    pthread_join(thread, &published);
    cr_assert_eq(published, &f);
    cr_assert(has_unsent(f.client, has_queued));
    room = true;
    while (f.n_gone[0] == 0) {
        wait_until_readable();
        assert_ok(caid_client_dispatch(f.client, &error));
    }
    end();
    assert_gone("slow", 1, 0);
}

/* ---- a daemon of other devices ---- */

CLIENT_TEST(part_hostile, a_device_that_the_daemon_has_not_got)
{
    struct fake fake;
    int32_t index = 7;

    setenv("CAID_SOFTCUDA_UUID", "GPU-00000000-0000-0000-0000-000000000001", 1);
    struct caid_client *client = fake_start(&fake, fake_drain, NULL);
    assert_failed(caid_client_find_device(client, 0, &index, &error), CAID_ERR_DEVICE);
    cr_assert(strstr(error.message, "the daemon has not got"), "%s", error.message);
    cr_assert_eq(index, 7);
    fake_stop(&fake);
}
