/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets: whose turn it is, what they wait for, what is refused.
 */
#include "caid_test.h"
#include "party.h"
#include "use.h"

/* ---- turns ---- */

/* Readers that come while a writer waits do not keep it waiting for ever. */
PARTY_TEST(bracket, writers_do_not_starve, NULL)
{
    uint64_t r0 = party_begun(p, 0, p->a[0], false), r3 = party_begun(p, 3, p->a[3], false);
    uint64_t w1 = party_begin(p, 1, p->a[1], true);
    uint64_t r2 = party_begin(p, 2, p->a[2], false);
    cr_assert(party_waits(p, 1) && party_waits(p, 2),
              "a reader does not pass a writer that waits");
    party_end(p, 3, r3);
    cr_assert(party_waits(p, 2), "not when one of two readers ends, either");
    party_begin(p, 3, p->a[3], true);
    party_end(p, 0, r0);
    cr_assert(party_is_open(p, 1) && party_waits(p, 2) && party_waits(p, 3));
    party_end(p, 1, w1);
    cr_assert(party_is_open(p, 2) && party_waits(p, 3), "nor does a writer pass a reader");
    party_end(p, 2, r2);
    cr_assert(party_is_open(p, 3));
}

PARTY_TEST(bracket, timeouts_and_tries, NULL)
{
    struct msg_begin_params params = {.bracket = 500, .write = LEASES(0), .timeout_ns = 1000};

    params.write = LEASES(p->a[1]);
    uint64_t w0 = party_begun(p, 0, p->a[0], true);
    h_begin_as(&p->h, p->conn[1], params);
    party_begin(p, 2, p->a[2], false);
    cr_assert_eq(core_deadline_ns(p->h.core), p->h.now_ns + 1000);
    h_tick(&p->h, 999);
    cr_assert(party_waits(p, 1));
    h_tick(&p->h, 1);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_TIMEOUT);
    cr_assert(strstr(p->h.replies[p->conn[1]].text, "\"a\""), "it names the array");
    params.nowait = true;
    h_begin_as(&p->h, p->conn[1], params);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_TIMEOUT);
    party_end(p, 0, w0);
    cr_assert(party_is_open(p, 2), "who has given up is out of the way");
    params.write = NO_LEASES;
    params.read = LEASES(p->a[1]);
    h_begin_as(&p->h, p->conn[1], params);
    cr_assert(party_is_open(p, 1));
    params.bracket = 501;
    params.timeout_ns = UINT64_MAX;
    params.nowait = false;
    params.read = NO_LEASES;
    params.write = LEASES(p->a[3]);
    h_begin_as(&p->h, p->conn[3], params);
    h_tick(&p->h, UINT64_C(1) << 62);
    cr_assert(party_waits(p, 3), "no timeout is too long");
}

/* ---- deadlocks ---- */

/* The circle goes through one that waits itself, behind which others wait. */
PARTY_TEST(bracket, a_circle_through_the_queue, NULL)
{
    uint64_t held = party_begun(p, 0, p->a[0], true);
    uint64_t b1 = party_begun(p, 1, p->b[1], true);
    uint64_t both = party_begin_many(p, 2, LEASES(p->a[2], p->b[2]), NO_LEASES, 0);
    party_begin(p, 3, p->a[3], false);
    cr_assert(party_waits(p, 2) && party_waits(p, 3));
    party_begin(p, 1, p->a[1], true);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_DEADLOCK,
                 "it waits for a reader who waits for what it writes");
    party_end(p, 0, held);
    cr_assert(party_waits(p, 2) && party_is_open(p, 3));
    party_end(p, 1, b1);
    cr_assert(party_is_open(p, 2));
    party_end(p, 2, both);
}

/* It reads again while it waits for another array; its first reading ends, so that a writer has his
 * turn between: it waits for him, though it was ready before. */
