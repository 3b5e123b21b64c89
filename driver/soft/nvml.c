/* SPDX-License-Identifier: Apache-2.0 */
/* Device figures with no context. A forked child may ask, too: nothing here has a thread. */
#include "soft.h"

#include <stdio.h>
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
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "structure of another version";
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
    nvmlReturn_t result = nvml_enter(argument);
    if (result != NVML_SUCCESS)
        return result;
    for (int i = 0; i < soft->settings.n_devices; i++)
        if (device == &soft->devices[i])
            return device->gone ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t
soft_nvmlDeviceGetCount_v2(unsigned int *count)
{
    nvmlReturn_t result = nvml_enter(count);
    if (result == NVML_SUCCESS)
        *count = (unsigned int)soft->settings.n_devices;
    return result;
}

nvmlReturn_t
soft_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    nvmlReturn_t result = nvml_enter(device);
    if (result != NVML_SUCCESS)
        return result;
    if (index >= (unsigned int)soft->settings.n_devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &soft->devices[index];
    return soft->devices[index].gone ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* With "GPU-" before it or without. */
static struct device *
find_uuid(const char *text)
{
    for (int i = 0; i < soft->settings.n_devices; i++) {
        const char *uuid = soft->devices[i].uuid_text;
        if (strcmp(uuid, text) == 0 || strcmp(uuid + strlen("GPU-"), text) == 0)
            return &soft->devices[i];
    }
    return NULL;
}

nvmlReturn_t
soft_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    nvmlReturn_t result = nvml_enter(uuid && device ? uuid : NULL);
    if (result != NVML_SUCCESS)
        return result;
    struct device *found = find_uuid(uuid);
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    *device = found;
    return found->gone ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
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
soft_nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    nvmlReturn_t result = nvml_enter(id && device ? id : NULL);
    if (result != NVML_SUCCESS)
        return result;
    struct device *found = device_find_bus(id);
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    *device = found;
    return found->gone ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
    nvmlReturn_t result = nvml_enter_device(device, uuid);
    return result == NVML_SUCCESS ? write_text(uuid, size, device->uuid_text) : result;
}

nvmlReturn_t
soft_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
    nvmlReturn_t result = nvml_enter_device(device, name);
    return result == NVML_SUCCESS ? write_text(name, size, soft->settings.name) : result;
}

nvmlReturn_t
soft_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    uint64_t free_now, total;
    nvmlReturn_t result = nvml_enter_device(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    memory_figures(device, &free_now, &total);
    *memory = (nvmlMemory_t){.total = total, .free = free_now, .used = total - free_now};
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = nvml_enter_device(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2U))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if ((result = soft_nvmlDeviceGetMemoryInfo(device, &plain)) != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    nvmlReturn_t result = nvml_enter_device(device, mode);
    if (result == NVML_SUCCESS)
        *mode = soft->settings.persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return result;
}

nvmlReturn_t
soft_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    nvmlReturn_t result = nvml_enter_device(device, index);
    if (result == NVML_SUCCESS)
        *index = (unsigned int)device->index;
    return result;
}

nvmlReturn_t
soft_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    nvmlReturn_t result = nvml_enter_device(device, major && minor ? major : NULL);
    if (result == NVML_SUCCESS)
        device_capability(major, minor);
    return result;
}

nvmlReturn_t
soft_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    nvmlReturn_t result = nvml_enter_device(device, info);
    if (result != NVML_SUCCESS)
        return result;
    *info = (nvmlPciInfo_t){.domain = PCI_DOMAIN, .bus = device_bus(device)};
    snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "%04X:%02X:00.0", PCI_DOMAIN,
             info->bus);
    snprintf(info->busId, sizeof(info->busId), "%08X:%02X:00.0", PCI_DOMAIN, info->bus);
    return NVML_SUCCESS;
}

nvmlReturn_t
soft_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *info)
{
    nvmlReturn_t result = nvml_enter_device(device, info);
    if (result != NVML_SUCCESS)
        return result;
    if (info->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1U))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *info = (nvmlPciInfoExt_v1_t){
        .version = info->version,
        .domain = PCI_DOMAIN,
        .bus = device_bus(device),
    };
    snprintf(info->busId, sizeof(info->busId), "%08X:%02X:00.0", PCI_DOMAIN, info->bus);
    return NVML_SUCCESS;
}

/* Versions: this driver's own, and the CUDA that it stands for. */

nvmlReturn_t
soft_nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    nvmlReturn_t result = nvml_enter(version);
    return result == NVML_SUCCESS ? write_text(version, size, CAID_VERSION) : result;
}

nvmlReturn_t
soft_nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
    nvmlReturn_t result = nvml_enter(version);
    return result == NVML_SUCCESS ? write_text(version, size, "13." CAID_VERSION) : result;
}

nvmlReturn_t
soft_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    nvmlReturn_t result = nvml_enter(version);
    if (result == NVML_SUCCESS)
        *version = SOFT_VERSION;
    return result;
}

nvmlReturn_t
soft_nvmlSystemGetCudaDriverVersion(int *version)
{
    return soft_nvmlSystemGetCudaDriverVersion_v2(version);
}
