/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to the daemon. Made by caid_connect(). The caller's handle (until
 * caid_client_close()), every array, and every running call have a reference; the struct is freed
 * with the last. The socket is closed when the handle is closed and no call runs.
 *
 * Beside the callers' threads there is one of the client (reaper.h), while it has something to do
 * after closes. The uses that the library makes of a connection are its features (feature.h). They
 * know the session; the session knows only their tables of hooks.
 *
 * A connection ends once and for good: by caid_client_close(), when the daemon goes away, or when
 * it breaks the protocol. `lost` says why; every call in flight and every later one fails with it.
 * Memory that arrays have mapped stays until they are closed.
 *
 * `lock` guards the fields so marked. It is never held over a wait for the daemon or over a driver
 * call. Driver calls have locks of their own (block.h, lane.h, page.h, gpu.h), of which none is
 * taken under `lock`.
 *
 * In a child after fork() only host memory may be touched: the CUDA driver does not survive fork(),
 * the socket is the parent's, and a thread that the child does not have may hold a lock. So the
 * guard is asked before anything else.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "caid/caid.h"

#include "call.h"
#include "fail.h"
#include "fork.h"
#include "gpu.h"
#include "msg.h"
#include "options.h"
#include "reaper.h"
#include "resume.h"

struct feature;

enum wakefulness {
    CLIENT_AWAKE,
    CLIENT_CHANGING, /* a thread suspends or resumes it */
    CLIENT_SUSPENDED,
};

struct caid_client {
    atomic_uint refs;
    struct fork_guard guard;
    const struct feature *const *features; /* feature.h; the last one is NULL */

    /* The features' own tables. */
    struct bracket_table *brackets;
    struct arena_list *arenas;
    struct behind_table *behinds;
    struct block_table *blocks;
    struct channels *channels;
    struct lane_table *lanes;
    struct lease_table *leases;
    struct page_table *pages;
    struct part_table *parts;
    struct watch_table *watches;

    /* Set while connecting, constant after that. */
    char socket[108];
    char pool[72];
    char machine_id[33], daemon_id[33]; /* "": an old daemon */
    char name[PROTO_CLIENT_MAX + 1];
    struct caid_daemon daemon;
    uint32_t open_max; /* names in one open request */
    uint32_t set_max;  /* members of a set */
    size_t packet_max; /* the most bytes of a packet that the daemon takes */
    uint32_t n_devices;
    struct caid_device **devices;
    uint64_t call_timeout_ns;                          /* for each reply, or CAID_FOREVER */
    int (*interrupted)(void *userdata);                /* interrupt.h; or NULL */
    void (*returned)(uint64_t n_lost, void *userdata); /* resume.h; or NULL */
    void *userdata;

    struct gpu gpu; /* has a lock of its own */

    pthread_mutex_t lock;

    /* Under lock. */
    uint64_t
        left; /* of the last answer: NOT_READY, how much is not back after a restart; or 0 */
    int sock;
    bool handle_closed;
    uint32_t n_running;     /* calls between client_enter() and client_leave() */
    struct caid_error lost; /* code 0: connected, or away */
    bool away;              /* resume.h: nothing can be sent, and nobody reads */
    struct resume resume;
    struct msg_buf out;         /* the packet being sent */
    uint64_t seq;               /* of the last request; its id is the lower half */
    uint64_t answered;          /* the highest of those that have been answered */
    struct call_list unsent;    /* the next call_flush() sends them */
    struct call_list calls;     /* sent and not answered, oldest first */
    uint32_t n_behind;          /* how many of these are to be sent again, or cancelled */
    uint32_t n_late;            /* calls whose replies the client's thread looks for */
    uint32_t deferring;         /* caid_defer_begin(): deferrals that have not ended */
    struct waiter_list waiters; /* threads that wait while another one reads */
    bool reading;               /* a thread waits for packets; packet is that thread's */
    int wake_fd;                /* for call_wait_for_news(); -1: not made yet */
    uint32_t n_block_calls;     /* calls whose reply may refer to blocks */
    /* No such call may begin until those under way have ended, so that blocks can be forgotten. */
    bool barrier;
    struct wake barrier_gone;
    uint32_t n_page_calls;                 /* calls whose reply may refer to pages */
    bool waits_cancelled;                  /* caid_set_cancel() */
    _Atomic(enum wakefulness) wakefulness; /* read without the lock, too */
    bool keeps; /* it keeps memory that work may still use: no GPU memory is given back */
    struct reaper reaper;
    int epoll_fd, news_fd; /* of caid_client_get_fd(); -1: not asked for */

    uint8_t packet[PROTO_PACKET_MAX];
    size_t n_packet;
};

/* A client with all its features (features.c), not connected yet. caid_client_close() ends it.
 * NULL: out of memory. */
struct caid_client *client_new(void);
/* Not connected yet, with one reference, the caller's handle. The struct is zeroed, but for the
 * features' tables; it is freed by free(). */
void client_init(struct caid_client *client, const struct feature *const *features);
struct caid_client *client_ref(struct caid_client *client);
void client_unref(struct caid_client *client);

/* Fails with FORKED, or with CAID_ERR_INVALID for NULL; takes no lock. */
int client_check(const struct caid_client *client, struct caid_error *error);

/* The same for the client of an object. The error names the object: "array is NULL". */
#define CHECK_CLIENT_OF(object, error)                \
    ((object) ? client_check((object)->client, error) \
              : fail(error, CAID_ERR_INVALID, "%s is NULL", #object))

/* The same, with CAID_ERR_INVALID also where another argument ("ret", "fn") is NULL. */
#define CHECK_GIVEN_OF(object, given, error)                                         \
    ((object) ? client_check_given((object)->client, (given) != NULL, #given, error) \
              : fail(error, CAID_ERR_INVALID, "%s is NULL", #object))
int client_check_given(const struct caid_client *client, bool given, const char *what,
                       struct caid_error *error);
/* The same. Also checks a name and a pool's name, which may be NULL (options.h). */
int client_check_name(const struct caid_client *client, const char *name, const char *pool,
                      struct caid_error *error);

/* CAID_ERR_NOT_READY: the client is suspended (suspend.c). What the driver does with shared memory
 * asks under a lock: of the block or the lane, or block_addresses_hold(). What keeps a client from
 * being suspended asks under the client's lock when it becomes known there. */
int client_check_awake(const struct caid_client *client, struct caid_error *error);

/* Around every use of the connection. client_enter() checks the client, takes a reference, and
 * locks it; it fails when the connection has ended. client_leave() undoes that, and sees that what
 * is left to do gets done. */
int client_enter(struct caid_client *client, struct caid_error *error);
void client_leave(struct caid_client *client);

/* The same for what has to be done also after the end of the connection. */
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
int client_make_devices(struct caid_client *client, uint32_t n); /* all zero; -ENOMEM */

/* Whether a feature has news for caid_client_dispatch(). Under lock. */
bool client_has_news(const struct caid_client *client);
/* Makes the fd of caid_client_get_fd() readable, or not readable. Under lock. */
void client_raise_fd(struct caid_client *client);
void client_lower_fd(struct caid_client *client);

/* Tells the features that nothing runs in the context any more. Not under lock. */
void client_context_died(struct caid_client *client, CUcontext context);
