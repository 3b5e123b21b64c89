/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a device's primary context, and of what is in it, when it is released for the
 * last time, when it is reset, and when both are done, as by Numba's cuda.close().
 */
#include "facts.h"

#define SUITE facts_context
#define START facts_start_context

static bool
is_active(struct facts_process *process)
{
    int flags_and_active[2];
    uint64_t at = GET(process, allocate_host, sizeof(flags_and_active));
    MUST(process, cuDevicePrimaryCtxGetState, 0, at, at + sizeof(int));
    facts_read(process, at, flags_and_active, sizeof(flags_and_active));
    return flags_and_active[1] == 1;
}

/* The context is current, and refuses work: so it does when it is made current again. */
static void
assert_destroyed(struct facts_process *process, uint64_t context, uint64_t memory)
{
    uint64_t figures = GET(process, allocate_host, 2 * sizeof(size_t));
    cr_assert_not(is_active(process));
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(GET(process, cuCtxGetCurrent), context);
        EXPECT(process, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize);
        EXPECT(process, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc, 2 * MIB);
        EXPECT(process, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemGetInfo, figures,
               figures + sizeof(size_t));
        EXPECT(process, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree, memory);
        if (i == 0)
            MUST(process, cuCtxSetCurrent, context);
        else
            MUST(process, cuCtxPushCurrent, context);
    }
}

/* Whoever retains it has it back under its handle, where it was current, with nothing in it. */
static void
assert_comes_back(struct facts_process *process, uint64_t context, uint64_t memory)
{
    cr_assert_eq(GET(process, cuDevicePrimaryCtxRetain, 0), context);
    cr_assert(is_active(process));
    MUST(process, cuCtxSynchronize);
    cr_assert_neq(TRY(process, cuMemFree, memory), CUDA_SUCCESS);
    uint64_t at = GET(process, cuMemAlloc, 2 * MIB);
    facts_fill(process, at, 2 * MIB, 5);
    facts_assert_filled(process, at, 2 * MIB, 5);
}

FACT_OF_ONE(the_last_release_destroys_it, process)
{
    uint64_t context = GET(process, cuCtxGetCurrent);
    uint64_t memory = GET(process, cuMemAlloc, 2 * MIB);
    MUST(process, cuDevicePrimaryCtxRelease, 0);
    assert_destroyed(process, context, memory);
    EXPECT(process, CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease, 0);
    assert_comes_back(process, context, memory);
}

FACT_OF_ONE(a_reset_destroys_it_and_does_not_release_it, process)
{
    uint64_t context = GET(process, cuCtxGetCurrent);
    uint64_t memory = GET(process, cuMemAlloc, 2 * MIB);
    MUST(process, cuDevicePrimaryCtxReset, 0);
    assert_destroyed(process, context, memory);
    MUST(process, cuDevicePrimaryCtxRelease, 0);
    EXPECT(process, CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease, 0);
    assert_comes_back(process, context, memory);
}

FACT_OF_ONE(a_release_and_a_reset_destroy_it, process)
{
    uint64_t context = GET(process, cuCtxGetCurrent);
    uint64_t memory = GET(process, cuMemAlloc, 2 * MIB);
    MUST(process, cuDevicePrimaryCtxRelease, 0);
    MUST(process, cuDevicePrimaryCtxReset, 0);
    assert_destroyed(process, context, memory);
    assert_comes_back(process, context, memory);
}

FACT_OF_ONE(mapped_memory_outlives_a_reset, process)
{
    struct facts_memory memory = facts_create(process, 2 * MIB);
    facts_fill(process, memory.at, memory.size, 7);
    MUST(process, cuDevicePrimaryCtxReset, 0);
    MUST(process, cuDevicePrimaryCtxRetain, 0);
    facts_assert_filled(process, memory.at, memory.size, 7);
}
