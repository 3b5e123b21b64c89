/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment says of the devices and their streams, read once when the driver is set up:
 * README.md has the list. visible.c reads CUDA_VISIBLE_DEVICES, and call.c, at the first call of
 * all, what there is for tests: CAID_SOFTCUDA_FAIL, _TRACE and _CONTROL.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define MAX_DELAY_US UINT64_C(60000000)
#define N_ATTRIBUTES (CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED + 1)

/* What devices say of themselves unless they are set to something else; device.c has the table. */
extern const int attribute_defaults[N_ATTRIBUTES];

struct settings {
    int n_devices;
    uint64_t memory; /* bytes, a multiple of the granularity */
    char name[128];
    CUuuid uuid;
    int attributes[N_ATTRIBUTES]; /* by CUdevice_attribute */
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
/* A decimal number up to max, followed by suffix, which may be NULL for none; -EINVAL for all
 * else. */
int settings_number(const char *text, uint64_t max, const char **suffix, uint64_t *ret);
