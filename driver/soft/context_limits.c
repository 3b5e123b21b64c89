/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a context that are for its kernels, or for how the host waits: kept and told. */
#include "context.h"

/* The numbers are an H200's, apart from those of what such a device does not have here. */
static const struct limit {
    bool known, fixed;
    size_t start, least, most;
} limits[N_LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = {true, false, 1024, 0, 512 << 10},
    [CU_LIMIT_PRINTF_FIFO_SIZE] = {true, false, 8650752, 0, SIZE_MAX},
    [CU_LIMIT_MALLOC_HEAP_SIZE] = {true, false, 8 << 20, 4 << 20, SIZE_MAX},
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = {true, false, 2048, 0, SIZE_MAX},
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = {true, false, 64, 0, 128},
    [CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = {true, false, 0, 0, 0},
    [CU_LIMIT_SHMEM_SIZE] = {true, true, 49152, 0, 0},
    [CU_LIMIT_CIG_ENABLED] = {true, true, 0, 0, 0},
};

void
context_limits_init(struct context *context)
{
    for (int i = 0; i < N_LIMITS; i++)
        context->limits[i] = limits[i].start;
    context->cache = CU_FUNC_CACHE_PREFER_NONE;
}

static CUresult
check_limit(CUlimit limit)
{
    if ((unsigned int)limit >= N_LIMITS)
        return CUDA_ERROR_INVALID_VALUE;
    return limits[limit].known ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

CUresult
soft_cuCtxGetLimit(size_t *value, CUlimit limit)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_limit(limit));
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult
soft_cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    RETURN_IF(check_limit(limit));
    if (limits[limit].fixed)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (value > limits[limit].most)
        return CUDA_ERROR_INVALID_VALUE;
    context->limits[limit] = value < limits[limit].least ? limits[limit].least : value;
    return CUDA_SUCCESS;
}

CUresult
soft_cuCtxGetCacheConfig(CUfunc_cache *cache)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    if (!cache)
        return CUDA_ERROR_INVALID_VALUE;
    *cache = context->cache;
    return CUDA_SUCCESS;
}

CUresult
soft_cuCtxSetCacheConfig(CUfunc_cache cache)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    if ((unsigned int)cache > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    context->cache = cache;
    return CUDA_SUCCESS;
}

/* There is no such cache; nothing in it persists. */
CUresult
soft_cuCtxResetPersistingL2Cache(void)
{
    struct context *context;
    return context_current(&context);
}

CUresult
soft_cuCtxSetFlags(unsigned int flags)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    unsigned int way = flags & CU_CTX_SCHED_MASK;
    if ((flags & ~(unsigned int)CU_CTX_FLAGS_MASK) || (way & (way - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}
