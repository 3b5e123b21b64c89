/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices: made when the driver is set up, never changed, never freed. What changes about a
 * device is in its primary context and, for memory, in the kernel (memory.h).
 */
#pragma once

#include <stdint.h>

#include "cuda_abi.h"

#define SOFT_MAX_DEVICES 16
#define SOFT_UUID_SIZE   41

struct context;

struct device {
    CUdevice ordinal;
    CUuuid uuid;
    char uuid_text[SOFT_UUID_SIZE];   /* "GPU-...", as NVML writes it */
    uint64_t total;                   /* bytes */
    uint64_t lock_key;                /* where the locks that count memory start */
    _Atomic uint64_t own_bytes;       /* made by this process, for where /proc has no locks */
    uint64_t credit, credit_until_ns; /* see memory.c; under soft->memory_lock */
    struct context *primary;          /* set once, by the first retain; under soft->lock */
    _Atomic int fault;                /* CUresult, for the rest of the process; see context.h */
};

struct settings;

void device_init(struct device *device, const struct settings *settings, int ordinal);
/* NULL for an ordinal that is out of range. */
struct device *device_find(CUdevice ordinal);
void device_fault(struct device *device, CUresult result); /* the first one stays */
struct device *device_find_uuid(const char *uuid_text);
