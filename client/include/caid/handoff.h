/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_HANDOFF_H
#define CAID_HANDOFF_H

/**
 * Handing arrays from the streams of one process to those of another, without a wait of the host:
 * brackets around the use of an array, and under them timelines. Included by caid.h.
 *
 * A stream is a CUstream of this process; 1 is the legacy default stream, 2 the per-thread one, of the
 * context that is current to the thread, or else of the device's primary context. Where 0 is not said
 * to be the host, it is refused as ambiguous (CUDA Array Interface v3). A stream that captures a graph
 * is refused where a value would become part of the graph: CAID_ERR_INVALID.
 *
 * How streams wait is the daemon's setting, by device: caid_client_devices(), caid.conf(5).
 *   "memops"  streams store and wait for values in shared host memory (cuStreamWriteValue64(),
 *             cuStreamWaitValue64()). The host waits for nothing but the reply to a begin.
 *   "host"    where the device lacks that: what a wait is said to enqueue, the host waits for.
 *   "events"  inter-process events, between processes of one uid (else as "host"). A stream that waits
 *             for a process that is killed hangs: the only way of the three to do so.
 *
 * A stream that has signalled or waited takes 4 KiB of page-locked memory, for each page of 16 streams of a
 * client of this process, and of each process that it waited for, or named timeline: until this process
 * exits, since the driver gives such memory back only when no stream of the process waits for anything.
 *
 * When a process dies, the daemon lets go who waits for it. After the daemon has gone nobody does: then
 * a stream that waits for a process that is killed hangs. Where the CUDA context dies that was to signal, its
 * client lets go who waits, if it is a device's primary context, or one that it finds dead in a call: one
 * that the program destroys with signals on their way is not noticed before.
 *
 * caid_client_close() abandons what brackets of the client that are open were writing, ends those that
 * read, and gives up those that have not begun; a signal ends each, so that others come after what the
 * streams have yet to do. A bracket that another thread is just beginning stays until the process exits.
 * Signals that are on their way still come.
 *
 * timeout_ns: CAID_FOREVER, or how long the call may wait (CAID_ERR_TIMEOUT); 0 does not wait.
 */

#include "caid/caid.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAID_FOREVER UINT64_MAX

/* ---- brackets ---- */

struct caid_bracket;

enum caid_bracket_flags {
    CAID_BRACKET_WRITE = 1, /* else it reads */
};

struct caid_bracket_options {
    size_t struct_size;
    struct caid_array *const *reads;
    size_t n_reads;
    struct caid_array *const *writes; /* opened "rw"; none of them twice, or in reads */
    size_t n_writes;
    /* 0: the host uses the arrays, or work that it waits for before it ends the bracket: then the begin
     * waits on the host for what was there before. */
    uint64_t stream;
    uint64_t timeout_ns; /* that the daemon lets it wait; 0: without end */
    bool nowait;         /* CAID_ERR_TIMEOUT at once, where it would have to wait */
};

/**
 * Begins to use arrays on a stream: all of them at once, in one message. Many brackets may read an
 * array, or one writes it; who comes first is served first. Waits, on the host, until those that it has
 * to come after have ended (in the daemon's queue); then enqueues on the stream that it waits for their
 * work. What is enqueued on the stream until caid_bracket_end() is the bracket's.
 *
 * Names may be unlinked and published meanwhile; arrays stay open: caid_array_close() of one ends what a
 * bracket has of it, and one that was being written is abandoned.
 *
 * CAID_ERR_ABANDONED: an array to be read was left by a writer that died. It stays so until a bracket that
 * writes it has ended, or caid_array_discard(). CAID_ERR_DEADLOCK: brackets of this thread are in its way, or
 * those of others that wait for this thread. CAID_ERR_TIMEOUT. CAID_ERR_READ_ONLY. CAID_ERR_DEVICE: the
 * stream is of a device that an array is not mapped for. CAID_ERR_INVALID: no stream, or a bad list.
 * CAID_ERR_LIMIT: as many brackets as the uid may have.
 *
 * *ret is the caller's, to be ended by caid_bracket_end() and freed by caid_bracket_free(). A thread that
 * begins brackets is the one that ends them, for CAID_ERR_DEADLOCK to be right.
 */
CAID_API int caid_bracket_begin(struct caid_client *client, struct caid_bracket **ret,
                                const struct caid_bracket_options *options,
                                struct caid_error *error);

/* The same in two: start asks, and does not wait. wait waits for the answer, at most timeout_ns, and
 * enqueues: 0, or 1 for not yet (call again); what is refused is over, CAID_ERR_TIMEOUT of the options
 * included. Between the two caid_bracket_free() gives it up. */
CAID_API int caid_bracket_start(struct caid_client *client, struct caid_bracket **ret,
                                const struct caid_bracket_options *options,
                                struct caid_error *error);
CAID_API int caid_bracket_wait(struct caid_bracket *bracket, uint64_t timeout_ns,
                               struct caid_error *error);

/* One array. */
CAID_API int caid_array_begin(struct caid_array *array, struct caid_bracket **ret,
                              uint32_t flags, uint64_t stream, uint64_t timeout_ns,
                              struct caid_error *error);

/**
 * Ends the bracket: enqueues the signal, and tells the daemon, without waiting for either. The bracket has
 * ended in any case. Where the signal cannot be enqueued the host waits for the stream; where it cannot do
 * that (the context is dead, the stream captures a graph), what the bracket wrote is abandoned. Then
 * what caid_bracket_check() says. CAID_ERR_INVALID: it has not begun, or has ended. CAID_ERR_CLOSED: the client
 * is closed, which has ended it.
 */
