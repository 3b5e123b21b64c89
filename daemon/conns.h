/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All connections of the daemon, and what they share:
 *     buffers for received packets, so that an idle client needs none
 *     turns: which uid is served next, and the time that each has used
 *     a bound on all output that is queued
 *     the budget of fds in flight, with a timer that runs while output waits for it
 *
 * Where all connections together have too much queued, or in flight, the uid that has most of it
 * pays: its connection that has not read for longest is lost, not the newest one, nor another uid's
 * (I6).
 */
#pragma once

#include <uv.h>

#include "base/packet.h"
#include "base/tree.h"
#include "conn.h"
#include "laps.h"
#include "proto_limits.h"
#include "turns.h"

struct conns_ops {
    void (*packet)(void *userdata, struct conn *c, const void *packet, size_t n);
    /* Whether that packet may be received now; not asked where the set admits all. */
    bool (*admits)(void *userdata, struct conn *c, const void *packet, size_t n);
    void (*lost)(void *userdata, struct conn *c, const char *reason);
    /* The process of a connection that has departed has exited. */
    void (*departed)(void *userdata, uint64_t conn_id);
    /* A uid has used so much of the loop's time. */
    void (*spent)(void *userdata, uid_t uid, uint64_t ns);
};

TAILQ_HEAD(conn_list, conn);

/* The share of one uid's connections in what all share; from its first connection to its last. */
struct conn_owner {
    RB_ENTRY(conn_owner) node;
    uid_t uid;
    uint32_t n_conns; /* with departed processes, and arrivals (arrivals.h) */
    struct turns_user turns;
    int64_t credit_ns;    /* of the loop's time, for replies of any size */
    uint64_t credited_ns; /* up to when the credit is counted */
    struct flight_user flight;
    uint64_t n_queued_bytes;
    uint32_t n_queued_fds;
};

RB_HEAD(conn_owners, conn_owner);

struct conns {
    uv_loop_t *loop;
    const struct conns_ops *ops;
    void *userdata;
    struct conn **by_sock;
    size_t n_by_sock;
    uint32_t last_serial;
    struct pollset pollset;
    struct turns turns;
    bool admits_all;            /* false: admits() is asked about each packet */
    LIST_HEAD(, conn) stalled;  /* the next packet is not admitted: nothing is read */
    uint64_t heard_ns;          /* how long connections were served in the last turn */
    uint64_t until_ns;          /* until when they are served in this turn */
    uid_t heard;                /* the uid of the last packet */
    struct conn_owner *running; /* the uid that uses the loop since now_ns; NULL: none */
    uint64_t now_ns;            /* of the last conns_charge() */
    uint64_t changed_ms;        /* when `heard` last changed from one uid to another */
    struct laps laps;
    struct flight flight;
    struct conn_owners owners;
    SLIST_HEAD(, conn) closed;   /* freed in the next turn */
    LIST_HEAD(, conn) lingering; /* lost, with fds in flight */
    struct conn_list queued;     /* with output in their queue, the oldest first */
    uint64_t n_queued_bytes;
    uint32_t n_queued_fds, max_queued_fds;
    struct conn_list waiting;     /* their output waits for the budget of fds in flight */
    struct process_list departed; /* without a connection, not exited */
    uv_timer_t retry;
    uint8_t buffers[PACKET_BATCH][PROTO_PACKET_MAX];
};

/* max_fds: the limit of fds in flight, of all connections together, and that of fds in queues. */
int conns_init(struct conns *set, uv_loop_t *loop, uint32_t max_fds,
               const struct conns_ops *ops, void *userdata);
/* After the loop. No connection may be left. */
void conns_deinit(struct conns *set);

/* A turn of the loop: waits for events, at most for timeout_ms, and serves connections for a
 * bounded time. */
void conns_turn(struct conns *set, int timeout_ms);
/* A number for a connection on sock: never 0, never used before. */
uint64_t conns_next_id(struct conns *set, int sock);
/* The connection with that number, or NULL when it has been closed. */
struct conn *conns_find(const struct conns *set, uint64_t id);
/* Stalled connections are served again. */
void conns_unstall(struct conns *set);
/* Whether this uid uses much of the loop's time while other uids are served: then each of its
 * requests is to take little. */
bool conns_is_greedy(const struct conns *set, struct conn_owner *o);
void conns_lose_all(struct conns *set, const char *reason);
/* Ends connections whose process has exited, also where the loop has not been told of the exit yet,
 * and drops departed processes that have exited. */
void conns_lose_exited(struct conns *set);
/* Calls the set's departed() for each departed process now: their exits are not waited for. */
void conns_drop_all_departed(struct conns *set);

/* Nobody waits any more for the exit of that departed connection's process. */
void conns_forget(struct conns *set, uint64_t conn_id);

/* The owner for one more connection of that uid, valid until conns_leave(). NULL: out of memory. */
struct conn_owner *conns_join(struct conns *set, uid_t uid);
void conns_leave(struct conns *set, struct conn_owner *o);
/* Charges the time since the last call to the owner of that call. From now on the loop works for o;
 * NULL: for no uid. Returns the time. */
uint64_t conns_charge(struct conns *set, struct conn_owner *o);

/* For process.c: a departed process has exited. */
void conns_drop_departed(struct conns *set, struct process *p);

/* For conn.c. */
int conns_add(struct conns *set, struct conn *c);
/* conns_find() does not find it any more. */
void conns_remove(struct conns *set, struct conn *c);
/* Frees it in the next turn of the loop. */
void conns_bury(struct conns *set, struct conn *c);
/* Nothing of c is read until conns_unstall(). */
void conns_stall(struct conns *set, struct conn *c);
/* A packet of c has been received. */
void conns_hear(struct conns *set, const struct conn *c);
/* Bytes and fds that c's queue has got, or lost. */
void conns_queued(struct conns *set, struct conn *c, size_t n, size_t n_fds);
void conns_dequeued(struct conns *set, struct conn *c, size_t n, size_t n_fds);
/* Loses connections until what is queued is within its bounds. */
void conns_make_room(struct conns *set);
void conns_wait(struct conns *set, struct conn *c);
void conns_unwait(struct conns *set, struct conn *c);
