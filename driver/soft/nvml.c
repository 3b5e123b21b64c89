/* SPDX-License-Identifier: Apache-2.0 */
/* Device figures with no context. A forked child may ask, too: nothing here has a thread. */
#include "soft.h"

#include <string.h>

#include "memory.h"

nvmlReturn_t
soft_nvmlInit_v2(void)
{
    if (soft_setup() != CUDA_SUCCESS)
        return NVML_ERROR_UNKNOWN;
    soft->n_nvml_users++;
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlShutdown(void)
{
    unsigned int n = soft->n_nvml_users;
    while (n > 0)
        if (atomic_compare_exchange_weak(&soft->n_nvml_users, &n, n - 1))
            return NVML_SUCCESS;
    return NVML_ERROR_UNINITIALIZED;
}

const char *
nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "success";
    case NVML_ERROR_UNINITIALIZED: return "not initialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case NVML_ERROR_NOT_FOUND: return "not found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "insufficient size";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "unknown error";
    }
}

static nvmlReturn_t
nvml_enter(const void *argument)
{
    if (soft->n_nvml_users == 0)
        return NVML_ERROR_UNINITIALIZED;
    return argument ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The same for calls with a device: it has to be one of ours. */
static nvmlReturn_t
nvml_enter_device(nvmlDevice_t device, const void *argument)
{
    RETURN_IF(nvml_enter(argument));
    for (int i = 0; i < soft->settings.n_devices; i++)
        if (device == &soft->devices[i])
            return device->gone ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t
soft_nvmlDeviceGetCount_v2(unsigned int *count)
{
    RETURN_IF(nvml_enter(count));
    *count = (unsigned int)soft->settings.n_devices;
    return NVML_SUCCESS;
}

static nvmlReturn_t
give_device(struct device *found, nvmlDevice_t *ret)
{
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    *ret = found;
    return found->gone ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    RETURN_IF(nvml_enter(device));
    if (index >= (unsigned int)soft->settings.n_devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_device(&soft->devices[index], device);
}

nvmlReturn_t
soft_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    RETURN_IF(nvml_enter(uuid && device ? uuid : NULL));
    return give_device(device_find_uuid(uuid), device);
}

static nvmlReturn_t
write_text(char *out, unsigned int size, const char *text)
{
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
    RETURN_IF(nvml_enter_device(device, uuid));
    return write_text(uuid, size, device->uuid_text);
}

nvmlReturn_t
soft_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    uint64_t free_now, total;
    RETURN_IF(nvml_enter_device(device, memory));
    memory_figures(device, &free_now, &total);
    *memory = (nvmlMemory_t){.total = total, .free = free_now, .used = total - free_now};
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    RETURN_IF(nvml_enter_device(device, mode));
    *mode = soft->settings.persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

/* Versions: this driver's own, and the CUDA that it stands for. */

nvmlReturn_t
soft_nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    RETURN_IF(nvml_enter(version));
    return write_text(version, size, CAID_VERSION);
}

nvmlReturn_t
soft_nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
    RETURN_IF(nvml_enter(version));
    return write_text(version, size, "13." CAID_VERSION);
}

nvmlReturn_t
soft_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    RETURN_IF(nvml_enter(version));
    *version = SOFT_VERSION;
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlSystemGetCudaDriverVersion(int *version)
{
    return soft_nvmlSystemGetCudaDriverVersion_v2(version);
}
