/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of another process, opened by its 64-byte handle (CUDA Driver API,
 * cuIpcOpenMemHandle). It belongs to the context that was current when it was opened, and may
 * be open in one context of a device at a time. The process that made the handle cannot open it
 * (-EIO, INVALID_CONTEXT).
 *
 * All of it needs the context to be current. Closing waits for the work of the context.
 */
#pragma once

#include "drv.h"

/* The whole allocation's address. -EINVAL: it has less than `size` bytes. */
int legacy_map_new(const struct drv *drv, const uint8_t handle[CU_IPC_HANDLE_SIZE], size_t size,
                   CUdeviceptr *ret, struct drv_error *err);
/* Failures are not reported: the driver may give an earlier launch's error. */
void legacy_map_free(const struct drv *drv, CUdeviceptr ptr);
