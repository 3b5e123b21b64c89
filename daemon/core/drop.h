/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropping: where memory is short, sets that were published as droppable make room. Such a set
 * loses its name as a whole, and the name is recorded as lost (lost.h), with what the set's
 * publisher has said of it: who opens it next makes it again.
 *
 * A set is dropped when nobody can reach it, the array whose parts its members are (the whole), or
 * any part of that, but by the set's name: as of a set that is vacated (vacate.h). For a device
 * that is full nobody may hold its block, either: a client that has it mapped keeps its memory, and
 * unmaps what it has no lease on by itself, soon.
 *
 * A pool lists the sets that may be idle, those first that are dropped first. One that turns out to
 * be in use leaves the list, until something that used it has gone (whole_touch()): so a search
 * passes each once.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct array;
struct conn;
struct core;
struct pool;
struct refusal;
struct user;

#define DROP_DEVICE_ANY UINT32_MAX

enum drop {
    DROP_NONE,
    DROP_SOON, /* one may be, when its block is not held any more: the device's n_over tells */
    DROP_DONE,
};

/* Drops one set of the pool, for conn, that is user's, or anybody's (NULL). Nobody is charged for
 * its bytes any more; its memory is counted as lingering until it is there. */
enum drop drop_in_pool(struct core *core, const struct conn *conn, struct pool *pool,
                       const struct user *user);
/* The same for a set of any pool that has memory on the device: the user's own, else one of another
 * user who keeps its share of the device without it. A share is what the device has, by the number
 * of users with bytes there. Of the pools' first ones the cheapest goes. */
enum drop drop_on_device(struct core *core, const struct conn *conn, uint32_t device,
                         const struct user *user);
/* Whether the array is a set that a user may publish as droppable. REFUSED. The record of what is
 * dropped tells the creator's processes how to bring it back: nobody else may write that. */
int drop_check(const struct array *array, const struct user *user, struct refusal *r);
