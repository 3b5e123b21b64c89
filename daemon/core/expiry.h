/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a name is unlinked by itself: by CLOCK_BOOTTIME, which runs while the machine sleeps. An
 * expiry belongs to the array with the name. It stays when the array is renamed, and ends with the
 * name, or when the name is given a new generation. It lies apart from the array, since
 * few arrays have one. Whoever gave it is charged for it.
 */
#pragma once

#include "user.h"

struct array;
struct core;

struct expiry {
    RB_ENTRY(expiry) node;     /* core->expiries */
    RB_ENTRY(expiry) of_array; /* core->expiring */
    struct array *array;
    uint64_t at_ns;
    struct charge charge;
};

#define EXPIRY_HOST \
    (sizeof(struct expiry) + TEXT_HOST(sizeof(uint64_t))) /* what an expiry is charged */

RB_HEAD(expiries, expiry); /* by time */
RB_HEAD(expiring, expiry); /* by array */

RB_PROTOTYPE(expiries, expiry, node, )
RB_PROTOTYPE(expiring, expiry, of_array, )

/* An expiry after so much time, by CLOCK_BOOTTIME. */
uint64_t expiry_time(const struct core *core, uint64_t ns);
/* A new expiry, which no array has yet. -ENOMEM or REFUSED. */
int expiry_new(struct expiry **ret, struct user *user, uint64_t ttl_ns, struct refusal *r);
/* Frees an expiry that no array has. NULL: nothing. */
void expiry_free(struct expiry *expiry);
/* Gives the array this expiry in place of its own; NULL: none. */
void expiry_set(struct core *core, struct array *array, struct expiry *expiry_consume);
/* An expiry of an earlier core. -ENOMEM. */
int expiry_restore(struct core *core, struct array *array, uint64_t at_ns);
/* By CLOCK_BOOTTIME; 0: it has none. */
uint64_t expiry_at_ns(const struct core *core, const struct array *array);
/* The time that is left, at least 1; 0: no expiry. */
uint64_t expiry_left_ns(const struct core *core, const struct array *array);
/* The array with the earliest expiry that is over; or NULL. */
struct array *expiry_due(struct core *core);
/* The earliest expiry; UINT64_MAX: none. */
uint64_t expiry_next_ns(const struct core *core);
/* The name cannot be unlinked now: it is tried again in a second. */
void expiry_put_off(struct core *core, struct array *array);
/* Frees all expiries when the core ends. */
void expiries_forget(struct core *core);
