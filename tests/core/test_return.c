/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that come back after a restart, beside what histories show (model_return.c).
 */
#include "array.h"
#include "base/clock.h"
#include "books.h"
#include "caid_test.h"
#include "journal.h"
#include "lost.h"
#include "records.h"
#include "state.h"
#include "units.h"

/* One that comes back. */
static uint64_t
come(struct harness *h, uid_t uid)
{
    uint64_t conn = h_connect_raw(h, uid, uid);

    cr_assert_eq(h_hello(h, conn, 0)->error, 0);
    h_create_now(h, conn, NULL, NULL, 100);
    return conn;
}

/* For that process; 0: refused at once. */
static uint64_t
connect_as(struct harness *h, uint64_t of)
{
    return h_connect_as(h, 1000, 1000, h->pids[of]);
}

static void
two_connections(struct core_config *config)
{
    config->limits.connections = 2;
}

CORE_TEST(return, in_its_own_place_at_the_limit, two_connections)
{
    uint64_t a = come(h, 1000), b = come(h, 1000);

    cr_assert_not(connect_as(h, a));
    saved_restart(h);
    cr_assert_not(h_connect_raw(h, 1000, 1000), "another process is in the place of one");
    uint64_t others[] = {connect_as(h, a), connect_as(h, a)};
    cr_assert_not(connect_as(h, a), "more come than are awaited");
    cr_assert_eq(h_hello(h, others[0], 0)->error, PROTO_ERR_LIMIT);
    cr_assert(h->closed[others[0]]);
    h_hangup(h, others[0]);
    cr_assert(h_hello(h, others[1], a)->resumed);
    cr_assert(h_hello(h, connect_as(h, b), b)->resumed);
    cr_assert_not(connect_as(h, a), "nobody is awaited any more");
    cr_assert_eq(h_counts(h).connections, 2);
}

/* Before it has told all that it has, it begins nothing new. */
CORE_TEST(return, and_tell_what_cannot_be, NULL)
{
    const uint64_t ended[] = {1, 2, 3, 4};
    struct msg_resume_params params = {.done = true};

    uint64_t a = come(h, 1000), lease = h->replies[a].lease;
    cr_assert_eq(h_request(h, a, MSG_RESUME, &params)->error, PROTO_ERR_INVALID);
    saved_restart(h);
    uint64_t b = connect_as(h, a);
    cr_assert(h_hello(h, b, a)->resumed);
    params.ended = (struct msg_u64s){ended, 4};
    cr_assert_eq(h_request(h, b, MSG_RESUME, &params)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_create(h, b, NULL, NULL, 100)->error, PROTO_ERR_INVALID);
    params = (struct msg_resume_params){.write = {(const uint64_t[]){lease, 1}, 2}};
    cr_assert_eq(h_request(h, b, MSG_RESUME, &params)->error, 0);
    h_begin(h, b, lease, true);
    cr_assert_eq(h->replies[b].error, PROTO_ERR_INVALID);
    params = (struct msg_resume_params){.done = true};
    cr_assert_eq(h_request(h, b, MSG_RESUME, &params)->error, 0);
}

/* A goodbye that has been answered holds also where the daemon dies before the client hangs up. */
CORE_TEST(return, to_say_goodbye, NULL)
{
    uint64_t a = come(h, 1000), b;

    saved_restart(h);
    b = connect_as(h, a);
    cr_assert(h_hello(h, b, a)->resumed);
    cr_assert_eq(h_request(h, b, MSG_RESUME,
                           &(struct msg_resume_params){.done = true, .leaves = true})
                     ->error,
                 0);
    saved_restart(h);
    cr_assert_not(h_hello(h, connect_as(h, b), b)->resumed);
}

/* The daemon dies of a request of that client, which comes back with its first lease. */
static uint64_t
die_of(struct harness *h, uint64_t conn, enum msg_method method, uint32_t id)
{
    journal_take(h->journal, conn, UINT64_C(1) << 63 | (uint64_t)method << 32 | id);
    saved_restart(h);
    uint64_t next = connect_as(h, conn);
    cr_assert(h_hello(h, next, conn)->resumed);
    h_request(h, next, MSG_RESUME,
              &(struct msg_resume_params){.done = true,
                                          .write = {(const uint64_t[]){1, 1}, 2}});
    return next;
}

static enum proto_error
ping_as(struct harness *h, uint64_t conn, uint32_t id)
{
    h->next_id = id - 1;
    return h_request(h, conn, MSG_PING, NULL)->error;
}

/* It is asked once more, and what has been answered since is forgotten. */
CORE_TEST(return, with_what_the_daemon_died_of, NULL)
{
    const uint32_t id = 1000;
    uint64_t a = come(h, 1000);

    for (int i = 0; i < 2; i++) {
        a = die_of(h, a, MSG_PING, id);
        cr_assert_eq(ping_as(h, a, id), 0);
    }
    a = die_of(h, a, MSG_PING, id);
    a = die_of(h, a, MSG_PING, id);
    cr_assert_eq(ping_as(h, a, id + 1), 0);
    cr_assert_eq(ping_as(h, a, id), PROTO_ERR_INTERNAL);
}

