/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver as a table of functions. Which library answers is a choice made once, at
 * drv_open(): NVIDIA's libcuda.so.1, the software driver, or a path. Entry points are looked up
 * by cuGetProcAddress_v2 with the version of symbols.def pinned, so that a newer driver cannot
 * hand out another ABI; what a driver lacks is a stub that answers CUDA_ERROR_NOT_FOUND, never
 * a null pointer.
 *
 * A struct drv is immutable after drv_open() and may be used from any thread. It is never
 * unloaded: CUDA drivers do not support dlclose(3) after cuInit.
 *
 * A CUresult leaves driver/ only as a number in a struct drv_error. Functions return 0 or
 * -errno: OUT_OF_MEMORY -ENOMEM, INVALID_VALUE -EINVAL, NOT_SUPPORTED -ENOTSUP, NO_DEVICE and
 * INVALID_DEVICE -ENODEV, NOT_PERMITTED -EPERM, NOT_FOUND -ENOSYS, all else -EIO.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

enum drv_kind {
    DRV_CUDA,
    DRV_SOFT
};

struct drv_error {
    int result;        /* CUresult, or 0 when no driver call failed */
    const char *call;  /* static: "cuMemCreate" */
    char message[256]; /* "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" */
};

/* The table: one member per row of symbols.def, named as the function: drv->cu.cuMemCreate. */
struct drv_table {
#define SYMBOL(name, lookup, version, ret, args) ret(*name) args;
#include "symbols.def"
#undef SYMBOL
};

struct drv {
    enum drv_kind kind;
    char *path;  /* of the library that answers */
    int version; /* cuDriverGetVersion: 13000 */
    struct drv_table cu;
    struct nvml *nvml; /* NULL where the library has none */
};

/* choice: "auto", "cuda", "soft" or a path; NULL means $CAID_CUDA_DRIVER, or "auto". "auto" is
 * the real driver where it finds a device, else the software one. cuInit has been called.
 * -ENODEV: no driver, or no device. -EINVAL: an unknown choice. err may be NULL; after a success
 * its message is empty or, where "auto" gave the software driver, why the real one was not
 * taken. */
int drv_open(struct drv **ret, const char *choice, struct drv_error *err);
struct drv *drv_free(struct drv *drv);

const char *drv_kind_name(enum drv_kind kind); /* "cuda", "soft" */

/* The path of libcaid-softcuda.so that belongs to this build: beside this code's own file, in
 * ../lib or ../lib/caid, in its parent folder, or where it was to be installed. -ENOENT. */
int drv_soft_path(char *ret_path, size_t size);

/* Fills err for a failed call (err may be NULL) and returns the errno above; 0 for SUCCESS. */
int drv_fail(const struct drv *drv, struct drv_error *err, const char *call, CUresult result);
/* A call of the table's, and drv_fail() with what it says. */
#define DRV_CALL(drv, err, call, ...) drv_fail(drv, err, #call, (drv)->cu.call(__VA_ARGS__))

/* UUID as the text that NVML and the wire use: "GPU-%08x-%04x-%04x-%04x-%012x". */
#define DRV_UUID_SIZE 41
#define DRV_PCI_SIZE  16

struct drv_device {
    CUdevice ordinal;
    char uuid[DRV_UUID_SIZE];
    char pci[DRV_PCI_SIZE]; /* "0000:65:00.0" */
    char name[128];
    size_t total;       /* bytes */
    size_t granularity; /* bytes, of VMM allocations (minimum); 0 without vmm_fd */
    bool vmm_fd;        /* VMM with POSIX fd handles */
    bool ipc;           /* legacy handles, of memory and events */
    bool memops;        /* stream memory operations of 64 bits */
    bool readonly_host; /* registers host memory that is mapped for reading */
    bool fabric;        /* VMM with fabric handles, as the device says: vmm_try_fabric() */
    bool rdma;          /* network cards can be given its VMM memory: gpuDirectRDMACapable */
    bool mps;           /* contexts of this process are MPS clients' */
    /* "default", "exclusive", "prohibited"; NULL: not known. Static. */
    const char *compute_mode;
};

int drv_device_count(const struct drv *drv, int *ret_n, struct drv_error *err);
int drv_device_get(const struct drv *drv, int ordinal, struct drv_device *ret,
                   struct drv_error *err);

/* Free and total bytes of a device with no context: NVML, by UUID. -ENOSYS without NVML. */
int drv_memory_info(const struct drv *drv, const char *uuid, uint64_t *ret_free,
                    uint64_t *ret_total, struct drv_error *err);
/* Whether the kernel's driver stays initialised for a device that nobody uses. -ENOSYS where
 * that is not known: no NVML, or none that tells. */
int drv_persistence(const struct drv *drv, const char *uuid, bool *ret_on);
