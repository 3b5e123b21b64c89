/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arrays that an earlier core has left, by their numbers: as long as somebody may come back who
 * knows them by those (former.h).
 */
#pragma once

#include "restore.h"

struct array;
struct array_index;

/* None of them is there yet. NULL: out of memory. */
struct array_index *array_index_new(const struct restore_array *arrays, size_t n);
/* index NULL, here and below: it has none. */
struct array *array_index_find(const struct array_index *index, uint64_t id);
/* The array of the record in that place, which is there now. */
void array_index_set(struct array_index *index, size_t place, struct array *array);
/* It is found no more. */
void array_index_forget(struct array_index *index, uint64_t id);
