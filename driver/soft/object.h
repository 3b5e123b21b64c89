/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller holds is a handle: the number of a slot and the slot's generation. A handle that
 * was given back is thus an error for ever and never a stray pointer, however often it is used.
 *
 * An object is counted. The table holds one reference for the handle; whoever uses the object
 * meanwhile (a queued operation, a mapping, a thread's context stack) holds one of its own.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "cuda_abi.h"

enum object_kind {
    OBJECT_CONTEXT = 1,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MEMORY,
    OBJECT_POOL,
    OBJECT_GRAPH
};

struct object {
    enum object_kind kind;
    _Atomic unsigned int n_refs;
    uint64_t handle; /* 0: none was given out */
    void (*free)(struct object *object);
};

struct object_slot {
    struct object *object;
    uint32_t generation;
    uint32_t next_free;
};

struct object_table {
    pthread_mutex_t lock;
    struct object_slot *slots;
    uint32_t n_slots;
    uint32_t first_free; /* index + 1; 0: none */
};

/* The caller has the first reference. */
void object_init(struct object *object, enum object_kind kind, void (*free)(struct object *));
void object_ref(struct object *object);
void object_unref(struct object *object);

/* A new reference, or NULL for a handle that is unknown or of another kind. */
struct object *object_get(uint64_t handle, enum object_kind kind);
/* Ends the handle and passes on the table's reference, or NULL. */
struct object *object_take(uint64_t handle, enum object_kind kind);

/* TYPE_ref() takes a reference and returns what it was given, TYPE_unref() lets go of one and
 * returns NULL; both take NULL. TYPE_unrefp() is for _cleanup_(). TYPE_by_handle() is
 * object_get(), TYPE_end_handle() object_take(). For a type whose first member is its struct
 * object. */
#define OBJECT_REFS(type, kind)                                             \
    _Static_assert(offsetof(struct type, object) == 0, "its first member"); \
    UNUSED static inline struct type *type##_ref(struct type *counted)      \
    {                                                                       \
        if (counted)                                                        \
            object_ref(&counted->object);                                   \
        return counted;                                                     \
    }                                                                       \
    UNUSED static inline struct type *type##_unref(struct type *counted)    \
    {                                                                       \
        if (counted)                                                        \
            object_unref(&counted->object);                                 \
        return NULL;                                                        \
    }                                                                       \
    UNUSED static inline struct type *type##_by_handle(uint64_t handle)     \
    {                                                                       \
        void *found = object_get(handle, kind);                             \
        return found;                                                       \
    }                                                                       \
    UNUSED static inline struct type *type##_end_handle(uint64_t handle)    \
    {                                                                       \
        void *ended = object_take(handle, kind);                            \
        return ended;                                                       \
    }                                                                       \
    DEFINE_CLEANUP(struct type *, type##_unref)

/* struct TYPE *NAME: what TYPE_get() gives for a handle, until the end of the block. Where it gives
 * none, returns what it says. */
#define HOLD(type, name, handle)                       \
    _cleanup_(type##_unrefp) struct type *name = NULL; \
    RETURN_IF(type##_get(handle, &name))

/* Gives the object a handle; the table takes a reference of its own. 0, or -ENOMEM. */
int object_publish(struct object *object);
/* The same for an object that nobody else has: the handle is written to *ret_handle, a CUevent or
 * another of CUDA's, and the caller's reference ends, also when it fails. OUT_OF_MEMORY. */
CUresult object_hand_out(struct object *object, void *ret_handle);

/* A new reference on the first object of the kind in slot *index or later, and *index moves on;
 * NULL when there is none. */
struct object *object_next(enum object_kind kind, uint32_t *index);

/* How many handles of a kind are out. */
size_t object_count(enum object_kind kind);
