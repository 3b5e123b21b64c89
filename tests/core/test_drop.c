/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Droppable sets: which one makes room, for whom, and what keeps it; what is told of one that has.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "books.h"
#include "caid_test.h"
#include "lost.h"
#include "state.h"

#define TURN_NS UINT64_C(10000000)

static const char metadata[] = "[1]";

struct made {
    uint64_t conn, whole, set, block;
};

/* A set of one part of such a whole, under a name of the pool. */
static struct made
make(struct harness *h, uint64_t conn, const char *pool, int64_t bytes)
{
    static const int64_t n = 100;
    const struct msg_create_params params = {.pool = msg_str_opt(pool), .exclusive = true};
    const struct msg_member part = {.key = MSG_STR("a"),
                                    .typestr = MSG_STR("|u1"),
                                    .shape = {&n, 1}};
    struct h_reply whole = h_made(h, conn, bytes, params);
    struct made made = {.conn = conn, .whole = whole.lease, .block = whole.block};

    made.set = h_create_now(h, conn, NULL, pool, 0)->lease;
    cr_assert_eq(h_stage_parts(h, conn, made.set, made.whole, &part, 1, false)->error, 0);
    return made;
}

static struct h_reply
publish(struct harness *h, const struct made *made, const char *name, uint64_t priority,
        uint64_t reload_ns)
{
    return *h_request(h, made->conn, MSG_PUBLISH,
                      &(struct msg_publish_params){.lease = made->set,
                                                   .name = MSG_STR(name),
                                                   .metadata = MSG_STR(metadata),
                                                   .droppable = true,
                                                   .priority = priority,
                                                   .reload_ns = reload_ns});
}

/* As publish(), of a name that is to be left at a generation. Returns the error. */
static int
publish_after(struct harness *h, const struct made *made, const char *name, uint64_t after)
{
    return h_request(h, made->conn, MSG_PUBLISH,
                     &(struct msg_publish_params){.lease = made->set,
                                                  .name = MSG_STR(name),
                                                  .droppable = true,
                                                  .after = after})
        ->error;
}

/* Nobody has it open, but its maker has it mapped. Returns the block. */
static uint64_t
mapped(struct harness *h, uint64_t conn, const char *pool, const char *name, int64_t bytes,
       uint64_t priority, uint64_t reload_ns)
{
    struct made made = make(h, conn, pool, bytes);

    cr_assert_eq(publish(h, &made, name, priority, reload_ns).error, 0);
    h_close(h, conn, made.set);
    h_close(h, conn, made.whole);
    return made.block;
}

static void
droppable(struct harness *h, uint64_t conn, const char *pool, const char *name, int64_t bytes,
          uint64_t priority, uint64_t reload_ns)
{
    h_forget(h, conn, mapped(h, conn, pool, name, bytes, priority, reload_ns));
}

/* Asks for memory, and closes it. Returns the error; 0: it was there. */
static int
ask(struct harness *h, uint64_t conn, const char *pool, int64_t bytes)
{
    struct h_reply *reply =
        h_create_as(h, conn, bytes,
                    (struct msg_create_params){.pool = msg_str_opt(pool), .exclusive = true});

    for (int i = 0; i < 300 && !reply->seen; i++) {
        h_finish_all(h);
        h_tick(h, TURN_NS);
    }
    cr_assert(reply->seen);
    if (!reply->error)
        h_close(h, conn, reply->lease);
    h_finish_all(h);
    return reply->error;
}

static bool
is_there(struct harness *h, uint64_t conn, const char *pool, const char *name)
{
    const struct h_reply *reply = h_open(h, conn, name, pool, "r");
    int error = reply->error;

    cr_assert(!error || error == PROTO_ERR_DROPPED, "%s", reply->text);
    if (!error)
        h_close(h, conn, reply->lease);
    return !error;
}

/* ---- which ---- */