/* A uid with something that is not back is not served, as others are. */
CORE_TEST(return, in_pieces, NULL)
{
    uint64_t a = come(h, 1000), b = come(h, 1001);

    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    uint64_t c = h_connect(h, 1002, 1002);
    cr_assert_not(core_is_whole(h->core));
    h_create_now(h, c, NULL, "x", 100);
    cr_assert_not(core_is_whole(h->core), "a third one waits for them");
    cr_assert(h_hello(h, h_connect_as(h, 1001, 1001, h->pids[b]), b)->resumed,
              "its own is there");
    cr_assert_not(core_is_whole(h->core), "and for no other's");
    h->now_ns += 4 * NSEC_PER_SEC;
    const struct h_reply *reply = h_hello(h, connect_as(h, a), a);
    cr_assert_eq(reply->error, PROTO_ERR_NOT_READY);
    cr_assert(reply->left > 0 && reply->left <= 1000000);
    saved_finish(h);
    cr_assert(h_hello(h, connect_as(h, a), a)->resumed);
}

CORE_TEST(return, at_once, NULL)
{
    uint64_t conns[] = {come(h, 1000), come(h, 1000), come(h, 1000)};

    core_set_pieces(h->core, 1);
    h->by_hand = true;
    saved_restart(h);
    for (size_t i = 0; i < ARRAY_SIZE(conns); i++)
        cr_assert(h_hello(h, connect_as(h, conns[i]), conns[i])->resumed);
    h->by_hand = false;
}

/* It has closed what its stream is yet to write, and hung up. */
CORE_TEST(return, not_what_a_stream_is_to_write, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = come(h, 1000);
    uint64_t page = h_page_new(h, a);
    uint64_t lease = h_small(h, a, 100).lease;

    h_create_now(h, b, "stays", NULL, 100);
    h_disconnect(h, b);
    h_end_at(h, a, h_begun(h, a, lease, true), page, 0);
    h_close(h, a, lease);
    h_hangup(h, a);
    saved_restart(h);
    uint64_t c = h_connect(h, 1000, 1000);
    for (int i = 0; i < 20; i++) /* the books look at where they lie */
        h_small(h, c, 100);
    h_land(h, page, 0, 1);
}

/* An earlier release may have charged less. */
CORE_TEST(return, over_the_limit_with_what_was_there, h_sharing)
{
    uint64_t a = come(h, 1000);
    uint64_t lease = h_create_now(h, a, "x", NULL, 100)->lease;
    const uint64_t pair[] = {lease, h_show(h, a, "x", NULL)->array};
    const struct msg_resume_params p = {.write = {pair, 2}, .done = true};
    struct core_config config = h->config;

    saved_restart(h);
    config.limits.host_bytes = 1;
    cr_assert_eq(h_reconfigure(h, &config), 0);
    uint64_t b = connect_as(h, a);
    cr_assert(h_hello(h, b, a)->resumed);
    const struct h_reply *reply = h_request(h, b, MSG_RESUME, &p);
    cr_assert_eq(reply->error, 0, "%s", reply->text);
    cr_assert_eq(reply->n_parts, 0, "nothing is lost");
    cr_assert_eq(h_create(h, b, NULL, NULL, 0)->error, PROTO_ERR_QUOTA);
    h_close(h, b, lease);
}

static void
record(struct harness *h, uint8_t type, const void *payload, size_t n)
{
    memcpy(journal_begin(h->journal, type, n), payload, n);
    journal_end(h->journal, 0);
    journal_commit(h->journal);
}

/* What its checksum does not know is how long the name may be. */
CORE_TEST(return, without_a_name_that_is_longer_than_its_record, h_sharing)
{
    struct record_lost lost = {.pool = 1, .uid = 1000, .why = LOST_RECORD, .n_name = 0};

    h_create_now(h, come(h, 1000), "x", NULL, 100); /* in pool 1 */
    for (uint64_t over = 0; over < 2; over++) {
        lost.key.id = 1000 + over;
        lost.n_name = (uint8_t)(sizeof(lost) - offsetof(struct record_lost, name) + over);
        record(h, RECORD_LOST, &lost, sizeof(lost));
    }
    saved_restart(h);
    struct lost *first =
        lost_find_next(pool_find_from(h->core, MSG_STR("uid:1000")), MSG_STR(""), MSG_STR(""));
    cr_assert(first && first->id == 1000);
    cr_assert_not(RB_NEXT(losts, , first));
}

/* Release 0.1.0 recorded less of one. */
CORE_TEST(return, with_a_ticket_of_an_older_daemon, h_sharing)
{
    uint64_t a = come(h, 1000);
    size_t n = offsetof(struct record_ticket, made_ns);
    const uint64_t words[] = {7, 1};
    const struct msg_take_params take = {.ticket = {words, 2}, .mode = MSG_STR("r")};

    h_create_now(h, a, "x", NULL, 100);
    const struct record_ticket old = {.key = {7, 1},
                                      .conn = 1,
                                      .array = h_show(h, a, "x", NULL)->array,
                                      .lease = 99,
                                      .readonly = true};
    record(h, RECORD_TICKET, &old, n);
    saved_restart(h);
    cr_assert_eq(h_request(h, h_connect(h, 1000, 1000), MSG_TAKE, &take)->error, 0);
}

static void
resume(struct harness *h, uint64_t conn, struct msg_resume_params params)
{
    cr_assert_eq(h_request(h, conn, MSG_RESUME, &params)->error, 0);
}

/* Returns its connection. */
static uint64_t
back(struct harness *h, uint64_t was, uid_t uid)
{
    uint64_t conn = h_connect_as(h, uid, uid, h->pids[was]);

    cr_assert(h_hello(h, conn, was)->resumed);
    return conn;
}

