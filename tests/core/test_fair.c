/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that waits for releases waits for those that were due when it came, whatever others do
 * meanwhile, and is told of no failed block of theirs; what a wait, a retry, a flush or a deferral
 * is spent on.
 */
#include "harness.h"

#include "caid_test.h"

/* Finishes the first job of that type, which there has to be. */
static void
finish(struct harness *h, enum core_action_type type, int error)
{
    size_t i = h_job(h, type);

    cr_assert_lt(i, H_JOBS);
    h_finish(h, i, error);
}

static void
finish_release_on(struct harness *h, uint32_t device)
{
    for (size_t i = 0; i < h->n_jobs; i++)
        if (h->jobs[i].type == CORE_RELEASE && h->jobs[i].device == device) {
            h_finish(h, i, 0);
            return;
        }
    cr_assert_fail("nothing is released on device %u", device);
}

/* Makes a block of its own and lets it go, while something else is released. */
static void
make_and_doom(struct harness *h, uint64_t conn, int64_t bytes)
{
    h_create_as(h, conn, bytes, exclusive);
    if (!h->replies[conn].seen)
        finish(h, CORE_ALLOC, 0);
    cr_assert_eq(h->replies[conn].error, 0, "%s", h->replies[conn].text);
    h_close(h, conn, h->replies[conn].lease);
}

/* ---- rounds ---- */

CAID_TEST(fair, create_is_served_although_others_doom_during_each_release)
{
    struct harness h;

    h_init(&h, NULL); /* empty blocks go at once */
    uint64_t a = h_connect(&h, 1000, 1000), b = h_connect(&h, 1001, 1001),
             c = h_connect(&h, 1002, 1002);
    h_made(&h, c, 30 * MIB, exclusive);
    struct h_reply big = h_made(&h, b, 10 * MIB, exclusive),
                   second = h_made(&h, b, 8 * MIB, exclusive);
    h_close(&h, b, big.lease);
    h_close(&h, b, second.lease);
    h_create_as(&h, a, 20 * MIB, exclusive);
    finish(&h, CORE_ALLOC, 0); /* 16 MiB are free */
    cr_assert_not(h.replies[a].seen);
    make_and_doom(&h, b, MIB);
    finish(&h, CORE_RELEASE, 0);
    cr_assert_eq(h_job(&h, CORE_ALLOC), H_JOBS, "two blocks were to go when it came");
    make_and_doom(&h, b, 4 * MIB);
    finish(&h, CORE_RELEASE, 0);
    cr_assert_lt(h_job(&h, CORE_RELEASE), H_JOBS, "there is always one more");
    finish(&h, CORE_ALLOC, 0);
    cr_assert(h.replies[a].seen);
    cr_assert_eq(h.replies[a].error, 0, "%s", h.replies[a].text);
    h_deinit(&h);
}

static void
one_thread(struct core_config *config)
{
    config->threads = 1;
    config->limits.jobs = 200;
    config->limits.leases = 300;
    config->blocks = 200;
}

CORE_TEST(fair, release_does_not_queue_behind_its_uids_creates, one_thread)
{
    int n = 0;

    h->capacity[0] = UINT64_C(1) << 40;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    struct h_reply mine = h_small(h, a, 100), other = h_small(h, b, 100);
    for (int i = 0; i < 150; i++)
        h_create(h, a, NULL, NULL, 100);
    h_close(h, a, mine.lease);
    h_close(h, b, other.lease);
    h_flush(h, b);
    while (!h->replies[b].seen) {
        h_finish(h, 0, 0);
        n++;
    }
    cr_assert_lt(n, 10, "%d driver calls until a block of another uid has gone", n);
    h_finish_all(h);
}

/* ---- who has gone ---- */

static void
one_thread_sharing(struct core_config *config)
{
    h_sharing(config);
    one_thread(config);
}

