/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points for what this driver does not offer: managed memory, registered host memory and
 * legacy inter-process handles. The device attributes say so; who does not look gets the answer
 * that a real driver gives on a platform without them. A caller's mistake is still told first.
 */
#include "context.h"

static CUresult
refuse(void)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult
soft_cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags UNUSED)
{
    ENTER();
    return address && size ? refuse() : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuMemHostRegister_v2(void *address, size_t size, unsigned int flags UNUSED)
{
    ENTER();
    return address && size ? refuse() : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuMemHostUnregister(void *address UNUSED)
{
    ENTER();
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult
soft_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address UNUSED)
{
    ENTER();
    return handle ? refuse() : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle UNUSED,
                           unsigned int flags UNUSED)
{
    ENTER();
    return address ? refuse() : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuIpcCloseMemHandle(CUdeviceptr address UNUSED)
{
    return refuse();
}

CUresult
soft_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event UNUSED)
{
    ENTER();
    return handle ? refuse() : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle UNUSED)
{
    ENTER();
    return event ? refuse() : CUDA_ERROR_INVALID_VALUE;
}
