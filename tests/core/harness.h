/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives the core as the shell does, with a driver that the test plays: encodes requests, keeps
 * the last reply of each connection, holds driver jobs back until told to finish them, and checks
 * the core's invariants after each step.
 *
 * It also keeps books of its own, on what every client has been told, and fails the test when
 * - a block's fd or handle is sent to a client that holds it, or not to one that does not (I3);
 * - a block has arrays of two pools (I1);
 * - a block goes that a client has open, if its kind does not allow that;
 * - a new array gets a range that a process may still write: it has a lease there, or has hung up
 *   with one and not exited (I2);
 * - a handle is released twice, or with another block's fd (I3);
 * - a client is told of a block that is not recorded, or a block is recorded and not there (I9);
 * - a page's fd is sent to a client that has it, or not to one that has not; or one for writing to
 *   anybody but its owner; or one for reading before the page was sealed (I3);
 * - a client is told to wait for what was never submitted, or for a page that is gone (I7);
 * - a range is given away that is in use by a fence which has not passed (I2), or in a block that
 *   was exported.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "journal.h"
#include "restore.h"
#include "timeline.h"

#define H_CONNS      64
#define H_PAGES      256
#define H_FENCES     32
#define H_JOBS       256
#define H_RECORDS    256
#define H_ASKED      4096
#define H_BOOKS      8192
#define H_USES       8192
#define H_PARTS      256
#define H_DEVICES    2
#define H_CONFIGURED 2
#define H_MEMORY     (UINT64_C(64) << 20)
#define H_BLOCK      (UINT64_C(2) << 20)
#define H_AGE_NS     UINT64_C(1000000)
#define MIB          INT64_C(1048576)

#define H_SECOND_DEVICE "GPU-00000000-0000-0000-0000-000000000002"

struct h_saved { /* a pool, a block, an array; text: its name, with its pool's before it */
    uint8_t type;
    uint64_t id;
    char text[48];
};

struct h_fence {
    uint64_t page, slot, value;
    bool data;
};

struct h_kept {
    uint64_t slot, sequence, info; /* the first of its numbers */
};

struct h_array {
    uint64_t lease, number, block, offset, nbytes, generation;
    uint64_t stamp; /* of the create that wrote there last */
    char memory[8], metadata[32];
};

struct h_reply {
    bool seen;
    uint32_t id;
    uint32_t error; /* enum proto_error, 0: none */
    char text[512]; /* of an error; monitor: names */
    uint64_t left;  /* of NOT_READY */
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
    uint64_t n_lost; /* monitor */
    bool more, resumed;
    uint64_t array;
    uint64_t members, layout; /* of the first array; stage_parts */
    uint64_t holder_pids[8];
    bool hung_up[8];
    struct msg_holder holders[8]; /* numbers */
    struct msg_entry entries[8];  /* numbers */
    uint64_t companion_of[8];
    char metadata[32];
    uint64_t page;                               /* page, open_timeline */
    uint64_t member, producer, former, sequence; /* join; members: producer is the version */
    struct h_kept kept[8];                       /* join: n_entries of them */
    uint32_t n_fences, n_pages;
    struct h_fence fences[H_FENCES];
    uint32_t n_parts;
    uint64_t parts[H_PARTS]; /* parts; resume: leases that are lost */

