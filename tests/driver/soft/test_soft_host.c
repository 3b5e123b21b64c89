/* SPDX-License-Identifier: Apache-2.0 */
/* Registered host memory: what it is to the driver, which pages it takes, who may write it. */
#include "caid_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "soft_test.h"

static unsigned char *
pages_new(size_t n, int prot)
{
    void *at = mmap(NULL, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(at, MAP_FAILED);
    return at;
}

static CUdeviceptr
address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

static CUresult
enroll(void *at, size_t size)
{
    return cu.cuMemHostRegister_v2(at, size, 0);
}

/* All that cuPointerGetAttribute says of registered memory, and what it said before. */
SOFT_TEST_LATE(soft_host, registered_memory_is_known_as_host_memory)
{
    CUcontext context = soft_start_context();
    unsigned char *pages = pages_new(3, PROT_READ | PROT_WRITE), *at = pages + 100;
    CUdeviceptr device;
    unsigned int type, flags;
    REFUSED(INVALID_VALUE,
            cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(at)));
    REFUSED(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&device, at, 0));
    MUST(cuMemHostRegister_v2(at, PAGE, CU_MEMHOSTREGISTER_PORTABLE));
    ATTRIBUTE_IS(MEMORY_TYPE, address(at), CU_MEMORYTYPE_HOST);
    ATTRIBUTE_IS(IS_MANAGED, address(at), 0);
    ATTRIBUTE_IS(MAPPED, address(at), 1);
    ATTRIBUTE_IS(CONTEXT, address(at), context);
    ATTRIBUTE_IS(HOST_POINTER, address(at + 1), at + 1);
    ATTRIBUTE_IS(RANGE_START_ADDR, address(at), address(at));
    ATTRIBUTE_IS(RANGE_SIZE, address(at), PAGE);
    ATTRIBUTE_IS(MAPPING_BASE_ADDR, address(at), address(pages));
    ATTRIBUTE_IS(MAPPING_SIZE, address(at), 2 * PAGE);
    ATTRIBUTE_IS(ACCESS_FLAGS, address(at), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    cr_assert_eq(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                          address(pages)),
                 CUDA_ERROR_INVALID_VALUE, "in the page, but not registered");
    MUST(cuMemHostGetDevicePointer_v2(&device, at + 7, 0));
    cr_assert_eq(device, address(at + 7));
    MUST(cuMemHostGetFlags(&flags, at));
    cr_assert_eq(flags, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    MUST(cuMemHostUnregister(at));
    REFUSED(INVALID_VALUE, cuMemHostGetFlags(&flags, at));
    at[0] = 1; /* the pages are still the program's */
}