PARTY_TEST(bracket, a_circle_through_a_turn_that_has_passed, NULL)
{
    uint64_t c0 = h_create_now(&p->h, p->conn[0], "c", NULL, 100)->lease;
    uint64_t c1 = h_open(&p->h, p->conn[1], "c", NULL, "r")->lease;
    uint64_t outer = party_begun(p, 0, p->a[0], false);
    uint64_t held = party_begun(p, 0, c0, true);
    uint64_t b2 = party_begun(p, 2, p->b[2], true);
    uint64_t w1 = party_begin(p, 1, p->a[1], true);
    uint64_t both = party_begin_many(p, 0, LEASES(p->a[0], p->b[0]), NO_LEASES, 0);
    cr_assert(party_waits(p, 0) && party_waits(p, 1));
    party_end(p, 0, outer);
    cr_assert(party_is_open(p, 1));
    party_begin(p, 1, c1, false);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_DEADLOCK);
    party_end(p, 2, b2);
    cr_assert(party_waits(p, 0));
    party_end(p, 1, w1);
    cr_assert(party_is_open(p, 0));
    party_end(p, 0, both);
    party_end(p, 0, held);
}

/* ---- fences ---- */

PARTY_TEST(bracket, what_is_left_to_wait_for, NULL)
{
    const struct h_reply *r1 = &p->h.replies[2], *r2 = &p->h.replies[3];

    cr_assert(p->conn[1] == 2 && p->conn[2] == 3);
    uint64_t w = party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 3);
    uint64_t b1 = party_begun(p, 1, p->a[1], false);
    cr_assert_eq(r1->n_fences, 1);
    cr_assert_eq(r1->n_pages, 1);
    cr_assert_eq(r1->fences[0].page, p->page[0]);
    cr_assert_eq(r1->fences[0].slot, 3);
    cr_assert_eq(r1->fences[0].value, w);
    uint64_t r = party_end_at(p, 1, b1, 0);
    uint64_t b2 = party_begun(p, 2, p->a[2], true);
    cr_assert_eq(r2->n_fences, 2, "a writer waits for the writer and for who has read since");
    cr_assert_eq(r2->fences[1].page, p->page[1]);
    cr_assert_eq(r2->fences[1].value, r);
    h_end_as(&p->h, p->conn[2], (struct msg_end_params){.bracket = b2, .undone = true});
    party_begun(p, 1, p->a[1], false);
    cr_assert_eq(r1->n_fences, 1, "what was not done changes nothing");
    cr_assert_eq(r1->n_pages, 0, "an fd is sent once (I3)");
    h_land(&p->h, p->page[0], 3, w);
    party_begun(p, 3, p->a[3], false);
    cr_assert_eq(p->h.replies[p->conn[3]].n_fences, 0, "what has passed is not waited for");
    cr_assert_eq(p->h.replies[p->conn[3]].n_pages, 0);
}

PARTY_TEST(bracket, fences_replace_each_other, NULL)
{
    const struct h_reply *r3;

    r3 = &p->h.replies[p->conn[3]];
    party_end_at(p, 1, party_begun(p, 1, p->a[1], false), 5);
    uint64_t second = party_end_at(p, 1, party_begun(p, 1, p->a[1], false), 5);
    uint64_t w3 = party_begun(p, 3, p->a[3], true);
    cr_assert_eq(r3->n_fences, 1, "one for each slot: the highest value");
    cr_assert_eq(r3->fences[0].value, second);
    uint64_t w = party_end_at(p, 3, w3, 0);
    uint64_t w0 = party_begun(p, 0, p->a[0], true);
    cr_assert_eq(p->h.replies[p->conn[0]].n_fences, 1,
                 "a write stands for what came before it");
    cr_assert_eq(p->h.replies[p->conn[0]].fences[0].value, w);
    party_end(p, 0, w0);
    party_begun(p, 2, p->a[2], true);
    cr_assert_eq(p->h.replies[p->conn[2]].n_fences, 0, "and what is all done for everything");
}

