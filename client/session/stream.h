/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of the program, during a call: a CUstream, or 1 and 2, the legacy and the per-thread
 * default stream of the current context or, if there is none, of a device's primary context. Its
 * context is current from stream_enter() to stream_leave().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "drv.h"

struct caid_client;

/* The highest number of a stream that is not a handle. */
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

/* As client_check(). CAID_ERR_INVALID: the stream is 0, or captures a graph. device: the index of
 * the device whose primary context 1 and 2 mean, if no context is current. */
int stream_enter(struct caid_client *client, uint64_t stream, int32_t device,
                 struct stream *ret, struct caid_error *error);
/* Waits for all work on the stream; it polls if the program may interrupt the wait (interrupt.h).
 * -1: it was interrupted, and error is filled; 0: *ret is the driver's result. */
int stream_synchronize(struct caid_client *client, const struct stream *stream, CUresult *ret,
                       struct caid_error *error);
void stream_leave(const struct stream *stream);

/* As stream_enter(), for a known context; does not check whether the stream captures. */
int stream_enter_context(struct caid_client *client, CUstream handle, CUcontext context,
                         struct stream *ret, struct caid_error *error);

/* The place (gpu.h) of the stream's device. CAID_ERR_DEVICE. */
int stream_place(struct caid_client *client, const struct stream *stream, uint32_t *ret,
                 struct caid_error *error);

/* CAID_ERR_INVALID: it captures a graph. Enqueued work would become a part of the graph, and some
 * driver calls would end the capture. */
int stream_check_not_capturing(struct caid_client *client, const struct stream *stream,
                               struct caid_error *error);

/* 0, or the error for the result of a driver call on the stream. If it says that the context is
 * dead, the signals of the context are given up, which releases whoever waits for them. */
int stream_result(struct caid_client *client, const struct stream *stream, const char *call,
                  CUresult result, const char *doing, struct caid_error *error);
