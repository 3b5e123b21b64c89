/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not back yet after a restart, pool by pool. A pool with all that the journal tells of it
 * (its blocks and arrays, who had them, their tickets, names that are lost) is a unit. It comes
 * back in pieces, and until it is whole nobody is answered about it, nothing is allocated there,
 * and nothing of it ends: who asks waits. Those that somebody waits for come first, of them the
 * smallest: what one user has piled up keeps nobody else waiting.
 *
 * Whose things are not all back is not served: so the charges of all who are served are whole.
 */
#pragma once

#include "restore.h"
#include "user.h"

struct range;

struct unit {
    struct pool *pool; /* NULL: of records whose pool is not there any more */
    size_t first[N_RECORDS], n[N_RECORDS]; /* of its records, in units->order */
    size_t n_records;
    uint64_t due[N_RESOURCES]; /* its part of core->due */
    bool is_wanted;            /* somebody waits for it */
    bool is_whole;
    bool has_uid;
    uid_t uid; /* the last one that it was found to concern */

    /* How far it has come. */
    size_t phase, at;
    uint64_t block;      /* the one that arrays are being placed in, */
    struct range *range; /* and a free range of it, or one before the next array's */
};

struct concern { /* a uid has something there */
    uint32_t unit;
    uid_t uid;
};

struct units {
    struct restore *records;
    struct unit *v;
    size_t n;
    struct unit *next;                    /* units_next(), or NULL: it is to be found */
    const struct restore_array *last[64]; /* that tickets and members were looked up in */
    uint32_t *of_pool;                    /* by the place of a record in records->pools */
    uint32_t
        *order[N_RECORDS]; /* places in records->lists, by unit; arrays by place in a block */
    struct concern *concerns; /* by uid */
    size_t n_concerns, n_room;
    size_t n_steps, n_left;     /* in all, and to be done: restore.c */
    uint64_t since_ns, boot_ns; /* when the core began to have it back, by both clocks */
    bool has_news; /* one that somebody waits for has become whole: core_admits_more() */
    bool has_refused_hello; /* whoever waits too long is told */
    bool has_exits; /* of processes whose connections give nothing up yet: names of timelines */
    int error;      /* core_restore_error() */
};

/* The pool that the record tells of, NULL: it is not configured any more. -ENOMEM. */
typedef int units_pool_fn(struct core *core, const struct record_pool *record,
                          struct pool **ret);

/* `records` is borrowed. -ENOMEM. */
int units_new(struct units **ret, struct core *core, struct restore *records,
              units_pool_fn *get_pool);
/* All is whole, or nothing more comes back. NULL: nothing happens. */
void units_free(struct units *units);
/* The one to go on with; NULL: all are whole. */
struct unit *units_next(struct units *units);
/* So much of what is due for it has been charged. */
void units_charged(struct core *core, struct unit *unit, enum resource res, uint64_t amount);
/* It is whole. */
void units_end(struct core *core, struct unit *unit);
/* The pool that a record says by its number; NULL: it is not there. */
struct pool *units_pool(const struct units *units, uint32_t number);
/* How much of all is left, in millionths, at least 1. */
uint64_t units_left(const struct units *units);

/* Whether that is not whole: it comes back before others, then. `units` NULL: all is. */
bool units_lack(struct units *units, struct unit *unit);
bool units_lack_user(struct units *units, uid_t uid);
bool units_lack_array(struct units *units, uint64_t id);
bool units_lack_ticket(struct units *units, struct record_key secret);