/* Of the calls that waited for their turn, the one that somebody else waits for as well is made. */
CORE_TEST(fair, calls_that_nobody_waits_for_are_not_made, one_thread_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    for (int i = 0; i < 10; i++)
        h_create_as(h, a, MIB, exclusive);
    h_create(h, a, "x", NULL, 100);
    h_create(h, b, NULL, NULL, 100);
    h_request(h, a, MSG_MEMORY_INFO, &(struct msg_memory_params){0});
    cr_assert_eq(h_counts(h).jobs, 12);
    h_hangup(h, a);
    cr_assert_eq(h_counts(h).jobs, 2);
    cr_assert_eq(h_counts(h).arrays, 1);
    cr_assert_eq(h_create(h, b, "x", NULL, 0)->error, 0, "the name is free");
    h_finish_all(h);
    cr_assert_eq(h->n_allocs, 2);
    cr_assert_eq(h->replies[b].error, 0, "%s", h->replies[b].text);
    cr_assert_gt(h->replies[b].block, 0);
}

CAID_TEST(fair, calls_whose_turn_has_not_come_at_stop)
{
    struct harness h;

    h_init(&h, one_thread);
    uint64_t a = h_connect(&h, 1000, 1000);
    h_close(&h, a, h_small(&h, a, 100).lease); /* its release is given out */
    h_flush(&h, a);
    for (int i = 0; i < 3; i++)
        h_create(&h, a, NULL, NULL, 100);
    core_stop(h.core);
    h_finish(&h, 0, 0);
    cr_assert_eq(h.n_jobs, 0);
    cr_assert_eq(core_jobs(h.core), 0);
    h_hangup(&h, a);
    core_free(h.core);
}

/* ---- out of memory ---- */

/* a waits for memory; meanwhile b asks for a block that is larger than need be, and a's second try
 * lands there. */
CORE_TEST(fair, retry_is_not_spent_on_anothers_grown_block, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             z = h_connect(h, 2000, 2000);
    for (int i = 0; i < 4; i++)
        h_small(h, a, 4 * MIB);
    h_made(h, z, 46 * MIB, exclusive);
    struct h_reply going = h_made(h, z, 2 * MIB, exclusive);
    h_close(h, z, going.lease);
    h_flush(h, z);
    h_create(h, a, NULL, NULL, MIB);
    finish(h, CORE_ALLOC, 0); /* 16 MiB */
    finish(h, CORE_ALLOC, 0); /* 2 MiB: neither */
    cr_assert_not(h->replies[a].seen);
    cr_assert_eq(h_job(h, CORE_ALLOC), H_JOBS, "it waits for the release");
    h_create(h, b, NULL, NULL, MIB);
    cr_assert_gt(h->jobs[h_job(h, CORE_ALLOC)].size, 2 * MIB);
    finish(h, CORE_RELEASE, 0);
    cr_assert_eq(h->n_jobs, 1, "there is room in b's");
    h_finish_all(h);
    cr_assert_eq(h->replies[a].error, 0, "%s", h->replies[a].text);
    cr_assert_eq(h->replies[b].error, 0, "%s", h->replies[b].text);
}

CORE_TEST(fair, grown_block_that_cannot_be_had_costs_nobody_anything, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), z = h_connect(h, 2000, 2000);
    for (int i = 0; i < 4; i++)
        h_small(h, a, 4 * MIB);
    h_made(h, z, 30 * MIB, exclusive);
    h_close(h, z, h_made(h, z, 4 * MIB, exclusive).lease);
    h_tick(h, H_AGE_NS); /* that one is in reserve, */
    h_defer(h, z, true);
    h_close(h, z, h_made(h, z, 6 * MIB, exclusive).lease); /* and this one held back */
    cr_assert_eq(h_counts(h).pending, 1);
    uint64_t reserve = h_counts(h).reserve_bytes;
    cr_assert_eq(reserve, 4 * MIB);

    h_create(h, a, NULL, NULL, 512);
    cr_assert_gt(h->jobs[0].size, 2 * MIB);
    h_finish(h, 0, 0);
    cr_assert_eq(h->n_jobs, 1);
    cr_assert_eq(h->jobs[0].type, CORE_ALLOC, "at once");
    cr_assert_eq(h->jobs[0].size, 2 * MIB);
    h_finish(h, 0, 0);
    cr_assert_eq(h->replies[a].error, 0, "%s", h->replies[a].text);
    cr_assert_eq(h_counts(h).pending, 1);
    cr_assert_eq(h_counts(h).reserve_bytes, reserve);
    cr_assert_eq(h->n_releases, 0);
}

