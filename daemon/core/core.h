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
#define CORE_PCI_SIZE  16

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
    uint64_t bytes;    /* of device memory, of arrays that it created; 0: as much as there is */
    uint64_t pinned_bytes; /* the same of page-locked host memory; 0: no limit */
    uint64_t host_bytes;   /* of the daemon's memory; 0: no limit */
    uint32_t fds;          /* the daemon's, for connections and blocks */
};

/* What all uids have together; 0: no limit. A uid may have half of what the others leave. Only uid
 * 0 may use up the last sixteenth. */
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

/* How streams of a device wait for streams of another process. The core passes it on. */
enum core_handoff {
    HANDOFF_MEMOPS, /* stream memory operations on timelines */
    HANDOFF_HOST,   /* host functions signal, the host waits */
    HANDOFF_EVENTS, /* inter-process events: a waiter hangs if the signalling process is killed */
    N_HANDOFFS,
};

/* "memops", "host", "events" */
const char *core_handoff_name(enum core_handoff handoff);

struct core_device {
    char uuid[CORE_UUID_SIZE];
    char pci[CORE_PCI_SIZE];
    char name[128];
    uint64_t total;
    uint64_t granularity;
    bool lacks[N_KINDS]; /* kinds that the device or the driver does not support */
    enum core_handoff handoff;
    bool memops, readonly_host, mps, rdma; /* messages.def, device */
    const char *persistence;               /* "on", "off", NULL: not known. Static */
    const char *compute_mode; /* "default", "exclusive", "prohibited", NULL. Static */
};

struct core_memory {        /* how pools are cut; caid.conf(5), docs/DESIGN_NOTES.md */
    uint64_t block_size;    /* of shared blocks, at most */
    uint64_t shared_max;    /* larger arrays have a block of their own; 0: all have */
    uint64_t reserve;       /* bytes of empty blocks that a pool keeps */
    uint32_t pending_count; /* of the deallocation queues: mem/dealloc.h */
    double pending_ratio;
    uint64_t pending_age_ns; /* also how long an empty block is kept; UINT64_MAX: for ever */
};

/* The name of a configured pool: 1 to PROTO_POOL_MAX letters, digits, '.', '_' and '-'. Without
 * ':', it cannot be "uid:N". NULL is no name. */
bool core_pool_name_valid(const char *name);

struct core_pool_config { /* a pool that the administrator defined */
    const char *name;
    uid_t uid;
    gid_t gid;
    mode_t mode;    /* r: list and open; w: create, unlink, open "rw" */
    uint64_t quota; /* bytes; 0: none */
    bool legacy;    /* may have arrays of KIND_LEGACY */
};

