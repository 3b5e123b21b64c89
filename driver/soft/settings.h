/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment says, read once when the driver is set up:
 *   CAID_SOFTCUDA_DEVICES      number of devices (1); 0 is a machine without a GPU
 *   CAID_SOFTCUDA_MEMORY       bytes of each device (4G); K, M, G and T are powers of 1024
 *   CAID_SOFTCUDA_NAME         name of the devices ("caid software device")
 *   CAID_SOFTCUDA_UUID         UUID of device 0, with or without "GPU-"; others follow from it
 *   CAID_SOFTCUDA_DELAY_US     stretches every asynchronous operation (0)
 *   CAID_SOFTCUDA_JITTER_SEED  makes the stretch a random share of the delay, by this seed
 *   CAID_SOFTCUDA_ATTRIBUTES   attributes of the devices that are other than usual, "122=0,20=3"
 *   CAID_SOFTCUDA_PERSISTENCE  whether NVML says that persistence mode is on (1)
 *   CUDA_VISIBLE_DEVICES       as for a real driver (visible.h)
 * and, read at the first call of all (call.h):
 *   CAID_SOFTCUDA_FAIL         which calls go wrong, and how (fault.h)
 *   CAID_SOFTCUDA_TRACE        a file that gets a line for each call (trace.h)
 *   CAID_SOFTCUDA_CONTROL      where commands are taken (control.h)
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define MAX_DELAY_US        UINT64_C(60000000)
#define SETTINGS_ATTRIBUTES (CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED + 1)

struct setting_attribute {
    bool set;
    int value;
};

struct settings {
    int n_devices;
    uint64_t memory; /* bytes, a multiple of the granularity */
    char name[128];
    CUuuid uuid;
    struct setting_attribute attributes[SETTINGS_ATTRIBUTES]; /* by CUdevice_attribute */
    bool persistence;
    _Atomic uint64_t delay_ns; /* these three may be changed meanwhile */
    _Atomic bool jitter;
    _Atomic uint64_t jitter_seed;
};

/* 0, or -EINVAL after a line on stderr that names the setting: a driver that ran with half of
 * what it was told would be worse than none. */
int settings_read(struct settings *ret);
/* Writes that line; returns -EINVAL. */
int settings_complain(const char *name, const char *value, const char *want);
/* A decimal number up to max, followed by suffix, which may be NULL for none; -EINVAL for all else. */
int settings_number(const char *text, uint64_t max, const char **suffix, uint64_t *ret);
