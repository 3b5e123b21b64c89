/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver that the daemon works with, and those of its devices that it can share memory of.
 * Opened once at the start, read-only after, used from any thread.
 */
#pragma once

#include "core.h"
#include "drv.h"

struct gpu_device {
    struct drv_device drv;
    bool lacks[N_KINDS]; /* kinds of memory that it cannot share */
    enum core_handoff handoff;
    const char *persistence; /* "on", "off", NULL: not known */
};

struct gpu {
    struct drv *drv;
    struct gpu_device *devices; /* a device's number on the wire is its place here */
    size_t n_devices;
};

/* choice: "auto", "cuda", "soft" or a path. handoff: for all devices that can do it, an enum
 * core_handoff, or HANDOFF_AUTO of value.h. -ENODEV where no driver answers or no device will
 * do; err says why. Devices that are left out are logged. */
int gpu_open(struct gpu *ret, const char *choice, int handoff, struct drv_error *err);
void gpu_deinit(struct gpu *g);
