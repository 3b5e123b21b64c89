/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The per-thread forms of the entry points that name no stream, or may name none: callers that
 * were built for per-thread default streams are bound to these. Those of cuMemset are beside
 * their plain forms.
 */
#include "copy.h"
#include "soft.h"

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* Without a stream argument. */

CUresult
cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_bytes((uintptr_t)to, (uintptr_t)from, size, 0, CU_STREAM_PER_THREAD);
}

CUresult
cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t size)
{
    return copy_bytes((uintptr_t)to, (uintptr_t)from, size, COPY_TO_KNOWN,
                      CU_STREAM_PER_THREAD);
}

CUresult
cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t size)
{
    return copy_bytes((uintptr_t)to, (uintptr_t)from, size, COPY_FROM_KNOWN,
                      CU_STREAM_PER_THREAD);
}

CUresult
cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_bytes((uintptr_t)to, (uintptr_t)from, size, COPY_TO_KNOWN | COPY_FROM_KNOWN,
                      CU_STREAM_PER_THREAD);
}

CUresult
cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy)
{
    return copy_rect(copy, 0, CU_STREAM_PER_THREAD);
}

CUresult
cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy)
{
    return cuMemcpy2D_v2_ptds(copy);
}

/* With one. */

#define FORWARD(symbol, params, args) \
    CUresult symbol##_ptsz params     \
    {                                 \
        return symbol args;           \
    }

FORWARD(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
        (to, from, size, OWN(stream)))
FORWARD(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
        (to, from, size, OWN(stream)))
FORWARD(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream),
        (to, from, size, OWN(stream)))
FORWARD(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
        (to, from, size, OWN(stream)))
FORWARD(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, OWN(stream)))
FORWARD(cuStreamQuery, (CUstream stream), (OWN(stream)))
FORWARD(cuStreamSynchronize, (CUstream stream), (OWN(stream)))
FORWARD(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
        (OWN(stream), event, flags))
FORWARD(cuStreamAddCallback,
        (CUstream stream, CUstreamCallback fn, void *data, unsigned int flags),
        (OWN(stream), fn, data, flags))
FORWARD(cuLaunchHostFunc, (CUstream stream, CUhostFn fn, void *data), (OWN(stream), fn, data))
FORWARD(cuStreamGetFlags, (CUstream stream, unsigned int *flags), (OWN(stream), flags))
FORWARD(cuStreamGetPriority, (CUstream stream, int *priority), (OWN(stream), priority))
FORWARD(cuStreamGetId, (CUstream stream, unsigned long long *id), (OWN(stream), id))
FORWARD(cuStreamGetCtx, (CUstream stream, CUcontext *context), (OWN(stream), context))
FORWARD(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
        (OWN(stream), status))
FORWARD(cuEventRecord, (CUevent event, CUstream stream), (event, OWN(stream)))
FORWARD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
        (event, OWN(stream), flags))
