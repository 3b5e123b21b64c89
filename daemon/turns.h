/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is. Each uid has a queue of what is to be done for it, and may use the loop for so
 * long in a round; what it uses beyond that it has less of in the next ones. Those with some left
 * come round robin, so that what another one has piled up is of no concern to them (I6). When
 * nobody who waits has any left, a new round begins: no time is left unused.
 *
 * No clock, no loop: it is told what was spent.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define TURNS_SLICE_NS 20000
#define TURNS_COST_MAX \
    2000000 /* nothing takes longer but that the machine does something else */

TAILQ_HEAD(turn_list, turn);

/* A uid; as long as it has connections. */
struct turns_user {
    TAILQ_ENTRY(turns_user) link; /* turns->users, while its queue has entries */
    struct turn_list queue;
    int64_t left_ns;
    uint64_t round; /* that left_ns is of */
};

/* A connection, or what else there is to be done for a uid. */
struct turn {
    TAILQ_ENTRY(turn) link;
    struct turns_user *user;
    void (*serve)(struct turn *entry); /* for who calls turns_next() */
    bool queued;
};

struct turns {
    TAILQ_HEAD(, turns_user) users; /* the next one first */
    uint64_t round;
};

void turns_init(struct turns *s);
/* It has nothing of the round that it comes in: else to go and come anew would be a way to more. */
void turns_user_init(struct turns *s, struct turns_user *user);

/* At the end of its user's queue, unless it is there. */
void turns_add(struct turns *s, struct turn *entry);
void turns_remove(struct turns *s, struct turn *entry);
/* Takes out the one whose turn it is; NULL: nobody waits. */
struct turn *turns_next(struct turns *s);
/* Somebody waits. */
bool turns_is_busy(const struct turns *s);
void turns_spent(const struct turns *s, struct turns_user *user, uint64_t ns);
/* The loop has come round, and nobody waits: all that was spent is forgotten. */
void turns_forget(struct turns *s);
