/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named timelines: a page of its creator's under a name of a pool. Their names are apart from those
 * of arrays. One ends with its page, or at its creator's hang-up: who has it open keeps the page, in
 * which all who wait are let go when the creator's process has exited.
 */
#include <assert.h>

#include "state.h"

static int
timeline_compare(const struct timeline *a, const struct timeline *b)
{
    uint8_t n = a->n_name < b->n_name ? a->n_name : b->n_name;
    int c = a->pool == b->pool ? memcmp(a->name, b->name, n)
                               : strcmp(a->pool->name, b->pool->name);

    return c ? c : CMP(a->n_name, b->n_name);
}

RB_GENERATE(timelines, timeline, node, timeline_compare)

/* A key for the tree. */
union timeline_key {
    struct timeline timeline;
    char room[sizeof(struct timeline) + PROTO_NAME_MAX];
};

static struct timeline *
key_init(union timeline_key *key, struct pool *pool, struct msg_str name)
{
    assert(name.n <= PROTO_NAME_MAX);
    key->timeline.pool = pool;
    key->timeline.n_name = (uint8_t)name.n;
    if (name.n)
        memcpy(key->room + offsetof(struct timeline, name), name.p, name.n);
    return &key->timeline;
}

struct timeline *
timeline_find(struct core *core, struct pool *pool, struct msg_str name)
{
    union timeline_key key;

    return RB_FIND(timelines, &core->timelines, key_init(&key, pool, name));
}

/* In the order of the tree a name comes before all that it is the beginning of. */
struct timeline *
timeline_find_next(struct core *core, struct pool *pool, struct msg_str after)
{
    union timeline_key key;
    struct timeline *found;

    if (after.n >
        PROTO_NAME_MAX) /* clients may ask for any: what comes after it comes after its head */
        after.n = PROTO_NAME_MAX;
    found = RB_NFIND(timelines, &core->timelines, key_init(&key, pool, after));
    if (found && timeline_compare(found, &key.timeline) == 0)
        found = RB_NEXT(timelines, &core->timelines, found);
    return found && found->pool == pool ? found : NULL;
}

static uint64_t
timeline_host(uint32_t n_name)
{
    return sizeof(struct timeline) + n_name;
}

int
timeline_new(struct core *core, struct conn *conn, struct pool *pool, struct msg_str name,
             struct page *page, struct refusal *r)
{
    struct timeline *timeline;

    if (timeline_find(core, pool, name))
        return refuse(r, PROTO_ERR_EXISTS, "a timeline \"%.*s\" exists in pool \"%s\"",
                      STR_FMT(name), pool->name);
    if (page->timeline)
        return refuse(r, PROTO_ERR_INVALID, "page %llu is a timeline already",
                      (unsigned long long)page->id);
    if (user_charge(core, conn->user, RES_HOST, timeline_host(name.n), r))
        return REFUSED;
    timeline = calloc(1, sizeof(*timeline) + name.n);
    if (!timeline) {
        user_uncharge(conn->user, RES_HOST, timeline_host(name.n));
        return -ENOMEM;
    }
    timeline->pool = pool;
    timeline->page = page;
    timeline->n_name = (uint8_t)name.n;
    memcpy(timeline->name, name.p, name.n);
    page->timeline = timeline;
    pool->n_timelines++;
    core->n_timelines++;
    RB_INSERT(timelines, &core->timelines, timeline);
    return 0;
}

void
timeline_free(struct core *core, struct timeline *timeline)
{
    struct pool *pool = timeline->pool;
    struct user *owner = pool->owner;

    RB_REMOVE(timelines, &core->timelines, timeline);
    timeline->page->timeline = NULL;
    user_uncharge(timeline->page->conn->user, RES_HOST, timeline_host(timeline->n_name));
    pool->n_timelines--;
    core->n_timelines--;
    free(timeline);
    if (owner) /* its pool may have waited for this; who signals has its connection */
        user_settle(core, owner);
}
