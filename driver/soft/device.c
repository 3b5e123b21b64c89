/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and what they say about themselves. */
#include "soft.h"

#include <stdio.h>
#include <string.h>

/* What is not listed is 0: "no", or nothing of it. Kernels cannot run, so the sizes of blocks
 * and grids are only what launch configurations are computed from. */
const int attribute_defaults[N_ATTRIBUTES] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 0x7fffffff,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 0x7fffffff,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1000000,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = CU_COMPUTEMODE_DEFAULT,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 1000000,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 49152,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 49152,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32,
    [CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] =
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR] = 1,
    [CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = 0,
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED] = 1,
};

static void
write_uuid(char *out, const CUuuid *uuid)
{
    int n = sprintf(out, "GPU");
    for (size_t i = 0; i < sizeof(uuid->bytes); i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        n += sprintf(out + n, "%s%02x", dash ? "-" : "", (unsigned char)uuid->bytes[i]);
    }
}

uint64_t
hash_bytes(uint64_t hash, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

void
device_init(struct device *device, const struct settings *settings, int index)
{
    device->index = index;
    device->ordinal = CU_DEVICE_INVALID;
    device->uuid = settings->uuid;
    /* Device n has the UUID of device 0 with n mixed into its first byte. */
    device->uuid.bytes[0] = (char)(device->uuid.bytes[0] ^ index);
    write_uuid(device->uuid_text, &device->uuid);
    device->total = settings->memory;
    /* Of 61 bits: an end of range "key + bytes" still fits a signed 64-bit offset. */
    device->lock_key = hash_bytes(HASH_START, device->uuid.bytes, sizeof(device->uuid)) >> 3;
}

struct device *
device_find(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < soft->n_visible ? soft->visible[ordinal] : NULL;
}

struct device *
device_find_uuid(const char *uuid_text)
{
    for (int i = 0; i < soft->settings.n_devices; i++) {
        const char *uuid = soft->devices[i].uuid_text;
        if (strcmp(uuid, uuid_text) == 0 || strcmp(uuid + strlen("GPU-"), uuid_text) == 0)
            return &soft->devices[i];
    }
    return NULL;
}

bool
host_node_exists(int node)
{
    char path[64];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", node);
    return node == 0 || (node > 0 && access(path, F_OK) == 0);
}

void
device_fault(struct device *device, CUresult result)
{
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&device->fault, &none, (int)result);
    event_ipc_interrupt();
}

void
device_vanish(struct device *device)
{
    device->gone = true;
    device_fault(device, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

CUresult
device_check(const struct device *device)
{
    return device && device->gone ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

CUresult
device_arg(CUdevice ordinal, const void *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return device_find(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult
soft_cuDeviceGetCount(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = soft->n_visible;
    return CUDA_SUCCESS;
}

CUresult
soft_cuDeviceGetName(char *name, int size, CUdevice device)
{
    RETURN_IF(device_arg(device, name));
    if (size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size, "%s", soft->settings.name);
    return CUDA_SUCCESS;
}

#define DEVICE_GET(symbol, type, what)                  \
    CUresult soft_##symbol(type *ret, CUdevice ordinal) \
    {                                                   \
        RETURN_IF(device_arg(ordinal, ret));            \
        *ret = (what);                                  \
        return CUDA_SUCCESS;                            \
    }

DEVICE_GET(cuDeviceGet, CUdevice, ordinal)
DEVICE_GET(cuDeviceGetUuid_v2, CUuuid, device_find(ordinal)->uuid)
DEVICE_GET(cuDeviceTotalMem_v2, size_t, device_find(ordinal)->total)

CUresult
device_has(CUdevice_attribute attribute)
{
    return soft->settings.attributes[attribute] ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult
soft_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    RETURN_IF(device_arg(device, value));
    if (attribute < CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK || attribute >= N_ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
        *value = PCI_DOMAIN;
    else if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = device_find(device)->index + 1;
    else
        *value = soft->settings.attributes[attribute];
    return CUDA_SUCCESS;
}

CUresult
soft_cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    RETURN_IF(device_arg(device, major));
    if (!minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = soft->settings.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = soft->settings.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}
