/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event does no more than so much of what it brings about. The rest comes in pieces, in which
 * uids take turns, and others are heard in between (I6).
 */
#include "caid_test.h"
#include "party.h"

#define MANY   20
#define PIECES 2

static void
room_for_many(struct core_config *config)
{
    config->limits.brackets = config->limits.watches = 10 * MANY;
}

/* From now on an event does PIECES of work, and what it leaves is not done by itself. */
static void
slow_down(struct party *p)
{
    core_set_pieces(p->h.core, PIECES);
    p->h.by_hand = true;
}

/* What was sent since the last call. */
static uint64_t
sent(struct party *p)
{
    uint64_t n = p->h.n_sent - p->h.n_sent_seen;

    p->h.n_sent_seen = p->h.n_sent;
    return n;
}

/* Another uid is answered in its own event, in which each uid gets on by a piece; all is told in
 * the end. */
static void
expect_pieces(struct party *p, uint64_t n)
{
    uint64_t other = h_connect(&p->h, 1001, 1001);

    n -= sent(p) - 1; /* but its hello */
    h_request(&p->h, other, MSG_PING, NULL);
    cr_assert(p->h.replies[other].seen);
    cr_assert_eq(sent(p), 1 + 1);
    h_tick(&p->h, 0);
    cr_assert_eq(sent(p), PIECES);
    n -= 1 + PIECES;
    p->h.by_hand = false;
    h_tick(&p->h, 0);
    cr_assert_eq(sent(p), n);
}

PARTY_TEST(pieces, readers_whose_turn_it_is, room_for_many)
{
    uint64_t w = party_begun(p, 0, p->a[0], true);

    for (int i = 0; i < MANY; i++)
        party_begin(p, 1, p->a[1], false);
    slow_down(p);
    sent(p);
    party_end(p, 0, w);
    cr_assert_eq(sent(p), PIECES);
    expect_pieces(p, MANY - PIECES);
    cr_assert_eq(party_entry(p, "a")->readers, MANY);
}

PARTY_TEST(pieces, brackets_of_a_lease_that_ends, room_for_many)
{
    party_begun(p, 0, p->a[0], true);
    for (int i = 0; i < MANY; i++)
        party_begin(p, 1, p->a[1], false);
    slow_down(p);
    sent(p);
    h_close(&p->h, p->conn[1], p->a[1]);
    cr_assert_eq(sent(p), PIECES);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_INVALID);
    expect_pieces(p, MANY - PIECES);
}

PARTY_TEST(pieces, watches, room_for_many)
{
    for (int i = 0; i < MANY; i++)
        h_request(&p->h, p->conn[1], MSG_WATCH,
                  &(struct msg_watch_params){.name = MSG_STR("a"), .seen = 1});
    slow_down(p);
    sent(p);
    h_unlink(&p->h, p->conn[0], "a", NULL);
    cr_assert_eq(sent(p), 1 + PIECES);
    expect_pieces(p, MANY - PIECES);
}

/* Their users may go on meanwhile; and what goes is found by nobody. */
PARTY_TEST(pieces, a_process_that_exits, room_for_many)
{
    struct harness *h = &p->h;

    for (int i = 0; i < MANY; i++)
        h_create_now(h, p->conn[1], NULL, NULL, 100);
    slow_down(p);
    h_exit(h, p->conn[1]);
    cr_assert_geq(h_counts(h).arrays, 2 + MANY - PIECES * PIECES);
    h_open(h, p->conn[2], "a", NULL, "r");
    cr_assert_eq(h->replies[p->conn[2]].error, 0);
    h_hangup(h, p->conn[2]);
    h->by_hand = false;
    h_tick(h, 0);
    cr_assert_eq(h_counts(h).arrays, 2);
    cr_assert_eq(h_counts(h).departed, 1, "who has hung up has leases");
}
