/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where arrays get their memory: shared blocks and own ones, kinds, devices, who waits for a block,
 * and the figures of all that. What follows for clients is in the harness's books.
 */
#include "harness.h"

#include "caid_test.h"

static struct msg_create_params
kind_of(const char *memory)
{
    return (struct msg_create_params){.memory = MSG_STR(memory)};
}

/* ---- sharing ---- */

CORE_TEST(memory, shared_blocks_grow_by_doubling, h_sharing)
{
    static const uint64_t sizes[] = {2, 2, 4, 8, 16, 16};
    size_t n = 0;

    uint64_t a = h_connect(h, 1000, 1000);
    for (int i = 0; i < 20; i++) {
        h_create(h, a, NULL, NULL, 2 * MIB);
        if (h->n_jobs)
            cr_assert_eq(h->jobs[0].size, sizes[n++] << 20, "block %zu", n);
        h_finish_all(h);
        cr_assert_eq(h->replies[a].error, 0);
    }
    cr_assert_eq(n, 6);
}

CORE_TEST(memory, alignment, h_sharing)
{
    static const uint64_t bad[] = {3, 513, 2 * PROTO_ALIGNMENT_MAX, UINT64_MAX};

    uint64_t a = h_connect(h, 1000, 1000);
    h_small(h, a, 2 * MIB);
    h_small(h, a, 100); /* the second block, of 2 MiB */
    for (uint64_t alignment = 1; alignment <= PROTO_ALIGNMENT_MAX; alignment *= 2) {
        struct msg_create_params params = {.alignment = alignment};
        cr_assert_eq(h_made(h, a, 100, params).offset % alignment, 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct msg_create_params params = {.alignment = bad[i]};
        cr_assert_eq(h_create_as(h, a, 100, params)->error, PROTO_ERR_INVALID);
    }
}

static void
many(struct core_config *config)
{
    h_sharing(config);
    config->limits.arrays = config->limits.names = config->limits.leases = 5000;
}

/* A reply is as full as a packet allows, and has each block once. */
CORE_TEST(memory, open_of_many_in_few_packets, many)
{
    struct msg_str names[PROTO_OPEN_MAX];
    static char text[PROTO_OPEN_MAX][8];
    struct msg_open_params params = {.mode = MSG_STR("r")};
    uint32_t packets = 0, blocks = 0, done = 0;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    for (uint32_t i = 0; i < PROTO_OPEN_MAX; i++) {
        snprintf(text[i], sizeof(text[i]), "%u", i);
        names[i] = MSG_STR(text[i]);
        cr_assert_eq(h_create_now(h, a, text[i], NULL, 4096)->error, 0);
    }
    while (done < PROTO_OPEN_MAX) {
        params.names = (struct msg_strs){names + done, PROTO_OPEN_MAX - done};
        struct h_reply *reply = h_request(h, b, MSG_OPEN, &params);
        cr_assert_eq(reply->error, 0);
        done += reply->n_arrays;
        blocks += reply->n_blocks;
        packets++;
    }
    cr_assert_eq(blocks, h_counts(h).blocks);
    cr_assert_leq(packets, 2, "%u", packets);
}

/* ---- many for one block ---- */

/* More blocks than a packet may have fds. */
static void
roomy(struct core_config *config)
{
    h_sharing(config);
    config->blocks = 1000;
    config->limits.arrays = config->limits.names = config->limits.leases = 1000;
}

CORE_TEST(memory, open_of_many_blocks, roomy)
{
    struct msg_str names[300];
    static char text[300][8];
    struct msg_open_params params = {.mode = MSG_STR("r"), .names = {names, ARRAY_SIZE(names)}};

    h->capacity[0] = UINT64_C(1) << 40;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(text[i], sizeof(text[i]), "%zu", i);
        names[i] = MSG_STR(text[i]);
        h_made(h, a, 1, (struct msg_create_params){.name = names[i], .exclusive = true});
    }
    cr_assert_eq(h_request(h, b, MSG_OPEN, &params)->n_fds, PROTO_FDS_MAX);
    cr_assert_eq(h->replies[b].n_arrays, PROTO_FDS_MAX);
    params.names = (struct msg_strs){names + PROTO_FDS_MAX, ARRAY_SIZE(names) - PROTO_FDS_MAX};
    cr_assert_eq(h_request(h, b, MSG_OPEN, &params)->n_fds, params.names.n);
    params.names = (struct msg_strs){names, ARRAY_SIZE(names)};
    cr_assert_eq(h_request(h, b, MSG_OPEN, &params)->n_arrays, ARRAY_SIZE(names));
    cr_assert_eq(h->replies[b].n_fds, 0, "it has them all");
}

