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
