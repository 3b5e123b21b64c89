/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slow model of a space: a map of every unit of every extent. Each call is made on a real space,
 * too, and the results are compared. Lives on a test's stack or in its data.
 */
#pragma once

#include "base/macros.h"
#include "mem_check.h"
#include "random.h"

#define MAP_EXTENTS 24
#define MAP_UNITS   256 /* of an extent, at most */
#define MAP_RANGES  512

struct map_extent {
    bool there;
    uint32_t units;
    uint32_t order;                    /* the smaller, the older */
    const struct range *by[MAP_UNITS]; /* who has the unit */
    struct extent extent;
};

struct map {
    struct space space;
    uint32_t next_order;
    struct map_extent extents[MAP_EXTENTS];
    struct range *ranges[MAP_RANGES];
    uint32_t n_ranges;
};

void map_init(struct map *map);
void map_deinit(struct map *map);
/* False: there is no place for one, or the allocation failed. */
bool map_add(struct map *map, uint32_t units);
void map_remove(struct map *map, struct map_extent *extent);
bool map_is_empty(const struct map_extent *extent);
/* What space_take() returned, after it has been held against the map. */
int map_take(struct map *map, uint64_t bytes, uint64_t alignment);
void map_free(struct map *map, uint32_t i);
/* Sums, holes, and space_check(). */
void map_check(const struct map *map);
