/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease on an array. It is made when the reply that grants it is taken (array_take()), mapped by
 * the thread that asked, and ended by caid_array_close(). If GPU work may still use it, it then
 * waits in the reaper's queue (reaper.h) before the daemon is told. It has a reference to the
 * client, and as long as it exists its block stays mapped. When the connection ends, the daemon
 * ends the lease, and only the mapping is left.
 *
 * An array of managed memory has no lease and no block: it belongs to this process (managed.c).
 */
#pragma once

#include <stdatomic.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "drain.h"
#include "session/call.h"

struct behind;
struct block;
struct caid_client;

/* The description of the array since it was published. It is freed with the array, so that pointers
 * that the program got before stay valid. */
struct array_text {
    struct array_text *next;
    struct caid_array_info info;
    char text[];
};

struct caid_array {
    struct caid_client *client;
    struct block *block; /* NULL: no bytes, or managed */
    uint64_t lease;      /* 0: managed */
    bool of_parts;       /* a set of parts, of one device's memory: their work is its own */
    bool wait_cancelled; /* caid_set_cancel(); under the client's lock */
    bool on_host;        /* and they are page-locked: those of all devices may use them */
    bool is_given;       /* a call that wants each array once has it; under the client's lock */
    bool lost;           /* the next daemon does not have the lease; under the client's lock */
    uint64_t id;         /* the daemon's number for it */
    LIST_ENTRY(caid_array) of_leases; /* lease_table.arrays, while it is leased */
    CUdeviceptr managed;              /* what cuMemFree() takes, or 0 */
    uint32_t place;           /* gpu.h: it is mapped for this device, if it has memory */
    struct behind *behind;    /* its last publication behind work; under the client's lock */
    struct array_text *texts; /* under the client's lock */
    /* What caid_array_get_info() returns: the info of the last text, or `info`. */
    const struct caid_array_info *_Atomic current;

    /* After the close (drain.h). */
    bool closed; /* under the client's lock */
    struct reaped reaped;
    struct caid_array
        *closed_with; /* whose leases end with this one; under the client's lock */

    struct drain drain;

    struct caid_array_info info; /* as the array was made */
    int64_t data[];              /* shape, strides, then the strings that info points to */
};

/* The description of a new array; array_new() copies it. */
struct array_spec {
    struct msg_str typestr, descr, set, name, pool, metadata; /* set: before the name */
    const int64_t *shape, *strides;                           /* ndim each */
    uint32_t ndim;
    struct caid_array_info info; /* numbers, and the static string `memory` */
};

extern const struct feature array_feature;

/* An array without a lease. NULL: out of memory. */
struct caid_array *array_new(struct caid_client *client, const struct array_spec *spec);
/* Frees an array without a lease. Not under the client's lock, unless a call runs. */
void array_free(struct caid_array *array);

/* Its block is at another address. Under the client's lock. */
void array_move(struct caid_array *array, CUdeviceptr block);

/* Closes an array that no GPU work can use: nothing is waited for. */
void array_close_now(struct caid_array *array);
/* Ends the lease of a closed array, and frees it. Under the client's lock; a call runs. */
void array_end(struct caid_array *array);

/* A request whose reply grants leases; it belongs to its caller. */
struct array_request {
    enum msg_method method;
    const void *params;
    const struct msg_str *names;          /* of the n_wanted arrays; p NULL: unnamed */
    struct msg_str set;                   /* a prefix of all names; or p NULL */
    const struct msg_create_params *made; /* of a create; NULL: an open */
    struct caid_array **arrays;           /* room for n_wanted arrays */
    size_t n_wanted, n_got;
    uint64_t generation; /* of the first array */
    int32_t refusal;     /* the daemon's error code; 0: it has not refused */
    bool readonly;
    bool host_only; /* as caid_open_options */
    const char
        *device_uuid; /* UUID of the device that is to reach them; NULL: see gpu_find_place() */
};

/* The call of such a request. If it was left, leases that are granted are given back at once, and
 * an array that was made under a name loses the name, unless another array has it by then. */
struct array_call {
    struct call call;
    struct array_request *request; /* the caller's */
    size_t n_wanted;
    uint64_t generation;         /* after it was left: of the array that was made, or 0 */
    bool is_ours;                /* the name is still that array's */
    struct msg_name_params name; /* p NULL: it makes nothing under a name */
    char text[];                 /* name and pool */
};

/* struct call's take. */
int array_take(struct caid_client *client, struct call *base, const void *reply,
               struct call_fds *fds);

/* Makes the call, and maps the arrays that it got. On failure no array is left. */
int array_request_run(struct caid_client *client, struct array_request *request,
                      struct caid_error *error);

/* How many of the names fit into one request, with `beside` more bytes each; at least one. */
uint32_t names_that_fit(const struct caid_client *client, const struct msg_str *names, size_t n,
                        size_t beside);
int names_collect(struct msg_str *ret, const char *const *names, size_t n,
                  struct caid_error *error);

#define TICKET_WORDS (CAID_TICKET_SIZE / sizeof(uint64_t))

/* Makes a random ticket. */
int ticket_draw(uint64_t words[TICKET_WORDS], struct caid_error *error);

/* caid_array_create() of "managed" memory; the options have been checked. */
int managed_create(struct caid_client *client, const struct caid_create_options *options,
                   struct caid_array **ret, struct caid_error *error);
