/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a uid is charged for, and what it can have without being charged: bounded.
 */
#include "harness.h"

#include "block.h"
#include "caid_test.h"
#include "conn.h"

/* What the connection's uid is charged; there are no more than four uids, by number. */
static struct msg_user
charged(struct harness *h, uint64_t conn, uint64_t uid)
{
    struct h_reply *reply = h_request(h, conn, MSG_USERS, &(struct msg_users_params){0});

    for (size_t i = 0; i < reply->n_entries && i < ARRAY_SIZE(reply->users); i++)
        if (reply->users[i].uid == uid)
            return reply->users[i];
    cr_assert_fail("uid %llu is not among the users", (unsigned long long)uid);
    return (struct msg_user){0};
}

/* But for its connections, of two groups each, and its leases. */
static uint64_t
host(struct harness *h, uint64_t conn)
{
    struct msg_user user = charged(h, conn, 1000);

    return user.host - user.connections * (CONN_HOST + 2 * sizeof(gid_t)) -
           user.leases * sizeof(struct lease);
}

/* ---- bytes ---- */

static void
ten_mib(struct core_config *config)
{
    h_sharing(config);
    config->limits.bytes = 10 << 20;
    config->limits.pinned_bytes = 4 << 20;
}

CORE_TEST(charge, exclusive_array_is_charged_its_block, ten_mib)
{
    struct msg_create_params pinned = exclusive;

    pinned.memory = MSG_STR("pinned");
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply first = h_made(h, a, 1, exclusive);
    cr_assert_eq(charged(h, a, 1000).bytes, 2 * MIB);
    h_made(h, a, 2 * MIB + 1, exclusive);
    cr_assert_eq(charged(h, a, 1000).bytes, 6 * MIB);
    h_made(h, a, 2 * MIB, exclusive);
    h_made(h, a, 1, exclusive);
    cr_assert_eq(h_create_as(h, a, 1, exclusive)->error, PROTO_ERR_QUOTA);
    cr_assert_eq(charged(h, a, 1000).bytes, 10 * MIB);
    cr_assert_eq(h_counts(h).bytes, 10 * MIB);
    h_close(h, a, first.lease);
    cr_assert_eq(charged(h, a, 1000).bytes, 8 * MIB);

    h_made(h, a, 1, pinned);
    h_made(h, a, 1, pinned);
    cr_assert_eq(h_create_as(h, a, 1, pinned)->error, PROTO_ERR_QUOTA);
    cr_assert_eq(charged(h, a, 1000).pinned, 4 * MIB);
}

CORE_TEST(charge, span_of_a_tebibyte_is_refused, h_sharing)
{
    static const struct msg_create_params pinned = {.memory = {"pinned", 6}},
                                          own = {.memory = {"pinned", 6}, .exclusive = true};
    const int64_t tebibyte = INT64_C(1) << 40;

    uint64_t a = h_connect(h, 1000, 1000);
    const int64_t cases[] = {tebibyte, tebibyte - 1, tebibyte - 2 * MIB + 1, tebibyte + 1,
                             16 * tebibyte};
    for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        h_create_as(h, a, cases[i / 2], i % 2 ? own : pinned);
        cr_assert_not(h->closed[a], "case %zu: %s", i, h->reasons[a]);
        cr_assert(h->replies[a].seen);
        cr_assert_eq(h->replies[a].error, PROTO_ERR_NO_MEMORY, "case %zu", i);
    }
    cr_assert_eq(h_counts(h).arrays, 0);
    h_made(h, a, tebibyte - 4 * MIB, pinned);
}

/* ---- host memory ---- */

