/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels (proto/channel.h). A channel is an array whose first extent counts its frames. The core
 * knows who takes part in it, with which page: readers, and one producer at a time. It is asked
 * nothing on the way of a frame.
 *
 * A struct channel lasts from the first JOIN until its array ends. A participant takes part from
 * its JOIN until LEAVE, or until its page ends (page.h): when the connection has given the page up
 * and all has landed, or when the process has exited. It does not depend on the lease.
 *
 * A producer whose connection has hung up keeps its place until its process has exited, since its
 * GPU work goes on. The next one waits for that, or, after a restart, until the producer has asked
 * for MEMBERS. At its end the core copies what its table says of whole frames, which the next
 * producer is told. A reader counts when the producer has admitted it, with the next one anew.
 */
#pragma once

#include "base/tree.h"
#include "channel.h"
#include "records.h"
#include "user.h"

struct array;
struct conn;
struct core;
struct core_page_result;
struct page;
struct refusal;

struct participant {
    RB_ENTRY(participant) node; /* core->participants, by id */
    TAILQ_ENTRY(participant) of_channel;
    LIST_ENTRY(participant) of_conn; /* conn->standing, if it has a request that stands */
    uint64_t id;
    struct channel *channel;
    struct page *page;
    struct charge charge;
    bool produces; /* it is the producer, or waits until it may be */
    bool latest;
    bool joined;   /* a JOIN of its has been answered */
    bool admitted; /* by the producer, or the last one */
    bool stands;   /* `request`, a JOIN or the producer's MEMBERS */
    bool waits;    /* that JOIN: until there is a producer */
    enum msg_method method;
    uint32_t request, depth;
    uint64_t seen;     /* MEMBERS: the version that the client has seen */
    uint64_t sequence; /* as it was admitted last */
};

TAILQ_HEAD(participant_list, participant);
RB_HEAD(participants, participant);
RB_HEAD(channels, channel);

struct channel {
    RB_ENTRY(channel) node; /* core->channels, by its array's number */
    struct array *array;
    LIST_ENTRY(channel) of_held;          /* core->held_channels */
    struct charge charge;                 /* of the array's creator */
    struct participant_list participants; /* in the order of their first JOIN */
    struct participant *producer;         /* or NULL */
    uint64_t former;                      /* the page of the last producer that has ended */
    uint64_t sequence;                    /* no frame of an ended producer has a higher one */
    uint64_t version;                     /* of what MEMBERS tells */
    bool has_mode, latest;                /* since the first producer */
    bool changed;                         /* since it was recorded */
    bool held; /* nobody begins to produce before the keeper has killed the last page */
    uint32_t n_slots, n_readers, depths; /* depths: the sum of the readers' */
    struct record_kept kept[];           /* by slot: frames of ended producers */
};

#define CHANNEL_HOST(n_slots)                                                             \
    (sizeof(struct channel) + (n_slots) * sizeof(struct record_kept) +                    \
     RECORD_HOST(sizeof(struct record_channel) + (n_slots) * sizeof(struct record_kept) + \
                 (CHANNEL_READERS_MAX + 1) * sizeof(struct record_participant)))

RB_PROTOTYPE(channels, channel, node, )
RB_PROTOTYPE(participants, participant, node, )

/* The array's channel, or NULL. */
struct channel *channel_find(struct core *core, const struct array *array);
/* Somebody with a lease on the array takes part by a page of its own. It is answered now or later.
 * -ENOMEM or REFUSED. */
int channel_join(struct core *core, struct conn *conn, uint32_t request, struct array *array,
                 const struct msg_join_params *params, struct refusal *r);
/* The producer asks who takes part: answered when that is not as it has seen it. */
int channel_ask(struct core *core, struct conn *conn, uint32_t request,
                const struct array *array, uint64_t seen, struct refusal *r);
/* The producer counts the member from that sequence on. */
void channel_admit(struct core *core, const struct conn *conn, const struct array *array,
                   uint64_t member, uint64_t sequence);
void channel_leave(struct core *core, const struct conn *conn, uint64_t member);
/* The page can signal nothing any more, or its process has exited. */
void participant_end(struct core *core, struct participant *p);
/* Answers it with CANCELLED, if it is a JOIN or MEMBERS. */
void channel_cancel(struct core *core, struct conn *conn, uint32_t request);
/* The connection has hung up: drops one of its requests that stand. */
void channel_drop_request(struct core *core, struct conn *conn);
/* The array ends. */
void channel_end(struct core *core, struct array *array);
/* One that an earlier core has recorded. dead: the page of a producer that has exited meanwhile,
 * or NULL. -ENOMEM. */
int channel_restore(struct core *core, struct array *array, const struct record_channel *record,
                    const struct core_page_result *dead);
/* Lets producers begin who wait for a kill by the keeper, if it has been. */
void channels_look(struct core *core);
/* Forgets them all when the core ends. */
void channels_forget(struct core *core);
