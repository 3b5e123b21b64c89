/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to the daemon. Made by caid_connect(). References are held by the caller's
 * handle (until caid_client_close()), by every array, and by every call while it runs; the
 * struct goes with the last of them. The socket is closed as soon as the handle has been given
 * back and no call runs any more.
 *
 * Beside the callers' threads there is one of the client's own (reaper.h), while it has
 * something to do for arrays that are closed.
 *
 * A connection ends once and for good: by caid_client_close(), when the daemon goes away, or
 * when it breaks the protocol. `lost` says why; every call in flight and every later one fails
 * with it. Memory that arrays have mapped stays until they are closed.
 *
 * `lock` guards what is marked so. It is never held over a wait for the daemon or over a driver
 * call: those have block->lock, lane->lock (lane.h), page->lock and gpu.lock, of which none is taken
 * under `lock`.
 *
 * In a child after fork() nothing but host memory may be touched: the CUDA driver does not
 * survive fork(), the socket is the parent's, and a lock may be held by a thread that the child
 * has not got. Hence the guard, which is asked before anything else.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "caid/caid.h"

#include "access.h"
#include "arena_tidy.h"
#include "block.h"
#include "call.h"
#include "fail.h"
#include "fork.h"
#include "gpu.h"
#include "lane.h"
#include "msg.h"
#include "page.h"
#include "part.h"
#include "reaper.h"
#include "watch.h"

struct caid_client {
    atomic_uint refs;
    struct fork_guard guard;

    /* Set while connecting, fixed from then on. */
    char socket[108];
    char pool[72];
    uint32_t open_max; /* names in one open request */
    size_t packet_max; /* bytes that the daemon takes */
    uint32_t n_devices;
    struct caid_device *devices;

    struct gpu gpu;
    struct lane_table lanes; /* has locks of its own */

    pthread_mutex_t lock;

    /* Under lock. */
    int sock;
    bool handle_closed;
    uint32_t n_running;        /* calls between client_enter() and client_leave() */
    struct caid_error lost;    /* code 0: connected */
    struct msg_buf out;        /* the packet being sent */
    uint64_t seq;              /* of the last request; its id is the lower half */
    uint64_t answered;         /* the highest of those that have been answered */
    struct call_list calls;    /* sent and not answered, oldest first */
    struct call_list standing; /* the same of those that nobody waits for */
    bool reading;              /* a thread waits for packets; packet is that thread's */
    struct block_table blocks;
    uint32_t n_block_calls; /* calls whose reply may refer to blocks */
    /* No such call begins: those under way are waited for, so that blocks can be forgotten. */
    bool barrier;
    pthread_cond_t barrier_gone;
    struct page_table pages;
    uint32_t n_page_calls; /* calls whose reply may refer to pages */

    /* Leases that have ended, and blocks that are here no more, without the daemon knowing it
     * yet. There is room for all leases that are held or asked for, and for the blocks that
     * they may bring: closing an array needs no memory. */
    uint64_t *closing;
    size_t n_closing, closing_capacity;
    size_t n_leases; /* held or asked for */
    uint64_t *forget;
    size_t n_forget, forget_capacity;

    struct access_table accesses;

    bool keeps; /* blocks that work may still use: nothing of the GPU's is given back */

    struct reaper reaper;
    struct watch_table watches;
    struct part_table parts;
    struct arena_list arenas;
    int epoll_fd, news_fd; /* of caid_client_get_fd(); -1: not asked for */

    uint8_t packet[PROTO_PACKET_MAX];
    size_t n_packet;
};

/* Not connected yet, with one reference, the caller's handle. NULL: no memory. */
struct caid_client *client_new(void);
struct caid_client *client_ref(struct caid_client *client);
void client_unref(struct caid_client *client);

/* Fails with FORKED, or with CAID_ERR_INVALID for NULL; takes no lock. */
int client_check(const struct caid_client *client, struct caid_error *error);

/* Brackets every use of the connection. client_enter() checks, refers and locks; it fails when
 * the connection has ended. client_leave() undoes that and sees to what is left to do. */
int client_enter(struct caid_client *client, struct caid_error *error);
void client_leave(struct caid_client *client);

/* The same when the connection may have ended, for what has to be done all the same. */
void client_enter_anyway(struct caid_client *client);

/* Ends the connection: every call in flight fails with code and text. Under lock. */
void client_lose(struct caid_client *client, int32_t code, const char *fmt, ...) PRINTF(3, 4);

/* Ends the connection over a reply that breaks the protocol and fills error. Not under lock. */
int client_violated(struct caid_client *client, const char *what, struct caid_error *error);

/* The UUID of a device by its index; CAID_ERR_DEVICE. */
int client_device_uuid(const struct caid_client *client, int32_t device, const char **ret,
                       struct caid_error *error);
/* The index of a device by its UUID, or -1. */
int32_t client_find_device(const struct caid_client *client, struct msg_str uuid);

/* Makes caid_client_get_fd() readable. Under lock. */
void client_raise_fd(struct caid_client *client);

/* Option structs of the API: copies what the caller's version of the struct has and zeroes the
 * rest. options NULL gives zeroes. */
int options_read(void *ret, size_t size, const void *options, struct caid_error *error);
/* Result structs: copies what the caller's version has room for, all but struct_size. */
int result_write(void *ret, const void *result, size_t size, struct caid_error *error);

/* Checks of strings before they go into a packet, of which the daemon takes no other: UTF-8,
 * and name and pool of a length that it could accept. s may be NULL where `needed` is false. */
int check_text(const char *what, const char *s, bool needed, struct caid_error *error);
int check_name(const char *name, struct caid_error *error);
int check_pool(const char *pool, struct caid_error *error);
int check_metadata(const char *metadata, struct caid_error *error);