/* A slot that both arrays wait for is told once, the later value. */
PARTY_TEST(bracket, fences_of_several_arrays, NULL)
{
    const struct h_reply *r2;

    r2 = &p->h.replies[p->conn[2]];
    party_end_at(p, 1, party_begun(p, 1, p->b[1], true), 2);
    uint64_t first = party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 1);
    uint64_t second = party_end_at(p, 0, party_begun(p, 0, p->b[0], false), 1);
    cr_assert_gt(second, first);
    party_begin_many(p, 2, LEASES(p->a[2]), LEASES(p->b[2]), 0);
    cr_assert(party_is_open(p, 2));
    cr_assert_eq(r2->n_fences, 2);
    cr_assert_eq(r2->fences[0].value, second);
    cr_assert(r2->fences[0].data, "of the read, and of the write before it, too");
    cr_assert_eq(r2->fences[1].page, p->page[1]);
}

static void
many_pages(struct core_config *config)
{
    config->limits.pages = 1000;
    config->limits.brackets = 5000;
}

/* Own pages are known; those of others come with the first reply that needs them, as many as
 * fit. */
CAID_TEST(bracket, more_fences_than_a_packet_holds)
{
    static struct party p;
    uint64_t pages[230], n_seen = 0;

    party_init(&p, many_pages);
    for (int i = 0; i < 230; i++) {
        pages[i] = h_page_new(&p.h, p.conn[0]);
        uint64_t bracket = party_begun(&p, 0, p.a[0], false);
        for (uint64_t slot = 0; slot < TIMELINE_SLOTS; slot++) {
            h_end_at(&p.h, p.conn[0], bracket, pages[i], slot);
            bracket = party_begun(&p, 0, p.a[0], false);
        }
        party_end(&p, 0, bracket);
    }
    uint64_t w = party_begun(&p, 1, p.a[1], true);
    const struct h_reply *r = &p.h.replies[p.conn[1]];
    cr_assert(r->more);
    cr_assert_lt(r->n_pages, 230);
    while (r->more) {
        n_seen += r->n_fences;
        uint64_t page = pages[n_seen / TIMELINE_SLOTS - (n_seen % TIMELINE_SLOTS == 0)];
        uint64_t slot = (n_seen - 1) % TIMELINE_SLOTS;
        cr_assert_eq(h_fences(&p.h, p.conn[1], w, page, slot)->error, 0);
        cr_assert_eq(r->fences[0].slot, n_seen % TIMELINE_SLOTS);
    }
    cr_assert_eq(n_seen + r->n_fences, 230 * TIMELINE_SLOTS);
    cr_assert_eq(h_fences(&p.h, p.conn[1], w, 0, 0)->n_pages, 0);
    cr_assert_eq(h_fences(&p.h, p.conn[1], w, UINT64_MAX, 0)->n_fences, 0);
    cr_assert_eq(h_fences(&p.h, p.conn[1], w + 1, 0, 0)->error, PROTO_ERR_INVALID);
    h_deinit(&p.h);
}

/* ---- bad input ---- */

PARTY_TEST(bracket, begins_that_are_refused, NULL)
{
    static uint64_t many[PROTO_BEGIN_MAX + 1];
    struct msg_begin_params params = {.bracket = 77};

    uint64_t ro = h_open(&p->h, p->conn[0], "a", NULL, "r")->lease;
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = p->a[0];

    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, PROTO_ERR_INVALID, "no array");
    params.write = LEASES(ro);
    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, PROTO_ERR_PERMISSION);
    params.write = LEASES(12345);
    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, PROTO_ERR_INVALID, "no lease");
    params.write = LEASES(p->a[0]);
    params.read = LEASES(ro);
    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, PROTO_ERR_INVALID, "twice");
    params.write = NO_LEASES;
    struct msg_begin_params zero = params;
    zero.bracket = 0;
    cr_assert_eq(h_request(&p->h, p->conn[0], MSG_BEGIN, &zero)->error, PROTO_ERR_INVALID);
    params.read = (struct msg_u64s){many, ARRAY_SIZE(many)};
    cr_assert_eq(h_request(&p->h, p->conn[0], MSG_BEGIN, &params)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_counts(&p->h).brackets, 0);

    params.read = LEASES(ro);
    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, 0);
    params.read = LEASES(p->b[0]);
    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, PROTO_ERR_INVALID,
                 "begun twice");
    party_end(p, 0, 77);
    cr_assert_eq(h_begin_as(&p->h, p->conn[0], params)->error, 0, "a number is used again");
}

