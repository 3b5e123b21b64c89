/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of one type that a journal has, by the keys of their objects.
 */
#pragma once

#include "records.h"

struct found {
    struct record_key key;
    uint64_t place;
};

struct founds {
    struct found *v;
    size_t n, room;
};

/* -ENOMEM. */
int founds_add(struct founds *to, struct record_key key, uint64_t place);
/* By key; those of one key stay in the order in which they were added. -ENOMEM. */
int founds_sort(struct founds *founds);
/* The last of each key alone, sorted, and room for as many more. -ENOMEM. */
int founds_compact(struct founds *founds);
void founds_deinit(struct founds *founds);
