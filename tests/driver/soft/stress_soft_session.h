/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one end of a hand-off between two processes. They meet, and have memory and a fence
 * for each direction in common; the maker asks and the taker answers, some rounds, each all by
 * streams; they part. Whoever finds itself alone gives back what it has.
 *
 * A call that fails, or a wrong byte, ends the process.
 */
#pragma once

#include <pthread.h>

#include "soft_test.h"
#include "stress_soft_wire.h"

/* Runs one session after the other, in a thread of its own. */
struct lane {
    pthread_t thread;
    CUcontext context;
    int orders;   /* socket */
    int finished; /* eventfd, written when the stream has come to the end of what was enqueued */
    CUstream stream;
    CUevent event;
};

/* After OUTCOME_STUCK the lane's stream is lost, and what the session had with it. */
enum outcome session_run(struct lane *lane, const struct order *order, int link);
