/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>

#include "client.h"
#include "interrupt.h"

static const char doing[] = "cannot use a stream";

int
stream_check(uint64_t stream, struct caid_error *error)
{
    return stream != 0 ? 0
                       : fail(error, CAID_ERR_INVALID,
                              "stream 0 is ambiguous: 1 is the legacy default stream, 2 the "
                              "per-thread one");
}

/* ---- its context ---- */

static int
default_context(struct caid_client *client, int32_t device, CUcontext *ret,
                struct caid_error *error)
{
    uint32_t place;

    *ret = gpu_current(client->gpu.drv);
    if (*ret)
        return 0;
    int r = gpu_find_place(client, device, NULL, &place, error);
    return r < 0 ? r : gpu_context(client, place, ret, error);
}

int
stream_enter_context(struct caid_client *client, CUstream handle, CUcontext context,
                     struct stream *ret, struct caid_error *error)
{
    struct stream stream = {.drv = client->gpu.drv, .handle = handle, .context = context};

    if (gpu_current(stream.drv) != context) {
        CUresult result = stream.drv->cu.cuCtxPushCurrent(context);
        if (gpu_is_gone(result))
            client_context_died(client, context);
        if (result != CUDA_SUCCESS)
            return stream_result(client, &stream, "cuCtxPushCurrent", result, doing, error);
        stream.pushed = true;
    }
    *ret = stream;
    return 0;
}

int
stream_check_not_capturing(struct caid_client *client, const struct stream *stream,
                           struct caid_error *error)
{
    bool captures;
    CUresult result = gpu_captures(stream->drv, stream->handle, &captures);

    if (captures)
        return fail(
            error, CAID_ERR_INVALID,
            "the stream captures a graph: what waits or is signalled now would be a part "
            "of it, with the values of now");
    return stream_result(client, stream, "cuStreamIsCapturing", result, doing, error);
}

/* A handle is asked first whether it captures: other questions would end the capture. */
static int
find_context(struct caid_client *client, const struct drv *drv, CUstream handle, CUcontext *ret,
             struct caid_error *error)
{
    const struct stream stream = {.drv = drv, .handle = handle};

    int r = stream_check_not_capturing(client, &stream, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuStreamGetCtx(handle, ret);
    return gpu_result(drv, "cuStreamGetCtx", result, doing, error);
}

/* A default stream belongs to the current context, so that has to be made current first. */
static int
enter_default(struct caid_client *client, CUstream handle, int32_t device, struct stream *ret,
              struct caid_error *error)
{
    CUcontext context;

    int r = default_context(client, device, &context, error);
    if (r == 0)
        r = stream_enter_context(client, handle, context, ret, error);
    if (r < 0)
        return r;
    r = stream_check_not_capturing(client, ret, error);
    if (r < 0)
        stream_leave(ret);
    return r;
}

int
stream_enter(struct caid_client *client, uint64_t stream, int32_t device, struct stream *ret,
             struct caid_error *error)
{
    CUstream handle = (CUstream)(uintptr_t)stream;
    const struct drv *drv;
    CUcontext context;

    int r = client_check(client, error);
    if (r == 0)
        r = stream_check(stream, error);
    if (r == 0)
        r = gpu_driver(client, &drv, error);
    if (r == 0 && stream_is_special(stream))
        return enter_default(client, handle, device, ret, error);
    if (r == 0)
        r = find_context(client, drv, handle, &context, error);
    return r < 0 ? r : stream_enter_context(client, handle, context, ret, error);
}

void
stream_leave(const struct stream *stream)
{
    if (stream->pushed)
        gpu_pop(stream->drv);
}

int
stream_synchronize(struct caid_client *client, const struct stream *stream, CUresult *ret,
                   struct caid_error *error)
{
    struct pauses pauses = {0};
    int r = 0;

    while (client->interrupted && r == 0 &&
           stream->drv->cu.cuStreamQuery(stream->handle) == CUDA_ERROR_NOT_READY)
        r = interrupt_pause(client, &pauses, UINT64_MAX, error);
    if (r == 0)
        *ret = stream->drv->cu.cuStreamSynchronize(stream->handle);
    return r;
}

int
stream_place(struct caid_client *client, const struct stream *stream, uint32_t *ret,
             struct caid_error *error)
{
    CUdevice ordinal;

    CUresult result = stream->drv->cu.cuCtxGetDevice(&ordinal);
    if (result != CUDA_SUCCESS)
        return stream_result(client, stream, "cuCtxGetDevice", result, doing, error);
    const struct gpu_device *device = gpu_find_ordinal(&client->gpu, ordinal);
    if (!device)
        return fail(error, CAID_ERR_DEVICE,
                    "the stream is of device %d, of which caid uses none", ordinal);
    *ret = (uint32_t)(device - client->gpu.devices);
    return 0;
}

int
stream_result(struct caid_client *client, const struct stream *stream, const char *call,
              CUresult result, const char *what, struct caid_error *error)
{
    if (gpu_is_dead(result))
        client_context_died(client, stream->context);
    return gpu_result(stream->drv, call, result, what, error);
}
