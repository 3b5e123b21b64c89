/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the actors of scenario_parts share: a publisher, which puts parts of an array or of an
 * arena's memory under a few names, and a reader, which opens them. One of them is killed at a
 * moment of its own, or both are; what is left of them goes on, and then ends.
 *
 * A part is PARTS_WORDS words of one value, which its metadata tells, too. A value is published
 * once.
 */
#pragma once

#include "stress.h"

/* MOMENT(name, when the process is killed) */
#define PUBLISHER_MOMENTS(MOMENT)                                              \
    MOMENT(leased, "publisher killed before it publishes anything")            \
    MOMENT(writing, "publisher killed while its publish waits for the GPU")    \
    MOMENT(unsent, "publisher killed before its publish is sent")              \
    MOMENT(sent, "publisher killed with the answer to its publish unread")     \
    MOMENT(published, "publisher killed published")                            \
    MOMENT(closed, "publisher killed published, and the whole closed")         \
    MOMENT(told, "publisher killed told of a part that is gone, and not read") \
    MOMENT(looping, "publisher killed at any time, publishing and unlinking")

#define READER_MOMENTS(MOMENT)                                 \
    MOMENT(unsent, "reader killed before its open is sent")    \
    MOMENT(sent, "reader killed with the answer to it unread") \
    MOMENT(holding, "reader killed holding parts")             \
    MOMENT(working, "reader killed closed, its work not done") \
    MOMENT(looping, "reader killed at any time, opening parts")

#define MOMENT(name, when) PUBLISHER_##name,

enum publisher_moment {
    PUBLISHER_MOMENTS(MOMENT) N_PUBLISHER_MOMENTS
};

#undef MOMENT

#define MOMENT(name, when) READER_##name,

enum reader_moment {
    READER_MOMENTS(MOMENT) N_READER_MOMENTS
};

#undef MOMENT

enum parts_role {
    PUBLISHER,
    READER,
    WITNESS,
};

struct parts_case {
    bool killed[2]; /* PUBLISHER, READER */
    enum publisher_moment publisher;
    enum reader_moment reader;
    bool arena; /* or an array of slots */
};

#define PARTS_WORDS 1024
#define PARTS_BYTES (PARTS_WORDS * sizeof(uint32_t))
#define PARTS_NAMES 3 /* of which nobody opens the last */

struct parts_shared {
    struct parts_case now;
    /* What each name shows (0: nothing): before and after the change that is under way. The
     * first is what the daemon has acknowledged. */
    _Atomic uint32_t acked[PARTS_NAMES], asked[PARTS_NAMES];
    _Atomic uint64_t generations[PARTS_NAMES]; /* the last ones, of all cases */
    _Atomic unsigned n_published, n_opened;    /* ever */
};

/* Publishes each name: reached. Goes on to its moment: reached. One that survives: stops,
 * reached; once told that all of its parts are gone, it ends. */
void parts_publisher(struct actor *a, unsigned unused);

/* Goes to its moment: reached. One that survives: looks at what it holds again, and ends. */
void parts_reader(struct actor *a, unsigned unused);

/* Sees that each name shows what it has to show, and removes it. */
void parts_witness(struct actor *a, unsigned unused);

/* "parts/N" */
const char *parts_name(char room[16], uint32_t i);
