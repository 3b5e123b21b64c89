/* SPDX-License-Identifier: Apache-2.0 */
/* What managed memory does, in its basics: one address for the host and for the device. */
#include "facts.h"

#define SUITE facts_managed
#define START facts_start_context

#define SIZE (4 * MIB)

static uint64_t
allocate(struct facts_process *process)
{
    return GET(process, cuMemAllocManaged, SIZE, CU_MEM_ATTACH_GLOBAL);
}

FACT_OF_ONE(host_and_device_see_one_memory, process)
{
    uint64_t at = allocate(process);
    facts_fill(process, at, SIZE, 5);
    cr_assert_eq(GET(process, load, at + SIZE - 8), UINT64_C(0x500000005));
    MUST(process, store, at, UINT64_C(0x700000007));
    uint64_t copy = GET(process, cuMemAlloc, 8);
    MUST(process, cuMemcpyDtoD, copy, at, 8);
    facts_assert_filled(process, copy, 8, 7);
    MUST(process, cuMemFree, at);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemFree, at);
}

FACT_OF_ONE(a_pointer_says_what_it_is, process)
{
    uint64_t managed = allocate(process);
    uint64_t plain = GET(process, cuMemAlloc, SIZE);
    cr_assert_eq(facts_attribute(process, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1);
    cr_assert_eq(facts_attribute(process, CU_POINTER_ATTRIBUTE_IS_MANAGED, plain), 0);
    cr_assert_eq(facts_attribute(process, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, managed),
                 managed);
    cr_assert_eq(facts_attribute(process, CU_POINTER_ATTRIBUTE_HOST_POINTER, managed), managed);
}

FACT_OF_ONE(it_is_attached_to_something_and_has_a_size, process)
{
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged, SIZE, 0);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged, SIZE, CU_MEM_ATTACH_SINGLE);
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged, 0, CU_MEM_ATTACH_GLOBAL);
}

/* Where the device says that it is possible. */
FACT_OF_ONE(the_host_may_touch_it_while_the_device_works, process)
{
    if (!GET(process, cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0))
        cr_skip_test("the device has no concurrent access to managed memory");
    _cleanup_page_ struct facts_page page = facts_page_new();
    uint64_t gate = facts_page_map(process, &page, PROT_READ | PROT_WRITE);
    uint64_t at = allocate(process);
    uint64_t stream = GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    MUST(process, cuLaunchHostFunc, stream, GET(process, host_function, FACTS_HOLD), gate);
    MUST(process, cuMemsetD32Async, at + SIZE / 2, 5, SIZE / 8, stream);
    MUST(process, store, at, 9);
    EXPECT(process, CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    page.words[0] = 1;
    MUST(process, cuStreamSynchronize, stream);
    cr_assert_eq(GET(process, load, at), 9);
    facts_assert_filled(process, at + SIZE / 2, SIZE / 2, 5);
}

FACT_OF_ONE(it_has_no_handle_for_other_processes, process)
{
    uint64_t handle = GET(process, allocate_host, sizeof(CUipcMemHandle));
    EXPECT(process, CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, handle, allocate(process));
}
