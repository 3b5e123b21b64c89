/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is connected, and whose connection may be ended by whom: what that leaves waits for the exit
 * of its process (I2), and its token is void (I6).
 */
#include "books.h"
#include "caid_test.h"
#include "core.h"
#include "harness.h"

#define NOBODY 65534

static void
with_nobody(struct core_config *config)
{
    h_sharing(config);
    config->overflow_uid = NOBODY;
}

/* One that comes back after a restart, and is told why it is ended. */
static uint64_t
come(struct harness *h, uid_t uid)
{
    uint64_t conn = h_connect_raw(h, uid, uid);

    cr_assert_eq(h_hello(h, conn, 0)->error, 0);
    return conn;
}

static enum proto_error
kick(struct harness *h, uint64_t conn, uint64_t other)
{
    return h_request(h, conn, MSG_KICK, &(struct msg_kick_params){.conn = other})->error;
}

static const struct h_reply *
connections(struct harness *h, uint64_t conn, uint64_t after)
{
    return h_request(h, conn, MSG_CONNECTIONS,
                     &(struct msg_connections_params){.after = after});
}

CORE_TEST(kick, whose_it_is, with_nobody)
{
    uint64_t root = h_connect(h, 0, 0), a = h_connect(h, 1000, 1000),
             b = h_connect(h, 1000, 1000), other = h_connect(h, 1001, 1001);

    cr_assert_eq(kick(h, other, a), PROTO_ERR_NOT_FOUND);
    cr_assert_eq(kick(h, a, other), PROTO_ERR_NOT_FOUND);
    cr_assert_eq(kick(h, a, root), PROTO_ERR_NOT_FOUND);
    cr_assert_eq(kick(h, a, 1000), PROTO_ERR_NOT_FOUND);
    cr_assert_not(h->closed[a] || h->closed[other] || h->closed[root]);
    cr_assert_eq(kick(h, a, b), 0);
    cr_assert(h->closed[b]);
    cr_assert_str_eq(h->reasons[b], "kicked by its own user");
    cr_assert_eq(kick(h, a, b), PROTO_ERR_NOT_FOUND, "it has ended");
    cr_assert_eq(kick(h, root, other), 0);
    cr_assert(h->closed[other]);
    cr_assert_str_eq(h->reasons[other], "kicked by an administrator");
    cr_assert_eq(kick(h, a, a), 0);
    cr_assert(h->closed[a]);
}

/* The uid of who is not known here stands for many. */
CORE_TEST(kick, not_by_who_may_be_another, with_nobody)
{
    uint64_t a = h_connect(h, NOBODY, NOBODY), b = h_connect(h, NOBODY, NOBODY);

    cr_assert_eq(kick(h, a, b), PROTO_ERR_NOT_FOUND);
    cr_assert_eq(connections(h, a, 0)->n_entries, 1);
    cr_assert_eq(h->replies[a].connections[0].conn, a);
    cr_assert_eq(kick(h, a, a), 0);
}

/* One that takes an error which answers no request is told by whom; another is hung up on. */
CORE_TEST(kick, and_is_told, NULL)
{
    uint64_t root = h_connect(h, 0, 0), told = come(h, 1000), old = h_connect(h, 1000, 1000);

    h->replies[old].seen = h->replies[told].seen = false;
    cr_assert_eq(kick(h, root, told), 0);
    cr_assert(h->replies[told].seen);
    cr_assert_eq(h->replies[told].id, 0);
    cr_assert_eq(h->replies[told].error, PROTO_ERR_KICKED);
    cr_assert_str_eq(h->replies[told].text, "uid 0 has ended this connection (kick)");
    cr_assert_eq(kick(h, root, old), 0);
    cr_assert_not(h->replies[old].seen);
    cr_assert(h->closed[told] && h->closed[old]);
}

