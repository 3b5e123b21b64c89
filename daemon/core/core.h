/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of the daemon: pools, blocks, arrays, names, leases and quotas as a pure state
 * machine. Events go in by the functions below, actions come out of core_next(). It makes no
 * driver call, no system call, reads no clock and knows no libuv: whoever drives it, the shell
 * in daemon/ or a model in tests/, carries the actions out and reports back.
 *
 * Order: actions are carried out in the order in which they come out. What a caller is promised by
 * one of them is in the journal by then (I9), where there is one: core_set_journal().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "msg.h"
#include "proto_limits.h"

#define CORE_UUID_SIZE 41

struct core;
struct journal;

struct core_limits { /* per uid */
    uint32_t connections;
    uint32_t arrays;   /* that it created */
    uint32_t names;    /* arrays that have a name, by the uid that created them */
    uint32_t leases;   /* held by all connections of the uid */
    uint32_t watches;  /* by all connections of the uid */
    uint32_t jobs;     /* driver calls asked for and not done, and flushes */
    uint32_t brackets; /* open, or waiting to be */
    uint32_t pages;    /* of timelines */
    uint64_t bytes;    /* of device memory, of the arrays it created; 0: as much as there is */
    uint64_t pinned_bytes; /* the same of page-locked host memory; 0: no limit */
    uint64_t host_bytes;   /* that its arrays' books take here; 0: no limit */
    uint32_t fds;          /* of the daemon's, for its connections and blocks */
};

/* What all uids have together; 0: no limit. A uid may have half of what the others leave, and no
 * uid but 0 may use up the last sixteenth. */
struct core_totals {
    uint64_t host_bytes, fds;
};

enum core_kind { /* of a block: what a client maps it by */
    KIND_DEVICE, /* a VMM allocation and its fd */
    KIND_LEGACY, /* cuMemAlloc and its 64-byte handle: the daemon needs a context */
    KIND_PINNED, /* a memfd that clients register with the driver */
    N_KINDS,
};

/* "device", "legacy", "pinned" */
const char *core_kind_name(enum core_kind kind);

#define CORE_HANDLE_WORDS 8 /* of a CUipcMemHandle, 8 bytes each */

struct timeline_slot;

/* How streams of a device wait for those of another process. The core only tells it on. */
enum core_handoff {
    HANDOFF_MEMOPS, /* stream memory operations on timelines */
    HANDOFF_HOST,   /* host functions signal, the host waits */
    HANDOFF_EVENTS, /* inter-process events: a waiter hangs when who signals is killed */
    N_HANDOFFS,
};

/* "memops", "host", "events" */
const char *core_handoff_name(enum core_handoff handoff);

struct core_device {
    char uuid[CORE_UUID_SIZE];
    char name[128];
    uint64_t total;
    uint64_t granularity;
    bool lacks[N_KINDS]; /* kinds that it, or the driver, cannot do */
    enum core_handoff handoff;
    bool memops, readonly_host, mps; /* messages.def, device */
    const char *persistence;         /* "on", "off", NULL: not known. Static */
    const char *compute_mode;        /* "default", "exclusive", "prohibited", NULL. Static */
};

struct core_memory {        /* how pools are cut; caid.conf(5), docs/DESIGN_NOTES.md */
    uint64_t block_size;    /* of shared blocks, at most */
    uint64_t shared_max;    /* larger arrays have a block of their own; 0: all have */
    uint64_t reserve;       /* bytes of empty blocks that a pool keeps */
    uint32_t pending_count; /* of the deallocation queues: mem/dealloc.h */
    double pending_ratio;
    uint64_t pending_age_ns; /* also how long an empty block is kept; UINT64_MAX: for ever */
};

/* A configured pool's name: 1 to PROTO_POOL_MAX letters, digits, '.', '_' and '-'. No ':' keeps
 * them apart from "uid:N". NULL is none. */
bool core_pool_name_valid(const char *name);

struct core_pool_config { /* a pool that the administrator defined */
    const char *name;
    uid_t uid;
    gid_t gid;
    mode_t mode;    /* r: list and open; w: create, unlink and open "rw" */
    uint64_t quota; /* bytes; 0: none */
    bool legacy;    /* may have arrays of KIND_LEGACY */
};