/* Arrays without bytes are kept for its own uid, and it is not awaited without end. */
CORE_TEST(return, and_never_say_that_this_is_all, NULL)
{
    uint64_t a = come(h, 1000), b = come(h, 1001);

    h_create_now(h, a, NULL, NULL, 0);
    saved_restart(h);
    uint64_t c = back(h, a, 1000), d = back(h, b, 1001);
    cr_assert_eq(h_counts(h).arrays, 3);
    books_exited(h, a); /* it claims nothing */
    resume(h, c, (struct msg_resume_params){.done = true});
    cr_assert_eq(h_counts(h).arrays, 1, "what one uid has given up waits for another");
    for (int i = 0; i < 2; i++) {
        h_tick(h, 29 * NSEC_PER_SEC);
        cr_assert_not(h->closed[d], "it had told something");
        resume(h, d, (struct msg_resume_params){0});
    }
    h_tick(h, 4 * NSEC_PER_SEC);
    cr_assert(h->closed[d], "it may tell for ever");
    h_hangup(h, d);
    cr_assert_not(h_hello(h, h_connect_as(h, 1001, 1001, h->pids[b]), d)->resumed);
    cr_assert_eq(h_counts(h).arrays, 0);
}

CORE_TEST(return, and_say_nothing, NULL)
{
    uint64_t a = come(h, 1000);

    saved_restart(h);
    uint64_t b = back(h, a, 1000);
    h_tick(h, 29 * NSEC_PER_SEC);
    cr_assert_not(h->closed[b]);
    h_tick(h, 2 * NSEC_PER_SEC);
    cr_assert(h->closed[b]);
}

/* Time that has passed gives nothing away: its publisher would write there. */
CORE_TEST(return, not_in_time_and_have_a_part, h_sharing)
{
    uint64_t a = come(h, 1000), b = come(h, 1000);
    uint64_t part = h_part(h, a, h_small(h, a, 1000).lease, 0, 100, "p")->array;

    h_open(h, b, "p", NULL, "rw");
    h_unlink(h, a, "p", NULL);
    saved_restart(h);
    uint64_t c = back(h, a, 1000);
    resume(h, c, (struct msg_resume_params){.parts = {&part, 1}, .done = true});
    h_parts(h, c);
    h_tick(h, 31 * NSEC_PER_SEC);
    cr_assert_eq(h->replies[c].n_parts, 0, "a part is gone that a process may write");
    h_exit(h, b);
    cr_assert_eq(h->replies[c].n_parts, 1);
    cr_assert_eq(h->replies[c].parts[0], part);
}

/* Its streams may use what lies in its blocks; it has told which leases it has. */
CORE_TEST(return, with_a_stream_that_does_not_end, h_sharing)
{
    uint64_t a = come(h, 1000), b = come(h, 1000), page = h_page_new(h, b);
    struct h_reply used = h_small(h, b, 100), written = h_small(h, b, 100);
    const uint64_t ended[] = {written.arrays[0].number, 0, 0, 0, 0};

    h_create_now(h, a, "x", NULL, 100);
    h_begun(h, b, written.lease, true);
    h_end_at(h, b, h_begun(h, b, used.lease, false), page, 0);
    saved_restart(h);
    uint64_t c = back(h, a, 1000), d = back(h, b, 1000);
    resume(h, c, (struct msg_resume_params){.done = true});
    cr_assert_eq(h_counts(h).arrays, 5);
    resume(h, d,
           (struct msg_resume_params){.blocks = {&used.block, 1},
                                      .pages = {&page, 1},
                                      .ended = {ended, ARRAY_SIZE(ended)},
                                      .done = true});
    cr_assert_eq(h_counts(h).arrays, 1, "a stream has no leases");
    h_begin(h, c, h_open(h, c, "x", NULL, "rw")->lease, true);
    h_small(h, h_connect(h, 1000, 1000), 100); /* the books look where */
    h_tick(h, 100 * NSEC_PER_SEC);
    cr_assert(!h->closed[d] && !h_is_open(h, c), "the stream may read it");
    h_land(h, page, 0, 1);
    h_tick(h, NSEC_PER_SEC);
    cr_assert(h_is_open(h, c));
}

/* ---- of which not all is back ---- */

static uint64_t
named(struct harness *h, uint64_t conn, const char *name, const char *kind, uint64_t ttl_ns)
{
    return h_made(h, conn, 100,
                  (struct msg_create_params){.name = MSG_STR(name),
                                             .memory = MSG_STR(kind),
                                             .ttl_ns = ttl_ns})
        .lease;
}

static struct pool *
pool_named(struct harness *h, const char *name)
{
    return pool_find_from(h->core, MSG_STR(name));
}

/* "a" to "h". */
static void
more_names(struct harness *h, uint64_t conn, uint64_t ttl_ns)
{
    char name[] = "a";

    for (; name[0] <= 'h'; name[0]++)
        named(h, conn, name, "device", ttl_ns);
}

static void
some_ticks(struct harness *h, int n)
{
    for (; n > 0 && !core_is_whole(h->core); n--)
        h_tick(h, 0);
}

