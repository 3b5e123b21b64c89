/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for the GPU work that may still use an array which is closed, or that writes one which is
 * to be published. The call notes the work; another thread waits for it later. Work on a closed
 * array whose context is dead or gone counts as ended. Where a context cannot be waited for (a
 * stream in it captures a graph while the client ends; the driver has no memory; ...), the array is
 * kept, leased and mapped, and the daemon does not reuse its memory before the process has exited.
 */
#pragma once

#include <stdbool.h>

#include "caid/caid.h"

#include "cuda_abi.h"
#include "session/reaper.h"

struct caid_array;
struct caid_client;

/* Work that was noted. */
struct drain {
    uint64_t primaries; /* the primary contexts, a bit for each place */
    CUcontext context;  /* another context, or that of event; or NULL */
    CUevent event;      /* if not NULL, only this is waited for */
    bool kept; /* whether it has drained cannot be known: the array stays leased and mapped */
};

/* Notes the contexts that may use the array: the primary one of the device that it is mapped for
 * (for pinned and managed memory, of every device), and this thread's current one. false: there is
 * none. */
bool drain_note_contexts(struct caid_array *array);

/* Notes that only the work that is on this stream by now is to be waited for. */
int drain_note_stream(struct caid_array *array, uint64_t stream, struct caid_error *error);

/* Notes the work that is on the stream by now or, if that is 0, all work of the primary contexts
 * and of the thread's current one. place: whose stream 1 and 2 are, if no context is current. The
 * driver is open. */
int drain_note_work(struct caid_client *client, uint32_t place, uint64_t stream,
                    struct drain *ret, struct caid_error *error);
/* Takes back what was noted, and waits for nothing. */
void drain_forget(struct caid_client *client, struct drain *work);
/* Waits for it. Fails if the work has failed, or if it cannot be known whether it has ended. No
 * lock is held. */
int drain_wait(struct caid_client *client, struct drain *work, struct caid_error *error);

/* Waits for the noted work of all arrays, once for each context, and frees managed memory. Marks
 * the arrays that are to be kept. No lock is held. */
void drain_arrays(struct caid_client *client, const struct reaped_queue *arrays);

/* Waits for all work of the primary contexts of these places, a bit each, that are active, and
 * of the thread's current one. CAID_ERR_INVALID: a stream captures a graph: one of those given,
 * or any that the legacy default stream tells of. Of another one the wait tells, which ends its
 * capture. */
int drain_contexts(struct caid_client *client, uint64_t places, const uint64_t *streams,
                   size_t n_streams, struct caid_error *error);

/* Waits for all work of the array's contexts or, if stream is not 0, of that stream. Fails if the
 * work has failed. */
int drain_writes(struct caid_array *array, uint64_t stream, struct caid_error *error);