PARTY_TEST(bracket, who_uses_what_is_shown, NULL)
{
    party_begun(p, 0, p->a[0], false);
    party_begun(p, 0, p->a[0], false);
    party_begun(p, 1, p->b[1], true);
    party_begin(p, 2, p->a[2], true);
    party_begin(p, 3, p->a[3], false);
    cr_assert_eq(party_entry(p, "a")->readers, 2);
    cr_assert_eq(party_entry(p, "a")->writers, 0);
    cr_assert_eq(party_entry(p, "a")->waiting, 2);
    cr_assert_eq(party_entry(p, "b")->writers, 1);
    uint64_t asker = h_connect(&p->h, 1000, 1000);
    const struct h_reply *r = h_show(&p->h, asker, "a", NULL);
    uint64_t reading = 0, waiting = 0;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        reading += r->holders[i].pid == 100 + p->conn[0] ? r->holders[i].reading : 0;
        waiting += r->holders[i].waiting;
        cr_assert_eq(r->holders[i].writing, 0);
    }
    cr_assert_eq(reading, 2);
    cr_assert_eq(waiting, 2);
}

/* Ends its connection, and nobody else's (I6). */
static void
expect_violation(void (*offend)(struct party *p, uint64_t bracket))
{
    struct party p;

    party_init(&p, NULL);
    uint64_t bracket = party_begun(&p, 0, p.a[0], true);
    party_begin(&p, 1, p.a[1], false);
    offend(&p, bracket);
    cr_assert(p.h.closed[p.conn[0]]);
    cr_assert_not(p.h.closed[p.conn[1]]);
    cr_assert(party_waits(&p, 1));
    h_hangup(&p.h, p.conn[0]);
    cr_assert_eq(party_error(&p, 1), PROTO_ERR_ABANDONED);
    h_deinit(&p.h);
}

static void
end_what_is_not(struct party *p, uint64_t bracket)
{
    h_end(&p->h, p->conn[0], bracket + 1);
}

static void
end_what_waits(struct party *p, uint64_t bracket)
{
    uint64_t other = p->h.next_id + 1;

    (void)bracket;
    party_begun(p, 1, p->b[1], true);
    h_begin(&p->h, p->conn[0], p->b[0], true);
    party_begin(p, 1, p->a[1], false);
    h_end(&p->h, p->conn[0], other + 1);
}

static void
end_in_anothers_page(struct party *p, uint64_t bracket)
{
    h_end_at(&p->h, p->conn[0], bracket, p->page[1], 0);
}

static void
end_in_no_slot(struct party *p, uint64_t bracket)
{
    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = bracket,
                                     .page = p->page[0],
                                     .slot = TIMELINE_SLOTS,
                                     .value = 1});
}

static void
end_with_what_was_not_submitted(struct party *p, uint64_t bracket)
{
    uint64_t value = h_submit(&p->h, p->page[0], 0) + 1;

    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = bracket, .page = p->page[0], .value = value});
}

static void
end_with_no_value_at_all(struct party *p, uint64_t bracket)
{
    atomic_store(&h_slot(&p->h, p->page[0], 0)->submitted, UINT64_MAX);
    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = bracket,
                                     .page = p->page[0],
                                     .value = TIMELINE_DEAD});
}

static void
end_backwards(struct party *p, uint64_t bracket)
{
    h_submit(&p->h, p->page[0], 0);
    h_end_at(&p->h, p->conn[0], party_begun(p, 0, p->b[0], false), p->page[0], 0);
    cr_assert_not(p->h.closed[p->conn[0]]);
    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = bracket, .page = p->page[0], .value = 1});
}

