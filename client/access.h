/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket around the use of some arrays by a stream, or by the host. Its begin is a request
 * that stands (call.h) until the daemon says that it is this one's turn; the fences of the reply
 * are then waited for (lane.h), and the bracket is open until its end, which signals and tells
 * the daemon so.
 *
 *   ASKED --reply--> GRANTED --waits are enqueued--> OPEN --end--> OVER
 *
 * What is refused is OVER, too, and what fails after the grant is given back `undone`. In between
 * a thread has it (BUSY), and drops the client's lock meanwhile.
 *
 * Life: made by caid_access_start(). References, under the client's lock: the caller's, until
 * caid_access_free(), the request's while it stands, and that of what waits to be sent; the
 * struct goes with the last one. It holds the client. Of the arrays it knows the leases alone:
 * they may be closed at any time, and the daemon then ends what the bracket has of them.
 *
 * Ends must not be lost, nor come in another order than their signals, nor after what is asked
 * later. One that the socket does not take waits in the table, in which the bracket is itself the
 * entry, so that an end needs no memory; access_flush() sends it. So do cancellations of begins
 * that are given up. A connection that ends leaves its brackets to the daemon, which keeps others out
 * until the process has exited, since its streams may use the arrays yet: so a client that closes ends them
 * first.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "call.h"
#include "fence.h"
#include "msg.h"
#include "spin.h"

struct caid_client;
struct lane;

TAILQ_HEAD(access_list, caid_access);

struct access_table { /* under the client's lock */
    uint64_t last_id; /* of a bracket */
    struct spin spin; /* for begins */
    struct access_list unsent;
    LIST_HEAD(, caid_access) all; /* that are not over */
};

enum access_state {
    ACCESS_ASKED,
    ACCESS_GRANTED,
    ACCESS_BUSY,
    ACCESS_OPEN,
    ACCESS_OVER,
};

struct caid_access {
    struct caid_client *client;

    /* Fixed. */
    struct lane *lane;    /* NULL: the host's; the caller's reference */
    uint64_t deadline_ns; /* of the whole begin; 0: it does not wait */
    struct msg_begin_params params;
    char names[128]; /* of the arrays, for messages */

    /* Under the client's lock. */
    uint32_t refs;
    enum access_state state;
    struct call call;
    uint64_t asked_ns;
    bool standing;  /* call is in flight */
    bool granted;   /* the daemon has opened the bracket */
    bool begun;     /* it is open, or was */
    bool given_up;  /* by its caller */
    bool is_unsent; /* is in the list: call's cancellation, or while none stands the end */
    TAILQ_ENTRY(caid_access) unsent;
    LIST_ENTRY(caid_access) of_table;
    struct msg_end_params end;
    struct caid_error failed; /* why it has not begun; code 0: it has, or may */

    /* What is waited for: under the client's lock until it is granted, then of the thread that
     * has it, and fixed from OPEN on. By page and slot. */
    struct fence *fences;
    size_t n_fences, fences_capacity;
    uint64_t last_page, last_slot; /* of the fences that came */
    bool more;                     /* are to be asked for */

    uint64_t leases[]; /* of arrays that are read, then of those that are written */
};

void access_table_init(struct access_table *table);

/* All of these under the client's lock. */
int access_flush(struct caid_client *client); /* 0, -EAGAIN, -ENOMEM, ... as call_flush() */
bool access_has_unsent(const struct caid_client *client);
/* The connection has ended. */
void access_forget_unsent(struct caid_client *client);
/* The client closes: what is asked for is given up, and what is open abandoned. Drops the lock
 * meanwhile. */
void access_close(struct caid_client *client);

/* Sets up the request. */
void access_prepare(struct caid_access *access);

/* Ends a bracket that the daemon has opened: the end is sent, or waits to be. Under the client's
 * lock. */
void access_send_end(struct caid_access *access, const struct msg_end_params *end);
/* The same, as if it had not been. */
void access_send_undone(struct caid_access *access);
/* What is asked for is given up: cancelled, or given back. Under the client's lock, which it drops
 * meanwhile. */
void access_give_up(struct caid_access *access);
/* Ends what is open as abandoned, and gives up what is asked for. Under the client's lock, which it drops
 * meanwhile. */
void access_abandon(struct caid_access *access);
/* Another state, which whoever waits for it is told. Under the client's lock. */
void access_set_state(struct caid_access *access, enum access_state state);
void access_unref(struct caid_access *access);
/* Gives back what only the caller's reference needs: nothing is added to one that is given up, or
 * over. Not under the lock. */
void access_let_go(struct caid_access *access);

/* Asks for the fences after those that came. Not under the lock. */
int access_ask_for_more(struct caid_access *access, struct caid_error *error);

/* CAID_ERR_ABANDONED: what it waited for is lost. */
int access_fail_abandoned(const struct caid_access *access, struct caid_error *error);
/* Whether an array may be in a bracket, for writing or reading. */
int access_check_array(const struct caid_array *array, bool write, struct caid_error *error);
