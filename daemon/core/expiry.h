/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a name is unlinked by itself, by CLOCK_BOOTTIME: a machine that sleeps does not stop it. It
 * is the array's that has the name: it goes with it to another name, and ends with the name or the
 * generation that it was given for. Few arrays have one, so it does not lie in them. Who gave it is
 * charged for it.
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

#define EXPIRY_HOST (sizeof(struct expiry) + TEXT_HOST(sizeof(uint64_t))) /* it is charged */

RB_HEAD(expiries, expiry); /* by time */
RB_HEAD(expiring, expiry); /* by array */

RB_PROTOTYPE(expiries, expiry, node, )
RB_PROTOTYPE(expiring, expiry, of_array, )

/* So much later, by CLOCK_BOOTTIME. */
uint64_t expiry_time(const struct core *core, uint64_t ns);
/* For an array to come. -ENOMEM or REFUSED. */
int expiry_new(struct expiry **ret, struct user *user, uint64_t ttl_ns, struct refusal *r);
/* One that no array has got. NULL: none. */
void expiry_free(struct expiry *expiry);
/* In place of what the array has; NULL: it has none any more. */
void expiry_set(struct core *core, struct array *array, struct expiry *expiry_consume);
/* One of an earlier core's, by CLOCK_BOOTTIME. -ENOMEM. */
int expiry_restore(struct core *core, struct array *array, uint64_t at_ns);
/* By CLOCK_BOOTTIME; 0: it has none. */
uint64_t expiry_at_ns(const struct core *core, const struct array *array);
/* What is left of its time, at least 1; 0: it has none. */
uint64_t expiry_left_ns(const struct core *core, const struct array *array);
/* An array whose time is over, the first one first; or NULL. */
struct array *expiry_due(struct core *core);
/* When the first one is; UINT64_MAX: there is none. */
uint64_t expiry_next_ns(const struct core *core);
/* It cannot be unlinked now: in a second. */
void expiry_put_off(struct core *core, struct array *array);
/* The core ends, and with it the arrays. */
void expiries_forget(struct core *core);
