/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that go: bracket ends with the socket or the process, whichever comes first; what the
 * process may still have the GPU write is not given to anybody else before it has exited (I2).
 */
#include "harness.h"

#include "caid_test.h"

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

/* As many as its config allows, and what follows in one. */
static void
pieces(struct core_config *config)
{
    h_sharing(config);
    config->limits.arrays = config->limits.leases = 3000;
}

CORE_TEST(depart, ranges_by_pages, pieces)
{
    struct msg_unnamed_params params = {.pool = MSG_STR("uid:1000")};
    uint32_t n = 0;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    for (int i = 0; i < 2100; i++)
        h_small(h, a, 512);
    uint64_t block = h->replies[a].block;
    do {
        struct h_reply *reply = h_request(h, a, MSG_RANGES, &params);
        cr_assert_eq(reply->error, 0);
        n += reply->n_entries;
        params.block = reply->block;
        params.offset = reply->offset;
    } while (h->replies[a].more);
    cr_assert_geq(params.block, block);
    cr_assert_eq(n, 2048, "%u", n);
    cr_assert_eq(h_request(h, b, MSG_RANGES, &params)->error, PROTO_ERR_NOT_FOUND);
    params = (struct msg_unnamed_params){.all = true};
    cr_assert_eq(h_request(h, b, MSG_RANGES, &params)->n_entries, 0, "another's are not told");
}

CORE_TEST(depart, before_hello, h_sharing)
{
    uint64_t a = h_connect_raw(h, 1000, 1000);
    cr_assert_not(h_hangup(h, a));
    h_exit(h, a);
    cr_assert_eq(h_counts(h).users, 0);
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
}
