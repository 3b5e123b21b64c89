/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of cuMemAlloc in other processes: handles of own allocations, and what was opened
 * by other processes' handles.
 *
 * An opened range belongs to the context that opened it. It counts how often it was opened, ends
 * with as many closes or with what is in its context, and keeps the pages, whatever becomes of the
 * process that allocated them.
 */
#include "alloc.h"
#include "context.h"
#include "memory.h"

#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == sizeof(struct share_ticket), "a handle is a ticket");

CUresult
soft_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    CURRENT(context);
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED));
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!range || range->kind != RANGE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct share_ticket about = {.kind = SHARE_MEMORY, .size = range->size};
    if (!range->offer && share_offer_new(&about, range->memory->fd, &range->offer) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(handle, &range->offer->ticket, sizeof(*handle));
    return CUDA_SUCCESS;
}

/* Counts one more opening of the range that the context has opened by this ticket, without asking
 * the other process; *ret is 0 where there is none. Memory of another process can be open in one
 * context of a device at a time: INVALID_HANDLE in any other. Needs the map's lock. */
static CUresult
opened_again(const struct share_ticket *ticket, const struct context *context, CUdeviceptr *ret)
{
    struct range *range;
    *ret = 0;
    RB_FOREACH(range, range_tree, &soft->ranges.usable) {
        if (range->kind != RANGE_OPENED || range->ordinal != context->device->ordinal ||
            range->opened.socket != ticket->socket)
            continue;
        if (range->context != context->object.handle)
            return CUDA_ERROR_INVALID_HANDLE;
        if (memcmp(range->opened.id, ticket->id, sizeof(ticket->id)) != 0)
            continue;
        range->n_opens++;
        *ret = range->start;
    }
    return CUDA_SUCCESS;
}

/* A reference on the memory that a ticket is for. */
static CUresult
memory_take(const struct share_ticket *ticket, struct memory **ret)
{
    _cleanup_fd_ int fd = -1;
    switch (share_take(ticket, SHARE_MEMORY, &fd)) {
    case 0: break;
    case SHARE_OWN: return CUDA_ERROR_INVALID_CONTEXT;
    case -EINVAL:
    case -ENOENT: return CUDA_ERROR_INVALID_VALUE;
    case -ESRCH: return CUDA_ERROR_INVALID_HANDLE;
    case -EMFILE:
    case -ENFILE: return CUDA_ERROR_OPERATING_SYSTEM;
    default: return CUDA_ERROR_MAP_FAILED;
    }
    struct memory *memory;
    RETURN_IF(memory_import(fd, &memory));
    if (ticket->size == 0 || ticket->size > memory->size) {
        memory_unref(memory);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *ret = memory;
    return CUDA_SUCCESS;
}

static CUresult
opened_make(const struct share_ticket *ticket, const struct context *context, CUdeviceptr *ret)
{
    _cleanup_(memory_unrefp) struct memory *memory = NULL;
    struct range *range;
    RETURN_IF(memory_take(ticket, &memory));
    LOCKED(&soft->ranges.lock);
    RETURN_IF(opened_again(ticket, context, ret)); /* another thread may have been faster */
    if (*ret)
        return CUDA_SUCCESS;
    RETURN_IF(alloc_map(context, RANGE_OPENED, ticket->size, TAKE_PTR(memory), &range));
    range->opened.socket = ticket->socket;
    memcpy(range->opened.id, ticket->id, sizeof(range->opened.id));
    range->n_opens = 1;
    *ret = range->start;
    return CUDA_SUCCESS;
}

CUresult
soft_cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    struct share_ticket ticket;
    CUdeviceptr at;
    if (!address || !(flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        return CUDA_ERROR_INVALID_VALUE;
    CURRENT(context);
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED));
    memcpy(&ticket, &handle, sizeof(ticket));
    if (!share_ticket_is(&ticket, SHARE_MEMORY))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&soft->ranges.lock);
    CUresult result = opened_again(&ticket, context, &at);
    pthread_mutex_unlock(&soft->ranges.lock);
    RETURN_IF(result);
    if (!at)
        RETURN_IF(opened_make(&ticket, context, &at));
    *address = at;
    return CUDA_SUCCESS;
}

CUresult
soft_cuIpcCloseMemHandle(CUdeviceptr address)
{
    CURRENT(context);
    return alloc_free(1U << RANGE_OPENED, (uintptr_t)address);
}