static void
end_in_a_page_that_was_given_up(struct party *p, uint64_t bracket)
{
    uint64_t value = h_submit(&p->h, p->page[0], 0);

    h_drop_page(&p->h, p->conn[0], p->page[0]);
    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = bracket, .page = p->page[0], .value = value});
}

CAID_TEST(bracket, violations)
{
    expect_violation(end_what_is_not);
    expect_violation(end_what_waits);
    expect_violation(end_in_anothers_page);
    expect_violation(end_in_no_slot);
    expect_violation(end_with_what_was_not_submitted);
    expect_violation(end_with_no_value_at_all);
    expect_violation(end_backwards);
    expect_violation(end_in_a_page_that_was_given_up);
}

/* Readings of one thread that overlap: a later one passes the writer only while an earlier one
 * is open that he has found there. */
PARTY_TEST(bracket, overlapping_reads_do_not_keep_a_writer_out, NULL)
{
    uint64_t first = party_begun(p, 0, p->a[0], false);
    party_begin(p, 1, p->a[1], true);
    uint64_t second = party_begun(p, 0, p->a[0], false);
    party_end(p, 0, party_begun(p, 0, p->a[0], false));
    party_end(p, 0, first);
    party_begin(p, 0, p->a[0], false);
    cr_assert_eq(party_error(p, 0), PROTO_ERR_DEADLOCK, "it would wait for the second one");
    party_end(p, 0, second);
    cr_assert(party_is_open(p, 1));
}

/* One that reads again while it waits for another array, and whose first reading ends meanwhile. */
PARTY_TEST(bracket, a_circle_that_closes_at_a_turn, NULL)
{
    struct msg_str name = MSG_STR("c");

    uint64_t c = h_create_now(&p->h, p->conn[0], "c", NULL, 100)->lease;
    uint64_t c_of_1 = h_request(&p->h, p->conn[1], MSG_OPEN,
                                &(struct msg_open_params){.names = {.v = &name, .n = 1},
                                                          .mode = MSG_STR("rw")})
                          ->lease;
    uint64_t reads_a = party_begun(p, 0, p->a[0], false);
    party_begun(p, 0, c, false);
    uint64_t writes_b = party_begun(p, 2, p->b[2], true);
    party_begin(p, 1, p->a[1], true); /* started, and not waited for: then another one */
    party_begin(p, 1, c_of_1, true);
    party_begin_many(p, 0, LEASES(p->a[0], p->b[0]), NO_LEASES, 0);
    cr_assert(party_waits(p, 0));
    party_end(p, 0, reads_a); /* so that the writer of "a" is let in */
    cr_assert(party_waits(p, 0));
    party_end(p, 2, writes_b);
    cr_assert_eq(party_error(p, 0), PROTO_ERR_DEADLOCK);
}

static void
few_brackets(struct core_config *config)
{
    config->limits.brackets = 3;
}

/* Fences that nobody has looked at since they have passed are charged until they are in the way. */
PARTY_TEST(bracket, passed_fences_do_not_use_up_the_limit, few_brackets)
{
    uint64_t value = party_end_at(p, 0, party_begun(p, 0, p->a[0], true), 0);
    uint64_t other = party_end_at(p, 0, party_begun(p, 0, p->b[0], true), 1);
    party_begin_many(p, 1, LEASES(p->a[1], p->b[1]), NO_LEASES, 0);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_LIMIT, "2 pending fences, and 2 arrays");
    h_land(&p->h, p->page[0], 0, value);
    h_land(&p->h, p->page[0], 1, other);
    party_begin_many(p, 0, LEASES(p->a[0], p->b[0]), NO_LEASES, 0);
    cr_assert(party_is_open(p, 0), "its own have passed");
}

/* ---- ranges ---- */

static uint64_t
begun_range(struct party *p, int i, bool write, uint64_t from, uint64_t end)
{
    uint64_t bracket = party_begin_range(p, i, p->a[i], write, from, end);

    cr_assert(party_is_open(p, i), "%s", p->h.replies[p->conn[i]].text);
    return bracket;
}

