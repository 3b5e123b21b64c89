/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deallocation queue with a flat interface, for ctypes: entries have numbers, owners an index.
 * Holding back is for all owners together, as Numba's disable() is.
 */
#include <stdlib.h>

#include "base/macros.h"
#include "mem_check.h"

#define DOOR     __attribute__((visibility("default")))
#define N_OWNERS 3

struct door {
    struct dealloc queue;
    struct dealloc_owner owners[N_OWNERS];
    uint64_t now_ns;
};

struct door_entry {
    struct dealloc_entry entry;
    uint64_t id;
};

DOOR struct door *door_new(void);
DOOR void door_free(struct door *door);
DOOR void door_limits(struct door *door, uint64_t count, uint64_t capacity, double ratio);
DOOR uint64_t door_max_bytes(const struct door *door);
DOOR int door_add(struct door *door, unsigned owner, uint64_t id, uint64_t bytes);
DOOR void door_begin(struct door *door);
DOOR int door_next(struct door *door, uint64_t *ret_id, uint64_t *ret_bytes);
DOOR void door_done(struct door *door, uint64_t bytes, int error);
DOOR void door_hold(struct door *door);
DOOR void door_unhold(struct door *door);
DOOR void door_figures(const struct door *door, uint64_t ret[5]);

struct door *
door_new(void)
{
    static const struct dealloc_limits limits = {.max_age_ns = UINT64_MAX};
    struct door *door = calloc(1, sizeof(*door));

    if (!door)
        return NULL;
    dealloc_init(&door->queue, &limits);
    for (int i = 0; i < N_OWNERS; i++)
        dealloc_owner_init(&door->owners[i]);
    return door;
}

void
door_free(struct door *door)
{
    struct dealloc_entry *entry;

    dealloc_begin(&door->queue);
    while ((entry = dealloc_next_overriding(&door->queue, NULL))) {
        dealloc_done(&door->queue, entry->bytes, 0);
        free(container_of(entry, struct door_entry, entry));
    }
    free(door);
}

void
door_limits(struct door *door, uint64_t count, uint64_t capacity, double ratio)
{
    door->queue.limits.max_count = count;
    door->queue.limits.max_bytes = dealloc_ratio_bytes(capacity, ratio);
}

uint64_t
door_max_bytes(const struct door *door)
{
    return door->queue.limits.max_bytes;
}

/* Whether a flush is wanted; -1: no memory. */
int
door_add(struct door *door, unsigned owner, uint64_t id, uint64_t bytes)
{
    struct door_entry *e = malloc(sizeof(*e));

    if (!e)
        return -1;
    e->id = id;
    return dealloc_add(&door->queue, &door->owners[owner % N_OWNERS], &e->entry, bytes,
                       door->now_ns++);
}

void
door_begin(struct door *door)
{
    dealloc_begin(&door->queue);
}

/* Whether there was one. */
int
door_next(struct door *door, uint64_t *ret_id, uint64_t *ret_bytes)
{
    struct dealloc_entry *entry = dealloc_next(&door->queue);

    if (!entry)
        return 0;
    *ret_id = container_of(entry, struct door_entry, entry)->id;
    *ret_bytes = entry->bytes;
    free(container_of(entry, struct door_entry, entry));
    return 1;
}

void
door_done(struct door *door, uint64_t bytes, int error)
{
    dealloc_done(&door->queue, bytes, error);
}

void
door_hold(struct door *door)
{
    for (int i = 0; i < N_OWNERS; i++)
        dealloc_hold(&door->queue, &door->owners[i]);
}

void
door_unhold(struct door *door)
{
    for (int i = 0; i < N_OWNERS; i++)
        dealloc_unhold(&door->queue, &door->owners[i]);
}

/* Entries and bytes that wait; entries freed, entries and bytes quarantined, ever. */
void
door_figures(const struct door *door, uint64_t ret[5])
{
    const struct dealloc *q = &door->queue;

    dealloc_check(q);
    ret[0] = q->n;
    ret[1] = q->bytes;
    ret[2] = q->n_freed;
    ret[3] = q->n_quarantined;
    ret[4] = q->bytes_quarantined;
}
