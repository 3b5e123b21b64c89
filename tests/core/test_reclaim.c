/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How memory goes back: the deallocation queue, the reserve of empty blocks, quota, out of memory,
 * deferring, flush, releases that fail.
 */
#include "harness.h"

#include "caid_test.h"

/* ---- the queue and the reserve ---- */

static uint64_t
pending(struct harness *h)
{
    return h_counts(h).pending;
}

CORE_TEST(reclaim, queue_by_count, h_sharing)
{
    struct h_reply arrays[12];

    uint64_t a = h_connect(h, 1000, 1000);
    for (size_t i = 0; i < ARRAY_SIZE(arrays); i++)
        arrays[i] = h_small(h, a, 100);
    for (size_t i = 0; i < 10; i++)
        h_close(h, a, arrays[i].lease);
    cr_assert_eq(pending(h), 10, "no more than 10: they wait");
    cr_assert_eq(h_counts(h).arrays, 2);
    h_close(h, a, arrays[10].lease);
    cr_assert_eq(pending(h), 0);
    h_close(h, a, arrays[11].lease);
    cr_assert_eq(pending(h), 1);
    cr_assert_eq(h_memory_info(h, a)->flushes, 1);
}

static void
empty_queue(struct core_config *config)
{
    h_sharing(config);
    config->memory.pending_count = 0;
}

/* Each block by its own age. */
CORE_TEST(reclaim, reserve_goes_one_by_one, empty_queue)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply one = h_made(h, a, 100, exclusive), two = h_made(h, a, 100, exclusive);
    h_close(h, a, one.lease);
    h_tick(h, H_AGE_NS / 2);
    h_close(h, a, two.lease);
    cr_assert_eq(h_counts(h).reserve_bytes, 2 * H_BLOCK);
    h_tick(h, H_AGE_NS / 2);
    h_finish_all(h);
    cr_assert_eq(h_counts(h).reserve_bytes, H_BLOCK, "the first one has gone");
    h_tick(h, H_AGE_NS / 2);
    h_finish_all(h);
    cr_assert_eq(h_counts(h).reserve_bytes, 0);
}

/* By one of the same size, or up to an eighth smaller. */
CAID_TEST(reclaim, own_blocks_are_reused_by_size)
{
    struct harness h;

    static const struct {
        int64_t mib;
        bool reused;
    } cases[] = {{8, true}, {7, true}, {6, false}, {9, false}};

    for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        h_init(&h, h_sharing);
        uint64_t a = h_connect(&h, 1000, 1000);
        struct h_reply first = h_small(&h, a, 8 * MIB);
        h_close(&h, a, first.lease);
        if (i % 2)
            h_tick(&h, H_AGE_NS); /* from the reserve; else from the queue */
        struct h_reply second = h_small(&h, a, cases[i / 2].mib * MIB);
        cr_assert_eq(second.block == first.block, cases[i / 2].reused, "case %zu", i);
        h_deinit(&h);
    }
}

/* ---- too little ---- */

/* What others close meanwhile is flushed and waited for as well, but not for ever. */
CAID_TEST(reclaim, quota_waits_for_one_round_more_than_there_are_devices)
{
    struct harness h;
    struct h_reply later[4];

    for (size_t n = 1; n <= 3; n++) {
        h_init(&h, h_sharing);
        uint64_t a = h_connect(&h, 1, 1), b = h_connect(&h, 1, 1);
        h_made(&h, a, 6 * MIB, in_shared);
        for (size_t i = 0; i < n; i++)
            later[i] = h_made(&h, b, 2 * MIB, in_shared);
        h_create_as(&h, a, 10 * MIB, in_shared);
        cr_assert_eq(h.replies[a].error, PROTO_ERR_QUOTA, "nothing to wait for");
        h_close(&h, b, later[0].lease);
        cr_assert_not(h_create_as(&h, a, 10 * MIB, in_shared)->seen);
        for (size_t i = 1; i < n; i++) {
            h_close(&h, b, later[i].lease); /* while the one before is released */
            h_finish(&h, h_job(&h, CORE_RELEASE), 0);
            cr_assert_eq(h.replies[a].seen, i == 2);
        }
        h_finish_all(&h);
        cr_assert_eq(h.replies[a].error, n <= 2 ? 0 : PROTO_ERR_QUOTA, "%zu blocks", n);
        h_deinit(&h);
    }
}

