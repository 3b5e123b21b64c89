/* SPDX-License-Identifier: Apache-2.0 */
#include "legacy_map.h"

#include <string.h>

int
legacy_map_new(const struct drv *drv, const uint8_t handle[CU_IPC_HANDLE_SIZE],
               CUdeviceptr *ret, struct drv_error *err)
{
    CUipcMemHandle ipc;
    CUdeviceptr ptr;

    memcpy(ipc.reserved, handle, sizeof(ipc.reserved));
    CUresult result = drv->cu.cuIpcOpenMemHandle(&ptr, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS)
        return drv_fail(drv, err, "cuIpcOpenMemHandle", result);
    *ret = ptr;
    return 0;
}

void
legacy_map_free(const struct drv *drv, CUdeviceptr ptr)
{
    drv->cu.cuIpcCloseMemHandle(ptr);
}
