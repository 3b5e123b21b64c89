/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the program whether a signal is to end a wait: when a signal has ended a system call, and
 * every LOOK_NS, since a signal that comes between two system calls ends none. Where the program
 * has no such function (client->interrupted), the wait goes on.
 */
#pragma once

#include <stdint.h>

#include "caid/caid.h"

struct caid_client;

/* The time until which the next system call may sleep. */
uint64_t interrupt_look_by(const struct caid_client *client, uint64_t deadline_ns);

/* CAID_ERR_INTERRUPTED. Not under the client's lock. */
int interrupt_ask(const struct caid_client *client, struct caid_error *error);

/* The pauses of a thread that polls for what a GPU stores or does, since the GPU wakes nobody.
 * Zeroed at first. It yields for 50 us, then sleeps, at most 200 us at a time. */
struct pauses {
    uint64_t spin_end_ns, look_ns, ns;
};

/* One pause, which ends at the deadline. CAID_ERR_INTERRUPTED. */
int interrupt_pause(const struct caid_client *client, struct pauses *pauses,
                    uint64_t deadline_ns, struct caid_error *error);
