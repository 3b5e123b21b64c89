/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event does a bounded part of the work that it causes. The rest is done in pieces, between
 * which uids take turns and other requests are handled (I6).
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

static void
room_for_pages(struct core_config *config)
{
    config->limits.connections = config->limits.pages = 2 * MANY;
}

static void
room_for_creates(struct core_config *config)
{
    h_sharing(config);
    config->limits.jobs = MANY;
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

/* Arrays that wait for one block: its memory comes, or does not. */
PARTY_TEST(pieces, creates_of_one_block, room_for_creates)
{
    const struct msg_create_params pinned = {.memory = MSG_STR("pinned")};
    const int errors[] = {-EIO, 0};

    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        for (int n = 0; n < MANY; n++)
            h_create_as(&p->h, p->conn[i], 512, pinned);
        cr_assert_eq(p->h.n_jobs, 1);
        slow_down(p);
        sent(p);
        h_finish(&p->h, 0, errors[i]);
        cr_assert_eq(sent(p), PIECES);
        expect_pieces(p, MANY - PIECES);
        cr_assert_eq(party_error(p, (int)i), errors[i] ? PROTO_ERR_DRIVER : 0);
    }
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
    cr_assert_geq(h_counts(h).arrays, 2 + MANY - PIECES);
    h_open(h, p->conn[2], "a", NULL, "r");
    cr_assert_eq(h->replies[p->conn[2]].error, 0);
    h_hangup(h, p->conn[2]);
    h->by_hand = false;
    h_tick(h, 0);
    cr_assert_eq(h_counts(h).arrays, 2);
    cr_assert_eq(h_counts(h).departed, 1, "who has hung up has leases");
}

/* Its pages, each an action for whoever drives the core, and what others have of them. */
PARTY_TEST(pieces, pages_of_a_process_that_exits, room_for_pages)
{
    int n = 0;

    h_timeline(&p->h, p->conn[0], "t", NULL, p->page[0]);
    for (int i = 0; i < MANY; i++) {
        h_page_new(&p->h, p->conn[0]);
        h_open_timeline(&p->h, h_connect(&p->h, 1000, 1000), "t", NULL);
    }
    slow_down(p);
    h_exit(&p->h, p->conn[0]);
    for (; core_is_behind(p->h.core); n++) {
        size_t n_pages = p->h.n_pages;
        h_tick(&p->h, 0);
        cr_assert_leq(n_pages - p->h.n_pages, PIECES);
    }
    cr_assert_geq(n, 2 * MANY / PIECES); /* and their readers */
    p->h.by_hand = false;
}

/* Readers whose turn had come, since the writer was dead, wait for it after all. */
PARTY_TEST(pieces, searches_for_a_deadlock, room_for_many)
{
    int n = 0;

    party_begun(p, 0, p->a[0], true);
    for (int i = 0; i < MANY; i++)
        party_begin(p, 1, p->a[1], false);
    slow_down(p);
    sent(p);
    for (h_hangup(&p->h, p->conn[0]); sent(p) == 0;) /* it comes to be abandoned */
        h_tick(&p->h, 0);
    h_discard(&p->h, p->conn[2], p->a[2]);
    for (; core_is_behind(p->h.core); n++)
        h_tick(&p->h, 0);
    cr_assert_geq(n, MANY - 2 * PIECES);
}

#define FENCES (PROTO_BEGIN_MAX + 64)

static void
room_for_fences(struct core_config *config)
{
    config->limits.brackets = FENCES;
    config->limits.pages = FENCES / TIMELINE_SLOTS + N_CLIENTS;
}

/* So many readings of "a" have ended on as many slots; returns the first of their pages. */
static const struct h_page *
leave_fences(struct party *p)
{
    const struct h_page *first = &p->h.pages[p->h.n_pages];
    uint64_t page = 0;

    for (int i = 0; i < FENCES; i++) {
        if (i % TIMELINE_SLOTS == 0)
            page = h_page_new(&p->h, p->conn[0]);
        h_end_at(&p->h, p->conn[0], party_begun(p, 0, p->a[0], false), page,
                 (uint64_t)(i % TIMELINE_SLOTS));
    }
    return first;
}

/* Those that have passed, and are looked for when the limit is reached. */
PARTY_TEST(pieces, fences_that_have_passed, room_for_fences)
{
    const struct h_page *page = leave_fences(p);

    for (; page < p->h.pages + p->h.n_pages; page++)
        for (uint64_t slot = 0; slot < TIMELINE_SLOTS; slot++)
            h_land(&p->h, page->id, slot, 1);
    party_begun(p, 0, p->b[0], false);
    h_request(&p->h, p->conn[1], MSG_USERS, &(struct msg_users_params){0});
    cr_assert_eq(p->h.replies[p->conn[1]].users[0].brackets, FENCES - PROTO_BEGIN_MAX + 1);
}

/* Those that a writer waits for: a reply has no more than so many. */
PARTY_TEST(pieces, fences_that_are_due, room_for_fences)
{
    const struct h_page *last = leave_fences(p) + PROTO_BEGIN_MAX / TIMELINE_SLOTS - 1;
    uint64_t other = h_connect(&p->h, 0, 0), lease;

    lease = h_open(&p->h, other, "a", "uid:1000", "rw")->lease;
    uint64_t bracket = h_begun(&p->h, other, lease, true);
    cr_assert_eq(p->h.replies[other].n_fences, PROTO_BEGIN_MAX);
    cr_assert(p->h.replies[other].more);
    h_fences(&p->h, other, bracket, last->id, TIMELINE_SLOTS - 1);
    cr_assert_eq(p->h.replies[other].n_fences, FENCES - PROTO_BEGIN_MAX);
    cr_assert_not(p->h.replies[other].more);
}
