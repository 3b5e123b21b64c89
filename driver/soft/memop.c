/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: a stream writes a word or waits for one, alone or in a batch, which is
 * one operation of its stream.
 *
 * Writes are release stores and waits acquire loads, of whole words, so who sees a word, a CPU of
 * another process too, sees what the stream did before; a barrier has nothing left to do. A wait
 * has to look again and again: the word may be stored by a CPU that tells nobody. Between two looks
 * the worker uses no range and holds no lock, so that memory can be unmapped under a wait, which
 * then faults as on hardware; what waits for the context's work, such as cuMemFree, waits for the
 * wait.
 */
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "peer.h"
#include "stream.h"

#define MAX_BATCH    255
#define N_SPINS      64
#define N_YIELDS     16
#define MIN_PAUSE_NS UINT64_C(1000)
#define MAX_PAUSE_NS UINT64_C(100000)

/* Only the address of a word is looked up: an allocation may end inside the word, but its pages do
 * not. */
#define ADDRESS ((size_t)1)

#define CONDITION 3U /* the bits of a wait's flags that say which */

/* One word to wait for or to write; of width 0: nothing. */
struct word {
    bool wait;
    bool foreign;       /* the pages are the program's, which may unmap them at any time */
    unsigned int width; /* bytes */
    unsigned int flags;
    uintptr_t at;
    uint64_t value;
};

struct memop {
    struct op op;
    const struct device *device;
    size_t n_words;
    struct word words[];
};

/* GEQ is cyclic: the difference is not negative, in the word's own width. */
static bool
word_meets(const struct word *word, uint64_t now)
{
    uint64_t all = word->width == 4 ? UINT32_MAX : UINT64_MAX, sign = all / 2 + 1;
    switch (word->flags & CONDITION) {
    case CU_STREAM_WAIT_VALUE_GEQ: return !((now - word->value) & sign);
    case CU_STREAM_WAIT_VALUE_EQ: return now == word->value;
    case CU_STREAM_WAIT_VALUE_AND: return now & word->value;
    default: return ~(now | word->value) & all; /* CU_STREAM_WAIT_VALUE_NOR */
    }
}

/* Reads the word through the kernel, which reports missing pages where a load would crash. Where
 * that is not permitted (EPERM, ENOSYS), the condition counts as met, and the caller loads the
 * word. */
static int
word_peek(const struct word *word, bool *ret_met)
{
    uint64_t now = 0;
    struct iovec here = {&now, word->width}, there = {(void *)word->at, word->width};
    ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (n < 0 && errno == EFAULT)
        return -EFAULT;
    *ret_met = n < 0 || word_meets(word, now);
    return 0;
}

/* Whether the word meets its condition, by an acquire load. A peek is no such load, and enough
 * while the condition is not met. */
static CUresult
word_look(const struct word *word, bool *ret_met)
{
    if (word->foreign) {
        if (word_peek(word, ret_met) < 0)
            return CUDA_ERROR_LAUNCH_FAILED;
        if (!*ret_met)
            return CUDA_SUCCESS;
    }
    *ret_met =
        word_meets(word, word->width == 4
                             ? __atomic_load_n((const uint32_t *)word->at, __ATOMIC_ACQUIRE)
                             : __atomic_load_n((const uint64_t *)word->at, __ATOMIC_ACQUIRE));
    return CUDA_SUCCESS;
}

static CUresult
word_look_safely(const struct word *word, bool *ret_met)
{
    if (range_enter(word->at, ADDRESS, false) != CUDA_SUCCESS)
        return CUDA_ERROR_LAUNCH_FAILED;
    CUresult result = word_look(word, ret_met);
    range_leave(word->at, ADDRESS);
    return result;
}

static CUresult
word_write(const struct word *word)
{
    if (range_enter(word->at, ADDRESS, true) != CUDA_SUCCESS)
        return CUDA_ERROR_LAUNCH_FAILED;
    if (word->width == 4)
        __atomic_store_n((uint32_t *)word->at, (uint32_t)word->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)word->at, word->value, __ATOMIC_RELEASE);
    range_leave(word->at, ADDRESS);
    return CUDA_SUCCESS;
}

/* Pauses grow: the first suit a wait for a few instructions of another thread, the last a long
 * wait, which should not use up a CPU. */