/* ---- quota ---- */

/* Of 16 MiB, 8 are in reserve: 6 on the first device, 2 on the second. Both have to go, in
 * whatever order that happens. */
CAID_TEST(fair, quota_waits_for_both_devices)
{
    struct msg_create_params on_second = in_shared;
    struct h_reply first[3];
    struct harness h;

    on_second.device = MSG_STR(H_SECOND_DEVICE);
    for (int order = 0; order < 2; order++) {
        h_init(&h, h_two_devices);
        uint64_t a = h_connect(&h, 1, 10);
        for (int i = 0; i < 3; i++)
            first[i] = h_made(&h, a, 2 * MIB, in_shared);
        struct h_reply second = h_made(&h, a, 2 * MIB, on_second);
        for (int i = 0; i < 3; i++)
            h_close(&h, a, first[i].lease);
        h_close(&h, a, second.lease);
        cr_assert_not(h_create_as(&h, a, 16 * MIB, in_shared)->seen);
        if (order)
            finish_release_on(&h, 1);
        for (int i = 0; i < 3; i++) {
            cr_assert_not(h.replies[a].seen, "%s", h.replies[a].text);
            finish_release_on(&h, 0);
        }
        if (!order)
            finish_release_on(&h, 1);
        h_finish_all(&h);
        cr_assert_eq(h.replies[a].error, 0, "%s", h.replies[a].text);
        h_deinit(&h);
    }
}

/* Who waited for the second device finds what has run empty on the first meanwhile: its release
 * starts in the same event. */
CORE_TEST(fair, quota_goes_on_to_another_device, h_two_devices)
{
    struct msg_create_params on_second = in_shared;

    on_second.device = MSG_STR(H_SECOND_DEVICE);
    uint64_t a = h_connect(h, 1, 10);
    struct h_reply first = h_made(h, a, 8 * MIB, in_shared);
    h_close(h, a, h_made(h, a, 4 * MIB, on_second).lease);
    cr_assert_not(h_create_as(h, a, 12 * MIB, in_shared)->seen);
    h_close(h, a, first.lease);
    finish_release_on(h, 1);
    finish_release_on(h, 0);
    h_finish_all(h);
    cr_assert_eq(h->replies[a].error, 0, "%s", h->replies[a].text);
}

CAID_TEST(fair, quota_is_not_denied_by_anothers_deferral)
{
    static const struct msg_create_params sharing = {.pool = {"shared", 6}};
    struct harness h;

    for (int i = 0; i < 2; i++) {
        h_init(&h, h_sharing);
        uint64_t root = h_connect(&h, 0, 0), b = h_connect(&h, 1, 10);
        h_defer(&h, root, true);
        struct h_reply one = h_made(&h, root, 4 * MIB, i ? sharing : in_shared),
                       two = h_made(&h, root, 4 * MIB, i ? sharing : in_shared);
        h_close(&h, root, one.lease);
        h_close(&h, root, two.lease);
        h_age(&h);
        cr_assert_eq(h_counts(&h).pending, 2, "held back");
        cr_assert_not(h_create_as(&h, b, 12 * MIB, in_shared)->seen);
        h_finish_all(&h);
        cr_assert_eq(h.replies[b].error, 0, "%s", h.replies[b].text);
        h_deinit(&h);
    }
}

/* ---- flush ---- */

CORE_TEST(fair, flush_counts_what_the_caller_may_write, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001),
             root = h_connect(h, 0, 0);
    struct h_reply theirs = h_small(h, a, 3 * MIB), own = h_small(h, b, 100);
    h_close(h, a, theirs.lease);
    h_close(h, b, own.lease);
    h_flush(h, b);
    h_flush(h, root);
    h_finish_all(h);
    cr_assert_eq(h->replies[b].flush.blocks, 1);
    cr_assert_eq(h->replies[b].flush.bytes, 2 * MIB);
    cr_assert_eq(h->replies[root].flush.blocks, 2);
    cr_assert_eq(h->replies[root].flush.bytes, 6 * MIB);
}

