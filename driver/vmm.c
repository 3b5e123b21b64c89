/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm.h"

#include "base/macros.h"

/* vmm_alloc */

/* A call may have done its work and report an earlier failure: then there is a handle, which
 * must not be lost with the error. */
static int
undo_alloc(const struct drv *drv, CUmemGenericAllocationHandle handle, const char *call,
           CUresult result, struct drv_error *err)
{
    if (handle)
        drv->cu.cuMemRelease(handle);
    return drv_fail(drv, err, call, result);
}

static int
create(const struct drv *drv, int ordinal, size_t size, bool rdma,
       CUmemAllocationHandleType handles, struct vmm_alloc *ret, struct drv_error *err)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = handles,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
        .allocFlags = {.gpuDirectRDMACapable = rdma},
    };
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = drv->cu.cuMemCreate(&handle, size, &prop, 0);
    if (result != CUDA_SUCCESS)
        return undo_alloc(drv, handle, "cuMemCreate", result, err);
    *ret = (struct vmm_alloc){.handle = handle, .size = size};
    return 0;
}

int
vmm_alloc_create(const struct drv *drv, int ordinal, size_t size, bool rdma,
                 struct vmm_alloc *ret, struct drv_error *err)
{
    return create(drv, ordinal, size, rdma, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, ret, err);
}

int
vmm_try_fabric(const struct drv *drv, int ordinal, size_t size, struct drv_error *err)
{
    struct vmm_alloc alloc = {0};
    int r = create(drv, ordinal, size, false, CU_MEM_HANDLE_TYPE_FABRIC, &alloc, err);

    return r == 0 ? vmm_alloc_release(drv, &alloc, err) : r;
}

int
vmm_alloc_import(const struct drv *drv, int fd, size_t size, struct vmm_alloc *ret,
                 struct drv_error *err)
{
    /* The fd itself travels in the pointer, not its address. */
    void *shareable = (void *)(intptr_t)fd;
    CUmemGenericAllocationHandle handle = 0;
    CUresult result =
        drv->cu.cuMemImportFromShareableHandle(&handle, shareable,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return undo_alloc(drv, handle, "cuMemImportFromShareableHandle", result, err);
    *ret = (struct vmm_alloc){.handle = handle, .size = size};
    return 0;
}

int
vmm_alloc_export(const struct drv *drv, const struct vmm_alloc *alloc, int *ret_fd,
                 struct drv_error *err)
{
    _cleanup_fd_ int fd = -1;
    int r = DRV_CALL(drv, err, cuMemExportToShareableHandle, &fd, alloc->handle,
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r == 0)
        *ret_fd = TAKE_FD(fd);
    return r;
}

int
vmm_alloc_release(const struct drv *drv, struct vmm_alloc *alloc, struct drv_error *err)
{
    int r = DRV_CALL(drv, err, cuMemRelease, alloc->handle);
    *alloc = (struct vmm_alloc){0};
    return r;
}

/* vmm_map */

static CUresult
set_access(const struct drv *drv, CUdeviceptr ptr, size_t size, int ordinal, enum vmm_mode mode)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
        .flags = (CUmemAccess_flags)mode,
    };
    return drv->cu.cuMemSetAccess(ptr, size, &desc, 1);
}

/* The steps of making a map, each undone where a later one fails. */
static int
map_range(const struct drv *drv, const struct vmm_alloc *alloc, int ordinal, enum vmm_mode mode,
          CUdeviceptr ptr, struct drv_error *err)
{
    const char *call = "cuMemMap";
    CUresult result = drv->cu.cuMemMap(ptr, alloc->size, 0, alloc->handle, 0);
    if (result == CUDA_SUCCESS) {
        call = "cuMemSetAccess";
        result = set_access(drv, ptr, alloc->size, ordinal, mode);
    }
    if (result != CUDA_SUCCESS)
        drv->cu.cuMemUnmap(ptr,
                           alloc->size); /* also what cuMemMap may have done with an error */
    return drv_fail(drv, err, call, result);
}

int
vmm_map_new(const struct drv *drv, const struct vmm_alloc *alloc, CUdeviceptr at, int ordinal,
            enum vmm_mode mode, struct vmm_map *ret, struct drv_error *err)
{
    CUdeviceptr ptr = at;
    int r = at ? 0 : DRV_CALL(drv, err, cuMemAddressReserve, &ptr, alloc->size, 0, 0, 0);
    if (r < 0)
        return r;
    r = map_range(drv, alloc, ordinal, mode, ptr, err);
    if (r < 0) {
        if (!at)
            drv->cu.cuMemAddressFree(ptr, alloc->size);
        return r;
    }
    *ret = (struct vmm_map){.ptr = ptr, .size = alloc->size, .mode = mode, .borrowed = at != 0};
    return 0;
}

int
vmm_map_park(const struct drv *drv, struct vmm_map *map, struct drv_error *err)
{
    int r = DRV_CALL(drv, err, cuMemUnmap, map->ptr, map->size);
    map->parked = r == 0;
    return r;
}

int
vmm_map_unpark(const struct drv *drv, struct vmm_map *map, const struct vmm_alloc *alloc,
               int ordinal, struct drv_error *err)
{
    int r = map_range(drv, alloc, ordinal, map->mode, map->ptr, err);
    map->parked = r < 0;
    return r;
}

int
vmm_map_allow(const struct drv *drv, const struct vmm_map *map, int ordinal,
              struct drv_error *err)
{
    CUresult result = set_access(drv, map->ptr, map->size, ordinal, map->mode);
    return drv_fail(drv, err, "cuMemSetAccess", result);
}

/* A range that cannot be unmapped keeps its address: freeing that would be another error. */
void
vmm_map_free(const struct drv *drv, struct vmm_map *map)
{
    bool is_free = map->ptr &&
                   (map->parked || drv->cu.cuMemUnmap(map->ptr, map->size) == CUDA_SUCCESS);

    if (is_free && !map->borrowed)
        drv->cu.cuMemAddressFree(map->ptr, map->size);
    *map = (struct vmm_map){0};
}
