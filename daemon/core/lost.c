/* SPDX-License-Identifier: Apache-2.0 */
#include "lost.h"

#include "state.h"

/* In the order of bytes; a prefix comes first. */
static int
lost_compare(const struct lost *a, const struct lost *b)
{
    int c = memcmp(a->name, b->name, a->n_name < b->n_name ? a->n_name : b->n_name);

    return c ? c : CMP(a->n_name, b->n_name);
}

RB_GENERATE(losts, lost, node, lost_compare)

const char *
lost_reason(enum lost_why why)
{
    static const char *const reasons[N_LOST] = {
        [LOST_RECORD] = "its record is damaged",
        [LOST_MEMORY] = "its memory could not be had",
        [LOST_LEGACY] = "legacy memory ends with the daemon",
        [LOST_MEMBER] = "an array of the set is lost",
        [LOST_COMPANION] = "its companion is lost",
        [LOST_DROPPED] = "it made room for others",
    };

    return reasons[why];
}

/* A key for the tree only. */
static struct lost
key_of(struct msg_str name)
{
    const char *text = name.p ? name.p : "";
    struct lost key = {.n_name = (uint8_t)(name.n < UINT8_MAX ? name.n : UINT8_MAX)};

    memcpy(&key.name, &text, sizeof(key.name));
    return key;
}

struct lost *
lost_find(struct pool *pool, struct msg_str name)
{
    struct lost key = key_of(name);

    return name.n > PROTO_NAME_MAX ? NULL : RB_FIND(losts, &pool->losts, &key);
}

struct lost *
lost_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix)
{
    struct lost last = key_of(after), first = key_of(prefix), *lost;

    if (lost_compare(&last, &first) < 0)
        return RB_NFIND(losts, &pool->losts, &first);
    lost = RB_NFIND(losts, &pool->losts, &last);
    return lost && lost_compare(lost, &last) == 0 ? RB_NEXT(losts, &pool->losts, lost) : lost;
}

/* Generations are never used twice, also not those of lost names. */
static void
keep_generation(struct pool *pool, struct user *user, uint64_t generation)
{
    if (pool->floor >= generation)
        return;
    pool->floor = generation;
    persist_floor(user->core, generation);
}

size_t
lost_host(size_t n_name, size_t n_metadata)
{
    return sizeof(struct lost) + n_name + 1 + n_metadata +
           RECORD_HOST(sizeof(struct record_lost) + sizeof(struct record_dropped) + n_name +
                       n_metadata);
}

int
lost_new(struct pool *pool, struct user *user, struct msg_str name, const struct lost *like)
{
    struct lost *lost;

    if (lost_find(pool, name))
        return 0;
    lost = calloc(1, sizeof(*lost) + name.n + 1 + like->metadata.n);
    if (!lost)
        return -ENOMEM;
    *lost = *like;
    lost->pool = pool;
    lost->n_name = (uint8_t)name.n;
    lost->name = (char *)(lost + 1);
    if (name.n)
        memcpy(lost->name, name.p, name.n);
    if (like->metadata.p)
        lost->metadata.p = lost->name + name.n + 1;
    if (like->metadata.n)
        memcpy(lost->name + name.n + 1, like->metadata.p, like->metadata.n);
    charge_init(&lost->charge, user, RES_NAMES, 1, lost_host(name.n, like->metadata.n), NULL);
    RB_INSERT(losts, &pool->losts, lost);
    keep_generation(pool, user, like->generation);
    persist_lost(user->core, lost);
    return 0;
}

/* A lost set of which the name was a key. */
static struct lost *
find_over(struct pool *pool, struct msg_str name)
{
    struct lost *lost;

    for (uint32_t n = 1; n < name.n; n++) {
        if (name.p[n - 1] != '/')
            continue;
        lost = lost_find(pool, (struct msg_str){name.p, n});
        if (lost && lost->is_set)
            return lost;
    }
    return NULL;
}

int
lost_check(struct pool *pool, struct msg_str name, struct refusal *r)
{
    struct lost *lost = lost_find(pool, name);

    if (!lost)
        lost = find_over(pool, name);
    if (!lost)
        return 0;
    if (lost->why == LOST_DROPPED)
        return refuse(r, PROTO_ERR_DROPPED,
                      "set \"%s\" of pool \"%s\" was dropped to make room; it is to be loaded "
                      "again",
                      lost->name, pool->name);
    return refuse(r, PROTO_ERR_LOST,
                  "array \"%.*s\" of pool \"%s\" was lost with an earlier daemon: %s; publish "
                  "it anew, or unlink \"%s\"",
                  STR_FMT(name), pool->name, lost_reason(lost->why), lost->name);
}

void
lost_free(struct lost *lost)
{
    struct pool *pool = lost->pool;

    RB_REMOVE(losts, &pool->losts, lost);
    persist_lost_gone(lost->charge.user->core, lost);
    charge_deinit(&lost->charge);
    pool_touch(pool);
    free(lost);
}

void
lost_forget(struct pool *pool, struct msg_str name)
{
    struct lost *lost = RB_EMPTY(&pool->losts) ? NULL : lost_find(pool, name);

    if (lost)
        lost_free(lost);
}

void
losts_forget(struct pool *pool)
{
    struct lost *lost;

    while ((lost = RB_MIN(losts, &pool->losts))) {
        RB_REMOVE(losts, &pool->losts, lost);
        free(lost);
    }
}
