/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The request `parts`, by which a connection is told which of the parts that it has published are
 * gone; and what parts are charged.
 */
#include "harness.h"

#include <stdio.h>

#include "block.h"
#include "caid_test.h"
#include "conn.h"

/* A connection, and a lease of its on an array of 1,000 bytes. */
static uint64_t
publisher(struct harness *h, uint64_t *ret_lease)
{
    uint64_t conn = h_connect(h, 1000, 1000);
    const struct h_reply *reply = h_create_now(h, conn, NULL, NULL, 1000);

    cr_assert_eq(reply->error, 0, "%s", reply->text);
    *ret_lease = reply->lease;
    return conn;
}

/* A part of 100 bytes, which must not be refused; its number. */
static uint64_t
part(struct harness *h, uint64_t conn, uint64_t lease, const char *name)
{
    const struct h_reply *reply = h_part(h, conn, lease, 0, 100, name);

    cr_assert_eq(reply->error, 0, "%s", reply->text);
    return reply->array;
}

/* Whether the connection has been told of these parts, in that order. */
static bool
told(const struct harness *h, uint64_t conn, const uint64_t *ids, uint32_t n)
{
    const struct h_reply *reply = &h->replies[conn];

    return reply->seen && !reply->error && reply->n_parts == n &&
           memcmp(reply->parts, ids, n * sizeof(*ids)) == 0;
}

#define TOLD(h, conn, ...)                       \
    told((h), (conn), (uint64_t[]){__VA_ARGS__}, \
         sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* ---- when ---- */

CORE_TEST(parts, cancelled, h_sharing)
{
    uint64_t lease;

    uint64_t a = publisher(h, &lease), b = h_connect(h, 1000, 1000);
    h_cancel(h, a, 1); /* long answered */
    uint64_t p = part(h, a, lease, "p");
    h_parts(h, a);
    uint32_t request = h->next_id;
    h_cancel(h, b, request);
    cr_assert_not(h->replies[a].seen, "another connection's");
    h_cancel(h, a, request + 1);
    cr_assert_not(h->replies[a].seen, "another request");
    h_cancel(h, a, request);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_CANCELLED);
    cr_assert_eq(h->replies[a].id, request);
    h_cancel(h, a, request);
    cr_assert_not(h->replies[a].seen, "unknown by now");
    h_unlink(h, b, "p", NULL);
    cr_assert_not(h->replies[a].seen, "nobody asks");
    h_parts(h, a);
    cr_assert(TOLD(h, a, p), "what went meanwhile is not lost");
    cr_assert_not(h->closed[a] || h->closed[b]);
}

/* ---- many ---- */

static void
many_arrays(struct core_config *config)
{
    h_sharing(config);
    config->limits.arrays = config->limits.names = 10000;
}

/* More than one answer tells. */
CORE_TEST(parts, of_many_as_many_as_a_packet_takes, many_arrays)
{
    const uint32_t n = 4200, most = 4096;
    uint64_t lease;
    char name[16];

    uint64_t a = publisher(h, &lease), b = h_connect(h, 1000, 1000), last = 0;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "p%u", i);
        last = part(h, a, lease, name);
    }
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "p%u", i);
        cr_assert_eq(h_unlink(h, b, name, NULL)->error, 0);
    }
    cr_assert(h_parts(h, a)->seen);
    cr_assert_eq(h->replies[a].n_parts, most);
    cr_assert(h_parts(h, a)->seen);
    cr_assert_eq(h->replies[a].n_parts, n - most);
    cr_assert_eq(h->replies[a].parts[0], last - (n - most) + 1);
    cr_assert_not(h_parts(h, a)->seen);
}

/* ---- charges ---- */

/* What uid 1000 is charged, as root is told, who holds nothing. */
static struct msg_user
charged(struct harness *h)
{
    uint64_t root = h_connect(h, 0, 0);
    const struct h_reply *reply = h_request(h, root, MSG_USERS, &(struct msg_users_params){0});
    struct msg_user user = {0};

    for (size_t i = 0; i < reply->n_entries && i < ARRAY_SIZE(reply->users); i++)
        if (reply->users[i].uid == 1000)
            user = reply->users[i];
    h_disconnect(h, root);
    return user;
}

