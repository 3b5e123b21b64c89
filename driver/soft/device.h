/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices: made when the driver is set up, never changed, never freed. What changes about a
 * device is in its primary context and, for memory, in the kernel (memory.h).
 */
#pragma once

#include <stdbool.h>
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
    _Atomic bool gone;                /* see device_vanish() */
};

struct settings;

void device_init(struct device *device, const struct settings *settings, int ordinal);
/* NULL for an ordinal that is out of range. */
struct device *device_find(CUdevice ordinal);
void device_fault(struct device *device, CUresult result); /* the first one stays */
/* The device falls off the bus, as far as this process sees: a fault, and besides none of its
 * memory can be made, exported, imported or mapped any more, nor does NVML know of it. Giving back
 * goes on. */
void device_vanish(struct device *device);
/* DEVICE_UNAVAILABLE for one that vanished; a device that this process does not have is fine. */
CUresult device_check(const struct device *device);
struct device *device_find_uuid(const char *uuid_text);