/* ---- kinds ---- */

static void
second_lacks(struct core_config *config)
{
    static struct core_device devices[2];

    h_sharing(config);
    memcpy(devices, config->devices, sizeof(devices));
    devices[1].lacks[KIND_LEGACY] = true;
    config->devices = devices;
    config->n_devices = 2;
}

CORE_TEST(memory, kinds, second_lacks)
{
    struct msg_create_params second = kind_of("legacy");

    uint64_t a = h_connect(h, 1000, 1000);
    cr_assert_eq(h_create_as(h, a, 1, kind_of("managed"))->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_create_as(h, a, 1, kind_of(""))->error, PROTO_ERR_INVALID);
    second.device = MSG_STR(H_SECOND_DEVICE);
    cr_assert_eq(h_create_as(h, a, 1, second)->error, PROTO_ERR_UNSUPPORTED);
    cr_assert(strstr(h->replies[a].text, "second") && strstr(h->replies[a].text, "\"legacy\""),
              "%s", h->replies[a].text);

    cr_assert_eq(h_made(h, a, 1, kind_of("device")).n_fds, 1);
    cr_assert_not(h_memory_info(h, a)->context);
    cr_assert_eq(h_made(h, a, 1, kind_of("legacy")).n_fds, 0, "a handle is enough");
    cr_assert(h_memory_info(h, a)->context);
    struct h_reply pinned = h_made(h, a, 1, kind_of("pinned"));
    struct h_reply mapped = h_made(h, a, 1, kind_of("mapped"));
    cr_assert_eq(pinned.n_fds, 1);
    cr_assert_eq(mapped.block, pinned.block, "the same memory");
    cr_assert_str_eq(mapped.arrays[0].memory, "mapped");
    cr_assert_str_eq(pinned.arrays[0].memory, "");
    const struct msg_memory_info *m = h_memory_info(h, a);
    cr_assert_eq(m->pinned, H_BLOCK);
    cr_assert_eq(m->used, 2 * H_BLOCK);
}

CORE_TEST(memory, kind_that_the_driver_refuses, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_create_as(h, a, 1, kind_of("legacy"));
    h_finish(h, 0, -ENOTSUP);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_UNSUPPORTED);
    cr_assert_eq(h->n_jobs, 0);
}

CAID_TEST(memory, open_blocks_of_some_kinds_do_not_go)
{
    struct harness h;

    static const struct {
        const char *kind;
        bool goes;
    } cases[] = {{"device", true}, {"legacy", false}, {"pinned", false}, {"mapped", false}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        h_init(&h, h_sharing);
        uint64_t a = h_connect(&h, 1000, 1000), b = h_connect(&h, 1000, 1000);
        struct h_reply array = h_made(&h, a, 100, kind_of(cases[i].kind));
        h_close(&h, a, array.lease);
        h_flush(&h, b);
        h_finish_all(&h);
        cr_assert_eq(h.live_bytes == 0, cases[i].goes, "%s", cases[i].kind);
        h_forget(&h, a, array.block);
        h_flush(&h, b);
        h_finish_all(&h);
        cr_assert_eq(h.live_bytes, 0, "%s", cases[i].kind);
        cr_assert_not(h.closed[a], "a block that is gone may be forgotten");
        h_deinit(&h);
    }
}

