/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set: an array of no bytes that keeps other arrays, its members, each under a key. Names,
 * leases, generations and the end of a set are those of its array. As long as it has a name, all
 * names that begin with that are its own: each says a member, by the key that follows. So all of
 * them change in one step, and there is at most one set over a name: the one before it in the pool.
 *
 * From the first key that is put into it. Never changed once it has had a name. Its array's end is
 * its own: from then on it is in its user's list, and lets go of a member at a time (work_run()).
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
    struct array *array;      /* NULL: it has ended */
    TAILQ_ENTRY(set) of_core; /* core->sets, until then */
    uint32_t n;
    uint32_t n_records; /* of members, that were given a number in the journal */
    bool record_turn;   /* as array->record_turn, of all members */
    uint8_t longest;    /* key that it has, bytes */
    struct user *user;  /* its array's; pays for a name for each member, and the bytes here */
    TAILQ_ENTRY(set) of_user; /* user->ended */
};

RB_PROTOTYPE(members, member, node, )

/* Puts an array under a key of what is a set from then on: one without bytes that never had a name.
 * -ENOMEM or REFUSED. */
int set_add(struct array *array, struct msg_str key, struct array *of, struct member **ret,
            struct refusal *r);
/* One that it had in an earlier core, where its record had that number. -ENOMEM. */
int set_restore(struct array *array, struct msg_str key, struct array *of, uint32_t record);
/* What was added is to stay. */
void set_keep(struct array *array, const struct member *member);
/* Takes back what was added: its array is kept by somebody else. */
void set_remove(struct array *array, struct member *member);
/* The member of that key; NULL: there is none, or the array (which may be NULL) is no set. */
struct array *set_get(const struct array *array, struct msg_str key);
/* The first member > after whose key is not before the prefix. */
struct member *set_next(const struct array *array, struct msg_str after, struct msg_str prefix);
/* Bytes of the daemon's memory that a member is charged beside its array. */
size_t member_host(size_t n_key);
/* What follows the set's name in a name that begins with it. */
struct msg_str set_key(const struct array *array, struct msg_str name);

/* What a name says: an array of its own, or one by way of a set, whose generation it has then. */
struct named {
    struct array *array;     /* NULL: none that is not being created */
    const struct array *set; /* whose member that is, or NULL */
};

struct named named_find(struct pool *pool, struct msg_str name);
uint64_t named_generation(const struct named *named);
/* The set whose name the name begins with, and is longer than; or NULL. */
struct array *set_over(struct pool *pool, struct msg_str name);
/* Whether sets leave the array's pool that name for it. */
int set_check_name(const struct array *array, struct msg_str name, struct refusal *r);

/* Its array is buried: it lets go of its members from now on. */
void set_end(struct array *array);
/* Lets go of one member, which is to be settled. The last one frees the set. */
struct array *set_take(struct set *set);
/* When the core ends: the members' structs are freed by their pools. */
void set_forget(struct set *set);
