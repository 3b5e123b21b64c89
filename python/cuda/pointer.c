/* SPDX-License-Identifier: Apache-2.0 */
/* Pointers of other libraries, as the CUDA Array Interface gives them. */
#include <inttypes.h>

#include "cuda/local.h"
#include "session/client.h"

static CUresult
device_pointer(const struct drv *drv, uint64_t ptr, CUdeviceptr *ret)
{
    return drv->cu.cuPointerGetAttribute(ret, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr);
}

/* Asks for the address in the current context. Where there is none, or it cannot reach the
 * pointer, asks in the primary context of the pointer's device. */
static int
resolve(struct caid_client *client, const struct drv *drv, uint64_t ptr, int32_t device,
        CUdeviceptr *ret, struct caid_error *error)
{
    const struct drv *pushed;
    CUcontext current = NULL;

    CUresult result = drv->cu.cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current && device_pointer(drv, ptr, ret) == CUDA_SUCCESS)
        return 0;
    int r = gpu_push(client, device, &pushed, error);
    if (r < 0)
        return r;
    result = device_pointer(drv, ptr, ret);
    gpu_pop(drv);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return fail(error, CAID_ERR_INVALID, "0x%" PRIx64 " is no pointer for the device", ptr);
    return gpu_result(drv, "cuPointerGetAttribute", result, "cannot resolve a pointer", error);
}

int
cuda_pointer_resolve(struct caid_client *client, uint64_t ptr, uint64_t *ret_device_ptr,
                     int32_t *ret_device, struct caid_error *error)
{
    CUdeviceptr device_ptr = ptr;
    const struct drv *drv;
    int ordinal;

    int r = client_check(client, error);
    if (r == 0)
        r = gpu_driver(client, &drv, error);
    if (r < 0)
        return r;
    CUresult result =
        drv->cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return fail(error, CAID_ERR_INVALID, "0x%" PRIx64 " is no pointer of CUDA's", ptr);
    if (result != CUDA_SUCCESS)
        return gpu_result(drv, "cuPointerGetAttribute", result, "cannot resolve a pointer",
                          error);
    const struct gpu_device *found = gpu_find_ordinal(&client->gpu, ordinal);
    int32_t device = found ? found->index : -1;
    if (device >= 0)
        r = resolve(client, drv, ptr, device, &device_ptr, error);
    if (r < 0)
        return r;
    *ret_device_ptr = device_ptr;
    *ret_device = device;
    return 0;
}

int
cuda_pointer_attribute(struct caid_client *client, uint64_t ptr, uint32_t attribute,
                       uint64_t *ret, struct caid_error *error)
{
    const struct drv *drv;

    int r = client_check(client, error);
    if (r == 0)
        r = gpu_driver(client, &drv, error);
    if (r < 0)
        return r;
    *ret = 0; /* an attribute may have fewer bytes */
    CUresult result = drv->cu.cuPointerGetAttribute(ret, (CUpointer_attribute)attribute, ptr);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return 0;
    return gpu_result(drv, "cuPointerGetAttribute", result, "cannot ask for a pointer", error);
}
