/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that use parts: brackets, fences that have not passed, writers that die.
 */
#include "harness.h"

#include "caid_test.h"

#define MIB INT64_C(1048576)

/* A whole of 4 MiB, "w", which is all there is; its lease. */
static uint64_t
whole(struct harness *h, uint64_t conn)
{
    const struct h_reply *reply = h_create_now(h, conn, "w", NULL, 4 * MIB);

    cr_assert_eq(reply->error, 0, "%s", reply->text);
    return reply->lease;
}

/* A part of 100 bytes, which must not be refused; its number. */
static uint64_t
part(struct harness *h, uint64_t conn, uint64_t lease, uint64_t offset, const char *name)
{
    const struct h_reply *reply = h_part(h, conn, lease, offset, 100, name);

    cr_assert_eq(reply->error, 0, "%s", reply->text);
    return reply->array;
}

/* Whether the connection has been told that just this part is gone. */
static bool
told(const struct harness *h, uint64_t conn, uint64_t id)
{
    const struct h_reply *reply = &h->replies[conn];

    return reply->seen && !reply->error && reply->n_parts == 1 && reply->parts[0] == id;
}

/* The next look at what lingers. */
static void
look(struct harness *h)
{
    h_tick(h, 20000000);
    h_finish_all(h);
}

/* Streams have brackets on a part as on any array; those on its whole are another matter. */
CORE_TEST(part_use, has_brackets_of_its_own, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = whole(h, a), page = h_page_new(h, a);
    part(h, a, lease, 0, "p");
    uint64_t writes = h_open(h, a, "p", NULL, "rw")->lease;
    uint64_t reads = h_open(h, b, "p", NULL, "r")->lease;
    uint64_t on_whole = h_begun(h, a, lease, true), on_part = h_begun(h, a, writes, true);
    h_begin(h, b, reads, false);
    cr_assert_not(h->replies[b].seen, "a reader waits for the part's writer");
    h_end(h, a, on_whole);
    cr_assert_not(h->replies[b].seen);
    cr_assert_eq(h_end_at(h, a, on_part, page, 0), 1);
    cr_assert(h_is_open(h, b));
    cr_assert_eq(h->replies[b].n_fences, 1);
    cr_assert_eq(h->replies[b].fences[0].page, page);
    cr_assert(h->replies[b].fences[0].data);
    h_land(h, page, 0, 1);
}

/* ---- lingering ---- */

/* b reads a part, to the next value of slot 0 of its page, and closes it; names and leases go. */
static uint64_t
read_and_leave(struct harness *h, uint64_t a, uint64_t b, uint64_t page)
{
    uint64_t lease = whole(h, a), id = part(h, a, lease, 100, "p");
    uint64_t reads = h_open(h, b, "p", NULL, "r")->lease;

    h_end_at(h, b, h_begun(h, b, reads, false), page, 0);
    h_close(h, b, reads);
    h_unlink(h, a, "p", NULL);
    h_unlink(h, a, "w", NULL);
    h_close(h, a, lease);
    cr_assert_not(h_parts(h, a)->seen, "a stream reads it");
    return id;
}

/* Streams may still use it when its last holder has closed it (I2). */
CORE_TEST(part_use, lingers_while_a_fence_has_not_passed, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t page = h_page_new(h, b), id = read_and_leave(h, a, b, page);
    look(h);
    cr_assert_not(h->replies[a].seen);
    cr_assert_eq(h_counts(h).arrays, 2);
    cr_assert_eq(h_counts(h).pending, 0);
    h_land(h, page, 0, 1);
    look(h);
    cr_assert(told(h, a, id));
    cr_assert_eq(h_counts(h).arrays, 0);
}