struct core_config {
    const char *server; /* "caid 0.1.0" */
    const char *driver; /* "cuda", "soft" */
    const char *driver_path;
    uint64_t driver_version;
    pid_t pid;
    uid_t uid;          /* that the daemon runs as: it may see what every uid is charged */
    uid_t overflow_uid; /* of whoever our user namespace does not map; 0: nobody is that */
    char machine_id[33], daemon_id[33]; /* hexadecimal: hello_result */
    uint64_t hello_timeout_ns;          /* a connection without HELLO is closed after it */
    uint64_t ticket_ttl_ns;             /* of tickets whose sender has gone */
    uint64_t
        ticket_age_ns; /* of a message's, from then on that it was made; UINT64_MAX: none */
    struct core_limits limits;
    struct core_totals totals;
    struct core_memory memory;
    uint32_t blocks;     /* that one pool may have */
    uint32_t threads;    /* driver calls that can be carried out at a time; not 0 */
    uint64_t user_quota; /* bytes in a uid's own pool; 0: none */
    mode_t user_mode;    /* of a uid's own pool: 0600 */
    bool user_legacy;    /* the same of KIND_LEGACY */
    const struct core_device *devices;
    size_t n_devices;
    const struct core_pool_config *pools;
    size_t n_pools;
};

/* Everything in config is copied. -EINVAL for a config that names a pool twice or badly. */
int core_new(struct core **ret, const struct core_config *config, uint64_t now_ns);
/* A pool of the administrator's that has arrays or timelines: it cannot be taken away. */
bool core_pool_is_used(const struct core *core, const char *name);
/*
 * Takes over what may change: pools, those of uids, limits, totals, memory, blocks,
 * hello_timeout_ns and, of what is sent or left from then on, tickets' times; the rest of config is
 * not looked at. It is what new requests are measured by:
 * who is over a limit or a quota, or has open what it may not open any more, keeps that. Who
 * watches a name in a pool that is gone is told so.
 *
 * -EINVAL as core_new(), -EBUSY for a config that lacks a pool which is used, -ENOMEM: then
 * nothing has changed.
 */
int core_reconfigure(struct core *core, const struct core_config *config, uint64_t now_ns);
/*
 * What outlives this process goes into that journal (journal.h), at first all that there is; what
 * is in it so far is lost. It stays the caller's, who looks whether it is full, and is to stay
 * until another one takes its place or core_drop_journal(). What an event has recorded counts when
 * the first action after it is taken. Only what has a number in the keeper comes back: restore.h.
 */
void core_set_journal(struct core *core, struct journal *journal);
/* What became of a CORE_KEEP: the number; 0: it is not kept. To be called while the action is
 * carried out, before any other event. */
void core_process_kept(struct core *core, uint64_t conn, uint32_t kept);
/* The same, some of it in each event; from core_journal_is_renewed() on `next` has all that the
 * old one has, and core_switch_journal() makes it the only one. */
void core_renew_journal(struct core *core, struct journal *next);
/* It takes more than is charged for it. */
bool core_journal_is_large(const struct core *core);
bool core_journal_is_renewed(const struct core *core);
void core_switch_journal(struct core *core);
/* Nothing is recorded any more. */
void core_drop_journal(struct core *core);
/* No connection may be left; blocks that are left are forgotten (their memory ends with us). */
struct core *core_free(struct core *core);

/* ---- events ---- */

struct core_peer { /* from the kernel, never from the client */
    uid_t uid;
    gid_t gid;
    pid_t pid;
    const gid_t *groups;
    size_t n_groups;
    uint64_t token[2]; /* random: by which it is known after a restart */
};

/* conn is the caller's number for the connection, not 0 and not in use. -EDQUOT: the uid has as
 * many connections as it may, -EMFILE: its share of the fds; it was not taken up. -ENOMEM. */
int core_connect(struct core *core, uint64_t conn, const struct core_peer *peer,
                 uint64_t now_ns);
/* How many bytes of records, not 0, a reply may have from now on, at least one record; who wants
 * more asks again. For while others wait. PROTO_PACKET_MAX: as many as fit. */
