/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that does what a test says: a thread that accepts one connection, answers HELLO, and
 * then runs the test's script. The script does not assert (it is not the test's thread); what
 * cannot work ends the program.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "caid/caid.h"

#include "msg.h"

/* The UUID of its one device, which is the software driver's first here. */
const char *fake_uuid(void);

struct fake {
    char dir[32], path[64];
    int listener, conn;
    struct caid_client *client; /* NULL: closed by the test */
    pthread_t thread;
    void (*script)(struct fake *fake);
    const void *data; /* the script's */
    bool keeps;       /* it has given a token: the client comes back */
    uint32_t id;      /* of the request that came last */
    uint64_t closed[64];
    size_t n_closed; /* leases that the client gave back */
    struct msg_end_params ended[8];
    size_t n_ended; /* brackets that it ended */
    uint64_t begun; /* the last bracket that it asked for */
    struct msg_cancel_params cancelled;
};

/* Starts it and connects to it. */
struct caid_client *fake_start(struct fake *fake, void (*script)(struct fake *fake),
                               const void *data);
/* The same, and the client will come back to it. */
struct caid_client *fake_start_keeping(struct fake *fake, void (*script)(struct fake *fake));
/* Closes the client, and waits for the script's end. */
void fake_stop(struct fake *fake);

/* ---- for scripts ---- */

/* Hangs up, and takes the next connection. */
void fake_hang_up(struct fake *fake);

/* Waits for the next request, noting closes; its method, or MSG_UNKNOWN at end of file. */
enum msg_method fake_request(struct fake *fake);
void fake_send(struct fake *fake, const void *packet, size_t n, const int *fds, size_t n_fds);
/* Answers the last request. */
void fake_result(struct fake *fake, enum msg_method method, const void *result, const int *fds,
                 size_t n_fds);
void fake_error(struct fake *fake, uint32_t code, const char *text, int cuda);
/* The last one was a ping. */
void fake_pong(struct fake *fake);
/* Waits for the opening of an array, which gets one of no bytes: no driver is needed for it. */
void fake_open(struct fake *fake);
/* Reads until the client hangs up; and answers pings meanwhile. */
void fake_drain(struct fake *fake);
void fake_go_on(struct fake *fake);

/* A script: answers the first request with this, which is its data, and then reads on. */
struct fake_answer {
    enum msg_method method;
    const void *result;
};

void fake_answer(struct fake *fake);
