/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane is caid's state of a stream of this process: the slot that it signals, and the fences that
 * it waits for. It is found by cuStreamGetId(), since handles are reused, and 2 is another stream
 * in every thread. Without that function (before CUDA 12.0) hand-off is by the host only, and the
 * lane is found by handle and context. Then a slot whose last signal has not landed is never
 * signalled again, since the stream may be another one by now.
 *
 * Life: made when a stream is used for the first time. The driver does not say when a stream is
 * destroyed. A lane without references that waits for nothing and has no loss to report is freed
 * when there are many. A slot whose last value has landed may go to another lane, and goes on
 * counting there.
 *
 * Locks. client->lanes->lock guards the table, and which lane has which slot. lane->lock guards the
 * lane. It is held over driver calls, so that values are stored in the order in which they were
 * enqueued, and while the daemon is told of them: an end must not overtake another one of the same
 * slot. Order: lane->lock, then lanes.lock, then page->lock; the client's lock may be taken under
 * lane->lock, never the other way.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "base/tree.h"
#include "drv.h"
#include "fence.h"
#include "page.h"

struct caid_array;
struct caid_client;
struct stream;

/* How streams of a device wait for those of other processes; the daemon decides. */
enum handoff {
    HANDOFF_MEMOPS,
    HANDOFF_HOST,
    HANDOFF_EVENTS,
    N_HANDOFFS,
};

/* -1: there is none of that name. */
int handoff_find(struct msg_str name);

/* Fences that a lane has room for before it asks for memory. */
#define LANE_WAITS 8

struct lane {
    RB_ENTRY(lane) entry;

    /* Fixed. */
    uint64_t id;   /* cuStreamGetId(), or the handle */
    CUcontext key; /* NULL, or the context where id is a handle */
    CUstream handle;
    CUcontext context;
    uint32_t place; /* gpu.h */
    enum handoff handoff;

    atomic_uint refs; /* the first one is made under lanes.lock */

    pthread_mutex_t lock;

    /* Under lock. */
    struct page *page; /* whose slot it has, or NULL; under lanes.lock, too */
    uint32_t slot;
    struct fence *waits; /* enqueued, and not known to have passed */
    size_t n_waits, waits_capacity;
    struct fence few_waits[LANE_WAITS];
    bool lost;      /* a wait for a lost fence has ended, which is not reported yet */
    bool destroyed; /* the stream is destroyed: nobody will ask for `lost` */
};

RB_HEAD(lane_tree, lane);

struct lane_table {
    pthread_mutex_t lock;
    struct lane_tree tree;
    size_t n, sweep_at;
    LIST_HEAD(, page) pages; /* own pages for the slots of streams */
    atomic_bool closed;      /* no more signals */
};

extern const struct feature lane_feature;

void lane_table_init(struct lane_table *table);
/* The client closes: after this no lane signals any more, but that a lane which is locked for too
 * long is not waited for. Under no lock. */
void lanes_close(struct caid_client *client);

/* The lane of a stream, to be given back by lane_put(). device: the index whose primary context
 * 1 and 2 mean where none is current. CAID_ERR_INVALID: 0, or a stream that captures a graph. */
int lane_get(struct caid_client *client, uint64_t stream, int32_t device, struct lane **ret,
             struct caid_error *error);
/* The same without making one; *ret NULL: caid does not know the stream. */
int lane_find(struct caid_client *client, uint64_t stream, int32_t device, struct lane **ret,
              struct caid_error *error);
void lane_put(struct lane *lane);

/* Enqueues a signal in the lane's slot: *ret passes when the stream has come to here. One driver
 * call. Asks the daemon for a page at times, where the lane has no slot. Under lane->lock, until
 * the daemon has been told of the fence, or that has been queued. CAID_ERR_INVALID: the stream
 * captures a graph by now, or is another thread's default stream. Where the context is dead,
 * what it was to signal before is lost: the cause is in error->cuda_result. */
int lane_signal(struct caid_client *client, struct lane *lane, struct fence *ret,
                struct caid_error *error);

/* The same for a slot of a timeline and a value of its creator's, who sees to the order. */
int lane_signal_slot(struct caid_client *client, struct lane *lane, struct page *page,
                     uint32_t slot, uint64_t value, struct caid_error *error);

/* Whether the lane can signal now. CAID_ERR_INVALID as of lane_signal(). */
int lane_check_signal(struct caid_client *client, struct lane *lane, struct caid_error *error);

/*
 * What is enqueued on the lane from here on comes after all the fences, whose signals have been
 * submitted, as the daemon says. lane NULL: holds the host until they have passed; so it does for
 * those that streams cannot wait for (caid_client_devices()), for which deadline_ns is:
 * CAID_ERR_TIMEOUT. 1: one that is `data` was lost by now; the others have been seen to all the
 * same. Of those that are lost later lane_check() tells. The lane is not locked. No fence is
 * consumed; what is enqueued is marked so, for the case that it is called again with the same ones
 * after CAID_ERR_TIMEOUT.
 */
int lane_wait(struct caid_client *client, struct lane *lane, struct fence *fences, size_t n,
              uint64_t deadline_ns, struct caid_error *error);

/* The same for one that may not have been submitted yet, by stream memory operations. */
int lane_wait_ahead(struct caid_client *client, struct lane *lane, struct fence *fence,
                    struct caid_error *error);

/* CAID_ERR_ABANDONED, once: since it was last told so, the lane was let go from a fence that is
 * lost. */
int lane_check(struct lane *lane, struct caid_error *error);

/* Where no signal can be enqueued, for that reason: waits for the lane's stream. false: it cannot
 * be waited for. A capture would be ended by that, another thread's stream may be out of reach. */
bool lane_drain(struct caid_client *client, const struct lane *lane,
                const struct caid_error *why);

/* CAID_ERR_DEVICE: the array is mapped for another device than the lane's. Host memory is for all.
 */
int lane_check_device(const struct lane *lane, const struct caid_array *array,
                      struct caid_error *error);

/* Whether a lane waits for something, as far as the pages tell, or is in use: *ret_stream is one
 * such. Lets go of what no lane waits for any more. Not under the client's lock, nor that of a
 * lane. */
bool lanes_are_waiting(struct caid_client *client, uint64_t *ret_stream);