/* A client that keeps a block open gets a further array in it without its fd. */
/* To who holds it, and only that has an fd. */
CORE_TEST(memory, block_is_sent_again, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    struct h_reply first = h_made(h, a, 100, kind_of("device"));
    struct h_reply legacy = h_made(h, a, 100, kind_of("legacy"));
    struct msg_block_params block = {.block = first.block}, other = {.block = legacy.block};

    const struct h_reply *again = h_request(h, a, MSG_BLOCK, &block);
    cr_assert_eq(again->error, 0);
    cr_assert_eq(again->n_fds, 1);
    cr_assert_eq(again->fds[0], first.fds[0]);
    cr_assert_eq(h_request(h, a, MSG_BLOCK, &other)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_request(h, b, MSG_BLOCK, &block)->error, PROTO_ERR_NOT_FOUND);
}

CORE_TEST(memory, hold_outlives_leases, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply first = h_small(h, a, 100), second;
    h_close(h, a, first.lease);
    second = h_small(h, a, 100);
    cr_assert_eq(second.block, first.block);
    cr_assert_eq(second.n_fds, 0);
    h_forget(h, a, first.block);
    cr_assert(h->closed[a], "a block with leases cannot be forgotten");
    h_disconnect(h, a);

    a = h_connect(h, 1000, 1000);
    first = h_small(h, a, 100);
    h_close(h, a, first.lease);
    h_forget(h, a, first.block);
    h_forget(h, a, 4711);
    cr_assert_eq(h_small(h, a, 100).n_fds, 1, "it has to be sent again");
}

/* ---- figures ---- */

CORE_TEST(memory, users_are_shown_to_whom_they_concern, h_sharing)
{
    struct msg_users_params params = {0};

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001),
             root = h_connect(h, 0, 0), daemon = h_connect(h, 900, 900);
    cr_assert_eq(h_request(h, a, MSG_USERS, &params)->n_entries, 1);
    cr_assert_eq(h->replies[a].users[0].uid, 1000);
    cr_assert_eq(h_request(h, root, MSG_USERS, &params)->n_entries, 4);
    cr_assert_eq(h_request(h, daemon, MSG_USERS, &params)->n_entries, 4);
    params.from = 1001;
    cr_assert_eq(h_request(h, root, MSG_USERS, &params)->n_entries, 1);
    cr_assert_eq(h->replies[root].users[0].uid, 1001);
    cr_assert_eq(h_request(h, a, MSG_USERS, &params)->n_entries, 0);
    cr_assert_eq(h_request(h, b, MSG_USERS, &params)->n_entries, 1);
    params.from = UINT64_MAX;
    cr_assert_eq(h_request(h, root, MSG_USERS, &params)->n_entries, 0);
}

/* Fragmentation: what is free between arrays, and how much of it in one piece. */
CORE_TEST(memory, figures_of_a_pool, h_sharing)
{
    struct msg_pools_params params = {0};
    struct h_reply arrays[4];

    uint64_t a = h_connect(h, 1000, 1000);
    for (int i = 0; i < 4; i++)
        arrays[i] = h_small(h, a, MIB / 2);
    h_close(h, a, arrays[0].lease);
    h_flush(h, a);
    h_close(h, a, arrays[2].lease);
    const struct msg_pool *pool = h_request(h, a, MSG_POOLS, &params)->pools;
    /* "open" comes first */
    cr_assert_eq(h->replies[a].n_entries, 2);
    pool = &pool[1];
    cr_assert_eq(pool->used, H_BLOCK);
    cr_assert_eq(pool->blocks, 1);
    cr_assert_eq(pool->arrays, 2);
    cr_assert_eq(pool->allocated, MIB);
    cr_assert_eq(pool->pending, MIB / 2);
    cr_assert_eq(pool->holes, MIB / 2);
    cr_assert_eq(pool->largest, MIB / 2);
    const struct msg_memory_info *m = h_memory_info(h, a);
    cr_assert_eq(m->allocated, MIB);
    cr_assert_eq(m->available, MIB);
    cr_assert_eq(m->pending, 1);
    cr_assert_eq(m->pending_bytes, MIB / 2);
}

