/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about the capture of streams into graphs. There are no graphs: nothing is captured. */
#include "stream.h"

CUresult
soft_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    RETURN_IF(stream_get(handle, &stream));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* Of a stream that is not captured there is nothing else to tell. */
CUresult
soft_cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                            cuuint64_t *id UNUSED)
{
    return soft_cuStreamIsCapturing(stream, status);
}

CUresult
soft_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                               cuuint64_t *id UNUSED, CUgraph *graph UNUSED,
                               const CUgraphNode **dependencies UNUSED,
                               size_t *n_dependencies UNUSED)
{
    return soft_cuStreamIsCapturing(stream, status);
}

CUresult
soft_cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                               cuuint64_t *id UNUSED, CUgraph *graph UNUSED,
                               const CUgraphNode **dependencies, const CUgraphEdgeData **edges,
                               size_t *n_dependencies UNUSED)
{
    ENTER();
    if (edges && !dependencies)
        return CUDA_ERROR_INVALID_VALUE;
    return soft_cuStreamIsCapturing(stream, status);
}

/* Which calls a capture forbids the thread; kept, for whoever sets it back, whatever it is. */
CUresult
soft_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER();
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    struct thread *thread = thread_get();
    if (!thread)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUstreamCaptureMode before = thread->capture_mode;
    thread->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