/* Those of one thread, too. */
PARTY_TEST(bracket, ranges_that_do_not_overlap_go_side_by_side, NULL)
{
    begun_range(p, 0, true, 0, 50);
    begun_range(p, 0, true, 50, 60);
    begun_range(p, 1, false, 60, 100);
    party_begin(p, 2, p->a[2], false);
    cr_assert(party_waits(p, 2), "who reads all waits for the writers");
    party_begin_range(p, 3, p->a[3], true, 70, 80);
    cr_assert(party_waits(p, 3), "a reader of the range, and one of all who came before");
    party_begin_range(p, 0, p->a[0], true, 49, 51);
    cr_assert_eq(party_error(p, 0), PROTO_ERR_DEADLOCK, "a byte of its own is enough");
    const struct msg_entry *entry = party_entry(p, "a");
    cr_assert(entry->writers == 2 && entry->readers == 1 && entry->waiting == 2);
}

PARTY_TEST(bracket, a_queue_of_ranges_is_in_order, NULL)
{
    uint64_t open = begun_range(p, 0, true, 0, 10);
    uint64_t wide = party_begin_range(p, 1, p->a[1], true, 0, 50);
    party_begin_range(p, 2, p->a[2], false, 40, 60);
    cr_assert(party_waits(p, 2), "behind a writer that waits, where they overlap");
    uint64_t beside = begun_range(p, 3, false, 50, 60);
    party_end(p, 3, beside);
    party_end(p, 0, open);
    cr_assert(party_is_open(p, 1) && party_waits(p, 2));
    party_end(p, 1, wide);
    cr_assert(party_is_open(p, 2));
    uint64_t held = begun_range(p, 0, true, 0, 10);
    party_begin_range(p, 1, p->a[1], true, 0, 100);
    party_begin_range(p, 3, p->a[3], true, 90, 100);
    cr_assert(party_waits(p, 3));
    h_hangup(&p->h, p->conn[1]);
    cr_assert(party_is_open(p, 3), "who kept it waiting has gone");
    party_end(p, 0, held);
}

PARTY_TEST(bracket, a_writer_of_a_range_waits_behind_readers, NULL)
{
    uint64_t writes = begun_range(p, 0, true, 0, 10);
    party_begin(p, 1, p->a[1], false);
    party_begin_range(p, 2, p->a[2], true, 90, 100);
    cr_assert(party_waits(p, 1) && party_waits(p, 2),
              "the reader came first, and reads that, too");
    party_end(p, 0, writes);
    cr_assert(party_is_open(p, 1) && party_waits(p, 2));
}

/* It waits for what is open there, and not for whom its thread keeps waiting. */
PARTY_TEST(bracket, a_thread_that_reads_a_range_may_read_more, NULL)
{
    uint64_t writes = begun_range(p, 1, true, 50, 100);
    begun_range(p, 0, false, 0, 50);
    party_begin_range(p, 2, p->a[2], true, 0, 20);
    cr_assert(party_waits(p, 2));
    begun_range(p, 0, false, 10, 30);
    party_begin(p, 0, p->a[0], false);
    cr_assert(party_waits(p, 0), "for the writer");
    party_end(p, 1, writes);
    cr_assert(party_is_open(p, 0) && party_waits(p, 2));
    party_begin_range(p, 3, p->a[3], true, 60, 70);
    party_begin_range(p, 3, p->a[3], false, 0, 10);
    cr_assert(party_waits(p, 3), "others read behind the writer");
}

static bool
is_told(struct party *p, int i, int of, uint64_t slot)
{
    const struct h_reply *reply = &p->h.replies[p->conn[i]];

    for (uint32_t j = 0; j < reply->n_fences; j++)
        if (reply->fences[j].page == p->page[of] && reply->fences[j].slot == slot)
            return true;
    return false;
}

