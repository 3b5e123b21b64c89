/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stress_handoff and its processes share: a victim, which is brought to a moment of a hand-off
 * and killed there, one for each case, and a witness, which lives as long as half the cases and
 * waits for each victim on the same array.
 */
#pragma once

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "actor.h"

/* MOMENT(name, when the victim is killed) */
#define MOMENTS(MOMENT)                                        \
    MOMENT(opened, "before its begin")                         \
    MOMENT(waiting, "while its begin waits")                   \
    MOMENT(started, "granted, before it looks for the answer") \
    MOMENT(begun, "begun")                                     \
    MOMENT(working, "with work enqueued")                      \
    MOMENT(signalled, "between the signal and the end")        \
    MOMENT(ended, "ended, the work not done")                  \
    MOMENT(done, "ended, the work done")                       \
    MOMENT(looping, "at any time, in a loop of brackets")      \
    MOMENT(submitted, "a timeline's signal on its way")        \
    MOMENT(silent, "a timeline's signal not even on its way")

enum moment {
#define MOMENT(name, when) MOMENT_##name,
    MOMENTS(MOMENT)
#undef MOMENT
    N_MOMENTS
};

struct kill_case {
    enum moment moment;
    bool writes;         /* the victim, or it reads */
    bool witness_writes; /* or it reads, on several streams */
    int variant;         /* of how the witness waits */
};

#define HANDOFF_VARIANTS 3
#define HANDOFF_WORDS    1024 /* of the array: all the same, or not whole */
#define HANDOFF_ARRAY    "handoff"
#define HANDOFF_TIMELINE "handoff"

struct handoff_shared {
    struct kill_case now;
    uint32_t number; /* of the case */
    sem_t ask;       /* to the witness: the next part of the case, or the end of all */
    sem_t answer;    /* from the witness: done with that */
    sem_t reached;   /* from the victim: it is there */
    bool end;        /* for the witness */
    uint64_t killed_ns;
    uint64_t late_ns; /* how long after the kill the witness had it all behind it, at most */
    uint32_t n_told;  /* that what was read is not whole */
};

struct handoff_process {
    const char *socket;
    const char *mode; /* "memops", "host", "events" */
    struct handoff_shared *shared;
    struct drv *drv;
    struct caid_client *client;
    struct caid_array *array;
};

/* Opens the driver, with a context that is current, and connects. A failure ends the process,
 * here and below. */
void handoff_open(struct handoff_process *p);

/* Whether what the victim does by then leaves the array abandoned. */
bool kill_case_loses(const struct kill_case *c);

/* Posts `reached` at the moment of the case, and never returns. */
_Noreturn void handoff_victim(struct handoff_process *p);

/* Answers until the end is asked for. A wrong outcome ends the process with status 1, and says
 * which. */
void handoff_witness(struct handoff_process *p);
