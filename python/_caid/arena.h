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
    struct caid_arena *arena; /* NULL: it has ended */
    Py_ssize_t n_live;        /* Allocations */
    Py_ssize_t n_freeing;     /* without the GIL */
    bool over;                /* closed, or its client is: it ends with the last Allocation */
    bool ending;              /* or before */
    bool pinned;
};

/* Makes a call of libcaid while the arena knows the calling thread to work on that stream. */
#define ON_STREAM(stream, call)                        \
    ({                                                 \
        uint64_t before_ = caid_arena_work_on(stream); \
        int on_stream_ = (call);                       \
        caid_arena_work_on(before_);                   \
        on_stream_;                                    \
    })

/* Allocates nbytes, and counts one more Allocation. The caller has entered the arena. -1 with an
 * exception set. */
int py_arena_reserve(struct arena_object *self, uint64_t nbytes, uint64_t *ret);
/* Frees the memory at ptr (0: none), and counts one Allocation less. */
void py_arena_release(struct arena_object *self, uint64_t ptr);

/* Makes an Allocation. The caller has entered the arena. */
PyObject *py_allocation_new(struct arena_object *arena, uint64_t nbytes);
