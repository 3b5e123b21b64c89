/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publication behind work: caid_array_publish_behind() notes the work (drain.h), and another
 * thread waits for it, and then publishes. That is the client's (reaper.h) or, while there is none
 * and when the client is closed, the one that is there. Publications are asked for in the order of
 * the calls, whichever work ends first.
 *
 * Life: made by the call, one at a time for each array, which has a reference, as has who waits for
 * the result. LANDING while the work is waited for, ASKED while the request is in flight, over a
 * daemon's restart, too, then DONE. If its array is closed before, the lease ends when it is DONE.
 *
 * All is under the client's lock. A child after fork() frees what there is, and asks nobody.
 */
#pragma once

#include <stdbool.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "drain.h"
#include "session/call.h"

struct array_text;
struct caid_array;

enum behind_state {
    BEHIND_LANDING,
    BEHIND_ASKED,
    BEHIND_DONE,
};

struct behind {
    struct call call;
    TAILQ_ENTRY(behind) entry; /* in the table's list of its state */
    struct caid_array *array;  /* NULL: it has ended */
    enum behind_state state;
    bool ends_array; /* the array was closed: its lease ends with this */
    uint32_t refs;
    struct msg_publish_params params;
    struct drain work;
    struct wake landed;      /* of threads that wait while it is LANDING */
    struct array_text *text; /* the array's after the reply */
    uint64_t generation;     /* the result */
    int r;
    struct caid_error error; /* where r is not 0 */
    char names[];            /* what params points to */
};

TAILQ_HEAD(behind_list, behind);

struct behind_table { /* under the client's lock */
    struct behind_list landing, asked, done;
    bool waiting; /* a thread waits for the first one that is landing */
    struct wake over;
};

extern const struct feature behind_feature;

void behind_table_init(struct behind_table *table);

/* Whether the array's last publication is not DONE. Under the client's lock. */
bool behind_is_under_way(const struct caid_array *array);
/* The array is closed, and nothing uses it. true: its publication is not DONE, and will end it. */
bool behind_ends_array(struct caid_array *array);
/* The array ends. */
void behind_forget(struct caid_array *array);

/* The client ends, and its thread has: waits until all that is LANDING has landed, and the daemon
 * has answered, for a while. Drops the lock meanwhile. */
void behind_close(struct caid_client *client);
