/* SPDX-License-Identifier: Apache-2.0 */
/* The table of handles. A slot's generation grows when its handle ends. */
#include "soft.h"

#include <string.h>

/* A handle is generation << SLOT_BITS | slot. Generations start at 1, so that no handle is null
 * or one of the small numbers that name the default streams. */
#define SLOT_BITS 24
#define MAX_SLOTS (UINT32_C(1) << SLOT_BITS)

void
object_init(struct object *object, enum object_kind kind, void (*free)(struct object *))
{
    object->kind = kind;
    object->n_refs = 1;
    object->handle = 0;
    object->free = free;
}

void
object_ref(struct object *object)
{
    object->n_refs++;
}

void
object_unref(struct object *object)
{
    if (--object->n_refs == 0)
        object->free(object);
}

static int
table_grow(struct object_table *table)
{
    uint32_t n = table->n_slots ? table->n_slots * 2 : 64;
    if (n > MAX_SLOTS)
        return -ENOMEM;
    struct object_slot *slots = realloc(table->slots, n * sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    for (uint32_t i = table->n_slots; i < n; i++)
        slots[i] = (struct object_slot){.generation = 1, .next_free = i + 1 < n ? i + 2 : 0};
    table->first_free = table->n_slots + 1;
    table->slots = slots;
    table->n_slots = n;
    return 0;
}

int
object_publish(struct object *object)
{
    struct object_table *table = &soft->objects;
    LOCKED(&table->lock);
    if (!table->first_free) {
        int r = table_grow(table);
        if (r < 0)
            return r;
    }
    uint32_t i = table->first_free - 1;
    struct object_slot *slot = &table->slots[i];
    table->first_free = slot->next_free;
    slot->object = object;
    object->handle = (uint64_t)slot->generation << SLOT_BITS | i;
    object_ref(object);
    return 0;
}

CUresult
object_hand_out(struct object *object, void *ret_handle)
{
    int r = object_publish(object);
    if (r == 0)
        memcpy(ret_handle, &object->handle, sizeof(object->handle));
    object_unref(object);
    return r == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Needs the table's lock. */
static struct object_slot *
table_find(struct object_table *table, uint64_t handle, enum object_kind kind)
{
    uint64_t i = handle % MAX_SLOTS;
    if (i >= table->n_slots)
        return NULL;
    struct object_slot *slot = &table->slots[i];
    if (!slot->object || slot->generation != handle >> SLOT_BITS || slot->object->kind != kind)
        return NULL;
    return slot;
}

struct object *
object_get(uint64_t handle, enum object_kind kind)
{
    LOCKED(&soft->objects.lock);
    struct object_slot *slot = table_find(&soft->objects, handle, kind);
    if (!slot)
        return NULL;
    object_ref(slot->object);
    return slot->object;
}

struct object *
object_take(uint64_t handle, enum object_kind kind)
{
    struct object_table *table = &soft->objects;
    LOCKED(&table->lock);
    struct object_slot *slot = table_find(table, handle, kind);
    if (!slot)
        return NULL;
    struct object *object = slot->object;
    slot->object = NULL;
    if (++slot->generation == 0)
        slot->generation = 1;
    slot->next_free = table->first_free;
    table->first_free = (uint32_t)(slot - table->slots) + 1;
    return object;
}

struct object *
object_next(enum object_kind kind, uint32_t *index)
{
    LOCKED(&soft->objects.lock);
    while (*index < soft->objects.n_slots) {
        struct object *object = soft->objects.slots[(*index)++].object;
        if (!object || object->kind != kind)
            continue;
        object_ref(object);
        return object;
    }
    return NULL;
}

size_t
object_count(enum object_kind kind)
{
    size_t n = 0;
    LOCKED(&soft->objects.lock);
    for (uint32_t i = 0; i < soft->objects.n_slots; i++)
        n += soft->objects.slots[i].object && soft->objects.slots[i].object->kind == kind;
    return n;
}