/* However far it has come when that daemon dies as well. */
CAID_TEST(return, after_two_deaths_with_names_that_are_lost)
{
    static struct harness h;
    bool is_whole = false;

    for (int n = 0; !is_whole; n++) {
        h_init(&h, h_sharing);
        uint64_t a = h_connect(&h, 1000, 1000);
        named(&h, a, "lost", "legacy", 0);
        more_names(&h, a, 0);
        core_set_pieces(h.core, 1);
        saved_begin_restart(&h);
        some_ticks(&h, n);
        is_whole = core_is_whole(h.core);
        saved_restart(&h);
        cr_assert(lost_find(pool_named(&h, "uid:1000"), MSG_STR("lost")), "after %d ticks", n);
        h_deinit(&h);
    }
}

/* A name whose time is over goes, and its block with it; it is not lost. */
CAID_TEST(return, after_two_deaths_with_names_that_expire)
{
    static struct harness h;
    bool is_whole = false;

    for (int n = 0; !is_whole; n++) {
        h_init(&h, NULL);
        uint64_t a = h_connect(&h, 1000, 1000);
        more_names(&h, a, NSEC_PER_SEC);
        h_exit(&h, a);
        core_set_pieces(h.core, 1);
        saved_begin_restart(&h);
        h_tick(&h, 2 * NSEC_PER_SEC);
        some_ticks(&h, n);
        is_whole = core_is_whole(h.core);
        saved_restart(&h);
        cr_assert_eq(h_counts(&h).names, 0, "after %d ticks", n);
        h_deinit(&h);
    }
}

static void
list_lost(struct harness *h, uint64_t conn, struct msg_lost_params params, const char *only)
{
    const struct h_reply *reply = h_request(h, conn, MSG_LOST, &params);

    cr_assert_eq(reply->n_entries, 1);
    cr_assert_str_eq(reply->names[0], only);
    cr_assert_str_eq(reply->text, lost_reason(LOST_LEGACY));
}

/* It stays lost over another death, until it is unlinked; what would be a key of it is nothing. */
CORE_TEST(return, to_a_name_that_is_lost, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    named(h, a, "lost/", "legacy", 0);
    named(h, a, "more", "legacy", 0);
    for (int i = 0; i < 2; i++) {
        saved_restart(h);
        a = h_connect(h, 1000, 1000);
        cr_assert_eq(h_open(h, a, "lost/", NULL, "r")->error, PROTO_ERR_LOST);
        cr_assert_eq(h_open(h, a, "lost/x", NULL, "r")->error, PROTO_ERR_NOT_FOUND);
    }
    list_lost(h, a, (struct msg_lost_params){.prefix = MSG_STR("l")}, "lost/");
    list_lost(h, a, (struct msg_lost_params){.after = MSG_STR("lost/")}, "more");
    cr_assert_eq(h_unlink(h, a, "lost/", NULL)->error, 0);
    saved_restart(h);
    a = h_connect(h, 1000, 1000);
    cr_assert_eq(h_open(h, a, "lost/", NULL, "r")->error, PROTO_ERR_NOT_FOUND);
    h_unlink(h, a, "more", NULL);
}

static void
put_in_set(struct harness *h, uint64_t conn, struct msg_publish_params p,
           const uint64_t *leases, uint32_t n)
{
    const struct msg_str keys[] = {MSG_STR("a"), MSG_STR("b")};

    p.lease = h_create_now(h, conn, NULL, NULL, 0)->lease;
    h_request(h, conn, MSG_STAGE, &(struct msg_stage_params){p.lease, {keys, n}, {leases, n}});
    cr_assert_eq(h_request(h, conn, MSG_PUBLISH, &p)->error, 0);
}

/* One that is lost with one of its arrays: the other one is in the next set, too. */
CORE_TEST(return, with_a_set_that_is_lost, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    const uint64_t leases[] =
        {h_small(h, a, 100).lease,
         h_made(h, a, 100, (struct msg_create_params){.memory = MSG_STR("legacy")}).lease};

    put_in_set(h, a, (struct msg_publish_params){.name = MSG_STR("s/")}, leases, 2);
    put_in_set(h, a, (struct msg_publish_params){.name = MSG_STR("t/")}, leases, 1);
    h_disconnect(h, a);
    core_set_pieces(h->core, 1);
    saved_restart(h);
    cr_assert(lost_find(pool_named(h, "uid:1000"), MSG_STR("s/")));
    cr_assert_eq(h_open(h, h_connect(h, 1000, 1000), "t/a", NULL, "r")->error, 0);
}

/* Its time was its name's. */
CORE_TEST(return, with_a_set_that_is_lost_and_had_its_time, h_sharing)
{
    uint64_t a = come(h, 1000);
    const uint64_t leases[] = {
        h_made(h, a, 100, (struct msg_create_params){.memory = MSG_STR("legacy")}).lease};

    put_in_set(h, a, (struct msg_publish_params){.name = MSG_STR("s/"), .ttl_ns = NSEC_PER_SEC},
               leases, 1);
    saved_restart(h);
    h_tick(h, 2 * NSEC_PER_SEC);
    cr_assert(lost_find(pool_named(h, "uid:1000"), MSG_STR("s/")));
    h_unlink(h, h_connect(h, 1000, 1000), "s/", NULL);
}

/* Names run out, and their blocks go back to the driver, while others of the pool come back. */
CORE_TEST(return, when_names_have_run_out, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000);

    more_names(h, a, NSEC_PER_SEC);
    h_disconnect(h, a);
    core_set_pieces(h->core, 1);
    h->now_ns += 2 * NSEC_PER_SEC;
    saved_begin_restart(h);
    while (!core_is_whole(h->core)) {
        h_tick(h, NSEC_PER_SEC / 4);
        h_finish_all(h);
    }
    cr_assert_eq(h_counts(h).blocks, 0);
}