CORE_TEST(kick, memory_waits_for_the_exit, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, NULL, NULL, 2 * MIB);

    cr_assert_eq(kick(h, b, a), 0);
    cr_assert(h_hangup(h, a));
    const struct h_reply *list = connections(h, b, 0);
    cr_assert_eq(list->n_entries, 2);
    cr_assert(list->connections[0].conn == a && list->connections[0].hung_up);
    cr_assert_not(list->connections[0].former || list->connections[1].hung_up);
    cr_assert_eq(kick(h, b, a), PROTO_ERR_NOT_FOUND);
    h_age(h);
    cr_assert_neq(h_create_now(h, b, NULL, NULL, 2 * MIB)->block, array.block);
    h_exit(h, a);
    cr_assert_eq(h_counts(h).departed, 0);
    cr_assert_eq(h_create_now(h, b, NULL, NULL, 2 * MIB)->block, array.block);
}

/* The journal has it when the answer is there, and before the connection has hung up. */
CORE_TEST(kick, token_is_void_after_a_restart, NULL)
{
    uint64_t root = come(h, 0), a = come(h, 1000), b = come(h, 1000);

    h_create_now(h, a, NULL, NULL, 100);
    h_create_now(h, b, NULL, NULL, 100);
    cr_assert_eq(kick(h, root, a), 0);
    saved_restart(h);
    uint64_t again = h_connect_as(h, 1000, 1000, h->pids[a]);
    cr_assert_not(h_hello(h, again, a)->resumed);
    again = h_connect_as(h, 1000, 1000, h->pids[b]);
    cr_assert(h_hello(h, again, b)->resumed);
}

/* One that has not come back yet, and one that is about to tell what it has. */
CORE_TEST(kick, former, NULL)
{
    uint64_t a = come(h, 1000), b = come(h, 1000);

    h_create_now(h, a, NULL, NULL, 100);
    h_create_now(h, b, NULL, NULL, 100);
    saved_restart(h);
    uint64_t root = h_connect(h, 0, 0);
    const struct h_reply *list = connections(h, root, 0);
    cr_assert_eq(list->n_entries, 3);
    cr_assert(list->connections[0].conn == a && list->connections[0].hung_up);
    cr_assert(list->connections[0].former && list->connections[1].former);
    cr_assert_eq(kick(h, root, a), 0);
    uint64_t again = h_connect_as(h, 1000, 1000, h->pids[a]);
    cr_assert_eq(h_hello(h, again, a)->error, PROTO_ERR_KICKED);
    cr_assert_str_eq(h->replies[again].text, "uid 0 has ended this connection (kick)");
    again = h_connect_as(h, 1000, 1000, h->pids[a]);
    cr_assert(h_hello(h, again, 0)->error == 0, "it may come anew");
    cr_assert_eq(kick(h, root, a), PROTO_ERR_NOT_FOUND);

    again = h_connect_as(h, 1000, 1000, h->pids[b]);
    cr_assert(h_hello(h, again, b)->resumed);
    cr_assert_eq(kick(h, root, again), 0);
    cr_assert_eq(h->replies[again].error, PROTO_ERR_KICKED);
    h_hangup(h, again);
    uint64_t third = h_connect_as(h, 1000, 1000, h->pids[b]);
    cr_assert_not(h_hello(h, third, again)->resumed);
    cr_assert_eq(h_counts(h).departed, 2);
    h_exit(h, a);
    h_exit(h, b);
    h_exit(h, again);
    cr_assert_eq(h_counts(h).departed, 0);
}

CORE_TEST(kick, portions_of_what_may_be_told, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), root = h_connect(h, 0, 0);

    core_set_reply_max(h->core, 1);
    const struct h_reply *list = connections(h, root, 0);
    cr_assert(list->n_entries == 1 && list->more && list->connections[0].conn == a);
    list = connections(h, root, list->array);
    cr_assert(list->n_entries == 1 && !list->more && list->connections[0].conn == root);
    cr_assert_eq(connections(h, root, UINT64_MAX)->n_entries, 0);
    core_set_reply_max(h->core, PROTO_PACKET_MAX);
    list = connections(h, a, 0);
    cr_assert(list->n_entries == 1 && !list->more);
    cr_assert_eq(list->array, root, "it has looked at all");
}