void core_set_reply_max(struct core *core, size_t bytes);
/* The socket has hung up: ends the connection and every bracket. true: memory that it had leased
 * waits for core_exited(), because the GPU may write for it as long as the process lives (I2),
 * or for a CORE_FORGET. */
bool core_hangup(struct core *core, uint64_t conn);
/* The process has exited; core_hangup() may have been called before or not. */
void core_exited(struct core *core, uint64_t conn);
/* Whether that packet may be handled now. false: it asks for something that is not back yet after
 * a restart (restore.h), which comes back before others now. All that waits is to be asked for
 * again when core_admits_more() says so, and when all is back. */
bool core_admits(struct core *core, uint64_t conn, const void *packet, size_t n);
/* Whether something that was not admitted may be now, since core_admits_more() was asked last. */
bool core_admits_more(struct core *core);
/* One packet, which is admitted. A violation of the protocol becomes a CORE_CLOSE action for this
 * connection. */
void core_receive(struct core *core, uint64_t conn, const void *packet, size_t n,
                  uint64_t now_ns);

/* What became of a CORE_ALLOC: handle and fd of the new block (fd is the caller's to close when
 * CORE_RELEASE comes; -1 and `ipc` for KIND_LEGACY), or error, a CUresult and its text. */
struct core_alloc_result {
    int error; /* 0 or -errno */
    int cuda;
    const char *text;
    uint64_t free; /* bytes that the device had left after -ENOMEM; 0 where that is unknown */
    uint64_t handle;
    int fd;
    uint32_t kept; /* the number under which the fd outlives us; 0: none */
    uint64_t ipc[CORE_HANDLE_WORDS];
};

void core_alloc_done(struct core *core, uint64_t job, const struct core_alloc_result *result);

/* What became of a CORE_RELEASE: 0 or -errno with a CUresult and its text. It is over either way: a
 * handle that the driver refused is never tried again. */
void core_release_done(struct core *core, uint64_t job, int error, int cuda, const char *text);

struct core_memory_result { /* one per device that was asked for, in its order */
    int error;
    int cuda;
    const char *text;
    uint64_t total, free;
};

void core_memory_done(struct core *core, uint64_t job, const struct core_memory_result *results,
                      size_t n);

/* What became of a CORE_PAGE_NEW: the page, zeroed and mapped here, which stays so until
 * CORE_PAGE_FREE; and fds for its owner (write) and for others (read), which are the caller's to
 * close: `write` when CORE_PAGE_SEAL comes, both when CORE_PAGE_FREE does. To be called while
 * the action is carried out, before any other event. */
struct core_page_result {
    int error; /* 0 or -errno */
    int write, read;
    uint64_t size;               /* bytes */
    struct timeline_slot *slots; /* TIMELINE_SLOTS of them */
    uint32_t kept;               /* as of core_alloc_result */
};

void core_page_done(struct core *core, uint64_t page, const struct core_page_result *result);

/* The time of the event that follows, where that does not carry it. */
void core_set_time(struct core *core, uint64_t now_ns);
/* Time has passed. */
void core_tick(struct core *core, uint64_t now_ns);
/* The time by CLOCK_BOOTTIME, by which names expire and tickets run out. */
void core_set_boottime(struct core *core, uint64_t boot_ns);
/* When the next name expires, or the next ticket runs out, by that clock: core_tick() is wanted
 * then, and anew as long as that is in the past, since a tick ends no more than some. UINT64_MAX:
 * none does. */
uint64_t core_expiry_ns(const struct core *core);
/* When core_tick() is wanted next; UINT64_MAX: not. In the past, as soon as others have been heard
 * of: an event does no more than so much, and leaves the rest. */
uint64_t core_deadline_ns(const struct core *core);
/* So much time was spent on a uid. */
void core_spent(struct core *core, uid_t uid, uint64_t ns);