CORE_TEST(drop, in_order_and_one_at_a_time, NULL)
{
    static const char *const order[] = {"e/", "c/", "b/", "a/", "d/"};
    uint64_t a = h_connect(h, 1, 1);

    droppable(h, a, "shared", "a/", 2 * MIB, 1, 50);
    h_tick(h, 1000);
    droppable(h, a, "shared", "b/", 4 * MIB, 1, 10);
    h_tick(h, 1000);
    droppable(h, a, "shared", "c/", 2 * MIB, 1, 10);
    h_tick(h, 1000);
    droppable(h, a, "shared", "d/", 2 * MIB, 1, 50);
    droppable(h, a, "shared", "e/", 6 * MIB, 0, UINT64_MAX);
    cr_assert_eq(ask(h, a, "shared", 17 * MIB), PROTO_ERR_QUOTA, "never");
    for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
        cr_assert(is_there(h, a, "shared", order[i]));
        /* "d/" has been opened last, just now: it is the younger one of two that cost the same */
        for (size_t k = i + 1; k < ARRAY_SIZE(order); k++)
            cr_assert(k == 3 || is_there(h, a, "shared", order[k]));
        int64_t sizes[] = {2, 8, 10, 14, 16};
        cr_assert_eq(ask(h, a, "shared", sizes[i] * MIB), 0);
        cr_assert_not(is_there(h, a, "shared", order[i]), "%s", order[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        cr_assert_eq(h_unlink(h, a, order[i], "shared")->error, 0);
}

/* What was dropped is a name without an array, until it is published or unlinked. */
CORE_TEST(drop, is_told, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 1000, 10);
    const struct msg_lost_params lost = {.pool = MSG_STR("shared")};
    struct made made;

    droppable(h, a, "shared", "s/", 10 * MIB, 0, 5);
    uint64_t generation = h_open(h, a, "s/", "shared", "r")->generation;
    h_close(h, a, h->replies[a].lease);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0);
        cr_assert_eq(h_open(h, b, "s/", "shared", "r")->error, PROTO_ERR_DROPPED);
        cr_assert_eq(h_open(h, b, "s/a", "shared", "r")->error, PROTO_ERR_DROPPED);
        cr_assert_eq(h_request(h, b, MSG_LOST, &lost)->n_entries, 1);
        cr_assert_str_eq(h->replies[b].names[0], "s/");
        saved_restart(h);
        a = h_connect(h, 1, 1);
        b = h_connect(h, 1000, 10);
        cr_assert_eq(h_open(h, b, "s/", "shared", "r")->error, PROTO_ERR_DROPPED);
        made = make(h, a, "shared", 4 * MIB);
        struct h_reply published = publish(h, &made, "s/", 0, 5);
        cr_assert_gt(published.generation, generation);
        generation = published.generation;
        cr_assert_eq(h_request(h, b, MSG_LOST, &lost)->n_entries, 0);
        h_close(h, a, made.set);
        h_close(h, a, made.whole);
        h_disconnect(h, a);
        h_disconnect(h, b);
        saved_restart(h); /* it stays droppable */
        a = h_connect(h, 1, 1);
        b = h_connect(h, 1000, 10);
    }
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0);
    cr_assert_eq(h_unlink(h, b, "s/", "shared")->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(h_unlink(h, a, "s/", "shared")->error, 0);
    cr_assert_eq(h_open(h, b, "s/", "shared", "r")->error, PROTO_ERR_NOT_FOUND);
}

/* ---- what keeps it ---- */

CORE_TEST(drop, not_while_somebody_has_it, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 1000, 10);
    static const char *const names[] = {"s/", "s/a"};

    droppable(h, a, "shared", "s/", 10 * MIB, 0, 5);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        uint64_t lease = h_open(h, b, names[i], "shared", "r")->lease;
        cr_assert_eq(ask(h, a, "shared", 8 * MIB), PROTO_ERR_QUOTA);
        h_close(h, b, lease);
    }
    uint64_t lease = h_open(h, b, "s/a", "shared", "r")->lease;
    h_hangup(h, b);
    cr_assert_eq(ask(h, a, "shared", 8 * MIB), PROTO_ERR_QUOTA, "its process may use it");
    (void)lease;
    h_exit(h, b);
    cr_assert_eq(ask(h, a, "shared", 8 * MIB), 0);
    h_unlink(h, a, "s/", "shared");
}

/* Published as what stays, renamed, and unlinked. */
CORE_TEST(drop, as_it_was_published_last, NULL)
{
    uint64_t a = h_connect(h, 1, 1);
    struct made made = make(h, a, "shared", 10 * MIB);

    publish(h, &made, "s/", 0, 5);
    h_publish(h, a, made.set, "s/");
    h_close(h, a, made.whole);
    uint64_t set = made.set;
    h_close(h, a, set);
    cr_assert_eq(ask(h, a, "shared", 8 * MIB), PROTO_ERR_QUOTA);
    made.set = h_open(h, a, "s/", "shared", "rw")->lease;
    cr_assert_eq(publish(h, &made, "s/", 0, 5).error, 0);
    h_close(h, a, made.set);
    h_request(h, a, MSG_RENAME,
              &(struct msg_rename_params){.name = MSG_STR("s/"),
                                          .pool = MSG_STR("shared"),
                                          .to = MSG_STR("t/")});
    cr_assert_eq(ask(h, a, "shared", 8 * MIB), 0);
    cr_assert_not(is_there(h, a, "shared", "t/"));
    h_unlink(h, a, "t/", "shared");
}

CORE_TEST(drop, only_what_can_be_dropped_whole, NULL)
{
    uint64_t a = h_connect(h, 1, 1);
    struct made made = make(h, a, "shared", 2 * MIB);

    h_publish(h, a, made.whole, "w");
    cr_assert_eq(publish(h, &made, "s/", 0, 5).error, PROTO_ERR_INVALID, "its whole is named");
    h_unlink(h, a, "w", "shared");
    cr_assert_eq(publish(h, &made, "s/", 0, 5).error, 0);
    h_publish(h, a, made.whole, "w");
    h_close(h, a, made.set);
    h_close(h, a, made.whole);
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), PROTO_ERR_QUOTA);
    h_unlink(h, a, "w", "shared");
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0);
    h_unlink(h, a, "s/", "shared");
}

