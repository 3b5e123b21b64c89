/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request and its reply. Calls live on the stack of the thread that makes them; those that
 * wait for what may never come (a watch's) live with their owner, and do not keep a thread
 * waiting.
 *
 * Several threads may have calls in flight on the one socket. Of those that wait, one reads for
 * all: it receives a packet with the client unlocked, gives it to the call that it answers, and
 * goes on until its own reply has come; then it wakes another one that waits to read on. So no
 * thread of our own reads, and a single-threaded caller never waits on a condition.
 *
 * Replies are taken in the order of their arrival, whichever thread they are for, because what
 * a reply says about blocks holds for the replies after it (memory/block.h).
 *
 * A call whose reply does not come in time is given up (late.h): its caller goes, and the call is
 * in flight all the same, until the reply has come or the connection has ended.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "msg.h"
#include "wake.h"

struct caid_client;
struct claims;

/* Fds that came with a packet. What is not taken out (and -1 left in its place) is closed. */
struct call_fds {
    int fd[PROTO_FDS_MAX];
    size_t n;
};

struct call {
    TAILQ_ENTRY(call) entry;
    enum msg_method method;
    const void *params;

    /* Takes the result of a reply without error, with the client locked: the method's
     * msg_..._result. NULL: there is nothing in it. -EPROTO ends the connection; other errors
     * fail the call. A result that there is no memory to read ends the connection, too: nobody
     * knows what the daemon counts on. */
    int (*take)(struct caid_client *client, struct call *call, const void *result,
                struct call_fds *fds);
    struct reply *copy; /* in place of take(): gets the packet */
    bool has_blocks;    /* the reply refers to blocks, and may bring fds */
    bool has_pages;     /* the same of pages of timelines: handoff/page.h */
    /* Its caller gives it up: makes the one that takes its place, of late_new() or with an `end`
     * that frees it, which gives back what the reply grants, if any. NULL: no memory. Needed only
     * where something is granted. */
    struct call *(*adopt)(struct caid_client *client, struct call *call);
    /* Nobody waits for it in call_run(): told that it is over, with the client locked. */
    void (*end)(struct caid_client *client, struct call *call);

    uint64_t timeout_ns; /* that the reply may take; 0: as any of the client's */

    uint64_t seq;
    uint64_t deadline_ns; /* from call_start() on: by when there is to be a reply */
    bool done;            /* nobody is to wait for it any more */
    bool given_up;        /* another one has taken its place, or this is that one */
    bool late;            /* the client's thread looks for its reply */
    bool repeats;         /* the daemon that comes next is to answer it: call_claim_all() */
    struct wake wake;
    int r;
    struct caid_error error; /* where r is not 0 */
};

TAILQ_HEAD(call_list, call);

/* A thread that waits for a call while another one reads: on its stack. */
struct waiter {
    TAILQ_ENTRY(waiter) entry;
    struct call *call;
};

TAILQ_HEAD(waiter_list, waiter);

/* Sends the request and waits until the reply has been taken, for as long as that may take: then it
 * is CAID_ERR_TIMEOUT, after a signal CAID_ERR_INTERRUPTED, and the call has been given up. The
 * client is entered (client_enter()); its lock is dropped while waiting. */
int call_run(struct caid_client *client, struct call *call, struct caid_error *error);

/* The same of a thread that is not in the client yet: enters it, and leaves. */
int call_make(struct caid_client *client, struct call *call, struct caid_error *error);
/* The same of a request whose reply has nothing in it. */
int call_ask(struct caid_client *client, enum msg_method method, const void *params,
             struct caid_error *error);

/* Sends the request of a call that has an end, and returns. Entered; may drop the lock.
 * CAID_ERR_TIMEOUT and _INTERRUPTED as above, with nothing sent. */
int call_start(struct caid_client *client, struct call *call, struct caid_error *error);

/* Waits for the reply to such a call, at most until the deadline (UINT64_MAX: without end), and
 * reads what has come in any case: 0 it is there, 1 not yet; with an error to fill,
 * CAID_ERR_INTERRUPTED (interrupt.h). Looks for it without sleeping until spin_until_ns (spin.h).
 * Entered. Whoever frees the call waits no more. */
int call_wait_until(struct caid_client *client, struct call *call, uint64_t spin_until_ns,
                    uint64_t deadline_ns, struct caid_error *error);

/* Sends the request, if the socket takes it now (else 1), and lists the call as in flight.
 * Under lock. */
int call_post(struct caid_client *client, struct call *call, struct caid_error *error);

/* Sends a notification: 0, -EAGAIN, -ENOMEM; other errors have ended the connection. Under
 * lock. */
int call_notify(struct caid_client *client, enum msg_method method, const void *params);

/* Reads what is there without blocking, and sends what waits to be sent. Entered, too. */
void call_dispatch(struct caid_client *client);

/* Reads for all until a packet has come, the time is over, or somebody writes to
 * client->wake_fd, an eventfd; or, where another thread reads, waits until that one has
 * something for the call (its `wake`), or has read enough. With an error to fill, also until the
 * program is to be asked, and CAID_ERR_INTERRUPTED (interrupt.h). Entered. */
int call_wait_for_news(struct caid_client *client, struct call *call, uint64_t deadline_ns,
                       struct caid_error *error);

/* Whoever reads no longer makes sure that someone who waits does. Under lock. */
void call_pass_reading_on(struct caid_client *client);

/* What was in flight is to be sent to another daemon, in its order, but for what was given up.
 * Under lock. */
void call_claim_all(struct caid_client *client, struct claims *claims);
/* The rest is over. Under lock. */
void call_end_unrepeated(struct caid_client *client);

/* Ends every call in flight with client->lost. Under lock. */
void call_fail_all(struct caid_client *client);

/* Tells the daemon what the features have for it (feature.h), as far as the socket takes it.
 * -EAGAIN, -ENOMEM: some is left; other errors have ended the connection. Under lock. */
int call_flush(struct caid_client *client);
/* The same, waiting for room for a while: the client ends. Under lock, which it drops meanwhile. */
void call_flush_all(struct caid_client *client);
/* Whether something is left. */
bool call_has_unsent(const struct caid_client *client);

/*
 * A reply that is read at leisure, with the client unlocked: a copy of the packet. Starts
 * zeroed.
 */
struct reply {
    uint8_t *packet;
    size_t n;
    struct msg msg;
};

void reply_deinit(struct reply *reply);

/* Makes a call of its own (enters and leaves) and decodes the result into ret_result, which
 * borrows from ret. */
int reply_get(struct reply *ret, struct caid_client *client, enum msg_method method,
              const void *params, void *ret_result, struct caid_error *error);

#define _cleanup_reply_ _cleanup_(reply_deinit)
