/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena: one struct caid_arena, made by Client._arena_new(). Allocation: a piece of its memory,
 * which is freed by close() or with the object, in whatever thread, also as the interpreter ends.
 *
 * An Arena ends new calls by close(), or with its client; its Allocations hold it, and the last of
 * them ends the struct: who has memory keeps it, as tensors and HostViews of a Lease do. end() does
 * not wait for them: what they had is gone. One that is pinned (py_arena_pin()) never ends the
 * struct.
 *
 * Allocating and freeing hold the GIL where libcaid neither waits nor calls the driver
 * (CAID_ARENA_NOWAIT), and give it up for the rest: a driver call may wait for work behind a
 * callback that waits for the GIL, and so may whoever has libcaid's lock meanwhile.
 */
#pragma once

#include "handle.h"

struct arena_object {
    struct handle_object handle;
    struct caid_arena *arena; /* NULL: ended */
    Py_ssize_t n_live;        /* Allocations */
    Py_ssize_t n_freeing;     /* without the GIL */
    bool over;                /* closed, or its client is: it ends with the last Allocation */
    bool ending;              /* or before */
    bool pinned;
};

/* A call of libcaid's by a thread that works on that stream. */
#define ON_STREAM(stream, call)                        \
    ({                                                 \
        uint64_t before_ = caid_arena_work_on(stream); \
        int on_stream_ = (call);                       \
        caid_arena_work_on(before_);                   \
        on_stream_;                                    \
    })

/* Reserves nbytes for an Allocation, which is counted: -1 with an exception set. The arena is
 * entered. */
int py_arena_reserve(struct arena_object *self, uint64_t nbytes, uint64_t *ret);
/* An Allocation less, of the memory at ptr; 0: it never had any. */
void py_arena_release(struct arena_object *self, uint64_t ptr);

/* An Allocation of an arena that is entered. */
PyObject *py_allocation_new(struct arena_object *arena, uint64_t nbytes);
