/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of several clients, and a model of what they may see: which names there are,
 * what lies under them, of which generation, who holds what, which arrays lie in the memory of
 * others, whose turn it is to use them, what there is to wait for, who takes part in channels. It
 * knows only what the interface promises; ranges, blocks, pages and fds are the harness's books,
 * sums are core_check()'s.
 *
 * A history is a short one, by its seed: the seed chooses the configuration, too. When it fails,
 * the steps so far are printed (model_report()).
 */
#pragma once

#include "harness.h"

#define M_SLOTS    7
#define M_POOLS    4
#define M_NAMES    3
#define M_LEASES   64
#define M_ARRAYS   128
#define M_REQUESTS 128
#define M_STEPS    96
#define M_BRACKETS 80
#define M_CLAIMS   3
#define M_FENCES   256
#define M_TORN     16
#define M_TICKETS  8
#define M_KEYS     2
#define M_VACATES  2
#define M_OWN      4
#define M_CHANNELS 8
#define M_MEMBERS  48
#define M_FRAMES   8 /* of an array that may be a channel */
#define M_NONE     -1
#define M_GHOST    -2 /* being created by a client that is going */

struct m_range { /* bytes; all: 0 and UINT64_MAX */
    uint64_t from, end;
};

struct m_array {
    bool alive; /* has a name, a lease, a part that is alive, or one whose companion it is */
    int pool, name, last_name;
    uint64_t generation; /* of the name, or the last one */
    uint64_t expires_ns; /* the name, by the clock that goes on in sleep; 0: it does not */
    uint64_t label;      /* its metadata */
    uint64_t stamp, nbytes;
    uint64_t id, span, block, offset;
    uint64_t at; /* a part: in the whole */
    uid_t uid;   /* who created it */
    int n_leases, n_departed;
    int companion; /* that it keeps, or M_NONE */
    int keeper;    /* whose companion it is, or M_NONE */
    int whole;     /* what it is a part of, or M_NONE */
    int n_parts;   /* of it, that are alive */
    bool is_exclusive, is_device, is_pinned;
    uint64_t extent; /* its first one */
    bool is_set;
    int members[M_KEYS]; /* or M_NONE */
    uint64_t layout;     /* that the core has told, or 0 */
    int n_sets;          /* keys under which it is kept */
    int publisher;  /* of the part: slot, or M_NONE: nobody is to be told that it is gone */
    bool told;      /* he has been */
    bool is_old;    /* a part of an earlier core's */
    bool abandoned; /* as was found; there may be more: model_is_abandoned() */
    struct m_range torn[M_TORN]; /* the same, of ranges */
    int n_torn;
    uint64_t mark; /* in the journal, when the core was killed last */
    bool several;  /* the journal has of its writers no more than that there are */
    bool fenced;   /* had a fence: it may linger when it is dead */
    bool was_kept; /* as a companion, by what may linger */
};

struct m_lease {
    uint64_t lease;
    int array;
    bool readonly;
};

struct m_claim { /* one array of a bracket */
    int array;
    uint64_t lease;
    struct m_range range;
    bool write;
    bool gone;      /* its lease has ended */
    bool nested;    /* its thread read the array already */
    bool was_ready; /* at some time: waited for other arrays */
};

struct m_bracket {
    int slot;
    uint64_t id, thread, order, deadline_ns;
    uint32_t request;
    bool waiting; /* else open */
    bool may_go;  /* in this step its turn may have come, and it went silently */
    int n_claims;
    struct m_claim claims[M_CLAIMS];
};

struct m_fence {
    int array;
    struct m_range range;
    bool write, is_forgotten; /* by the journal, for a write that was open when the core died */
    bool is_doubt;            /* the journal had no place for it: nobody is told of it */
    uint64_t page, slot, value;
};

struct m_ticket {
    uint64_t secret, ends_ns; /* 0: not by itself */
    int slot,
        array; /* who sent what: it counts as one of the array's leases; M_NONE: has gone */
    bool readonly, many, own;
    uid_t uid;
};

