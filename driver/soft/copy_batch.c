/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the batch: each of them an asynchronous copy, and none is made unless all can be. */
#include "copy.h"
#include "stream.h"

struct batch {
    const CUdeviceptr *to, *from;
    const size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *firsts; /* attributes[i] is for the copies from firsts[i] on */
    size_t n_attributes;
};

static CUresult
check_attributes(const struct batch *batch)
{
    const size_t *firsts = batch->firsts;
    if (!batch->attributes || !firsts || batch->n_attributes == 0 ||
        batch->n_attributes > batch->count || firsts[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch->n_attributes; i++) {
        const CUmemcpyAttributes *attributes = &batch->attributes[i];
        if (attributes->srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            attributes->srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
            (attributes->flags & ~(unsigned int)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE))
            return CUDA_ERROR_INVALID_VALUE;
        if (firsts[i] >= batch->count || (i > 0 && firsts[i] <= firsts[i - 1]))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Checks every copy; tells which one is wrong. */
static CUresult
check_copies(const struct batch *batch, size_t *ret_wrong)
{
    for (size_t i = 0; i < batch->count; i++) {
        enum range_kind kind;
        CUresult result = CUDA_ERROR_INVALID_VALUE;
        if (batch->to[i] && batch->from[i] && batch->sizes[i])
            result = range_check((uintptr_t)batch->to[i], batch->sizes[i], true, &kind);
        if (result == CUDA_SUCCESS)
            result = range_check((uintptr_t)batch->from[i], batch->sizes[i], false, &kind);
        if (result == CUDA_SUCCESS)
            continue;
        *ret_wrong = i;
        return result;
    }
    return CUDA_SUCCESS;
}

static CUresult
batch_copy(const struct batch *batch, size_t *ret_wrong, CUstream stream)
{
    *ret_wrong = SIZE_MAX;
    if (!batch->to || !batch->from || !batch->sizes || batch->count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_attributes(batch));
    if (stream == CU_STREAM_LEGACY || (!stream && !call_own_stream()))
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_copies(batch, ret_wrong));
    size_t at = 0;
    for (size_t i = 0; i < batch->count; i++) {
        if (at + 1 < batch->n_attributes && batch->firsts[at + 1] == i)
            at++;
        bool early = batch->attributes[at].srcAccessOrder ==
                     CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        RETURN_IF(copy_bytes((uintptr_t)batch->to[i], (uintptr_t)batch->from[i],
                             batch->sizes[i], COPY_ASYNC | (early ? COPY_EARLY : 0), stream));
    }
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                        CUmemcpyAttributes *attributes, size_t *firsts, size_t n_attributes,
                        size_t *wrong, CUstream stream)
{
    size_t ignored;
    struct batch batch = {to, from, sizes, count, attributes, firsts, n_attributes};
    return batch_copy(&batch, wrong ? wrong : &ignored, stream);
}

CUresult
soft_cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                           CUmemcpyAttributes *attributes, size_t *firsts, size_t n_attributes,
                           CUstream stream)
{
    return soft_cuMemcpyBatchAsync(to, from, sizes, count, attributes, firsts, n_attributes,
                                   NULL, stream);
}
