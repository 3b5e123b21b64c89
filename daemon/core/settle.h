/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of an array when something that kept it goes. It lives on; or it is dead and waits
 * (I2); or it is buried, and its range waits in a queue to be freed.
 */
#pragma once

struct array;
struct core;
struct set;

/* To be called after a name, a lease, a departed holder or the last part has gone. */
void array_settle(struct core *core, struct array *array);
/* Ends an array that no client has been told of. */
void array_abandon(struct core *core, struct array *array);
/* Lets a member of a set that has ended go. */
void set_settle_one(struct core *core, struct set *set);
/* Settles some arrays whose last fence has passed, or gone with its page. */
void arrays_settle_landed(struct core *core);
