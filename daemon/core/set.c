/* SPDX-License-Identifier: Apache-2.0 */
#include "set.h"

#include <assert.h>
#include <stdio.h>

#include "array.h"
#include "state.h"

static int
member_compare(const struct member *a, const struct member *b)
{
    int c = memcmp(a->key, b->key, a->n_key < b->n_key ? a->n_key : b->n_key);

    return c ? c : CMP(a->n_key, b->n_key);
}

RB_GENERATE(members, member, node, member_compare)

/* ---- members ---- */

/* A key for the tree only. */
union member_key {
    struct member member;
    char room[sizeof(struct member) + PROTO_NAME_MAX];
};

static void
member_key(union member_key *ret, struct msg_str key)
{
    ret->member.n_key = (uint8_t)(key.n < PROTO_NAME_MAX ? key.n : PROTO_NAME_MAX);
    memcpy(ret->room + offsetof(struct member, key), key.p ? key.p : "", ret->member.n_key);
}

static struct member *
member_find(const struct array *array, struct msg_str key)
{
    union member_key wanted;

    if (!array || !array->is_set || key.n > PROTO_NAME_MAX)
        return NULL;
    member_key(&wanted, key);
    return RB_FIND(members, &array->set->members, &wanted.member);
}

struct array *
set_get(const struct array *array, struct msg_str key)
{
    const struct member *member = member_find(array, key);

    return member ? member->array : NULL;
}

struct member *
set_next(const struct array *array, struct msg_str after, struct msg_str prefix)
{
    struct members *members = &array->set->members;
    union member_key last, first;
    struct member *member;

    member_key(&last, after);
    member_key(&first, prefix);
    if (member_compare(&last.member, &first.member) < 0)
        return RB_NFIND(members, members, &first.member);
    member = RB_NFIND(members, members, &last.member);
    if (member && member_compare(member, &last.member) == 0)
        member = RB_NEXT(members, members, member);
    return member;
}

size_t
member_host(size_t n_key)
{
    return sizeof(struct member) + n_key + RECORD_HOST(sizeof(struct record_member) + n_key);
}

/* A member's share of what the set is charged. */
static int
member_charge(struct user *user, const struct member *member, struct refusal *r)
{
    if (user_charge(user, RES_NAMES, 1, r))
        return REFUSED;
    if (user_charge(user, RES_HOST, member_host(member->n_key), r) == 0)
        return 0;
    user_uncharge(user, RES_NAMES, 1);
    return REFUSED;
}

/* ---- the layout ---- */

static uint64_t
mix(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 32;
}

static uint64_t
mix_bytes(uint64_t sum, const void *bytes, size_t n)
{
    const char *p = bytes;
    uint64_t word;

    sum = mix(sum, n);
    for (; n >= sizeof(word); n -= sizeof(word), p += sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        sum = mix(sum, word);
    }
    word = 0;
    if (n)
        memcpy(&word, p, n);
    return mix(sum, word);
}

/* What the member adds to the layout. It is a part. */
static uint64_t
member_sum(const struct member *member)
{
    const struct array *array = member->array;
    size_t n_extents = array->ndim * (array->has_strides ? 2 : 1) * sizeof(int64_t);
    uint64_t sum = mix(1, array->part->offset);

    sum = mix_bytes(sum, member->key, member->n_key);
    sum = mix_bytes(sum, array_typestr(array), array->n_typestr);
    if (array->n_descr)
        sum = mix_bytes(sum, array_descr(array), array->n_descr);
    return mix_bytes(mix(sum, array->has_strides), array->extents, n_extents);
}

/* The member comes, or goes. */
static void
count_member(struct set *set, const struct member *member, bool comes)
{
    struct array *array = member->array;
    struct whole *of = array->is_part ? array->part->whole : NULL;

    if (comes && !set->n)
        set->whole = of;
    if (of)
        of->n_members += comes ? 1 : UINT64_MAX;
    if (!of || of != set->whole)
        set->n_others += comes ? 1 : UINT32_MAX;
    else
        set->layout += comes ? member_sum(member) : -member_sum(member);
    set->n += comes ? 1 : UINT32_MAX;
    array->n_sets += comes ? 1 : UINT32_MAX;
}

uint64_t
set_layout(const struct array *array)
{
    return array->is_set && !array->set->n_others ? array->set->layout : 0;
}

/* ---- whether it may be dropped ---- */

/* The cost of bringing it back; what is beyond the last number is as dear as that. */
static uint64_t
cost_of(const struct set *set)
{
    uint64_t cost;

    return __builtin_mul_overflow(set->bytes, set->reload_ns, &cost) ? UINT64_MAX : cost;
}

int
set_compare_cost(const struct set *a, const struct set *b)
{
    if (cost_of(a) != cost_of(b))
        return CMP(cost_of(a), cost_of(b));
    return a->idle_ns != b->idle_ns ? CMP(a->idle_ns, b->idle_ns)
                                    : CMP(a->array->id, b->array->id);
}

