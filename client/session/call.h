/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request and its reply. A thread makes a call and waits for it in call_run(); or nobody waits,
 * and the call has a function to call when it is over (a watch's, which may never be answered).
 *
 * Several threads may have calls in flight on the one socket. Of those that wait, one reads for
 * all: it receives a packet with the client unlocked, gives it to the call that it answers, and
 * goes on until its own reply has come; then it wakes another one that waits to read on. So no
 * thread of our own reads, and a single-threaded caller never waits on a condition.
 *
 * Replies are taken in the order of their arrival, whichever thread they are for, because what
 * a reply says about blocks holds for the replies after it (memory/block.h).
 *
 * A call that is waited for lies on the heap. Where its reply does not come in time, its caller
 * leaves it: params and what the caller wanted filled are the caller's again, and the call is in
 * flight until the reply has come, or the connection has ended. Then it is over as one that nobody
 * ever waited for: it gives back what it was granted, and is freed. What has an effect and grants
 * nothing (unlink, publish) has it all the same: its caller cannot know. Where no thread of the
 * program reads, the client's own does, now and then, as long as there are such calls. No barrier
 * waits for them (memory/block.c): blocks stay known here meanwhile.
 *
 *   IDLE --call_queue()--> UNSENT --room--> SENT --answered, or the connection has ended--> IDLE
 *                            \--call_cancel()--------------------------------------------/
 *
 * call_run() and call_start() wait for room: such a call is never UNSENT. When the client comes
 * back to another daemon (resume.h), what is in flight is sent again, with the numbers that it has.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "msg.h"
#include "wake.h"

struct caid_client;
struct feature;

/* Fds that came with a packet. What is not taken out (and -1 left in its place) is closed. */
struct call_fds {
    int fd[PROTO_FDS_MAX];
    size_t n;
};

enum call_state {
    CALL_IDLE,
    CALL_UNSENT, /* the next call_flush() sends it */
    CALL_SENT,
};

struct call {
    TAILQ_ENTRY(call) entry; /* of the client's `unsent` or `calls`; IDLE: of neither */
    enum msg_method method;
    const void *params;

    /* Takes the result of a reply without error, with the client locked: the method's
     * msg_..._result. NULL: there is nothing in it. -EPROTO ends the connection; other errors
     * fail the call. A result that there is no memory to read ends the connection, too: nobody
     * knows what the daemon counts on. Of a call that was left, the caller has gone with all that
     * is his. */
    int (*take)(struct caid_client *client, struct call *call, const void *result,
                struct call_fds *fds);
    struct reply *copy; /* in place of take(): gets the packet; NULL once it was left */
    bool has_blocks;    /* the reply refers to blocks, and may bring fds */
    bool has_pages;     /* the same of pages of timelines: handoff/page.h */
    /* Told that it is over, and IDLE, where nobody waits for it in call_run(); with the client
     * locked. It may queue the call again, or free it. NULL: one that was left is freed. */
    void (*over)(struct caid_client *client, struct call *call);

    uint64_t timeout_ns; /* that the reply may take; 0: as any of the client's */

    enum call_state state;
    uint64_t seq;
    uint64_t deadline_ns; /* from call_start() on: by when there is to be a reply */
    bool waited;          /* for, in call_run() */
    bool left;            /* by who waited for it */
    bool late;            /* the client's thread looks for its reply */
    bool cancels;         /* the daemon is to be told that nobody wants the answer */
    bool done;            /* nobody is to wait for it any more */
    struct msg_buf again; /* the request, while it is to be sent again; else empty */
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

/* A zeroed one of that size, which is the first in what it is of; or NULL, which is what it is for
 * call_make() to fail with. */
void *call_new(size_t size, enum msg_method method, const void *params);

/* Sends the request and waits until the reply has been taken, for as long as that may take: then it
 * is CAID_ERR_TIMEOUT, after a signal CAID_ERR_INTERRUPTED, and the call has been left. The client
 * is entered (client_enter()); its lock is dropped while waiting. */
int call_run(struct caid_client *client, struct call *call, struct caid_error *error);
/* Frees one that has been run, unless it was left. Before the lock is dropped, in which one that
 * was left may be freed. */
void call_free(struct call *call);

/* Both of a thread that is not in the client yet: enters it, and leaves. */
int call_make(struct caid_client *client, struct call *call, struct caid_error *error);
/* The same of a request whose reply has nothing in it. */
int call_ask(struct caid_client *client, enum msg_method method, const void *params,
             struct caid_error *error);

/* Has a call be sent by the next call_flush(). False: it is not IDLE, or the connection has ended.
 * Under lock. */
bool call_queue(struct caid_client *client, struct call *call);
/* The same, and the client's thread looks for the reply: it matters to others, though nobody here
 * waits for it. */
bool call_queue_late(struct caid_client *client, struct call *call);
/* The same of one that has been queued. */
void call_look_for(struct caid_client *client, struct call *call);
/* Nobody wants the answer: one that is UNSENT is over at once, one that is SENT when the daemon has
 * answered, which the next call_flush() asks for. Under lock. */
void call_cancel(struct caid_client *client, struct call *call);

/* Sends the request of a call that nobody waits for in call_run(), and returns. Entered; may drop
 * the lock. CAID_ERR_TIMEOUT and _INTERRUPTED as above, with nothing sent. */
int call_start(struct caid_client *client, struct call *call, struct caid_error *error);

/* Waits for the reply to such a call, at most until the deadline (UINT64_MAX: without end), and
 * reads what has come in any case: 0 it is there, 1 not yet; with an error to fill,
 * CAID_ERR_INTERRUPTED (interrupt.h). Looks for it without sleeping until spin_until_ns (spin.h).
 * Entered. Whoever frees the call waits no more. */
int call_wait_until(struct caid_client *client, struct call *call, uint64_t spin_until_ns,
                    uint64_t deadline_ns, struct caid_error *error);

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

/* interrupt_ask() under the lock, which it drops meanwhile; somebody else reads then. */
int call_ask_interrupt(struct caid_client *client, struct caid_error *error);

/* Whoever reads no longer makes sure that someone who waits does. Under lock. */
void call_pass_reading_on(struct caid_client *client);

/* What is in flight, but for what was left, is to be sent to another daemon: call_flush() will,
 * before all else. -ENOMEM. Under lock, while the client is away. */
int call_repeat_all(struct caid_client *client);
/* The rest is over: the client has come back. Under lock. */
void call_end_unrepeated(struct caid_client *client);

/* Ends every call with client->lost. Under lock. */
void call_fail_all(struct caid_client *client);

extern const struct feature call_feature;

/* Tells the daemon what the features have for it (feature.h), then what has been queued, as far as
 * the socket takes it.
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