SOFT_TEST(soft_host, bad_arguments_are_refused)
{
    unsigned char *pages = pages_new(2, PROT_READ | PROT_WRITE);
    cr_assert_eq(enroll(NULL, PAGE), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(enroll(pages, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(enroll(pages, SIZE_MAX), CUDA_ERROR_INVALID_VALUE);
    REFUSED(INVALID_VALUE, cuMemHostRegister_v2(pages, PAGE, 16));
    cr_assert_eq(cu.cuMemHostRegister_v2(pages, PAGE, CU_MEMHOSTREGISTER_IOMEMORY),
                 CUDA_ERROR_INVALID_VALUE, "these are ordinary pages");
    cr_assert_eq(soft_live("registrations"), 0);
    MUST(cuMemHostRegister_v2(pages, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
    cr_assert_eq(soft_live("registrations"), 1);
    MUST(cuMemHostUnregister(pages));
    REFUSED(INVALID_VALUE, cuMemHostUnregister(NULL));
    MUST(cuCtxSetCurrent(NULL));
    cr_assert_eq(enroll(pages, PAGE), CUDA_ERROR_INVALID_CONTEXT);
}

/* Bytes are registered once; two registrations may share a page, but no byte. */
SOFT_TEST(soft_host, registrations_do_not_overlap)
{
    unsigned char *at = pages_new(4, PROT_READ | PROT_WRITE);
    MUST(cuMemHostRegister_v2(at + PAGE, PAGE, 0));
    cr_assert_eq(enroll(at + PAGE, PAGE), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    cr_assert_eq(enroll(at + PAGE + 8, 8), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    cr_assert_eq(enroll(at, PAGE + 1), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    cr_assert_eq(enroll(at + 2 * PAGE - 1, PAGE), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    cr_assert_eq(enroll(at, 4 * PAGE), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    MUST(cuMemHostRegister_v2(at, 100, 0));
    MUST(cuMemHostRegister_v2(at + 100, 20, 0));
    MUST(cuMemHostRegister_v2(at + 2 * PAGE, PAGE, 0));
    cr_assert_eq(cu.cuMemHostUnregister(at + PAGE + 8), CUDA_ERROR_INVALID_VALUE,
                 "not its start");
    REFUSED(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(at + 120));
    MUST(cuMemHostUnregister(at));
    MUST(cuMemHostUnregister(at + 100));
    MUST(cuMemHostUnregister(at + PAGE));
    MUST(cuMemHostUnregister(at + 2 * PAGE));
    REFUSED(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(at));
    MUST(cuMemHostRegister_v2(at, 4 * PAGE, 0));
}

SOFT_TEST(soft_host, memory_of_the_driver_is_not_registered)
{
    void *host;
    CUdeviceptr device, managed, reserved;
    MUST(cuMemHostAlloc(&host, PAGE, 0));
    MUST(cuMemAlloc_v2(&device, PAGE));
    MUST(cuMemAllocManaged(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAddressReserve(&reserved, GRAN, 0, 0, 0));
    cr_assert_eq(enroll(host, PAGE), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(enroll((void *)(uintptr_t)device, PAGE), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(enroll((void *)(uintptr_t)managed, PAGE), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(enroll((void *)(uintptr_t)reserved, PAGE), CUDA_ERROR_INVALID_VALUE);
    REFUSED(INVALID_VALUE, cuMemHostUnregister(host));
    MUST(cuMemAddressFree(reserved, GRAN));
}

/* Pinning needs pages, all of them, and to write them unless it is told that it may not. */
SOFT_TEST(soft_host, only_pages_that_can_be_pinned_are_registered)
{
    unsigned char *at = pages_new(3, PROT_READ | PROT_WRITE);
    munmap(at + PAGE, PAGE);
    cr_assert_eq(enroll(at + PAGE, PAGE), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(enroll(at, 3 * PAGE), CUDA_ERROR_INVALID_VALUE, "a hole");
    mprotect(at, PAGE, PROT_READ);
    cr_assert_eq(enroll(at, PAGE), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemHostRegister_v2(at, PAGE, CU_MEMHOSTREGISTER_READ_ONLY));
    MUST(cuMemHostUnregister(at));
    mprotect(at, PAGE, PROT_NONE);
    REFUSED(INVALID_VALUE, cuMemHostRegister_v2(at, PAGE, CU_MEMHOSTREGISTER_READ_ONLY));
    cr_assert_eq(soft_live("registrations"), 0);
}

SOFT_TEST(soft_host, a_file_ends_where_it_ends)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, (off_t)PAGE), 0);
    unsigned char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq((void *)at, MAP_FAILED);
    cr_assert_eq(enroll(at, 2 * PAGE), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemHostRegister_v2(at, PAGE, 0));
    MUST(cuMemHostUnregister(at));
    munmap(at, 2 * PAGE);
    close(fd);
}

/* From ordinary memory a copy of this size would wait for the gate, for ever. */
SOFT_TEST(soft_host, copies_of_registered_memory_do_not_wait)
{
    size_t size = 4 * MIB;
    struct gate gate;
    unsigned char *from = malloc(size), *to = malloc(size);
    memset(from, 5, size);
    memset(to, 0, size);
    MUST(cuMemHostRegister_v2(from, size, 0));
    MUST(cuMemHostRegister_v2(to, size, 0));
    CUdeviceptr device = soft_memory(size);
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    gate_close(&gate, stream);
    MUST(cuMemcpyHtoDAsync_v2(device, from, size, stream));
    MUST(cuMemcpyDtoHAsync_v2(to, device, size, stream));
    cr_assert_eq(((volatile unsigned char *)to)[size - 1], 0);
    from[size - 1] = 6; /* it is read when the copy runs */
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(to[0], 5);
    cr_assert_eq(to[size - 1], 6);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemHostUnregister(from));
    MUST(cuMemHostUnregister(to));
    MUST(cuMemFree_v2(device));
    free(from);
    free(to);
}

SOFT_TEST_LATE(soft_host, a_reset_ends_registrations_and_leaves_the_pages)
{
    CUcontext context = soft_start_context();
    unsigned char *at = pages_new(1, PROT_READ | PROT_WRITE);
    at[0] = 9;
    MUST(cuMemHostRegister_v2(at, PAGE, 0));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    REFUSED(CONTEXT_IS_DESTROYED, cuMemHostUnregister(at));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    REFUSED(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(at));
    cr_assert_eq(at[0], 9);
    MUST(cuMemHostRegister_v2(at, PAGE, 0));
}

/* The program takes the pages away too early. */

SOFT_TEST(soft_host, work_on_unmapped_pages_faults)
{
    struct gate gate;
    unsigned char *at = pages_new(2, PROT_READ | PROT_WRITE);
    MUST(cuMemHostRegister_v2(at, 2 * PAGE, 0));
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(address(at), 3, 2 * PAGE, stream));
    munmap(at + PAGE, PAGE);
    gate_open(&gate);
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
}

/* The kernel gives the address to the next one who asks for pages. */
SOFT_TEST(soft_host, what_is_put_in_place_of_unmapped_pages_is_not_registered)
{
    CUdeviceptr reserved;
    unsigned char *at = mmap(NULL, 2 * GRAN, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uintptr_t start = ((uintptr_t)at + GRAN - 1) / GRAN * GRAN;
    MUST(cuMemHostRegister_v2((void *)(start + 10), 2 * PAGE, 0));
    munmap(at, 2 * GRAN);
    MUST(cuMemAddressReserve(&reserved, GRAN, 0, start, 0));
    cr_assert_eq(reserved, start);
    cr_assert_eq(soft_live("registrations"), 0);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    MUST(cuMemMap(reserved, GRAN, 0, handle, 0));
    ATTRIBUTE_IS(MEMORY_TYPE, start + 10, CU_MEMORYTYPE_DEVICE);
    MUST(cuMemUnmap(reserved, GRAN));
    MUST(cuMemRelease(handle));
    MUST(cuMemAddressFree(reserved, GRAN));
}

/* Read-only registration: the device reads, and who makes it write loses the context. */

static unsigned char *
read_only_pages(int prot)
{
    unsigned char *at = pages_new(1, PROT_READ | PROT_WRITE);
    memset(at, 7, PAGE);
    mprotect(at, PAGE, prot);
    MUST(cuMemHostRegister_v2(at, PAGE, CU_MEMHOSTREGISTER_READ_ONLY));
    return at;
}

SOFT_TEST(soft_host, read_only_memory_is_read)
{
    unsigned char back[16] = {0};
    unsigned int flags;
    unsigned char *at = read_only_pages(PROT_READ);
    MUST(cuMemHostGetFlags(&flags, at));
    cr_assert_eq(flags, CU_MEMHOSTREGISTER_DEVICEMAP, "that it is read-only is not told here");
    ATTRIBUTE_IS(ACCESS_FLAGS, address(at), CU_MEM_ACCESS_FLAGS_PROT_READ);
    CUdeviceptr device = soft_memory(PAGE);
    MUST(cuMemcpyHtoD_v2(device, at, PAGE));
    MUST(cuMemcpyDtoH_v2(back, device + PAGE - sizeof(back), sizeof(back)));
    cr_assert_eq(back[15], 7);
}

static void
check_fault(unsigned char *at, CUstream stream)
{
    CUdeviceptr device;
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
    cr_assert_eq(((volatile unsigned char *)at)[0], 7);
    cr_assert_eq(cu.cuMemAlloc_v2(&device, PAGE), CUDA_ERROR_LAUNCH_FAILED, "sticky");
    REFUSED(LAUNCH_FAILED, cuMemHostRegister_v2(&device, 8, 0));
    REFUSED(LAUNCH_FAILED, cuMemHostUnregister(at));
    cr_assert_eq(soft_live("registrations"), 0, "done all the same");
}

/* Also where the program itself could write the pages. */
SOFT_TEST(soft_host, a_value_written_to_pages_registered_as_read_only_faults)
{
    unsigned char *at = read_only_pages(PROT_READ | PROT_WRITE);
    MUST(cuStreamWriteValue64_v2(CU_STREAM_PER_THREAD, address(at), 1, 0));
    check_fault(at, CU_STREAM_PER_THREAD);
}

/* These the driver knows to be wrong, and the context lives on. */
SOFT_TEST(soft_host, fills_of_and_copies_to_read_only_memory_are_refused)
{
    unsigned char from[16] = {0};
    unsigned char *at = read_only_pages(PROT_READ | PROT_WRITE);
    CUdeviceptr device = soft_memory(PAGE);
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(address(at), 1, 16));
    REFUSED(INVALID_VALUE, cuMemsetD32Async(address(at), 1, 4, NULL));
    REFUSED(INVALID_VALUE, cuMemcpyHtoD_v2(address(at), from, 16));
    REFUSED(INVALID_VALUE, cuMemcpyDtoH_v2(at, device, 16));
    REFUSED(INVALID_VALUE, cuMemcpyDtoHAsync_v2(at, device, 16, NULL));
    REFUSED(INVALID_VALUE, cuMemcpyDtoD_v2(address(at), device, 16));
    REFUSED(INVALID_VALUE, cuMemcpyAsync(address(at), device, 16, NULL));
    MUST(cuCtxSynchronize());
    cr_assert_eq(((volatile unsigned char *)at)[0], 7);
}

SOFT_TEST(soft_host, work_stays_within_one_registration)
{
    unsigned char *at = pages_new(3, PROT_READ | PROT_WRITE), back[16];
    MUST(cuMemHostRegister_v2(at + 100, PAGE - 100, 0));
    MUST(cuMemHostRegister_v2(at + PAGE, PAGE, 0));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(address(at + PAGE - 8), 1, 16));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(address(at + 2 * PAGE - 8), 1, 16));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(address(at + 92), 1, 16));
    cr_assert_eq(cu.cuMemcpyDtoH_v2(back, address(at), 16), CUDA_ERROR_INVALID_VALUE,
                 "in the page, but not registered");
    MUST(cuMemsetD8_v2(address(at + 100), 1, PAGE - 100));
}

/* One page in two processes: one of them may only read it, does write, and is alone with the
 * fault. */
