/* SPDX-License-Identifier: Apache-2.0 */
#include "legacy.h"

/* The device's attribute, or `unknown` where the driver does not know it. */
static int
attribute(const struct drv *drv, CUdevice device, CUdevice_attribute which, int unknown)
{
    int value;
    CUresult result = drv->cu.cuDeviceGetAttribute(&value, which, device);

    if (result == CUDA_ERROR_INVALID_VALUE)
        return unknown;
    return result == CUDA_SUCCESS ? value : 0;
}

/* Unified addressing is what cuIpcGetMemHandle() asks for, and
 * CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED is what its documentation tells users to test; drivers
 * before 12.0 do not know that. Integrated devices share events, but not memory (CUDA for
 * Tegra). */
bool
legacy_is_supported(const struct drv *drv, CUdevice device)
{
    return attribute(drv, device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0) != 0 &&
           attribute(drv, device, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0) == 0 &&
           attribute(drv, device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1) != 0;
}

int
legacy_context_retain(const struct drv *drv, CUdevice device, CUcontext *ret,
                      struct drv_error *err)
{
    CUcontext context;
    int r = DRV_CALL(drv, err, cuDevicePrimaryCtxRetain, &context, device);

    if (r == 0)
        *ret = context;
    return r;
}

int
legacy_context_release(const struct drv *drv, CUdevice device, struct drv_error *err)
{
    return DRV_CALL(drv, err, cuDevicePrimaryCtxRelease, device);
}

static void
legacy_leave(const struct drv *drv)
{
    CUcontext context;

    drv->cu.cuCtxPopCurrent(&context);
}

int
legacy_alloc_create(const struct drv *drv, CUcontext context, size_t size,
                    struct legacy_alloc *ret, struct drv_error *err)
{
    CUdeviceptr ptr = 0;
    int r = DRV_CALL(drv, err, cuCtxPushCurrent, context);

    if (r < 0)
        return r;
    r = DRV_CALL(drv, err, cuMemAlloc, &ptr, size);
    if (r == 0)
        *ret = (struct legacy_alloc){.ptr = ptr, .size = size};
    else if (ptr) /* done, and an earlier failure reported */
        drv->cu.cuMemFree(ptr);
    legacy_leave(drv);
    return r;
}

int
legacy_alloc_export(const struct drv *drv, CUcontext context, const struct legacy_alloc *alloc,
                    CUipcMemHandle *ret, struct drv_error *err)
{
    CUipcMemHandle handle;
    int r = DRV_CALL(drv, err, cuCtxPushCurrent, context);

    if (r < 0)
        return r;
    r = DRV_CALL(drv, err, cuIpcGetMemHandle, &handle, alloc->ptr);
    if (r == 0)
        *ret = handle;
    legacy_leave(drv);
    return r;
}

int
legacy_alloc_release(const struct drv *drv, CUcontext context, struct legacy_alloc *alloc,
                     struct drv_error *err)
{
    CUdeviceptr ptr = alloc->ptr;
    int r = DRV_CALL(drv, err, cuCtxPushCurrent, context);

    *alloc = (struct legacy_alloc){0};
    if (r < 0)
        return r;
    r = DRV_CALL(drv, err, cuMemFree, ptr);
    legacy_leave(drv);
    return r;
}
