/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lost name: its array was not restored, or it is a set that was dropped (drop.h). Requests for
 * it are refused, with the reason, until the name is unlinked or given to another array. It is
 * recorded, so it outlives this daemon, too. The array's user is charged for it as for a name. It
 * ends with its pool.
 */
#pragma once

#include "pool.h"
#include "user.h"

enum lost_why { /* the journal has these numbers */
    LOST_RECORD = 1,
    LOST_MEMORY,
    LOST_LEGACY,
    LOST_MEMBER,
    LOST_COMPANION,
    LOST_DROPPED,
    N_LOST,
};

struct lost {
    RB_ENTRY(lost) node; /* pool->losts */
    struct pool *pool;
    struct charge charge;
    uint64_t id, generation; /* of the array */
    uint8_t why, n_name;
    bool is_set; /* a set: its keys are lost as well */
    char *name;  /* behind this struct; terminated */
    /* LOST_DROPPED: what the set had; metadata.p NULL: none. Behind the name */
    struct msg_str metadata;

    struct lost_more {
        uint64_t priority, reload_ns, bytes;
    } more;
};

RB_PROTOTYPE(losts, lost, node, )

/* The reason, for people. */
const char *lost_reason(enum lost_why why);
/* What a lost name is charged of the daemon's memory. */
size_t lost_host(size_t n_name, size_t n_metadata);
/* Adds a lost name; like: id, generation, why, is_set, metadata and more. Nothing happens if it is
 * there. -ENOMEM. */
int lost_new(struct pool *pool, struct user *user, struct msg_str name,
             const struct lost *like);
/* NULL: none of that name. */
struct lost *lost_find(struct pool *pool, struct msg_str name);
/* The first lost name after that one, with the prefix or after it. */
struct lost *lost_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix);
/* For a name without an array: REFUSED if it is lost, itself or as a key of a set. */
int lost_check(struct pool *pool, struct msg_str name, struct refusal *r);
/* The name is not lost any more. */
void lost_free(struct lost *lost);
/* The name has been given to an array. */
void lost_forget(struct pool *pool, struct msg_str name);
/* Frees all when the core ends. */
void losts_forget(struct pool *pool);
