/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stress_parts and its processes share: a publisher, which puts parts of an array or of an
 * arena's memory under a few names, and a reader, which opens them. One of them is killed at a
 * moment of its own, or both are; what is left of them goes on, and then ends.
 *
 * A part is PARTS_WORDS words of one value, which its metadata tells, too. A value is published
 * once.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "actor.h"

/* MOMENT(name, when the process is killed) */
#define PUBLISHER_MOMENTS(MOMENT)                             \
    MOMENT(leased, "before it publishes anything")            \
    MOMENT(writing, "while its publish waits for the GPU")    \
    MOMENT(unsent, "before its publish is sent")              \
    MOMENT(sent, "with the answer to its publish unread")     \
    MOMENT(published, "published")                            \
    MOMENT(closed, "published, and the whole closed")         \
    MOMENT(told, "told of a part that is gone, and not read") \
    MOMENT(looping, "at any time, publishing and unlinking")

#define READER_MOMENTS(MOMENT)                   \
    MOMENT(unsent, "before its open is sent")    \
    MOMENT(sent, "with the answer to it unread") \
    MOMENT(holding, "holding parts")             \
    MOMENT(working, "closed, its work not done") \
    MOMENT(looping, "at any time, opening parts")

enum publisher_moment {
#define MOMENT(name, when) PUBLISHER_##name,
    PUBLISHER_MOMENTS(MOMENT)
#undef MOMENT
    N_PUBLISHER_MOMENTS
};

enum reader_moment {
#define MOMENT(name, when) READER_##name,
    READER_MOMENTS(MOMENT)
#undef MOMENT
    N_READER_MOMENTS
};

enum victims {
    VICTIM_publisher = 1,
    VICTIM_reader = 2,
    VICTIM_both = 3
};

struct parts_case {
    enum victims victims;
    enum publisher_moment publisher;
    enum reader_moment reader;
    bool arena; /* or an array of slots */
};

#define PARTS_WORDS 1024
#define PARTS_BYTES (PARTS_WORDS * sizeof(uint32_t))
#define PARTS_NAMES 3  /* of which nobody opens the last */
#define HANG_S      20 /* after which nobody is waited for any more */

/* A process waits for its `go`, and says with `reached` that it has done the next thing. */
struct parts_role {
    sem_t go, reached;
    _Atomic bool stop; /* leaves its loop */
};

struct parts_shared {
    struct parts_case now;
    uint32_t number; /* of the case */
    struct parts_role publisher, reader;
    /* What each name shows (0: nothing): before and after the change that is under way. The
     * first is what the daemon has acknowledged. */
    _Atomic uint32_t acked[PARTS_NAMES], asked[PARTS_NAMES];
    _Atomic uint64_t generations[PARTS_NAMES]; /* the last ones, of all cases */
    _Atomic uint64_t n_published, n_opened;    /* ever */
};

struct parts_process {
    const char *socket;
    struct parts_shared *shared;
    struct drv *drv;
    struct caid_client *client;
    CUstream stream;
    uint32_t random;
};

/* These never return. A survivor ends with status 0. */

/* Publishes each name: reached. Goes on to its moment: reached. One that survives: stops,
 * reached; once told that all of its parts are gone, it ends. */
_Noreturn void parts_publisher(struct parts_process *p);

/* Goes to its moment: reached. One that survives: looks at what it holds again, and ends. */
_Noreturn void parts_reader(struct parts_process *p);

/* Sees that each name shows what it has to show, and removes it. */
_Noreturn void parts_witness(struct parts_process *p);

void parts_open(struct parts_process *p);
/* "parts/N" */
const char *parts_name(char room[16], uint32_t i);
