/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of DLPack's ABI that is used here, as include/dlpack/dlpack.h of
 * https://github.com/dmlc/dlpack has it at version 1.1. The ABI does not change within a major
 * version.
 */
#pragma once

#include <stdint.h>

#define DL_VERSION_MAJOR 1
#define DL_VERSION_MINOR \
    1 /* the floats of 4, 6 and 8 bits, and the flag of types in whole bytes */

/* Names of capsules, before and after a consumer has taken the tensor. */
#define DL_NAME                "dltensor"
#define DL_NAME_USED           "used_dltensor"
#define DL_NAME_VERSIONED      "dltensor_versioned"
#define DL_NAME_VERSIONED_USED "used_dltensor_versioned"

struct dl_version {
    uint32_t major, minor;
};

struct dl_device {
    int32_t type; /* DLDeviceType: an enum, of the size of int */
    int32_t id;
};

struct dl_dtype {
    uint8_t code; /* DLDataTypeCode */
    uint8_t bits;
    uint16_t lanes;
};

struct dl_tensor {
    void *data; /* NULL where there are no elements */
    struct dl_device device;
    int32_t ndim;
    struct dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL, of producers before version 1: C order */
    uint64_t byte_offset;
};

/* A tensor and its deleter, which may be NULL. The consumer calls it once, from any thread. */
struct dl_managed {
    struct dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct dl_managed *self);
};

/* The same with a version. The fields before `tensor` are the same in every major version. */
struct dl_managed_versioned {
    struct dl_version version;
    void *manager_ctx;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(struct dl_tensor) == 48 && sizeof(struct dl_managed) == 64 &&
                    sizeof(struct dl_managed_versioned) == 80),
               "the layout is not DLPack's");