struct m_member { /* one that takes part in a channel, in the order of their coming */
    int array;
    uint64_t page, id; /* id 0: nobody was told of it yet */
    bool produces, latest, joined, admitted, waits;
    bool asks;        /* request: for the members; else to join */
    bool is_ghost;    /* its client has given up before it had joined */
    uint32_t request; /* that is not answered, or 0 */
    uint64_t seen;    /* of the members */
    uint64_t depth, sequence;
};

struct m_channel {
    int array;
    bool has_mode, latest;
    bool ends; /* in this step */
    bool held; /* the next producer may have to wait for a kill of the last one's page */
    bool is_unsettled;         /* since a restart: the producer has not asked for the members */
    uint64_t producer, former; /* pages, or 0 */
    uint64_t sequence, kept[M_FRAMES];
    uint64_t version, told[M_MEMBERS]; /* that the producer was told last */
    int n_told;                        /* or M_NONE */
};

struct m_slot {    /* a client */
    uint64_t conn; /* 0: none */
    uid_t uid;
    gid_t gid;
    bool gone;      /* hung up, and has not exited */
    bool offended;  /* is being closed */
    bool resumes;   /* it comes back after a restart */
    bool away;      /* until it does */
    bool told;      /* by then: all that it has, and not that this is all */
    uint64_t was;   /* its connection before that */
    uint64_t token; /* the connection by which it is known */
    struct m_lease leases[M_LEASES];
    int n_leases;
    int deferring;

    struct { /* the last take, or create with a name */
        uint32_t request;
        enum msg_method method;
        uint64_t secret, lease, generation;
        int array;
        bool readonly;
        bool is_lost; /* the answer: a take counts as one of the array's leases all the same */
    } granted;
};

struct m_name {
    int array;        /* or M_NONE */
    int creating;     /* slot, M_NONE or M_GHOST */
    uint64_t highest; /* generation, ever */
};

struct m_request {
    uint32_t id;
    int slot, pool, name;
    enum msg_method method;
    uint64_t label, nbytes, span, offset, seen;
    uint64_t expires_ns; /* what it names */
    int companion;       /* that it publishes, or M_NONE */
    int set;             /* whose key it opens, or that it fills, or M_NONE */
    uint64_t extent;     /* of what it creates */
    bool is_exclusive, is_device, is_pinned;
    int n_parts; /* that it fills it with, from key `label` on, each of: */

    struct m_place {
        uint64_t at, nbytes;
    } places[M_KEYS];

    int n_vacates, n_own; /* sets of which one is to be vacant; leases that do not count */
    struct m_lease vacates[M_VACATES], own[M_OWN];
    bool was_unsure;   /* whether they are vacant */
    uint32_t may_fail; /* bits: with these errors */
    bool must_fail;
    bool readonly;  /* what it opens */
    bool keeps;     /* the ticket by which it does; or makes one to be kept */
    bool owns;      /* the ticket ends with who makes it */
    bool was_ghost; /* the name that it creates */
};

#define ERR(name) (UINT32_C(1) << PROTO_ERR_##name)

/* Where `when` is so, it has to be refused, with one of these errors. Returns whether it is. */
static inline bool
model_refuse(struct m_request *r, bool when, uint32_t errors)
{
    r->must_fail = r->must_fail || when;
    r->may_fail |= when ? errors : 0;
    return when;
}