CORE_TEST(charge, hold_is_charged_until_it_is_forgotten, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    cr_assert_eq(host(h, a), 0);
    struct h_reply one = h_made(h, a, 100, (struct msg_create_params){.name = MSG_STR("n")});
    uint64_t with_one = host(h, a);
    struct h_reply two = h_made(h, a, 100, (struct msg_create_params){.name = MSG_STR("m")});
    cr_assert_eq(two.block, one.block);
    uint64_t array = host(h, a) - with_one; /* the block is held already */
    cr_assert_gt(with_one, array);
    uint64_t hold = with_one - array - BLOCK_HOST;

    cr_assert_eq(h_open(h, b, "n", NULL, "r")->error, 0);
    uint64_t lease = h->replies[b].arrays[0].lease;
    cr_assert_eq(host(h, a), BLOCK_HOST + 2 * (hold + array));
    h_close(h, b, lease);
    cr_assert_eq(host(h, a), BLOCK_HOST + 2 * (hold + array), "it may be mapped still");
    h_forget(h, b, one.block);
    cr_assert_eq(host(h, a), BLOCK_HOST + hold + 2 * array);
    cr_assert_eq(h_open(h, b, "m", NULL, "r")->error, 0);
    cr_assert_eq(host(h, a), BLOCK_HOST + 2 * (hold + array));
    h_disconnect(h, b);
    cr_assert_eq(host(h, a), BLOCK_HOST + hold + 2 * array);

    h_unlink(h, a, "n", NULL);
    h_unlink(h, a, "m", NULL);
    h_close(h, a, one.lease);
    h_close(h, a, two.lease);
    cr_assert_eq(host(h, a), BLOCK_HOST + hold);
    h_flush(h, a);
    h_finish_all(h);
    cr_assert_eq(h_counts(h).blocks, 0);
    cr_assert_eq(host(h, a), 0, "nothing is left that could be mapped");
}

CORE_TEST(charge, publishing_under_the_same_name_charges_nothing_more, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply array =
        h_made(h, a, 100, (struct msg_create_params){.name = MSG_STR("abcdefghij")});
    uint64_t before = host(h, a);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(h_publish(h, a, array.lease, "abcdefghij")->error, 0);
    cr_assert_eq(host(h, a), before);
    cr_assert_eq(h_publish(h, a, array.lease, "other")->error, 0);
    uint64_t after = host(h, a);
    cr_assert_geq(after, before + 6, "the new one is kept beside the first");
    for (int i = 0; i < 3; i++)
        cr_assert_eq(h_publish(h, a, array.lease, "other")->error, 0);
    cr_assert_eq(host(h, a), after);
    cr_assert_eq(h_publish(h, a, array.lease, "more")->error, 0);
    cr_assert_eq(host(h, a), after - 1);
}

CORE_TEST(charge, who_publishes_pays_for_the_texts, h_sharing)
{
    static char text[4000] = {[0 ... 3999] = 'x'};
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    uint64_t root = h_connect(h, 0, 0);

    h_create_now(h, a, "a", "open", 100);
    uint64_t lease = h_open(h, b, "a", "open", "rw")->lease;
    uint64_t before_a = charged(h, root, 1000).host, before_b = charged(h, root, 1001).host;
    struct msg_publish_params params = {.lease = lease,
                                        .name = MSG_STR("b"),
                                        .metadata = {text, sizeof(text)}};
    cr_assert_eq(h_request(h, b, MSG_PUBLISH, &params)->error, 0);
    cr_assert_eq(charged(h, root, 1000).host, before_a);
    cr_assert_geq(charged(h, root, 1001).host, before_b + sizeof(text));
    h_disconnect(h, a);
    h_close(h, b, lease);
    cr_assert_geq(charged(h, root, 1001).host, sizeof(text), "it is there");
    h_unlink(h, b, "b", "open");
    cr_assert_lt(charged(h, root, 1001).host, before_b);
}

/* Arrays in the queue are charged to nobody: held back, they could pile up. */
/* ---- what all uids share ---- */

static void
shared(struct core_config *config)
{
    config->limits.connections = 100;
    config->totals.fds = 64;
    config->totals.host_bytes = 256 << 10;
}

