/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVML's interface that is answered here, by its true names. It needs no cuInit and
 * no context, and lives in the same library: who looks for NVML beside this driver finds it.
 */
#pragma once

#include "soft.h"

typedef enum nvmlReturn_enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct device *nvmlDevice_t;

typedef struct nvmlMemory_st {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

SOFT_EXPORT nvmlReturn_t nvmlInit_v2(void);
SOFT_EXPORT nvmlReturn_t nvmlShutdown(void);
SOFT_EXPORT const char *nvmlErrorString(nvmlReturn_t result);
SOFT_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
SOFT_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index,
                                                       nvmlDevice_t *device);
SOFT_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
SOFT_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size);
SOFT_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size);
SOFT_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