/* The record of what is dropped has the creator's uid, and what it says is believed as his. */
CORE_TEST(drop, by_its_creators_word_alone, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 1000, 10);

    droppable(h, a, "shared", "s/", 10 * MIB, 0, 5);
    struct made theirs = {.conn = b, .set = h_open(h, b, "s/", "shared", "r")->lease};
    cr_assert_eq(publish(h, &theirs, "s/", 0, 5).error, PROTO_ERR_PERMISSION);
    cr_assert_eq(publish(h, &theirs, "t/", 0, 5).error, PROTO_ERR_PERMISSION);
    h_close(h, b, theirs.set);
    cr_assert(is_there(h, b, "shared", "s/"));
    h_unlink(h, a, "s/", "shared");
}

/* A name with a time to live leaves no record: nobody would take that away. */
CORE_TEST(drop, ends_a_name_with_a_time_to_live, NULL)
{
    uint64_t a = h_connect(h, 1, 1);

    droppable(h, a, "shared", "s/", 10 * MIB, 0, 5);
    const struct msg_expire_params ttl = {.name = MSG_STR("s/"),
                                          .pool = MSG_STR("shared"),
                                          .ttl_ns = 1000 * TURN_NS};
    cr_assert_eq(h_request(h, a, MSG_EXPIRE, &ttl)->error, 0);
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0);
    cr_assert_eq(h_open(h, a, "s/", "shared", "r")->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_unlink(h, a, "s/", "shared")->error, PROTO_ERR_NOT_FOUND);
}

/* A full device gets nothing from a set whose memory is mapped. */
CORE_TEST(drop, not_while_somebody_has_it_mapped, NULL)
{
    const struct msg_create_params own = {.exclusive = true};
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 1, 1);

    uint64_t block = mapped(h, a, NULL, "s/", 40 * MIB, 0, 5);
    cr_assert_eq(ask(h, b, NULL, 30 * MIB), PROTO_ERR_NO_MEMORY, "after two seconds");
    cr_assert(is_there(h, b, NULL, "s/"));
    const struct h_reply *reply = h_create_as(h, b, 30 * MIB, own);
    for (int i = 0; i < 5; i++) {
        h_finish_all(h);
        h_tick(h, TURN_NS);
        cr_assert_not(reply->seen);
    }
    h_forget(h, a, block);
    for (int i = 0; i < 5; i++) {
        h_finish_all(h);
        h_tick(h, TURN_NS);
    }
    cr_assert(reply->seen && !reply->error, "%s", reply->text);
    cr_assert_not(is_there(h, a, NULL, "s/"));
    h_unlink(h, a, "s/", NULL);
}

/* ---- for whom ---- */

static void
limited(struct core_config *config)
{
    config->limits.bytes = 12 * MIB;
}

/* Over its limit a user makes room by its own sets of all pools, at once, and is charged for these
 * no more. */
CORE_TEST(drop, own_for_a_limit, limited)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, a, "open", "mine/", 8 * MIB, 0, 5);
    droppable(h, b, "open", "theirs/", 10 * MIB, 0, 1);
    droppable(h, a, NULL, "own/", 4 * MIB, 0, 1);
    cr_assert_eq(ask(h, a, "open", 13 * MIB), PROTO_ERR_QUOTA, "never");
    cr_assert(is_there(h, a, NULL, "own/"));
    cr_assert_eq(ask(h, a, "open", 4 * MIB), 0);
    cr_assert_not(is_there(h, a, NULL, "own/"), "of another pool");
    cr_assert(is_there(h, a, "open", "mine/"));
    cr_assert_eq(ask(h, a, NULL, 12 * MIB), 0);
    cr_assert_not(is_there(h, a, "open", "mine/"));
    cr_assert(is_there(h, a, "open", "theirs/"));
    const struct h_reply *reply = h_request(h, b, MSG_STATUS, &(struct msg_none){});
    cr_assert_eq(reply->status.drops, 2);
    cr_assert_eq(h->audit.kind, AUDIT_DROP);
    cr_assert_str_eq(h->audit.name, "mine/");
    h_unlink(h, a, "mine/", "open");
    h_unlink(h, b, "theirs/", "open");
    h_unlink(h, a, "own/", NULL);
}

/* A name that is lost is charged in place of one that was there, whatever the limit of names. */
CORE_TEST(drop, at_a_limit_of_names, NULL)
{
    uint64_t a = h_connect(h, 1, 1), n = 0;
    char name[8];

    droppable(h, a, "shared", "s/", 10 * MIB, 0, 5);
    do {
        snprintf(name, sizeof(name), "n%d", (int)++n);
    } while (!h_create_now(h, a, name, NULL, 0)->error);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_LIMIT);
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0);
    cr_assert_not(is_there(h, a, "shared", "s/"));
    h_unlink(h, a, "s/", "shared");
    while (--n) {
        snprintf(name, sizeof(name), "n%d", (int)n);
        h_unlink(h, a, name, NULL);
    }
}

