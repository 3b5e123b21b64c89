/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel of which this process is the producer, or a reader: a lease on the channel's array, a
 * page of its own (handoff/page.h) with its part of what core.h knows, and the pages of the others.
 *
 * A member is what the daemon knows of it: one page that takes part, from JOIN to LEAVE. It stays
 * until all that was signalled in the page has landed. A reader's page is used again by
 * the next reader of the same array, so that joins and leaves in a loop do not fill the mappings of
 * the producer's process; a producer's is given up, since readers may still look at its table.
 *
 * Two requests of a channel stand at the daemon. A reader's JOIN is answered when the producer has
 * let it in; it is made again when that producer has ended, by the thread that waits for a frame.
 * The producer's MEMBERS is answered when others join or leave. The client's thread looks for the
 * answer, takes it up (member.c), and tells the daemon whom it has let in.
 *
 * Locks. channel->lock guards what is so marked: frames, and a producer's readers. It comes before
 * the lane's lock and the client's, and is not held while a thread waits. What the daemon says and
 * is told is under the client's lock.
 *
 * Life: made by caid_channel_create() or _open(), freed with the last of its references: the
 * caller's, until caid_channel_close(), and one for each request in flight.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "core.h"
#include "handoff/fence.h"
#include "handoff/lane.h"
#include "ready.h"
#include "session/call.h"

/* So long a thread sleeps before it looks again for what wakes nobody: a producer that closes, a
 * connection that is lost. */
#define CHANNEL_SLICE_NS (50 * NSEC_PER_MSEC)

enum member_state {
    MEMBER_TAKEN,   /* a channel has it */
    MEMBER_LEAVING, /* until all has landed */
    MEMBER_TO_TELL, /* LEAVE is to be sent */
    MEMBER_GONE,    /* a reader's page may be used again */
};

struct member { /* under the client's lock */
    LIST_ENTRY(member) entry;
    uint64_t array; /* the daemon's number */
    bool produces;
    struct page *page; /* with a reference */
    uint64_t id;       /* of the last JOIN; 0: none was answered */
    enum member_state state;
};

struct channels { /* under the client's lock */
    LIST_HEAD(, caid_channel) all;
    LIST_HEAD(, member) members;
    uint64_t due; /* when a member that leaves is looked at */
};

extern const struct feature channel_feature;

void channels_init(struct channels *channels);
/* The client closes: producers end as those that close do. Under the client's lock, which it drops
 * meanwhile. */
void channels_close(struct caid_client *client);

/* ---- the channel ---- */

enum place_state {
    PLACE_ENDED, /* free, when its `release` has been let go of */
    PLACE_TAKEN, /* by a thread in caid_channel_get() */
    PLACE_OPEN,
};

/* For a frame that a reader has: as many as its depth. "latest": of the announcement of the same
 * index. */
struct place {
    enum place_state state;
    uint64_t sequence; /* 0: none has been taken yet */
    uint64_t release;  /* of one that has ended: "fifo": its sequence; "latest": of slot 0 */
    bool ahead;        /* got before it was there */
    struct lane *lane; /* it was got on; NULL: the host */
    struct fence data; /* its contents */
};

/* Frames that were got ahead, and ended before they were submitted: those that are void are to be
 * told of yet. From == to: none. */
struct doubts {
    uint64_t from, to; /* to: the one after the last */
};

struct announced {
    const struct place *place; /* NULL: none is */
    uint64_t word;
    const struct page *producer; /* whose frame it is */
    bool host;                   /* for which it was looked for */
};

enum put_state {
    PUT_NONE,
    PUT_BUSY, /* a thread begins or ends one */
    PUT_OPEN,
};

struct others { /* a producer's readers */
    size_t n;
    struct core_reader views[CHANNEL_READERS_MAX]; /* of news: `admitted` is a sequence or 0 */
    struct page *pages[CHANNEL_READERS_MAX];       /* with references */
    uint64_t ids[CHANNEL_READERS_MAX];             /* of the members */
};

struct caid_channel {
    struct caid_client *client;
    struct caid_array *array;

    /* Fixed. */
    bool produces, latest, on_host;
    uint32_t n_slots, depth;
    uint64_t step; /* bytes from frame to frame */
    struct page *page;
    struct member *member;

    atomic_bool lost;       /* the connection has ended */
    atomic_bool registered; /* memory of the host is streams', too */
    atomic_bool rejoining;  /* a thread of a reader asks for the next producer */

