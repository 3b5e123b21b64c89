/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket around the use of some arrays by a stream, or by the host. Its begin is a request that
 * is in flight until the daemon says that it is this one's turn; the fences of the
 * reply are then waited for (lane.h), and the bracket is open until its end, which signals and
 * tells the daemon so.
 *
 *   ASKED --reply--> GRANTED --waits are enqueued--> OPEN --end--> OVER
 *
 * What is refused is OVER, too, and what fails after the grant is given back `undone`. In between
 * a thread has it (BUSY), and drops the client's lock meanwhile.
 *
 * Life: made by caid_bracket_start(). References, under the client's lock: the caller's, until
 * caid_bracket_free(), the request's until it is over, and that of what waits to be sent; the
 * struct goes with the last one. It holds the client. Of the arrays it knows the leases alone:
 * they may be closed at any time, and the daemon then ends what the bracket has of them.
 *
 * Ends must not be lost, nor come in another order than their signals, nor after what is asked
 * later. One that the socket does not take waits in the table, in which the bracket is itself the
 * entry, so that an end needs no memory; the next call_flush() sends it. So do cancellations of
 * begins that are given up. A connection that ends leaves its brackets to the daemon, which keeps
 * others out until the process has exited, since its streams may use the arrays yet: so a client
 * that closes ends them first.
 *
 * A daemon that is started anew is told of those that are open, and of ends of writes, but those
 * that the daemon before has answered something after (session/resume.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "session/spin.h"

TAILQ_HEAD(bracket_list, caid_bracket);

struct bracket_table { /* under the client's lock */
    uint64_t last_id;  /* of a bracket */
    struct spin spin;  /* for begins */
    struct bracket_list unsent;
    struct bracket_list sent;      /* ended, of a write: the daemon may not have heard of it */
    LIST_HEAD(, caid_bracket) all; /* that are not over */
};

extern const struct feature bracket_feature;

void bracket_table_init(struct bracket_table *table);

/* The client closes: what is asked for is given up, and what is open abandoned. Under its lock,
 * which it drops meanwhile. */
void bracket_close(struct caid_client *client);
