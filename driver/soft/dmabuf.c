/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device as a dma-buf: of the pages of its memfd, by /dev/udmabuf. */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "memory.h"

static CUresult
dmabuf_new(const struct memory *memory, uint64_t offset, size_t size, int *ret)
{
    struct udmabuf_create create = {.memfd = (unsigned int)memory->fd,
                                    .flags = UDMABUF_FLAGS_CLOEXEC,
                                    .offset = offset,
                                    .size = size};
    _cleanup_fd_ int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    int fd = device >= 0 ? ioctl(device, UDMABUF_CREATE, &create) : -1;

    if (fd < 0)
        return errno == EMFILE || errno == ENFILE ? CUDA_ERROR_OPERATING_SYSTEM
                                                  : CUDA_ERROR_NOT_SUPPORTED;
    *ret = fd;
    return CUDA_SUCCESS;
}

static bool
is_of_pages(uint64_t n)
{
    return n % (uint64_t)sysconf(_SC_PAGESIZE) == 0;
}

CUresult
soft_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size,
                                   CUmemRangeHandleType type, unsigned long long flags)
{
    if (!handle || size == 0 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 ||
        !is_of_pages(address) || !is_of_pages(size))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    const struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!range || !range->memory || range->pool ||
        size > range->size - ((uintptr_t)address - range->start))
        return CUDA_ERROR_INVALID_VALUE;
    if (range->memory->device)
        RETURN_IF(device_check(range->memory->device));
    return dmabuf_new(range->memory, (uintptr_t)address - range->start, size, handle);
}