/* In the order in which they are dropped. */
static int
drop_compare(const struct set *a, const struct set *b)
{
    return a->priority != b->priority ? CMP(a->priority, b->priority) : set_compare_cost(a, b);
}

RB_GENERATE(droppables, set, of_pool, drop_compare)

/* The same within each pool. */
static int
own_compare(const struct set *a, const struct set *b)
{
    return a->pool != b->pool ? strcmp(a->pool->name, b->pool->name) : drop_compare(a, b);
}

RB_GENERATE(own_droppables, set, of_device, own_compare)

static struct user_device *
device_of(const struct set *set)
{
    return &set->user->devices[set->whole->array->device];
}

void
set_unlist(struct set *set)
{
    if (!set->listed)
        return;
    struct pool *pool = set->pool;
    struct user_device *own = device_of(set);
    set->listed = false;
    if (pool->drop_next == set)
        pool->drop_next = RB_NEXT(droppables, &pool->droppables, set);
    if (own->drop_next == set)
        own->drop_next = RB_NEXT(own_droppables, &own->droppables, set);
    RB_REMOVE(droppables, &pool->droppables, set);
    RB_REMOVE(own_droppables, &own->droppables, set);
}

void
set_list(struct core *core, struct set *set)
{
    if (set->whole->array->kind == KIND_PINNED)
        return;
    set_unlist(set);
    set->idle_ns = core->now_ns;
    set->pool = set->array->pool;
    set->listed = true;
    RB_INSERT(droppables, &set->pool->droppables, set);
    RB_INSERT(own_droppables, &device_of(set)->droppables, set);
}

void
set_may_go(struct core *core, struct array *array, uint64_t priority, uint64_t reload_ns)
{
    struct set *set = array->set;

    set_unlist(set);
    set->priority = priority;
    set->reload_ns = reload_ns;
    set->bytes = array_bytes(core, set->whole->array);
    array->droppable = true;
    set->whole->droppable = set;
    set_list(core, set);
}

void
set_stays(struct array *array)
{
    if (!array->droppable)
        return;
    set_unlist(array->set);
    array->droppable = false;
    array->set->whole->droppable = NULL;
}

/* ---- what is put into it ---- */

static int
set_make(struct array *array, struct refusal *r)
{
    struct user *user = array->charge.user;
    struct set *set = calloc(1, sizeof(*set));

    if (!set)
        return -ENOMEM;
    if (user_charge(user, RES_HOST, SET_HOST, r)) {
        free(set);
        return REFUSED;
    }
    set->user = user;
    set->array = array;
    TAILQ_INSERT_TAIL(&user->core->sets, set, of_core);
    set->record_turn = persist_turn(user->core);
    array->set = set;
    array->is_set = true;
    return 0;
}

static void
set_free(struct set *set)
{
    user_uncharge(set->user, RES_HOST, SET_HOST);
    free(set);
}

static void
set_unmake(struct array *array)
{
    array->is_set = false;
    TAILQ_REMOVE(&array->charge.user->core->sets, array->set, of_core);
    set_free(TAKE_PTR(array->set));
}

static int
member_new(struct set *set, struct msg_str key, struct array *array, struct member **ret,
           struct refusal *r)
{
    _cleanup_free_ struct member *member = calloc(1, sizeof(*member) + key.n);

    if (!member)
        return -ENOMEM;
    member->array = array;
    member->n_key = (uint8_t)key.n;
    memcpy(member->key, key.p, key.n);
    if (member_charge(set->user, member, r))
        return REFUSED;
    if (RB_INSERT(members, &set->members, member)) {
        user_uncharge(set->user, RES_NAMES, 1);
        user_uncharge(set->user, RES_HOST, member_host(member->n_key));
        return refuse(r, PROTO_ERR_EXISTS, "the set has a key \"%.*s\"", STR_FMT(key));
    }
    *ret = TAKE_PTR(member);
    return 0;
}

int
set_add(struct array *array, struct msg_str key, struct array *of, struct member **ret,
        struct refusal *r)
{
    int rc = array->is_set ? 0 : set_make(array, r);

    if (rc == 0)
        rc = member_new(array->set, key, of, ret, r);
    if (rc == 0) {
        count_member(array->set, *ret, true);
    } else if (array->is_set && !array->set->n) {
        set_unmake(array);
    }
    return rc;
}

int
set_restore(struct array *array, struct msg_str key, struct array *of, uint32_t record)
{
    struct member *member;
    int rc = set_add(array, key, of, &member, NULL);

    if (rc == 0)
        set_keep(array, member);
    if (rc == 0 && array->set->n_records < record)
        array->set->n_records = record;
    return rc;
}