static void
pause_before(unsigned int look)
{
    if (look < N_SPINS)
        return;
    unsigned int n = look - N_SPINS;
    if (n < N_YIELDS) {
        sched_yield();
        return;
    }
    n -= N_YIELDS;
    clock_pause_ns(n < 7 ? MIN_PAUSE_NS << n : MAX_PAUSE_NS);
}

/* A fault of the device ends the wait, for whoever asks is told of the fault. */
static CUresult
word_wait(const struct word *word, const struct device *device)
{
    bool met;
    RETURN_IF(word_look_safely(word, &met));
    for (unsigned int look = 1; !met && !device->fault; look += look != -1U) {
        pause_before(look);
        RETURN_IF(word_look_safely(word, &met));
    }
    return CUDA_SUCCESS;
}

static CUresult
memop_run(struct op *op, CUresult status)
{
    struct memop *memop = container_of(op, struct memop, op);
    if (status != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    for (size_t i = 0; i < memop->n_words && !memop->device->fault; i++) {
        const struct word *word = &memop->words[i];
        if (word->width > 0)
            RETURN_IF(word->wait ? word_wait(word, memop->device) : word_write(word));
    }
    return CUDA_SUCCESS;
}

/* What a caller asks for, checked. */

/* A write to read-only memory is taken, and faults when it runs. */
static CUresult
word_check(struct word *word)
{
    unsigned int known = word->wait ? CONDITION | CU_STREAM_WAIT_VALUE_FLUSH : 0;
    enum range_kind kind;
    if ((word->flags & ~known) || word->at % word->width != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (word->flags & CU_STREAM_WAIT_VALUE_FLUSH) /* the device attribute says so */
        return CUDA_ERROR_NOT_SUPPORTED;
    RETURN_IF(range_check(word->at, ADDRESS, false, &kind));
    word->foreign = kind == RANGE_REGISTERED;
    return range_kind_has(kind, TRAIT_MEMOPS) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What waits and what writes has the same layout. */
static CUresult
word_from(const CUstreamBatchMemOpParams *params, struct word *ret)
{
    const struct CUstreamMemOpWaitValueParams_st *from = &params->waitValue;
    CUstreamBatchMemOpType type = params->operation;
    *ret = (struct word){.wait = type == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
                                 type == CU_STREAM_MEM_OP_WAIT_VALUE_64};
    switch (type) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        ret->width = 4;
        ret->value = from->value;
        break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
        ret->width = 8;
        ret->value = from->value64;
        break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return CUDA_ERROR_NOT_SUPPORTED;
    case CU_STREAM_MEM_OP_BARRIER:
        return params->memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    ret->flags = from->flags;
    ret->at = (uintptr_t)from->address;
    return word_check(ret);
}

/* All of the batch or nothing. */
CUresult
soft_cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
                           CUstreamBatchMemOpParams *params, unsigned int flags)
{
    HOLD(stream, stream, handle);
    if (count == 0)
        return CUDA_SUCCESS;
    if (count > MAX_BATCH || !params || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    _cleanup_free_ struct memop *memop =
        malloc(sizeof(*memop) + count * sizeof(memop->words[0]));
    if (!memop)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_init(&memop->op, memop_run, NULL);
    memop->device = stream->context->device;
    memop->n_words = count;
    for (unsigned int i = 0; i < count; i++) {
        struct word *word = &memop->words[i];
        RETURN_IF(word_from(&params[i], word));
        RETURN_IF(peer_check(stream->context, word->at, ADDRESS));
    }
    return stream_submit(stream, &TAKE_PTR(memop)->op, NULL);
}

#define WORD(symbol, type, member, operation)                                \
    CUresult soft_##symbol(CUstream stream, CUdeviceptr address, type value, \
                           unsigned int flags)                               \
    {                                                                        \
        CUstreamBatchMemOpParams params = {                                  \
            .waitValue = {operation, address, {.member = value}, flags, 0}}; \
        return soft_cuStreamBatchMemOp_v2(stream, 1, &params, 0);            \
    }

WORD(cuStreamWaitValue32_v2, cuuint32_t, value, CU_STREAM_MEM_OP_WAIT_VALUE_32)
WORD(cuStreamWaitValue64_v2, cuuint64_t, value64, CU_STREAM_MEM_OP_WAIT_VALUE_64)
WORD(cuStreamWriteValue32_v2, cuuint32_t, value, CU_STREAM_MEM_OP_WRITE_VALUE_32)
WORD(cuStreamWriteValue64_v2, cuuint64_t, value64, CU_STREAM_MEM_OP_WRITE_VALUE_64)
