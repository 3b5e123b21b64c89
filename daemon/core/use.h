/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The use of an array: open brackets, brackets that wait, and fences that the next bracket has to
 * wait for. A use lives while its array has brackets or fences, or is abandoned in part. A fence
 * lives from the end of a bracket until it has passed or its page is gone.
 *
 * A claim has a section: the bytes of the array that its bracket may touch, the whole array or a
 * range of it. Claims exclude each other where their sections overlap and one of them writes. The
 * whole is always there; a section of a range lives while it has claims or fences, or is torn. An
 * array has up to SECTIONS_MAX of these: a claim that finds no room has the whole in place of its
 * range, and one such stands for all claims that its bracket has on the array. So nothing is
 * forgotten, and what is decided looks at SECTIONS_MAX sections at most, and at one where no claim
 * has a range. Claims that were open before a restart find as many more: new ones may have taken
 * those that they had.
 *
 * Abandoned are the array, or sections of it, which are torn then: up to TORN_MAX, charged to the
 * array's creator. Beyond that, or after a restart, it is the whole array. A write makes whole
 * again what lies wholly in its section, unless it has that for want of room.
 */
#pragma once

#include "base/tree.h"
#include "doubt.h"
#include "timeline.h"
#include "user.h"

struct conn;

struct fence {
    RB_ENTRY(fence) of_section; /* section->reads, unless it is section->write */
    LIST_ENTRY(fence) of_page;
    struct section *section;
    struct page *page;
    struct charge charge; /* FENCE_HOST bytes, once the bracket has ended */
    uint32_t slot;
    uint64_t value;
};

RB_HEAD(fences, fence);
RB_PROTOTYPE(fences, fence, of_section, )
TAILQ_HEAD(claims, claim);

#define SECTIONS_MAX 64
#define RESUMED_MAX  (2 * SECTIONS_MAX)
#define TORN_MAX     16

struct section {
    struct use *use;
    uint64_t from, end;      /* bytes of the array; of the whole, 0 and UINT64_MAX */
    struct claims waiting;   /* in the order of arrival */
    LIST_HEAD(, claim) open; /* with their turn: many readers or one writer */
    uint32_t n_readers, n_writers, n_waiting;
    uint32_t n_overtaking;      /* of those that wait */
    struct claim *first_writer; /* in `waiting`; NULL: no writer waits */
    struct fence *write;        /* of the last write; NULL: it has passed */
    struct fences reads;        /* of the reads since, by page and slot */
    uint32_t n_reads, n_swept;  /* and how many were left by the last sweep */
    uint64_t visited[2];        /* the last search for what keeps a reader, and a writer */
    LIST_ENTRY(section) of_use; /* use->sections, unless it is use->whole */
    uint32_t n_claims;          /* those that are made or resumed, too */
    bool torn;                  /* abandoned, where not the whole array is */
    struct charge charge;       /* TORN_HOST, while it is torn */
};

struct use {
    struct array *array;
    struct section whole;
    LIST_HEAD(, section) sections; /* of ranges */
    uint32_t n_sections, n_left;   /* and how many were left by the last sweep */
    uint32_t n_torn;               /* 0: if the array is abandoned, all of it is */
    TAILQ_ENTRY(use) of_lingering; /* core->lingering, or ->landed */

    /* What clients of an earlier core do with the array is not known: former.h. */
    enum doubt doubt; /* in that list of its block or pool */
    bool kept;        /* it has no name, and is kept for former connections */
    /* a client that has resumed was writing it: its signals may be on the way */
    bool was_written;
    uint64_t writer;  /* the former connection that was writing it; 0: none */
    uint64_t writers; /* or those, several, by former_bit(); 0: none */
    LIST_ENTRY(use) of_doubts;
    TAILQ_ENTRY(use) of_whole; /* of a part: whole->uses */
};

/* A bracket's claim on one array. */
struct claim {
    struct bracket *bracket;
    struct use *use; /* NULL: the lease has ended, and the claim with it */
    struct section *section;
    struct lease *lease;
    struct fence *fence; /* for the bracket's end; NULL: used */
    LIST_ENTRY(claim) of_lease;
    TAILQ_ENTRY(claim) of_waiting;
    LIST_ENTRY(claim) of_held;
    bool read, write; /* both: it is widened */
    bool widened;   /* it has all of the array in place of its ranges: it makes nothing whole */
    bool ready;     /* it waits for other arrays of the bracket only */
    bool overtakes; /* what waits before it, since its thread reads already */
};

TAILQ_HEAD(use_list, use);