/* A full device: the user's own in any pool, the cheapest of the pools' first ones. */
CORE_TEST(drop, own_of_all_pools_for_a_device, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, a, NULL, "dear/", 8 * MIB, 0, 50);
    droppable(h, a, "open", "cheap/", 8 * MIB, 7, 5);
    droppable(h, a, "open", "cheapest/", 8 * MIB, 8, 1);
    droppable(h, b, NULL, "share/", 34 * MIB, 0, 1);
    droppable(h, b, NULL, "theirs/", 2 * MIB, 0, 1);
    cr_assert_eq(ask(h, a, NULL, 66 * MIB), PROTO_ERR_NO_MEMORY, "never");
    cr_assert(is_there(h, a, "open", "cheap/"));
    cr_assert_eq(ask(h, a, "shared", 12 * MIB), 0);
    cr_assert_not(is_there(h, a, "open", "cheap/"), "priority orders in a pool alone");
    cr_assert(is_there(h, a, "open", "cheapest/"));
    cr_assert(is_there(h, a, NULL, "dear/"));
    cr_assert_eq(ask(h, a, NULL, 28 * MIB), 0);
    cr_assert_not(is_there(h, a, NULL, "dear/"));
    cr_assert(is_there(h, b, NULL, "theirs/"), "own ones first");
    h_unlink(h, a, "dear/", NULL);
    h_unlink(h, a, "cheap/", "open");
    h_unlink(h, a, "cheapest/", "open");
    h_unlink(h, b, "share/", NULL);
    h_unlink(h, b, "theirs/", NULL);
}

/* Of another user's sets those that it has above its share: half of the device. */
CORE_TEST(drop, of_others_what_is_above_their_share, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, a, NULL, "one/", 20 * MIB, 0, 1);
    droppable(h, a, "open", "two/", 20 * MIB, 0, 2);
    droppable(h, a, NULL, "three/", 12 * MIB, 0, 3);
    cr_assert_eq(ask(h, b, NULL, 40 * MIB), PROTO_ERR_NO_MEMORY);
    cr_assert(is_there(h, a, NULL, "one/"), "not in vain");
    cr_assert_eq(ask(h, b, NULL, 32 * MIB), 0);
    cr_assert_not(is_there(h, a, NULL, "one/"), "52 MiB less 20 are a share");
    cr_assert(is_there(h, a, "open", "two/"));
    cr_assert(is_there(h, a, NULL, "three/"));
    cr_assert_eq(ask(h, b, NULL, 32 * MIB), 0);
    droppable(h, a, NULL, "one/", 10 * MIB, 0, 5);
    cr_assert_eq(ask(h, b, NULL, 32 * MIB), 0);
    cr_assert_not(is_there(h, a, NULL, "one/"), "the cheaper ones are needed for the share");
    cr_assert(is_there(h, a, "open", "two/"));
    cr_assert(is_there(h, a, NULL, "three/"));
    h_unlink(h, a, "one/", NULL);
    h_unlink(h, a, "two/", "open");
    h_unlink(h, a, "three/", NULL);
}

/* Whatever two users have in two pools, what one of them asks for leaves the other its share. */
CORE_TEST(drop, leaves_shares, NULL)
{
    static const char *const pools[] = {NULL, "open"};
    uint64_t conns[] = {h_connect(h, 1, 1), h_connect(h, 0, 0)}, n_drops = 0;
    uint64_t random = 1;
    char name[8];

    for (int i = 0; i < 60; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint32_t bits = (uint32_t)(random >> 33), who = bits & 1;
        int64_t bytes = (int64_t)(1 + (bits >> 2) % 12) * 2 * MIB;
        const struct user *other = user_find(h->core, who ? 1 : 0);
        uint64_t before = other->devices[0].bytes;

        if (ask(h, conns[who], pools[bits >> 1 & 1], bytes) == 0) {
            snprintf(name, sizeof(name), "n%d/", i);
            droppable(h, conns[who], pools[bits >> 1 & 1], name, bytes, bits % 3, bits % 5);
        }
        uint64_t after = other->devices[0].bytes;
        n_drops += after < before;
        cr_assert(after == before || after >= H_MEMORY / 2);
    }
    cr_assert_gt(n_drops, 0);
}

/* What is made again displaces nothing that is newer. */
CORE_TEST(drop, is_made_good_where_nobody_has_done_it, NULL)
{
    uint64_t a = h_connect(h, 1, 1);

    droppable(h, a, "shared", "s/", 4 * MIB, 0, 1);
    struct h_reply *open = h_open(h, a, "s/", "shared", "r");
    uint64_t generation = open->generation;
    struct made made;

    h_close(h, a, open->lease);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0);
        cr_assert_not(is_there(h, a, "shared", "s/"));
        made = make(h, a, "shared", 4 * MIB);
        cr_assert_eq(publish_after(h, &made, "s/", generation + 1 - (uint64_t)i),
                     PROTO_ERR_STALE);
        cr_assert_eq(publish_after(h, &made, "s/", generation), i ? PROTO_ERR_STALE : 0);
        cr_assert_eq(publish_after(h, &made, "s/", generation), PROTO_ERR_STALE, "it is there");
        h_close(h, a, made.set);
        h_close(h, a, made.whole);
        h_forget(h, a, made.block);
    }
    h_unlink(h, a, "s/", "shared");
    made = make(h, a, "shared", 4 * MIB);
    cr_assert_eq(publish_after(h, &made, "s/", generation + 1), PROTO_ERR_STALE, "taken away");
    h_close(h, a, made.set);
    h_close(h, a, made.whole);
}

/* A quota: any in the pool. */
CORE_TEST(drop, of_others_in_a_pool_with_a_quota, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, b, "shared", "s/", 4 * MIB, 0, 5);
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0, "%s", h->replies[a].text);
    h_unlink(h, b, "s/", "shared");
}

/* ---- not in vain ---- */

