/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name whose array did not come back from an earlier daemon: whoever asks for it is told so, and
 * why, until somebody unlinks the name or gives it to an array anew. It is recorded, so it outlives
 * this daemon as well. It is charged as the name that it was, to the array's user. It goes with its
 * pool.
 */
#pragma once

#include "pool.h"
#include "user.h"

enum lost_why { /* as recorded */
    LOST_RECORD = 1,
    LOST_MEMORY,
    LOST_LEGACY,
    LOST_MEMBER,
    LOST_COMPANION,
    N_LOST,
};

struct lost {
    RB_ENTRY(lost) node; /* pool->losts */
    struct pool *pool;
    struct charge charge;
    uint64_t id, generation; /* the array's */
    uint8_t why, n_name;
    bool is_set; /* its keys are lost as well */
    char *name;  /* behind this struct; terminated */
};

RB_PROTOTYPE(losts, lost, node, )

/* For people. */
const char *lost_reason(enum lost_why why);
/* Bytes of the daemon's own memory that one is charged. */
size_t lost_host(size_t n_name);
/* like: id, generation, why and is_set. Nothing is done where that is known. -ENOMEM. */
int lost_new(struct pool *pool, struct user *user, struct msg_str name,
             const struct lost *like);
/* NULL: none of that name. */
struct lost *lost_find(struct pool *pool, struct msg_str name);
/* The first one after a name, and not before the prefix. */
struct lost *lost_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix);
/* Of a name that no array has: REFUSED where it is lost, as itself or as a key of a set. */
int lost_check(struct pool *pool, struct msg_str name, struct refusal *r);
/* It is told no more. */
void lost_free(struct lost *lost);
/* The name is an array's. */
void lost_forget(struct pool *pool, struct msg_str name);
/* The core ends. */
void losts_forget(struct pool *pool);
