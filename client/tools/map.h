/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory as a picture: rectangles in rows, one for each range of a block, and headings. The map
 * says where each rectangle lies; the terminal and the SVG draw it in their own ways.
 */
#pragma once

#include <stdio.h>

enum map_class {
    MAP_DEVICE, /* headings */
    MAP_POOL,
    MAP_BLOCK, /* the label before the stretches of a row */
    MAP_ARRAY, /* stretches */
    MAP_FREE,
    MAP_PENDING,
    MAP_DEAD,
    MAP_OTHER,
};

extern const char *const map_classes[]; /* their names; a stretch's is its range's state */

struct map_rect {
    enum map_class class;
    size_t row;
    double x, width;   /* of a stretch: 1 is the longest bar */
    char *text, *more; /* plain (format.h); more: further lines on a stretch */
};

struct map {
    struct map_rect *rects; /* row by row, each from left to right */
    size_t n, rows;
};

void map_print(const struct map *map, size_t columns);
void map_write_svg(const struct map *map, FILE *out);
