/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints, as far as a program can tell whether the real driver could restore it: the calling
 * process alone, whose memory stays where it is. A restore is refused, as there, while the process
 * has memory of another one. Calls of other threads do not wait while the process is locked.
 */
#include "memory.h"
#include "range.h"

static _Atomic int state = CU_PROCESS_STATE_RUNNING;

/* From one state to another. */
static CUresult
step(int pid, int from, int to)
{
    RETURN_IF(soft_enter());
    if (pid != getpid())
        return CUDA_ERROR_NOT_SUPPORTED;
    return atomic_compare_exchange_strong(&state, &from, to) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_ILLEGAL_STATE;
}

/* Reservations, fds and registered memory are restored; memory of others is not. */
static CUresult
check_own(void)
{
    struct object *object;
    struct range *range;
    bool imported = false;

    for (uint32_t i = 0; !imported && (object = object_next(OBJECT_MEMORY, &i));) {
        imported = ((struct memory *)(void *)object)->imported;
        object_unref(object);
    }
    LOCKED(&soft->ranges.lock);
    for (uintptr_t at = 0; (range = range_find_from(&soft->ranges.usable, at));
         at = range->start + range->size) {
        imported |= range->kind == RANGE_MAPPING && range->memory->imported;
        if (range->kind == RANGE_OPENED)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return imported ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult
soft_cuCheckpointProcessGetState(int pid, CUprocessState *ret)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(soft_enter());
    if (pid != getpid())
        return CUDA_ERROR_NOT_SUPPORTED;
    *ret = (CUprocessState)atomic_load(&state);
    return CUDA_SUCCESS;
}

CUresult
soft_cuCheckpointProcessLock(int pid, void *args UNUSED)
{
    return step(pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
}

CUresult
soft_cuCheckpointProcessCheckpoint(int pid, void *args UNUSED)
{
    return step(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}

/* What the real driver cannot restore is lost: here it goes on, so that a test can say why. */
CUresult
soft_cuCheckpointProcessRestore(int pid, void *args UNUSED)
{
    RETURN_IF(step(pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED));
    return check_own();
}

CUresult
soft_cuCheckpointProcessUnlock(int pid, void *args UNUSED)
{
    return step(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}
