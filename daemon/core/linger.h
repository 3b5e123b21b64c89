/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lingering arrays are dead: nobody holds them, but a fence on them has not passed (I2).
 *
 * Nobody tells the daemon that a value has landed, so it polls: some arrays in each turn, those
 * first that it has not looked at for longest. If an array's last fence goes with its page, that is
 * known without polling.
 */
#pragma once

#include "use.h"

#define LINGER_TURN_NS UINT64_C(10000000) /* between two looks at the same array */
#define LINGER_REST_NS UINT64_C(1000000)  /* before the next ones are looked at */

/* Something waits for values to land: looks after that time. */
void linger_later(struct core *core, uint64_t ns);
/* Whether fences keep the dead array. If so, it lingers, and is settled when they have passed. */
bool linger_array(struct core *core, struct array *array);
/* The last fence of a lingering array is gone. */
void linger_end(struct core *core, struct use *use);
/* The array is the whole of a set that was dropped: it counts as lingering until its parts are
 * gone. */
void linger_drop(struct core *core, const struct array *array, bool there);
/* Looks at some of them. Returns whether some are left. */
bool linger_look(struct core *core);
/* The array does not linger any more; the caller settles it. */
void linger_stop(struct core *core, struct use_list *list);
/* Forgets them all when the core ends. */
void linger_forget(struct core *core);
