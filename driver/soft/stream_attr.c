/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes of streams. They are kept and told: how kernels' memory is cached and ordered, and how
 * the host waits, makes no difference here.
 */
#include "stream.h"

static CUresult
check_value(CUstreamAttrID id, const CUstreamAttrValue *value)
{
    bool good;
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        good = value->accessPolicyWindow.hitRatio >= 0 &&
               value->accessPolicyWindow.hitRatio <= 1;
        break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        good = value->syncPolicy >= CU_SYNC_POLICY_AUTO &&
               value->syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: good = stream_priority_is(value->priority); break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: good = true; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        good = value->memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT ||
               value->memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
        break;
    default: good = false;
    }
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Of the value only the attribute's own bytes are written. */
CUresult
soft_cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue *value)
{
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    RETURN_IF(stream_get(handle, &stream));
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&stream->lock);
    const struct stream_attributes *from = &stream->attributes;
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        value->accessPolicyWindow = from->window;
        break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        value->syncPolicy = from->sync_policy;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: value->priority = stream->priority; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        value->memSyncDomainMap = from->domains;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: value->memSyncDomain = from->domain; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult
soft_cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue *value)
{
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    RETURN_IF(stream_get(handle, &stream));
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_value(id, value));
    LOCKED(&stream->lock);
    struct stream_attributes *to = &stream->attributes;
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        to->window = value->accessPolicyWindow;
        break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: to->sync_policy = value->syncPolicy; break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: stream->priority = value->priority; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: to->domains = value->memSyncDomainMap; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: to->domain = value->memSyncDomain; break;
    }
    return CUDA_SUCCESS;
}

CUresult
soft_cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle)
{
    _cleanup_(stream_unrefp) struct stream *to = NULL;
    RETURN_IF(stream_get(to_handle, &to));
    _cleanup_(stream_unrefp) struct stream *from = NULL;
    RETURN_IF(stream_get(from_handle, &from));
    if (to->context != from->context)
        return CUDA_ERROR_INVALID_VALUE;

    struct stream_attributes attributes;
    {
        LOCKED(&from->lock);
        attributes = from->attributes;
    }

    LOCKED(&to->lock);
    to->attributes = attributes;
    to->priority = from->priority;
    return CUDA_SUCCESS;
}
