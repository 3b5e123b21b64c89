/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: what an earlier core has recorded (records.h) comes into a new one, before that has
 * its first connection. What the records say is checked; what cannot be is left out, and told.
 *
 *   restore_read()    the last record of each object that is there
 *   (the shell)       imports the blocks, finds the processes, maps the pages
 *   core_restore()    blocks, then arrays, then who may have them mapped, and signals
 *
 * Nobody is connected to the new core. What a process of the earlier one's has mapped is not given
 * to anybody as long as it lives (I2): its connection is a departed one, and as long as a block has
 * such, what was free in it is set aside (struct block, aside). An array that was being written is
 * abandoned, where who wrote it cannot say any more that it is whole; who can is waited for, as
 * are those that may read: former.h.
 */
#pragma once

#include "core.h"
#include "records.h"

struct journal;

struct restore_block {
    const struct record_block *record;
    bool lost;       /* the shell's to fill: it could not be imported; else these */
    uint64_t handle; /* as of core_alloc_result */
    int fd;
    struct block *block; /* for core_restore() */
};

struct restore_conn {
    const struct record_conn *record;
    /* The shell's to fill: the number that core_exited() will be told, 0 where the process has
     * exited; and that of its pidfd at the keeper, or 0. */
    uint64_t conn;
    uint32_t kept;
};

struct restore_array {
    const struct record_array *record;
    uint16_t n; /* bytes */
    uint64_t mark;
    struct array *array; /* for core_restore() */
};

struct restore_page {
    const struct record_page *record;
    /* The shell's to fill: its owner has exited, and the page as the core may have it; slots NULL:
     * it is lost. */
    bool is_dead;
    struct core_page_result made;
};

struct restore { /* each kind by its number; pointers into the journal */
    struct restore_block *blocks;
    struct restore_conn *conns;
    struct restore_array *arrays;
    const struct record_pool **pools;
    const struct record_hold **holds;     /* by block, and connection */
    const struct record_member **members; /* by set */
    const struct record_done **dones;     /* by connection */
    const struct record_lost **losts;
    struct restore_page *pages;
    size_t n_blocks, n_conns, n_arrays, n_pools, n_holds, n_members, n_dones, n_pages, n_losts;
    uint64_t floor, ids;
};

/* Of a journal that has been opened, which is to stay until restore_deinit(). -ENOMEM. */
int restore_read(struct restore *ret, struct journal *journal);
void restore_deinit(struct restore *restore);

struct restore_conn *restore_find_conn(const struct restore *restore, uint64_t id);

/* What did not come back this time. It is told by the core as well, where its pool is there:
 * lost.h. */
typedef void restore_lost_fn(void *userdata, const char *pool, const char *name,
                             const char *why);

/* Into a core without connections; blocks that were imported are its own from here on. Those that
 * nobody needs are released by CORE_RELEASE. -ENOMEM. */
int core_restore(struct core *core, struct restore *restore, restore_lost_fn *lost,
                 void *userdata);
