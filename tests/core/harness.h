/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives the core as the shell does, with a driver that the test plays: encodes requests, keeps
 * the last reply of each connection, holds driver jobs back until told to finish them, and checks
 * the core's invariants after each step.
 *
 * It also keeps books of its own, on what every client has been told, and fails the test when
 *   a block's fd or handle is sent to a client that holds it, or not sent to one that does not (I3),
 *   a block has arrays of two pools (I1),
 *   a block that a client has open goes, where its kind does not allow that,
 *   a new array gets a range that somebody may still write: who has it leased, or hung up with a
 *   lease and has not exited (I2),
 *   a handle is released twice, or with another block's fd (I3),
 *   a client is told of a block that is not recorded, or what is recorded is not there (I9).
 */
#pragma once

#include "core.h"

#define H_CONNS   64
#define H_JOBS    256
#define H_RECORDS 256
#define H_ASKED   4096
#define H_BOOKS   8192
#define H_DEVICES 2
#define H_MEMORY  (UINT64_C(64) << 20)
#define H_BLOCK   (UINT64_C(2) << 20)
#define H_AGE_NS  UINT64_C(1000000)

struct h_array {
    uint64_t lease, block, offset, nbytes, generation;
    uint64_t stamp; /* of the create that wrote there last */
    char memory[8], metadata[32];
};

struct h_reply {
    bool seen;
    uint32_t id;
    uint32_t error; /* enum proto_error, 0: none */
    char text[512];
    uint64_t lease; /* of the first array, and what else tests look at */
    uint64_t block;
    uint64_t offset;
    uint64_t generation;
    uint64_t stamp;
    uint32_t n_arrays, n_blocks;
    size_t n_fds;
    int fds[4];
    struct h_array arrays[4];
    uint32_t n_entries; /* list, unnamed, pools, users, memory_info, holders of show */
    char names[8][32];
    uint64_t n_leases[8];
    bool more;
    uint64_t array;
    uint64_t holder_pids[8];
    bool hung_up[8];
    char metadata[32];

    union { /* numbers; their strings are gone */
        struct msg_memory memory[H_DEVICES];
        struct msg_pool pools[4];
        struct msg_user users[4];
        struct msg_status_result status;
        struct msg_flush_result flush;
    };
};

struct h_job {
    uint64_t id;
    enum core_action_type type;
    enum core_kind kind;
    uint64_t size, handle;
    uint32_t device;
    int fd;
};

struct h_memory { /* what the driver has made and not taken back */
    uint64_t handle, size;
    uint32_t device;
    enum core_kind kind;
    bool releasing;
    uint64_t block; /* 0: no client has been told */
    char pool[24];
};

struct h_hold {
    uint64_t conn, block;
};

struct h_range { /* what somebody may write */
    uint64_t conn, lease, block, offset, bytes;
};

struct h_content {
    uint64_t block, offset, bytes, stamp;
};

struct harness {
    struct core *core;
    uint64_t now_ns;
    uint64_t next_conn;
    uint32_t next_id;
    uint32_t n_devices;
    struct h_reply replies[H_CONNS]; /* by connection number */
    bool closed[H_CONNS];            /* a CORE_CLOSE came */
    bool gone[H_CONNS];              /* hung up */
    bool lenient;                    /* core_connect() may be out of memory */
    char reasons[H_CONNS][64];
    struct h_job jobs[H_JOBS];
    size_t n_jobs;
    char records[H_RECORDS][64]; /* CORE_PERSIST, and "send", in their order */
    size_t n_records;
    uint64_t next_handle, next_stamp;
    uint64_t capacity[H_DEVICES];     /* H_MEMORY */
    uint64_t device_bytes[H_DEVICES]; /* of device memory */
    uint64_t live_bytes;              /* handed out by the driver and not released */
    uint64_t quarantined_bytes;       /* that it would not take back */
    uint64_t n_allocs, n_releases;
    enum msg_method asked[H_ASKED];
    uint32_t asked_ids[H_ASKED];
    /* Called for each reply, where it is set. */
    void (*on_reply)(struct harness *h, uint64_t conn, const struct h_reply *reply);
    void *userdata;
    struct h_memory memory[512];
    size_t n_memory;
    struct h_hold holds[H_BOOKS];
    size_t n_holds;
    struct h_range ranges[H_BOOKS];
    size_t n_ranges;
    struct h_content contents[H_BOOKS];
    size_t n_contents;
    uint64_t saved_names[H_BOOKS],
        saved_blocks[H_BOOKS]; /* recorded and not gone; names: hashed */
    size_t n_saved_names, n_saved_blocks;
};

