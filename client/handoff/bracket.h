/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket around the use of some arrays by a stream, or by the host. Its begin is a request that
 * is in flight until it is this bracket's turn. Then it waits for the fences of the reply (lane.h),
 * and is open until its end, which signals and tells the daemon.
 *
 *   ASKED --reply--> GRANTED --waits are enqueued--> OPEN --end--> OVER
 *
 * A refused bracket is OVER, too. One that fails after the grant is given back as `undone`. Between
 * these states a thread has the bracket (BUSY), and drops the client's lock meanwhile.
 *
 * Life: made by caid_bracket_start(). References, under the client's lock: the caller's until
 * caid_bracket_free(), the request's until it is over, and one while its end waits to be sent; the
 * struct is freed with the last. It has a reference to the client. Of the arrays it knows only the
 * leases: arrays may be closed at any time, and the daemon then ends their part of the bracket.
 *
 * An end must not be lost. It must be sent in the order of the signals, and before any later
 * request. An end that the socket does not take waits in the table, whose entry is the bracket
 * itself, so that an end needs no memory; the next call_flush() sends it. So it is with
 * cancellations of begins. When a connection ends, the daemon keeps others out of what its brackets
 * use until the process has exited, since its streams may still use the arrays: so a client that
 * closes ends its brackets first.
 *
 * The next daemon is told of open brackets, and of ends of writes; but not of ends after which the
 * daemon before has answered a later request (session/resume.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "session/spin.h"

TAILQ_HEAD(bracket_list, caid_bracket);

struct bracket_table { /* under the client's lock */
    uint64_t last_id;  /* the id of the last bracket */
    struct spin spin;  /* for begins */
    struct bracket_list unsent;
    struct bracket_list sent;      /* ended writes: the daemon may not have read the end */
    LIST_HEAD(, caid_bracket) all; /* brackets that are not over */
};

extern const struct feature bracket_feature;

void bracket_table_init(struct bracket_table *table);

/* The names of the arrays of a bracket that is not over; NULL: there is none. Under the client's
 * lock, as long as which they are good. */
const char *bracket_open_names(const struct caid_client *client);

/* The client closes: gives up begins, and abandons open brackets. Under the client's lock, which it
 * drops meanwhile. */
void bracket_close(struct caid_client *client);
