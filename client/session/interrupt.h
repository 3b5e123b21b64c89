/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the program wants a wait to end because of a signal: it is asked when one has ended a
 * system call, and every LOOK_NS, since one that comes between two system calls ends none. A client
 * without that question waits on.
 */
#pragma once

#include <stdint.h>

#include "caid/caid.h"

struct caid_client;

/* Until when the next system call may sleep. */
uint64_t interrupt_look_by(const struct caid_client *client, uint64_t deadline_ns);

/* CAID_ERR_INTERRUPTED. Not under the client's lock. */
int interrupt_ask(const struct caid_client *client, struct caid_error *error);

/* The pauses of a host that looks at what a GPU stores, or does: there is nobody to wake it.
 * Zeroed at first; looks for 50 us, then sleeps, at most 200 us at a time. */
struct pauses {
    uint64_t spin_end_ns, look_ns, ns;
};

/* One pause, which ends at the deadline. CAID_ERR_INTERRUPTED. */
int interrupt_pause(const struct caid_client *client, struct pauses *pauses,
                    uint64_t deadline_ns, struct caid_error *error);