/* What is not known of the array at present: this doubt, and all lesser ones. */
enum doubt doubt_of(struct array *array);
/* Puts the use into the list of that doubt. */
void use_doubt(struct use *use, enum doubt doubt);

/* The array's use, or a new one. -ENOMEM. */
int use_get(struct array *array, struct use **ret);
/* Frees the use, and its sections, if nothing is left in them. */
void use_settle(struct use *use);
/* Frees what is left of an array's use when the core ends. */
void use_forget(struct array *array);
enum fence_state fence_state(const struct fence *fence);
/* Sets the fence of a write by an earlier core's client, of an array that is not in use; page NULL:
 * none. -ENOMEM. */
int use_restore_write(struct array *array, struct page *page, uint32_t slot, uint64_t value);
/* Gives the claim its section, from `from` to before `end`; UINT64_MAX: the whole. was_open: before
 * a restart. -ENOMEM. */
int use_claim(struct claim *claim, struct array *array, uint64_t from, uint64_t end,
              bool was_open);
/* Undoes that, of a claim that is in no list of the section. */
void use_drop(struct claim *claim);
/* Whether a claim with that number of a search overlaps with this one, which has it now. */
bool use_is_claimed(struct claim *claim, uint64_t number);
/* It has the whole in place of its range, and that number. */
void use_widen(struct claim *claim, uint64_t number);
/* Opens the claim of a bracket that was open before the restart, unless others have the array. */
bool use_resume(struct claim *claim);

static inline bool
section_overlaps(const struct section *a, const struct section *b)
{
    return a->from < b->end && b->from < a->end;
}

/* All sections, the whole first; NULL last. */
static inline struct section *
use_next(struct use *use, const struct section *after)
{
    return after == &use->whole ? LIST_FIRST(&use->sections) : LIST_NEXT(after, of_use);
}

/* Those that overlap with the section, itself too. */
static inline struct section *
section_next(const struct section *section, const struct section *after)
{
    struct section *next = use_next(section->use, after);

    while (next && !section_overlaps(section, next))
        next = LIST_NEXT(next, of_use);
    return next;
}

#define FOREACH_SECTION(section, use) \
    for ((section) = &(use)->whole; (section); (section) = use_next((use), (section)))
#define FOREACH_OVERLAPPING(other, section) \
    for ((other) = &(section)->use->whole; (other); (other) = section_next((section), (other)))

/* Drops fences of writes that overlap with the claim and have passed. */
void use_sweep(const struct claim *claim);
/* The array is dead: how its writes have ended does not matter, since nobody will read it. */
void use_sweep_dead(struct use *use);
/* Whether a fence has not passed. Drops those that have: the use may be freed. */
bool use_is_pending(struct use *use);
bool use_has_fences(const struct use *use);
/* Whether some of the contents are not whole. Notices that a writer has died. */
bool use_is_abandoned(struct array *array);
/* Whether contents that overlap with the claim are not whole. */
bool use_is_torn(const struct claim *claim);
/* The contents are not whole from now on. Readers that wait for a writer which has hung up are
 * told. */
void use_abandon(struct section *section);
/* The same, but nobody is told. */
void use_tear(struct section *section);
/* What lies in the section is whole from now on. */
void use_heal(struct section *section);
/* The claim waits for its turn. If it has that now, its bracket may be ready. */
void use_queue(struct claim *claim);
/* The claim waits on if it has lost its turn meanwhile: see wait_on() in bracket.c. */
void use_unready(struct claim *claim);
/* The claim is open from now on. */
void use_hold(struct claim *claim);
/* Takes the claim out; claim->use is NULL afterwards. */
void use_leave(struct claim *claim);
/* Lets those in whose turn it is now. */
void use_scan(struct use *use);
/* Whether the waiting bracket waits for its own thread. */
bool use_is_deadlock(struct core *core, struct bracket *bracket);
/* A bracket has ended. After a write, its fence replaces all others in its section (page NULL: none
 * is left). */
void use_end(struct claim *claim, struct page *page, uint32_t slot, uint64_t value);
void fence_free(struct fence *fence);
/* Drops passed fences in conn's own pages, up to `max`. Returns whether there may be more. */
bool fences_sweep(struct conn *conn, uint32_t max);
/* Whether open brackets keep the claim waiting. */
bool use_is_kept(const struct claim *claim);
/* The claims of all sections. */
void use_count(struct use *use, uint64_t *ret_readers, uint64_t *ret_writers,
               uint64_t *ret_waiting);

/* What a torn section is charged. */
#define TORN_HOST (sizeof(struct section) + sizeof(struct use))
