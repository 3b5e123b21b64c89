/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's part of CUDA: the driver, opened when the first array is mapped; this process's
 * devices, each with the daemon's index of the same UUID (CUDA_VISIBLE_DEVICES may hide some and
 * number the others anew); and each device's primary context, retained at the first use and
 * released with the client. Everything is made under `lock`, and does not change after that.
 *
 * A device of this process is known by its place in gpu.devices, a device of the daemon by its
 * index in client->devices.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "drv.h"

struct caid_client;

/* A set of places is a word of bits: further devices are not listed. */
#define GPU_PLACES_MAX 64

struct gpu_device {
    CUdevice ordinal;
    char uuid[DRV_UUID_SIZE];
    char pci[DRV_PCI_SIZE];
    int32_t index;              /* of the daemon's device; -1: the daemon does not have it */
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

/* As drv_open(). CAID_ERR_FORKED: this process is a child after fork() of one that has used CUDA;
 * the error says what to do instead. */
int gpu_load(struct drv **ret, const char *choice, struct caid_error *error);

/* The driver, which is opened now if it is not yet. */
int gpu_driver(struct caid_client *client, const struct drv **ret, struct caid_error *error);
/* The driver, if it has been opened; else NULL. */
const struct drv *gpu_opened(struct caid_client *client);

/* From which place memory of the daemon's device `index` is used: that of device_uuid; without it,
 * that of the same device or, where that is hidden, the first place. Opens the driver.
 * CAID_ERR_DEVICE. */
int gpu_find_place(struct caid_client *client, int32_t index, const char *device_uuid,
                   uint32_t *ret, struct caid_error *error);

/* The primary context of a place, retained as long as the client lives. */
int gpu_context(struct caid_client *client, uint32_t place, CUcontext *ret,
                struct caid_error *error);

/* Makes the primary context the thread's current one until gpu_pop(), which restores the one
 * before. gpu_push() takes an index, as gpu_find_place() without device_uuid. */
int gpu_push_place(struct caid_client *client, uint32_t place, const struct drv **ret_drv,
                   struct caid_error *error);
int gpu_push(struct caid_client *client, int32_t index, const struct drv **ret_drv,
             struct caid_error *error);
/* The same for an existing context. doing: for the error. */
int gpu_push_context(struct caid_client *client, CUcontext context, const char *doing,
                     const struct drv **ret_drv, struct caid_error *error);
void gpu_pop(const struct drv *drv);

/* The device that has this ordinal here, or NULL. The driver is open. */
const struct gpu_device *gpu_find_ordinal(const struct gpu *gpu, CUdevice ordinal);
/* This process's device that is the daemon's of that index. NULL: it does not see that one. */
const struct gpu_device *gpu_find_index(const struct gpu *gpu, int32_t index);

/* Whether the result says that the context is dead: nothing runs in it any more. */
bool gpu_is_dead(CUresult result);
/* The same, or that it does not exist any more. */
bool gpu_is_gone(CUresult result);

/* Whether the result of a wait says that the work has ended. */
bool gpu_is_over(CUresult result);

/* Whether the result says that the call is forbidden while a graph is captured. */
bool gpu_is_capturing(CUresult result);

/* Whether the stream captures a graph; for a default stream, whether a stream does that it would
 * wait for. This does not end a capture. A default stream is that of the current context. */
CUresult gpu_captures(const struct drv *drv, CUstream stream, bool *ret);

/* The thread's current context, or NULL. */
CUcontext gpu_current(const struct drv *drv);

/* From gpu_relax() on, until gpu_unrelax() is given what that gave, this thread's driver calls do
 * not end captures of other threads. */
int gpu_relax(const struct drv *drv);
void gpu_unrelax(const struct drv *drv, int before);

/* Waits for the event or, if that is NULL, for all work of the context. The thread's capture mode
 * is relaxed meanwhile. Not under a lock. */
CUresult gpu_synchronize(const struct drv *drv, CUcontext context, CUevent event);

/* 0, or the error for the result of the driver call. */
int gpu_result(const struct drv *drv, const char *call, CUresult result, const char *doing,
               struct caid_error *error);
