/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal: records one after the other in memory that outlives the process which writes them, for
 * the next one to read. Pure: it knows bytes, and neither files nor what records mean.
 *
 *   header    magic, version of the format, how far it is whole, how many were before it, whose,
 *             and which request is in hand
 *   records   checksum (CRC-32C), bytes, type; a mark; then the payload, padded to 8 bytes
 *
 * What was appended counts from journal_commit() on, all of it at once: a process that is killed
 * between two records of one event leaves neither (one store of the header). What lies behind is
 * cut off by the next process, as is what follows a record whose checksum is wrong. The mark is a
 * word that is changed in place, and is not in the checksum.
 *
 * Numbers are those of the machine: who reads is the same machine, before its next boot.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

#define JOURNAL_VERSION 1
#define JOURNAL_START   64    /* bytes of the header */
#define JOURNAL_HEAD    16    /* of what comes before a payload */
#define JOURNAL_MAX     65535 /* bytes of a payload */
#define JOURNAL_LIMIT \
    ((size_t)UINT32_MAX * 8) /* bytes of all: a place, in 8 bytes, has 32 bits */

/* Bytes that a record takes, whose payload has so many. */
static inline size_t
journal_record_size(size_t n)
{
    return JOURNAL_HEAD + ALIGN_UP(n, 8);
}

struct journal {
    uint8_t *bytes; /* mapped, shared; NULL: there is none */
    size_t size;
    size_t at;           /* where the next record goes */
    uint64_t restarts;   /* how many were written before it, each by another process */
    uint64_t id[2];      /* random: the same in all of these */
    uint64_t in_hand[2]; /* journal_open(): which request the process died of; [1] 0: of none */
    /* Makes room for so many bytes in all, and sets bytes and size; < 0: it cannot. */
    int (*grow)(struct journal *journal, size_t size);
    bool full; /* it could not: what it says is not true any more, and nobody may rely on it */
};

/* An empty one, which says `restarts` and `id`. -ENOMEM: too small. */
int journal_init(struct journal *journal);
/* One that another process has written, to be read: journal->at is where it ends. -EPROTO: it is
 * none, -ENOTSUP: of a newer format; it is left as it is. */
int journal_open(struct journal *journal);

/* Room for the payload of a record, all zero, or NULL: it is full. Valid until the next call. */
void *journal_begin(struct journal *journal, uint8_t type, size_t n);
/* The record is there, with that mark. Returns its place, never 0. */
uint64_t journal_end(struct journal *journal, uint64_t mark);
/* All that has been appended counts from now on. */
void journal_commit(struct journal *journal);
void journal_mark(struct journal *journal, uint64_t place, uint64_t mark);

/* What of that connection's is handled from now on, not 0; and that it has been. */
void journal_take(struct journal *journal, uint64_t conn, uint64_t request);
void journal_put(struct journal *journal);

struct journal_record {
    uint8_t type;
    uint16_t n;
    uint64_t mark;
    const void *payload;
    uint64_t place;
};

/* The record at *place, which is JOURNAL_START at first, and goes on to the next. false: there is
 * none, or it is broken: the rest is cut off. */
bool journal_next(struct journal *journal, uint64_t *place, struct journal_record *ret);
/* One that journal_next() has found. */
struct journal_record journal_get(const struct journal *journal, uint64_t place);
/* What that has for a payload, without a look at it. */
const void *journal_payload(const struct journal *journal, uint64_t place);
/* What was read, and is mapped to be written: it goes on after its last whole record, and says
 * `restarts` and `id`. What was in hand no longer is. */
void journal_go_on(struct journal *journal);
