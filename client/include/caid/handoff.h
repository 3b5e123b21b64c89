/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_CAID_H
#    include "caid/caid.h" /* this is a part of it */
#elif !defined(CAID_HANDOFF_H)
#    define CAID_HANDOFF_H

/**
 * Handing arrays from the streams of one process to those of another, without a wait of the host:
 * brackets around the use of an array, and under them timelines.
 *
 * A stream is a CUstream of this process; 1 is the legacy default stream, 2 the per-thread one, of
 * the context that is current to the thread, or else of the primary context of the device (of a
 * timeline: of device 0). Where 0 is not said to be the host, it is refused as ambiguous (CUDA
 * Array Interface v3), and so is a stream that captures a graph, of which a value would become
 * part.
 *
 * How streams wait is the daemon's setting, by device (caid.conf(5)):
 *   "memops"  for values in shared host memory (cuStreamWaitValue64()).
 *   "host"    where the device lacks that: what a wait is said to enqueue, the host waits for.
 *   "events"  for inter-process events, between processes of one uid (else as "host"). Only
 *             these streams hang when a process is killed that they wait for.
 * A stream that has signalled or waited takes page-locked memory until this process exits: 4 KiB
 * for each page of 16 streams of a client of this or another process, and for each timeline.
 *
 * When a process dies, the daemon ends the waits for it; without a daemon they hang. When a CUDA
 * context dies that was to signal, its client ends the waits, if it is a device's primary context,
 * or one that the client finds dead in a call. caid_client_close() abandons what open brackets of
 * the client were writing, ends those that read, and gives up those that have not begun; a signal
 * ends each, so that others come after what the streams have yet to do. One that another thread is
 * just beginning stays until the process exits.
 *
 * timeout_ns: CAID_FOREVER, or how long the call may wait (CAID_ERR_TIMEOUT); 0 does not wait.
 */

/* ---- brackets ---- */

struct caid_bracket;

enum caid_bracket_flags {
    CAID_BRACKET_WRITE = 1, /* else it reads */
};

/* Some bytes of an array, from one to before another; 0 and 0: all of it. */
struct caid_range {
    uint64_t from;
    uint64_t end;
};

struct caid_bracket_options {
    size_t struct_size;
    struct caid_array *const *reads;
    size_t n_reads;
    struct caid_array *const *writes; /* opened "rw"; none of them twice, or in reads */
    size_t n_writes;
    /* 0: the host uses the arrays, or work that it waits for before it ends the bracket: then the
     * begin waits on the host for what was there before. */
    uint64_t stream;
    uint64_t timeout_ns; /* how long the daemon lets it wait; 0: for ever */
    bool nowait;         /* CAID_ERR_TIMEOUT at once, if it would have to wait */
    /* Of each array of the lists, the bytes that the bracket uses; NULL: all. Then an array may be
     * there several times, with ranges that do not overlap. */
    const struct caid_range *read_ranges;
    const struct caid_range *write_ranges;
};

/* Begins to use arrays on a stream: all of them at once, in one message. Many brackets may read an
 * array, or one writes it; who comes first is served first. Brackets of ranges that do not overlap
 * go on side by side, and abandon their ranges alone; up to 64 of an array, one more takes all of
 * it. Waits, on the host, until those that it
 * has to come after have ended; then enqueues on the stream that it waits for their work. What is
 * enqueued there until caid_bracket_end() is the bracket's. Names may be unlinked and published
 * meanwhile; caid_array_close() of an array ends what a bracket has of it, and one that was being
 * written is abandoned.
 *
 * CAID_ERR_ABANDONED: an array to be read was left by a writer that died. It stays so until a
 * bracket that writes it has ended, or caid_array_discard(). CAID_ERR_DEADLOCK: brackets of this
 * thread (which is to end those that it begins) are in its way, or those of others that wait for
 * this thread. CAID_ERR_TIMEOUT. CAID_ERR_READ_ONLY. CAID_ERR_DEVICE: the stream is of a device
 * that an array is not mapped for. CAID_ERR_INVALID: no stream, a bad list, or bytes that the array
 * has not got. CAID_ERR_LIMIT: as many brackets as the uid may have, or no place for several ranges
 * of an array. */
int caid_bracket_begin(struct caid_client *client, struct caid_bracket **ret,
                       const struct caid_bracket_options *options, struct caid_error *error);
/* The same in two: start asks, and does not wait. wait waits for the answer, at most timeout_ns,
 * and enqueues: 0, or 1 for not yet (call again); what is refused is over, CAID_ERR_TIMEOUT of the
 * options, and of a daemon that does not answer (call_timeout_ns), included. Between the two
 * caid_bracket_free() gives it up. */
int caid_bracket_start(struct caid_client *client, struct caid_bracket **ret,
                       const struct caid_bracket_options *options, struct caid_error *error);
int caid_bracket_wait(struct caid_bracket *bracket, uint64_t timeout_ns,
                      struct caid_error *error);
/* The same for one array. */
int caid_array_begin(struct caid_array *array, struct caid_bracket **ret, uint32_t flags,
                     uint64_t stream, uint64_t timeout_ns, struct caid_error *error);

