/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal that has grown is written anew, some of it in each event: what changes meanwhile goes
 * into both (persist.h), and what the new one has got of an object last is right, in whatever
 * order.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto_limits.h"

struct core;

enum renewal_stage {
    RENEWAL_POOLS,
    RENEWAL_BLOCKS,
    RENEWAL_CONNS,
    RENEWAL_HOLDS,
    RENEWAL_PAGES,
    RENEWAL_TICKETS,
    RENEWAL_SETS, /* their members */
    RENEWAL_NAMES,
    RENEWAL_NAMELESS,
    RENEWAL_LOST,
    RENEWAL_ALL,
};

struct renewal { /* how far the new one is: after this one, of this stage */
    enum renewal_stage stage;
    uint8_t n_name;
    char pool[PROTO_POOL_MAX + 1], name[PROTO_NAME_MAX]; /* or a member's key, a secret */
    uint64_t id, generation; /* id: the connection's, the array's, ... or the set's */
    uint64_t hold;           /* of that connection */
};

/* Some of what a new journal is to get. */
void renewal_run(struct core *core);
/* It has not got all. */
bool renewal_is_behind(const struct core *core);
