/* SPDX-License-Identifier: Apache-2.0 */
#include "legacy_map.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int
check_size(const struct drv *drv, CUdeviceptr ptr, size_t size, struct drv_error *err)
{
    size_t allocated = 0;

    int r = DRV_CALL(drv, err, cuMemGetAddressRange, NULL, &allocated, ptr);
    if (r < 0 || allocated >= size)
        return r;
    if (err) {
        *err = (struct drv_error){.call = "cuMemGetAddressRange"};
        snprintf(err->message, sizeof(err->message), "the handle is of %zu bytes", allocated);
    }
    return -EINVAL;
}

int
legacy_map_new(const struct drv *drv, const uint8_t handle[CU_IPC_HANDLE_SIZE], size_t size,
               CUdeviceptr *ret, struct drv_error *err)
{
    CUipcMemHandle ipc;
    CUdeviceptr ptr;

    memcpy(ipc.reserved, handle, sizeof(ipc.reserved));
    int r =
        DRV_CALL(drv, err, cuIpcOpenMemHandle, &ptr, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r < 0)
        return r;
    r = check_size(drv, ptr, size, err);
    if (r < 0)
        legacy_map_free(drv, ptr);
    else
        *ret = ptr;
    return r;
}

void
legacy_map_free(const struct drv *drv, CUdeviceptr ptr)
{
    drv->cu.cuIpcCloseMemHandle(ptr);
}
