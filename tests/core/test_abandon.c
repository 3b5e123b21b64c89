/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets that end otherwise than by their end: the dead holder rule, leases that are closed.
 */
#include "caid_test.h"
#include "party.h"

/* ---- the dead holder rule ---- */

PARTY_TEST(abandon, a_writer_that_dies_in_its_bracket, NULL)
{
    party_begun(p, 0, p->a[0], true);
    party_begin(p, 1, p->a[1], false);
    uint64_t w2 = party_begin(p, 2, p->a[2], true);
    party_begin(p, 3, p->a[3], false);
    h_hangup(&p->h, p->conn[0]);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_ABANDONED, "a reader is told at once");
    cr_assert(party_waits(p, 2), "a writer waits: the process may write still");
    cr_assert(party_waits(p, 3), "and who is behind it");
    cr_assert(party_is_abandoned(p));
    h_exit(&p->h, p->conn[0]);
    cr_assert(party_is_open(p, 2));
    party_end(p, 2, w2);
    cr_assert(party_is_open(p, 3), "what was written anew is whole");
}

/* A context that has died: its process says so itself, in its page. */
PARTY_TEST(abandon, a_writer_that_says_that_it_is_dead, NULL)
{
    uint64_t bracket = party_begun(p, 0, p->a[0], true);
    h_submit(&p->h, p->page[0], 0);
    timeline_kill(h_slot(&p->h, p->page[0], 0));
    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = bracket, .page = p->page[0], .value = 1});
    cr_assert_not(p->h.closed[p->conn[0]]);
    cr_assert(party_is_abandoned(p));
    party_begin(p, 1, p->a[1], false);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_ABANDONED);
    cr_assert_eq(h_publish(&p->h, p->conn[0], p->a[0], "z")->error, PROTO_ERR_ABANDONED,
                 "a published name shows a whole array (I8)");
    cr_assert_eq(h_discard(&p->h, p->conn[1], p->a[1])->error, 0);
    cr_assert_not(party_is_abandoned(p));
    party_begun(p, 1, p->a[1], false);
}

/* The grant has crossed the cancellation, and what the client does next overtakes its end. */
PARTY_TEST(abandon, nothing_was_done_in_a_begin_that_was_given_up, NULL)
{
    for (int hangs_up = 0; hangs_up < 2; hangs_up++) {
        uint64_t bracket = party_begun(p, hangs_up, p->a[hangs_up], true);
        h_cancel(&p->h, p->conn[hangs_up], p->h.next_id);
        uint64_t next = party_begin(p, 2, p->a[2], true);
        cr_assert(party_waits(p, 2));
        if (hangs_up) {
            h_hangup(&p->h, p->conn[hangs_up]);
        } else {
            h_close(&p->h, p->conn[hangs_up], p->a[hangs_up]);
            h_end_as(&p->h, p->conn[hangs_up],
                     (struct msg_end_params){.bracket = bracket, .undone = true});
            cr_assert_not(p->h.closed[p->conn[hangs_up]]);
        }
        cr_assert(party_is_open(p, 2));
        cr_assert_not(party_is_abandoned(p));
        party_end(p, 2, next);
    }
}

/* I8, and nothing is kept of a write that is done. */
PARTY_TEST(abandon, what_is_published_is_whole, NULL)
{
    uint64_t value = party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 0);
    cr_assert_eq(h_publish(&p->h, p->conn[0], p->a[0], "y")->error, 0, "its readers wait");
    h_land(&p->h, p->page[0], 0, value);
    cr_assert_eq(h_publish(&p->h, p->conn[0], p->a[0], "z")->error, 0);
    party_end_at(p, 1, party_begun(p, 1, p->a[1], true), 0);
    timeline_kill(h_slot(&p->h, p->page[1], 0));
    cr_assert_eq(h_publish(&p->h, p->conn[0], p->a[0], "a")->error, PROTO_ERR_ABANDONED);
    cr_assert_eq(h_discard(&p->h, p->conn[0], p->a[0])->error, 0);
    cr_assert_eq(h_publish(&p->h, p->conn[0], p->a[0], "a")->error, 0);
}

/* What a page says is its owner's word: it harms his arrays, and nobody else's. */
PARTY_TEST(abandon, a_page_that_was_tampered_with, NULL)
{
    static const uint64_t values[] =
        {0, 1, TIMELINE_VALUE_MAX, TIMELINE_DEAD, UINT64_MAX / 2 + 1, UINT64_MAX};
    const size_t n = ARRAY_SIZE(values);

    h_timeline(&p->h, p->conn[0], "t", NULL, p->page[0]);
    for (size_t i = 0; i < n * n * n; i++) {
        uint64_t bracket = party_begun(p, 0, p->a[0], true);
        struct timeline_slot *slot = h_slot(&p->h, p->page[0], 0);
        atomic_store(&slot->submitted, 1);
        h_end_as(&p->h, p->conn[0],
                 (struct msg_end_params){.bracket = bracket, .page = p->page[0], .value = 1});
        cr_assert_not(p->h.closed[p->conn[0]]);
        atomic_store(&slot->done, values[i % n]);
        atomic_store(&slot->landed, values[i / n % n]);
        atomic_store(&slot->submitted, values[i / n / n]);
        cr_assert_eq(h_show(&p->h, p->conn[2], "a", NULL)->error, 0);
        h_request(&p->h, p->conn[1], MSG_TIMELINES, &(struct msg_timelines_params){0});
        cr_assert_eq(p->h.replies[p->conn[1]].n_entries, 1);
        atomic_store(&slot->submitted, 1); /* clients look at that themselves */
        party_begin(p, 1, p->a[1], false);
        if (party_is_open(p, 1))
            party_end(p, 1, p->h.next_id);
        else
            cr_assert_eq(party_error(p, 1), PROTO_ERR_ABANDONED);
    }
    h_drop_page(&p->h, p->conn[0], p->page[0]);
    h_tick(&p->h, 10000000);
    h_disconnect(&p->h, p->conn[0]);
    cr_assert_not(h_page(&p->h, p->page[0]));
    party_end(p, 1, party_begun(p, 1, p->a[1], true));
    party_begun(p, 1, p->a[1], false);
}

