/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client needs of CUDA: the driver, opened when the first array is mapped; which of this
 * process's devices is which of the daemon's, by UUID; and each device's primary context,
 * retained at the first copy and given back with the client. Everything is made under `lock`,
 * and does not change once it is there.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "drv.h"

struct caid_client;

struct gpu_device {
    bool visible; /* in this process: CUDA_VISIBLE_DEVICES may hide it */
    CUdevice ordinal;
    CUcontext context; /* NULL: not retained yet */
};

struct gpu {
    pthread_mutex_t lock;
    char *choice; /* for drv_open() */
    struct drv *drv;
    struct gpu_device *devices; /* as many as client->n_devices */
};

/* choice is copied. */
int gpu_init(struct gpu *gpu, const char *choice, uint32_t n_devices);
/* Gives contexts and driver back. */
void gpu_deinit(struct gpu *gpu, uint32_t n_devices);
/* Frees host memory only: in a child after fork(). */
void gpu_abandon(struct gpu *gpu);

/* The driver; opened now if need be. */
int gpu_driver(struct caid_client *client, const struct drv **ret, struct caid_error *error);

/* The driver and this process's ordinal of a device. CAID_ERR_DEVICE: not visible here. */
int gpu_ordinal(struct caid_client *client, int32_t device, const struct drv **ret_drv,
                CUdevice *ret, struct caid_error *error);

/* Makes the device's primary context the thread's current one until gpu_pop(): what was current
 * is so again then. */
int gpu_push(struct caid_client *client, int32_t device, const struct drv **ret_drv,
             struct caid_error *error);
void gpu_pop(const struct drv *drv);

/* The index of the daemon's device that has this ordinal here, or -1. The driver is open. */
int32_t gpu_find_ordinal(const struct caid_client *client, CUdevice ordinal);

/* Fails with the CUresult of call. */
int gpu_fail(const struct drv *drv, const char *call, CUresult result, const char *doing,
             struct caid_error *error);
