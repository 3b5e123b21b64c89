/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's side of its journal: each change is recorded when it is made, so it is there before
 * any action that tells of it is carried out (I9), and counts when the event is over. Nothing here
 * fails: a journal that is full (journal.h) is the shell's concern.
 *
 * What has a reason to last is recorded: arrays that have a name, or are kept by one that has;
 * their blocks; and whose processes may have that memory mapped, or signal. Brackets cost no
 * record: that an array is being written is a mark of its record.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "records.h"

struct array;
struct block;
struct channel;
struct conn;
struct core;
struct hold;
struct member;
struct journal;
struct lost;
struct page;
struct pool;
struct ticket;

struct persist {
    struct journal *journal; /* NULL: nothing outlives the process */
    struct journal *next; /* the new journal, while it is being written (renewal.h); or NULL */
    bool turn;            /* array->record_turn of arrays whose record is in `journal` */
    size_t seen, due;     /* bytes: of `journal`, and that `next` is to get soon: renewal.c */
    uint32_t n_pools;     /* that have got a number */
    uint64_t floor;
    uint64_t ids;       /* numbers below may be given without a record */
    uint64_t n_numbers; /* of connections, ever */

    struct { /* the record that is being written, in both */
        struct journal *to[2];
        void *payload[2];
        size_t n;
    };
};

/* What an earlier core has recorded did not come back. */
void persist_gone(struct core *core, enum record_type type, struct record_key key);
/* As it is now; where it has no reason to last any more, that it is gone. */
void persist_array(struct array *array);
/* It has no name, and may have lost it, or the last that kept it. */
void persist_nameless(struct array *array);
/* The new journal alone gets it, unless it has it. */
void persist_array_anew(struct array *array);
/* A member of a set that stays. */
void persist_member(struct array *set, const struct member *member);
/* The same of one whose array and set are recorded. */
void persist_member_anew(struct core *core, const struct array *set,
                         const struct member *member);
/* The turn of what is recorded from now on: array->record_turn. */
bool persist_turn(const struct core *core);
/* Whether somebody writes it, and whether its contents are whole. */
void persist_mark(struct array *array);
/* What that mark is. */
uint64_t persist_get_mark(const struct array *array);
void persist_pool(struct core *core, const struct pool *pool); /* that has a number */
void persist_block(struct core *core, const struct block *block);
void persist_block_gone(struct core *core, const struct block *block);
void persist_hold(struct core *core, const struct hold *hold);
void persist_hold_gone(struct core *core, const struct hold *hold);
void persist_page(struct core *core, const struct page *page);
void persist_channel(struct core *core, const struct channel *channel);
void persist_page_gone(struct core *core, const struct page *page);
/* As the keeper has it by now. */
void persist_process(struct core *core, const struct conn *conn);
/* The same with what it has had done. */
void persist_conn_anew(struct core *core, struct conn *conn);
/* It has something that counts after a restart. */
void persist_conn_needed(struct core *core, struct conn *conn);
/* What is in that place of conn->done. */
void persist_done(struct core *core, struct conn *conn, uint32_t place);
void persist_conn_gone(struct core *core, const struct conn *conn);
void persist_ticket(struct core *core, const struct ticket *ticket);
void persist_ticket_gone(struct core *core, const struct ticket *ticket);
void persist_suspect(struct core *core, uint32_t place);
void persist_suspects(struct core *core); /* all */
/* What is in hand: journal_take(), journal_put(). */
void persist_take(struct core *core, uint64_t token, uint64_t request);
void persist_put(struct core *core);
void persist_lost(struct core *core, const struct lost *lost);
void persist_lost_gone(struct core *core, const struct lost *lost);
/* An array, a block or a page has that number, which none gets again, also after a restart. */
void persist_id(struct core *core, uint64_t id);
/* A name of that generation was taken away. */
void persist_floor(struct core *core, uint64_t generation);
/* The highest of both. */
void persist_numbers(struct core *core);