/* Neither in shared blocks nor in own ones. */
CAID_TEST(reclaim, quota_respects_deferral)
{
    struct harness h;
    struct msg_create_params legacy = in_shared;

    legacy.memory = MSG_STR("legacy");
    for (int i = 0; i < 2; i++) {
        legacy.exclusive = i == 1;
        h_init(&h, h_sharing);
        uint64_t a = h_connect(&h, 1, 1);
        h_defer(&h, a, true);
        struct h_reply array = h_made(&h, a, 4 * MIB, legacy);
        h_close(&h, a, array.lease);
        h_forget(&h, a, array.block);
        h_create_as(&h, a, 16 * MIB, in_shared);
        h_finish_all(&h);
        cr_assert_eq(h.replies[a].error, PROTO_ERR_QUOTA);
        cr_assert_eq(pending(&h), 1);
        h_defer(&h, a, false);
        cr_assert_eq(h_made(&h, a, 16 * MIB, in_shared).error, 0);
        h_deinit(&h);
    }
}

/* Room to grow is asked for only where the quota has it; host memory is not in it. */
CORE_TEST(reclaim, quota_and_growth, h_sharing)
{
    struct msg_create_params params = {.pool = MSG_STR("shared")};

    uint64_t a = h_connect(h, 1, 1);
    h_made(h, a, 6 * MIB, params);
    for (int i = 0; i < 5; i++)
        h_made(h, a, 2 * MIB, params);
    cr_assert_eq(h->live_bytes, 16 * MIB);
    cr_assert_eq(h_create_as(h, a, 1, params)->error, PROTO_ERR_QUOTA);
    params.memory = MSG_STR("pinned");
    h_made(h, a, 20 * MIB, params);
}

/* What another uid has in queue and reserve is flushed, and everyone who waited tries once more. */
CORE_TEST(reclaim, out_of_memory_flushes_and_retries, h_sharing)
{
    h->capacity[0] = 8 * MIB;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001),
             c = h_connect(h, 1001, 1001);
    struct h_reply one = h_made(h, a, 4 * MIB, exclusive),
                   two = h_made(h, a, 4 * MIB, exclusive);
    h_close(h, a, one.lease);
    h_tick(h, H_AGE_NS); /* in reserve */
    h_close(h, a, two.lease);
    cr_assert_eq(pending(h), 1);

    h_create(h, b, NULL, NULL, MIB);
    h_create(h, c, NULL, NULL, MIB);
    cr_assert_eq(h->n_jobs, 1, "both wait for one block");
    h_finish(h, 0, 0); /* out of memory */
    cr_assert_not(h->replies[b].seen || h->replies[c].seen);
    cr_assert_eq(pending(h), 0);
    cr_assert_eq(h->n_jobs, 1, "one release at a time");
    cr_assert_eq(h->jobs[0].type, CORE_RELEASE);
    h_finish(h, 0, 0);
    cr_assert_eq(h->jobs[0].type, CORE_RELEASE);
    cr_assert_eq(h->n_jobs, 1);
    h_finish(h, 0, 0);
    cr_assert_eq(h->jobs[0].type, CORE_ALLOC);
    h_finish_all(h);
    cr_assert(h->replies[b].seen && !h->replies[b].error, "%s", h->replies[b].text);
    cr_assert(h->replies[c].seen && !h->replies[c].error, "%s", h->replies[c].text);
    cr_assert_eq(h->replies[b].block, h->replies[c].block);
}

CORE_TEST(reclaim, deferral_nests_and_ends_with_its_connection, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    cr_assert_eq(h_defer(h, a, false)->error, PROTO_ERR_INVALID);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(h_defer(h, a, true)->error, 0);
    cr_assert_eq(h_defer(h, a, true)->error, PROTO_ERR_LIMIT);
    for (int i = 0; i < 999; i++)
        h_defer(h, a, false);
    cr_assert_eq(h_defer(h, b, false)->error, PROTO_ERR_INVALID, "not one's own");
    struct h_reply array = h_small(h, b, 100);
    h_close(h, b, array.lease);
    h_age(h);
    cr_assert_eq(pending(h), 1, "of the uid, by any connection");
    h_disconnect(h, a);
    h_age(h);
    cr_assert_eq(pending(h), 0);
}

/* ---- releases ---- */

CORE_TEST(reclaim, flush_answers_with_what_went, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    cr_assert(h_flush(h, a)->seen, "nothing to do");
    cr_assert_eq(h->replies[a].flush.entries, 0);
    struct h_reply one = h_made(h, a, 3 * MIB, exclusive), two = h_small(h, a, 100),
                   stays = h_small(h, a, 100);
    h_close(h, a, one.lease);
    h_close(h, a, two.lease);
    cr_assert_not(h_flush(h, a)->seen, "a release is under way");
    h_finish_all(h);
    cr_assert_eq(h->replies[a].error, 0);
    cr_assert_eq(h->replies[a].flush.entries, 2);
    cr_assert_eq(h->replies[a].flush.blocks, 1);
    cr_assert_eq(h->replies[a].flush.bytes, 4 * MIB);
    h_close(h, a, stays.lease);
}

