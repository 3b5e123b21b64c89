/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal that has grown is written anew, some of it in each event. What changes meanwhile goes
 * into both journals (persist.h). The last record of an object is the valid one, so their order
 * does not matter.
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
    RENEWAL_CHANNELS,
    RENEWAL_TICKETS,
    RENEWAL_SETS, /* their members */
    RENEWAL_NAMES,
    RENEWAL_NAMELESS,
    RENEWAL_LOST,
    RENEWAL_ALL,
};

struct renewal { /* where the renewal is: after this object of this stage */
    enum renewal_stage stage;
    uint8_t n_name;
    /* or the key of a member, or a ticket's secret */
    char pool[PROTO_POOL_MAX + 1], name[PROTO_NAME_MAX];
    uint64_t id, generation; /* id: of the connection, the array, the set, ... */
    uint64_t hold;           /* of that connection */
};

/* Some of what a new journal is to get. */
void renewal_run(struct core *core);
/* Whether the new journal has not got everything. */
bool renewal_is_behind(const struct core *core);
