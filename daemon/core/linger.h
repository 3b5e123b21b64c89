/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dead arrays that linger: nobody holds them any more, but a fence on them has not passed (I2).
 *
 * Nobody tells the daemon of a value, so it looks: at some in each turn, those first that it has
 * not looked at for longest. Arrays whose last fence goes with its page are known without that.
 */
#pragma once

#include "use.h"

#define LINGER_TURN_NS UINT64_C(10000000) /* between two looks at the same */
#define LINGER_REST_NS UINT64_C(1000000)  /* until those that a turn has left out */

/* Something waits for values to land: it is looked at after that time. */
void linger_later(struct core *core, uint64_t ns);
/* A dead array: whether fences keep it. Then it lingers, and is settled when they have passed. */
bool linger_array(struct core *core, struct array *array);
/* The last fence of one that lingers is gone. */
void linger_end(struct core *core, struct use *use);
/* Looks at some; whether it has left some out. */
bool linger_look(struct core *core);
/* It lingers no more; the array is to be settled. */
void linger_stop(struct core *core, struct use_list *list);
/* They are not settled: the core ends. */
void linger_forget(struct core *core);