struct core_config {
    const char *server; /* "caid 0.1.0" */
    const char *driver; /* "cuda", "soft" */
    const char *driver_path;
    uint64_t driver_version;
    pid_t pid;
    uid_t uid;          /* the daemon's own: it may see what every uid is charged */
    uid_t overflow_uid; /* stands for uids that our user namespace does not map; 0: none does */
    char machine_id[33], daemon_id[33]; /* hexadecimal: hello_result */
    uint64_t hello_timeout_ns; /* a connection that has not sent HELLO by then is closed */
    uint64_t ticket_ttl_ns;    /* of a ticket whose sender has gone */
    uint64_t ticket_age_ns;    /* of a ticket for one receiver, since made; UINT64_MAX: none */
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

/* Copies config. -EINVAL: it names a pool twice or badly. */
int core_new(struct core **ret, const struct core_config *config, uint64_t now_ns);
/* Whether a configured pool has arrays or timelines: then a new configuration must not lack it. */
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
/* The answer to a CORE_KEEP: the number that the keeper has the pidfd under; 0: it is not kept. To
 * be called while the action is carried out, before any other event. */
void core_process_kept(struct core *core, uint64_t conn, uint32_t kept);
/* Writes a new journal, some of it in each event. Once core_journal_is_renewed(), `next` has all
 * that the old one has, and core_switch_journal() makes it the only one. */
void core_renew_journal(struct core *core, struct journal *next);
/* The journal is larger than what is charged for it. */
bool core_journal_is_large(const struct core *core);
bool core_journal_is_renewed(const struct core *core);
void core_switch_journal(struct core *core);
/* Records nothing any more. */
void core_drop_journal(struct core *core);
/* No connection may be left. Blocks that are left are forgotten: their memory ends with the
 * process. */
struct core *core_free(struct core *core);

/* ---- events ---- */

struct core_peer { /* from the kernel, never from the client */
    uid_t uid;
    gid_t gid;
    pid_t pid;
    const gid_t *groups;
    size_t n_groups;
    /* random: the client's proof, after a restart, that it had this connection */
    uint64_t token[2];
};

/* conn is the caller's number for the connection, not 0 and not in use. -EDQUOT: the uid has no
 * connection left; -EMFILE: it has no fds left; -ENOMEM. Then it is not connected. */
int core_connect(struct core *core, uint64_t conn, const struct core_peer *peer,
                 uint64_t now_ns);
/* How many bytes of records a reply may have from now on, not 0; it always has one record. The
 * client asks again for more. For use while others wait. PROTO_PACKET_MAX: as many as fit. */
void core_set_reply_max(struct core *core, size_t bytes);
/* The socket has hung up: ends the connection and every bracket. true: leased memory waits for
 * core_exited(), since the GPU may write while the process lives (I2), or until a CORE_FORGET. */
bool core_hangup(struct core *core, uint64_t conn);
/* The process has exited; before or after core_hangup(). */
void core_exited(struct core *core, uint64_t conn);
/* Whether this packet may be handled now. false: it needs something that is not restored yet, which
 * is restored first from now on. Ask again for all packets that wait when core_admits_more() is
 * true, and when all is restored. */
bool core_admits(struct core *core, uint64_t conn, const void *packet, size_t n);
/* Whether packets that were not admitted may be now. It says so once for each change. */
bool core_admits_more(struct core *core);
/* Handles one packet, which has been admitted. A violation of the protocol closes the connection by
 * CORE_CLOSE. */
void core_receive(struct core *core, uint64_t conn, const void *packet, size_t n,
                  uint64_t now_ns);

/* The result of a CORE_ALLOC: handle and fd of the new block, or an error with a CUresult and its
 * text. The fd is the caller's, to be closed at CORE_RELEASE; KIND_LEGACY has -1 and `ipc`. */
#define CORE_FREE_UNKNOWN UINT64_MAX

struct core_alloc_result {
    int error; /* 0 or -errno */
    int cuda;
    const char *text;
    uint64_t free; /* bytes left on the device after -ENOMEM, or CORE_FREE_UNKNOWN */
    uint64_t handle;
    int fd;
    uint32_t kept; /* the keeper's number for the fd; 0: the keeper does not have it */
    uint64_t ipc[CORE_HANDLE_WORDS];
};

void core_alloc_done(struct core *core, uint64_t job, const struct core_alloc_result *result);

/* The result of a CORE_RELEASE: 0, or -errno with a CUresult and its text. A handle that the driver
 * refused is never tried again. */
void core_release_done(struct core *core, uint64_t job, int error, int cuda, const char *text);

struct core_memory_result { /* one for each device that was asked for, in order */
    int error;
    int cuda;
    const char *text;
    uint64_t total, free;
};

void core_memory_done(struct core *core, uint64_t job, const struct core_memory_result *results,
                      size_t n);

/* The result of a CORE_PAGE_NEW: the page, zeroed and mapped here until CORE_PAGE_FREE; and fds for
 * its owner (write) and for others (read). The fds are the caller's: it closes `write` at
 * CORE_PAGE_SEAL and both at CORE_PAGE_FREE. To be called while the action is carried out or
 * later, unless its CORE_PAGE_FREE has come by then. */
struct core_page_result {
    int error; /* 0 or -errno */
    int write, read;
    const char *text;            /* of the error */
    uint64_t size;               /* bytes */
    struct timeline_slot *slots; /* TIMELINE_SLOTS of them, and what was asked for behind */
    uint32_t kept;               /* as of core_alloc_result */
};

void core_page_done(struct core *core, uint64_t page, const struct core_page_result *result);

/* Sets the time of the next event, if that does not carry it. */
void core_set_time(struct core *core, uint64_t now_ns);
/* To be called when core_deadline_ns() has come. */
void core_tick(struct core *core, uint64_t now_ns);
/* Sets the time by CLOCK_BOOTTIME, by which names expire and tickets run out. */
void core_set_boottime(struct core *core, uint64_t boot_ns);
/* When the next name expires or ticket runs out, by CLOCK_BOOTTIME; UINT64_MAX: none does.
 * core_tick() is to be called then. It ends some at a time: as long as this is in the past, call it
 * again. */
uint64_t core_expiry_ns(const struct core *core);
/* When core_tick() is to be called next; UINT64_MAX: not. If it is in the past, call it as soon as
 * others had their turn: an event does a limited amount, and leaves the rest. */
uint64_t core_deadline_ns(const struct core *core);
/* The loop has spent so much time on the uid. */
void core_spent(struct core *core, uid_t uid, uint64_t ns);

/* Figures that the caller knows: of its loop, and of what outlives this process. */
struct core_figures {
    uint64_t turn_cpu_ns,
        turn_wall_ns;      /* the longest turn, by the thread's CPU time and by the clock */
    const uint64_t *turns; /* [i]: turns that took at most 1 us << i, and more than those of
                            * [i - 1]; the last one: all others */
    uint32_t n_turns;
    uint64_t turn_sum_ns; /* of all turns, by the clock */
    uint64_t restarts;    /* daemons whose arrays were restored, one after the other */
    uint64_t journal_bytes;
    uint32_t n_kept; /* fds that the keeper has */
    bool keeper;     /* there is a keeper */
    bool dying;      /* it has not killed all pages yet that it was to kill */
};

/* Called for each status request, and while the core waits for `dying` to end. */
void core_set_figures(struct core *core,
                      void (*figures)(void *userdata, struct core_figures *ret),
                      void *userdata);
/* Takes no new work: requests that need the driver are refused with SHUTDOWN, and driver calls that
 * have not begun are not made. */
void core_stop(struct core *core);
/* Driver calls that have begun, and whose result has not come. */
size_t core_jobs(const struct core *core);

/* ---- actions ---- */

enum core_action_type {
    CORE_SEND,    /* send the packet with its fds */
    CORE_CLOSE,   /* end the connection after what was sent before; then core_hangup() */
    CORE_ALLOC,   /* create size bytes of kind on device and export: core_alloc_done() */
    CORE_RELEASE, /* release handle, close fd: core_release_done() */
    CORE_MEMORY,  /* read free and total of device (all: n_devices): core_memory_done() */
    CORE_KEEP,    /* give the connection's pidfd to the keeper: core_process_kept() */
    CORE_LET_GO, /* the keeper may drop what it has under `kept`, which is not recorded any more */
    CORE_FORGET,    /* the exit of that connection's process does not matter any more */
    CORE_PAGE_NEW,  /* make a page of timelines: core_page_done() */
    CORE_PAGE_SEAL, /* its owner has mapped it: let nobody else write (F_SEAL_FUTURE_WRITE) */
    CORE_PAGE_KILL, /* timeline_kill() all slots and wake who waits, before CORE_PAGE_FREE */
    CORE_PAGE_FREE, /* the same; then unmap and close it */
    CORE_AUDIT,     /* for the log, and of no other consequence */
};

enum core_audit_kind {
    AUDIT_REPLACE, /* a name is given to another array; another uid had created the old one */
    AUDIT_REMOVE,  /* such a name is taken away, now or by a time to live */
    AUDIT_LIMIT,   /* a refusal by a quota or limit */
    AUDIT_CLIENT,  /* a connection that the daemon ends */
    AUDIT_TICKET,  /* a ticket that has run out */
    AUDIT_DROP,    /* a set makes room */
};

struct core_audit {
    enum core_audit_kind kind;
    uint32_t n_lost; /* lines before this one, for which there was no memory */
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

    /* SEND: valid until the next call of any core function. The core keeps the fds. */
    const void *packet;
    size_t n_packet;
    const int *fds;
    size_t n_fds;

    const char *reason; /* CLOSE: for the log */

    uint32_t device;     /* ALLOC, MEMORY: index; MEMORY: n_devices for all */
    enum core_kind kind; /* ALLOC */
    uint64_t size;   /* bytes; ALLOC: a multiple of the granularity; PAGE_NEW: of the tail */
    uint64_t handle; /* RELEASE */
    int fd;          /* RELEASE */

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
    uint64_t since_ns; /* when the last bracket that had to wait began to wait */
    uint64_t last_ns;  /* how long the last one that was let in had waited; UINT64_MAX: none */
};

void core_get_turns(const struct core *core, struct core_turns *ret);