struct model {
    struct harness h;
    uint64_t seed, random;
    bool running;
    bool blind; /* expects nothing but what books and sums say: allocations fail */
    bool stopped;
    bool crowded;        /* much is done with few arrays */
    bool joins;          /* and much of it with a channel */
    bool turning;        /* and most of it with versions that a client publishes in turn */
    bool restarts;       /* now and then; nothing ends with the core */
    bool returning;      /* since the last restart not all is known yet: model_return.c */
    uint64_t before;     /* the last connection of the core before */
    bool has_rested;     /* a second, in which all that lingers was looked at */
    bool left_behind;    /* some do not come back that the core waits for */
    uint64_t talks;      /* connection whose answers are looked at as they come */
    int n_out_of_memory; /* connections that ended by it */
    struct m_slot slots[M_SLOTS];
    struct m_name names[M_POOLS][M_NAMES];
    struct m_array arrays[M_ARRAYS];
    int n_arrays;
    struct m_request requests[M_REQUESTS];
    int n_requests;
    int n_orphans; /* unnamed creates of clients that are going */
    struct m_bracket brackets[M_BRACKETS];
    int n_brackets;
    uint64_t n_begun;
    struct m_fence fences[M_FENCES];
    int n_fences;
    struct m_ticket tickets[M_TICKETS];
    int n_tickets;
    uint64_t spent[M_TICKETS]; /* of which there is none any more, or 0 */
    unsigned int n_spent;
    struct m_channel channels[M_CHANNELS];
    int n_channels;
    struct m_member members[M_MEMBERS];
    int n_members;

    struct { /* if the join is refused, all is as it was */
        struct m_channel channels[M_CHANNELS];
        struct m_member members[M_MEMBERS];
        int n_channels, n_members;
    } before_join;

    uint32_t joining;
    uint64_t last_page;          /* of the core before */
    uint64_t spoiled[M_MEMBERS]; /* pages of members of channels that may not have ended yet */
    uint32_t n_spoiled;
    uint64_t dropped[M_STEPS]; /* pages */
    int n_dropped;
    uint64_t timelines[M_POOLS][M_NAMES];  /* page, 0: none */
    bool left_timelines[M_POOLS][M_NAMES]; /* that one may have, who is left behind */

    struct { /* watches answered in this step */
        int pool, name;
        uint64_t seen, generation;
    } told[M_REQUESTS];

    int n_told;
    char steps[M_STEPS][96];
    int n_steps;
};

/* One history. blind: see above. */
void model_run(struct model *m, uint64_t seed, bool blind);
/* Prints what a history that did not come to its end has done. For .fini and signals. */
void model_report(const struct model *m);

/* model.c, for model_steps.c */
#define EXPECT(m, cond, ...)                \
    do {                                    \
        if (!(m)->blind)                    \
            cr_assert((cond), __VA_ARGS__); \
    } while (0)

uint32_t model_random(struct model *m, uint32_t below);
/* what: 4 to read, 2 to write */
bool model_may(const struct model *m, const struct m_slot *slot, int pool, int what);
/* It has to be refused to who may not write in the pool, and to others where what it is about is
 * not there. */
bool model_refuse_writer(const struct model *m, struct m_request *r, const struct m_slot *slot,
                         int pool, bool there);
const char *model_pool_name(int pool);
const char *model_name(int name);
/* The living one under the name, or NULL. */
struct m_array *model_find(struct model *m, int pool, int name);
void model_name_gone(struct model *m, int pool, int name);
void model_name_taken(struct model *m, int array, int name, uint64_t generation);
void model_lease_gone(struct model *m, struct m_slot *slot, int i);
/* The client may not hear of it, and come back; array: index. */
void model_granted(struct model *m, const struct m_request *r, uint64_t lease, int array);
/* A client of an earlier core's, that is not back, has its memory. */
bool model_is_held_before(const struct model *m, const struct m_array *array);
/* Something that kept it has gone. */
void model_settle(struct model *m, struct m_array *array);
/* A request that is about to be sent; its reply is looked at when it comes. */
struct m_request *model_ask(struct model *m, int slot, enum msg_method method);
/* Its connection takes no answers any more. */
void model_drop_requests(struct model *m, int slot);