/* What cannot fit whatever goes is refused, and nothing goes; neither for something else. */
CORE_TEST(drop, nothing_in_vain_for_a_quota, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 1000, 10);

    droppable(h, a, "shared", "idle/", 4 * MIB, 0, 1);
    droppable(h, a, "shared", "used/", 10 * MIB, 0, 5);
    uint64_t lease = h_open(h, b, "used/a", "shared", "r")->lease;
    cr_assert_eq(ask(h, a, "shared", 12 * MIB), PROTO_ERR_QUOTA);
    cr_assert(is_there(h, a, "shared", "idle/"));
    h_close(h, b, lease);
    cr_assert_eq(ask(h, a, "shared", 12 * MIB), 0);
    cr_assert_not(is_there(h, a, "shared", "idle/"));
    cr_assert_not(is_there(h, a, "shared", "used/"));
    h_unlink(h, a, "idle/", "shared");
    h_unlink(h, a, "used/", "shared");
}

static void
few_fds(struct core_config *config)
{
    config->limits.fds = 4;
}

CORE_TEST(drop, nothing_where_the_quota_is_not_what_is_short, few_fds)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, b, "shared", "s/", 2 * MIB, 0, 1);
    h_create_now(h, a, "one", NULL, 2 * MIB);
    h_create_now(h, a, "two", NULL, 2 * MIB);
    cr_assert_eq(ask(h, a, "shared", 2 * MIB), PROTO_ERR_LIMIT, "%s", h->replies[a].text);
    cr_assert(is_there(h, b, "shared", "s/"));
    h_unlink(h, a, "one", NULL);
    h_unlink(h, a, "two", NULL);
    h_unlink(h, b, "s/", "shared");
}

CORE_TEST(drop, nothing_in_vain_for_a_limit, limited)
{
    uint64_t a = h_connect(h, 1, 1);
    struct msg_create_params taken = {.name = MSG_STR("keep"), .exclusive = true};

    droppable(h, a, NULL, "s/", 4 * MIB, 0, 1);
    h_create_now(h, a, "keep", NULL, 6 * MIB);
    cr_assert_eq(ask(h, a, NULL, 8 * MIB), PROTO_ERR_QUOTA);
    cr_assert(is_there(h, a, NULL, "s/"));
    cr_assert_eq(h_create_as(h, a, 4 * MIB, taken)->error, PROTO_ERR_QUOTA, "it exists");
    cr_assert(is_there(h, a, NULL, "s/"));
    cr_assert_eq(ask(h, a, NULL, 6 * MIB), 0);
    cr_assert_not(is_there(h, a, NULL, "s/"));
    h_unlink(h, a, "keep", NULL);
    h_unlink(h, a, "s/", NULL);
}

/* A create that is a little larger than what it can have by granules. */
static void
odd_limit(struct core_config *config)
{
    config->limits.bytes = 11 * MIB;
}

CORE_TEST(drop, nothing_in_vain_by_granules, odd_limit)
{
    uint64_t a = h_connect(h, 1, 1);

    droppable(h, a, NULL, "s/", 4 * MIB, 0, 1);
    cr_assert_eq(ask(h, a, NULL, 11 * MIB), PROTO_ERR_QUOTA);
    cr_assert(is_there(h, a, NULL, "s/"));
    h_unlink(h, a, "s/", NULL);
}

CORE_TEST(drop, nothing_in_vain_for_a_device, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, a, NULL, "mine/", 10 * MIB, 0, 5);
    droppable(h, b, NULL, "one/", 20 * MIB, 0, 1);
    droppable(h, b, "open", "two/", 20 * MIB, 0, 1);
    cr_assert_eq(ask(h, a, NULL, 46 * MIB), PROTO_ERR_NO_MEMORY, "another's share is 32");
    cr_assert(is_there(h, a, NULL, "mine/"));
    cr_assert(is_there(h, b, NULL, "one/"));
    cr_assert_eq(ask(h, a, NULL, 24 * MIB), 0);
    cr_assert_not(is_there(h, a, NULL, "mine/"));
    cr_assert(is_there(h, b, NULL, "one/"));
    h_unlink(h, a, "mine/", NULL);
    h_unlink(h, b, "one/", NULL);
    h_unlink(h, b, "two/", "open");
}

/* A cheaper set stays, where the user's share would then keep the one that is needed; whichever
 * pool comes first. */
CORE_TEST(drop, nothing_in_vain_for_a_share, NULL)
{
    static const char *const pools[] = {NULL, "open", NULL};
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);
    uint64_t share = h_made(h, b, 30 * MIB, exclusive).lease;

    for (int i = 0; i < 2; i++) {
        droppable(h, b, pools[i], "large/", 6 * MIB, 0, 5);
        droppable(h, b, pools[i + 1], "small/", 2 * MIB, 0, 1);
        cr_assert_eq(ask(h, a, NULL, 32 * MIB), 0);
        cr_assert_not(is_there(h, b, pools[i], "large/"));
        cr_assert(is_there(h, b, pools[i + 1], "small/"));
        h_unlink(h, b, "large/", pools[i]);
        h_unlink(h, b, "small/", pools[i + 1]);
        h_age(h);
    }
    h_close(h, b, share);
}

