/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: arrays in another one's memory, how long they keep it, and who is told that they are gone.
 */
#include "harness.h"

#include "caid_test.h"

#define LOOK_NS UINT64_C(20000000) /* after which what lingers is looked at */

/* A lease on a new array of 1,000 bytes; where it lies in *ret. */
static uint64_t
whole(struct harness *h, uint64_t conn, const char *name, const char *pool, struct h_reply *ret)
{
    *ret = *h_create_now(h, conn, name, pool, 1000);
    cr_assert_eq(ret->error, 0, "%s", ret->text);
    return ret->lease;
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

/* ---- publishing ---- */

CORE_TEST(part, lies_in_its_wholes_memory, h_sharing)
{
    struct h_reply of;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    h_create_now(h, a, "before", NULL, 3000); /* so that the whole does not lie at 0 */
    uint64_t lease = whole(h, a, NULL, NULL, &of);
    cr_assert_gt(of.offset, 0);
    h->n_records = 0;
    cr_assert_eq(h_part(h, a, lease, 17, 100, "p")->error, 0);
    cr_assert_eq(h->replies[a].generation, 1);
    uint64_t id = h->replies[a].array;
    cr_assert_str_eq(h->records[0], "name uid:1000:p");
    cr_assert_str_eq(h->records[1], "send");
    const struct h_reply *open = h_open(h, b, "p", NULL, "r");
    cr_assert_eq(open->block, of.block);
    cr_assert_eq(open->offset, of.offset + 17);
    cr_assert_eq(open->arrays[0].nbytes, 100);
    cr_assert_eq(open->stamp, of.stamp);
    cr_assert_eq(open->n_fds, 1, "its block came with it");
    cr_assert_eq(h_show(h, b, "p", NULL)->array, id);
    cr_assert_eq(h->replies[b].block, of.block);
    cr_assert_eq(h->replies[b].offset, of.offset + 17);
    cr_assert_eq(h_open(h, b, "before", NULL, "r")->n_fds, 0, "the block is held already");
}

/* What each kind of memory is, a part of it is. */
CORE_TEST(part, of_each_kind_of_memory, h_sharing)
{
    static const char *const kinds[] = {"device", "legacy", "pinned", "mapped"};

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct h_reply of =
            h_made(h, a, 1000,
                   (struct msg_create_params){.memory = MSG_STR(kinds[i]), .exclusive = i % 2});
        part(h, a, of.lease, 100, "p");
        cr_assert_eq(h_open(h, b, "p", NULL, "r")->offset, of.offset + 100, "%s", kinds[i]);
        cr_assert_str_eq(h->replies[b].arrays[0].memory, i == 3 ? "mapped" : "");
        cr_assert_eq(h->replies[b].stamp, of.stamp);
    }
}

CORE_TEST(part, refusals, h_sharing)
{
    struct h_reply of, other;
    static char metadata[PROTO_METADATA_MAX + 1];

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = whole(h, a, "w", NULL, &of), empty = h_create(h, a, NULL, NULL, 0)->lease;
    cr_assert_eq(h_part(h, a, 4711, 0, 1, "p")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_part(h, b, lease, 0, 1, "p")->error, PROTO_ERR_INVALID,
                 "another connection's lease");
    cr_assert_eq(h_part(h, a, lease, 0, 0, "p")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_part(h, a, lease, 0, 1001, "p")->error, PROTO_ERR_INVALID);
    cr_assert(strstr(h->replies[a].text, "1001 bytes at 0"), "%s", h->replies[a].text);
    cr_assert(strstr(h->replies[a].text, "1000"), "%s", h->replies[a].text);
    cr_assert_eq(h_part(h, a, lease, 1000, 1, "p")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_part(h, a, lease, UINT64_MAX, 2, "p")->error, PROTO_ERR_INVALID,
                 "no sum wraps");
    cr_assert_eq(h_part(h, a, lease, 901, 100, "p")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_part(h, a, lease, 0, -1, "p")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_part(h, a, empty, 0, 1, "p")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_part(h, a, lease, 0, 1, "")->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_part(h, a, lease, 0, 1, "a\nb")->error, PROTO_ERR_INVALID_NAME);
    memset(metadata, 'm', sizeof(metadata));
    struct msg_publish_part_params params = {.lease = lease,
                                             .name = MSG_STR("p"),
                                             .metadata = {metadata, sizeof(metadata)}};
    cr_assert_eq(h_part_as(h, a, 1, params)->error, PROTO_ERR_INVALID);
    params.metadata = (struct msg_str){0};
    params.descr = MSG_STR("[]");
    cr_assert_eq(h_part_as(h, a, 1, params)->error, PROTO_ERR_INVALID, "not of a |u1");
    uint64_t readonly = h_open(h, a, "w", NULL, "r")->lease;
    cr_assert_eq(h_part(h, a, readonly, 0, 1, "p")->error, PROTO_ERR_INVALID);
    part(h, a, lease, 0, "q");
    uint64_t of_part = h_open(h, a, "q", NULL, "rw")->lease;
    cr_assert_eq(h_part(h, a, of_part, 0, 1, "p")->error, PROTO_ERR_INVALID,
                 "a part of a part");
    h_create_as(h, b, 100, (struct msg_create_params){.name = MSG_STR("p"), .exclusive = true});
    cr_assert_eq(h_part(h, a, lease, 0, 1, "p")->error, PROTO_ERR_EXISTS, "is being made");
    h_finish_all(h);
    other = h->replies[b];
    cr_assert_eq(h_open(h, a, "p", NULL, "r")->stamp, other.stamp, "nothing took its place");
    cr_assert_eq(h_show(h, a, "w", NULL)->entries[0].parts, 1, "none of those was there");
    cr_assert_not(h->closed[a] || h->closed[b]);
}

