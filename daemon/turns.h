/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which uid is served next. Each uid has a queue of entries that wait to be served, and may
 * use the loop for TURNS_SLICE_NS in a round. If it uses more, it has less in the next rounds. Uids
 * with time left are served round robin, so that a long queue of one uid does not delay the others
 * (I6). When no waiting uid has time left, a new round begins, so that the loop is never idle while
 * somebody waits.
 *
 * It has no clock and no loop: the caller says how much time was spent.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define TURNS_SLICE_NS 20000
/* Longer turns count as so long: the machine did something else meanwhile. */
#define TURNS_COST_MAX 2000000

TAILQ_HEAD(turn_list, turn);

/* A uid, as long as it has connections. */
struct turns_user {
    TAILQ_ENTRY(turns_user) link; /* turns->users, while its queue has entries */
    struct turn_list queue;
    int64_t left_ns;
    uint64_t round; /* the round of left_ns */
};

/* A connection, or something else that is served for a uid. */
struct turn {
    TAILQ_ENTRY(turn) link;
    struct turns_user *user;
    void (*serve)(struct turn *entry); /* called by the caller of turns_next() */
    bool queued;
};

struct turns {
    TAILQ_HEAD(, turns_user) users; /* the next one first */
    uint64_t round;
};

void turns_init(struct turns *s);
/* A new user has no time in the current round: else a uid could get more by leaving and coming
 * back. */
void turns_user_init(struct turns *s, struct turns_user *user);

/* Adds the entry to the end of its user's queue, unless it is in it. */
void turns_add(struct turns *s, struct turn *entry);
void turns_remove(struct turns *s, struct turn *entry);
/* Takes out the entry whose turn it is; NULL: no entry waits. */
struct turn *turns_next(struct turns *s);
/* Whether an entry waits. */
bool turns_is_busy(const struct turns *s);
void turns_spent(const struct turns *s, struct turns_user *user, uint64_t ns);
/* No entry waited at the end of a turn of the loop: all debts are forgotten. */
void turns_forget(struct turns *s);
