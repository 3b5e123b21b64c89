/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the daemon: its keeper has the fds of blocks and of pages, pidfds of clients, and
 * the core's journal, a memfd under number 0 that says what they are. The order is: the fd to the
 * keeper, the record, the reply.
 *
 *     restart_open()     what a former daemon has left is found and read
 *     restart_take()     processes and their pages come into the new core, which goes on with the
 *                        journal; blocks and arrays come back then, in pieces
 *     restart_look()     after each event: a journal that has grown is written anew, once all is
 *                        back
 *     restart_stop()     the daemon is about to end: what happens from here on is not recorded
 *
 * Where there is no keeper, all of this does nothing.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "conns.h"
#include "core.h"
#include "journal.h"
#include "kept.h"
#include "restore.h"
#include "shared_page.h"
#include "worker.h"

struct journal_file {
    struct journal journal;
    int fd; /* -1: none */
};

struct restart {
    struct kept *kept;
    struct journal_file files[2]; /* one of them, and the next one while it is being written */
    int turn;
    bool is_on;
    bool renews, is_handed_over; /* the new one is at the keeper, or on its way */
    size_t least;                /* bytes that it has before it is written anew */

    struct journal_file replaced; /* which a thread closes, before another renewal begins */
    pthread_t closer;
    bool closes;
    _Atomic bool is_closed;

    struct journal_file old; /* a former daemon's, until all is back */
    struct restore restore;
    struct worker *worker;
    struct shared_pages *pages;
    bool restores;
    uint64_t n_lost;     /* arrays */
    uint64_t n_restarts; /* daemons that were before this one */
    uint64_t id[2];      /* random: theirs, and this one's */
};

/* kept: borrowed. */
void restart_init(struct restart *r, struct kept *kept);
/* -ENOTSUP: a newer daemon's journal, which is left as it is; -errno. Logged. */
int restart_open(struct restart *r);
void restart_close(struct restart *r);
/* Into a core without connections. -errno, logged. */
int restart_take(struct restart *r, struct core *core, struct worker *worker,
                 struct conns *conns, struct shared_pages *pages);
/* < 0: what is left cannot come back in this process, and is the next one's. Logged. */
int restart_look(struct restart *r, struct core *core);
/* What outlives this process, as it is now. */
void restart_figures(const struct restart *r, struct core_figures *ret);
void restart_stop(struct restart *r, struct core *core);
