/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

int
gpu_init(struct gpu *gpu, const char *choice, uint32_t n_devices)
{
    gpu->choice = strdup(choice);
    gpu->devices = calloc(n_devices ? n_devices : 1, sizeof(gpu->devices[0]));
    return gpu->choice && gpu->devices ? 0 : -ENOMEM;
}

void
gpu_abandon(struct gpu *gpu)
{
    free(gpu->devices);
    free(gpu->choice);
}

void
gpu_deinit(struct gpu *gpu, uint32_t n_devices)
{
    for (uint32_t i = 0; gpu->devices && i < n_devices; i++)
        if (gpu->devices[i].context)
            gpu->drv->cu.cuDevicePrimaryCtxRelease(gpu->devices[i].ordinal);
    drv_free(gpu->drv);
    gpu_abandon(gpu);
}

int
gpu_fail(const struct drv *drv, const char *call, CUresult result, const char *doing,
         struct caid_error *error)
{
    struct drv_error cause = {0};

    int r = drv_fail(drv, &cause, call, result);
    return fail_driver(error, r, &cause, "%s", doing);
}

/* Marks this process's device that is one of the daemon's. */
static int
find_device(struct caid_client *client, const struct drv *drv, int ordinal,
            struct drv_error *cause)
{
    struct drv_device found;

    int r = drv_device_get(drv, ordinal, &found, cause);
    if (r < 0)
        return r;
    int32_t device = client_find_device(client, MSG_STR(found.uuid));
    if (device >= 0)
        client->gpu.devices[device] =
            (struct gpu_device){.visible = true, .ordinal = found.ordinal};
    return 0;
}

static int
find_devices(struct caid_client *client, const struct drv *drv, struct drv_error *cause)
{
    int n;

    int r = drv_device_count(drv, &n, cause);
    for (int i = 0; r == 0 && i < n; i++)
        r = find_device(client, drv, i, cause);
    return r;
}

/* Under gpu->lock. */
static int
gpu_open(struct caid_client *client, struct caid_error *error)
{
    struct gpu *gpu = &client->gpu;
    struct drv_error cause = {0};
    struct drv *drv;

    if (gpu->drv)
        return 0;
    int r = drv_open(&drv, gpu->choice, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot use CUDA driver \"%s\"", gpu->choice);
    r = find_devices(client, drv, &cause);
    if (r < 0) {
        drv_free(drv);
        return fail_driver(error, r, &cause, "cannot find this process's CUDA devices");
    }
    gpu->drv = drv;
    return 0;
}

int
gpu_driver(struct caid_client *client, const struct drv **ret, struct caid_error *error)
{
    pthread_mutex_lock(&client->gpu.lock);
    int r = gpu_open(client, error);
    if (r == 0)
        *ret = client->gpu.drv;
    pthread_mutex_unlock(&client->gpu.lock);
    return r;
}

int
gpu_ordinal(struct caid_client *client, int32_t device, const struct drv **ret_drv,
            CUdevice *ret, struct caid_error *error)
{
    const struct drv *drv = NULL;
    const char *uuid = NULL;

    int r = client_device_uuid(client, device, &uuid, error);
    if (r < 0)
        return r;
    r = gpu_driver(client, &drv, error);
    if (r < 0)
        return r;
    if (!client->gpu.devices[device].visible)
        return fail(error, CAID_ERR_DEVICE,
                    "device %s is not visible in this process (driver %s; see "
                    "CUDA_VISIBLE_DEVICES)",
                    uuid, drv->path);
    *ret_drv = drv;
    *ret = client->gpu.devices[device].ordinal;
    return 0;
}

static int
retain_context(struct caid_client *client, int32_t device, const struct drv *drv,
               CUcontext *ret, struct caid_error *error)
{
    struct gpu_device *found = &client->gpu.devices[device];
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&client->gpu.lock);
    if (!found->context)
        result = drv->cu.cuDevicePrimaryCtxRetain(&found->context, found->ordinal);
    if (result != CUDA_SUCCESS)
        found->context = NULL;
    *ret = found->context;
    pthread_mutex_unlock(&client->gpu.lock);

    if (result != CUDA_SUCCESS)
        return gpu_fail(drv, "cuDevicePrimaryCtxRetain", result,
                        "cannot use the device's primary context", error);
    return 0;
}

int
gpu_push(struct caid_client *client, int32_t device, const struct drv **ret_drv,
         struct caid_error *error)
{
    const struct drv *drv = NULL;
    CUcontext context;
    CUdevice ordinal;

    int r = gpu_ordinal(client, device, &drv, &ordinal, error);
    if (r < 0)
        return r;
    r = retain_context(client, device, drv, &context, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        return gpu_fail(drv, "cuCtxPushCurrent", result,
                        "cannot use the device's primary context", error);
    *ret_drv = drv;
    return 0;
}

void
gpu_pop(const struct drv *drv)
{
    CUcontext context;
    drv->cu.cuCtxPopCurrent(&context);
}

int32_t
gpu_find_ordinal(const struct caid_client *client, CUdevice ordinal)
{
    for (uint32_t i = 0; i < client->n_devices; i++)
        if (client->gpu.devices[i].visible && client->gpu.devices[i].ordinal == ordinal)
            return (int32_t)i;
    return -1;
}