    union { /* numbers; their strings are gone */
        struct msg_memory_info memory[H_DEVICES];
        struct msg_pool pools[4];
        struct msg_user users[4];
        struct msg_connection connections[4];
        struct msg_timeline_entry timelines[8];
        struct msg_member_entry in_channel[8];
        struct msg_channel_entry channels[4];
        struct msg_status status;
        struct msg_flushed flush;
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
    bool releasing, exported;
    uint64_t block; /* 0: no client has been told */
    char pool[24];
};

struct h_hold {
    uint64_t conn, block;
};

struct h_range { /* what somebody may write */
    uint64_t conn, lease, array, block, offset, bytes;
};

struct h_content {
    uint64_t block, offset, bytes, stamp;
};

#define H_PAGE_BYTES (TIMELINE_PAGE_BYTES + PROTO_TAIL_MAX) /* of each in memory, all zero */

static inline struct timeline_slot *
h_slots_new(void)
{
    struct timeline_slot *slots = aligned_alloc(TIMELINE_PAGE_BYTES, H_PAGE_BYTES);

    memset(slots, 0, H_PAGE_BYTES);
    return slots;
}

struct h_page {
    uint64_t id, conn; /* whose it is */
    int write, read;
    bool sealed;
    bool killed; /* and held by others yet */
    size_t size;
    struct timeline_slot *slots;
};

struct h_use { /* what a bracket uses, from its begin; then its fence, until that has passed */
    uint64_t conn, bracket, lease;
    uint32_t request;
    bool write;
    bool is_old;          /* had begun before the core was killed last */
    uint64_t from, end;   /* bytes of the array; 0, 0: all */
    struct h_range array; /* all of it */
    struct h_range range; /* and what is used */
    struct h_fence fence; /* page 0: it has not ended */
};

struct h_done { /* the last request that gave, took or moved a name, and was not refused */
    uint64_t conn;
    uint32_t id;
    size_t n_packet, n_answer;
    uint8_t packet[512], answer[128];
};

struct harness {
    struct core *core;
    uint64_t now_ns;
    uint64_t asleep_ns;        /* that the machine has been, so far */
    struct core_config config; /* in force */
    struct core_pool_config pools[H_CONFIGURED];
    uint64_t next_conn;
    uint32_t next_id;
    uint32_t n_devices;
    struct h_reply replies[H_CONNS]; /* by connection number */
    pid_t pids[H_CONNS];
    bool closed[H_CONNS];    /* a CORE_CLOSE came */
    bool gone[H_CONNS];      /* hung up */
    bool exited[H_CONNS];    /* its process */
    bool forgotten[H_CONNS]; /* since then, a CORE_FORGET came */
    bool by_hand;            /* what an event leaves to be done waits for h_tick() */
    uint64_t n_sent, n_sent_seen;
    bool lenient; /* core_connect() may be out of memory */
    bool buried;  /* what comes out of the core reaches nobody */
    char reasons[H_CONNS][64];
    struct h_job jobs[H_JOBS];
    size_t n_jobs;
    char records[H_RECORDS][64]; /* what was recorded, and "send", in their order */
    size_t n_records;
    uint64_t next_handle, next_stamp;
    uint64_t capacity[H_DEVICES];     /* H_MEMORY */
    uint64_t device_bytes[H_DEVICES]; /* of device memory */
    uint64_t live_bytes;              /* handed out by the driver and not released */
    uint64_t quarantined_bytes;       /* that it would not take back */
    uint64_t n_allocs, n_releases;
    enum msg_method asked[H_ASKED];
    uint32_t asked_ids[H_ASKED];
    struct h_done asking, done;
    /* Called for each reply, where it is set. */
    void (*on_reply)(struct harness *h, uint64_t conn, const struct h_reply *reply);
    /* Before a page is killed, where it is set. */
    void (*on_page_gone)(struct harness *h, uint64_t page);
    void *userdata;
    struct h_memory memory[512];
    size_t n_memory;
    size_t n_holds;
    size_t n_ranges;
    size_t n_contents;
    struct journal journals[2], *journal; /* that counts */
    struct restore *restore;              /* of an earlier core; or NULL */
    uint64_t journal_at;                  /* how far it was read */
    size_t n_saved;
    struct h_page pages[H_PAGES];
    size_t n_pages;
    int page_error;         /* of the next CORE_PAGE_NEW */
    bool makes_pages_later; /* by h_make_page(): the last one of `making` */
    struct core_action making[4];
    size_t n_making;
    size_t n_page_holds;
    size_t n_uses;
    uint32_t n_unchecked;             /* steps with many objects */
    uint64_t n_audits, n_audits_lost; /* CORE_AUDIT: those, and of them out of memory */
    struct core_audit audit;          /* the last one */

