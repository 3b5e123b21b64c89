/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that go: bracket ends with the socket or the process, whichever comes first; what the
 * process may still have the GPU write is not given to anybody else before it has exited (I2).
 */
#include "harness.h"

#include "caid_test.h"

#define MIB INT64_C(1048576)

CORE_TEST(depart, unnamed_array_waits_for_the_exit, h_sharing)
{
    struct msg_unnamed_params unnamed = {.pool = MSG_STR("uid:1000")};

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, NULL, NULL, 2 * MIB);
    cr_assert(h_hangup(h, a), "it has to be waited for");
    cr_assert_eq(h_counts(h).connections, 1);
    cr_assert_eq(h_counts(h).departed, 1);
    cr_assert_eq(h_counts(h).leases, 0);
    cr_assert_eq(h_counts(h).pending, 0);

    cr_assert_eq(h_request(h, b, MSG_UNNAMED, &unnamed)->n_entries, 1);
    cr_assert_eq(h->replies[b].block, array.block);
    cr_assert_eq(h->replies[b].holder_pids[0], 100 + a, "who pins it");
    cr_assert(h->replies[b].hung_up[0]);
    h_age(h);
    struct h_reply other = *h_create_now(h, b, NULL, NULL, 2 * MIB);
    cr_assert_neq(other.block, array.block);
    h_exit(h, a);
    cr_assert_eq(h_counts(h).departed, 0);
    cr_assert_eq(h_counts(h).pending, 1);
    cr_assert_eq(h_request(h, b, MSG_UNNAMED, &unnamed)->n_entries, 1, "one's own");
    cr_assert_eq(h_create_now(h, b, NULL, NULL, 2 * MIB)->block, array.block);
}

CORE_TEST(depart, exit_comes_first, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_create_now(h, a, NULL, NULL, 100);
    h_exit(h, a);
    cr_assert_eq(h_counts(h).connections, 0);
    cr_assert_eq(h_counts(h).departed, 0);
    cr_assert_eq(h_counts(h).pending, 1);
    cr_assert_not(h_hangup(h, a), "it is unknown by now");
}

CORE_TEST(depart, nothing_to_wait_for, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, NULL, NULL, 100);
    h_create_now(h, a, NULL, NULL, 0);
    h_close(h, a, array.lease);
    cr_assert_not(h_hangup(h, a), "no lease with bytes, and the block may go under its map");
    cr_assert_eq(h_counts(h).departed, 0);
    h_exit(h, a); /* is of no consequence */
}

/* What is open in a process and must not be freed under it. */
CAID_TEST(depart, open_blocks_of_some_kinds_wait)
{
    struct harness h;
    static const char *const kinds[] = {"legacy", "pinned"};

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        h_init(&h, h_sharing);
        uint64_t a = h_connect(&h, 1000, 1000), b = h_connect(&h, 1000, 1000);
        h_create_as(&h, a, 100, (struct msg_create_params){.memory = MSG_STR(kinds[i])});
        h_finish_all(&h);
        h_close(&h, a, h.replies[a].lease);
        cr_assert(h_hangup(&h, a));
        h_flush(&h, b);
        h_finish_all(&h);
        cr_assert_eq(h.live_bytes, H_BLOCK, "%s", kinds[i]);
        h_exit(&h, a);
        h_flush(&h, b);
        h_finish_all(&h);
        cr_assert_eq(h.live_bytes, 0, "%s", kinds[i]);
        h_deinit(&h);
    }
}

/* Others have it, and go one after the other: the last exit counts. */
CORE_TEST(depart, array_that_others_hold, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, "w", NULL, 2 * MIB);
    h_open(h, b, "w", NULL, "rw");
    uint64_t lease = h->replies[b].lease;
    h_hangup(h, a);
    cr_assert_eq(h_open(h, c, "w", NULL, "r")->stamp, array.stamp, "it is as alive as ever");
    h_close(h, c, h->replies[c].lease);
    cr_assert_eq(h_show(h, c, "w", NULL)->n_entries, 2);
    cr_assert_neq(h->replies[c].hung_up[0], h->replies[c].hung_up[1]);
    cr_assert_eq(h->replies[c].n_leases[0], 2);
    h_unlink(h, c, "w", NULL);
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 1)->stamp, array.stamp);
    h_close(h, c, h->replies[c].lease);
    h_close(h, b, lease);
    cr_assert_eq(h_counts(h).pending, 0, "a lives, and may write");
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 1)->error, PROTO_ERR_STALE,
                 "but nobody can have a dead array");
    h_exit(h, a);
    cr_assert_eq(h_counts(h).pending, 1);
}

/* The other order: the process exits while others hold what it made. */
CORE_TEST(depart, exit_before_the_others_close, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, "w", NULL, 2 * MIB);
    h_open(h, b, "w", NULL, "rw");
    h_hangup(h, a);
    h_exit(h, a);
    cr_assert_eq(h_counts(h).leases, 1);
    h_unlink(h, b, "w", NULL);
    cr_assert_eq(h_counts(h).pending, 0);
    h_close(h, b, h->replies[b].lease ? h->replies[b].lease : 1);
    cr_assert_eq(h_counts(h).pending, 1);
    cr_assert_eq(h_create_now(h, b, NULL, NULL, 2 * MIB)->block, array.block);
}

