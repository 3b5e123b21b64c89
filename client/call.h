/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request and its reply. Calls live on the stack of the thread that makes them.
 *
 * Several threads may have calls in flight on the one socket. Of those that wait, one reads for
 * all: it receives a packet with the client unlocked, gives it to the call that it answers, and
 * goes on until its own reply has come; then it wakes another one that waits to read on. So no
 * thread of our own is needed, and a single-threaded caller never waits on a condition.
 *
 * Replies are taken in the order of their arrival, whichever thread they are for, because what
 * a reply says about blocks holds for the replies after it (block.h).
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "msg.h"

struct caid_client;

/* Fds that came with a packet. What is not taken out (and -1 left in its place) is closed. */
struct call_fds {
    int fd[PROTO_FDS_MAX];
    size_t n;
};

struct call {
    TAILQ_ENTRY(call) entry;
    enum msg_method method;
    const void *params;

    /* Takes a reply without error, with the client locked. NULL: there is nothing in it.
     * -EPROTO ends the connection; other errors fail the call. */
    int (*take)(struct caid_client *client, struct call *call, struct msg *reply,
                struct call_fds *fds);
    bool has_blocks; /* the reply refers to blocks, and may bring fds */

    uint64_t seq;
    bool waiting, done;
    pthread_cond_t wake;
    int r;
    struct caid_error error; /* where r is not 0 */
};

TAILQ_HEAD(call_list, call);

/* Sends the request and waits until the reply has been taken. The client is entered
 * (client_enter()); its lock is dropped while waiting. */
int call_run(struct caid_client *client, struct call *call, struct caid_error *error);

/* Reads what is there without blocking, and sends what waits to be sent. Entered, too. */
void call_dispatch(struct caid_client *client);

/* Ends every call in flight with client->lost. Under lock. */
void call_fail_all(struct caid_client *client);

/* The oldest call in flight whose reply may refer to blocks; UINT64_MAX: none. Under lock. */
uint64_t call_oldest_with_blocks(const struct caid_client *client);

/* Tells the daemon of the leases in client->closing, as far as the socket takes it. -EAGAIN when
 * some are left; other errors have ended the connection. Under lock. */
int call_flush_closing(struct caid_client *client);

/*
 * A reply that is read at leisure, with the client unlocked: a copy of the packet. Starts zeroed.
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
