/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts, and what each thread keeps: its stack of current contexts and its own default stream
 * in each.
 *
 * A device's primary context is made by its first retain and then stays for ever under one
 * handle; release by the last holder, or a reset, ends what is in it (streams, allocations) and
 * leaves it inactive until it is retained again. A context of cuCtxCreate is freed when it was
 * destroyed and no thread has it on its stack.
 *
 * An operation that finds its memory gone faults the device, as on hardware: for the rest of the
 * process nothing runs on it any more, and every call that needs it answers with that error.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "object.h"
#include "soft.h"

struct op;
struct point;
struct stream;

struct context {
    struct object object;
    struct device *device;
    bool primary;
    unsigned int n_retains; /* of a primary context; under soft->lock */
    _Atomic unsigned int flags;
    _Atomic bool live;
    _Atomic uint64_t epoch;        /* counts how often what is in it was ended */
    _Atomic uint32_t peers;        /* bit n: peer access to device n was enabled */
    _Atomic bool reaches_out;      /* it was given work on another context's memory */
    pthread_mutex_t order;         /* held while an operation gets its place in a stream */
    LIST_HEAD(, stream) streams;   /* that live or still have work; under order */
    struct stream *_Atomic legacy; /* made when first used; written under order */
    struct stream *recorder;       /* the same; of cuCtxRecordEvent(); under order */
};

OBJECT_REFS(context, OBJECT_CONTEXT)

struct thread {
    struct context **stack; /* each with a reference */
    size_t n_stack, n_room;
    LIST_HEAD(, stream) own_streams; /* CU_STREAM_PER_THREAD, one per context; references */
    bool in_callback;
    CUstreamCaptureMode capture_mode;
};

/* The calling thread's part; NULL when there is no memory for it. */
struct thread *thread_get(void);
void thread_free(void *thread); /* at the thread's end */

/* CONTEXT_IS_DESTROYED, the fault of its device, or SUCCESS. */
CUresult context_check(const struct context *context);
/* The current context, borrowed: it stays as long as the calling thread does not pop it.
 * INVALID_CONTEXT when there is none, or what context_check() says. */
CUresult context_current(struct context **ret);
/* struct context *NAME: that one. Returns what it says where there is none. */
#define CURRENT(name)     \
    struct context *name; \
    RETURN_IF(context_current(&name))
/* For calls that do without a current context, but not with one that was ended. */
bool context_current_is_dead(void);
/* The device of the current context, of no context the first one. */
struct device *context_device(void);
/* A new reference, or NULL. A null handle is the current context. */
struct context *context_get(CUcontext handle);
/* Makes op wait for all that the context was given until now. 0, or -ENOMEM. */
int context_precede(struct context *context, struct op *op);
/* Waits for all work that was submitted before; returns the device's fault, if any. */
CUresult context_synchronize(struct context *context);
/* The same, and waits for the work of contexts that use other contexts' memory: it may be this
 * one's. */
CUresult context_synchronize_users(struct context *context);
