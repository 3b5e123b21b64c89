/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client needs of CUDA: the driver, opened when the first array is mapped; this
 * process's devices, and which of them is which of the daemon's, by UUID (CUDA_VISIBLE_DEVICES
 * may hide some and number the others anew); and each device's primary context, retained at the
 * first use and given back with the client. Everything is made under `lock`, and does not
 * change once it is there.
 *
 * A device of this process is named by its place in gpu.devices, a device of the daemon's by
 * its index in client->devices.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "drv.h"

struct caid_client;

/* Devices of a process that can be told apart in a word of bits; more are not listed. */
#define GPU_PLACES_MAX 64

struct gpu_device {
    CUdevice ordinal;
    char uuid[DRV_UUID_SIZE];
    int32_t index;              /* of the daemon's device; -1: the daemon has not got it */
    _Atomic(CUcontext) context; /* NULL: not retained yet */
};

struct gpu {
    pthread_mutex_t lock;
    char *choice;              /* for drv_open() */
    _Atomic(struct drv *) drv; /* NULL: not opened yet; set last */
    struct gpu_device *devices;
    uint32_t n_devices;
};

extern const struct feature gpu_feature;

/* choice is copied. */
int gpu_init(struct gpu *gpu, const char *choice);

/* drv_open(), for a process that may be a child after fork() of one that has used CUDA: then
 * CAID_ERR_FORKED, and what to do instead. */
int gpu_load(struct drv **ret, const char *choice, struct caid_error *error);

/* The driver; opened now if need be. */
int gpu_driver(struct caid_client *client, const struct drv **ret, struct caid_error *error);

/* Where memory of the daemon's device `index` is reached from: the device of this process that
 * device_uuid names; without it the same device, or the first one where that is hidden.
 * Opens the driver. CAID_ERR_DEVICE. */
int gpu_find_place(struct caid_client *client, int32_t index, const char *device_uuid,
                   uint32_t *ret, struct caid_error *error);

/* The primary context of a place, retained for as long as the client lives. */
int gpu_context(struct caid_client *client, uint32_t place, CUcontext *ret,
                struct caid_error *error);

/* Makes the primary context the thread's current one until gpu_pop(): what was current is so
 * again then. gpu_push() takes an index as gpu_find_place() without device_uuid. */
int gpu_push_place(struct caid_client *client, uint32_t place, const struct drv **ret_drv,
                   struct caid_error *error);
int gpu_push(struct caid_client *client, int32_t index, const struct drv **ret_drv,
             struct caid_error *error);
/* The same of a context that is there; doing: for the error. */
int gpu_push_context(struct caid_client *client, CUcontext context, const char *doing,
                     const struct drv **ret_drv, struct caid_error *error);
void gpu_pop(const struct drv *drv);

/* The device that has this ordinal here, or NULL. The driver is open. */
const struct gpu_device *gpu_find_ordinal(const struct gpu *gpu, CUdevice ordinal);

/* Whether the answer is that of a context in which nothing runs any more. */
bool gpu_is_dead(CUresult result);
/* The same, or of one that is there no more. */
bool gpu_is_gone(CUresult result);

/* Whether that is the answer of work that nobody has to wait for any more. */
bool gpu_is_over(CUresult result);

/* Whether that is the answer to a question that a capture of a graph forbids. */
bool gpu_is_capturing(CUresult result);

/* Whether the stream captures a graph, or, of a default stream, one does that it would wait for:
 * asking ends no capture. Such a stream's context is the current one. */
CUresult gpu_captures(const struct drv *drv, CUstream stream, bool *ret);

/* The thread's current context, or NULL. */
CUcontext gpu_current(const struct drv *drv);

/* Waits for the event, or, where that is NULL, for all work of the context; with the thread's
 * capture mode relaxed meanwhile. Not under a lock. */
CUresult gpu_synchronize(const struct drv *drv, CUcontext context, CUevent event);

/* What the CUresult of call comes to: 0, or an error. */
int gpu_result(const struct drv *drv, const char *call, CUresult result, const char *doing,
               struct caid_error *error);