/* The fence is in a page of who has nothing else in that pool. */
CORE_TEST(return, to_give_up_a_page_that_others_need, h_sharing)
{
    uint64_t a = h_connect(h, 1, 1), b = come(h, 1001), page = h_page_new(h, b);
    uint64_t block = h_create_now(h, a, "x", "open", 100)->block, lease;

    more_names(h, a, 0);
    lease = h_open(h, b, "x", "open", "rw")->lease;
    h_end_at(h, b, h_begun(h, b, lease, true), page, 0);
    h_close(h, b, lease);
    h_forget(h, b, block);
    h_land(h, page, 0, 1);
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    resume(h, back(h, b, 1001), (struct msg_resume_params){.done = true});
    cr_assert_not(pool_named(h, "open")->unit);
    cr_assert_not(pool_find_array(pool_named(h, "open"), MSG_STR("x"))->abandoned);
}

CORE_TEST(return, amid_writing_what_has_no_bytes, h_sharing)
{
    uint64_t a = h_connect(h, 1, 1), b = come(h, 1001);

    more_names(h, a, 0);
    h_create_now(h, a, "x", "open", 0);
    const struct h_reply *reply = h_open(h, b, "x", "open", "rw");
    const uint64_t pair[] = {reply->lease, reply->arrays[0].number};
    h_begun(h, b, pair[0], true);
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    resume(h, back(h, b, 1001), (struct msg_resume_params){.write = {pair, 2}});
    cr_assert_not(pool_find_array(pool_named(h, "open"), MSG_STR("x"))->abandoned);
}

/* Whom a pool concerns is kept once for each, in whatever order they have come. */
CORE_TEST(return, one_after_the_other, h_sharing)
{
    uint64_t conns[] = {h_connect(h, 1, 1), h_connect(h, 1001, 1001)};

    for (size_t i = 0; i < 100; i++)
        h_create_now(h, conns[i % 2], NULL, "open", 100);
    saved_begin_restart(h);
    cr_assert_eq(h->core->units->n_concerns, 2);
    cr_assert_lt(h->core->units->n_room, 100);
}

static void
little_for_all(struct core_config *config)
{
    h_sharing(config);
    config->totals.host_bytes = UINT64_C(12) << 20;
}

/* What is due to others is theirs already, and is no reason to wait. */
CORE_TEST(return, beside_what_others_have, little_for_all)
{
    uint64_t a = h_connect(h, 1000, 1000);
    const uint64_t lease = named(h, a, "x", "device", 0), words[] = {7, 1};

    more_names(h, a, 100 * NSEC_PER_SEC);
    put_in_set(h, a, (struct msg_publish_params){.name = MSG_STR("s/")}, &lease, 1);
    h_request(h, a, MSG_SEND, &(struct msg_send_params){.lease = lease, .ticket = {words, 2}});
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    h_create_now(h, h_connect(h, 1001, 1001), NULL, NULL, 100);
    cr_assert_not(core_is_whole(h->core));
    const struct user *user = user_find(h->core, 1001);
    uint64_t share = user_share(user, RES_HOST), due = h->core->due[RES_HOST];
    saved_finish(h);
    cr_assert_eq(h->core->due[RES_HOST] + h->core->due[RES_FDS], 0);
    cr_assert_leq(user_share(user, RES_HOST), share + due / 16);
    cr_assert_geq(user_share(user, RES_HOST) + due / 16, share);
}

/* ---- what is not back yet ---- */

static const uint64_t secret[] = {7, 1};

/* One that many may take. */
static void
send_by_secret(struct harness *h, uint64_t conn, uint64_t lease)
{
    const struct msg_send_params p = {.lease = lease, .ticket = {secret, 2}, .many = true};

    cr_assert_eq(h_request(h, conn, MSG_SEND, &p)->error, 0);
}

static uint32_t
take_by_secret(struct harness *h, uint64_t conn)
{
    const struct msg_take_params p = {.ticket = {secret, 2},
                                      .mode = MSG_STR("r"),
                                      .keep = true};

    return h_request(h, conn, MSG_TAKE, &p)->error;
}

/* Somebody who has nothing takes it, and somebody sends another one by its secret. */
CORE_TEST(return, with_a_ticket_that_is_not_back, NULL)
{
    uint64_t a = come(h, 1000);

    send_by_secret(h, a, h_create_now(h, a, "x", "open", 100)->lease);
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    uint64_t b = h_connect(h, 1002, 1002);
    cr_assert_not(core_is_whole(h->core));
    const struct msg_send_params again = {.lease = h_create_now(h, b, NULL, NULL, 100)->lease,
                                          .ticket = {secret, 2}};
    cr_assert_not(core_is_whole(h->core));
    cr_assert_eq(take_by_secret(h, b), 0);
    cr_assert_eq(h_request(h, b, MSG_SEND, &again)->error, PROTO_ERR_INVALID);
}

