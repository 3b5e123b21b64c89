/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that have a time to live. What may be asked, and in which order, is the model's
 * (test_model.c).
 */
#include "caid_test.h"
#include "harness.h"

#define TTL  UINT64_C(1000000000)
#define MANY 1000

static struct h_reply *
expire(struct harness *h, uint64_t conn, const char *name, uint64_t ttl_ns)
{
    struct msg_expire_params params = {.name = MSG_STR(name),
                                       .pool = MSG_STR("shared"),
                                       .ttl_ns = ttl_ns};

    return h_request(h, conn, MSG_EXPIRE, &params);
}

static void
room_for_many(struct core_config *config)
{
    h_sharing(config);
    config->limits.names = config->limits.arrays = config->limits.leases = MANY;
}

/* However many names expire at once, another uid is served after so many of them. */
CORE_TEST(expiry, is_done_in_slices, room_for_many)
{
    uint64_t owner = h_connect(h, 1, 1), other = h_connect(h, 1001, 1001);

    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        h_create_now(h, owner, name, "shared", 0);
        h_close(h, owner, h->replies[owner].lease);
        cr_assert_eq(expire(h, owner, name, TTL)->error, 0);
    }
    cr_assert_eq(core_expiry_ns(h->core), h->now_ns + TTL);
    core_set_pieces(h->core, 16);
    h->by_hand = true;
    h_tick(h, TTL - 1);
    cr_assert_eq(h_counts(h).names, MANY);
    for (uint64_t left = MANY, ns = 1; left; ns = 0) {
        h_tick(h, ns);
        left -= left < 16 ? left : 16;
        cr_assert_eq(h_counts(h).names, left);
        h_request(h, other, MSG_PING, NULL);
        cr_assert(h->replies[other].seen);
        if (left) /* its time is over, which is not to be taken for none */
            cr_assert_eq(h_show(h, owner, "n999", "shared")->entries[0].ttl_ns, 1);
    }
    cr_assert_eq(core_expiry_ns(h->core), UINT64_MAX);
    h->by_hand = false;
}

CORE_TEST(expiry, goes_on_in_sleep, h_sharing)
{
    uint64_t owner = h_connect(h, 1, 1), reader = h_connect(h, 2, 10);

    h_create_now(h, owner, "v", "shared", 100);
    h_open(h, reader, "v", "shared", "r");
    expire(h, owner, "v", TTL);
    h_watch(h, reader, "v", "shared", 1);
    h->asleep_ns += TTL - 1;
    h_tick(h, 0);
    cr_assert_not(h->replies[reader].seen);
    h->asleep_ns++;
    h_tick(h, 0);
    cr_assert(h->replies[reader].seen, "a watcher is told");
    cr_assert_eq(h_counts(h).names, 0);
    cr_assert_eq(h_counts(h).arrays, 1, "who holds it keeps it");
}

CORE_TEST(expiry, refusals, h_sharing)
{
    uint64_t owner = h_connect(h, 1, 1), group = h_connect(h, 2, 10),
             other = h_connect(h, 3, 3);
    struct msg_expire_params params = {.name = MSG_STR("v"),
                                       .pool = MSG_STR("shared"),
                                       .generation = 2,
                                       .ttl_ns = TTL};

    h_create_now(h, owner, "v", "shared", 100);
    cr_assert_eq(expire(h, group, "v", TTL)->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(expire(h, other, "v", TTL)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(expire(h, owner, "w", TTL)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_request(h, owner, MSG_EXPIRE, &params)->error, PROTO_ERR_STALE);
    h_create_as(h, owner, 100, (struct msg_create_params){.ttl_ns = TTL});
    cr_assert_eq(h->replies[owner].error, PROTO_ERR_INVALID, "it has no name");
    cr_assert_eq(core_expiry_ns(h->core), UINT64_MAX);
    h_tick(h, 1);
    expire(h, owner, "v", UINT64_MAX);
    h_tick(h, UINT64_MAX / 2);
    cr_assert_eq(h_counts(h).names, 1, "a sum that does not wrap");
}

/* Its time is over before its memory is there: its creator gets it, and the name goes soon. */
CORE_TEST(expiry, waits_for_memory, h_sharing)
{
    uint64_t owner = h_connect(h, 1, 1);
    struct msg_create_params params = {.name = MSG_STR("v"), .ttl_ns = 1, .exclusive = true};

    h_create_as(h, owner, 100, params);
    cr_assert_not(h->replies[owner].seen);
    h_tick(h, 1);
    h_finish_all(h);
    cr_assert_eq(h->replies[owner].error, 0);
    cr_assert_eq(h_counts(h).names, 1);
    h_tick(h, TTL);
    cr_assert_eq(h_counts(h).names, 0);
}

/* In place of a name that was to expire there is another array: it stays, and so does a name that
 * is given up and taken anew. */
CORE_TEST(expiry, is_of_one_generation, h_sharing)
{
    uint64_t owner = h_connect(h, 1, 1);

    for (int i = 0; i < 2; i++) {
        const struct msg_create_params params = {.pool = MSG_STR("shared"),
                                                 .name = MSG_STR("v")};
        h_made(h, owner, 100, params);
        expire(h, owner, "v", TTL);
        if (i)
            h_unlink(h, owner, "v", "shared");
        uint64_t lease = h_made(h, owner, 100, in_shared).lease;
        cr_assert_eq(h_publish(h, owner, lease, "v")->error, 0);
        h_tick(h, TTL);
        cr_assert_eq(h_counts(h).names, 1);
        h_unlink(h, owner, "v", "shared");
    }
}
