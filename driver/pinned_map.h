/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page-locked host memory that processes share: a memfd, mapped here and registered with the
 * driver (cuMemHostRegister), so that the GPU reaches it, too. One mapping per kind of mode;
 * a read-only one is so for the CPU (PROT_READ) and for the GPU (READ_ONLY). Portable: every
 * context of the process may use it.
 *
 * Registering, and freeing what is registered, need a current context. That waits while a stream
 * waits on a value. The rest makes no driver call.
 */
#pragma once

#include "drv.h"
#include "vmm.h"

struct pinned_map {
    void *host; /* NULL: none */
    bool registered;
    CUdeviceptr ptr; /* where that is so: the device's */
    size_t size;
};

/* fd is borrowed, and has to be sealed against shrinking and of at least size bytes (-EINVAL):
 * a page that vanished would end the process that touches it. Nothing is left behind on
 * failure. */
int pinned_map_new(int fd, size_t size, enum vmm_mode mode, struct pinned_map *ret,
                   struct drv_error *err);
/* For the GPU, too, if it is not so yet. The map is as it was on failure. */
int pinned_map_register(const struct drv *drv, struct pinned_map *map, enum vmm_mode mode,
                        struct drv_error *err);
/* Takes it from the driver, and keeps it mapped for the host. */
int pinned_map_unregister(const struct drv *drv, struct pinned_map *map, struct drv_error *err);
/* Leaves the map as it is where the driver does not let it go. */
CUresult pinned_map_free(const struct drv *drv, struct pinned_map *map);
/* Unmaps what no context has registered any more. */
void pinned_map_drop(struct pinned_map *map);