/* Of a pool where its client has nothing else. */
CORE_TEST(return, with_a_lease_on_what_is_not_back, NULL)
{
    uint64_t a = come(h, 1000), b = come(h, 1001);

    for (int i = 0; i < 8; i++)
        h_create_now(h, a, (char[]){'a', (char)('0' + i), '\0'}, "open", 0);
    h_create_now(h, a, "x", "open", 0);
    const struct h_reply *opened = h_open(h, b, "x", "open", "r");
    const uint64_t pair[] = {opened->lease, opened->arrays[0].number};
    const struct msg_resume_params p = {.read = {pair, 2}};
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    uint64_t c = h_connect_as(h, 1001, 1001, h->pids[b]);
    cr_assert(h_hello(h, c, b)->resumed);
    cr_assert_not(core_is_whole(h->core));
    const struct h_reply *reply = h_request(h, c, MSG_RESUME, &p);
    cr_assert_eq(reply->error, 0, "%s", reply->text);
    cr_assert_eq(reply->n_parts, 0, "nothing is lost");
}

/* What it kept is in a set, which is back after it. */
CORE_TEST(return, with_a_ticket_that_runs_out_meanwhile, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000);
    const uint64_t lease = h_small(h, a, 100).lease;

    send_by_secret(h, a, lease);
    put_in_set(h, a, (struct msg_publish_params){.name = MSG_STR("s/")}, &lease, 1);
    h_disconnect(h, a);
    core_set_pieces(h->core, 1);
    h->by_hand = true;
    h->now_ns += 2 * H_AGE_NS;
    saved_restart(h);
    h->by_hand = false;
    uint64_t b = h_connect(h, 1000, 1000);
    cr_assert_eq(h_open(h, b, "s/a", NULL, "r")->error, 0);
    h_tick(h, 0);
    cr_assert_eq(take_by_secret(h, b), PROTO_ERR_NOT_FOUND);
}

/* What it has done away with is of no concern any more, unless it asks for that again. */
CORE_TEST(return, after_taking_what_it_has_not_any_more, h_sharing)
{
    uint64_t a = h_connect(h, 1, 1), b = come(h, 1001), words[] = {7, 1};
    const uint64_t lease = h_create_now(h, a, NULL, "open", 100)->lease;
    const struct msg_take_params take = {.ticket = {words, 2}, .mode = MSG_STR("r")};

    h_request(h, a, MSG_SEND, &(struct msg_send_params){.lease = lease, .ticket = {words, 2}});
    const struct h_reply taken = *h_request(h, b, MSG_TAKE, &take);
    const uint64_t request = taken.id;
    cr_assert_eq(taken.error, 0);
    h_close(h, b, taken.lease);
    h_forget(h, b, taken.block);
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    uint64_t c = back(h, b, 1001);
    resume(h, c, (struct msg_resume_params){0});
    cr_assert(pool_named(h, "open")->unit);
    resume(h, c, (struct msg_resume_params){.repeats = {&request, 1}, .done = true});
    cr_assert_not(pool_named(h, "open")->unit);
}

/* The other one's is asked for as well. */
CORE_TEST(return, first_to_who_has_less, h_sharing)
{
    uint64_t a = come(h, 1000), b = come(h, 1001);

    more_names(h, a, 0);
    core_set_pieces(h->core, 1);
    saved_begin_restart(h);
    cr_assert(units_lack_user(h->core->units, 1000));
    cr_assert(h_hello(h, h_connect_as(h, 1001, 1001, h->pids[b]), b)->resumed);
    cr_assert(pool_named(h, "uid:1000")->unit);
}

/* ---- writers of ranges ---- */

struct writers {
    uint64_t conn[2], pair[2][2], block;
};

/* Two of them write an array, each its half. */
static void
two_writers(struct harness *h, struct writers *w)
{
    for (uint64_t i = 0; i < 2; i++) {
        w->conn[i] = h_connect_raw(h, 1000, 1000);
        cr_assert_eq(h_hello(h, w->conn[i], 0)->error, 0);
        const struct h_reply *reply = i ? h_open(h, w->conn[i], "x", NULL, "rw")
                                        : h_create_now(h, w->conn[i], "x", NULL, 100);
        w->pair[i][0] = reply->lease;
        w->pair[i][1] = reply->arrays[0].number;
        w->block = reply->arrays[0].block;
    }
}

static struct msg_begin_params
half(const struct writers *w, size_t i, bool again)
{
    static uint64_t range[2][2] = {{0, 50}, {50, 100}};

    return (struct msg_begin_params){.bracket = 77,
                                     .write = {w->pair[i], 1},
                                     .write_ranges = {range[i], 2},
                                     .again = again};
}

static void
both_write(struct harness *h, const struct writers *w)
{
    for (size_t i = 0; i < 2; i++) {
        const struct msg_begin_params p = half(w, i, false);
        h_begin_as(h, w->conn[i], p);
        cr_assert(h_is_open(h, w->conn[i]));
    }
}

static void
come_back(struct harness *h, struct writers *w, size_t i)
{
    const struct msg_begin_params p = half(w, i, true);

    uint64_t was = w->conn[i];
    w->conn[i] = back(h, was, 1000);
    books_moved(h, was, w->conn[i]);
    resume(h, w->conn[i],
           (struct msg_resume_params){.write = {w->pair[i], 2}, .blocks = {&w->block, 1}});
    cr_assert_eq(h_request(h, w->conn[i], MSG_BEGIN, &p)->error, 0);
    resume(h, w->conn[i], (struct msg_resume_params){.done = true});
}