/* What a GPU cannot read without losing its context. As bytes it may lie anywhere. */
CORE_TEST(part, lies_where_a_device_can_read_it, h_sharing)
{
    static const struct {
        const char *typestr;
        uint64_t offset;
        int64_t stride;
        bool taken;
    } places[] = {
        {"<f8", 1, 8, false}, {"<f8", 4, 8, false},   {"<f8", 8, 12, false},
        {"<f8", 8, 16, true}, {"<c16", 8, 16, false}, {"<c16", 16, 16, true},
        {"<f2", 2, 2, true},  {"<U2", 2, 8, false},   {"<U2", 4, 8, true},
        {"|u1", 1, 3, true},  {"|S3", 1, 3, true},    {"|V8", 1, 9, true},
    };
    struct h_reply of;

    uint64_t a = h_connect(h, 1000, 1000), lease = whole(h, a, "w", NULL, &of);
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        struct msg_publish_part_params params = {.lease = lease,
                                                 .offset = places[i].offset,
                                                 .name = MSG_STR("p"),
                                                 .typestr = MSG_STR(places[i].typestr),
                                                 .shape = {&(int64_t){3}, 1},
                                                 .strides = {&places[i].stride, 1}};
        const struct h_reply *reply = h_request(h, a, MSG_PUBLISH_PART, &params);
        cr_assert_eq(reply->error, places[i].taken ? 0 : PROTO_ERR_INVALID, "%zu: %s", i,
                     reply->text);
        cr_assert(places[i].taken || strstr(reply->text, "no multiple of"), "%s", reply->text);
    }
}

/* Only the creator, who pays for the memory, may make more of it last. */
CORE_TEST(part, who_may, h_sharing)
{
    struct h_reply of;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001),
             root = h_connect(h, 0, 0), owner = h_connect(h, 1, 1), group = h_connect(h, 2, 10),
             again = h_connect(h, 1000, 1000);
    whole(h, a, "w", "open", &of);
    cr_assert_eq(h_open(h, b, "w", "open", "rw")->error, 0);
    cr_assert_eq(h_part(h, b, h->replies[b].lease, 0, 1, "p")->error, PROTO_ERR_PERMISSION);
    cr_assert(strstr(h->replies[b].text, "1000"), "%s", h->replies[b].text);
    cr_assert_eq(h_open(h, root, "w", "open", "rw")->error, 0);
    cr_assert_eq(h_part(h, root, h->replies[root].lease, 0, 1, "p")->error,
                 PROTO_ERR_PERMISSION);
    cr_assert_eq(h_open(h, again, "w", "open", "rw")->error, 0);
    cr_assert_eq(h_part(h, again, h->replies[again].lease, 0, 1, "p")->error, 0,
                 "another connection of the same uid");
    whole(h, owner, "w", "shared", &of);
    cr_assert_eq(h_open(h, group, "w", "shared", "r")->error, 0);
    cr_assert_eq(h_part(h, group, h->replies[group].lease, 0, 1, "p")->error,
                 PROTO_ERR_PERMISSION);
    cr_assert_eq(h_open(h, group, "p", "open", "r")->error, 0, "whoever may read the pool");
}

/* ---- names ---- */

