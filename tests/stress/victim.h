/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that is there to be killed: it brings its connection into one state, says so, and stays
 * there, or does the same thing again and again. It ends by SIGKILL alone; when the daemon gives an
 * answer that the interface does not allow, it ends by itself, with status 1.
 */
#pragma once

#include <stdint.h>

/* VICTIM(name, what is killed) */
#define VICTIMS(VICTIM)                                                \
    VICTIM(before_hello, "before hello")                               \
    VICTIM(after_hello, "between hello and the first request")         \
    VICTIM(creating, "while a create waits for the driver")            \
    VICTIM(reading, "holding r leases")                                \
    VICTIM(writing, "holding rw leases of all kinds, named and not")   \
    VICTIM(publishing, "publishing")                                   \
    VICTIM(watching, "watching, and being answered")                   \
    VICTIM(deferring, "deferring, with arrays in the queue")           \
    VICTIM(opening, "inside open_many")                                \
    VICTIM(closing, "inside close, the GPU's work not done")           \
    VICTIM(closing_bare, "inside close, in a process without context") \
    VICTIM(flushing, "inside flush")                                   \
    VICTIM(naming, "creating, listing and unlinking names")

enum victim_state {
#define VICTIM(name, what) VICTIM_##name,
    VICTIMS(VICTIM)
#undef VICTIM
    N_VICTIM_STATES
};

const char *victim_describe(enum victim_state state);

/* Names that are to be there before: VICTIM_BASE_FORMAT with numbers below N_VICTIM_BASE, arrays
 * of VICTIM_BASE_BYTES bytes. */
#define VICTIM_BASE_FORMAT "base/%03u"
#define N_VICTIM_BASE      200
#define VICTIM_BASE_BYTES  1024

/* Never returns. One byte is written to ready_fd when the state is reached. */
_Noreturn void victim_run(enum victim_state state, const char *socket, uint32_t seed,
                          int ready_fd);
