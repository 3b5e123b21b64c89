/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of an array when something that kept it goes: it lives on, dies and waits (I2), or
 * is buried, and its range queues up to be freed.
 */
#pragma once

struct array;
struct core;
struct set;

/* After a name, a lease, a departed holder or the last part went. */
void array_settle(struct core *core, struct array *array);
/* Gives up an array that was never promised to anybody. */
void array_abandon(struct core *core, struct array *array);
/* Lets go of a member of a set that has ended. */
void set_settle_one(struct core *core, struct set *set);
/* Some of those whose last fence has passed, or gone with its page. */
void arrays_settle_landed(struct core *core);
