/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events, in two kinds. What an ordinary one stands for is a place in a stream of this process
 * (event.c); what an inter-process one stands for is a number in a page that processes share
 * (event_ipc.c).
 *
 * An event is counted by its handle, by who uses it at the moment, and by operations that need it.
 */
#pragma once

#include "stream.h"

struct event;

struct event_kind {
    /* Enqueues the record that the event stands for from then on. */
    CUresult (*record)(struct event *event, struct stream *stream);
    /* Makes what is enqueued into the stream from now on wait for the last record. */
    CUresult (*wait)(struct event *event, struct stream *stream);
    /* Whether the last record has passed; true for an event that was never recorded. */
    bool (*passed)(struct event *event);
    /* Returns when the last record has passed, or the device is faulted. */
    void (*finish)(struct event *event);
};

struct event {
    struct object object;
    const struct event_kind *kind;
    struct context *context; /* one reference */
    uint64_t epoch;          /* of the context: the event ends with what is in it */
    unsigned int flags;
};

OBJECT_REFS(event, OBJECT_EVENT)

/* Of the current context. The caller has the first reference. */
void event_init(struct event *event, const struct event_kind *kind, struct context *context,
                unsigned int flags, void (*free)(struct object *object));
void event_deinit(struct event *event);
/* A reference. */
CUresult event_get(CUevent handle, struct event **ret);

/* An inter-process event. */
CUresult event_ipc_new(struct context *context, unsigned int flags, struct event **ret);