/* Called with true before each call of the core and with false after it, where it is set. */
extern void (*h_arm)(bool on);

/* Without a tweak: one device of H_MEMORY (a second one where n_devices says so), 2 MiB granularity,
 * pools "shared" (uid 1, gid 10, 0640, quota 16 MiB) and "open" (uid 1, gid 10, 0666); each array has
 * a block of its own, which goes as soon as it is empty. */
void h_init(struct harness *h, void (*tweak)(struct core_config *));
/* A tweak: blocks are shared by arrays of up to 4 MiB and grow to 16 MiB, 8 MiB of empty ones are
 * kept, and 10 entries or 20 % may wait in the queue, for H_AGE_NS. */
void h_sharing(struct core_config *config);
/* Disconnects everyone, finishes all jobs and expects nothing to be left but names. */
void h_deinit(struct harness *h);

uint64_t h_connect_raw(struct harness *h, uid_t uid, gid_t gid); /* 0: refused */
uint64_t h_connect(struct harness *h, uid_t uid, gid_t gid);     /* and says hello */
bool h_hangup(struct harness *h, uint64_t conn);
void h_exit(struct harness *h, uint64_t conn);
void h_disconnect(struct harness *h, uint64_t conn); /* both */
void h_packet(struct harness *h, uint64_t conn, const void *packet, size_t n);
/* Sends a request; its reply, if it came at once, is in h->replies[conn]. */
struct h_reply *h_request(struct harness *h, uint64_t conn, enum msg_method method,
                          const void *params);
void h_notify(struct harness *h, uint64_t conn, enum msg_method method, const void *params);

struct h_reply *h_create(struct harness *h, uint64_t conn, const char *name, const char *pool,
                         int64_t bytes);
/* And finishes all jobs. */
struct h_reply *h_create_now(struct harness *h, uint64_t conn, const char *name,
                             const char *pool, int64_t bytes);
/* "|u1" of so many bytes; params may set the rest. */
struct h_reply *h_create_as(struct harness *h, uint64_t conn, int64_t bytes,
                            struct msg_create_params params);
/* An unnamed one that has its memory, and cannot be refused. */
struct h_reply h_made(struct harness *h, uint64_t conn, int64_t bytes,
                      struct msg_create_params params);
struct h_reply *h_open(struct harness *h, uint64_t conn, const char *name, const char *pool,
                       const char *mode);
struct h_reply *h_open_generation(struct harness *h, uint64_t conn, const char *name,
                                  const char *pool, uint64_t generation);
struct h_reply *h_unlink(struct harness *h, uint64_t conn, const char *name, const char *pool);
struct h_reply *h_publish(struct harness *h, uint64_t conn, uint64_t lease, const char *name);
struct h_reply *h_watch(struct harness *h, uint64_t conn, const char *name, const char *pool,
                        uint64_t seen);
struct h_reply *h_show(struct harness *h, uint64_t conn, const char *name, const char *pool);
struct h_reply *h_flush(struct harness *h, uint64_t conn);
struct h_reply *h_defer(struct harness *h, uint64_t conn, bool begin);
/* Numbers of device 0, where the driver's answer is finished with it. */
const struct msg_memory *h_memory_info(struct harness *h, uint64_t conn);
void h_close(struct harness *h, uint64_t conn, uint64_t lease);
void h_forget(struct harness *h, uint64_t conn, uint64_t block);

/* Place of the first job of that type, H_JOBS where there is none. */
size_t h_job(const struct harness *h, enum core_action_type type);
/* Finishes the job at place i with error (0, -ENOMEM, ...). */
void h_finish(struct harness *h, size_t i, int error);
/* Finishes all jobs, and those that come of it. */
void h_finish_all(struct harness *h);
void h_tick(struct harness *h, uint64_t ns);
/* So much time passes that nothing waits for reasons of age any more. */
void h_age(struct harness *h);
struct core_counts h_counts(const struct harness *h);
