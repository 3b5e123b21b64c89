/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of the program's for the length of a call: a CUstream, or 1 and 2, the legacy and the
 * per-thread default stream of the context that is current, or else of a device's primary context.
 * Its context is current from stream_enter() to stream_leave().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "drv.h"

struct caid_client;

/* The highest of the streams that are no handle. */
#define STREAM_SPECIAL_MAX 2

struct stream {
    const struct drv *drv;
    CUstream handle;
    CUcontext context;
    bool pushed;
};

static inline bool
stream_is_special(uint64_t stream)
{
    return stream <= STREAM_SPECIAL_MAX;
}

/* CAID_ERR_INVALID: 0, which is ambiguous. */
int stream_check(uint64_t stream, struct caid_error *error);

/* As client_check(). Refuses 0, too, and a stream that captures a graph: CAID_ERR_INVALID.
 * device: the index whose primary context 1 and 2 mean where none is current. */
int stream_enter(struct caid_client *client, uint64_t stream, int32_t device,
                 struct stream *ret, struct caid_error *error);
/* Waits for all that is on it: of a client that is asked whether it is interrupted, by looking.
 * -1 with the error filled where it is; else 0, and what the driver says. */
int stream_synchronize(struct caid_client *client, const struct stream *stream, CUresult *ret,
                       struct caid_error *error);
void stream_leave(const struct stream *stream);

/* The same where the context is known, without a look at whether it captures. */
int stream_enter_context(struct caid_client *client, CUstream handle, CUcontext context,
                         struct stream *ret, struct caid_error *error);

/* The place (gpu.h) of the stream's device. CAID_ERR_DEVICE. */
int stream_place(struct caid_client *client, const struct stream *stream, uint32_t *ret,
                 struct caid_error *error);

/* CAID_ERR_INVALID: it captures a graph, of which what is enqueued would become a part, and
 * which some questions would end. */
int stream_check_not_capturing(struct caid_client *client, const struct stream *stream,
                               struct caid_error *error);

/* What the CUresult of a call on the stream comes to: 0, or an error. If it tells that the
 * context is dead, what the context was to signal is given up: whoever waits for it is let go. */
int stream_result(struct caid_client *client, const struct stream *stream, const char *call,
                  CUresult result, const char *doing, struct caid_error *error);