/* A write stands for those alone that lie in its range. */
PARTY_TEST(bracket, fences_go_by_range, NULL)
{
    party_end_at(p, 0, begun_range(p, 0, true, 0, 50), 0);
    party_end_at(p, 0, begun_range(p, 0, true, 50, 100), 1);
    party_end_at(p, 1, begun_range(p, 1, false, 0, 10), 0);
    cr_assert(is_told(p, 1, 0, 0) && !is_told(p, 1, 0, 1));
    uint64_t reads = party_begun(p, 2, p->a[2], false);
    cr_assert(is_told(p, 2, 0, 0) && is_told(p, 2, 0, 1), "who reads all waits for all");
    party_end(p, 2, reads);
    party_end_at(p, 2, begun_range(p, 2, true, 0, 20), 0);
    cr_assert(is_told(p, 2, 0, 0) && is_told(p, 2, 1, 0), "the reader, too");
    party_end(p, 3, begun_range(p, 3, true, 0, 100));
    cr_assert(is_told(p, 3, 0, 0) && is_told(p, 3, 2, 0) && !is_told(p, 3, 1, 0),
              "the write before does not lie in that of a part of it");
    party_begun(p, 3, p->a[3], true);
    cr_assert_eq(p->h.replies[p->conn[3]].n_fences, 0, "that of all stands for all");
}

PARTY_TEST(bracket, abandoned_ranges, NULL)
{
    begun_range(p, 0, true, 10, 20);
    uint64_t others = begun_range(p, 1, false, 20, 30);
    h_disconnect(&p->h, p->conn[0]);
    cr_assert(party_is_abandoned(p), "it is, for who looks at all of it");
    party_end(p, 1, others);
    party_end(p, 1, begun_range(p, 1, false, 20, 100));
    party_begin(p, 2, p->a[2], false);
    cr_assert_eq(party_error(p, 2), PROTO_ERR_ABANDONED);
    party_begin_range(p, 2, p->a[2], false, 0, 11);
    cr_assert_eq(party_error(p, 2), PROTO_ERR_ABANDONED);
    party_end(p, 2, begun_range(p, 2, true, 0, 19));
    cr_assert(party_is_abandoned(p), "not all of it is written anew");
    party_end(p, 2, begun_range(p, 2, true, 5, 20));
    cr_assert_not(party_is_abandoned(p));
    begun_range(p, 1, true, 0, 1);
    h_disconnect(&p->h, p->conn[1]);
    cr_assert(party_is_abandoned(p));
    h_discard(&p->h, p->conn[2], p->a[2]);
    cr_assert_not(party_is_abandoned(p));
}

/* Too many torn ranges are all of the array, which a write of one does not make whole. */
PARTY_TEST(bracket, too_many_abandoned_ranges, NULL)
{
    for (uint64_t i = 0; i <= TORN_MAX; i++) {
        struct msg_end_params end = {.abandon = true};
        party_end(p, 1, begun_range(p, 1, false, 99, 100));
        end.bracket = begun_range(p, 0, true, i, i + 1);
        h_end_as(&p->h, p->conn[0], end);
    }
    party_begin_range(p, 1, p->a[1], false, 99, 100);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_ABANDONED);
    party_end(p, 2, begun_range(p, 2, true, 0, 99));
    cr_assert(party_is_abandoned(p));
    party_end(p, 2, party_begun(p, 2, p->a[2], true));
    cr_assert_not(party_is_abandoned(p));
}

static void
many_brackets(struct core_config *config)
{
    config->limits.brackets = 4 * SECTIONS_MAX;
}

