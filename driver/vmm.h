/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management (CUDA Driver API 6.14) as two objects with one undo each.
 *
 * vmm_alloc is memory: made by cuMemCreate, or imported from an fd. It owns its driver handle.
 * The memory itself lives until the last handle, mapping and exported fd is gone, in any
 * process.
 * vmm_map is an address range with an allocation mapped in whole (another size is refused by
 * the driver) and one mode, for one device or more: over the peer link. It does not need the
 * vmm_alloc any more once it exists.
 *
 * No function here needs a CUDA context. All may block for up to milliseconds.
 */
#pragma once

#include <stdbool.h>

#include "drv.h"

enum vmm_mode {
    VMM_READ = 1,
    VMM_READ_WRITE = 3
}; /* CUmemAccess_flags */

struct vmm_alloc {
    CUmemGenericAllocationHandle handle;
    size_t size;
};

/* size is rounded up to the granularity by the caller. Shareable as a POSIX fd. rdma: network cards
 * can be given it, if the device can do that (drv_device.rdma). */
int vmm_alloc_create(const struct drv *drv, int ordinal, size_t size, bool rdma,
                     struct vmm_alloc *ret, struct drv_error *err);
/* Makes such memory that is shareable by a fabric handle, and gives it back. */
int vmm_try_fabric(const struct drv *drv, int ordinal, size_t size, struct drv_error *err);
/* fd is borrowed: the import keeps its own reference. size is the exact size of the allocation.
 * */
int vmm_alloc_import(const struct drv *drv, int fd, size_t size, struct vmm_alloc *ret,
                     struct drv_error *err);
/* A new CLOEXEC fd. Once per allocation: an export costs 0.6-0.9 ms, and an imported handle
 * cannot be exported again (-EINVAL). */
int vmm_alloc_export(const struct drv *drv, const struct vmm_alloc *alloc, int *ret_fd,
                     struct drv_error *err);
/* Returns the driver's answer, too: a release may report an earlier failure. Done either way.
 * */
int vmm_alloc_release(const struct drv *drv, struct vmm_alloc *alloc, struct drv_error *err);

struct vmm_map {
    CUdeviceptr ptr;
    size_t size;
    enum vmm_mode mode;
    bool parked;   /* nothing is mapped there now */
    bool borrowed; /* the range is somebody else's, who frees it */
};

/* Maps alloc for the device ordinal, at an address in a range that somebody has reserved, or (0) in
 * one of its own. On failure nothing stays reserved. */
int vmm_map_new(const struct drv *drv, const struct vmm_alloc *alloc, CUdeviceptr at,
                int ordinal, enum vmm_mode mode, struct vmm_map *ret, struct drv_error *err);
/* Unmaps, and keeps the range. */
int vmm_map_park(const struct drv *drv, struct vmm_map *map, struct drv_error *err);
/* Maps the same allocation there again, for that device. Stays parked on failure. */
int vmm_map_unpark(const struct drv *drv, struct vmm_map *map, const struct vmm_alloc *alloc,
                   int ordinal, struct drv_error *err);
/* Lets one more device reach it, with the same mode. Changes nothing on failure. */
int vmm_map_allow(const struct drv *drv, const struct vmm_map *map, int ordinal,
                  struct drv_error *err);
/* Unmaps and frees the range, if it is its own; takes a zeroed map. */
void vmm_map_free(const struct drv *drv, struct vmm_map *map);
