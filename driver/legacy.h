/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is shared by 64-byte handles (CUDA Driver API 6.12, cuIpc*), for consumers that know
 * nothing else: the side of the process that owns it. All of it needs a context.
 *
 * legacy_alloc is memory of cuMemAlloc. It is the owner's until it is released: another process
 * that has it open then has memory that may be anybody's, so whoever releases it must know that
 * nobody has.
 *
 * No function leaves another context current than it found. All may block; the first
 * legacy_context_retain() of a process, and the first after all were released, takes some 100 ms
 * and half a GiB of the device.
 */
#pragma once

#include <stdbool.h>

#include "drv.h"

/* Whether the device can share memory so, as far as it says in advance. */
bool legacy_is_supported(const struct drv *drv, CUdevice device);

/* The primary context, to be given back by legacy_context_release(). What is in it ends there. */
int legacy_context_retain(const struct drv *drv, CUdevice device, CUcontext *ret,
                          struct drv_error *err);
int legacy_context_release(const struct drv *drv, CUdevice device, struct drv_error *err);

struct legacy_alloc {
    CUdeviceptr ptr;
    size_t size;
};

int legacy_alloc_create(const struct drv *drv, CUcontext context, size_t size,
                        struct legacy_alloc *ret, struct drv_error *err);
/* The handle is the same each time, and good for any process but this one. */
int legacy_alloc_export(const struct drv *drv, CUcontext context,
                        const struct legacy_alloc *alloc, CUipcMemHandle *ret,
                        struct drv_error *err);
/* Waits for the work of the context. Done either way, as vmm_alloc_release(). */
int legacy_alloc_release(const struct drv *drv, CUcontext context, struct legacy_alloc *alloc,
                         struct drv_error *err);
