/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzzer's bytes, taken as choices: each is used where it is read, so that what follows keeps its
 * meaning when one changes. Where they are used up all choices are 0.
 */
#pragma once

#include "record.h"

struct input {
    const uint8_t *at, *end;
    const char *const *texts; /* that strings are, of all that they could be */
    uint8_t n_texts;
    size_t n_used;
    uint64_t memory[4096]; /* what records point to */
};

void input_init(struct input *in, const uint8_t *data, size_t size, const char *const *texts,
                size_t n_texts);
bool input_is_over(const struct input *in);
uint8_t input_u8(struct input *in);
/* 0 ... n - 1 */
uint32_t input_below(struct input *in, uint32_t n);
/* Small numbers, limits, sizes of memory and what lies beside them; or any. */
uint64_t input_u64(struct input *in);
/* A struct msg_<record>, until the next one. Some of its lists are shorter than the choice. */
void *input_record(struct input *in, const struct record *record);
/* Sets a field of a record, or of one of the records that it has, anew. */
void input_change(struct input *in, const struct record *record, void *value);

/* Ends the program, and so shows the input. */
void require(bool condition);