/* A uid has half of what the others leave, and uid 0 can always connect. */
CORE_TEST(charge, connections_share_the_fds, shared)
{
    uint64_t n[4] = {0}, root;

    for (uid_t uid = 1; uid < ARRAY_SIZE(n); uid++)
        while (h_connect_raw(h, uid, uid))
            n[uid]++;
    cr_assert_eq(n[1], 60 / 2 / 2);
    cr_assert_eq(n[2], (60 - 30) / 2 / 2);
    cr_assert_eq(n[3], (60 - 30 - 14) / 2 / 2);
    root = h_connect(h, 0, 0);
    cr_assert_eq(charged(h, root, 1).fds, 30);
    h_hangup(h, 1);
    cr_assert_eq(charged(h, root, 1).fds, 28);
    cr_assert_eq(h_connect_raw(h, 1, 1), 0, "the others have less to leave than it has");
}

CORE_TEST(charge, blocks_share_the_fds, shared)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001), n = 0;
    struct msg_create_params pinned = exclusive;

    pinned.memory = MSG_STR("pinned");
    while (!h_create_as(h, a, 1, pinned)->error) {
        h_finish_all(h);
        n++;
    }
    cr_assert_eq(h->replies[a].error, PROTO_ERR_LIMIT, "%s", h->replies[a].text);
    cr_assert_eq(n, (60 - 2) / 2 - 2);
    h_made(h, b, 1, pinned);
    h_close(h, a, 1);
    h_made(h, a, 1, pinned); /* in the same block, or in place of it */
}

/* Names and field lists of all uids together stay below what the daemon may take. */
CORE_TEST(charge, host_memory_is_shared, shared)
{
    static char text[1000] = {[0 ... 999] = 'x'};
    struct msg_create_params create = {.metadata = {text, sizeof(text)}};
    uint64_t all = 0;

    for (uid_t uid = 1; uid <= 3; uid++) {
        uint64_t conn = h_connect(h, uid, uid);
        while (!h_create_as(h, conn, 0, create)->error)
            ;
        cr_assert_eq(h->replies[conn].error, PROTO_ERR_QUOTA, "%s", h->replies[conn].text);
    }
    uint64_t root = h_connect(h, 0, 0);
    for (uid_t uid = 1; uid <= 3; uid++)
        all += charged(h, root, uid).host;
    cr_assert_lt(all, 240 << 10);
    cr_assert_gt(all, (240 << 10) * 3 / 4);
}

/* What one packet may have done is bounded, whatever fits into it. */
CORE_TEST(charge, lists_of_a_notification_are_bounded, NULL)
{
    static const uint64_t ids[PROTO_CLOSE_MAX + 1];

    for (uint32_t over = 0; over < 2; over++) { /* of numbers that are none, which pass */
        uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
        h_notify(h, a, MSG_CLOSE,
                 &(struct msg_close_params){.leases = {ids, 0},
                                            .forget = {ids, PROTO_CLOSE_MAX + over}});
        h_notify(h, b, MSG_DROP_PAGES,
                 &(struct msg_pages_params){.pages = {ids, PROTO_DROP_MAX + over}});
        cr_assert_eq(h->closed[a], over);
        cr_assert_eq(h->closed[b], over);
    }
}

/* ---- what is charged to nobody ---- */

#define HELD_MAX 512

CORE_TEST(charge, deferred_entries_are_bounded_by_uid_and_device, h_two_devices)
{
    const struct msg_create_params shared = {0},
                                   on_second = {.device = MSG_STR(H_SECOND_DEVICE)};

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    h_made(h, a, 4 * MIB, shared); /* the next block has room for them */
    h_defer(h, a, true);
    h_defer(h, b, true);
    for (uint64_t n = 1; n <= HELD_MAX + 4; n++) {
        h_close(h, a, h_made(h, a, 512, shared).lease);
        cr_assert_eq(h_counts(h).pending, n < HELD_MAX ? n : HELD_MAX);
    }
    h_close(h, a, h_made(h, a, 512, on_second).lease);
    h_close(h, b, h_made(h, b, 512, shared).lease);
    cr_assert_eq(h_counts(h).pending, HELD_MAX + 2, "another device and another uid");
}