CORE_TEST(part, replaces_what_has_the_name, h_sharing)
{
    struct h_reply of, old;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1000, 1000);
    old = *h_create_now(h, b, "p", NULL, 50);
    uint64_t lease = whole(h, a, NULL, NULL, &of);
    h_watch(h, c, "p", NULL, 1);
    uint64_t first = part(h, a, lease, 0, "p");
    cr_assert_eq(h->replies[a].generation, 2);
    cr_assert_eq(h->replies[c].generation, 2, "who watches the name is told");
    uint64_t kept = h_open(h, c, "p", NULL, "r")->lease;
    cr_assert_eq(h->replies[c].offset, of.offset);
    part(h, a, lease, 500, "p");
    cr_assert_eq(h->replies[a].generation, 3);
    cr_assert_eq(h_open(h, c, "p", NULL, "r")->offset, of.offset + 500);
    cr_assert_eq(h_open_generation(h, c, "p", NULL, 2)->offset, of.offset, "it is held");
    cr_assert_eq(h_open_generation(h, c, "p", NULL, 1)->stamp, old.stamp);
    h_close(h, c, kept);
    cr_assert_not(h_parts(h, a)->seen, "a lease of generation 2 is left");
    h_disconnect(h, c);
    cr_assert(told(h, a, first));
    cr_assert_eq(h_publish(h, b, old.lease, "p")->generation, 4, "and back again");
}

/* `publish` renames a part as it does any array. */
CORE_TEST(part, is_renamed, h_sharing)
{
    struct h_reply of;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    uint64_t lease = whole(h, a, NULL, NULL, &of);
    uint64_t id = part(h, a, lease, 100, "p");
    uint64_t opened = h_open(h, b, "p", NULL, "rw")->lease;
    cr_assert_eq(h_publish(h, b, opened, "other")->error, 0);
    cr_assert_eq(h_open(h, a, "p", NULL, "r")->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_open(h, a, "other", NULL, "r")->offset, of.offset + 100);
    h_close(h, a, h->replies[a].lease);
    cr_assert_not(h_parts(h, a)->seen, "it has a name");
    h_unlink(h, b, "other", NULL);
    cr_assert_not(h->replies[a].seen, "and a holder");
    h_disconnect(h, b);
    cr_assert(told(h, a, id));
}

/* ---- how long memory is kept ---- */

/* b reads a part, to the next value of slot 0 of its page, and closes it; names and leases go. */
static uint64_t
read_and_leave(struct harness *h, uint64_t a, uint64_t b, uint64_t page)
{
    struct h_reply of;
    uint64_t lease = whole(h, a, "w", NULL, &of), id = part(h, a, lease, 100, "p");
    uint64_t reads = h_open(h, b, "p", NULL, "r")->lease;

    h_end_at(h, b, h_begun(h, b, reads, false), page, 0);
    h_close(h, b, reads);
    h_unlink(h, a, "p", NULL);
    h_unlink(h, a, "w", NULL);
    h_close(h, a, lease);
    cr_assert_not(h_parts(h, a)->seen, "a stream reads it");
    return id;
}

/* The next look at what lingers. */
static void
look(struct harness *h)
{
    h_tick(h, LOOK_NS);
    h_finish_all(h);
}

/* Streams may still use it when its last holder has closed it (I2). */
CORE_TEST(part, lingers_while_a_fence_has_not_passed, h_sharing)
{
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
CORE_TEST(part, create_waits_while_it_lingers, h_sharing)
{
    h->capacity[0] = H_BLOCK;
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1001, 1001);
    uint64_t page = h_page_new(h, b), id = read_and_leave(h, a, b, page);
    h_create(h, c, NULL, NULL, 1000);
    h_finish_all(h);
    look(h);
    cr_assert_not(h->replies[c].seen, "%s", h->replies[c].text);
    h_land(h, page, 0, 1);
    look(h);
    cr_assert(told(h, a, id));
    cr_assert(h->replies[c].seen);
    cr_assert_eq(h->replies[c].error, 0, "%s", h->replies[c].text);
}

/* They go with the core, whole and part, when the daemon ends. */
CAID_TEST(part, daemon_ends)
{
    struct harness h;
    struct h_reply of;

    h_init(&h, h_sharing);
    uint64_t a = h_connect(&h, 1000, 1000);
    uint64_t lease = whole(&h, a, NULL, NULL, &of);
    part(&h, a, lease, 100, "p");
    part(&h, a, lease, 200, "q");
    uint64_t second = whole(&h, a, "w", NULL, &of);
    part(&h, a, second, 0, "r");
    cr_assert_eq(h_open(&h, a, "q", NULL, "r")->error, 0);
    h_unlink(&h, a, "q", NULL);
    part(&h, a, second, 0, "gone");
    h_unlink(&h, a, "gone", NULL);
    cr_assert(h_hangup(&h, a));
    core_free(h.core); /* and he has not exited */

    h_init(&h, h_sharing);
    a = h_connect(&h, 1000, 1000);
    lease = whole(&h, a, NULL, NULL, &of);
    part(&h, a, lease, 100, "p");
    h_deinit(&h); /* with a name that is left, and the whole that it keeps */
}