/* That what it waits for was called off it has to learn, whose block that was not. */
CORE_TEST(fair, flush_names_no_block_of_others_that_failed, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001),
             c = h_connect(h, 1002, 1002);
    struct h_reply theirs = h_small(h, a, 3 * MIB), own = h_small(h, b, 100);
    h_close(h, a, theirs.lease);
    h_close(h, b, own.lease);
    h_flush(h, a);
    h_flush(h, b);
    cr_assert(h_flush(h, c)->seen, "it waits for nothing, so nothing of it fails");
    finish(h, CORE_RELEASE, -EIO);
    cr_assert_eq(h->replies[c].error, 0);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_DRIVER);
    cr_assert(strstr(h->replies[a].text, "block"), "%s", h->replies[a].text);
    cr_assert_eq(h->replies[b].error, PROTO_ERR_DRIVER);
    cr_assert_not(strstr(h->replies[b].text, "block"), "%s", h->replies[b].text);
    cr_assert_not(strstr(h->replies[b].text, "MiB"), "%s", h->replies[b].text);
    h_flush(h, b);
    h_finish_all(h);
    cr_assert_eq(h->replies[b].flush.blocks, 1);
}

CAID_TEST(fair, flush_of_a_daemon_that_stops_is_refused)
{
    struct harness h;

    h_init(&h, NULL);
    uint64_t a = h_connect(&h, 1000, 1000);
    h_close(&h, a, h_small(&h, a, 100).lease);
    core_stop(h.core);
    cr_assert_eq(h_flush(&h, a)->error, PROTO_ERR_SHUTDOWN);
    h_finish_all(&h);
    h_disconnect(&h, a);
    core_free(h.core);
}

/* ---- time ---- */

/* A hang-up and an exit carry no time. */
CORE_TEST(fair, entry_of_a_hangup_after_idle_time_is_not_due_at_once, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_connect(h, 1000, 1000);
    h_small(h, a, 100);
    h->now_ns += 10 * H_AGE_NS;
    core_set_time(h->core, h->now_ns);
    h_disconnect(h, a);
    cr_assert_eq(h_counts(h).pending, 1);
    cr_assert_eq(core_deadline_ns(h->core), h->now_ns + H_AGE_NS);
    h_tick(h, 0);
    cr_assert_eq(h_counts(h).pending, 1);
}

/* ---- many ---- */

/* Without the harness, whose books are for hundreds of blocks, not for thousands. */
#define MANY UINT64_C(20000)

struct crowd {
    struct core *core;
    uint32_t id;
    uint64_t lease;         /* of the last create */
    uint64_t handles;       /* so many have been made, numbered from 1 */
    uint64_t job, released; /* of the release under way; 0: none */
    bool failed;            /* the last reply was an error */
};

static void
crowd_reply(struct crowd *crowd, const struct core_action *a)
{
    struct msg_arrays_result result;
    struct msg m;

    cr_assert_eq(msg_parse(&m, a->packet, a->n_packet), 0);
    crowd->failed = m.error;
    if (!m.error && crowd->id > 1 && crowd->id <= MANY + 1) {
        cr_assert_eq(msg_decode_result(&m, MSG_CREATE, &result), 0);
        crowd->lease = result.arrays[0].lease;
    }
    msg_deinit(&m);
}

static void
crowd_run(struct crowd *crowd)
{
    struct core_alloc_result result = {.text = "model", .fd = -1};
    struct core_action a;

    while (core_next(crowd->core, &a)) {
        switch (a.type) {
        case CORE_SEND: crowd_reply(crowd, &a); break;
        case CORE_ALLOC:
            result.handle = ++crowd->handles;
            result.fd = (int)result.handle;
            core_alloc_done(crowd->core, a.job, &result);
            break;
        case CORE_RELEASE:
            cr_assert_not(crowd->job, "one at a time");
            crowd->job = a.job;
            crowd->released = a.handle;
            break;
        default: cr_assert_fail("action %d", (int)a.type);
        }
    }
}