/* The host's memory is short: sets on the device do not help. */
CORE_TEST(drop, nothing_for_page_locked_memory, NULL)
{
    const struct msg_create_params pinned = {.memory = MSG_STR("pinned"), .exclusive = true};
    uint64_t a = h_connect(h, 1, 1);

    droppable(h, a, NULL, "s/", 4 * MIB, 0, 1);
    const struct h_reply *reply = h_create_as(h, a, 2 * MIB, pinned);
    while (!reply->seen)
        h_finish(h, h_job(h, CORE_ALLOC), -ENOMEM);
    cr_assert_eq(reply->error, PROTO_ERR_NO_MEMORY);
    cr_assert(is_there(h, a, NULL, "s/"));
    h_unlink(h, a, "s/", NULL);
}

/* ---- what is mapped, and what is behind it ---- */

/* Own ones that are mapped are waited for. If they stay so, others' go. */
CORE_TEST(drop, own_that_are_mapped_before_others, NULL)
{
    const struct msg_create_params own = {.exclusive = true};
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0);

    droppable(h, b, NULL, "theirs/", 32 * MIB, 0, 1);
    droppable(h, b, NULL, "more/", 12 * MIB, 0, 1);
    uint64_t block = mapped(h, a, NULL, "mine/", 16 * MIB, 0, 5);
    const struct h_reply *reply = h_create_as(h, a, 16 * MIB, own);
    for (int i = 0; i < 5; i++) {
        h_finish_all(h);
        h_tick(h, TURN_NS);
        cr_assert_not(reply->seen);
    }
    h_forget(h, a, block);
    for (int i = 0; i < 5; i++) {
        h_finish_all(h);
        h_tick(h, TURN_NS);
    }
    cr_assert(reply->seen && !reply->error, "%s", reply->text);
    h_close(h, a, reply->lease);
    h_forget(h, a, reply->block);
    cr_assert_not(is_there(h, a, NULL, "mine/"));
    cr_assert(is_there(h, b, NULL, "more/"));
    mapped(h, a, NULL, "mine/", 16 * MIB, 0, 5);
    cr_assert_eq(ask(h, a, NULL, 16 * MIB), 0);
    cr_assert(is_there(h, a, NULL, "mine/"));
    cr_assert_not(is_there(h, b, NULL, "more/"));
    h_unlink(h, a, "mine/", NULL);
    h_unlink(h, b, "theirs/", NULL);
    h_unlink(h, b, "more/", NULL);
}

static void
many(struct core_config *config)
{
    h_sharing(config);
    config->limits.arrays = config->limits.names = config->limits.leases = 10000;
}

/* Sets of one part in a block of all, which is mapped. */
static void
make_some(struct harness *h, uint64_t conn, const char *pool, int n_sets)
{
    static const int64_t n = 1;
    const struct msg_member part = {.key = MSG_STR("a"),
                                    .typestr = MSG_STR("|u1"),
                                    .shape = {&n, 1}};
    char name[16];

    for (int i = 0; i < n_sets; i++) {
        struct made made = {.conn = conn, .whole = h_create_now(h, conn, NULL, pool, 1)->lease};
        made.set = h_create_now(h, conn, NULL, pool, 0)->lease;
        h_stage_parts(h, conn, made.set, made.whole, &part, 1, false);
        snprintf(name, sizeof(name), "some%d/", i);
        publish(h, &made, name, 0, 0);
        h_close(h, conn, made.set);
        h_close(h, conn, made.whole);
    }
}

static void
unlink_some(struct harness *h, uint64_t conn, const char *pool, int n_sets)
{
    char name[16];

    for (int i = 0; i < n_sets; i++) {
        snprintf(name, sizeof(name), "some%d/", i);
        h_unlink(h, conn, name, pool);
    }
}

#define MANY 1100 /* more than a search looks at */

/* What lies in a block with others makes more room than its bytes, when it is the last there. */
CORE_TEST(drop, all_of_a_shared_block, many)
{
    uint64_t a = h_connect(h, 1, 1);

    make_some(h, a, "shared", 2);
    cr_assert_eq(ask(h, a, "shared", 16 * MIB), 0, "%s", h->replies[a].text);
    cr_assert_not(is_there(h, a, "shared", "some0/"));
    unlink_some(h, a, "shared", 2);
}

/* Legacy memory is the pool's until nobody has it mapped. */
CORE_TEST(drop, legacy_is_in_the_quota_while_it_is_mapped, NULL)
{
    uint64_t a = h_connect(h, 1, 1);
    static const int64_t n = 100;
    const struct msg_create_params legacy = {.pool = MSG_STR("shared"),
                                             .memory = MSG_STR("legacy"),
                                             .exclusive = true};
    const struct msg_member part = {.key = MSG_STR("a"),
                                    .typestr = MSG_STR("|u1"),
                                    .shape = {&n, 1}};
    struct h_reply whole = h_made(h, a, 10 * MIB, legacy);
    struct made made = {.conn = a, .whole = whole.lease, .block = whole.block};

    made.set = h_create_now(h, a, NULL, "shared", 0)->lease;
    h_stage_parts(h, a, made.set, made.whole, &part, 1, false);
    cr_assert_eq(publish(h, &made, "s/", 0, 5).error, 0);
    h_close(h, a, made.set);
    h_close(h, a, made.whole);
    cr_assert_eq(ask(h, a, "shared", 8 * MIB), PROTO_ERR_QUOTA);
    cr_assert(is_there(h, a, "shared", "s/"));
    h_forget(h, a, made.block);
    cr_assert_eq(ask(h, a, "shared", 8 * MIB), 0);
    h_unlink(h, a, "s/", "shared");
}