/* model_bracket.c, of what is */
enum fence_state model_fence_state(struct model *m, const struct m_fence *f);
/* Its process has exited: the core lets go of its fences one at a time, in turns of its own. */
bool model_fence_is_going(struct model *m, const struct m_fence *f);
/* Who left it has the array's block open: else it is done with what it read. */
bool model_fence_has_block(struct model *m, const struct m_fence *f);
/* The client has unmapped the block. */
void model_forget(struct model *m, const struct m_slot *slot, uint64_t block);
bool model_overlap(const struct m_range *a, const struct m_range *b);
/* What was written there is not whole. */
void model_tear(struct m_array *array, const struct m_range *range);
/* What lies there is written anew, or all of it discarded: what was lost there is over. */
void model_heal(struct m_array *array, const struct m_range *range);
/* Those that lie in what the claim has written. */
void model_drop_fences(struct model *m, const struct m_claim *claim);
void model_fence_add(struct model *m, const struct m_claim *claim,
                     const struct msg_end_params *p);
bool model_is_abandoned(struct model *m, int array);
/* Whether it is the bracket's turn at all arrays. lenient: one that is being closed is out of
 * the way at its turn, of which nobody is told. */
bool model_all_ready(struct model *m, const struct m_bracket *b, bool lenient);
/* Whether its thread reads the array already. */
bool model_is_nested(const struct model *m, const struct m_bracket *b,
                     const struct m_claim *claim);
bool model_is_deadlock(struct model *m, const struct m_bracket *start);
/* Whether the core may see less of that than there is. */
bool model_is_uncertain(struct model *m);
struct m_request *model_request_of(struct model *m, const struct m_bracket *b);
void model_bracket_gone(struct model *m, struct m_bracket *b);

/* model_bracket.c, of what happens */
void model_page_gone(struct harness *h, uint64_t page);
void model_begin_answered(struct model *m, const struct m_request *r,
                          const struct h_reply *reply);
void model_check_brackets(struct model *m);
/* What list says of who uses it. */
void model_check_entry(struct model *m, int array, const struct msg_entry *entry);
/* Before the core is told. */
void model_brackets_hangup(struct model *m, int slot);
void model_brackets_exit(struct model *m, int slot);
void model_brackets_lease_gone(struct model *m, int slot, uint64_t lease);

/* model_return.c */
void model_step_kill(struct model *m);
void model_step_return(struct model *m);
void model_return_all(struct model *m);
/* It has not heard of what it was granted last, by such a call. */
bool model_is_lost(const struct m_slot *slot, enum msg_method method);
/* A take whose answer was lost is not asked for again. */
void model_take_given_up(struct model *m, struct m_slot *slot);

/* model_use_steps.c */
/* A page of the client's whose slots are alive, for channels alone or for the rest; 0: none. */
uint64_t model_some_page(struct model *m, uint64_t conn, bool has_tail);
bool model_is_dropped(const struct model *m, uint64_t page);
void model_ended(struct model *m, const struct m_bracket *b, const struct msg_end_params *p);
void model_send_begin(struct model *m, const struct m_bracket *b,
                      struct msg_begin_params params);
void model_step_use(struct model *m, int slot);
void model_step_turn(struct model *m, int slot);
void model_timelines_hangup(struct model *m, uint64_t conn);
/* The core waits for who has them, though he does not come back. */
void model_timelines_stay(struct model *m, uint64_t conn);
/* Whether it has brackets or pages. */
bool model_uses(const struct model *m, int slot);
/* Some clients that have the same arrays open. */
void model_crowd(struct model *m);

/* model_channel.c */
void model_step_channel(struct model *m, int slot);
/* A page to take part by. */
void model_step_tail(struct model *m, int slot);
/* Of join and members. */
void model_channel_answered(struct model *m, const struct m_request *r,
                            const struct h_reply *reply);
/* Its client has gone, or cancelled it. */
void model_member_asks_no_more(struct model *m, const struct m_request *r);
void model_member_gone(struct model *m, uint64_t page);
void model_channel_end(struct model *m, int array);
void model_channels_kill(struct model *m);
/* So much time is about to. */
void model_channels_pass(struct model *m, uint64_t ns);
/* are_ghosts_gone: all that clients have left is. */
void model_check_channels(struct model *m, bool are_ghosts_gone);

