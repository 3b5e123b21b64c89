/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the actors of scenario_handoff share: a victim, which is brought to a moment of a hand-off
 * and killed there, one for each case, and a witness, which lives as long as half the cases and
 * waits for each victim on the same array.
 */
#pragma once

#include "stress.h"

/* MOMENT(name, when the victim is killed) */
#define MOMENTS(MOMENT)                                               \
    MOMENT(opened, "killed before its begin")                         \
    MOMENT(waiting, "killed while its begin waits")                   \
    MOMENT(started, "killed granted, before it looks for the answer") \
    MOMENT(begun, "killed begun")                                     \
    MOMENT(working, "killed with work enqueued")                      \
    MOMENT(signalled, "killed between the signal and the end")        \
    MOMENT(ended, "killed ended, the work not done")                  \
    MOMENT(done, "killed ended, the work done")                       \
    MOMENT(looping, "killed at any time, in a loop of brackets")      \
    MOMENT(submitted, "killed with a timeline's signal on its way")   \
    MOMENT(silent, "killed with a timeline's signal not even on its way")

#define MOMENT(name, when) MOMENT_##name,

enum moment {
    MOMENTS(MOMENT) N_MOMENTS
};

#undef MOMENT

enum handoff_role {
    WITNESS,
    VICTIM,
};

struct kill_case {
    enum moment moment;
    bool timeline;       /* or a bracket */
    bool writes;         /* the victim, or it reads */
    bool witness_writes; /* or it reads, on several streams */
    bool loses;          /* what the victim does by then leaves the array abandoned */
    unsigned variant;    /* of how the witness waits */
};

#define HANDOFF_VARIANTS 3
#define HANDOFF_WORDS    1024 /* of the array: all the same, or not whole */
#define HANDOFF_BYTES    (HANDOFF_WORDS * sizeof(uint32_t))
#define HANDOFF_NAME     "handoff" /* of the array, and of a timeline */

struct handoff_shared {
    struct kill_case now;
    uint64_t killed_ns;
    uint64_t late_ns; /* how long after the kill the witness had it all behind it, at most */
    unsigned n_told;  /* that what was read is not whole */
};

/* As actor_open(), for a daemon whose streams wait as the run says. */
void handoff_open(struct actor *a);

struct caid_bracket *handoff_start(const struct actor *a, struct caid_array *array, bool writes,
                                   CUstream stream, uint64_t timeout_ns);

/* Says that it is there before a first case, at its parts, and after it. */
void handoff_witness(struct actor *a, unsigned unused);
