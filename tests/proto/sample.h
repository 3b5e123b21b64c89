/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values for any record, made from its descriptor: whoever adds a message to messages.def has
 * it tested without a line of test code. A sampler owns what its values point to.
 */
#pragma once

#include <sys/queue.h>

#include "random.h"
#include "record.h"

enum sample_mode {
    SAMPLE_MINIMAL, /* what is optional is absent, required lists are empty */
    SAMPLE_FULL,    /* everything is set, lists have two elements */
    SAMPLE_RANDOM,
    N_SAMPLE_MODES,
};

struct sample_chunk {
    SLIST_ENTRY(sample_chunk) link;
    uint64_t data[];
};

struct sampler {
    uint64_t random;
    enum sample_mode mode;
    SLIST_HEAD(, sample_chunk) chunks;
};

void sampler_init(struct sampler *s, uint64_t seed, enum sample_mode mode);
void sampler_deinit(struct sampler *s);

/* A new struct msg_<record>, owned by s. */
void *sample_record(struct sampler *s, const struct record *record);
/* Whether two structs of a record say the same. */
bool sample_equal(const struct record *record, const void *a, const void *b);
