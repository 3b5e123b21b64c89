/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease on an array. Made when the reply that grants it is taken (array_take()), mapped by
 * the thread that asked, ended by caid_array_close(). Where GPU work may still use it, it then
 * waits in the reaper's queue (reaper.h) before the daemon is told. It holds the client, and as
 * long as it exists its block stays mapped. When the connection has ended, the daemon has ended
 * the lease, and the mapping alone is left.
 *
 * An array of managed memory has no lease and no block: it is this process's own (managed.c).
 */
#pragma once

#include <stdatomic.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "cuda_abi.h"
#include "session/call.h"
#include "session/reaper.h"

struct block;
struct caid_client;

/* What is told of the array since it was published; freed with it, so that what was told before
 * stays valid. */
struct array_text {
    struct array_text *next;
    struct caid_array_info info;
    char text[];
};

struct caid_array {
    struct caid_client *client;
    struct block *block; /* NULL: no bytes, or managed */
    uint64_t lease;      /* 0: managed */
    bool is_given;       /* to a call that wants each once; under the client's lock */
    bool lost;   /* the lease, when the daemon was started anew; under the client's lock */
    uint64_t id; /* the daemon's number for it */
    LIST_ENTRY(caid_array) of_leases; /* lease_table.arrays, while it is leased */
    CUdeviceptr managed;              /* what cuMemFree() takes, or 0 */
    uint32_t place;                   /* gpu.h: that it is mapped for, if it has memory */
    struct array_text *texts;         /* under the client's lock */
    /* What caid_array_get_info() tells: of the last text, or info. */
    const struct caid_array_info *_Atomic current;

    /* Once closed (drain.h). */
    struct reaped reaped;

    struct {
        uint64_t primaries; /* the primary contexts, a bit for each place */
        CUcontext context;  /* another one, or event's; or NULL */
        CUevent event;      /* nothing else is waited for; or NULL */
        bool kept;          /* nobody knows whether it has drained: stays leased and mapped */
    } drain;

    struct caid_array_info info; /* as it was made */
    int64_t data[];              /* shape, strides, then the strings that info points to */
};

/* What an array is said to be; array_new() copies it. */
struct array_spec {
    struct msg_str typestr, descr, set, name, pool, metadata; /* set: before the name */
    const int64_t *shape, *strides;                           /* ndim each */
    uint32_t ndim;
    struct caid_array_info info; /* the numbers, and memory, which is static */
};

extern const struct feature array_feature;

/* NULL: no memory. It has no lease yet. */
struct caid_array *array_new(struct caid_client *client, const struct array_spec *spec);
/* Frees what is not leased, or no more. Not under the client's lock, unless a call runs. */
void array_free(struct caid_array *array);

/* Closes an array that no GPU work can use: nothing is waited for. */
void array_close_now(struct caid_array *array);

/* A request whose reply grants leases, as its caller has it. */
struct array_request {
    enum msg_method method;
    const void *params;
    const struct msg_str *names;          /* of those asked for, n_wanted; p NULL: unnamed */
    struct msg_str set;                   /* what their names begin with besides; or p NULL */
    const struct msg_create_params *made; /* of a create; NULL: an open */
    struct caid_array **arrays;           /* where they go: n_wanted of them */
    size_t n_wanted, n_got;
    uint64_t generation; /* of the first one got */
    int32_t refusal; /* the code that the daemon gave; 0: it was something else that failed */
    bool readonly;
    const char
        *device_uuid; /* UUID of the device that is to reach them; NULL: see gpu_find_place() */
};

/* Its call. Where it was left, the leases that come are given back at once, and an array that was
 * to be made under a name loses that, unless it has gone to another one. */
struct array_call {
    struct call call;
    struct array_request *request; /* its caller's */
    size_t n_wanted;
    uint64_t generation;         /* once it was left: of what came, or 0 */
    bool is_ours;                /* the name is that array's */
    struct msg_name_params name; /* p NULL: nothing is made under one */
    char text[];                 /* of the name */
};

/* struct call's take. */
int array_take(struct caid_client *client, struct call *base, const void *reply,
               struct call_fds *fds);

/* Makes the call and maps what it got; on failure nothing is left of it. */
int array_request_run(struct caid_client *client, struct array_request *request,
                      struct caid_error *error);

/* How many of the names one request can hold, with so many bytes beside each; at least one. */
uint32_t names_that_fit(const struct caid_client *client, const struct msg_str *names, size_t n,
                        size_t beside);
int names_collect(struct msg_str *ret, const char *const *names, size_t n,
                  struct caid_error *error);

#define TICKET_WORDS (CAID_TICKET_SIZE / sizeof(uint64_t))

/* Random. */
int ticket_draw(uint64_t words[TICKET_WORDS], struct caid_error *error);

/* caid_array_create() of "managed" memory; the options have been checked. */
int managed_create(struct caid_client *client, const struct caid_create_options *options,
                   struct caid_array **ret, struct caid_error *error);
