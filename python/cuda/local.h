/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python package's calls of the CUDA driver that share nothing: a client without a daemon,
 * events, host memory, pointers, streams, files. All of it is of this process, and no daemon is
 * asked. It is no part of libcaid.so, and not installed: the extension and tests link the static
 * library. Results and errors as in caid.h.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "caid/caid.h"

/* ---- a client of no daemon ---- */

/* Opens a client of the driver alone, for the functions here, and for caid_copy() and
 * caid_stream_*() on memory of other libraries. driver: as in struct caid_connect_options, NULL
 * or "": $CAID_CUDA_DRIVER, or "auto". Device indices are the driver's ordinals. It is a client
 * whose connection was lost before it began: every call that needs the daemon fails with
 * CAID_ERR_NO_DAEMON. */
int cuda_driver_open(struct caid_client **ret, const char *driver, struct caid_error *error);

/* Fails with CAID_ERR_FORKED in a child after fork() of the process that made the client; takes no
 * lock, and makes no system call. */
int cuda_client_check(const struct caid_client *client, struct caid_error *error);

/* ---- pointers ---- */

/* Looks up a pointer of any library (cuPointerGetAttribute): gives its address on the device,
 * and the device's index, or -1 for a device that the client does not have. CAID_ERR_INVALID:
 * the device does not reach it. */
int cuda_pointer_resolve(struct caid_client *client, uint64_t ptr, uint64_t *ret_device_ptr,
                         int32_t *ret_device, struct caid_error *error);

/* Gives one of a pointer's attributes as a number; 0 where it has none. */
int cuda_pointer_attribute(struct caid_client *client, uint64_t ptr, uint32_t attribute,
                           uint64_t *ret, struct caid_error *error);

/* ---- page-locked host memory ---- */

enum cuda_host_flags {
    CUDA_HOST_PORTABLE = 1,       /* CU_MEMHOSTALLOC_PORTABLE: for every context */
    CUDA_HOST_MAPPED = 2,         /* CU_MEMHOSTALLOC_DEVICEMAP: the device reaches it */
    CUDA_HOST_WRITE_COMBINED = 4, /* CU_MEMHOSTALLOC_WRITECOMBINED; not to register */
};

/* Allocates memory (cuMemHostAlloc) in the primary context of device. ret_device_ptr may be
 * NULL; it is written if flags has CUDA_HOST_MAPPED. */
int cuda_host_alloc(struct caid_client *client, int32_t device, size_t nbytes, uint32_t flags,
                    void **ret, uint64_t *ret_device_ptr, struct caid_error *error);
int cuda_host_free(struct caid_client *client, int32_t device, void *ptr,
                   struct caid_error *error);

/* Page-locks memory of the caller's (cuMemHostRegister), and undoes it. */
int cuda_host_register(struct caid_client *client, int32_t device, void *ptr, size_t nbytes,
                       uint32_t flags, uint64_t *ret_device_ptr, struct caid_error *error);
int cuda_host_unregister(struct caid_client *client, int32_t device, void *ptr,
                         struct caid_error *error);

/* ---- files ---- */

struct cuda_file {
    int64_t fd;
    int64_t
        direct; /* the same file, open with O_DIRECT; -1: it is always read by the page cache */
};

struct cuda_stretch { /* of a file, and where it goes */
    uint64_t file;    /* index in files */
    uint64_t offset;  /* in it */
    uint64_t nbytes;
    uint64_t at; /* in each target */
};

struct cuda_target { /* memory that gets all stretches */
    int64_t device;  /* index; CUDA_TARGET_HOST: it is the host's */
    uint64_t ptr;
    uint64_t stream; /* of the device */
};

#define CUDA_TARGET_HOST (-1)
#define CUDA_TARGETS_MAX 16

struct cuda_reading { /* all of it is the caller's */
    const struct cuda_file *files;
    size_t n_files;
    const struct cuda_stretch *stretches;
    size_t n_stretches;
    const struct cuda_target *targets;
    size_t n_targets;
    /* Readable when ptr and stream of the targets are there, which devices need last: reading and
     * page-locking begin before. -1: they are. */
    int gate;
    unsigned n_threads;
    /* Shared with other threads: the bytes read so far, and whether to stop. */
    _Atomic uint64_t *done, *stop;
};

