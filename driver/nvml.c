/* SPDX-License-Identifier: Apache-2.0 */
#include "nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "drv.h"

/* NVML's own ABI, as far as it is used. */
enum nvml_return {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_GPU_IS_LOST = 15,
};

struct nvml_memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

struct nvml_device; /* opaque, NVML's */

struct nvml {
    enum nvml_return (*init)(void);
    enum nvml_return (*shutdown)(void); /* NULL where the library has none */
    enum nvml_return (*device_by_uuid)(const char *uuid, struct nvml_device **ret);
    enum nvml_return (*device_memory)(struct nvml_device *device, struct nvml_memory *ret);
    /* NULL where the library has none */
    enum nvml_return (*device_persistence)(struct nvml_device *device, unsigned int *ret);
    const char *(*error_string)(enum nvml_return result);
    pthread_mutex_t lock; /* guards initialised */
    bool initialised;
};

/* Writes the address of a function into the function pointer at ret; false: it is missing. */
static bool
nvml_symbol(void *library, const char *name, void *ret)
{
    void *address = dlsym(library, name);
    if (!address)
        return false;
    memcpy(ret, &address, sizeof(address));
    return true;
}

int
nvml_open(struct nvml **ret, const char *library)
{
    /* Stays open for good, as the driver does: NVML keeps threads and devices of its own. */
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return -ENOSYS;
    _cleanup_free_ struct nvml *nvml = calloc(1, sizeof(*nvml));
    if (!nvml)
        return -ENOMEM;
    if (!nvml_symbol(handle, "nvmlInit_v2", &nvml->init) ||
        !nvml_symbol(handle, "nvmlDeviceGetHandleByUUID", &nvml->device_by_uuid) ||
        !nvml_symbol(handle, "nvmlDeviceGetMemoryInfo", &nvml->device_memory) ||
        !nvml_symbol(handle, "nvmlErrorString", &nvml->error_string))
        return -ENOSYS;
    nvml_symbol(handle, "nvmlShutdown", &nvml->shutdown);
    nvml_symbol(handle, "nvmlDeviceGetPersistenceMode", &nvml->device_persistence);
    pthread_mutex_init(&nvml->lock, NULL);
    *ret = TAKE_PTR(nvml);
    return 0;
}

struct nvml *
nvml_free(struct nvml *nvml)
{
    if (!nvml)
        return NULL;
    if (nvml->initialised && nvml->shutdown)
        nvml->shutdown();
    pthread_mutex_destroy(&nvml->lock);
    free(nvml);
    return NULL;
}

static int
nvml_errno(enum nvml_return result)
{
    switch (result) {
    case NVML_SUCCESS: return 0;
    case NVML_ERROR_INVALID_ARGUMENT: /* what NVML says to a UUID that it cannot parse */
    case NVML_ERROR_NOT_FOUND:
    case NVML_ERROR_GPU_IS_LOST: return -ENODEV;
    case NVML_ERROR_NOT_SUPPORTED: return -ENOTSUP;
    case NVML_ERROR_NO_PERMISSION: return -EPERM;
    default: return -EIO;
    }
}

static int
nvml_fail(const struct nvml *nvml, struct drv_error *err, const char *call, const char *uuid,
          enum nvml_return result)
{
    if (err && result != NVML_SUCCESS) {
        err->result = 0;
        err->call = call;
        snprintf(err->message, sizeof(err->message), "device %s: %s: NVML error %d: %s", uuid,
                 call, (int)result, nvml->error_string(result));
    }
    return nvml_errno(result);
}

/* A failed initialisation is tried again by the next question. */
static enum nvml_return
nvml_init(struct nvml *nvml)
{
    enum nvml_return result = NVML_SUCCESS;
    pthread_mutex_lock(&nvml->lock);
    if (!nvml->initialised) {
        result = nvml->init();
        nvml->initialised = result == NVML_SUCCESS;
    }
    pthread_mutex_unlock(&nvml->lock);
    return result;
}

static int
nvml_find(struct nvml *nvml, const char *uuid, struct nvml_device **ret, struct drv_error *err)
{
    enum nvml_return result = nvml_init(nvml);
    if (result != NVML_SUCCESS)
        return nvml_fail(nvml, err, "nvmlInit_v2", uuid, result);
    result = nvml->device_by_uuid(uuid, ret);
    return nvml_fail(nvml, err, "nvmlDeviceGetHandleByUUID", uuid, result);
}

int
nvml_memory_info(struct nvml *nvml, const char *uuid, uint64_t *ret_free, uint64_t *ret_total,
                 struct drv_error *err)
{
    struct nvml_device *device;
    int r = nvml_find(nvml, uuid, &device, err);
    if (r < 0)
        return r;
    struct nvml_memory memory;
    enum nvml_return result = nvml->device_memory(device, &memory);
    if (result != NVML_SUCCESS)
        return nvml_fail(nvml, err, "nvmlDeviceGetMemoryInfo", uuid, result);
    *ret_free = memory.free;
    *ret_total = memory.total;
    return 0;
}

int
nvml_persistence(struct nvml *nvml, const char *uuid, bool *ret_on)
{
    if (!nvml->device_persistence)
        return -ENOSYS;
    struct nvml_device *device;
    int r = nvml_find(nvml, uuid, &device, NULL);
    if (r < 0)
        return r;
    unsigned int on;
    enum nvml_return result = nvml->device_persistence(device, &on);
    if (result == NVML_ERROR_NOT_SUPPORTED)
        return -ENOSYS;
    if (result != NVML_SUCCESS)
        return nvml_errno(result);
    *ret_on = on != 0;
    return 0;
}
