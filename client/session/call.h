/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request and its reply. A thread makes a call and waits for it in call_run(). Or nobody waits,
 * and the call's over() is called at its end (a watch's, which may never be answered).
 *
 * Several threads may have calls in flight on the one socket. One of the waiting threads reads for
 * all: it receives a packet with the client unlocked, gives it to the call that it answers, and
 * goes on until its own reply has come. Then it wakes another waiting thread, which reads on. So
 * the library needs no thread that reads, and a single-threaded caller never waits on a condition.
 *
 * Replies are taken in the order of their arrival, whichever thread they are for, because what a
 * reply says about blocks holds for the replies after it (memory/block.h).
 *
 * A call that is waited for lies on the heap. If its reply does not come in time, its caller leaves
 * it: the params and all that the reply was to fill are the caller's again. The call stays in
 * flight until the reply has come, or the connection has ended. Then it gives back what it was
 * granted, and is freed. An effect that grants nothing (unlink, publish) stays; the caller cannot
 * know of it. Where no thread of the program reads, the client's thread does, as long as there are
 * such calls. No barrier waits for them (memory/block.c): blocks stay known here
 * meanwhile.
 *
 *   IDLE --call_queue()--> UNSENT --room--> SENT --answered, or the connection has ended--> IDLE
 *                            \--call_cancel()--------------------------------------------/
 *
 * call_run() and call_start() wait for room: such a call is never UNSENT. When the client resumes
 * with another daemon (resume.h), requests in flight are sent again, with their old numbers.
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

/* Fds that came with a packet. Whoever takes one leaves -1 in its place; the others are closed. */
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
    TAILQ_ENTRY(call) entry; /* in the client's `unsent` or `calls`; IDLE: in neither */
    enum msg_method method;
    const void *params;

    /* Takes the result of a reply without error (the method's msg_..._result), with the client
     * locked. NULL: the result is empty. -EPROTO ends the connection; other errors fail the call. A
     * result for which there is no memory ends the connection, too: what the daemon relies on would
     * not be known. If the call was left, what belongs to the caller must not be used. */
    int (*take)(struct caid_client *client, struct call *call, const void *result,
                struct call_fds *fds);
    struct reply *copy; /* in place of take(): gets the packet; NULL after it was left */
    bool has_blocks;    /* the reply refers to blocks, and may bring fds */
    bool has_pages;     /* the reply refers to pages of timelines: handoff/page.h */
    bool has_fds;       /* the reply brings fds, and refers to neither */
    /* Called at the end of a call that nobody waits for in call_run(), when it is IDLE, with the
     * client locked. It may queue the call again, or free it. NULL: a call that was left is
     * freed. */
    void (*over)(struct caid_client *client, struct call *call);

    uint64_t timeout_ns; /* how long the reply may take; 0: the client's timeout */

    enum call_state state;
    uint64_t seq;
    uint64_t deadline_ns; /* of the reply, set by call_start() */
    bool waited;          /* a thread waits for it in call_run() */
    bool left;            /* its caller has left it */
    bool late;            /* the client's thread looks for its reply */
    bool cancels;         /* the daemon is still to be told that it is cancelled */
    bool done;            /* it has ended: nothing more to wait for */
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

/* A zeroed struct of that size, whose first member is the call. NULL: out of memory; call_make()
 * fails with that, given NULL. */
void *call_new(size_t size, enum msg_method method, const void *params);

/* Sends the request and waits until the reply has been taken. CAID_ERR_TIMEOUT, or after a signal
 * CAID_ERR_INTERRUPTED: the call has been left. The client is entered (client_enter()); its lock is
 * dropped while waiting. */
int call_run(struct caid_client *client, struct call *call, struct caid_error *error);
/* Frees a call after call_run(), unless it was left. To be called before the lock is dropped: after
 * that, a call that was left may be gone. */
void call_free(struct call *call);

/* Enters the client, runs the call, frees it, and leaves. */
int call_make(struct caid_client *client, struct call *call, struct caid_error *error);
/* The same for a request whose reply is empty. */
int call_ask(struct caid_client *client, enum msg_method method, const void *params,
             struct caid_error *error);

/* The next call_flush() sends the call. false: it is not IDLE, or the connection has ended. Under
 * lock. */
bool call_queue(struct caid_client *client, struct call *call);
/* The same. The client's thread looks for the reply, since others depend on it and nobody here
 * waits for it. */
bool call_queue_late(struct caid_client *client, struct call *call);
/* For the client's thread: waits until a packet has come, the eventfd is written to, or the
 * deadline has passed. Under lock, which it drops meanwhile. The client is not away. */
void call_await_late(struct caid_client *client, int wake_fd, uint64_t deadline_ns);
/* The client's thread looks for the reply of a call that has been queued, or was left. */
void call_look_for(struct caid_client *client, struct call *call);
/* The answer is not wanted any more. An UNSENT call ends at once. For a SENT one the next
 * call_flush() sends a cancel, and it ends with the daemon's answer. Under lock. */
void call_cancel(struct caid_client *client, struct call *call);

/* Sends the request of a call that nobody waits for in call_run(), and returns. Entered; may drop
 * the lock. CAID_ERR_TIMEOUT, CAID_ERR_INTERRUPTED: nothing has been sent. */
int call_start(struct caid_client *client, struct call *call, struct caid_error *error);

/* Waits for the reply to such a call, at most until the deadline (UINT64_MAX: for ever). It reads
 * packets that have come also if the deadline has passed. 0: the call has ended; 1: not yet; if
 * error is not NULL, CAID_ERR_INTERRUPTED (interrupt.h). Polls without sleeping until spin_until_ns
 * (spin.h). Entered. Nobody may wait for a call that is freed. */
int call_wait_until(struct caid_client *client, struct call *call, uint64_t spin_until_ns,
                    uint64_t deadline_ns, struct caid_error *error);

/* Sends a notification: 0, -EAGAIN, -ENOMEM; other errors have ended the connection. Under
 * lock. */
int call_notify(struct caid_client *client, enum msg_method method, const void *params);

/* Reads what is there without blocking, and sends what waits to be sent. Entered. */
void call_dispatch(struct caid_client *client);

/* Reads for all until a packet has come, the deadline has passed, or client->wake_fd, an eventfd,
 * is written to. While another thread reads, waits until that one has something for the call (its
 * `wake`), or has stopped reading. If error is not NULL, also asks the program when that is due,
 * *look_ns, which is 0 at first: CAID_ERR_INTERRUPTED (interrupt.h). Entered. */
int call_wait_for_news(struct caid_client *client, struct call *call, uint64_t deadline_ns,
                       uint64_t *look_ns, struct caid_error *error);

/* interrupt_ask() under the lock, which it drops meanwhile; another thread may read then. */
int call_ask_interrupt(struct caid_client *client, struct caid_error *error);

/* A thread that stops reading wakes one that waits, to read on. Under lock. */
void call_pass_reading_on(struct caid_client *client);

/* Has call_flush() send the calls in flight again, to another daemon, before all else; but not
 * calls that were left. -ENOMEM. Under lock, while the client is away. */
int call_repeat_all(struct caid_client *client);
/* The client has resumed: ends the calls that are not repeated. Under lock. */
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