CORE_TEST(memory, devices_are_apart, second_lacks)
{
    struct msg_create_params second = {.device = MSG_STR(H_SECOND_DEVICE)};
    struct msg_memory_params info = {.device = second.device};

    uint64_t a = h_connect(h, 1000, 1000);
    struct h_reply one = h_small(h, a, 100), two = h_made(h, a, 100, second);
    cr_assert_neq(one.block, two.block);
    cr_assert_eq(h->device_bytes[0], H_BLOCK);
    cr_assert_eq(h->device_bytes[1], H_BLOCK);
    h_close(h, a, one.lease);
    h_close(h, a, two.lease);
    h_request(h, a, MSG_FLUSH, &(struct msg_flush_params){.device = second.device});
    h_finish_all(h);
    cr_assert_eq(h->replies[a].flush.blocks, 1);
    cr_assert_eq(h->device_bytes[0], H_BLOCK);
    cr_assert_eq(h->device_bytes[1], 0);
    h_request(h, a, MSG_MEMORY_INFO, &info);
    h_finish_all(h);
    cr_assert_eq(h->replies[a].n_entries, 1);
    cr_assert_eq(h->replies[a].memory[0].releases, 1);
    info.device = MSG_STR("GPU-3");
    cr_assert_eq(h_request(h, a, MSG_MEMORY_INFO, &info)->error, PROTO_ERR_DEVICE);
}

static uint32_t
drain(struct harness *h, uint64_t conn, bool undo)
{
    return h_request(h, conn, MSG_DRAIN, &(struct msg_drain_params){.undo = undo})->error;
}

CORE_TEST(memory, drained_there_are_no_new_arrays, h_sharing)
{
    uint64_t root = h_connect(h, 0, 0), a = h_connect(h, 1000, 1000);
    uint64_t own = h_connect(h, 900, 900); /* the daemon's */
    struct h_reply mine = h_small(h, a, 100);

    cr_assert_eq(drain(h, a, false), PROTO_ERR_PERMISSION);
    h_create(h, a, "waits", NULL, H_BLOCK); /* for the driver */
    cr_assert_eq(drain(h, root, false), 0);
    h_finish_all(h);
    cr_assert_eq(h->replies[a].error, 0);
    cr_assert_eq(h_create(h, a, "x", NULL, 100)->error, PROTO_ERR_SHUTDOWN);
    cr_assert_eq(h_create(h, root, NULL, NULL, 0)->error, PROTO_ERR_SHUTDOWN);
    cr_assert_eq(h_publish(h, a, mine.lease, "x")->error, 0);
    cr_assert_eq(h_open(h, a, "x", NULL, "rw")->error, 0);
    cr_assert_eq(drain(h, a, true), PROTO_ERR_PERMISSION);
    cr_assert_eq(drain(h, own, true), 0);
    cr_assert_eq(h_create(h, a, "y", NULL, 0)->error, 0);
}

CORE_TEST(memory, available_is_what_waits_in_own_blocks, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    uint64_t lease = h_made(h, a, 6 * MIB, (struct msg_create_params){0}).lease;
    cr_assert_eq(h_memory_info(h, a)->available, 0);
    h_close(h, a, lease);
    cr_assert_eq(h_memory_info(h, a)->available, 6 * MIB);
}

CORE_TEST(memory, pools_after_one, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_request(h, a, MSG_POOLS, &(struct msg_pools_params){0});
    cr_assert_eq(h->replies[a].n_entries, 2, "\"open\" and its own");
    h_request(h, a, MSG_POOLS, &(struct msg_pools_params){.after = MSG_STR("open")});
    cr_assert_eq(h->replies[a].n_entries, 1);
}
