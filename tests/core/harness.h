/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives the core as the shell does, with a driver that the test plays: encodes requests, keeps
 * the last reply of each connection, holds driver jobs back until told to finish them, and checks
 * the core's invariants after each step.
 */
#pragma once

#include "core.h"

#define H_CONNS   64
#define H_JOBS    256
#define H_RECORDS 256
#define H_MEMORY  (UINT64_C(64) << 20)
#define H_BLOCK   (UINT64_C(2) << 20)

struct h_reply {
    bool seen;
    uint32_t id;
    uint32_t error; /* enum proto_error, 0: none */
    char text[512];
    uint64_t lease; /* of the first array, and what else tests look at */
    uint64_t block;
    uint64_t generation;
    uint32_t n_arrays, n_blocks;
    size_t n_fds;
    int fds[4];
    uint32_t n_entries; /* list */
    char names[8][32];
    bool more;
};

struct h_job {
    uint64_t id;
    enum core_action_type type;
    uint64_t size, handle;
    uint32_t device;
    int fd;
};

struct harness {
    struct core *core;
    uint64_t now_ns;
    uint64_t next_conn;
    uint32_t next_id;
    struct h_reply replies[H_CONNS]; /* by connection number */
    bool closed[H_CONNS];            /* a CORE_CLOSE came */
    char reasons[H_CONNS][64];
    struct h_job jobs[H_JOBS];
    size_t n_jobs;
    char records[H_RECORDS][64]; /* CORE_PERSIST, and "send N", in their order */
    size_t n_records;
    uint64_t next_handle;
    uint64_t live_bytes; /* handed out by the driver and not released */
    enum msg_method asked[H_CONNS];
};

/* config may be NULL: one device of H_MEMORY, 2 MiB granularity, pools "shared" (uid 1, gid 10,
 * 0640, quota 16 MiB) and "open" (uid 1, gid 10, 0666). */
void h_init(struct harness *h, void (*tweak)(struct core_config *));
/* Disconnects everyone, finishes all jobs and expects nothing to be left but names. */
void h_deinit(struct harness *h);

uint64_t h_connect_raw(struct harness *h, uid_t uid, gid_t gid); /* 0: refused */
uint64_t h_connect(struct harness *h, uid_t uid, gid_t gid);     /* and says hello */
void h_disconnect(struct harness *h, uint64_t conn);
void h_packet(struct harness *h, uint64_t conn, const void *packet, size_t n);
/* Sends a request; its reply, if it came at once, is in h->replies[conn]. */
struct h_reply *h_request(struct harness *h, uint64_t conn, enum msg_method method,
                          const void *params);
void h_notify(struct harness *h, uint64_t conn, enum msg_method method, const void *params);

struct h_reply *h_create(struct harness *h, uint64_t conn, const char *name, const char *pool,
                         int64_t bytes);
struct h_reply *h_open(struct harness *h, uint64_t conn, const char *name, const char *pool,
                       const char *mode);
struct h_reply *h_unlink(struct harness *h, uint64_t conn, const char *name, const char *pool);
void h_close(struct harness *h, uint64_t conn, uint64_t lease);

/* Finishes the job at place i with error (0, -ENOMEM, ...). */
void h_finish(struct harness *h, size_t i, int error);
/* Finishes all jobs, and those that come of it. */
void h_finish_all(struct harness *h);