static void
crowd_ask(struct crowd *crowd, enum msg_method method, const void *params)
{
    struct msg_buf buf = {0};

    if (method == MSG_CLOSE)
        cr_assert_eq(msg_encode_notify(&buf, method, params), 0);
    else
        cr_assert_eq(msg_encode_request(&buf, ++crowd->id, method, params), 0);
    core_receive(crowd->core, 1, buf.data, buf.n, 0);
    msg_buf_deinit(&buf);
    crowd_run(crowd);
}

static void
crowd_released(struct crowd *crowd, int error)
{
    uint64_t job = crowd->job;

    crowd->job = 0;
    core_release_done(crowd->core, job, error, error ? 999 : 0, "model");
    crowd_run(crowd);
}

static void
crowd_start(struct crowd *crowd)
{
    static const struct core_device device = {.name = "model",
                                              .total = UINT64_C(1) << 40,
                                              .granularity = H_BLOCK};
    const struct core_config config = {
        .server = "caid test",
        .driver = "soft",
        .driver_path = "/model",
        .uid = 900,
        .limits =
            {.connections = 1, .arrays = MANY, .leases = MANY, .jobs = 2, .fds = 2 * MANY},
        .memory = {.block_size = H_BLOCK, .reserve = UINT64_MAX, .pending_age_ns = H_AGE_NS},
        .blocks = MANY,
        .threads = 2,
        .user_mode = 0600,
        .devices = &device,
        .n_devices = 1,
    };
    const struct core_peer peer = {.uid = 1000, .gid = 1000, .pid = 100};

    cr_assert_eq(core_new(&crowd->core, &config, 0), 0);
    cr_assert_eq(core_connect(crowd->core, 1, &peer, 0), 0);
    crowd_ask(crowd, MSG_HELLO, &(struct msg_hello_params){.version_min = 1, .version_max = 1});
}

CAID_TEST(fair, thousands_of_blocks_doomed_and_spared_keep_their_order)
{
    struct crowd crowd = {0};
    int64_t bytes = 1;
    struct msg_create_params create = {.typestr = MSG_STR("|u1"),
                                       .shape = {.v = &bytes, .n = 1}};
    uint64_t *leases = calloc(MANY, sizeof(*leases)), n = 0, last = 2;

    crowd_start(&crowd);
    for (uint64_t i = 0; i < MANY; i++) {
        crowd_ask(&crowd, MSG_CREATE, &create);
        cr_assert_not(crowd.failed);
        leases[i] = crowd.lease;
    }
    for (uint64_t i = 0; i < MANY; i++)
        crowd_ask(&crowd, MSG_CLOSE,
                  &(struct msg_close_params){.leases = {.v = &leases[i], .n = 1}});
    cr_assert_not(crowd.job);
    crowd_ask(&crowd, MSG_FLUSH, &(struct msg_flush_params){0});
    cr_assert_eq(crowd.released, 1);
    crowd_released(&crowd, 0);
    cr_assert_eq(crowd.released, 2);
    crowd_released(&crowd, -EIO); /* spares the others */
    cr_assert(crowd.failed);
    cr_assert_not(crowd.job);
    core_check(crowd.core);

    crowd_ask(&crowd, MSG_FLUSH, &(struct msg_flush_params){0});
    crowd_ask(&crowd, MSG_CREATE, &create); /* saves one of them */
    cr_assert_eq(crowd.handles, MANY);
    core_check(crowd.core);
    for (; crowd.job; n++) {
        cr_assert_gt(crowd.released, last, "the oldest first");
        last = crowd.released;
        crowd_released(&crowd, 0);
    }
    cr_assert_eq(n, MANY - 3, "all but one that went, one that failed and one that was saved");
    core_check(crowd.core);
    core_hangup(crowd.core, 1);
    core_exited(crowd.core, 1);
    core_free(crowd.core);
    free(leases);
}