    /* Of these only what is counted above is there: the rest is neither cleared nor copied. */
    struct h_hold holds[H_BOOKS], page_holds[H_BOOKS];
    struct h_range ranges[H_BOOKS];
    struct h_content contents[H_BOOKS];
    struct h_saved saved[H_BOOKS]; /* recorded and not gone */
    struct h_use uses[H_USES];
};

struct core_counts {
    uint64_t connections, departed, users, pools, blocks, arrays, names, leases, watches, jobs;
    uint64_t brackets, pages, timelines;
    uint64_t bytes; /* of blocks */
    uint64_t pending, reserve_bytes;
};

void core_get_counts(const struct core *core, struct core_counts *ret);
/* Recomputes every sum and cross reference and aborts where one is wrong (I1-I4). Called after each
 * event. */
void core_check(const struct core *core);
/* Whether the array is abandoned, and all of it, not ranges alone. */
bool core_is_abandoned(struct core *core, uint64_t array, bool *ret_all);
/* Of a connection that has not departed. */
bool core_has_bracket(struct core *core, uint64_t conn, uint64_t bracket);
/* What sums were is of no concern any more: the next core is another one. */
void core_check_anew(void);
/* So little is done in one event. */
void core_set_pieces(struct core *core, uint32_t pieces);
/* The last event has left something to be done at once. */
bool core_is_behind(const struct core *core);

/* Called with true before each call of the core and with false after it, where it is set. */
extern void (*h_arm)(bool on);
/* Called before what is recorded is checked, where it is set. */
extern void (*h_on_check)(struct harness *h);
/* What is done now was done before, and is not checked again. */
extern bool h_known;

/* Without a tweak: one device of H_MEMORY (a second one where n_devices says so), 2 MiB
 * granularity, pools "shared" (uid 1, gid 10, 0640, quota 16 MiB) and "open" (uid 1, gid 10,
 * 0666); each array has a block of its own, which goes as soon as it is empty. */
void h_init(struct harness *h, void (*tweak)(struct core_config *));
/* A tweak: blocks are shared by arrays of up to 4 MiB and grow to 16 MiB, 8 MiB of empty ones are
 * kept, and 10 entries or 20 % may wait in the queue, for H_AGE_NS. */
void h_sharing(struct core_config *config);
/* The same with a second device. */
void h_two_devices(struct core_config *config);
/* Disconnects everyone, finishes all jobs and expects nothing to be left but names, and what has
 * parts that have one. */
void h_deinit(struct harness *h);

/* A test of a core made so; body: of a `struct harness *h`. */
#define CORE_TEST(suite, name, tweak)                   \
    static void suite##_##name##_of(struct harness *h); \
    CAID_TEST(suite, name)                              \
    {                                                   \
        static struct harness h;                        \
        h_init(&h, tweak);                              \
        suite##_##name##_of(&h);                        \
        h_deinit(&h);                                   \
    }                                                   \
    static void suite##_##name##_of(struct harness *h)

/* Returns what core_reconfigure() does; it is in force then. */
int h_reconfigure(struct harness *h, const struct core_config *config);

uint64_t h_connect_raw(struct harness *h, uid_t uid, gid_t gid); /* 0: refused */
uint64_t h_connect_as(struct harness *h, uid_t uid, gid_t gid, pid_t pid);
uint64_t h_connect(struct harness *h, uid_t uid, gid_t gid); /* and says hello */
/* Says it as one that comes back, and is told why it is ended; token 0: it comes anew. */
struct h_reply *h_hello(struct harness *h, uint64_t conn, uint64_t token);
bool h_hangup(struct harness *h, uint64_t conn);
void h_exit(struct harness *h, uint64_t conn);
void h_disconnect(struct harness *h, uint64_t conn); /* both */
void h_packet(struct harness *h, uint64_t conn, const void *packet, size_t n);
/* Sends a request; its reply, if it came at once, is in h->replies[conn]. */
struct h_reply *h_request(struct harness *h, uint64_t conn, enum msg_method method,
                          const void *params);
/* The client that was of asks once more for what it has last had done, and is answered the same. */
void h_repeat(struct harness *h, uint64_t of, uint64_t conn);
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
struct h_reply h_small(struct harness *h, uint64_t conn, int64_t bytes);
/* For h_create_as() and h_made(). */
extern const struct msg_create_params exclusive, in_shared; /* in_shared: exclusive, too */
struct h_reply *h_open(struct harness *h, uint64_t conn, const char *name, const char *pool,
                       const char *mode);
struct h_reply *h_open_generation(struct harness *h, uint64_t conn, const char *name,
                                  const char *pool, uint64_t generation);
struct h_reply *h_unlink(struct harness *h, uint64_t conn, const char *name, const char *pool);
struct h_reply *h_publish(struct harness *h, uint64_t conn, uint64_t lease, const char *name);
/* "|u1" of so many bytes; params may set the rest. reply->array is the part's number. */
struct h_reply *h_part_as(struct harness *h, uint64_t conn, int64_t bytes,
                          struct msg_publish_part_params params);
struct h_reply *h_part(struct harness *h, uint64_t conn, uint64_t lease, uint64_t offset,
                       int64_t bytes, const char *name);
/* Parts of `whole` as members of the set; reply->array is the first one's number. */
struct h_reply *h_stage_parts(struct harness *h, uint64_t conn, uint64_t set, uint64_t whole,
                              const struct msg_member *parts, uint32_t n, bool told);
/* Waits until nobody but conn has the set; answered at once or later. own 0: none. */
struct h_reply *h_vacate(struct harness *h, uint64_t conn, uint64_t set, uint64_t own,
                         uint64_t timeout_ns);
/* Answered at once or later. */
struct h_reply *h_parts(struct harness *h, uint64_t conn);
struct h_reply *h_watch(struct harness *h, uint64_t conn, const char *name, const char *pool,
                        uint64_t seen);
struct h_reply *h_show(struct harness *h, uint64_t conn, const char *name, const char *pool);
struct h_reply *h_flush(struct harness *h, uint64_t conn);
struct h_reply *h_defer(struct harness *h, uint64_t conn, bool begin);
/* Numbers of device 0, where the driver's answer is finished with it. */
const struct msg_memory_info *h_memory_info(struct harness *h, uint64_t conn);
void h_close(struct harness *h, uint64_t conn, uint64_t lease);
void h_forget(struct harness *h, uint64_t conn, uint64_t block);

/* ---- harness_bracket.c ---- */

/* A page of the connection's own; 0: refused. Then one with bytes behind the slots. */
uint64_t h_page_new(struct harness *h, uint64_t conn);
uint64_t h_page_new_with(struct harness *h, uint64_t conn, uint64_t tail);
void h_make_page(struct harness *h);
struct h_page *h_page(struct harness *h, uint64_t id); /* NULL: it is gone */
struct timeline_slot *h_slot(struct harness *h, uint64_t page, uint64_t slot);
/* The owner submits the next value of a slot; the GPU comes as far as a value. */
uint64_t h_submit(struct harness *h, uint64_t page, uint64_t slot);
void h_land(struct harness *h, uint64_t page, uint64_t slot, uint64_t value);
void h_drop_page(struct harness *h, uint64_t conn, uint64_t page);
/* params.bracket 0: the next number. Answered at once or later. */
struct h_reply *h_begin_as(struct harness *h, uint64_t conn, struct msg_begin_params params);
/* Of one array; returns the bracket's number, whose reply is h->replies[conn]. */
uint64_t h_begin(struct harness *h, uint64_t conn, uint64_t lease, bool write);
/* The same, that is open when it returns. */
uint64_t h_begun(struct harness *h, uint64_t conn, uint64_t lease, bool write);
bool h_is_open(const struct harness *h, uint64_t conn); /* by its last reply */
void h_end_as(struct harness *h, uint64_t conn, struct msg_end_params params);
/* Without a fence. */
void h_end(struct harness *h, uint64_t conn, uint64_t bracket);
/* With one: the next value of the slot. */
uint64_t h_end_at(struct harness *h, uint64_t conn, uint64_t bracket, uint64_t page,
                  uint64_t slot);
struct h_reply *h_fences(struct harness *h, uint64_t conn, uint64_t bracket, uint64_t page,
                         uint64_t slot);
struct h_reply *h_discard(struct harness *h, uint64_t conn, uint64_t lease);
void h_cancel(struct harness *h, uint64_t conn, uint32_t request);
struct h_reply *h_timeline(struct harness *h, uint64_t conn, const char *name, const char *pool,
                           uint64_t page);
struct h_reply *h_open_timeline(struct harness *h, uint64_t conn, const char *name,
                                const char *pool);

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