/* However many come before it, a set goes: of the user's own, and of others. */
CORE_TEST(drop, behind_many_that_stay, many)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 0, 0), c = h_connect(h, 1000, 10);

    make_some(h, a, NULL, MANY);
    droppable(h, a, NULL, "mine/", 30 * MIB, 1, 5);
    uint64_t asked_ns = h->now_ns;
    cr_assert_eq(ask(h, a, NULL, 40 * MIB), 0);
    cr_assert_lt(h->now_ns - asked_ns, 10 * TURN_NS, "it goes on at once");
    cr_assert_not(is_there(h, a, NULL, "mine/"));
    unlink_some(h, a, NULL, MANY);
    h_age(h);
    make_some(h, b, NULL, MANY);
    uint64_t of_b = h_made(h, b, 22 * MIB, exclusive).lease;
    uint64_t of_c = h_made(h, c, 22 * MIB, exclusive).lease;
    droppable(h, c, NULL, "theirs/", 4 * MIB, 0, 5);
    cr_assert_eq(ask(h, a, NULL, 18 * MIB), 0);
    cr_assert_not(is_there(h, c, NULL, "theirs/"));
    cr_assert_eq(h->core->drop_next, 1, "the second search began behind the first user");
    h_close(h, b, of_b);
    h_close(h, c, of_c);
    unlink_some(h, b, NULL, MANY);
    h_unlink(h, a, "mine/", NULL);
    h_unlink(h, c, "theirs/", NULL);
}

/* ---- histories ---- */

#define N_SETS   8
#define N_USERS  3
#define N_LEASES 24

/* Who has what at random: sets of three users in three pools, leases on them and on their parts,
 * mappings, and processes that hang up with these. */
struct history {
    struct harness *h;
    uint64_t random;
    uint64_t conns[N_USERS], dying; /* that has hung up; 0: none */

    struct h_set {
        uint32_t pool, user;
        uint64_t bytes; /* 0: there is none */
    } sets[N_SETS];

    struct h_lease {
        uint64_t conn, lease, block; /* conn 0: there is none; block 0: of a set */
        uint32_t set;
    } leases[N_LEASES];

    uint32_t n_drops, n_refused;
};

static const char *const history_pools[] = {NULL, "open", "shared"};
static const uid_t history_uids[N_USERS] = {1, 0, 1000};

static uint32_t
below(struct history *y, uint32_t n)
{
    y->random = y->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(y->random >> 33) % n;
}

static const char *
history_name(uint32_t set, bool part)
{
    static char name[16];

    snprintf(name, sizeof(name), "s%u/%s", set, part ? "a" : "");
    return name;
}

static bool
is_open(const struct history *y, uint32_t set)
{
    for (int i = 0; i < N_LEASES; i++)
        if (y->leases[i].lease && y->leases[i].set == set)
            return true;
    return false;
}

static bool
is_dropped(struct history *y, uint32_t set)
{
    const struct h_set *s = &y->sets[set];
    struct pool *pool = pool_find(y->h->core, conn_find(&y->h->core->conns, y->conns[s->user]),
                                  msg_str_opt(history_pools[s->pool]));

    return lost_find(pool, MSG_STR(history_name(set, false)));
}

/* What a create has brought about: a refused one nothing, and none what somebody has. */
static void
look_at_sets(struct history *y, bool refused)
{
    for (uint32_t i = 0; i < N_SETS; i++) {
        struct h_set *s = &y->sets[i];
        if (!s->bytes || !is_dropped(y, i))
            continue;
        cr_assert_not(is_open(y, i), "%u is in use", i);
        cr_assert_not(refused, "%u went in vain", i);
        h_unlink(y->h, y->conns[s->user], history_name(i, false), history_pools[s->pool]);
        s->bytes = 0;
        y->n_drops++;
    }
}

static int
history_ask(struct history *y, uint32_t user, uint32_t pool, int64_t bytes)
{
    int error = ask(y->h, y->conns[user], history_pools[pool], bytes);
    cr_assert(!error || error == PROTO_ERR_QUOTA || error == PROTO_ERR_NO_MEMORY);
    y->n_refused += error != 0;
    look_at_sets(y, error);
    return error;
}

static void
history_make(struct history *y, uint32_t i)
{
    struct h_set *s = &y->sets[i];
    int64_t bytes = (1 + below(y, 4)) * 2 * MIB;

    if (s->bytes)
        return;
    uint32_t user = below(y, N_USERS), pool = below(y, user == 2 ? 2 : 3);
    if (history_ask(y, user, pool, bytes))
        return;
    *s = (struct h_set){pool, user, (uint64_t)bytes};
    uint64_t block = mapped(y->h, y->conns[user], history_pools[pool], history_name(i, false),
                            bytes, below(y, 2), below(y, 3));
    if (below(y, 4))
        h_forget(y->h, y->conns[user], block);
}

