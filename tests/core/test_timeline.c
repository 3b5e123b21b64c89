/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines and the names that they may have: who gets which fd, how long they stay, who
 * is let go.
 */
#include "harness.h"

#include <stdio.h>

#include "caid_test.h"

#define SWEEP_NS UINT64_C(10000000)

static struct h_reply *
timelines(struct harness *h, uint64_t conn, const char *pool, const char *after)
{
    struct msg_timelines_params params = {.pool = msg_str_opt(pool),
                                          .after = msg_str_opt(after),
                                          .all = !pool};

    return h_request(h, conn, MSG_TIMELINES, &params);
}

/* The others' books are the harness's: which fd, once, after it was sealed. */
CORE_TEST(timeline, created_and_opened, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t page = h_page_new(h, a);
    cr_assert_not(h_page(h, page)->sealed);
    cr_assert_eq(h_open_timeline(h, b, "t", NULL)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_timeline(h, a, "t", NULL, page)->error, 0);
    cr_assert(h_page(h, page)->sealed, "who names a page has mapped it");
    cr_assert_eq(h_open_timeline(h, b, "t", NULL)->n_pages, 1);
    cr_assert_eq(h->replies[b].page, page);
    cr_assert_eq(h_open_timeline(h, b, "t", NULL)->n_pages, 0, "once (I3)");
    cr_assert_eq(h_open_timeline(h, a, "t", NULL)->n_pages, 0, "its creator has it");
    h_drop_page(h, b, page);
    cr_assert_eq(h_open_timeline(h, b, "t", NULL)->n_pages, 1, "unmapped, and wanted again");
}

CORE_TEST(timeline, listed, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    uint64_t page = h_page_new(h, a);
    h_timeline(h, a, "x", "open", page);
    h_timeline(h, a, "ab", NULL, h_page_new(h, a));
    h_timeline(h, a, "a", NULL, h_page_new(h, a));
    h_submit(h, page, 0);
    h_submit(h, page, 0);
    h_land(h, page, 0, 1);
    h_open_timeline(h, b, "x", "open");
    cr_assert_eq(timelines(h, a, "uid:1000", NULL)->n_entries, 2);
    cr_assert_str_eq(h->replies[a].names[0], "a");
    cr_assert_str_eq(h->replies[a].names[1], "ab");
    cr_assert_eq(timelines(h, a, "uid:1000", "a")->n_entries, 1);
    cr_assert_eq(timelines(h, a, "uid:1000", "ab")->n_entries, 0);
    cr_assert_eq(timelines(h, a, NULL, NULL)->n_entries, 3, "all pools");
    cr_assert_eq(timelines(h, b, NULL, NULL)->n_entries, 1, "that may be read");
    const struct msg_timeline_entry *t = &h->replies[b].timelines[0];
    cr_assert_eq(t->value, 1);
    cr_assert_eq(t->submitted, 2);
    cr_assert_eq(t->holders, 1);
    cr_assert_eq(t->pid, 100 + a);
    cr_assert_eq(t->uid, 1000);
    cr_assert_eq(timelines(h, b, "uid:1000", NULL)->error, PROTO_ERR_NOT_FOUND);
    timeline_kill(h_slot(h, page, 0));
    cr_assert_eq(timelines(h, b, "open", NULL)->timelines[0].value, 1);
    cr_assert_eq(h->replies[b].timelines[0].submitted, 1, "no more will come");
    h_request(h, b, MSG_STATUS, &(struct msg_none){});
    cr_assert_eq(h->replies[b].status.timelines, 3);
}

/* Of any length: what comes after a name that none can have. */
CORE_TEST(timeline, listed_after_what_is_too_long, NULL)
{
    char longest[PROTO_NAME_MAX + 1], name[400];

    memset(longest, 'x', PROTO_NAME_MAX);
    longest[PROTO_NAME_MAX] = '\0';
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    uint64_t a = h_connect(h, 1000, 1000);
    h_timeline(h, a, "a", NULL, h_page_new(h, a));
    h_timeline(h, a, longest, NULL, h_page_new(h, a));
    h_timeline(h, a, "y", NULL, h_page_new(h, a));
    cr_assert_eq(timelines(h, a, "uid:1000", name)->n_entries, 1);
    cr_assert_str_eq(h->replies[a].names[0], "y");
    name[PROTO_NAME_MAX] = 'a';
    cr_assert_eq(timelines(h, a, "uid:1000", name)->n_entries, 1);
    name[PROTO_NAME_MAX - 1] = 'a';
    cr_assert_eq(timelines(h, a, "uid:1000", name)->n_entries, 2);
}

static void
many(struct core_config *config)
{
    config->limits.pages = 1000;
}

