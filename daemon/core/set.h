/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set: an array of no bytes that keeps other arrays, its members, each under a key. A set's name,
 * leases, generation and end are those of its array. While it has a name, all longer names that
 * begin with it are the set's: each names a member, by the key that follows. So all of them change
 * in one step. At most one set covers a name: the array with the last name before it in the pool.
 *
 * A set whose members are parts of one array has a layout: a sum over its members, the same for all
 * sets of the same keys, types, shapes and places, in whatever order they were put in. Who has
 * opened one version may go by what it knows of that for another. It is no proof.
 *
 * An array is a set from the first key that is put into it. A set never changes once it has had a
 * name. When its array ends the set goes on alone, in its user's list, and lets go of its members
 * one by one (work_run()).
 */
#pragma once

#include "base/tree.h"
#include "refusal.h"
#include "user.h"

struct array;
struct pool;

struct member {
    RB_ENTRY(member) node; /* set->members, by key */
    struct array *array;
    uint8_t n_key;
    char key[]; /* not terminated */
};

RB_HEAD(members, member);

struct set {
    struct members members;
    struct array *array;      /* NULL: the array has ended */
    TAILQ_ENTRY(set) of_core; /* core->sets, until the array ends */
    uint32_t n;
    struct whole *whole; /* that the first member is a part of; NULL: it is none */
    uint32_t n_others;   /* members that are no parts of it */
    uint64_t layout;     /* the sum over those that are */
    uint32_t n_records;  /* members that were given a number in the journal */
    bool record_turn;    /* for all members, as array->record_turn */
    uint8_t longest;     /* bytes of its longest key */
    /* the array's; pays for a name for each member, and for the memory here */
    struct user *user;
    TAILQ_ENTRY(set) of_user; /* user->ended */
    /* of a droppable array: its members are all parts of one other */
    bool listed;
    uint64_t priority, reload_ns, bytes;
    uint64_t idle_ns;        /* when it was last put into the lists */
    struct pool *pool;       /* listed: its array's */
    RB_ENTRY(set) of_pool;   /* pool->droppables */
    RB_ENTRY(set) of_device; /* its user's on the device */
};

RB_PROTOTYPE(members, member, node, )
RB_PROTOTYPE(own_droppables, set, of_device, )

/* Puts an array under a key of the set, or of an array without bytes that never had a name. -ENOMEM
 * or REFUSED. */
int set_add(struct array *array, struct msg_str key, struct array *of, struct member **ret,
            struct refusal *r);
/* A member that the set had in an earlier core, where its record had that number. -ENOMEM. */
int set_restore(struct array *array, struct msg_str key, struct array *of, uint32_t record);
/* Makes set_add() final. */
void set_keep(struct array *array, const struct member *member);
/* Undoes set_add(). Something else keeps the array. */
void set_remove(struct array *array, struct member *member);
/* The member with that key. NULL: there is none, or `array` is NULL or no set. */
struct array *set_get(const struct array *array, struct msg_str key);
/* The first member > after whose key does not come before the prefix. */
struct member *set_next(const struct array *array, struct msg_str after, struct msg_str prefix);
/* 0: it is no set, or its members are not all parts of one array. */
uint64_t set_layout(const struct array *array);
/* What a set is charged: the record of a droppable one is longer. */
#define SET_HOST (sizeof(struct set) + TEXT_HOST(2 * sizeof(uint64_t)))

/* What a member is charged of the daemon's memory, beside its array. */
size_t member_host(size_t n_key);
/* The key in a name that begins with the set's. */
struct msg_str set_key(const struct array *array, struct msg_str name);

/* What a name stands for: an array with that name, or a set's member, with the generation of the
 * set. */
struct named {
    struct array *array;     /* NULL: none, or one that is being created */
    const struct array *set; /* the set whose member it is, or NULL */
};

struct named named_find(struct pool *pool, struct msg_str name);
uint64_t named_generation(const struct named *named);
/* The set whose name is the beginning of this name; or NULL. */
struct array *set_over(struct pool *pool, struct msg_str name);
/* NOT_FOUND, with what was easily meant: the set of that name and a slash, or a pattern. pool:
 * where the caller may look, or NULL. */
void refusal_fill_array(struct refusal *r, struct pool *pool, struct msg_str pool_name,
                        struct msg_str name);
#define refuse_array(...) (refusal_fill_array(__VA_ARGS__), REFUSED)
/* Whether the array may have that name, as far as sets are concerned. REFUSED. */
int set_check_name(const struct array *array, struct msg_str name, struct refusal *r);

/* The array, which has its name, may be dropped where memory is short (drop.h), until it loses the
 * name or is published anew. Its members are all parts of one array, and in no other set. */
void set_may_go(struct core *core, struct array *array, uint64_t priority, uint64_t reload_ns);
void set_stays(struct array *array);
/* Something that kept it from being dropped may be gone. */
void set_list(struct core *core, struct set *set);
void set_unlist(struct set *set);
/* Which of two is dropped first, whatever their priority. */
int set_compare_cost(const struct set *a, const struct set *b);

/* The array is buried: the set lets go of its members from now on. */
void set_end(struct array *array);
/* Lets go of one member, which the caller settles. With the last one the set is freed. */
struct array *set_take(struct set *set);
/* Frees all when the core ends. The pools free the arrays that are members. */
void set_forget(struct set *set);
