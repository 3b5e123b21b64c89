/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a stress program that are there to be killed have in common: a driver with
 * a context and a connection, a GPU that is never done, and a stop in the midst of a message. A
 * failure ends the process.
 */
#pragma once

#include <semaphore.h>
#include <stdint.h>

#include "caid/caid.h"
#include "drv.h"

#define ACTOR_SLOW "delay 60000000" /* what is enqueued from here on is never done */
#define ACTOR_FAST "delay 200 1"

#define MUST(call)                                   \
    do {                                             \
        if ((call) < 0)                              \
            errx(1, "%s: %s", #call, error.message); \
    } while (0)

#define MUST_CUDA(call)                             \
    do {                                            \
        CUresult result_ = (call);                  \
        if (result_)                                \
            errx(1, "%s: %d", #call, (int)result_); \
    } while (0)

#define STREAM(s) ((uint64_t)(uintptr_t)(s))

/* The software driver, with a context that is current, and a client. */
void actor_open(const char *socket, struct drv **ret_drv, struct caid_client **ret_client);

/* Of the work of this process: ACTOR_SLOW, ACTOR_FAST. */
void actor_set_speed(const struct drv *drv, const char *command);

/* Posts and stays there. */
_Noreturn void actor_stay(sem_t *reached);

/* The next message is not sent, or sent and nothing after it is done: instead, actor_stay(). */
void actor_stop_before_send(sem_t *reached);
void actor_stop_after_send(sem_t *reached);
