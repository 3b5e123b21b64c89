/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and the operations in them.
 *
 * A stream is a queue and, from its first operation on, a worker thread that runs the operations
 * one by one. Operations are numbered: "point n of a stream" is passed when its n-th operation
 * has ended. Ordering of any kind is an operation that waits for points of other streams before
 * it runs: a wait for an event, and what the legacy default stream means: its operations wait
 * for all that the context's blocking streams were given before, and theirs for its. Numbers are
 * given, and such points collected, under the context's order lock, so a point always refers to
 * the past and no circle of waits can arise.
 *
 * cuStreamDestroy ends the handle and returns; the worker drains the queue and then ends the
 * stream. An object's streams are freed when the last point that refers to them is.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "context.h"

/* A reference on the stream. */
struct point {
    struct stream *stream;
    uint64_t number;
};

struct op {
    STAILQ_ENTRY(op) link;
    uint64_t number;
    bool stretched; /* by the delay setting */
    struct point *after;
    size_t n_after;
    /* status is the device's fault: an operation that finds one does nothing but tell of it.
     * What it returns faults the device. */
    CUresult (*run)(struct op *op, CUresult status);
    /* May be NULL. Called when the operation has got its place, before it can run, with the
     * context's order lock held. */
    void (*placed)(struct op *op);
    void (*free)(struct op *op); /* NULL: free(3), of what begins with the op */
};

/* What a stream is given is not carried out but would become a graph: capture.c. */
struct capture {
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode;
    uint64_t id;
    pid_t thread; /* that has begun it */
};

struct stream {
    struct object object;
    struct context *context; /* one reference */
    unsigned int flags;
    int priority;
    uint64_t id;
    bool closed;                     /* under context.order */
    struct capture capture;          /* under context.order */
    LIST_ENTRY(stream) context_link; /* under context.order */
    LIST_ENTRY(stream) thread_link;  /* of a per-thread default stream: its thread's */
    _Atomic uint64_t submitted;      /* written under context.order */
    _Atomic uint64_t passed;         /* written under lock */
    pthread_mutex_t lock;
    pthread_cond_t work;     /* for the worker: queue or draining changed */
    pthread_cond_t progress; /* for others: passed changed */
    STAILQ_HEAD(, op) queue; /* under lock */
    bool started, draining;  /* under lock */
};

OBJECT_REFS(stream, OBJECT_STREAM)

static inline bool
stream_is_blocking(const struct stream *stream)
{
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* The stream that a caller means: 1 the legacy default stream of the current context, 2 the
 * calling thread's own, null one of these two, by which form of the function was called. A new
 * reference, or what context_check() says. */
CUresult stream_get(CUstream handle, struct stream **ret);
/* The context's legacy default stream: a new reference, or NULL. */
struct stream *stream_legacy(struct context *context);
/* The context's stream for records of all that it was given: as stream_legacy(). */
struct stream *stream_recorder(struct context *context);
/* Ends a stream whose owner (handle, context or thread) lets go of it. */
void stream_close(struct stream *stream);

/* run: NULL does nothing. */
void op_init(struct op *op, CUresult (*run)(struct op *, CUresult), void (*free)(struct op *));
/* Makes op wait for the point. 0, or -ENOMEM. */
int op_wait_for(struct op *op, struct stream *stream, uint64_t number);
/* Of one that was never submitted; stream_submit() takes the others over. */
void op_free(struct op *op);
/* An operation that does nothing but keep its place; NULL when there is no memory. */
struct op *op_marker(void);

/* Takes op over, also when it fails. ret_number may be NULL. */
CUresult stream_submit(struct stream *stream, struct op *op, uint64_t *ret_number);
/* Takes a place in the stream that the point comes before; one without a stream is nowhere. */
CUresult stream_submit_after(struct stream *stream, const struct point *point,
                             uint64_t *ret_number);
/* What is enqueued from now on comes after all that the context was given. */
CUresult stream_follow(struct stream *stream, struct context *context);
bool stream_passed(struct stream *stream, uint64_t number);
void stream_wait(struct stream *stream, uint64_t number);
/* For calls that a capture forbids: STREAM_CAPTURE_UNSUPPORTED, and the captures are invalidated.
 * stream_: the capture of that stream. context_: all in the context. thread_: those that the
 * calling thread has begun and, in mode GLOBAL, those of other threads, unless the thread or the
 * capture is relaxed. */
CUresult stream_forbid_capture(struct stream *stream);
CUresult context_forbid_capture(struct context *context);
CUresult thread_forbid_capture(void);
/* For work on the legacy default stream while blocking streams capture: STREAM_CAPTURE_IMPLICIT,
 * and those captures are invalidated. Any other stream succeeds. Needs the order lock. */
CUresult stream_forbid_implicit_capture(struct stream *stream);
/* The end of a capture, if there is one. Needs the order lock. */
void stream_drop_capture(struct stream *stream);
/* Waits for the point and returns the device's fault, if any. */
CUresult stream_finish(struct stream *stream, uint64_t number);
