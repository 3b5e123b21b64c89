/* SPDX-License-Identifier: Apache-2.0 */
/* Who reaches what, and copies between contexts. */
#include "peer.h"

#include "copy.h"
#include "pool.h"
#include "stream.h"

int
peer_access(const struct device *device, const struct range *range)
{
    switch (range->kind) {
    case RANGE_MAPPING: return range->device_access[device->ordinal];
    case RANGE_POOL: return range->pool->access[device->ordinal];
    default: return range->access;
    }
}

bool
peer_reaches(const struct context *context, const struct range *range)
{
    CUdevice own = context->device->ordinal;
    if (range->kind == RANGE_DEVICE && range->ordinal != own)
        return context->peers & UINT32_C(1) << range->ordinal;
    return peer_access(context->device, range) != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

void
peer_use(struct context *context, uintptr_t at)
{
    LOCKED(&soft->ranges.lock);
    const struct range *range = range_find(&soft->ranges.usable, at);
    if (range && range->context && range->context != context->object.handle)
        context->reaches_out = true;
}

CUresult
peer_check(const struct context *context, uintptr_t start, size_t size)
{
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, start);
    for (; range && range->start < start + size;
         range = RB_NEXT(range_tree, &soft->ranges.usable, range))
        if (!peer_reaches(context, range))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult
soft_cuDeviceCanAccessPeer(int *value, CUdevice device, CUdevice peer)
{
    RETURN_IF(device_arg(device, value));
    RETURN_IF(device_arg(peer, value));
    *value = device != peer;
    return CUDA_SUCCESS;
}

/* There are no kernels to use atomic operations, and no arrays. */
CUresult
soft_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from,
                             CUdevice to)
{
    RETURN_IF(device_arg(from, value));
    RETURN_IF(device_arg(to, value));
    if (attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute > CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    if (from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult
peer_bit(CUcontext handle, struct context **ret_context, uint32_t *ret_bit)
{
    RETURN_IF(context_current(ret_context));
    _cleanup_(context_unrefp) struct context *peer = handle ? context_get(handle) : NULL;
    if (!peer)
        return CUDA_ERROR_INVALID_CONTEXT;
    *ret_bit = UINT32_C(1) << peer->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult
soft_cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
    struct context *context;
    uint32_t bit;
    RETURN_IF(peer_bit(handle, &context, &bit));
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bit == UINT32_C(1) << context->device->ordinal)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t before = atomic_fetch_or(&context->peers, bit);
    return before & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult
soft_cuCtxDisablePeerAccess(CUcontext handle)
{
    struct context *context;
    uint32_t bit;
    RETURN_IF(peer_bit(handle, &context, &bit));
    uint32_t before = atomic_fetch_and(&context->peers, ~bit);
    return before & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* Copies. */

/* Whose memory it is does not matter: a null handle is the current context. */
static CUresult
peer_context(CUcontext handle, struct context **ret)
{
    _cleanup_(context_unrefp) struct context *context = context_get(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    RETURN_IF(context_check(context));
    *ret = TAKE_PTR(context);
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_handle, CUdeviceptr from,
                       CUcontext from_handle, size_t size, CUstream stream)
{
    ENTER();
    _cleanup_(context_unrefp) struct context *to_context = NULL;
    RETURN_IF(peer_context(to_handle, &to_context));
    _cleanup_(context_unrefp) struct context *from_context = NULL;
    RETURN_IF(peer_context(from_handle, &from_context));
    return copy_bytes((uintptr_t)to, (uintptr_t)from, size,
                      COPY_ASYNC | COPY_TO_KNOWN | COPY_FROM_KNOWN, stream);
}

/* In line with all work of both contexts, on the current one's default stream. */
CUresult
soft_cuMemcpyPeer(CUdeviceptr to, CUcontext to_handle, CUdeviceptr from, CUcontext from_handle,
                  size_t size)
{
    ENTER();
    _cleanup_(context_unrefp) struct context *to_context = NULL;
    RETURN_IF(peer_context(to_handle, &to_context));
    _cleanup_(context_unrefp) struct context *from_context = NULL;
    RETURN_IF(peer_context(from_handle, &from_context));
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    RETURN_IF(stream_get(NULL, &stream));
    RETURN_IF(stream_follow(stream, to_context));
    RETURN_IF(stream_follow(stream, from_context));
    RETURN_IF(copy_bytes((uintptr_t)to, (uintptr_t)from, size, COPY_TO_KNOWN | COPY_FROM_KNOWN,
                         NULL));
    if (context_follow(to_context, stream, stream->submitted) < 0 ||
        context_follow(from_context, stream, stream->submitted) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}