CAID_API int caid_bracket_end(struct caid_bracket *bracket, struct caid_error *error);

/* The same for one whose work is not whole, on purpose or by mistake: what it wrote is abandoned. */
CAID_API int caid_bracket_abandon(struct caid_bracket *bracket, struct caid_error *error);

/* CAID_ERR_ABANDONED: a process that the bracket's stream waited for has died before its work was done, and
 * what the bracket read is not whole; one that only writes is not told. 0 where that is not so by now: ask again when the stream has come to
 * the bracket's end, or caid_stream_synchronize(). */
CAID_API int caid_bracket_check(struct caid_bracket *bracket, struct caid_error *error);

/* Abandons it first if it is open; one that has not begun is given up. NULL is allowed. */
CAID_API void caid_bracket_free(struct caid_bracket *bracket);

/* Takes the contents of an abandoned array as they are. The array was opened "rw". */
CAID_API int caid_array_discard(struct caid_array *array, struct caid_error *error);

/* ---- timelines ---- */

/*
 * A number that only grows, 1 to 2^62 - 1, in memory that processes share: its creator signals, others wait.
 * After opening no daemon is asked. When the creator's process exits, or the timeline is closed, every
 * wait for a value that was not reached ends, with CAID_ERR_ABANDONED where a caller can be told: waits of
 * the host at once, those of streams by caid_stream_check() and caid_stream_synchronize().
 */
struct caid_timeline;

#define CAID_TIMELINE_MAX ((UINT64_C(1) << 62) - 1)

/* A new one under a name of the pool (NULL: the caller's own), to be ended by caid_timeline_close(). Names of
 * timelines and of arrays are apart. CAID_ERR_EXISTS, CAID_ERR_PERMISSION: the pool may not be written. */
CAID_API int caid_timeline_create(struct caid_client *client, struct caid_timeline **ret,
                                  const char *name, const char *pool, struct caid_error *error);
/* To wait for. CAID_ERR_NOT_FOUND. */
CAID_API int caid_timeline_open(struct caid_client *client, struct caid_timeline **ret,
                                const char *name, const char *pool, struct caid_error *error);
/* NULL is allowed. The creator's: the name goes at once; waits end when the signals that are on their way have
 * come. */
CAID_API void caid_timeline_close(struct caid_timeline *timeline);

/* Streams 1 and 2 of a timeline are those of the context that is current to the thread, or else of the
 * primary context of device 0. */

/* The creator's: value is reached when the stream has come to here. stream 0: now, on the host; refused while a
 * signal of a stream is on its way (it would run backwards). CAID_ERR_INVALID: not more than the last one.
 * CAID_ERR_PERMISSION: the timeline was opened, not created. Signals of several streams are ordered by the
 * caller. */
CAID_API int caid_timeline_signal(struct caid_timeline *timeline, uint64_t stream,
                                  uint64_t value, struct caid_error *error);

enum caid_timeline_flags {
    /* Enqueues the wait at once, even if the signal has not been submitted. It has no timeout, and as long as
     * it waits it takes one of the few queues between process and device (CUDA_DEVICE_MAX_CONNECTIONS, 8):
     * other streams may be held up behind it, and, if it is one of them that leads to the signal, for
     * ever. */
    CAID_TIMELINE_AHEAD = 1,
};

/* What is enqueued on the stream from here on comes after value. Holds the host until the signal has been
 * submitted. stream 0: holds the host until value has been reached. */
CAID_API int caid_timeline_wait(struct caid_timeline *timeline, uint64_t stream, uint64_t value,
                                uint64_t timeout_ns, uint32_t flags, struct caid_error *error);

/* What has been reached; 0 before the first. CAID_ERR_ABANDONED when it is dead, and written all the same.
 * CAID_ERR_PROTOCOL: the memory holds what it cannot. */
CAID_API int caid_timeline_value(struct caid_timeline *timeline, uint64_t *ret,
                                 struct caid_error *error);

struct caid_timeline_entry {
    const char *pool, *name;
    const char *client; /* the name that its creator gave itself, or NULL */
    uint64_t pid;
    uint32_t uid;
    uint64_t value;     /* reached */
    uint64_t submitted; /* on its way */
    uint64_t holders;   /* others that have it open */
};

/* Like caid_list(); prefix is ignored. */
CAID_API int caid_timelines(struct caid_client *client, const struct caid_list_options *options,
                            int (*fn)(const struct caid_timeline_entry *entry, void *userdata),
                            void *userdata, struct caid_error *error);

/* ---- streams ---- */

enum caid_stream_flags {
    CAID_STREAM_NON_BLOCKING =
        1, /* CU_STREAM_NON_BLOCKING: apart from the legacy default stream */
};

/* A stream of the primary context of a device, an index; to be ended by caid_stream_destroy(). */
CAID_API int caid_stream_create(struct caid_client *client, int32_t device, uint32_t flags,
                                uint64_t *ret, struct caid_error *error);
/* Returns at once; what is on the stream goes on. */
CAID_API int caid_stream_destroy(struct caid_client *client, uint64_t stream,
                                 struct caid_error *error);

/* Waits on the host for all that is on the stream; then caid_stream_check(). device: whose primary context
 * 1 and 2 mean where none is current. */
CAID_API int caid_stream_synchronize(struct caid_client *client, uint64_t stream,
                                     int32_t device, struct caid_error *error);
/* CAID_ERR_ABANDONED: since it was last told so, the stream was let go from a wait, of a bracket or a
 * timeline, for a process that has died. */
CAID_API int caid_stream_check(struct caid_client *client, uint64_t stream, int32_t device,
                               struct caid_error *error);

#ifdef __cplusplus
}
#endif

#endif