CORE_TEST(reclaim, failing_release_writes_its_block_off, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply one = h_made(h, a, 4 * MIB, exclusive),
                   two = h_made(h, a, 2 * MIB, exclusive);
    h_close(h, a, one.lease);
    h_close(h, a, two.lease);
    h_flush(h, a);
    uint64_t size = h->jobs[0].size;
    h_finish(h, 0, -EIO);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_DRIVER);
    cr_assert_eq(h->n_jobs, 0, "what was to follow waits on");
    const struct msg_memory_info *m = h_memory_info(h, a);
    cr_assert_eq(m->quarantined, 1);
    cr_assert_eq(m->quarantined_bytes, size);
    cr_assert_eq(m->used, 6 * MIB - size);
    cr_assert_eq(m->blocks, 1);
    cr_assert_eq(h_request(h, a, MSG_STATUS, &(struct msg_none){})->status.release_errors, 1);

    h_flush(h, a);
    h_finish_all(h);
    cr_assert_eq(h->replies[a].error, 0);
    cr_assert_eq(h->replies[a].flush.blocks, 1);
    cr_assert_eq(h->live_bytes, 0);
}

/* But for root and whoever runs the daemon, of one's own entries. */
CORE_TEST(reclaim, flush_is_of_ones_own, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001),
             root = h_connect(h, 0, 0);
    struct h_reply array = h_small(h, a, 100);
    h_close(h, a, array.lease);
    cr_assert_eq(h_flush(h, b)->flush.entries, 0);
    cr_assert_eq(pending(h), 1);
    h_tick(h, H_AGE_NS);
    cr_assert(h_flush(h, b)->seen, "nor the reserve of a pool that it may not write");
    cr_assert_eq(h_counts(h).reserve_bytes, H_BLOCK);
    array = h_small(h, a, 100);
    h_close(h, a, array.lease);
    h_flush(h, root);
    h_finish_all(h);
    cr_assert_eq(h->replies[root].flush.entries, 1);
    cr_assert_eq(h->live_bytes, 0);
}

/* As jobs of their uid, not of a connection: whatever is released is told to each. */
CORE_TEST(reclaim, flushes_under_way_are_limited, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1000, 1000);
    struct h_reply array = h_small(h, a, 100);
    h_close(h, a, array.lease);
    for (int i = 0; i < 8; i++)
        cr_assert_not(h_flush(h, i % 2 ? c : a)->seen);
    cr_assert_eq(h_flush(h, b)->error, PROTO_ERR_LIMIT);
    h_disconnect(h, c);
    cr_assert_not(h_flush(h, b)->seen, "those of who has gone are charged to nobody");
    h_finish_all(h);
    cr_assert_eq(h->replies[b].error, 0);
    cr_assert_eq(h_flush(h, a)->error, 0);
}

/* A driver that fails is not asked again at once, for reasons of age. */
CORE_TEST(reclaim, failing_release_calms_down, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply one = h_made(h, a, 100, exclusive), two = h_made(h, a, 100, exclusive);
    h_close(h, a, one.lease);
    h_close(h, a, two.lease);
    h_tick(h, H_AGE_NS);
    h_tick(h, H_AGE_NS);
    h_finish(h, h_job(h, CORE_RELEASE), -EIO);
    cr_assert_eq(core_deadline_ns(h->core), h->now_ns + H_AGE_NS);
    h_tick(h, H_AGE_NS - 1);
    cr_assert_eq(h->n_jobs, 0);
    h_tick(h, 1);
    cr_assert_eq(h->n_jobs, 1);
}

/* ---- stopping ---- */

CAID_TEST(reclaim, stopping_while_memory_is_made)
{
    struct harness h;

    h_init(&h, h_sharing);
    uint64_t a = h_connect(&h, 1000, 1000), b = h_connect(&h, 1001, 1001);
    h_create(&h, a, NULL, NULL, 100);
    h_create(&h, b, NULL, NULL, 100);
    core_stop(h.core);
    h_finish(&h, 0, -ENOMEM);
    cr_assert_eq(h.replies[a].error, PROTO_ERR_NO_MEMORY, "not tried again");
    h_finish(&h, 0, 0);
    cr_assert_eq(h.replies[b].error, 0, "what was promised is kept");
    cr_assert_eq(h.n_jobs, 0);
    h_disconnect(&h, a);
    h_disconnect(&h, b);
    core_free(h.core);
}