/* As for any array that nobody holds: its memory is the whole's. */
CORE_TEST(part_use, create_waits_while_it_lingers, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1001, 1001);
    uint64_t page = h_page_new(h, b);
    read_and_leave(h, a, b, page);
    h_create(h, c, NULL, NULL, 4 * MIB);
    h_finish_all(h);
    cr_assert_not(h->replies[c].seen, "%s", h->replies[c].text);
    look(h);
    cr_assert_not(h->replies[c].seen);
    h_land(h, page, 0, 1);
    look(h);
    cr_assert(h->replies[c].seen);
    cr_assert_eq(h->replies[c].error, 0, "%s", h->replies[c].text);
}

/* Both have fences: the whole lingers after its part, and a create waits for both. */
CORE_TEST(part_use, whole_lingers_after_it, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = whole(h, a), page = h_page_new(h, a);
    uint64_t id = part(h, a, lease, 100, "p");
    uint64_t reads = h_open(h, a, "p", NULL, "r")->lease;
    h_end_at(h, a, h_begun(h, a, lease, true), page, 0);
    h_end_at(h, a, h_begun(h, a, reads, false), page, 1);
    h_close(h, a, reads);
    h_close(h, a, lease);
    h_unlink(h, b, "w", NULL);
    h_unlink(h, b, "p", NULL);
    h_parts(h, a);
    h_create(h, b, NULL, NULL, 4 * MIB);
    h_finish_all(h);
    cr_assert_not(h->replies[b].seen, "%s", h->replies[b].text);
    h_land(h, page, 1, 1);
    look(h);
    cr_assert(told(h, a, id), "the part's fence has passed");
    cr_assert_eq(h_counts(h).pending, 0);
    cr_assert_not(h->replies[b].seen, "%s", h->replies[b].text);
    h_land(h, page, 0, 1);
    look(h);
    cr_assert(h->replies[b].seen);
    cr_assert_eq(h->replies[b].error, 0, "%s", h->replies[b].text);
}

/* Whose page goes with him: a fence that is lost keeps nothing. */
CORE_TEST(part_use, does_not_linger_for_the_dead, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t id = read_and_leave(h, a, b, h_page_new(h, b));
    h_disconnect(h, b);
    cr_assert(told(h, a, id));
    cr_assert_eq(h_counts(h).arrays, 0);
}

/* The reader has only hung up: its streams go on, and its page is there until it exits. */
CORE_TEST(part_use, lingers_for_who_has_hung_up, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t id = read_and_leave(h, a, b, h_page_new(h, b));
    cr_assert(h_hangup(h, b));
    look(h);
    cr_assert_not(h->replies[a].seen);
    h_exit(h, b);
    cr_assert(told(h, a, id));
}

/* ---- writers that die ---- */

CORE_TEST(part_use, is_abandoned_alone, h_sharing)
{
    h->capacity[0] = 4 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = whole(h, a);
    part(h, a, lease, 100, "p");
    h_begun(h, b, h_open(h, b, "p", NULL, "rw")->lease, true);
    h_disconnect(h, b);
    cr_assert(h_show(h, a, "p", NULL)->entries[0].abandoned);
    cr_assert_not(h_show(h, a, "w", NULL)->entries[0].abandoned);
    part(h, a, lease, 200, "q"); /* the whole is whole */
    uint64_t opened = h_open(h, a, "p", NULL, "rw")->lease;
    h_begin(h, a, opened, false);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_ABANDONED);
    cr_assert_eq(h_publish(h, a, opened, "other")->error, PROTO_ERR_ABANDONED);
    h_end_as(h, a,
             (struct msg_end_params){.bracket = h_begun(h, a, lease, true), .abandon = true});
    cr_assert_eq(h_part(h, a, lease, 0, 1, "r")->error, PROTO_ERR_ABANDONED);
    cr_assert_not(h_show(h, a, "q", NULL)->entries[0].abandoned);
    cr_assert_eq(h_discard(h, a, lease)->error, 0);
    cr_assert_eq(h_part(h, a, lease, 0, 1, "r")->error, 0);
}
