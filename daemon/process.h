/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process at the other end of a connection, watched by its pidfd until it exits.
 *
 * Lifetime: made with its connection, and usually ends with it. Where the core says that memory
 * waits for the exit, since the GPU may work for a process that has hung up as long as it lives
 * (I2), it departs instead: the connection goes, and the process is kept in the set until its
 * exit, or until the daemon stops. To depart needs no memory, so it cannot fail. It costs an fd
 * like a connection; the core charges it to its uid as one until then, so that the number of both
 * is bounded together.
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
    struct conn_owner *owner; /* of a departed one */
    struct turn turn;         /* of a departed one: it has exited */
    uint64_t conn_id;         /* the number that c has, or had */
    int pidfd;
    bool is_kept; /* the pidfd is, and goes with that: CORE_LET_GO */
    struct poll_source source;
    LIST_ENTRY(process) link; /* in set->departed */
};

LIST_HEAD(process_list, process);

/* Of c, which is in its set. Takes pidfd over, also on failure. conn_exited() is called when it
 * has exited. */
int process_new(struct conn *c, int pidfd_consume, struct process **ret);
struct process *process_free(struct process *p);
/* Of a connection that a former daemon had, as if it had departed here. Takes pidfd over, also on
 * failure. */
int process_adopt(struct conns *set, uint64_t conn_id, uid_t uid, int pidfd_consume,
                  bool is_kept);
/* Asks now. */
bool process_has_exited(const struct process *p);
/* Its connection ends; the set's departed() is called when it has exited. */
void process_depart(struct process *p);