CORE_TEST(timeline, names_and_permissions, NULL)
{
    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 2, 10), c = h_connect(h, 3, 3);
    uint64_t page = h_page_new(h, a), other = h_page_new(h, b);
    cr_assert_eq(h_timeline(h, a, "", NULL, page)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_timeline(h, a, "t", "none", page)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_timeline(h, b, "t", "shared", other)->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(h_timeline(h, c, "t", "shared", page)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_timeline(h, b, "t", NULL, page)->error, PROTO_ERR_INVALID, "another's page");
    cr_assert_eq(h_timeline(h, a, "t", NULL, 999)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_timeline(h, a, "t", "shared", page)->error, 0);
    cr_assert_eq(h_timeline(h, a, "u", "shared", page)->error, PROTO_ERR_INVALID,
                 "it has a name");
    page = h_page_new(h, a);
    cr_assert_eq(h_timeline(h, a, "t", "shared", page)->error, PROTO_ERR_EXISTS);
    cr_assert_eq(h_timeline(h, a, "t", NULL, page)->error, 0, "another pool");
    cr_assert_eq(h_create_now(h, a, "t", NULL, 1)->error, 0, "arrays have their own names");
    cr_assert_eq(h_open_timeline(h, b, "t", "shared")->error, 0, "reading is enough");
    cr_assert_eq(h_open_timeline(h, c, "t", "shared")->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_open_timeline(h, c, "\n", "shared")->error, PROTO_ERR_INVALID_NAME);
}

CORE_TEST(timeline, given_up, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t page = h_page_new(h, a);
    h_timeline(h, a, "t", NULL, page);
    h_open_timeline(h, b, "t", NULL);
    h_submit(h, page, 0);
    h_submit(h, page, 7);
    h_drop_page(h, a, page);
    cr_assert_eq(h_open_timeline(h, b, "t", NULL)->error, PROTO_ERR_NOT_FOUND);
    h_tick(h, SWEEP_NS);
    cr_assert(h_page(h, page), "values are on their way");
    cr_assert_eq(h_timeline(h, a, "u", NULL, page)->error, PROTO_ERR_INVALID);
    h_land(h, page, 0, 1);
    h_tick(h, SWEEP_NS);
    cr_assert(h_page(h, page));
    h_land(h, page, 7, 1);
    cr_assert_leq(core_deadline_ns(h->core), h->now_ns + SWEEP_NS, "it is looked at again");
    h_tick(h, SWEEP_NS);
    cr_assert(h_page(h, page)->killed);
    cr_assert(timeline_is_dead(h_slot(h, page, 3)), "who waits is let go");
    h_drop_page(h, b, page);
    cr_assert_not(h_page(h, page), "with who held it last");
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
    h_drop_page(h, a, page);
    uint64_t idle = h_page_new(h, a);
    h_drop_page(h, a, idle);
    cr_assert_not(h_page(h, idle), "at once, where nothing is on its way");
    cr_assert_not(h->closed[a]);
}

CORE_TEST(timeline, given_up_and_gone, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t page = h_page_new(h, a), second = h_page_new(h, a);
    h_submit(h, page, 0);
    h_submit(h, second, 0);
    h_drop_page(h, a, page);
    h_drop_page(h, a, second);
    h_hangup(h, a);
    h_tick(h, SWEEP_NS);
    h_land(h, second, 0, 1);
    h_tick(h, SWEEP_NS);
    cr_assert_not(h_page(h, second));
    h_exit(h, a);
    cr_assert_not(h_page(h, page));
    cr_assert_eq(h_counts(h).pages, 0);
    h_drop_page(h, b, page);
    cr_assert_not(h->closed[b]);
}

/* Its owner's exit matters as long as somebody has it open. */
CORE_TEST(timeline, given_up_by_who_lives_on, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    uint64_t pages[] = {h_page_new(h, a), h_page_new(h, a)};
    h_timeline(h, a, "t", "open", pages[0]);
    h_open_timeline(h, b, "t", "open");
    h_submit(h, pages[1], 0);
    h_drop_page(h, a, pages[0]);
    h_drop_page(h, a, pages[1]);
    h_hangup(h, a);
    h_drop_page(h, b, pages[0]);
    cr_assert_not(h->forgotten[a], "a value is on its way");
    cr_assert_eq(h_counts(h).departed, 1);
    h_land(h, pages[1], 0, 1);
    h_tick(h, SWEEP_NS);
    cr_assert(h->forgotten[a]);
    cr_assert_eq(h_counts(h).departed, 0);
    cr_assert_eq(h_counts(h).users, 1);
    h_exit(h, a); /* it is no news */

    a = h_connect(h, 1000, 1000);
    pages[0] = h_page_new(h, a);
    h_timeline(h, a, "t", "open", pages[0]);
    h_open_timeline(h, b, "t", "open");
    h_drop_page(h, a, pages[0]);
    cr_assert(h_hangup(h, a));
    h_hangup(h, b);
    cr_assert(h->forgotten[a]);
}