/* What they write is whole when both have come back, and each has its half as before. */
CORE_TEST(return, while_others_write_other_ranges, NULL)
{
    struct writers w;

    two_writers(h, &w);
    both_write(h, &w);
    saved_restart(h);
    come_back(h, &w, 0);
    uint64_t c = h_connect(h, 1000, 1000), lease = h_open(h, c, "x", NULL, "rw")->lease;
    h_begin(h, c, lease, false);
    cr_assert_not(h->replies[c].seen, "one of them has not come back");
    come_back(h, &w, 1);
    h_end(h, w.conn[0], 77);
    cr_assert_not(h->replies[c].seen);
    h_end(h, w.conn[1], 77);
    h_tick(h, UINT64_C(1) << 32);
    cr_assert(h_is_open(h, c), "%s", h->replies[c].text);
}

/* Where one does not come back, all of it is abandoned, whoever ends the other half. */
CORE_TEST(return, when_one_of_several_writers_does_not, NULL)
{
    struct writers w;

    two_writers(h, &w);
    both_write(h, &w);
    saved_restart(h);
    come_back(h, &w, 0);
    h_exit(h, w.conn[1]);
    h_end(h, w.conn[0], 77);
    h_tick(h, UINT64_C(1) << 36);
    uint64_t c = h_connect(h, 1000, 1000), lease = h_open(h, c, "x", NULL, "rw")->lease;
    h_begin(h, c, lease, false);
    cr_assert_eq(h->replies[c].error, PROTO_ERR_ABANDONED);
}

enum death {
    ALIVE,
    DEAD_BEFORE, /* its context dies before the restart: it forgets the block then */
    DEAD_UNHEARD, /* the same, but the core that has died did not hear that it has forgotten it */
    DEAD_AFTER,   /* its context dies once it has come back */
};

static void
die_and_forget(struct harness *h, const struct writers *w, uint64_t page, bool dies)
{
    struct msg_close_params p = {.leases = {w->pair[0], 1}, .forget = {&w->block, 1}};

    if (dies)
        timeline_kill(h_slot(h, page, 0));
    books_closed(h, w->conn[0], w->pair[0][0]);
    books_forgotten(h, w->conn[0], w->block);
    h_notify(h, w->conn[0], MSG_CLOSE, &p);
}

/* The first of several writers has ended, and its stream has not stored the value, when it closes
 * the array and forgets its block. Returns what one is told who reads. */
static enum proto_error
read_of_who_forgets(struct harness *h, enum death death)
{
    struct writers w;

    two_writers(h, &w);
    both_write(h, &w);
    uint64_t page = h_page_new(h, w.conn[0]);
    h_end_at(h, w.conn[0], 77, page, 0);
    if (death == DEAD_BEFORE)
        die_and_forget(h, &w, page, true);
    if (death == DEAD_UNHEARD)
        timeline_kill(h_slot(h, page, 0));
    saved_restart(h);
    uint64_t was = w.conn[0];
    w.conn[0] = back(h, was, 1000);
    books_moved(h, was, w.conn[0]);
    if (death == ALIVE || death == DEAD_AFTER)
        resume(h, w.conn[0],
               (struct msg_resume_params){.write = {w.pair[0], 2}, .blocks = {&w.block, 1}});
    else if (death == DEAD_UNHEARD)
        books_forgotten(h, w.conn[0], w.block);
    resume(h, w.conn[0], (struct msg_resume_params){.pages = {&page, 1}, .done = true});
    if (death == ALIVE || death == DEAD_AFTER)
        die_and_forget(h, &w, page, death == DEAD_AFTER);
    come_back(h, &w, 1);
    h_end(h, w.conn[1], 77);
    h_tick(h, UINT64_C(1) << 32);
    uint64_t c = h_connect(h, 1000, 1000), lease = h_open(h, c, "x", NULL, "rw")->lease;
    h_begin(h, c, lease, false);
    return h_is_open(h, c) ? 0 : h->replies[c].error;
}

/* Who forgets a block is done with what it wrote there; not if its context has died. */
CORE_TEST(return, and_forget_what_was_written, NULL)
{
    cr_assert_eq(read_of_who_forgets(h, ALIVE), 0);
}

CORE_TEST(return, and_forget_what_was_lost_before, NULL)
{
    cr_assert_eq(read_of_who_forgets(h, DEAD_BEFORE), PROTO_ERR_ABANDONED);
}

CORE_TEST(return, having_forgotten_what_was_lost, NULL)
{
    cr_assert_eq(read_of_who_forgets(h, DEAD_UNHEARD), PROTO_ERR_ABANDONED);
}

CORE_TEST(return, and_forget_what_is_lost_then, NULL)
{
    cr_assert_eq(read_of_who_forgets(h, DEAD_AFTER), PROTO_ERR_ABANDONED);
}

/* Nothing is left of the array but what its writer's stream does: the memory goes as soon as he has
 * unmapped it. */
CORE_TEST(return, and_forget_a_block_that_his_stream_writes, NULL)
{
    uint64_t a = come(h, 1000), block = h->replies[a].block, lease = h->replies[a].lease;
    uint64_t page = h_page_new(h, a);

    h_end_at(h, a, h_begun(h, a, lease, true), page, 0);
    h_close(h, a, lease);
    saved_restart(h);
    uint64_t conn = back(h, a, 1000);
    books_moved(h, a, conn);
    resume(h, conn,
           (struct msg_resume_params){.blocks = {&block, 1},
                                      .pages = {&page, 1},
                                      .done = true});
    h_finish_all(h);
    cr_assert_eq(h_counts(h).blocks, 1);
    h_forget(h, conn, block);
    h_finish_all(h);
    cr_assert_eq(h_counts(h).blocks, 0);
}

/* Connections that have the same bits as the writers, and not their memory, do not count: one that
 * has hung up before the restart, one that does not come back. */