CORE_TEST(depart, names_stay, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, "w", NULL, 100);
    h_hangup(h, a);
    uint64_t b = h_connect(h, 1000, 1000);
    cr_assert_eq(h_open(h, b, "w", NULL, "r")->stamp, array.stamp);
    h_exit(h, a);
    cr_assert_eq(h_open(h, b, "w", NULL, "r")->stamp, array.stamp);
}

static void
two_connections(struct core_config *config)
{
    h_sharing(config);
    config->limits.connections = 2;
    config->limits.leases = 2;
    config->limits.bytes = 3 * MIB;
}

/* What it pins is charged until it exits: hanging up is no way around a limit. */
CORE_TEST(depart, charges_last_until_the_exit, two_connections)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_create_now(h, a, NULL, NULL, 2 * MIB);
    h_hangup(h, a);
    uint64_t b = h_connect(h, 1000, 1000);
    cr_assert_eq(h_connect_raw(h, 1000, 1000), 0, "a third connection");
    cr_assert_eq(h_create(h, b, NULL, NULL, 2 * MIB)->error, PROTO_ERR_QUOTA);
    cr_assert_eq(h_create(h, b, NULL, NULL, 0)->error, 0);
    cr_assert_eq(h_create(h, b, NULL, NULL, 0)->error, PROTO_ERR_LIMIT, "a third lease");
    h_exit(h, a);
    cr_assert_eq(h_create(h, b, NULL, NULL, 0)->error, 0);
    cr_assert_neq(h_connect_raw(h, 1000, 1000), 0);
}

static void
many(struct core_config *config)
{
    h_sharing(config);
    config->limits.arrays = config->limits.names = config->limits.leases = 1000;
}

CORE_TEST(depart, unnamed_arrays_by_pages, many)
{
    struct msg_unnamed_params params = {0};
    uint32_t n = 0, pages = 0;
    char name[64] = "";

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    for (int i = 0; i < 299; i++) {
        h_create(h, a, i % 2 ? "w" : NULL, NULL, 0);
        cr_assert_eq(h->replies[a].error, 0);
        if (i % 2)
            h_unlink(h, a, "w", NULL);
    }
    for (int i = 0; i < 10; i++) /* older ones in a pool that comes later */
        h_create(h, b, NULL, NULL, 0);
    for (int i = 0; i < 299; i++)
        h_create(h, b, NULL, "open", 0);
    params.all = true;
    params.pool = MSG_STR("");
    do {
        struct h_reply *reply = h_request(h, b, MSG_UNNAMED, &params);
        cr_assert_eq(reply->error, 0);
        n += reply->n_entries;
        pages++;
        params.pool = MSG_STR(n < 299 ? "open" : "uid:1001");
        params.array = reply->array;
        params.generation = reply->generation;
        snprintf(name, sizeof(name), "%s", reply->metadata);
        params.name = MSG_STR(name);
    } while (h->replies[b].more);
    cr_assert_eq(n, 309, "in pools that it may read");
    params = (struct msg_unnamed_params){0};
    n = 0;
    do {
        struct h_reply *reply = h_request(h, a, MSG_UNNAMED, &params);
        n += reply->n_entries;
        pages++;
        params.array = reply->array;
        params.generation = reply->generation;
        snprintf(name, sizeof(name), "%s", reply->metadata);
        params.name = MSG_STR(name);
    } while (h->replies[a].more);
    cr_assert_eq(n, 299);
    cr_assert_geq(pages, 6);
    params = (struct msg_unnamed_params){.pool = MSG_STR("uid:1000")};
    cr_assert_eq(h_request(h, b, MSG_UNNAMED, &params)->error, PROTO_ERR_NOT_FOUND);
}

/* In every state that a request can be in. */
CORE_TEST(depart, with_requests_under_way, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_create(h, a, "w", NULL, 100);
    h_watch(h, a, "v", NULL, 0);
    h_request(h, a, MSG_MEMORY_INFO, &(struct msg_memory_params){0});
    h_defer(h, a, true);
    h_flush(h, a);
    cr_assert_not(h_hangup(h, a));
    h_finish_all(h);
    cr_assert_eq(h_counts(h).names, 0);
    h_age(h);
    cr_assert_eq(h_counts(h).users, 0);
    cr_assert_eq(h->live_bytes, 0);
}

/* A flush's release is under way, or a flush that out of memory has called for. */
CORE_TEST(depart, while_a_flush_is_answered, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, NULL, NULL, 100);
    h_close(h, a, array.lease);
    h_flush(h, a);
    cr_assert_eq(h->jobs[0].type, CORE_RELEASE);
    h_disconnect(h, a);
    cr_assert_eq(h_counts(h).users, 1, "until its block has gone");
    h_finish_all(h);
    cr_assert_eq(h_counts(h).users, 0);
}

CORE_TEST(depart, before_hello, h_sharing)
{
    uint64_t a = h_connect_raw(h, 1000, 1000);
    cr_assert_not(h_hangup(h, a));
    h_exit(h, a);
    cr_assert_eq(h_counts(h).users, 0);
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
}
