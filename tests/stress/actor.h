/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a stress program that are there to be killed have in common: a driver with
 * a context and a connection, a GPU that is never done, and a stop in the midst of a message. A
 * failure ends the process.
 */
#pragma once

#include <semaphore.h>
#include <stdint.h>

#include "program.h"

/* For program_control(). */
#define ACTOR_SLOW "delay 60000000" /* what is enqueued from here on is never done */
#define ACTOR_FAST "delay 200 1"

/* Posts and stays there. */
_Noreturn void actor_stay(sem_t *reached);

/* The next message is not sent, or sent and nothing after it is done: instead, actor_stay(). */
void actor_stop_before_send(sem_t *reached);
void actor_stop_after_send(sem_t *reached);
