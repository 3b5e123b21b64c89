/* SPDX-License-Identifier: Apache-2.0 */
/* Page-locked host memory of this process: each call goes to the driver, and no record is kept
 * here. */
#include "cuda/local.h"
#include "session/client.h"

#define FLAGS_ALL (CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED | CUDA_HOST_WRITE_COMBINED)

_Static_assert((int)CUDA_HOST_PORTABLE == CU_MEMHOSTALLOC_PORTABLE &&
                   (int)CUDA_HOST_MAPPED == CU_MEMHOSTALLOC_DEVICEMAP &&
                   (int)CUDA_HOST_WRITE_COMBINED == CU_MEMHOSTALLOC_WRITECOMBINED &&
                   (int)CUDA_HOST_PORTABLE == CU_MEMHOSTREGISTER_PORTABLE &&
                   (int)CUDA_HOST_MAPPED == CU_MEMHOSTREGISTER_DEVICEMAP,
               "local.h and the driver differ");

static int
begin(struct caid_client *client, int32_t device, uint32_t flags, uint32_t known,
      const struct drv **ret, struct caid_error *error)
{
    int r = client_check(client, error);
    if (r == 0 && (flags & ~known))
        r = fail(error, CAID_ERR_INVALID, "flags %#x: unknown here", flags & ~known);
    return r < 0 ? r : gpu_push(client, device, ret, error);
}

/* Gives the device address of memory that was just made; ret may be NULL. */
static CUresult
device_pointer(const struct drv *drv, void *ptr, uint32_t flags, uint64_t *ret)
{
    CUdeviceptr device_ptr;

    if (!ret || !(flags & CUDA_HOST_MAPPED))
        return CUDA_SUCCESS;
    CUresult result = drv->cu.cuMemHostGetDevicePointer(&device_ptr, ptr, 0);
    if (result == CUDA_SUCCESS)
        *ret = device_ptr;
    return result;
}

static int
end(const struct drv *drv, const char *call, CUresult result, const char *doing,
    struct caid_error *error)
{
    gpu_pop(drv);
    return gpu_result(drv, call, result, doing, error);
}

int
cuda_host_alloc(struct caid_client *client, int32_t device, size_t nbytes, uint32_t flags,
                void **ret, uint64_t *ret_device_ptr, struct caid_error *error)
{
    const char *call = "cuMemHostAlloc";
    const struct drv *drv;
    void *ptr;

    if (!ret)
        return fail(error, CAID_ERR_INVALID, "ret is NULL");
    int r = begin(client, device, flags, FLAGS_ALL, &drv, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuMemHostAlloc(&ptr, nbytes, flags);
    if (result == CUDA_SUCCESS) {
        call = "cuMemHostGetDevicePointer";
        result = device_pointer(drv, ptr, flags, ret_device_ptr);
        if (result != CUDA_SUCCESS)
            drv->cu.cuMemFreeHost(ptr);
    }
    r = end(drv, call, result, "cannot make page-locked memory", error);
    if (r == 0)
        *ret = ptr;
    return r;
}

int
cuda_host_free(struct caid_client *client, int32_t device, void *ptr, struct caid_error *error)
{
    const struct drv *drv;

    int r = begin(client, device, 0, 0, &drv, error);
    if (r < 0)
        return r;
    return end(drv, "cuMemFreeHost", drv->cu.cuMemFreeHost(ptr),
               "cannot free page-locked memory", error);
}

int
cuda_host_register(struct caid_client *client, int32_t device, void *ptr, size_t nbytes,
                   uint32_t flags, uint64_t *ret_device_ptr, struct caid_error *error)
{
    const char *call = "cuMemHostRegister";
    const struct drv *drv;

    int r = begin(client, device, flags, FLAGS_ALL & ~(uint32_t)CUDA_HOST_WRITE_COMBINED, &drv,
                  error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuMemHostRegister(ptr, nbytes, flags);
    if (result == CUDA_SUCCESS) {
        call = "cuMemHostGetDevicePointer";
        result = device_pointer(drv, ptr, flags, ret_device_ptr);
        if (result != CUDA_SUCCESS)
            drv->cu.cuMemHostUnregister(ptr);
    }
    return end(drv, call, result, "cannot page-lock memory", error);
}

int
cuda_host_unregister(struct caid_client *client, int32_t device, void *ptr,
                     struct caid_error *error)
{
    const struct drv *drv;

    int r = begin(client, device, 0, 0, &drv, error);
    if (r < 0)
        return r;
    return end(drv, "cuMemHostUnregister", drv->cu.cuMemHostUnregister(ptr),
               "cannot unlock page-locked memory", error);
}