    pthread_mutex_t lock;

    /* Under lock. */
    struct lane *last; /* that signalled in the page last, with a reference; NULL: the host */

    /* A producer's; under lock, too. */
    struct core_producer core;
    struct others readers;
    enum put_state put;
    uint32_t slot; /* of the frame that is put, whose sequence is core.last + 1 */
    struct lane *lane;

    /* A reader's; under lock, too: get.c, producer.c, place.c. */
    struct core_view view;
    struct page *producer;
    bool told;
    uint64_t since, next, let_go;
    struct doubts doubts;
    struct announced asked;
    struct place places[CHANNEL_DEPTH_MAX];
    struct ready ready;

    /* Under the client's lock. */
    uint32_t refs;
    LIST_ENTRY(caid_channel) entry;
    bool is_listed, closed;
    struct call join;
    struct msg_join_params join_params;
    bool is_answered;         /* JOIN is, and what follows is not taken up yet */
    struct page *joined;      /* the producer's page with a reference, or NULL */
    uint64_t former, counted; /* the page before; the first sequence that counts */
    struct call members;
    struct msg_members_params members_params;
    bool has_news;
    struct others news; /* MEMBERS' answer */
    uint64_t let_in;    /* by the bit: of those, who counts as let in */
    uint32_t n_admits;  /* that are to be sent */
    struct msg_admit_params admits[CHANNEL_READERS_MAX];
};

#define PAGE_SLOT 0 /* of each page, by which all is counted (proto/channel.h) */

static inline struct timeline_slot *
channel_slot_of(const struct caid_channel *channel)
{
    return &channel->page->slots[PAGE_SLOT];
}

/* Whether the host waits: a stream that hands off by the host makes it. */
static inline bool
channel_waits(const struct lane *lane)
{
    return !lane || lane->handoff == HANDOFF_HOST;
}

/* What the channel is for, in errors. */
const char *channel_name(const struct caid_channel *channel);

/* Whether nothing can be signalled in the own page any more. */
static inline bool
channel_is_broken(const struct caid_channel *channel)
{
    return atomic_load(&channel->page->ends) || timeline_is_dead(channel_slot_of(channel));
}

int channel_fail_broken(const struct caid_channel *channel, struct caid_error *error);
/* Whether it can be used: the connection, the own page. */
int channel_check(const struct caid_channel *channel, struct caid_error *error);
/* It is known to the hooks, and in the way of who suspends the client: CAID_ERR_NOT_READY. Under
 * the client's lock. */
int channel_list(struct caid_channel *channel, struct caid_error *error);
/* Under the client's lock. */
void channel_unref(struct caid_channel *channel);

/* Sleeps until the fence, whose page another process owns, has been submitted, or for a moment.
 * `waits` tells that process. *look_ns, which is 0 at first, is when the program is to be asked:
 * the caller keeps it, so that a thread that is woken again and again asks, too. CAID_ERR_TIMEOUT,
 * CAID_ERR_INTERRUPTED. */
int channel_sleep(const struct caid_client *client, _Atomic uint64_t *waits,
                  const struct fence *fence, uint64_t deadline_ns, uint64_t *look_ns,
                  struct caid_error *error);
/* lane_get(), after which memory of the host is the device's, too. 1 and 2 are of the array's
 * device if no context is current. */
int channel_lane(struct caid_channel *channel, uint64_t stream, struct lane **ret,
                 struct caid_error *error);

/* ---- member.c ---- */

/* Finds or makes the channel's page and member, and sets its requests up. */
int member_take(struct caid_channel *channel, struct caid_error *error);
/* The channel is closed, was not made, or has lost its page. Under the client's lock. */
void member_leave(struct caid_channel *channel);
/* Makes JOIN, unless it stands, and waits for its answer, which is in the channel's fields then.
 * CAID_ERR_TIMEOUT: it stands on. */
int member_join(struct caid_channel *channel, bool wait, uint64_t deadline_ns,
                struct caid_error *error);
void others_drop(struct others *others);
/* The producer, which has joined, begins: asks who is there, and lets them in. */
int member_begin(struct caid_channel *channel, uint64_t deadline_ns, struct caid_error *error);
/* Nothing more is signalled in the own page. The client's thread kills it when all that was has
 * landed: a value that lands later would make it a living one again. */
