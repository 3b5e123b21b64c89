/* SPDX-License-Identifier: Apache-2.0 */
/* The state, its setup, and the calls that belong to no object. */
#include "soft.h"

#include <string.h>

#include "context.h"
#include "fork.h"
#include "visible.h"

/* One word for the process, whichever copies of this library it has loaded: the dynamic linker
 * keeps a symbol of this type unique. It points to the state of the first copy. */
__asm__(".pushsection .data\n"
        ".balign 8\n"
        ".type caid_softcuda_state, %gnu_unique_object\n"
        ".size caid_softcuda_state, 8\n"
        "caid_softcuda_state: .quad 0\n"
        ".popsection\n");
SOFT_EXPORT extern struct soft *_Atomic caid_softcuda_state;

static struct soft own_state = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .memory_lock = PTHREAD_MUTEX_INITIALIZER,
    .objects.lock = PTHREAD_MUTEX_INITIALIZER,
    .ranges.lock = PTHREAD_MUTEX_INITIALIZER,
    .pools.lock = PTHREAD_MUTEX_INITIALIZER,
    .memories.lock = PTHREAD_MUTEX_INITIALIZER,
    .ranges.idle = PTHREAD_COND_INITIALIZER,
    .share.lock = PTHREAD_MUTEX_INITIALIZER,
    .ipc_events.lock = PTHREAD_MUTEX_INITIALIZER,
    .watch.lock = PTHREAD_MUTEX_INITIALIZER,
    .watch.faults.lock = PTHREAD_MUTEX_INITIALIZER,
    .version = CAID_VERSION,
};

struct soft *soft;

__attribute__((constructor)) static void
find_state(void)
{
    struct soft *none = NULL;
    atomic_compare_exchange_strong(&caid_softcuda_state, &none, &own_state);
    soft = caid_softcuda_state;
    if (strcmp(soft->version, CAID_VERSION) != 0) { /* another layout: not to be touched */
        soft = &own_state;
        soft->mismatched = true;
    }
}

const char *
caid_softcuda_version(void)
{
    return CAID_VERSION;
}

/* Needs the lock. */
static CUresult
setup_locked(void)
{
    if (soft->ready)
        return CUDA_SUCCESS;
    if (settings_read(&soft->settings) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (pthread_key_create(&soft->thread_key, thread_free) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (fork_watch() < 0) {
        pthread_key_delete(soft->thread_key);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (int i = 0; i < soft->settings.n_devices; i++)
        device_init(&soft->devices[i], &soft->settings, i);
    soft->visible_result = visible_read();
    soft->ready = true;
    return CUDA_SUCCESS;
}

CUresult
soft_setup(void)
{
    if (soft->mismatched)
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    if (watch_setup() < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (soft->ready) /* without the lock: it may be one that was held when this child forked */
        return CUDA_SUCCESS;
    LOCKED(&soft->lock);
    return setup_locked();
}

CUresult
soft_enter(void)
{
    if (soft->owner != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    struct thread *thread = pthread_getspecific(soft->thread_key);
    return thread && thread->in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult
soft_cuInit(unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(soft_setup());
    /* A forked child has none of its parent's workers, and no way to get them. */
    if (soft->owner != 0)
        return soft->owner == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    RETURN_IF(soft->visible_result);
    soft->owner = getpid();
    return CUDA_SUCCESS;
}

CUresult
soft_cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SOFT_VERSION;
    return CUDA_SUCCESS;
}

/* As with a real driver that no profiler looks at. */
CUresult
soft_cuProfilerStart(void)
{
    struct context *context;
    return context_current(&context);
}

CUresult
soft_cuProfilerStop(void)
{
    return soft_cuProfilerStart();
}