void
set_keep(struct array *array, const struct member *member)
{
    if (member->n_key > array->set->longest)
        array->set->longest = member->n_key;
    persist_member(array, member);
}

static struct array *
member_drop(struct set *set, struct member *member)
{
    struct array *array = member->array;

    RB_REMOVE(members, &set->members, member);
    user_uncharge(set->user, RES_NAMES, 1);
    user_uncharge(set->user, RES_HOST, member_host(member->n_key));
    count_member(set, member, false);
    free(member);
    return array;
}

void
set_remove(struct array *array, struct member *member)
{
    member_drop(array->set, member);
    if (!array->set->n)
        set_unmake(array);
}

/* ---- names ---- */

static bool
begins_with(const struct array *array, struct msg_str name)
{
    return array->n_name > name.n && memcmp(array->name, name.p, name.n) == 0;
}

struct msg_str
set_key(const struct array *array, struct msg_str name)
{
    return (struct msg_str){name.p + array->n_name, name.n - array->n_name};
}

struct array *
set_over(struct pool *pool, struct msg_str name)
{
    struct array *array = pool_find_before(pool, name);

    return array && array->is_set && array->n_name < name.n &&
                   memcmp(array->name, name.p, array->n_name) == 0
               ? array
               : NULL;
}

struct named
named_find(struct pool *pool, struct msg_str name)
{
    struct named named = {.array = pool_find_array(pool, name)};

    if (named.array) {
        if (named.array->creating)
            named.array = NULL;
        return named;
    }
    named.set = set_over(pool, name);
    if (named.set)
        named.array = set_get(named.set, set_key(named.set, name));
    return named;
}

uint64_t
named_generation(const struct named *named)
{
    const struct array *array = named->set ? named->set : named->array;

    return named->array ? array->generation : 0;
}

/* Whether there is a set of that name and a slash. */
static bool
has_set(struct pool *pool, struct msg_str name)
{
    char text[PROTO_NAME_MAX];

    if (!pool || name.n >= sizeof(text))
        return false;
    memcpy(text, name.p, name.n);
    text[name.n] = '/';
    const struct array *set = pool_find_array(pool, (struct msg_str){text, name.n + 1});
    return set && set->is_set;
}

void
refusal_fill_array(struct refusal *r, struct pool *pool, struct msg_str pool_name,
                   struct msg_str name)
{
    refusal_fill_name(r, "array", pool_name, name);
    size_t n = strlen(r->text);
    if (has_set(pool, name))
        snprintf(r->text + n, sizeof(r->text) - n, "; there is a set \"%.*s/\"", STR_FMT(name));
    else if (memchr(name.p, '*', name.n))
        snprintf(r->text + n, sizeof(r->text) - n, "; in a name * is a letter, not a pattern");
}

/* EXISTS only for a name that can be opened: whoever creates a name or else opens it would try
 * again for ever. */
int
set_check_name(const struct array *array, struct msg_str name, struct refusal *r)
{
    struct pool *pool = array->pool;
    const struct array *over = set_over(pool, name);
    struct array *under;

    if (over && over != array)
        return refuse(
            r, set_get(over, set_key(over, name)) ? PROTO_ERR_EXISTS : PROTO_ERR_INVALID,
            "\"%.*s\" is of set \"%s\" in pool \"%s\", as are all names that begin so",
            STR_FMT(name), over->name, pool->name);
    if (!array->is_set)
        return 0;
    if (name.n + array->set->longest > PROTO_NAME_MAX)
        return refuse(r, PROTO_ERR_INVALID_NAME,
                      "a name has at most %d bytes, and one of that set would have %u",
                      PROTO_NAME_MAX, name.n + array->set->longest);
    under = pool_find_next(pool, name, name);
    if (under && under == array)
        under = RB_NEXT(names, &pool->names, under);
    if (under && begins_with(under, name))
        return refuse(
            r, PROTO_ERR_EXISTS,
            "\"%s\" exists in pool \"%s\": all names that begin with a set's are its own",
            under->name, pool->name);
    return 0;
}

/* ---- the end ---- */

void
set_end(struct array *array)
{
    struct set *set = TAKE_PTR(array->set);

    array->is_set = false;
    set->array = NULL;
    TAILQ_REMOVE(&set->user->core->sets, set, of_core);
    TAILQ_INSERT_TAIL(&set->user->ended, set, of_user);
    user_wake(set->user);
}

struct array *
set_take(struct set *set)
{
    struct array *array = member_drop(set, RB_ROOT(&set->members));

    if (!set->n) {
        TAILQ_REMOVE(&set->user->ended, set, of_user);
        set_free(set);
    }
    return array;
}

void
set_forget(struct set *set)
{
    struct member *member;

    while ((member = RB_ROOT(&set->members))) {
        RB_REMOVE(members, &set->members, member);
        free(member);
    }
    free(set);
}