void member_break(struct caid_channel *channel);

/* ---- signal.c ---- */

/* The last value of a slot of the own page. */
struct fence signal_fence(const struct caid_channel *channel, uint32_t slot);
/* Signals come one after the other. Whether what the lane does has to wait for the last one, which
 * another lane has made and which has not landed. The rest is under channel->lock, but in
 * put.c, where one thread has its turn. */
bool signal_is_behind(const struct caid_channel *channel, const struct lane *lane);
/* A slot of the own page that the host has to wait for before a signal by this lane, or -1. */
int signal_find_wait(const struct caid_channel *channel, const struct lane *lane);
/* Signals a value of the own page when the lane, or the host, has come to here and the fences have
 * passed. Where that cannot be enqueued, the host waits; else the page ends by member_break().
 * Never CAID_ERR_INVALID or _INTERRUPTED. */
int signal_value(struct caid_channel *channel, struct lane *lane, struct fence *after, size_t n,
                 uint32_t slot, uint64_t value, struct caid_error *error);
/* The host does. Wakes nobody. */
void signal_raise(const struct caid_channel *channel, uint32_t slot, uint64_t value);
/* Notes who has signalled last. Takes the reference. */
void signal_note(struct caid_channel *channel, struct lane *lane);

/* ---- put.c ---- */

/* Ends what is open, since the channel closes. */
void put_close(struct caid_channel *channel);
void put_mark_closed(struct caid_channel *channel);

/* ---- get.c ---- */

/* What the next get, by the host or a stream, waits for. */
enum due {
    DUE_NOW,    /* nothing: it would give a frame, or fail */
    DUE_SUBMIT, /* the producer submits more than *ret_submitted */
    DUE_LAND,   /* the GPU stores something */
    DUE_ASK,    /* a get is to ask for the next producer */
    DUE_KICK,   /* a frame ends, or JOIN is answered */
};
/* Under channel->lock; takes the client's. */
enum due get_due(struct caid_channel *channel, bool host, uint64_t *ret_submitted);
/* CAID_ERR_INVALID: it is the producer's. */
int get_check_reader(const struct caid_channel *channel, struct caid_error *error);

/* ---- producer.c ---- */

enum answer {
    ANSWER_OTHER, /* another producer, or none */
    ANSWER_SAME,  /* the one that is known already; or another thread is asking */
    ANSWER_SAFE,  /* there was none after that one: its last frame, as announced, is safe */
};

/* Takes the answer to JOIN up. */
void producer_take_answer(struct caid_channel *channel);
/* Makes JOIN, or goes on with the one that stands, and takes the answer up: for the next producer,
 * or, with the last frame of this one, for what there is. CAID_ERR_TIMEOUT. */
int producer_ask(struct caid_channel *channel, const struct announced *last,
                 uint64_t deadline_ns, enum answer *ret, struct caid_error *error);
/* What a get would find. Under channel->lock. */
enum core_step producer_next(const struct caid_channel *channel, bool host,
                             uint64_t *ret_wanted);
/* CAID_ERR_ABANDONED. Of the present producer it is told once. Under channel->lock. */
int producer_tell_death(struct caid_channel *channel, const struct page *producer,
                        struct caid_error *error);

/* ---- place.c: under channel->lock ---- */

/* "latest": of what the place has; it stays until another one takes its place, since the producer
 * does not miss its slot. */
static inline struct channel_announcement *
place_announcement(const struct caid_channel *channel, const struct place *place)
{
    return &channel_reader_of(channel->page->slots)->announcements[place - channel->places];
}

/* One that is free. NULL: none is before *ret_release has landed; UINT64_MAX: before one ends. */
struct place *place_find(struct caid_channel *channel, uint64_t *ret_release);
/* fifo: lets go of what was void, so that the producer does not wait for it. If a stream is still
 * to signal, the next end does. */
void place_pass_voids(struct caid_channel *channel);
/* Whether some of the doubts can be settled, and does so. CAID_ERR_ABANDONED: one was void. */
bool place_can_settle(const struct caid_channel *channel);
int place_settle(struct caid_channel *channel, struct caid_error *error);
/* Ends one that no stream can let go of now: the reader ends. Not under a lock. */
int place_abandon(struct caid_channel *channel, uint64_t sequence, struct caid_error *error);
/* Ends what is open. Not under a lock. */
void places_close(struct caid_channel *channel);
