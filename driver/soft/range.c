/* SPDX-License-Identifier: Apache-2.0 */
/* The maps of addresses. */
#include "soft.h"

#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

static const unsigned int traits[] = {
    [RANGE_PAGEABLE] = 0,
    [RANGE_RESERVATION] = 0,
    [RANGE_MAPPING] = TRAIT_DEVICE | TRAIT_MEMOPS | TRAIT_ROW,
    [RANGE_DEVICE] = TRAIT_DEVICE | TRAIT_MEMOPS,
    [RANGE_HOST] = TRAIT_HOST | TRAIT_MEMOPS,
    [RANGE_OPENED] = TRAIT_DEVICE | TRAIT_MEMOPS,
    [RANGE_REGISTERED] = TRAIT_HOST | TRAIT_MEMOPS,
    [RANGE_MANAGED] = TRAIT_DEVICE,
    [RANGE_POOL] = TRAIT_DEVICE,
    [RANGE_POOL_HOST] = TRAIT_HOST,
};

bool
range_kind_has(enum range_kind kind, enum range_trait trait)
{
    return traits[kind] & trait;
}

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

struct range *
range_find_in(struct range_tree *tree, uintptr_t start, size_t size)
{
    struct range *around = range_find(tree, start), *next = range_find_from(tree, start);
    return around ? around : next && next->start - start < size ? next : NULL;
}

struct range *
range_new(enum range_kind kind, uintptr_t start, size_t size)
{
    struct range *range = calloc(1, sizeof(*range));
    if (!range)
        return NULL;
    range->kind = kind;
    range->start = start;
    range->size = size;
    return range;
}

/* Waits for the users of what it ends. */
static void
evict_registrations(uintptr_t start, size_t size)
{
    struct range_tree *usable = &soft->ranges.usable;
    struct range *old;
    while ((old = range_find_in(usable, start, size)) && old->kind == RANGE_REGISTERED) {
        if (old->n_users > 0)
            pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
        else
            range_remove(usable, old);
    }
}

void
range_insert(struct range_tree *tree, struct range *range)
{
    evict_registrations(range->start, range->size);
    range->id = ++soft->ranges.last_id;
    RB_INSERT(range_tree, tree, range);
}

void
range_move(struct range_tree *from, struct range_tree *to, struct range *range)
{
    RB_REMOVE(range_tree, from, range);
    RB_INSERT(range_tree, to, range);
}

void
range_remove(struct range_tree *tree, struct range *range)
{
    RB_REMOVE(range_tree, tree, range);
    share_offer_free(range->offer);
    memory_unref(range->memory);
    free(range);
}

/* Whether the pages are mapped. Those of a registration are the program's, which may unmap them
 * too early; the call with this flag does nothing but look. */
static bool
pages_exist(uintptr_t start, size_t size)
{
    uintptr_t before = start % (uintptr_t)getpagesize();
    return msync((void *)(start - before), before + size, MS_ASYNC) == 0;
}

/* Whether work may touch what of [at, end) is in the range: when it is about to be done, or else
 * about to be enqueued. */
static bool
range_allows(const struct range *range, uintptr_t at, uintptr_t end, bool write, bool running)
{
    size_t left = range->size - (at - range->start), size = end - at < left ? end - at : left;
    if (running && range->kind == RANGE_REGISTERED && !pages_exist(at, size))
        return false;
    return range->access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
           (!write && range->access == CU_MEM_ACCESS_FLAGS_PROT_READ);
}

/* Adds users to all ranges in [start, start + size), which are known to be there. */
static void
count_users(struct range_tree *tree, uintptr_t start, size_t size, unsigned int n)
{
    struct range *range = range_find(tree, start);
    for (; range && range->start < start + size; range = RB_NEXT(range_tree, tree, range))
        range->n_users += n;
}

static bool
is_nobodys(uintptr_t start, size_t size)
{
    struct range_map *map = &soft->ranges;
    return !range_find_in(&map->usable, start, size) &&
           !range_find_in(&map->reservations, start, size) &&
           !range_find_in(&map->freed, start, size);
}

/* Needs the lock. */
static CUresult
check_locked(struct range_tree *tree, uintptr_t start, size_t size, bool write, bool running,
             enum range_kind *ret_kind)
{
    struct range *range = range_find(tree, start);
    uintptr_t end;
    if (__builtin_add_overflow(start, size, &end))
        return CUDA_ERROR_INVALID_VALUE;
    if (!range) {
        *ret_kind = RANGE_PAGEABLE;
        return is_nobodys(start, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    enum range_kind kind = range->kind;
    for (uintptr_t at = start; at < end; at = range->start + range->size) {
        range = range_find(tree, at);
        if (at > start && !(range && range->kind == kind && range_kind_has(kind, TRAIT_ROW)))
            return CUDA_ERROR_INVALID_VALUE;
        if (!range || !range_allows(range, at, end, write, running))
            return CUDA_ERROR_INVALID_VALUE;
    }
    *ret_kind = kind;
    return CUDA_SUCCESS;
}

CUresult
range_check(uintptr_t start, size_t size, bool write, enum range_kind *ret_kind)
{
    LOCKED(&soft->ranges.lock);
    return check_locked(&soft->ranges.usable, start, size, write, false, ret_kind);
}

/* Where work finds its memory when it runs: it may be older than the free of it. */
static struct range_tree *
tree_of(uintptr_t start)
{
    struct range_map *map = &soft->ranges;
    return range_find(&map->freed, start) ? &map->freed : &map->usable;
}

CUresult
range_enter(uintptr_t start, size_t size, bool write)
{
    LOCKED(&soft->ranges.lock);
    struct range_tree *tree = tree_of(start);
    enum range_kind kind;
    RETURN_IF(check_locked(tree, start, size, write, true, &kind));
    if (kind == RANGE_PAGEABLE)
        return CUDA_ERROR_INVALID_VALUE;
    count_users(tree, start, size, 1);
    return CUDA_SUCCESS;
}

void
range_leave(uintptr_t start, size_t size)
{
    LOCKED(&soft->ranges.lock);
    count_users(tree_of(start), start, size, -1U);
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
