/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold in mem/ between any two calls, recomputed. Each aborts where a sum, an order or a
 * reference is wrong. O(n).
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "dealloc.h"
#include "space.h"

#define CHECK(cond)                                                           \
    do {                                                                      \
        if (!(cond)) {                                                        \
            fprintf(stderr, "check: %s:%d: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                          \
        }                                                                     \
    } while (0)

void space_check(const struct space *space);
void dealloc_check(const struct dealloc *q);
