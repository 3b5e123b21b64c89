/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process at the other end of a connection, watched by its pidfd until it exits.
 *
 * Lifetime: made with its connection, and usually ends with it. The GPU may go on working for a
 * process that has hung up and lives (I2). Where the core says that memory waits for the exit, the
 * process departs: the connection ends, and the process stays in the set until it exits or the
 * daemon stops. To depart needs no memory, so it cannot fail. A departed process has an fd; the
 * core charges it to its uid as a connection, so that the number of both is bounded together.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "pollset.h"
#include "turns.h"

struct conn;
struct conns;
struct conn_owner;

struct process {
    struct conns *set;
    struct conn *c;           /* NULL: departed */
    struct conn_owner *owner; /* of a departed process */
    struct turn turn;         /* of a departed process, queued when it has exited */
    uint64_t conn_id;         /* the id of its connection, also of a closed one */
    int pidfd;
    bool is_kept; /* the keeper has the pidfd, and CORE_LET_GO closes it */
    struct poll_source source;
    LIST_ENTRY(process) link; /* in set->departed */
};

LIST_HEAD(process_list, process);

/* The process of c, which is in its set. Takes pidfd over, also on failure. Calls conn_exited()
 * when the process has exited. */
int process_new(struct conn *c, int pidfd_consume, struct process **ret);
struct process *process_free(struct process *p);
/* The process of an earlier daemon's connection, as if it had departed here. Takes pidfd over, also
 * on failure. */
int process_adopt(struct conns *set, uint64_t conn_id, uid_t uid, int pidfd_consume,
                  bool is_kept);
/* Asks the kernel. */
bool process_has_exited(const struct process *p);
/* Its connection ends. The set's departed() is called when the process has exited. */
void process_depart(struct process *p);