/* One more has the whole array: it waits for the others, and they for it. */
PARTY_TEST(bracket, too_many_ranges, many_brackets)
{
    uint64_t brackets[SECTIONS_MAX];
    const uint64_t two[] = {95, 96, 97, 98}, one[] = {0, 1};
    const struct msg_begin_params params = {.bracket = 900,
                                            .read = LEASES(p->a[2], p->a[2]),
                                            .read_ranges = {two, 4},
                                            .write = LEASES(p->a[2]),
                                            .write_ranges = {one, 2}};

    for (uint64_t i = 0; i < SECTIONS_MAX; i++)
        brackets[i] = begun_range(p, 0, true, i, i + 1);
    h_begin_as(&p->h, p->conn[2], params);
    party_begin_range(p, 1, p->a[1], true, 98, 99);
    for (uint64_t i = 0; i < SECTIONS_MAX; i++) {
        cr_assert(party_waits(p, 2) && party_waits(p, 1));
        party_end_at(p, 0, brackets[i], 0);
    }
    cr_assert(party_is_open(p, 2) && party_waits(p, 1));
    party_end(p, 2, 900);
    cr_assert(party_is_open(p, 1));
    party_begin_range(p, 2, p->a[2], true, 0, 1);
    cr_assert(party_waits(p, 2), "it has all of it");
    h_disconnect(&p->h, p->conn[1]);
    h_land(&p->h, p->page[0], 0, SECTIONS_MAX);
    begun_range(p, 3, true, 90, 91); /* what has passed is out of the way */
}

/* What it has not written it does not make whole, nor is it told that what it reads is. */
PARTY_TEST(bracket, too_many_ranges_of_what_is_torn, many_brackets)
{
    uint64_t brackets[SECTIONS_MAX];
    const uint64_t two[] = {90, 91, 95, 96}, one[] = {92, 93};
    struct msg_begin_params params = {.bracket = 900,
                                      .write = LEASES(p->a[2], p->a[2]),
                                      .write_ranges = {two, 4}};

    for (uint64_t i = 0; i < SECTIONS_MAX; i++)
        brackets[i] = begun_range(p, 0, true, i, i + 1);
    h_begin_as(&p->h, p->conn[2], params);
    h_end_as(&p->h, p->conn[0],
             (struct msg_end_params){.bracket = brackets[0], .abandon = true});
    for (uint64_t i = 1; i < SECTIONS_MAX; i++)
        party_end(p, 0, brackets[i]);
    cr_assert(party_is_open(p, 2));
    party_end(p, 2, 900);
    cr_assert(party_is_abandoned(p), "0 is not written anew");
    for (uint64_t i = 1; i < SECTIONS_MAX; i++)
        brackets[i] = begun_range(p, 0, true, i, i + 1);
    params.bracket = 901;
    params.read = LEASES(p->a[2]);
    params.read_ranges = (struct msg_u64s){one, 2};
    h_begin_as(&p->h, p->conn[2], params);
    for (uint64_t i = 1; i < SECTIONS_MAX; i++)
        party_end(p, 0, brackets[i]);
    cr_assert_eq(party_error(p, 2), PROTO_ERR_ABANDONED);
    party_end(p, 2, begun_range(p, 2, true, 0, 1));
    cr_assert_not(party_is_abandoned(p));
}

PARTY_TEST(bracket, ranges_that_are_none, NULL)
{
    static const uint64_t wrong[][2] = {{5, 5}, {7, 5}, {0, 101}, {100, 101}, {5, 0}};
    const uint64_t both[] = {0, 50, 49, 60}, apart[] = {0, 50, 50, 60};
    struct msg_begin_params params = {.bracket = 900, .write = LEASES(p->a[1], p->a[1])};

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        party_begin_range(p, 0, p->a[0], true, wrong[i][0], wrong[i][1]);
        cr_assert_eq(party_error(p, 0), PROTO_ERR_INVALID);
    }
    party_end(p, 0, begun_range(p, 0, true, 0, 0));
    params.write_ranges = (struct msg_u64s){both, 2};
    h_begin_as(&p->h, p->conn[1], params);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_INVALID, "a range for each");
    params.write_ranges.n = 4;
    h_begin_as(&p->h, p->conn[1], params);
    cr_assert_eq(party_error(p, 1), PROTO_ERR_INVALID, "they overlap");
    params.write_ranges.v = apart;
    h_begin_as(&p->h, p->conn[1], params);
    cr_assert(party_is_open(p, 1), "an array may be there twice");
    party_end(p, 1, 900);
}