/* Ends the bracket, in any case: enqueues the signal, and tells the daemon, without waiting for
 * either. Where the signal cannot be enqueued the host waits for the stream; where it cannot do
 * that (the context is dead, the stream captures a graph), what the bracket wrote is abandoned.
 * Then what caid_bracket_check() says. CAID_ERR_INVALID: it has not begun, or has ended.
 * CAID_ERR_CLOSED: so has the client, and it with that. */
int caid_bracket_end(struct caid_bracket *bracket, struct caid_error *error);
/* The same if the bracket's work is not whole: what it wrote is abandoned. */
int caid_bracket_abandon(struct caid_bracket *bracket, struct caid_error *error);
/* CAID_ERR_ABANDONED: a process that the bracket's stream waited for has died before its work was
 * done, and what the bracket read is not whole; one that only writes is not told. 0 where that is
 * not so by now: ask again when the stream has come to its end. */
int caid_bracket_check(struct caid_bracket *bracket, struct caid_error *error);
/* Abandons the bracket first if it is open; gives it up if it has not begun. */
void caid_bracket_free(struct caid_bracket *bracket);

/* Takes the contents of an abandoned array as they are. The array was opened "rw". */
int caid_array_discard(struct caid_array *array, struct caid_error *error);

/* ---- timelines ---- */

/* A number that only grows, 1 to 2^62 - 1, in memory that processes share: its creator signals,
 * others wait. After opening no daemon is asked. When the creator's process exits, or the timeline
 * is closed, every wait for a value that was not reached ends, with CAID_ERR_ABANDONED where a
 * caller can be told: waits of the host at once, those of streams by caid_stream_check(). */
struct caid_timeline;

#    define CAID_TIMELINE_MAX           ((UINT64_C(1) << 62) - 1)

/* Names of timelines and of arrays are apart. CAID_ERR_EXISTS, CAID_ERR_PERMISSION. */
int caid_timeline_create(struct caid_client *client, struct caid_timeline **ret,
                         const char *name, const char *pool, struct caid_error *error);
/* Opens a timeline to wait for its values. CAID_ERR_NOT_FOUND. */
int caid_timeline_open(struct caid_client *client, struct caid_timeline **ret, const char *name,
                       const char *pool, struct caid_error *error);
/* If the creator closes it, the name goes at once, and waits end when all signals have landed. */
void caid_timeline_close(struct caid_timeline *timeline);

/* The creator's: value is reached when the stream has come to here. stream 0: now, on the host;
 * refused while a signal of a stream is on its way (it would run backwards). Signals of several
 * streams are ordered by the caller. CAID_ERR_INVALID: not more than the last one.
 * CAID_ERR_PERMISSION: opened, not created. */
int caid_timeline_signal(struct caid_timeline *timeline, uint64_t stream, uint64_t value,
                         struct caid_error *error);

enum caid_timeline_flags {
    /* Enqueues the wait at once, even if the signal has not been submitted. It has no timeout, and
     * as long as it waits it takes one of the few queues between process and device
     * (CUDA_DEVICE_MAX_CONNECTIONS, 8): others may be held up behind it, for ever if one of them
     * leads to the signal. */
    CAID_TIMELINE_AHEAD = 1,
};

/* What is enqueued on the stream from here on comes after value. Holds the host until the signal
 * has been submitted. stream 0: holds the host until value has been reached. */
int caid_timeline_wait(struct caid_timeline *timeline, uint64_t stream, uint64_t value,
                       uint64_t timeout_ns, uint32_t flags, struct caid_error *error);

/* The value that has been reached; 0 before the first. CAID_ERR_ABANDONED: the timeline is dead;
 * *ret is written even so. CAID_ERR_PROTOCOL: the memory has an impossible value. */
int caid_timeline_value(struct caid_timeline *timeline, uint64_t *ret,
                        struct caid_error *error);

/* Like caid_list(); prefix is ignored. */
int caid_timelines(struct caid_client *client, const struct caid_list_options *options,
                   int (*fn)(const struct caid_timeline_entry *entry, void *userdata),
                   void *userdata, struct caid_error *error);

/* Like caid_list() for those who take part in channels. */
int caid_channels(struct caid_client *client, const struct caid_list_options *options,
                  int (*fn)(const struct caid_channel_entry *entry, void *userdata),
                  void *userdata, struct caid_error *error);

/* ---- streams ---- */

enum caid_stream_flags {
    CAID_STREAM_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING: apart from the legacy default */
};

/* For the flags: a priority of 1 to 255, as cuStreamCreateWithPriority() has it with a minus before
 * it. More than the device's greatest is that. Without it 0, the least. */
#    define CAID_STREAM_PRIORITY(level) ((uint32_t)(level) << 8)

/* A stream of the primary context of a device. What is on it when it is destroyed goes on. */
int caid_stream_create(struct caid_client *client, int32_t device, uint32_t flags,
                       uint64_t *ret, struct caid_error *error);
int caid_stream_destroy(struct caid_client *client, uint64_t stream, struct caid_error *error);

/* Waits on the host for all that is on the stream; then caid_stream_check(). */
int caid_stream_synchronize(struct caid_client *client, uint64_t stream, int32_t device,
                            struct caid_error *error);
/* CAID_ERR_ABANDONED: since it was last told so, the stream was let go from a wait, of a bracket or
 * a timeline, for a process that has died. */
int caid_stream_check(struct caid_client *client, uint64_t stream, int32_t device,
                      struct caid_error *error);

#endif
