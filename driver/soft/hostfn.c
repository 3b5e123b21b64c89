/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the host, called in stream order by the stream's worker. They may not call CUDA:
 * soft_enter() refuses it, since a worker that waits for its own stream would wait for ever. */
#include "stream.h"

struct host_op {
    struct op op;
    CUhostFn fn;
    CUstreamCallback callback;
    CUstream stream; /* as the caller named it */
    void *data;
};

static CUresult
host_run(struct op *op, CUresult status)
{
    struct host_op *host = container_of(op, struct host_op, op);
    struct thread *thread = thread_get();
    if (!thread)
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->in_callback = true;
    if (host->callback)
        host->callback(host->stream, status, host->data);
    else if (status == CUDA_SUCCESS) /* a host function is not called after an error */
        host->fn(host->data);
    thread->in_callback = false;
    return CUDA_SUCCESS;
}

static CUresult
host_submit(CUstream handle, CUhostFn fn, CUstreamCallback callback, void *data)
{
    HOLD(stream, stream, handle);
    if (!fn && !callback)
        return CUDA_ERROR_INVALID_VALUE;
    struct host_op *host = calloc(1, sizeof(*host));
    if (!host)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_init(&host->op, host_run, NULL);
    host->fn = fn;
    host->callback = callback;
    host->stream = handle;
    host->data = data;
    return stream_submit(stream, &host->op, NULL);
}

CUresult
soft_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
    return host_submit(stream, fn, NULL, data);
}

CUresult
soft_cuStreamAddCallback(CUstream stream, CUstreamCallback fn, void *data, unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return host_submit(stream, NULL, fn, data);
}
