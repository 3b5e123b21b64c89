/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core writes into its journal (journal.h), so that the core of a later process knows it:
 * what an array is and where it lies, who has had memory mapped, and who was to signal. Each record
 * is the whole of its object as it is from then on, in place of the one before. Files, fds and
 * processes are told by the numbers that the keeper has them under.
 *
 * The order of fields leaves no holes; what a record says of lengths is checked where it is read.
 */
#pragma once

#include "channel.h"
#include "core.h"
#include "done.h"
#include "journal.h"
#include "suspect.h"

enum record_type {
    RECORD_POOL = 1,
    RECORD_BLOCK,
    RECORD_ARRAY,
    RECORD_MEMBER,
    RECORD_CONN,
    RECORD_HOLD,
    RECORD_PAGE,
    RECORD_FLOOR,
    RECORD_DONE,
    RECORD_GONE, /* with a connection, its holds */
    RECORD_LOST,
    RECORD_TICKET,
    RECORD_SUSPECT,
    RECORD_CHANNEL,
    N_RECORDS,
};

/* What such a record is charged as memory of the daemon's, and a text more that is in it: twice,
 * since a journal that is written anew is there beside the one before. */
#define RECORD_HOST(payload) (2 * journal_record_size(payload))
#define TEXT_HOST(n)         (2 * ALIGN_UP((size_t)(n), 8))

/* What every record begins with; FLOOR: all zero, TICKET: its secret. A connection's number is
 * struct conn's: it keeps that when its client has come back. */
struct record_key {
    uint64_t id;
    uint64_t of; /* HOLD: the connection; MEMBER: its number; DONE: its place; else 0 */
};

struct record_gone {
    struct record_key key;
    uint64_t type;
};

struct record_pool {
    struct record_key key;
    uint32_t uid, gid;
    uint8_t is_own; /* the uid's own */
    uint8_t n_name;
    char name[]; /* not terminated */
};

struct record_block {
    struct record_key key;
    uint64_t size;
    uint32_t kept; /* its fd */
    uint32_t pool, uid;
    uint8_t kind, is_own;
    char device[CORE_UUID_SIZE];
    uint8_t marks; /* was padding, which is 0 */
};

enum { /* struct record_block */
    BLOCK_EXPORTED = 1,
    BLOCK_HANDLE =
        0xfe, /* by what it is shared. 0: an fd; fabric handles and others are to come */
};

enum { /* struct record_array */
    ARRAY_MAPPED = 1,
    ARRAY_STRIDES = 2,
    ARRAY_OWN = 4,
    ARRAY_NAMED = 8,
    ARRAY_EXPIRES = 16,
    ARRAY_TEXT = 32, /* it has metadata, of no bytes it may be */
    ARRAY_DROPPABLE = 64,
};

enum {                /* marks of a RECORD_ARRAY */
    MARK_WRITING = 1, /* somebody has a bracket in which it is written */
    MARK_PENDING = 2, /* what was written may not be there yet: a fence stands for it */
    MARK_ABANDONED = 4,
    MARK_SLOT_SHIFT = 3, /* of that fence, TIMELINE_SLOTS of them */
    MARK_ID_SHIFT = 8,   /* its page; where somebody writes, the number of that connection */
};

/* With MARK_WRITING: several do, or one does in a range, or writes of several are on their way. In
 * place of the number is former_bit() of each. A reader that does not know this takes it for a
 * connection that has gone. */
#define MARK_SEVERAL (UINT64_C(1) << 63)

struct record_array {
    struct record_key key;
    uint64_t block;  /* 0: it has no bytes */
    uint64_t offset; /* in the block, or in the whole */
    uint64_t generation;
    uint64_t whole, companion; /* arrays; 0: none */
    uint32_t pool, uid;
    uint16_t n_descr, n_metadata;
    uint8_t device, kind, flags, ndim, n_name, n_typestr;
    /* then extents, expiry (8 bytes each); typestr, descr, name, metadata; of a droppable set its
     * priority and reload_ns */
};

struct record_member { /* of a set */
    struct record_key key;
    uint64_t array;
    uint8_t n_name;
    char name[]; /* not terminated */
};

struct record_conn { /* one that has memory of the daemon's */
    struct record_key key;
    uint64_t token[2], old_token[2];
    uint32_t kept; /* its process's pidfd */
    uint32_t uid, gid, pid;
    uint32_t resumes; /* it will, if it can */
};

struct record_hold { /* of a block, by that connection */
    struct record_key key;
};

struct record_done { /* by that connection: done.h */
    struct record_key key;
    struct done done;
};

struct record_suspect { /* by its place */
    struct record_key key;
    struct suspect suspect;
};

struct record_page { /* of timelines, in which that connection's process signals */
    struct record_key key;
    uint64_t conn;
    uint32_t kept;
    uint32_t pool;  /* of the name that it has */
    uint8_t n_name; /* 0: none */
    char name[];    /* not terminated */
};

enum {
    LOST_SET = 1,
    LOST_MORE = 2
};

struct record_lost { /* a name whose array did not come back; by the array's number */
    struct record_key key;
    uint64_t generation;
    uint32_t pool, uid;
    uint8_t why;    /* enum lost_why */
    uint8_t is_set; /* LOST_SET; LOST_MORE: struct record_dropped follows the name */
    uint8_t n_name;
    char name[]; /* not terminated */
};

struct record_dropped { /* not aligned */
    uint64_t priority, reload_ns, bytes;
    uint16_t n_metadata;
    uint8_t has_metadata, unused;
    char metadata[];
};

struct record_ticket { /* by which that array was sent */
    struct record_key key;
    uint64_t conn; /* its sender; 0: it has gone, or will not come back */
    uint64_t array;
    uint64_t lease; /* 0; not so in 0.1.0, whose record ends with the next */
    uint64_t readonly;
    uint64_t made_ns, ends_ns; /* 0: not by itself */
    uint32_t uid, pid;
    uint64_t kind; /* enum ticket_kind */
};

struct record_channel { /* by its array's number */
    struct record_key key;
    uint64_t sequence, former;        /* as in struct channel */
    uint64_t producer, producer_page; /* 0: none */
    uint8_t has_mode, latest, n_kept, n_participants;
    uint32_t n_slots;
    /* then what is kept, and who takes part */
};

struct record_kept { /* a whole frame of a producer that has ended */
    uint64_t slot;
    uint64_t sequence; /* 0: none */
    uint64_t info[CHANNEL_INFO / 8];
};

struct record_participant {
    uint64_t id, page, sequence;
    uint32_t depth;
    uint8_t latest, admitted, unused[2];
};

static inline size_t
channel_record_size(const struct record_channel *r)
{
    return sizeof(*r) + r->n_kept * sizeof(struct record_kept) +
           r->n_participants * sizeof(struct record_participant);
}

struct record_floor {
    struct record_key key;
    uint64_t generation; /* that no name will have again */
    uint64_t ids;        /* arrays, blocks and pages have had lower numbers */
};