/* What others wait for keeps a page, whatever its owner says that he has submitted. */
CORE_TEST(timeline, given_up_by_a_liar, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = h_create_now(h, a, "x", NULL, 100)->lease, page = h_page_new(h, a);
    h_end_at(h, a, h_begun(h, a, lease, true), page, 3);
    h_begun(h, b, h_open(h, b, "x", NULL, "rw")->lease, false);
    cr_assert_eq(h->replies[b].n_fences, 1);
    atomic_store(&h_slot(h, page, 3)->submitted, 0);
    h_drop_page(h, a, page);
    cr_assert_not(timeline_is_dead(h_slot(h, page, 3)));
    h_land(h, page, 3, 1);
    h_tick(h, SWEEP_NS);
    cr_assert(h_page(h, page)->killed);
    h_hangup(h, b);
    cr_assert_not(h_page(h, page));
}

/* One that many others have, and its owner many of. */
CORE_TEST(timeline, given_up_many, many)
{
    uint64_t pages[200], left = 0;

    uint64_t a = h_connect(h, 1000, 1000);
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
        pages[i] = h_page_new(h, a);
        h_submit(h, pages[i], i % TIMELINE_SLOTS);
        h_drop_page(h, a, pages[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(pages); i += 2)
        h_land(h, pages[i], i % TIMELINE_SLOTS, 1);
    h_tick(h, SWEEP_NS);
    left = h_counts(h).pages;
    cr_assert_gt(left, 100, "all of them in one event");
    cr_assert_lt(left, 200);
    for (int i = 0; i < 5; i++) {
        cr_assert_leq(core_deadline_ns(h->core), h->now_ns + 1000000, "the others soon");
        h_tick(h, 1000000);
    }
    cr_assert_eq(h_counts(h).pages, 100);
    for (size_t i = 1; i < ARRAY_SIZE(pages); i += 2)
        h_land(h, pages[i], i % TIMELINE_SLOTS, 1);
    for (int i = 0; i < 3; i++)
        h_tick(h, SWEEP_NS);
    cr_assert_eq(h_counts(h).pages, 0);
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
}

CORE_TEST(timeline, a_page_that_cannot_be_made, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h->page_error = -EMFILE;
    cr_assert_eq(h_page_new(h, a), 0);
    cr_assert_neq(h->replies[a].error, 0);
    cr_assert_eq(h_counts(h).pages, 0);
    cr_assert_neq(h_page_new(h, a), 0);
}

/* Nobody has the page before, its owner included: it goes with its owner's connection. */
CORE_TEST(timeline, a_page_that_is_made_later, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t first = h_page_new(h, a);

    h->makes_pages_later = true;
    h_request(h, a, MSG_PAGE, &(struct msg_page_params){0});
    h_request(h, b, MSG_PAGE, &(struct msg_page_params){0});
    cr_assert(!h->replies[a].seen && !h->replies[b].seen);
    cr_assert_eq(h_counts(h).pages, 3);
    h_drop_page(h, a, h->making[0].page); /* not its own yet */
    cr_assert_eq(h->n_making, 2);
    h_make_page(h);
    cr_assert(h->replies[b].seen && !h->replies[a].seen && h->replies[b].page);
    h_hangup(h, a);
    cr_assert_eq(h->n_making, 0);
    cr_assert(h_page(h, first));
    cr_assert_eq(h_counts(h).pages, 2);
    h_request(h, b, MSG_PAGE, &(struct msg_page_params){0});
    h->page_error = -ETIMEDOUT;
    h_make_page(h);
    cr_assert(h->replies[b].seen && h->replies[b].error);
    cr_assert_eq(h_counts(h).pages, 2);
}

/* A uid's own pool is there while others have timelines in it. */
CORE_TEST(timeline, of_others_in_a_uids_pool, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), root = h_connect(h, 0, 0);
    h_timeline(h, root, "t", "uid:1000", h_page_new(h, root));
    h_disconnect(h, a);
    cr_assert_eq(h_counts(h).users, 2);
    a = h_connect(h, 1000, 1000);
    cr_assert_eq(h_open_timeline(h, a, "t", NULL)->error, 0);
    h_disconnect(h, a);
    h_disconnect(h, root);
    cr_assert_eq(h_counts(h).users, 0);
}