/* model_part.c */
void model_step_part(struct model *m, int slot);
void model_publish_part(struct model *m, int slot, const struct m_lease *lease, int name);
void model_part_published(struct model *m, const struct m_request *r,
                          const struct h_reply *reply);
/* `part` has its id and place; returns its index. */
int model_part_add(struct model *m, int whole, struct m_array part);
/* What stands against parts of what the slot has leased. */
void model_expect_whole(struct model *m, struct m_request *r, const struct m_slot *slot,
                        const struct m_lease *lease);
void model_parts_told(struct model *m, const struct m_request *r, const struct h_reply *reply);
/* Who has hung up is told of nothing. */
void model_parts_hangup(struct model *m, int slot);
void model_check_parts(struct model *m);
/* What list says of its parts. */
void model_check_part_count(const struct model *m, int array, const struct msg_entry *entry);

/* model_set.c */
void model_step_set(struct model *m, int slot);
void model_step_open_of(struct model *m, int slot);
/* Its lease on a set of parts, to publish it by, or NULL. Where there is, one that has no name. */
const struct m_lease *model_some_version(struct model *m, int slot);
/* Its lease on the set takes parts of what the other one is on. */
void model_stage_parts(struct model *m, int slot, const struct m_lease *set,
                       const struct m_lease *whole);
void model_staged(struct model *m, const struct m_request *r);
void model_parts_staged(struct model *m, const struct m_request *r,
                        const struct h_reply *reply);
/* The layout that the core tells of the set: it is the same for the same parts, and never changes
 * afterwards. */
void model_check_layout(struct model *m, int set, uint64_t layout);
/* What sets have against the name for the array, NULL for a new one. */
void model_expect_sets(struct model *m, struct m_request *r, const struct m_array *array);
/* Checks what a list has of the members of a set; returns how many. */
uint32_t model_check_members(struct model *m, const struct m_array *set,
                             const struct h_reply *reply, uint32_t n);

/* The array whose parts its members are, all of them, or M_NONE. */
int model_whole_of(const struct model *m, const struct m_array *set);

/* model_vacate.c */
void model_step_vacate(struct model *m, int slot);
void model_vacated(struct model *m, const struct m_request *r, uint64_t lease);
/* So much time is about to. */
void model_vacates_pass(struct model *m, uint64_t ns);
/* What waits for the array is refused, if that was closed, or has a name. */
void model_vacates_end(struct model *m, int array);
void model_check_vacates(struct model *m);

/* model_ticket.c */
void model_step_ticket(struct model *m, int slot);
/* By the request, whose label it is. */
void model_ticket_add(struct model *m, const struct m_request *r, int array, bool readonly);
void model_taken(struct model *m, const struct m_request *r);
void model_tickets_hangup(struct model *m, int slot);
/* By that time. */
void model_tickets_pass(struct model *m, uint64_t boot_ns);
/* What such a request has ended. */
void model_withdrawn(struct model *m, const struct m_request *r, uint64_t n);
/* Until the core waits for their sender no more; they are those of M_SLOTS + slot then. */
void model_tickets_stay(struct model *m, int slot);

/* model_config.c */
void model_step_reconfigure(struct model *m);
/* NULL: there is no such pool. */
const struct core_pool_config *model_pool(const struct model *m, int pool);
/* Some limits and the like. */
void model_choose(struct model *m, struct core_config *config);

/* model_steps.c */
void model_step_close(struct model *m, int slot);
void model_open_generation(struct model *m, int slot, int pool, int name);
void model_publish(struct model *m, int slot, const struct m_lease *lease, int name);
void PRINTF(2, 3) model_note(struct model *m, const char *fmt, ...);
void model_step(struct model *m);
void model_step_connect(struct model *m);
void model_leave(struct model *m, int slot, bool hangup, bool exits);
void model_hung_up(struct model *m, int slot);
uint64_t model_boottime(const struct model *m);
void model_pass(struct model *m, uint64_t ns);