/* What the caller knows: of its loop, and of what outlives this process. */
struct core_figures {
    uint64_t turn_cpu_ns,
        turn_wall_ns;      /* the longest turn, by its thread's time and the clock */
    const uint64_t *turns; /* [i]: how many took no longer than 1 us << i, and longer than those
                              before; the last one: all others */
    uint32_t n_turns;
    uint64_t turn_sum_ns; /* of all of them, by the clock */
    uint64_t restarts; /* daemons that have left the keeper their arrays, one after the other */
    uint64_t journal_bytes;
    uint32_t n_kept; /* fds that the keeper has */
    bool keeper;     /* there is one */
};

/* Called for who asks for the status. */
void core_set_figures(struct core *core,
                      void (*figures)(void *userdata, struct core_figures *ret),
                      void *userdata);
/* No new work from now on: requests that need the driver are refused with SHUTDOWN, and calls whose
 * turn has not come are not made. */
void core_stop(struct core *core);
/* Driver jobs that were given out and have not been reported back. */
size_t core_jobs(const struct core *core);

/* ---- actions ---- */

enum core_action_type {
    CORE_SEND,    /* send the packet with its fds */
    CORE_CLOSE,   /* end the connection after what was sent before; then core_hangup() */
    CORE_ALLOC,   /* create size bytes of kind on device and export: core_alloc_done() */
    CORE_RELEASE, /* release handle, close fd: core_release_done() */
    CORE_MEMORY,  /* read free and total of device (all: n_devices): core_memory_done() */
    CORE_KEEP,    /* give the connection's pidfd to the keeper: core_process_kept() */
    CORE_LET_GO,  /* what the keeper has under that number is not recorded any more */
    CORE_FORGET, /* a connection that has hung up: its process's exit is of no concern any more */
    CORE_PAGE_NEW,  /* make a page of timelines: core_page_done() */
    CORE_PAGE_SEAL, /* its owner has mapped it: nobody else shall write (F_SEAL_FUTURE_WRITE) */
    CORE_PAGE_KILL, /* timeline_kill() all slots and wake who waits: maybe not for the last time */
    CORE_PAGE_FREE, /* the same, and unmap and close it */
    CORE_AUDIT,     /* for the log, and of no other consequence */
};

enum core_audit_kind {
    AUDIT_REPLACE, /* the name of what another uid created is another array's now */
    AUDIT_REMOVE,  /* or nobody's, now or in some time */
    AUDIT_LIMIT,   /* a refusal by a quota or limit */
    AUDIT_CLIENT,  /* one that is hung up */
    AUDIT_TICKET,  /* one that has run out */
};

struct core_audit {
    enum core_audit_kind kind;
    uint32_t n_lost; /* before it, for which there was no memory */
    pid_t pid;       /* 0: in another pid namespace */
    uid_t uid;
    char creator[12], pool[PROTO_POOL_MAX + 1], name[PROTO_NAME_MAX + 1]; /* "": none */
    char text[768];                                                       /* for people */
};

struct core_action {
    enum core_action_type type;
    uint64_t conn; /* SEND, CLOSE, FORGET, KEEP */
    uint32_t kept; /* LET_GO */
    uint64_t job;  /* ALLOC, RELEASE, MEMORY */

    /* SEND: valid until the next call of any core function; fds are the blocks', borrowed */
    const void *packet;
    size_t n_packet;
    const int *fds;
    size_t n_fds;

    const char *reason; /* CLOSE: for the log */

    uint32_t device;     /* ALLOC, MEMORY: index; MEMORY: n_devices for all */
    enum core_kind kind; /* ALLOC */
    uint64_t size;       /* ALLOC: bytes, a multiple of the granularity */
    uint64_t handle;     /* RELEASE */
    int fd;              /* RELEASE */

    uint64_t page; /* PAGE_* */

    const struct core_audit *audit; /* AUDIT */
};

/* Takes the next action out; false when there is none. Strings live until the next call. */
bool core_next(struct core *core, struct core_action *ret);

/* ---- figures ---- */

/* Arrays and leases. */
uint64_t core_objects(const struct core *core);

struct core_turns { /* of brackets */
    uint64_t n_waiting;
    uint64_t since_ns; /* when the last one of those that had to wait has begun to */
    uint64_t
        last_ns; /* how long the last one that was let in had waited; UINT64_MAX: none has */
};

void core_get_turns(const struct core *core, struct core_turns *ret);
