/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_CAID_H
#    include "caid/caid.h" /* this is a part of it */
#elif !defined(CAID_CHANNEL_H)
#    define CAID_CHANNEL_H

/**
 * Channels: one process makes frames, others take them, and nobody is asked on the way of a frame.
 *
 * A channel is a named array of `slots` frames of one shape and type, with a name in a pool as any
 * array: who may open it "r" reads, who may open it "rw" produces, one at a time. In a channel
 * "latest" the producer never waits, and a reader gets the newest whole frame, and is told how many
 * it has missed. In a channel "fifo" each reader gets every frame since it was let in, and the
 * producer waits for the slowest one when it is `slots` frames ahead; without readers it waits for
 * nobody.
 *
 * Streams are those of handoff.h; here 0 is the host, for which no driver is called. A frame of a
 * stream is there for others when the stream has come to its commit, and is let go of when the
 * stream has come to its end: what uses it on other streams is joined to that one before. Whoever
 * puts or ends on another stream than the last time has that one come after the last one, the host
 * by waiting. Streams that capture graphs are refused.
 *
 * When the producer dies, or its context, a reader is told CAID_ERR_ABANDONED once, in "fifo" after
 * the frames that were whole; then it waits for the next producer, which goes on with higher
 * sequences. After a producer that closed it is told nothing. Without a daemon frames go on until
 * the connection is lost for good (caid_connect_options); then all calls fail with that.
 *
 * A channel may be used by several threads; the functions for one frame by one at a time.
 *
 * timeout_ns of a frame: CAID_FOREVER, or how long the call may wait (CAID_ERR_TIMEOUT); 0 does not
 * wait.
 */
struct caid_channel;

#    define CAID_CHANNEL_INFO 64

struct caid_channel_options {
    size_t struct_size;
    const char *pool;
    /* How long create waits for the exit of a producer that was killed, or has hung up; and open,
     * until the producer has let it in. 0: as long as other calls wait for the daemon. */
    uint64_t timeout_ns;

    /* caid_channel_create(); where the name is there, it has to have all of this. */
    const char *mode;    /* NULL or "latest", or "fifo" */
    const char *typestr; /* of a frame: as of an array */
    const char *descr;
    const int64_t *shape;
    uint32_t ndim;
    uint32_t
        slots; /* 2 to 64; 0: 8. Of "latest", the sum of the readers' depths and 3; of frames
                       that the host fills, in "pinned" memory, and 2 */
    int32_t device;
    const char *memory; /* NULL or "device"; "pinned" */

    /* caid_channel_open() */
    uint32_t
        depth; /* frames that are open, or not yet let go of by a stream, at a time: at most
                       16, "fifo" 15; 0: 1 */
    bool wait; /* also until there is the name, and a producer */
    const char *device_uuid; /* as of caid_open_options */
};

struct caid_frame {
    uint64_t sequence;               /* 1, 2, ...: grows, also from producer to producer */
    uint64_t missed;                 /* "latest": sequences since the last frame that one got */
    uint64_t offset;                 /* bytes from the channel's first element */
    uint32_t slot;                   /* the first index into the channel's array */
    uint32_t unused;                 /* 0 */
    uint8_t info[CAID_CHANNEL_INFO]; /* of the program's own; 0 at begin */
};

/* Becomes the producer of a channel, which is made if there is none of the name. Goes on after the
 * frames of the former producer, and keeps those that are whole. CAID_ERR_BUSY: another one still
 * produces after a second. CAID_ERR_INVALID: the channel is another one: which option differs, or
 * what cannot be. Else as caid_array_create(). */
int caid_channel_create(struct caid_client *client, struct caid_channel **ret, const char *name,
                        const struct caid_channel_options *options, struct caid_error *error);
/* Becomes a reader. CAID_ERR_LIMIT: 64 read, or the slots are too few for its depth.
 * CAID_ERR_INVALID: the name is no channel's. CAID_ERR_NOT_FOUND. CAID_ERR_TIMEOUT: the producer is
 * stopped; or with `wait` none came. */
int caid_channel_open(struct caid_client *client, struct caid_channel **ret, const char *name,
                      const struct caid_channel_options *options, struct caid_error *error);
