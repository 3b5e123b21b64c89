/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's driver, and its devices whose memory can be shared. Opened once at the start,
 * read-only after, used from any thread.
 */
#pragma once

#include "core.h"
#include "drv.h"

struct gpu_device {
    struct drv_device drv;
    bool lacks[N_KINDS]; /* kinds of memory that the device cannot share */
    enum core_handoff handoff;
    bool rdma;               /* network cards can be given its blocks */
    const char *persistence; /* "on", "off", NULL: not known */
};

struct gpu {
    struct drv *drv;
    struct gpu_device *devices; /* by a device's number on the wire */
    size_t n_devices;
};

/* choice: "auto", "cuda", "soft" or a path. handoff: of all devices that can do it, an enum
 * core_handoff, or HANDOFF_AUTO of value.h. rdma: whether network cards can be given blocks, or
 * FLAG_AUTO. -ENODEV: no driver answers, or no device can be shared;
 * err says why. Logs the devices that are left out. */
int gpu_open(struct gpu *ret, const char *choice, int handoff, int rdma, struct drv_error *err);
void gpu_deinit(struct gpu *g);
