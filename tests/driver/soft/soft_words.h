/* SPDX-License-Identifier: Apache-2.0 */
/* Words that streams write and wait for, for the tests of stream memory operations. */
#pragma once

#include <string.h>

#include "soft_test.h"

#define PAGE ((size_t)4096)
#define GEQ  CU_STREAM_WAIT_VALUE_GEQ
#define EQ   CU_STREAM_WAIT_VALUE_EQ
#define AND  CU_STREAM_WAIT_VALUE_AND
#define NOR  CU_STREAM_WAIT_VALUE_NOR

/* A page of words that the CPU and streams can reach. */
static inline uint64_t *
pinned(void)
{
    void *at;
    MUST(cuMemHostAlloc(&at, PAGE, 0));
    memset(at, 0, PAGE);
    return at;
}

static inline CUdeviceptr
address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

static inline CUstream
stream_new(void)
{
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline void
store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint64_t
load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Parts of a batch. */

static inline CUstreamBatchMemOpParams
op_write(uint64_t *at, uint64_t value)
{
    CUstreamBatchMemOpParams params = {
        .writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, address(at), {.value64 = value}, 0, 0}};
    return params;
}

static inline CUstreamBatchMemOpParams
op_wait(uint64_t *at, uint64_t value)
{
    CUstreamBatchMemOpParams params = {
        .waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64, address(at), {.value64 = value}, EQ, 0}};
    return params;
}

#define N_ROUND 50

/* Some round trips through another stream, in which those who wait wrongly could go on. */
static inline void
let_others_run(CUstream stream, uint64_t *word)
{
    for (uint64_t i = 1; i <= N_ROUND; i++) {
        MUST(cuStreamWriteValue64_v2(stream, address(word), i, 0));
        MUST(cuStreamWaitValue64_v2(stream, address(word), i, EQ));
        MUST(cuStreamSynchronize(stream));
    }
}