/* Reads all stretches, by several threads, once, and copies them to the targets; returns when the
 * copies are done, or soon after it is to stop (0). What the page cache lacks is read past it,
 * where a file is open so and its file system does it. Without a device among the targets no driver
 * is needed. ret_file: the file that could not be read, or -1; CAID_ERR_SYSTEM, with ENODATA where
 * it is too short. */
int cuda_read(struct caid_client *client, const struct cuda_reading *reading, int64_t *ret_file,
              struct caid_error *error);

/* ---- streams ---- */

/* caid_copy(), on a stream of its own: it comes after nothing, waits for nothing but itself, and
 * ends no capture of a graph, on whatever stream and in whichever thread that is. */
int cuda_copy_aside(struct caid_client *client, const struct caid_copy *given,
                    struct caid_error *error);
/* 1: nothing is left on it. 0: something is. */
int cuda_stream_query(struct caid_client *client, uint64_t stream, int32_t device,
                      struct caid_error *error);

/* Has a thread of the driver's call fn when the stream reaches this point
 * (cuStreamAddCallback()). fn may not call CUDA or libcaid. result: the CUresult of the work
 * before, or 0. */
int cuda_stream_add_callback(struct caid_client *client, uint64_t stream, int32_t device,
                             void (*fn)(int32_t result, void *userdata), void *userdata,
                             struct caid_error *error);

/* ---- events ---- */

/* A CUDA event. It holds the client, so that the primary context lives as long as the event, but
 * it cannot be used when the client is closed. */
struct cuda_event;

enum cuda_event_flags {
    CUDA_EVENT_IPC = 1,           /* has a handle for other processes of the same uid */
    CUDA_EVENT_BLOCKING_SYNC = 2, /* CU_EVENT_BLOCKING_SYNC */
    /* The first cuda_event_record() makes the event, in the context of its stream. Until then
     * the event counts as passed, and has no cuda_event_handle(). Not with CUDA_EVENT_IPC. */
    CUDA_EVENT_OF_STREAM = 4,
    CUDA_EVENT_TIMING = 8, /* for cuda_event_elapsed(); with neither of these two */
};

#define CUDA_EVENT_HANDLE_SIZE 64

/* Makes an event in the primary context of a device, if it is not CUDA_EVENT_OF_STREAM. */
int cuda_event_new(struct caid_client *client, struct cuda_event **ret, int32_t device,
                   uint32_t flags, struct caid_error *error);
/* Opens an event of another process (cuIpcOpenEventHandle()). A stream that waits for it hangs
 * for ever if that process is killed before its work is done; with a timeline it does not. */
int cuda_event_open(struct caid_client *client, struct cuda_event **ret, int32_t device,
                    const uint8_t handle[CUDA_EVENT_HANDLE_SIZE], struct caid_error *error);
/* CAID_ERR_UNSUPPORTED: it was made without CUDA_EVENT_IPC, or opened. */
int cuda_event_ipc_handle(struct cuda_event *event, uint8_t ret[CUDA_EVENT_HANDLE_SIZE],
                          struct caid_error *error);
/* A stream of another context: CAID_ERR_DEVICE. */
int cuda_event_record(struct cuda_event *event, uint64_t stream, struct caid_error *error);
int cuda_event_wait(struct cuda_event *event, uint64_t stream, struct caid_error *error);
int cuda_event_synchronize(struct cuda_event *event, struct caid_error *error);
/* 1: what was recorded has passed. */
int cuda_event_query(struct cuda_event *event, struct caid_error *error);
/* Milliseconds of the GPU's from one record to another, which have both passed. CAID_ERR_INVALID:
 * one of them was made without CUDA_EVENT_TIMING. */
int cuda_event_elapsed(const struct cuda_event *start, const struct cuda_event *end,
                       float *ret_ms, struct caid_error *error);
/* The CUevent, or 0. */
uint64_t cuda_event_handle(const struct cuda_event *event);
/* NULL is allowed. */
void cuda_event_free(struct cuda_event *event);
