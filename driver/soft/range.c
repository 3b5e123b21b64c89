/* SPDX-License-Identifier: Apache-2.0 */
/* The maps of addresses. */
#include "soft.h"

#include "memory.h"

int
range_compare(const struct range *a, const struct range *b)
{
    return CMP(a->start, b->start);
}

RB_GENERATE(range_tree, range, node, range_compare)

struct range *
range_find(struct range_tree *tree, uintptr_t address)
{
    struct range *at = RB_ROOT(tree), *below = NULL;
    while (at) {
        if (at->start <= address)
            below = at;
        at = at->start <= address ? RB_RIGHT(at, node) : RB_LEFT(at, node);
    }
    return below && address - below->start < below->size ? below : NULL;
}

struct range *
range_find_from(struct range_tree *tree, uintptr_t address)
{
    struct range key = {.start = address};
    return RB_NFIND(range_tree, tree, &key);
}

bool
range_overlaps(struct range_tree *tree, uintptr_t start, size_t size)
{
    struct range *next = range_find_from(tree, start);
    return range_find(tree, start) || (next && next->start - start < size);
}

void
range_insert(struct range_tree *tree, struct range *range)
{
    range->id = ++soft->ranges.last_id;
    RB_INSERT(range_tree, tree, range);
}

void
range_remove(struct range_tree *tree, struct range *range)
{
    RB_REMOVE(range_tree, tree, range);
    memory_unref(range->memory);
    free(range);
}

/* The row's first range, whether idle or not. */
static struct range *
row_find(enum range_kind kind, uintptr_t start, size_t size, bool *ret_idle)
{
    struct range *first = range_find(&soft->ranges.usable, start);
    struct range *at = first;
    bool idle = true;
    if (size == 0 || !first || first->start != start)
        return NULL;
    while (at && at->kind == kind && at->start == start && at->size <= size) {
        idle = idle && at->n_users == 0;
        start += at->size;
        size -= at->size;
        if (size == 0) {
            *ret_idle = idle;
            return first;
        }
        at = RB_NEXT(range_tree, &soft->ranges.usable, at);
    }
    return NULL;
}

struct range *
range_find_row(enum range_kind kind, uintptr_t start, size_t size)
{
    struct range *first;
    bool idle;
    while ((first = row_find(kind, start, size, &idle)) && !idle)
        pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
    return first;
}

static bool
range_allows(const struct range *range, bool write)
{
    return range->access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
           (!write && range->access == CU_MEM_ACCESS_FLAGS_PROT_READ);
}

/* Adds users to all usable ranges in [start, start + size), which are known to be there. */
static void
count_users(uintptr_t start, size_t size, unsigned int n)
{
    struct range *range = range_find(&soft->ranges.usable, start);
    for (; range && range->start < start + size;
         range = RB_NEXT(range_tree, &soft->ranges.usable, range))
        range->n_users += n;
}

/* Needs the lock. */
static CUresult
check_locked(uintptr_t start, size_t size, bool write, enum range_kind *ret_kind)
{
    struct range *range = range_find(&soft->ranges.usable, start);
    uintptr_t end;
    if (__builtin_add_overflow(start, size, &end))
        return CUDA_ERROR_INVALID_VALUE;
    if (!range) {
        if (range_overlaps(&soft->ranges.usable, start, size) ||
            range_overlaps(&soft->ranges.reservations, start, size))
            return CUDA_ERROR_INVALID_VALUE;
        *ret_kind = RANGE_PAGEABLE;
        return CUDA_SUCCESS;
    }
    enum range_kind kind = range->kind;
    for (uintptr_t at = start; at < end; at = range->start + range->size) {
        range = range_find(&soft->ranges.usable, at);
        if (!range || !range_allows(range, write))
            return CUDA_ERROR_INVALID_VALUE;
    }
    *ret_kind = kind;
    return CUDA_SUCCESS;
}

CUresult
range_check(uintptr_t start, size_t size, bool write, enum range_kind *ret_kind)
{
    LOCKED(&soft->ranges.lock);
    return check_locked(start, size, write, ret_kind);
}

CUresult
range_enter(uintptr_t start, size_t size, bool write)
{
    LOCKED(&soft->ranges.lock);
    enum range_kind kind;
    RETURN_IF(check_locked(start, size, write, &kind));
    if (kind == RANGE_PAGEABLE)
        return CUDA_ERROR_INVALID_VALUE;
    count_users(start, size, 1);
    return CUDA_SUCCESS;
}

void
range_leave(uintptr_t start, size_t size)
{
    LOCKED(&soft->ranges.lock);
    count_users(start, size, -1U);
    pthread_cond_broadcast(&soft->ranges.idle);
}

size_t
range_count(enum range_kind kind)
{
    struct range_map *map = &soft->ranges;
    struct range *range;
    size_t n = 0;
    LOCKED(&map->lock);
    RB_FOREACH(range, range_tree, kind == RANGE_RESERVATION ? &map->reservations : &map->usable)
    n += range->kind == kind;
    return n;
}
