/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All connections of the daemon, and what they share: the buffers of what is received, so that an
 * idle client costs none; whose turn it is to be heard, and what is spent on whom; a bound on all
 * that is queued; and the budget of fds in flight, with a timer that looks after those whose
 * output waits for it, and runs only while somebody waits. Where all together have too much
 * queued, or in flight, the uid that has most of it pays: its connection that has not read for
 * longest is lost, not the one that comes last, nor another uid's (I6).
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
    /* Unless the set admits all: whether that packet may be heard now. */
    bool (*admits)(void *userdata, struct conn *c, const void *packet, size_t n);
    void (*lost)(void *userdata, struct conn *c, const char *reason);
    /* The process of a connection that has departed has exited. */
    void (*departed)(void *userdata, uint64_t conn_id);
    /* So much time was spent on a uid. */
    void (*spent)(void *userdata, uid_t uid, uint64_t ns);
};

TAILQ_HEAD(conn_list, conn);

/* What the connections of one uid have of what all share; from the first of them to the last. */
struct conn_owner {
    RB_ENTRY(conn_owner) node;
    uid_t uid;
    uint32_t n_conns; /* with departed ones, and those that are not taken up: arrivals.h */
    struct turns_user turns;
    int64_t credit_ns;    /* of the loop's time, for replies of any size */
    uint64_t credited_ns; /* when that was right */
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
    bool admits_all;            /* else the first packet of each socket is asked for */
    LIST_HEAD(, conn) held;     /* whose is not admitted: nothing is read */
    uint64_t heard_ns;          /* how long the last turn took */
    uint64_t until_ns;          /* the time of those whose turn it is */
    uid_t heard;                /* whose packet was the last one */
    struct conn_owner *running; /* for whom something is done, since now_ns; or NULL */
    uint64_t now_ns;            /* when that was said, or that it is nobody */
    uint64_t changed_ms;        /* when that was another one */
    struct laps laps;
    struct flight flight;
    struct conn_owners owners;
    SLIST_HEAD(, conn) closed;   /* to be freed */
    LIST_HEAD(, conn) lingering; /* without a client, for the fds that it was sent */
    struct conn_list queued;     /* with output in their queue, longest first */
    uint64_t n_queued_bytes;
    uint32_t n_queued_fds, max_queued_fds;
    struct conn_list waiting;     /* those of them that wait for the budget of fds in flight */
    struct process_list departed; /* without a connection, to exit yet */
    uv_timer_t retry;
    uint8_t buffers[PACKET_BATCH][PROTO_PACKET_MAX];
};

/* max_fds: of all connections together, in flight; and as many in queues. */
int conns_init(struct conns *set, uv_loop_t *loop, uint32_t max_fds,
               const struct conns_ops *ops, void *userdata);
/* After the loop. No connection may be left. */
void conns_deinit(struct conns *set);

/* A turn of the loop: waits until something has come, or so long, and hears some of it, for a
 * bounded time: then others are heard of again. */
void conns_turn(struct conns *set, int timeout_ms);
/* A number for a connection on sock: never 0, never used before. */
uint64_t conns_next_id(struct conns *set, int sock);
/* The connection with that number, or NULL when it has been closed. */
struct conn *conns_find(const struct conns *set, uint64_t id);
/* Those that are held are heard again. */
void conns_release(struct conns *set);
/* It takes much of the loop's time, and not all who are heard are of its uid: so each of its
 * requests is to take little. */
bool conns_is_greedy(const struct conns *set, struct conn_owner *o);
void conns_lose_all(struct conns *set, const char *reason);
/* Those whose process has exited, which the loop may not have been told yet; of departed ones,
 * too. */
void conns_lose_exited(struct conns *set);
/* Waits for no exit any more: the set's departed() is called for each now. */
void conns_drop_all_departed(struct conns *set);

/* The exit of the process of that connection, which has departed, does not matter any more. */
void conns_forget(struct conns *set, uint64_t conn_id);

/* The owner of a connection of that uid, for as long as it is not left; NULL: no memory. */
struct conn_owner *conns_join(struct conns *set, uid_t uid);
void conns_leave(struct conns *set, struct conn_owner *o);
/* What is done until the next call, or until the loop has come round, is done for it; NULL: for
 * nobody. Returns the time. */
uint64_t conns_charge(struct conns *set, struct conn_owner *o);

/* For process.c: it has departed, and is waited for no more. */
void conns_drop_departed(struct conns *set, struct process *p);

/* For conn.c. */
int conns_add(struct conns *set, struct conn *c);
/* It is found no more. */
void conns_remove(struct conns *set, struct conn *c);
/* And freed, when the loop has come round. */
void conns_bury(struct conns *set, struct conn *c);
/* Until conns_release(). */
void conns_hold(struct conns *set, struct conn *c);
/* A packet of c is heard. */
void conns_hear(struct conns *set, const struct conn *c);
/* What c's queue has got, and lost. */
void conns_queued(struct conns *set, struct conn *c, size_t n, size_t n_fds);
void conns_dequeued(struct conns *set, struct conn *c, size_t n, size_t n_fds);
/* Loses connections until what is queued is within its bounds. */
void conns_make_room(struct conns *set);
void conns_wait(struct conns *set, struct conn *c);
void conns_unwait(struct conns *set, struct conn *c);
