/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share. */
#include <string.h>
#include <sys/mman.h>

#include "stress_soft_kinds.h"

/* An allocation that is exported as an fd. */

static void
vmm_make(struct memory *memory, struct offer *ret)
{
    struct soft_mapping mapping = soft_map(memory->size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    memory->at = mapping.at;
    memory->handle = mapping.handle;
    MUST(cuMemExportToShareableHandle(&ret->fd, mapping.handle,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static CUresult
vmm_open(struct memory *memory, const struct offer *offer)
{
    struct soft_mapping mapping = {.size = memory->size};
    MUST(cuMemImportFromShareableHandle(&mapping.handle, (void *)(intptr_t)offer->fd,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemAddressReserve(&mapping.at, mapping.size, 0, 0, 0));
    MUST(cuMemMap(mapping.at, mapping.size, 0, mapping.handle, 0));
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    memory->at = mapping.at;
    memory->handle = mapping.handle;
    return CUDA_SUCCESS;
}

static void
vmm_drop(struct memory *memory, bool made UNUSED)
{
    struct soft_mapping mapping = {memory->handle, memory->at, memory->size};
    soft_unmap(&mapping);
}

/* cuMemAlloc, and a legacy handle. */

static void
legacy_make(struct memory *memory, struct offer *ret)
{
    CUipcMemHandle handle;
    MUST(cuMemAlloc_v2(&memory->at, memory->size));
    MUST(cuIpcGetMemHandle(&handle, memory->at));
    memcpy(ret->handle, &handle, sizeof(handle));
}

static CUresult
legacy_open(struct memory *memory, const struct offer *offer)
{
    CUipcMemHandle handle;
    memcpy(&handle, offer->handle, sizeof(handle));
    return cu.cuIpcOpenMemHandle_v2(&memory->at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void
legacy_drop(struct memory *memory, bool made)
{
    if (made)
        MUST(cuMemFree_v2(memory->at));
    else
        MUST(cuIpcCloseMemHandle(memory->at));
}

/* Memory of the host that both register. */

static void
pinned_map(struct memory *memory, int fd)
{
    unsigned int flags = CU_MEMHOSTREGISTER_DEVICEMAP;
    if (memory->read_only)
        flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    memory->host = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory->host == MAP_FAILED)
        wire_die("mmap");
    MUST(cuMemHostRegister_v2(memory->host, memory->size, flags));
    MUST(cuMemHostGetDevicePointer_v2(&memory->at, memory->host, 0));
}

static void
pinned_make(struct memory *memory, struct offer *ret)
{
    ret->fd = memfd_create("stress", MFD_CLOEXEC);
    if (ret->fd < 0 || ftruncate(ret->fd, (off_t)memory->size) < 0)
        wire_die("memfd");
    pinned_map(memory, ret->fd);
}

static CUresult
pinned_open(struct memory *memory, const struct offer *offer)
{
    pinned_map(memory, offer->fd);
    return CUDA_SUCCESS;
}

static void
pinned_drop(struct memory *memory, bool made UNUSED)
{
    MUST(cuMemHostUnregister(memory->host));
    munmap(memory->host, memory->size);
}

/* Memory of a pool that is exported as an fd, in stream order. */

static void
pool_make(struct memory *memory, struct offer *ret)
{
    CUmemPoolPtrExportData data;
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
    };
    MUST(cuMemPoolCreate(&memory->pool, &props));
    MUST(cuMemAllocFromPoolAsync(&memory->at, memory->size, memory->pool, memory->stream));
    MUST(cuMemPoolExportToShareableHandle(&ret->fd, memory->pool,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemPoolExportPointer(&data, memory->at));
    memcpy(ret->handle, &data, sizeof(data));
}

static CUresult
pool_open(struct memory *memory, const struct offer *offer)
{
    CUmemPoolPtrExportData data;
    memcpy(&data, offer->handle, sizeof(data));
    MUST(cuMemPoolImportFromShareableHandle(&memory->pool, (void *)(intptr_t)offer->fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUresult result = cu.cuMemPoolImportPointer(&memory->at, memory->pool, &data);
    if (result != CUDA_SUCCESS)
        MUST(cuMemPoolDestroy(memory->pool));
    return result;
}

/* A pool gives memory back when somebody has waited. */
static void
async_drop(struct memory *memory, bool made UNUSED)
{
    MUST(cuMemFreeAsync(memory->at, memory->stream));
    MUST(cuStreamSynchronize(memory->stream));
}

static void
pool_drop(struct memory *memory, bool made)
{
    async_drop(memory, made);
    MUST(cuMemPoolDestroy(memory->pool));
}

/* Of the default pool. */
static void
async_make(struct memory *memory, struct offer *ret UNUSED)
{
    MUST(cuMemAllocAsync(&memory->at, memory->size, memory->stream));
}

const struct memory_kind memory_vmm = {"vmm", .make = vmm_make, .open = vmm_open,
                                       .drop = vmm_drop};
const struct memory_kind memory_pinned = {"pinned", .make = pinned_make, .open = pinned_open,
                                          .drop = pinned_drop};
static const struct memory_kind memory_legacy = {"legacy", .make = legacy_make,
                                                 .open = legacy_open, .drop = legacy_drop,
                                                 .dies = true};
static const struct memory_kind memory_pool = {"pool", .make = pool_make, .open = pool_open,
                                               .drop = pool_drop, .dies = true};
static const struct memory_kind memory_async = {"async", .make = async_make,
                                                .drop = async_drop};

const struct memory_kind *const memory_kinds[] = {&memory_vmm, &memory_pinned, &memory_legacy,
                                                  &memory_pool};
const unsigned int n_memory_kinds = ARRAY_SIZE(memory_kinds);
const struct memory_kind *const own_kinds[] = {&memory_vmm, &memory_legacy, &memory_pool,
                                               &memory_async};
const unsigned int n_own_kinds = ARRAY_SIZE(own_kinds);