/* Gives up a frame that is being put, and ends those that are open, on their streams. A producer's
 * place is free, and others may count a reader out, when all that is on its streams has landed. The
 * name stays: caid_unlink(). */
void caid_channel_close(struct caid_channel *channel);

/* The array of all frames, which lives as long as the channel; its first extent is `slots`. */
struct caid_array *caid_channel_array(const struct caid_channel *channel);
bool caid_channel_is_fifo(const struct caid_channel *channel);

/* Begins to put a frame, which nobody sees before its commit; the stream waits for what it has to,
 * and in "fifo" this for readers that have not ended theirs. CAID_ERR_INVALID: the channel was
 * opened; a frame is being put already; host memory of a channel "latest" is filled by the host
 * alone. CAID_ERR_DEVICE: the stream is of another device. */
int caid_channel_begin(struct caid_channel *channel, uint64_t stream, uint64_t timeout_ns,
                       struct caid_frame *ret, struct caid_error *error);
/* Puts it, with its info, when the stream has come to here. CAID_ERR_INVALID: the stream captures a
 * graph by now, or is another thread's default stream: the frame stays open. Where else it cannot
 * be enqueued the host waits for the stream; where it cannot do that, the producer ends as one that
 * died, and this fails. */
int caid_channel_commit(struct caid_channel *channel, const struct caid_frame *frame,
                        struct caid_error *error);
/* Ends it in any case, in place of a commit: nobody gets it. Where the stream cannot be used, not
 * even to wait for it, this fails, and the producer ends as one that died, when its former frames
 * are there; CAID_ERR_ABANDONED from now on. Of a reader: ends a frame that caid_channel_end()
 * leaves open, since its stream captures a graph; the reader ends, as one whose context died. */
int caid_channel_abandon(struct caid_channel *channel, const struct caid_frame *frame,
                         struct caid_error *error);

enum caid_channel_flags {
    /* "fifo", where streams wait by "memops" (handoff.h): gets the next frame also before it has
     * been put; the stream waits for it, with what CAID_TIMELINE_AHEAD says of that. The frame's
     * info is 0 then. Of one that is given up or lost the end tells, or the next get. The next
     * producer may use again the sequences of those that were ended before their producer died:
     * this reader does not get such a frame. */
    CAID_CHANNEL_AHEAD = 1,
};

/* Gets a frame, to be ended: in "fifo" the next one, in "latest" the newest, if it is newer than
 * the last one that was got. Waits until it has been put, and until it is whole for the host, or a
 * stream that hands off by the host; other streams wait for the rest. CAID_ERR_TIMEOUT.
 * CAID_ERR_ABANDONED: see above. CAID_ERR_INVALID: as many frames are open as the depth says.
 * CAID_ERR_PROTOCOL: the producer has written what cannot be. */
int caid_channel_get(struct caid_channel *channel, uint64_t stream, uint64_t timeout_ns,
                     uint32_t flags, struct caid_frame *ret, struct caid_error *error);
/* An fd for poll(2), readable while the next get would give a frame, or fail: one by the host, or
 * on a stream, as the last one was. It is not while as many frames are open as the depth says.
 * Nobody reads it: a get or an end that leaves nothing to get makes it unreadable. A get may find
 * nothing all the same, as after the producer's end, when it asks for the next one: give it the
 * timeout 0, and poll again after CAID_ERR_TIMEOUT. From the first call on a thread of the
 * channel's own feeds the fd, which is the channel's; caid_channel_close() leaves duplicates
 * readable. Returns it. CAID_ERR_INVALID: the channel is its producer's. */
int caid_channel_get_fd(struct caid_channel *channel, struct caid_error *error);

/* Lets go of it, also where it fails, when the stream has come to here. CAID_ERR_ABANDONED: the
 * producer died before the frame was whole; 0 where that is not so by now: caid_stream_check(). Or
 * no stream of this reader can signal any more, since its context died: all its calls say so.
 * CAID_ERR_INVALID: as of the commit; the frame stays open. */
int caid_channel_end(struct caid_channel *channel, const struct caid_frame *frame,
                     uint64_t stream, struct caid_error *error);

#endif
