/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is kept until fences have passed: when it is looked at, and creates that wait for its
 * memory.
 */
#include "harness.h"

#include "caid_test.h"

#define MIB      INT64_C(1048576)
#define TURN_NS  UINT64_C(10000000)
#define REST_NS  UINT64_C(1000000)
#define LONG_NS  UINT64_C(1000000000)
#define N_ARRAYS 1024 /* that are looked at in a turn */

/* Arrays of bytes each that are in use by a value of the page, and nobody's any more. */
static void
leave(struct harness *h, uint64_t conn, uint64_t page, int n, int64_t bytes,
      struct msg_create_params params)
{
    for (int i = 0; i < n; i++) {
        struct h_reply made = h_made(h, conn, bytes, params);
        h_end_at(h, conn, h_begun(h, conn, made.lease, true), page, 0);
        h_close(h, conn, made.lease);
    }
    h_finish_all(h);
}

static const struct msg_create_params plain;

static void
land_all(struct harness *h, uint64_t page)
{
    h_land(h, page, 0, timeline_submitted(h_slot(h, page, 0)));
}

/* ---- turns ---- */

static void
many(struct core_config *config)
{
    config->limits.arrays = config->limits.names = config->limits.leases = 5000;
    config->limits.brackets = 5000;
}

/* An event costs no more for what lingers. */
CORE_TEST(linger, some_at_a_time, many)
{
    uint64_t a = h_connect(h, 1000, 1000), page = h_page_new(h, a);
    leave(h, a, page, 3 * N_ARRAYS, 0, plain);
    h_tick(h, TURN_NS);
    cr_assert_eq(h_counts(h).arrays, 3 * N_ARRAYS);
    land_all(h, page);
    h_drop_page(h, a, h_page_new(h, a));
    cr_assert_eq(h_counts(h).arrays, 3 * N_ARRAYS, "another page is no reason to look");
    for (int i = 2; i >= 0; i--) {
        cr_assert_leq(core_deadline_ns(h->core), h->now_ns + REST_NS);
        h_tick(h, REST_NS);
        cr_assert_eq(h_counts(h).arrays, i * N_ARRAYS);
    }
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
}

/* Those that have not passed do not keep others from being looked at. */
CORE_TEST(linger, in_turn, many)
{
    uint64_t a = h_connect(h, 1000, 1000), page = h_page_new(h, a), other = h_page_new(h, a);
    leave(h, a, page, 2 * N_ARRAYS, 0, plain);
    leave(h, a, other, 1, 0, plain);
    land_all(h, other);
    for (int i = 0; i < 3; i++)
        h_tick(h, TURN_NS);
    cr_assert_eq(h_counts(h).arrays, 2 * N_ARRAYS);
}

CORE_TEST(linger, until_the_page_goes, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = h_create_now(h, a, "x", NULL, 100)->lease;
    uint64_t page = h_page_new(h, a), second = h_page_new(h, b);
    uint64_t other = h_open(h, b, "x", NULL, "rw")->lease;
    h_end_at(h, a, h_begun(h, a, lease, false), page, 0);
    h_end_at(h, b, h_begun(h, b, other, false), second, 0);
    h_unlink(h, a, "x", NULL);
    h_close(h, a, lease);
    h_close(h, b, other);
    h_land(h, page, 0, 1);
    h_drop_page(h, a, page);
    cr_assert_eq(h_counts(h).arrays, 1, "the other reader's work is under way");
    h_disconnect(h, b);
    cr_assert_eq(h_counts(h).arrays, 0, "at once: there is no time to wait for");
}

/* ---- creates ---- */

/* Of 64 MiB, 48 linger. */
static uint64_t
leave_memory(struct harness *h, uint64_t conn)
{
    uint64_t page = h_page_new(h, conn);

    leave(h, conn, page, 1, 48 * MIB, plain);
    return page;
}

/* What it is answered, if it is, is there afterwards. */
static struct h_reply *
ask(struct harness *h, uint64_t conn, const char *name, const char *pool, int64_t bytes)
{
    h_create(h, conn, name, pool, bytes);
    h_finish_all(h);
    return &h->replies[conn];
}

static void
turn(struct harness *h)
{
    h_tick(h, TURN_NS);
    h_finish_all(h);
}

CORE_TEST(linger, create_waits_for_memory, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    uint64_t page = leave_memory(h, a);
    struct h_reply *r = ask(h, b, NULL, NULL, 32 * MIB);
    cr_assert_not(r->seen, "also another uid's");
    turn(h);
    cr_assert_not(r->seen);
    cr_assert_eq(h->n_jobs, 0);
    land_all(h, page);
    cr_assert_leq(core_deadline_ns(h->core), h->now_ns + TURN_NS);
    turn(h);
    cr_assert(r->seen);
    cr_assert_eq(r->error, 0);
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
}

CORE_TEST(linger, create_waits_no_longer_than_a_second, NULL)
{
    uint64_t waited = 0;

    uint64_t a = h_connect(h, 1000, 1000);
    leave_memory(h, a);
    struct h_reply *r = ask(h, a, "x", NULL, 32 * MIB);
    for (; !r->seen && waited < 2 * LONG_NS; waited += TURN_NS) {
        turn(h);
    }
    cr_assert_eq(r->error, PROTO_ERR_NO_MEMORY);
    cr_assert_eq(waited, LONG_NS);
    cr_assert_leq(h->n_allocs, 5, "the driver is not asked while nothing has come");
    cr_assert_eq(ask(h, a, "x", NULL, 1 * MIB)->error, 0, "the name is free");
}

CAID_TEST(linger, create_waits_for_quota)
{
    struct harness h;

    h_init(&h, NULL); /* "shared" has 16 MiB */
    uint64_t a = h_connect(&h, 1, 1), pages[4];
    struct msg_create_params shared = {.pool = MSG_STR("shared")};
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
        pages[i] = h_page_new(&h, a);
        leave(&h, a, pages[i], 1, 4 * MIB, shared);
    }
    struct h_reply *r = ask(&h, a, NULL, "shared", 16 * MIB);
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
        cr_assert_not(r->seen);
        land_all(&h, pages[i]);
        turn(&h);
    }
    cr_assert(r->seen && !r->error);
    leave(&h, a, pages[0], 1, 1 * MIB, plain);
    cr_assert_eq(ask(&h, a, NULL, "shared", 12 * MIB)->error, PROTO_ERR_QUOTA,
                 "what lingers in another pool is no help");
    h_deinit(&h);
}

/* And when the daemon stops, whoever is there is told so, and what is left is forgotten. */
CAID_TEST(linger, create_when_the_daemon_stops)
{
    for (int is_answered = 0; is_answered < 2; is_answered++) {
        struct harness h;
        h_init(&h, NULL);
        uint64_t a = h_connect(&h, 1000, 1000), b = h_connect(&h, 1001, 1001);
        leave_memory(&h, a);
        struct h_reply *r = ask(&h, b, "x", NULL, 32 * MIB);
        core_stop(h.core);
        if (is_answered) {
            h_tick(&h, TURN_NS);
            cr_assert_eq(r->error, PROTO_ERR_SHUTDOWN);
        }
        h_disconnect(&h, b);
        h_hangup(&h, a);
        h_exit(&h, a);
        core_free(h.core);
    }
}
