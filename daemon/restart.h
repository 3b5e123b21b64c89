/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that outlives the daemon. Its keeper has the fds of blocks and of pages, the pidfds of
 * clients, and the core's journal, a memfd under number 0 that says what they are. The order is:
 * the fd to the keeper, the record, the reply.
 *
 *     restart_open()     finds and reads what an earlier daemon has left
 *     restart_take()     gives the new core its processes and their pages. The core goes on with
 *                        the journal, and restores blocks and arrays later, in pieces
 *     restart_look()     after each event: renews a journal that has grown, once all is back
 *     restart_stop()     the daemon is about to end: nothing is recorded from here on
 *
 * Without a keeper, all of these do nothing.
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
    struct journal_file files[2]; /* the journal, and the next one while it is being written */
    int turn;
    bool is_on;
    bool renews, is_handed_over; /* the new journal is at the keeper, or on its way there */
    size_t least;                /* a journal of fewer bytes is not renewed */

    struct journal_file
        replaced; /* a thread closes it; no renewal begins before that is done */
    pthread_t closer;
    bool closes;
    _Atomic bool is_closed;

    struct journal_file old; /* an earlier daemon's, as it was read; until all is back */
    struct restore restore;
    struct worker *worker;
    struct shared_pages *pages;
    bool restores;
    uint64_t n_lost;     /* arrays */
    uint64_t n_restarts; /* daemons before this one */
    uint64_t id[2];      /* random; this daemon and those before it have the same */
};

/* kept: borrowed. */
void restart_init(struct restart *r, struct kept *kept);
/* -ENOTSUP: the journal is of a newer version, and stays as it is; -errno. Logged. */
int restart_open(struct restart *r);
void restart_close(struct restart *r);
/* core: a new one, without connections. -errno, logged. */
int restart_take(struct restart *r, struct core *core, struct worker *worker,
                 struct conns *conns, struct shared_pages *pages);
/* < 0, logged: the rest cannot be restored in this process; it stays for the next daemon. */
int restart_look(struct restart *r, struct core *core);
/* The figures of restarts, keeper and journal. */
void restart_figures(const struct restart *r, struct core_figures *ret);
void restart_stop(struct restart *r, struct core *core);