PARTY_TEST(abandon, an_end_that_abandons, NULL)
{
    uint64_t both = party_begin_many(p, 0, LEASES(p->b[0]), LEASES(p->a[0]), 0);
    party_begin(p, 1, p->a[1], false);
    h_end_as(&p->h, p->conn[0], (struct msg_end_params){.bracket = both, .abandon = true});
    cr_assert_eq(party_error(p, 1), PROTO_ERR_ABANDONED);
    cr_assert(party_is_abandoned(p));
    cr_assert_not(party_entry(p, "b")->abandoned, "what was read is as it was");
    cr_assert_eq(h_discard(&p->h, p->conn[0], p->a[0])->error, 0);
    cr_assert_not(party_is_abandoned(p));
    uint64_t ro = h_open(&p->h, p->conn[2], "a", NULL, "r")->lease;
    cr_assert_eq(h_discard(&p->h, p->conn[2], ro)->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(h_discard(&p->h, p->conn[2], 999)->error, PROTO_ERR_INVALID);
}

/* And is told of a writer before that one, whose work was not done either. */
PARTY_TEST(abandon, a_writer_dies_under_another_that_has_hung_up, NULL)
{
    party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 0);
    party_begun(p, 1, p->a[1], true);
    h_hangup(&p->h, p->conn[1]);
    cr_assert_eq(h_discard(&p->h, p->conn[2], p->a[2])->error, 0);
    party_begin(p, 2, p->a[2], false);
    cr_assert(party_waits(p, 2));
    h_disconnect(&p->h, p->conn[0]);
    cr_assert_eq(party_error(p, 2), PROTO_ERR_ABANDONED);
}

/* A reader whose writer has died since asks for the rest of its fences: that one's is not there. */
PARTY_TEST(abandon, a_writer_that_dies_between_two_replies, NULL)
{
    party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 0);
    uint64_t r1 = party_begun(p, 1, p->a[1], false);
    cr_assert_eq(h_fences(&p->h, p->conn[1], r1, 0, 0)->n_fences, 1);
    h_disconnect(&p->h, p->conn[0]);
    cr_assert_eq(h_fences(&p->h, p->conn[1], r1, 0, 0)->error, PROTO_ERR_ABANDONED);
}

/* ---- leases that end ---- */

/* Whose turn comes when it is being closed was never told, and has not written. */
PARTY_TEST(abandon, a_turn_that_comes_too_late, NULL)
{
    uint64_t r0 = party_begun(p, 0, p->a[0], false);
    party_begin(p, 1, p->a[1], true);
    h_end(&p->h, p->conn[1], 999);
    cr_assert(p->h.closed[p->conn[1]]);
    party_end(p, 0, r0);
    party_begun(p, 2, p->a[2], false);
    h_disconnect(&p->h, p->conn[1]);
    cr_assert_not(party_is_abandoned(p));
}

/* By its own page, between the begin of a reader and its question for more fences. */
PARTY_TEST(abandon, a_context_that_dies_between_two_replies, NULL)
{
    party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 0);
    uint64_t reads = party_begun(p, 1, p->a[1], false);
    cr_assert_eq(p->h.replies[p->conn[1]].n_fences, 1);
    timeline_kill(h_slot(&p->h, p->page[0], 0));
    cr_assert_eq(h_fences(&p->h, p->conn[1], reads, 0, 0)->error, PROTO_ERR_ABANDONED);
}

/* Who reads one array and writes another has to hear of the death of whoever wrote the first,
 * and not of those that read, or wrote, the second. */
PARTY_TEST(abandon, fences_say_whose_loss_matters, NULL)
{
    party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 0);  /* writes a */
    party_end_at(p, 1, party_begun(p, 1, p->b[1], true), 0);  /* writes b */
    party_end_at(p, 2, party_begun(p, 2, p->b[2], false), 0); /* reads b */
    party_begin_many(p, 3, LEASES(p->a[3]), LEASES(p->b[3]), 0);
    cr_assert(party_is_open(p, 3));
    const struct h_reply *r = &p->h.replies[p->conn[3]];
    cr_assert_eq(r->n_fences, 3);
    for (uint32_t i = 0; i < r->n_fences; i++)
        cr_assert_eq(r->fences[i].data, r->fences[i].page == p->page[0]);
}
