/* SPDX-License-Identifier: Apache-2.0 */
/* Who reaches what. */
#include "peer.h"

#include "pool.h"

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

CUresult
soft_cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
    CURRENT(context);
    _cleanup_(context_unrefp) struct context *peer = handle ? context_get(handle) : NULL;
    if (!peer)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer->device == context->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = UINT32_C(1) << peer->device->ordinal;
    uint32_t before = atomic_fetch_or(&context->peers, bit);
    return before & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}
