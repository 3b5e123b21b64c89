/* SPDX-License-Identifier: Apache-2.0 */
/* Fences between streams of different processes. */
#include <string.h>

#include "stress_soft_kinds.h"

/* As libcaid's timelines: a word that one stream writes and others wait for. No wait is for more
 * than what was submitted, so what a dead process did not write can be written for it. */

#define RELEASED   0x40000000u
#define SECOND     64 /* where a batch has its other word */
#define PAGE_BYTES 4096

static size_t
word_size(const struct fence *fence)
{
    return fence->kind->word == &memory_vmm ? GRAN : PAGE_BYTES;
}

static void
word_make(struct fence *fence, struct offer *ret)
{
    fence->word.size = word_size(fence);
    fence->kind->word->make(&fence->word, ret);
}

static CUresult
word_open(struct fence *fence, const struct offer *offer)
{
    fence->word.size = word_size(fence);
    fence->word.read_only = true;
    return fence->kind->word->open(&fence->word, offer);
}

static void
word_drop(struct fence *fence, bool made)
{
    fence->kind->word->drop(&fence->word, made);
}

static void
word_signal_32(struct fence *fence, unsigned int value, CUstream stream)
{
    MUST(cuStreamWriteValue32_v2(stream, fence->word.at, value, 0));
}

static void
word_wait_32(struct fence *fence, unsigned int value, CUstream stream)
{
    MUST(cuStreamWaitValue32_v2(stream, fence->word.at, value, CU_STREAM_WAIT_VALUE_GEQ));
}

/* The device's memory is written by a stream. */
static void
word_release_32(struct fence *fence)
{
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    word_signal_32(fence, RELEASED, stream);
    MUST(cuStreamSynchronize(stream)); /* the memory may be given back right after */
    MUST(cuStreamDestroy_v2(stream));
}

static void
word_signal_64(struct fence *fence, unsigned int value, CUstream stream)
{
    MUST(cuStreamWriteValue64_v2(stream, fence->word.at, value, 0));
}

static void
word_wait_64(struct fence *fence, unsigned int value, CUstream stream)
{
    MUST(cuStreamWaitValue64_v2(stream, fence->word.at, value, CU_STREAM_WAIT_VALUE_GEQ));
}

/* A page of the host by its CPU; the second word is for batches. */
static void
word_release_64(struct fence *fence)
{
    uint64_t *first = fence->word.host;
    uint32_t *second = (uint32_t *)((char *)fence->word.host + SECOND);
    __atomic_store_n(first, RELEASED, __ATOMIC_RELEASE);
    __atomic_store_n(second, RELEASED, __ATOMIC_RELEASE);
}

static void
batch_signal(struct fence *fence, unsigned int value, CUstream stream)
{
    CUdeviceptr at = fence->word.at;
    CUstreamBatchMemOpParams ops[] = {
        {.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at + SECOND, {.value = value}, 0, 0}},
        {.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, at, {.value64 = value}, 0, 0}},
    };
    MUST(cuStreamBatchMemOp_v2(stream, ARRAY_SIZE(ops), ops, 0));
}

static void
batch_wait(struct fence *fence, unsigned int value, CUstream stream)
{
    CUdeviceptr at = fence->word.at;
    CUstreamBatchMemOpParams ops[] = {
        {.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64,
                       at,
                       {.value64 = value},
                       CU_STREAM_WAIT_VALUE_GEQ,
                       0}},
        {.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32,
                       at + SECOND,
                       {.value = value},
                       CU_STREAM_WAIT_VALUE_GEQ,
                       0}},
    };
    MUST(cuStreamBatchMemOp_v2(stream, ARRAY_SIZE(ops), ops, 0));
}

/* Inter-process events: nobody else can pass them in place of a dead process. */

static void
event_make(struct fence *fence, struct offer *ret)
{
    CUipcEventHandle handle;
    MUST(cuEventCreate(&fence->event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuIpcGetEventHandle(&handle, fence->event));
    memcpy(ret->handle, &handle, sizeof(handle));
}

static CUresult
event_open(struct fence *fence, const struct offer *offer)
{
    CUipcEventHandle handle;
    memcpy(&handle, offer->handle, sizeof(handle));
    return cu.cuIpcOpenEventHandle(&fence->event, handle);
}

static void
event_signal(struct fence *fence, unsigned int value UNUSED, CUstream stream)
{
    MUST(cuEventRecord(fence->event, stream));
}

static void
event_wait(struct fence *fence, unsigned int value UNUSED, CUstream stream)
{
    MUST(cuStreamWaitEvent(stream, fence->event, 0));
}

static bool
event_is_stuck(struct fence *fence)
{
    return cu.cuEventQuery(fence->event) == CUDA_ERROR_NOT_READY;
}

static void
event_drop(struct fence *fence, bool made UNUSED)
{
    MUST(cuEventDestroy_v2(fence->event));
}

#define WORD(memory) .word = memory, .make = word_make, .open = word_open, .drop = word_drop

const struct fence_kind fence_kinds[] = {
    {"host", .host = true},
    {"word on the device", WORD(&memory_vmm), .signal = word_signal_32, .wait = word_wait_32,
     .release = word_release_32},
    {"word of the host", WORD(&memory_pinned), .signal = word_signal_64, .wait = word_wait_64,
     .release = word_release_64},
    {"batch", WORD(&memory_pinned), .signal = batch_signal, .wait = batch_wait,
     .release = word_release_64},
    {"event", .make = event_make, .open = event_open, .signal = event_signal,
     .wait = event_wait, .is_stuck = event_is_stuck, .drop = event_drop, .dies = true},
};
const unsigned int n_fence_kinds = ARRAY_SIZE(fence_kinds);