static void
assert_charged(struct harness *h, struct msg_user was, uint64_t arrays, uint64_t names)
{
    struct msg_user is = charged(h);

    cr_assert_eq(is.arrays, was.arrays + arrays);
    cr_assert_eq(is.names, was.names + names);
    cr_assert_eq(is.bytes, was.bytes, "parts take no bytes");
    cr_assert_eq(is.pinned, was.pinned);
    cr_assert_eq(is.leases, was.leases);
    cr_assert(arrays ? is.host > was.host : is.host == was.host);
}

/* All of it comes off again, in whatever order things go. */
CORE_TEST(parts, charges_are_undone, h_sharing)
{
    uint64_t lease;

    uint64_t a = publisher(h, &lease), b = h_connect(h, 1000, 1000);
    struct msg_user before = charged(h);
    part(h, a, lease, "p");
    assert_charged(h, before, 1, 1);
    uint64_t host = charged(h).host;
    part(h, a, lease, "q");
    cr_assert_eq(charged(h).host - host, host - before.host, "each the same");
    h_unlink(h, b, "q", NULL);
    cr_assert_gt(charged(h).host, host, "a has not been told");
    cr_assert_eq(charged(h).arrays, before.arrays + 1);
    h_parts(h, a);
    cr_assert_eq(charged(h).host, host);
    h_unlink(h, b, "p", NULL);
    h_parts(h, a);
    assert_charged(h, before, 0, 0);
    part(h, a, lease, "p");
    h_unlink(h, b, "p", NULL);
    h_hangup(h, a); /* takes what it was not told of with it */
    cr_assert_eq(charged(h).host, before.host);
    cr_assert_eq(charged(h).arrays, before.arrays);
    h_exit(h, a);
    cr_assert_eq(charged(h).host, BLOCK_HOST + CONN_HOST + 2 * sizeof(gid_t),
                 "of a block in reserve, and of who asks");
    cr_assert_eq(charged(h).bytes, 0);
}

/* A refused one leaves nothing, whichever limit it was. */
static void
assert_refused(struct harness *h, uint64_t conn, uint64_t lease, enum proto_error error)
{
    struct msg_user before = charged(h);

    cr_assert_eq(h_part(h, conn, lease, 0, 100, "refused")->error, error, "%s",
                 h->replies[conn].text);
    assert_charged(h, before, 0, 0);
    cr_assert_not(h_parts(h, conn)->seen, "it was never there");
    h_cancel(h, conn, h->next_id);
}

static void
one_name(struct core_config *config)
{
    h_sharing(config);
    config->limits.names = 1;
}

CORE_TEST(parts, limit_of_names, one_name)
{
    uint64_t lease;

    uint64_t a = publisher(h, &lease);
    part(h, a, lease, "p");
    assert_refused(h, a, lease, PROTO_ERR_LIMIT);
    part(h, a, lease, "p"); /* in place of what is its own */
    h_parts(h, a);
    cr_assert_eq(charged(h).names, 1);
}

static uint64_t host_limit;

static void
little_host(struct core_config *config)
{
    h_sharing(config);
    config->limits.host_bytes = host_limit;
}

/* Whose page takes more than the create has while it waited. */
static uint64_t
publisher_with_page(struct harness *h, uint64_t *ret_lease)
{
    uint64_t conn = publisher(h, ret_lease);

    h_page_new(h, conn);
    return conn;
}

/* At every limit of the daemon's memory it is there, or it has left nothing. */
CAID_TEST(parts, limit_of_host_memory)
{
    struct harness h;
    uint64_t most, refused = 0, lease;

    h_init(&h, h_sharing);
    uint64_t a = publisher_with_page(&h, &lease), before = charged(&h).host;
    part(&h, a, lease, "p");
    most = charged(&h).host;
    h_unlink(&h, a, "p", NULL);
    h_deinit(&h);
    for (host_limit = before; host_limit <= most; host_limit += 8) {
        h_init(&h, little_host);
        a = publisher_with_page(&h, &lease);
        if (host_limit < most) {
            assert_refused(&h, a, lease, PROTO_ERR_QUOTA);
            refused++;
        } else {
            part(&h, a, lease, "p");
            h_unlink(&h, a, "p", NULL);
        }
        h_deinit(&h);
    }
    cr_assert_gt(refused, 10);
}