static void
history_open(struct history *y, uint32_t set)
{
    struct h_set *s = &y->sets[set];
    bool part = below(y, 2);
    uint32_t user = s->pool == 0 ? s->user : below(y, N_USERS), i = 0;

    while (i < N_LEASES && y->leases[i].lease)
        i++;
    if (!s->bytes || i == N_LEASES)
        return;
    const struct h_reply *reply =
        h_open(y->h, y->conns[user], history_name(set, part), history_pools[s->pool], "r");
    if (reply->error == PROTO_ERR_PERMISSION || reply->error == PROTO_ERR_NOT_FOUND)
        return;
    cr_assert_eq(reply->error, 0, "%s", reply->text);
    y->leases[i] = (struct h_lease){y->conns[user], reply->lease, part ? reply->block : 0, set};
}

static void
history_close(struct history *y, uint32_t i)
{
    struct h_lease was = y->leases[i];

    if (!was.lease || was.conn == y->dying)
        return;
    h_close(y->h, was.conn, was.lease);
    y->leases[i] = (struct h_lease){0};
    for (int k = 0; k < N_LEASES; k++)
        if (y->leases[k].conn == was.conn && y->leases[k].set == was.set)
            return;
    if (was.block && below(y, 2) &&
        hold_find(&conn_find(&y->h->core->conns, was.conn)->holds, was.block))
        h_forget(y->h, was.conn, was.block);
}

static void
end_leases(struct history *y, bool all)
{
    for (int i = 0; i < N_LEASES; i++)
        if (y->leases[i].conn == y->dying && (all || !y->leases[i].block))
            y->leases[i] = (struct h_lease){0};
}

/* A process hangs up with all that it has, and has exited later: then its leases on memory end. */
static void
history_exit(struct history *y, uint32_t user)
{
    if (y->dying) {
        h_exit(y->h, y->dying);
        end_leases(y, true);
        y->dying = 0;
    } else if (y->h->next_conn < H_CONNS - 2 * N_USERS) {
        y->dying = y->conns[user];
        h_hangup(y->h, y->dying);
        end_leases(y, false);
        y->conns[user] = h_connect(y->h, history_uids[user], 10);
    }
}

/* Another daemon: it waits for the processes of before, which have all exited later. When it has
 * waited for long, for those alone that have memory. */
static void
history_restart(struct history *y)
{
    uint64_t before[N_USERS];

    if (y->dying || y->h->next_conn > H_CONNS - 4 * N_USERS)
        return;
    memcpy(before, y->conns, sizeof(before));
    saved_restart(y->h);
    for (int i = 0; i < N_LEASES; i++)
        if (!y->leases[i].block)
            y->leases[i] = (struct h_lease){0};
    for (uint32_t i = 0; i < N_USERS; i++)
        y->conns[i] = h_connect(y->h, history_uids[i], 10);
    history_ask(y, below(y, N_USERS), below(y, 2), (1 + below(y, 30)) * 2 * MIB);
    for (uint32_t i = 0; i < N_USERS; i++)
        h_exit(y->h, before[i]);
    memset(y->leases, 0, sizeof(y->leases));
}

static void
history_step(struct history *y)
{
    uint32_t i = below(y, N_SETS);

    switch (below(y, 8)) {
    case 0:
    case 1: history_make(y, i); break;
    case 2: history_open(y, i); break;
    case 3:
    case 4: history_close(y, below(y, N_LEASES)); break;
    case 5:
        if (below(y, 4) == 0)
            history_exit(y, below(y, N_USERS));
        else if (below(y, 20) == 0)
            history_restart(y);
        break;
    default: history_ask(y, below(y, N_USERS), below(y, 2), (1 + below(y, 30)) * 2 * MIB);
    }
}

/* Whatever has been, a user gets all that others do not have: its own sets go. */
static void
history_end(struct history *y)
{
    if (y->dying)
        history_exit(y, 0);
    for (uint32_t i = 0; i < N_LEASES; i++)
        history_close(y, i);
    for (uint32_t i = 0; i < N_USERS; i++) { /* what they have mapped */
        h_disconnect(y->h, y->conns[i]);
        y->conns[i] = h_connect(y->h, history_uids[i], 10);
    }
    for (uint32_t user = 0; user < N_USERS; user++) {
        int64_t others = 0;
        for (uint32_t i = 0; i < N_SETS; i++)
            others += y->sets[i].user == user ? 0 : (int64_t)y->sets[i].bytes;
        cr_assert_eq(history_ask(y, user, 0, (int64_t)H_MEMORY - others), 0);
        for (uint32_t i = 0; i < N_SETS; i++)
            cr_assert(!y->sets[i].bytes || y->sets[i].user != user, "%u stays", i);
    }
}

CORE_TEST(drop, histories, NULL)
{
    const char *seed = getenv("CAID_TEST_SEED"), *n = getenv("CAID_TEST_SEQUENCES");
    struct history y = {.h = h, .random = seed ? strtoull(seed, NULL, 10) : 1};

    for (uint32_t i = 0; i < N_USERS; i++)
        y.conns[i] = h_connect(h, history_uids[i], 10);
    for (int i = n ? atoi(n) : 1000; i > 0; i--)
        history_step(&y);
    history_end(&y);
    cr_assert(y.n_drops && y.n_refused);
}
