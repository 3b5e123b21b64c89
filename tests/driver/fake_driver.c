/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver of a few functions, to test what surrounds a driver: the choice of library, missing
 * symbols, NVML that does not start. It notes which versions it was asked for. Traits come from
 * macros; see CMakeLists.txt.
 */
#include "fake_driver.h"

#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#ifndef FAKE_INIT_RESULT
#    define FAKE_INIT_RESULT 0
#endif
#ifndef FAKE_DEVICES
#    define FAKE_DEVICES 1
#endif

static struct fake_state state = {.fail_at = -1};

EXPORT struct fake_state *
fake_state(void)
{
    return &state;
}

static CUresult
init(unsigned int flags)
{
    (void)flags;
    return (CUresult)FAKE_INIT_RESULT;
}

static CUresult
driver_version(int *version)
{
    *version = 12040;
    return CUDA_SUCCESS;
}

static CUresult
device_count(int *count)
{
    *count = FAKE_DEVICES;
    return CUDA_SUCCESS;
}

static CUresult
device_get(CUdevice *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= FAKE_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult
device_name(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "Fake %d", device);
    return CUDA_SUCCESS;
}

static CUresult
device_uuid(CUuuid *uuid, CUdevice device)
{
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)(0xf0 + i);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

static CUresult
device_total(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = 1u << 30;
    return CUDA_SUCCESS;
}

static CUresult
device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
             (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED &&
              !state.no_posix_fd);
    return CUDA_SUCCESS;
}

static CUresult
granularity(size_t *size, const CUmemAllocationProp *prop,
            CUmemAllocationGranularity_flags flag)
{
    if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flag)
        return CUDA_ERROR_INVALID_VALUE;
    *size = 1u << 21;
    return CUDA_SUCCESS;
}

struct entry {
    const char *name;
    void (*function)(void);
};

/* cuGetErrorName is not among them, nor is most of symbols.def. */
#define ENTRY(name, fn)          \
    {                            \
        name, (void (*)(void))fn \
    }
static const struct entry entries[] = {
    ENTRY("cuInit", init),
    ENTRY("cuDriverGetVersion", driver_version),
    ENTRY("cuDeviceGetCount", device_count),
    ENTRY("cuDeviceGet", device_get),
    ENTRY("cuDeviceGetName", device_name),
    ENTRY("cuDeviceGetUuid", device_uuid),
    ENTRY("cuDeviceTotalMem", device_total),
    ENTRY("cuDeviceGetAttribute", device_attribute),
    ENTRY("cuMemGetAllocationGranularity", granularity),
};

#ifdef FAKE_OLD /* as drivers before CUDA 12.0: the function has its former name */
#    define cuGetProcAddress_v2 cuGetProcAddress
#endif
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status);

EXPORT CUresult
cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status)
{
    struct fake_lookup *lookup = &state.lookups[state.n_lookups++ % FAKE_LOOKUPS];
    *lookup = (struct fake_lookup){.version = version, .flags = flags};
    snprintf(lookup->symbol, sizeof(lookup->symbol), "%s", symbol);
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        if (strcmp(symbol, entries[i].name) == 0) {
            memcpy(address, &entries[i].function, sizeof(*address));
            *status = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
    }
    /* An old driver that knows the name but not this version answers SUCCESS with this status. */
    *address = NULL;
    *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return strcmp(symbol, "cuDeviceGetUuid") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#ifdef FAKE_SOFT
EXPORT const char *caid_softcuda_version(void);

EXPORT const char *
caid_softcuda_version(void)
{
    return "fake";
}
#endif

#ifdef FAKE_NVML
struct fake_memory {
    unsigned long long total, free, used;
};

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct fake_memory *memory);
EXPORT int nvmlDeviceGetPersistenceMode(void *device, unsigned int *mode);
EXPORT const char *nvmlErrorString(int result);

EXPORT int
nvmlInit_v2(void)
{
    if (state.fail_at >= 0 && state.fail_at-- == 0)
        return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    state.n_nvml_inits++;
    return 0;
}

EXPORT int
nvmlShutdown(void)
{
    state.n_nvml_inits--;
    return 0;
}

EXPORT int
nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    if (strncmp(uuid, "GPU-f0f1f2f3", 12) != 0)
        return 6; /* NVML_ERROR_NOT_FOUND */
    *device = &state;
    return 0;
}

EXPORT int
nvmlDeviceGetMemoryInfo(void *device, struct fake_memory *memory)
{
    if (device != &state)
        return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *memory = (struct fake_memory){.total = 1000, .free = 600, .used = 400};
    return 0;
}

EXPORT int
nvmlDeviceGetPersistenceMode(void *device, unsigned int *mode)
{
    if (device != &state)
        return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    if (state.persistence < 0)
        return 3; /* NVML_ERROR_NOT_SUPPORTED */
    *mode = (unsigned int)state.persistence;
    return 0;
}

EXPORT const char *
nvmlErrorString(int result)
{
    return result == 6 ? "Not Found" : "Other";
}
#endif