CORE_TEST(return, beside_others_that_do_not, NULL)
{
    uint64_t alike[2] = {0};
    struct writers w;

    two_writers(h, &w);
    for (uint64_t c = 0; c < w.conn[1] + FORMER_BITS;) {
        c = come(h, 1001);
        cr_assert_eq(h->replies[c].error, 0);
        for (size_t i = 0; i < 2; i++)
            if (c == w.conn[i] + FORMER_BITS)
                alike[i] = c;
        if (c != alike[0] && c != alike[1])
            h_exit(h, c);
    }
    both_write(h, &w);
    h_hangup(h, alike[0]);
    saved_restart(h);
    h_exit(h, alike[1]);
    come_back(h, &w, 0);
    come_back(h, &w, 1);
    h_end(h, w.conn[0], 77);
    h_end(h, w.conn[1], 77);
    h_tick(h, UINT64_C(1) << 32);
    uint64_t c = h_connect(h, 1000, 1000), lease = h_open(h, c, "x", NULL, "rw")->lease;
    h_begin(h, c, lease, false);
    cr_assert(h_is_open(h, c), "%s", h->replies[c].text);
}

static void
many_brackets(struct core_config *config)
{
    config->limits.brackets = 4 * SECTIONS_MAX;
}

/* Others have begun to wait for as many ranges as there may be. */
CORE_TEST(return, to_ranges_of_their_own, many_brackets)
{
    struct writers w;

    two_writers(h, &w);
    both_write(h, &w);
    saved_restart(h);
    uint64_t c = h_connect(h, 1000, 1000), lease = h_open(h, c, "x", NULL, "rw")->lease;
    for (uint64_t i = 0; i < SECTIONS_MAX; i++) {
        const uint64_t range[2] = {i, i + 1};
        h_begin_as(h, c,
                   (struct msg_begin_params){.bracket = 100 + i,
                                             .read = {&lease, 1},
                                             .read_ranges = {range, 2}});
        cr_assert_not(h->replies[c].seen, "while the writers are not back");
    }
    come_back(h, &w, 0);
    come_back(h, &w, 1);
    uint64_t d = h_connect(h, 1000, 1000), all = h_open(h, d, "x", NULL, "rw")->lease;
    h_begin(h, d, all, false);
    h_end(h, w.conn[0], 77);
    h_tick(h, UINT64_C(1) << 32);
    cr_assert(h_is_open(h, c) && !h->replies[d].seen, "the other half is being written");
    h_end(h, w.conn[1], 77);
    cr_assert(h_is_open(h, d), "%s", h->replies[d].text);
}

/* Who may come back may have it; who has come back says so. */
CORE_TEST(return, before_what_was_published_is_written_again, h_sharing)
{
    static const int64_t bytes[] = {100};
    const struct msg_member one = {.key = MSG_STR("a"),
                                   .typestr = MSG_STR("|u1"),
                                   .shape = {bytes, 1}};
    uint64_t a = come(h, 1000), b = come(h, 1000), sets[2], wholes[2], write[8];

    h_close(h, a, h->replies[a].lease);
    h_close(h, b, h->replies[b].lease);
    for (int i = 0; i < 2; i++) {
        struct h_reply whole = h_made(h, a, 1000, exclusive), set = h_small(h, a, 0);
        wholes[i] = whole.lease;
        sets[i] = set.lease;
        write[4 * i] = set.lease;
        write[4 * i + 1] = set.arrays[0].number;
        write[4 * i + 2] = whole.lease;
        write[4 * i + 3] = whole.arrays[0].number;
        cr_assert_eq(h_stage_parts(h, a, sets[i], wholes[i], &one, 1, false)->error, 0);
        h_publish(h, a, sets[i], "s/");
        if (i == 0)
            cr_assert_eq(h_open(h, b, "s/a", NULL, "r")->error, 0);
    }
    const uint64_t read[] = {h->replies[b].lease, h->replies[b].arrays[0].number};
    uint64_t generation = h_publish(h, a, sets[0], "s/")->generation;
    h_publish(h, a, sets[1], "s/");
    saved_restart(h);
    a = back(h, a, 1000);
    resume(h, a, (struct msg_resume_params){.write = {write, 8}, .done = true});
    h_vacate(h, a, sets[0], wholes[0], 0);
    h_tick(h, NSEC_PER_SEC);
    cr_assert_not(h->replies[a].seen, "b may come back");
    b = back(h, b, 1000);
    resume(h, b, (struct msg_resume_params){.read = {read, 2}, .done = true});
    h_tick(h, NSEC_PER_SEC);
    cr_assert_not(h->replies[a].seen, "b has come back");
    h_close(h, b, read[0]);
    h_tick(h, NSEC_PER_SEC);
    cr_assert(h->replies[a].seen);
    cr_assert_eq(h->replies[a].error, 0, "%s", h->replies[a].text);

    /* and what is being written is not found after one more */
    saved_restart(h);
    cr_assert_eq(h_open_generation(h, h_connect(h, 1000, 1000), "s/", NULL, generation)->error,
                 PROTO_ERR_STALE);
    a = back(h, a, 1000);
    resume(h, a, (struct msg_resume_params){.write = {write, 8}, .done = true});
    cr_assert_eq(h_open_generation(h, a, "s/", NULL, generation)->error, PROTO_ERR_STALE);
    h_unlink(h, a, "s/", NULL);
}
