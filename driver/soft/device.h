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

/* Made-up places on a bus that no machine has populated: domain 0xca1d, one slot per device. */
#define PCI_DOMAIN     0xca1d
#define SOFT_UUID_SIZE 41

struct context;

struct device {
    int index;        /* among all devices: for NVML, and its bus is one more */
    CUdevice ordinal; /* in this process; -2 for one that CUDA_VISIBLE_DEVICES hides */
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

/* ordinal is still -2. */
void device_init(struct device *device, const struct settings *settings, int index);
/* NULL for an ordinal that is out of range. */
struct device *device_find(CUdevice ordinal);
/* struct device *NAME: that one. Returns INVALID_DEVICE where there is none. */
#define DEVICE(name, ordinal)                   \
    struct device *name = device_find(ordinal); \
    RETURN_IF(name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE)
void device_fault(struct device *device, CUresult result); /* the first one stays */
/* The device falls off the bus, as far as this process sees: a fault, and besides none of its
 * memory can be made, exported, imported or mapped any more, nor does NVML know of it. Giving back
 * goes on. */
void device_vanish(struct device *device);
/* DEVICE_UNAVAILABLE for one that vanished; a device that this process does not have is fine. */
CUresult device_check(const struct device *device);
/* NOT_SUPPORTED where the attribute is 0: for calls that it stands for. */
CUresult device_has(CUdevice_attribute attribute);
/* Checks an entry point's device and output. */
CUresult device_arg(CUdevice ordinal, const void *out);
/* With "GPU-" before it or without. A hidden one, too. */
struct device *device_find_uuid(const char *uuid_text);
/* Whether the machine has a NUMA node of that number. */
bool host_node_exists(int node);

/* FNV-1a, from HASH_START on. */
#define HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n);
