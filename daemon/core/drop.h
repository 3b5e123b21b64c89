/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropping: where memory is short, sets that were published as droppable make room. Such a set
 * loses its name as a whole, and the name is recorded as lost (lost.h), with what the set's
 * publisher has said of it: who opens it next makes it again. A name with a time to live just ends.
 *
 * A set is dropped when nobody can reach it, the array whose parts its members are (the whole), or
 * any part of that, but by the set's name: as of a set that is vacated (vacate.h). For a device
 * that is full nobody may hold its block, either: a client that has it mapped keeps its memory, and
 * unmaps what it has no lease on by itself, soon.
 *
 * None is dropped unless those that may be make all the room that is wanted.
 *
 * A pool lists the sets that may be idle, those first that are dropped first; so does their user,
 * by device. One that turns out to be in use leaves the lists, until something that used it has
 * gone (whole_touch()): so a search passes each once. A search looks at so many, and the next one
 * goes on behind them: none is hidden for ever.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct array;
struct conn;
struct core;
struct pool;
struct refusal;
struct set;
struct user;

enum drop {
    DROP_NONE,
    DROP_SOON, /* some may be, when nobody has them mapped any more: n_over tells */
    DROP_MORE, /* there are more to be looked at */
    DROP_DONE,
};

/* Drops one set of the pool, for conn, which wants so many bytes. Nobody is charged for the set's
 * bytes any more; its memory is counted as lingering until it is there. */
enum drop drop_in_pool(struct core *core, const struct conn *conn, struct pool *pool,
                       uint64_t wanted);
/* The same for a set of conn's user on the device, in whatever pool: of the pools' first ones the
 * cheapest; if these are too few, for one of another user who keeps its share of the device without
 * it. A share is what the device has, by the number of users with bytes there. patient: own ones
 * that are mapped are waited for before. */
enum drop drop_on_device(struct core *core, const struct conn *conn, uint32_t device,
                         uint64_t wanted, bool patient);
/* Drops sets of conn's user until it is charged for so many bytes less; a limited number of them.
 * Whether that is done. */
bool drop_of_user(struct core *core, const struct conn *conn, uint64_t wanted);
/* Whether somebody uses it who says when not any more. */
bool drop_is_held(const struct set *set);
/* Whether the array is a set that a user may publish as droppable. REFUSED. The record of what is
 * dropped tells the creator's processes how to bring it back: nobody else may write that. */
int drop_check(const struct array *array, const struct user *user, struct refusal *r);
