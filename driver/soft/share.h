/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process offers to others by a ticket: 64 bytes that a program passes on as it likes, and
 * that get whoever shows them an fd. It is behind the legacy inter-process handles, of memory and
 * of events.
 *
 * From its first offer on a process has a thread that answers on an abstract socket with a random
 * name. The ticket tells this name and is checked in full by the offering process, so a forged
 * ticket, or one of an offer that has ended, gets nothing. Nothing of it is left behind by a
 * SIGKILL. What was passed is the same open file description as the offering process has: memory
 * is counted (memory.h) and lives on as long as anyone has it.
 *
 * Tickets work where abstract sockets do: within one network namespace. A forked child has neither
 * the thread nor the offers.
 *
 * An offer is owned by what it offers (an allocation's range, an event), which
 * ends it before it closes the fd. soft->share.lock is inside all other locks.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/tree.h"
#include "serve.h"

enum share_kind {
    SHARE_MEMORY = 1, /* cuIpcGetMemHandle */
    SHARE_EVENT,      /* cuIpcGetEventHandle; only for the uid of who offers it */
};

/* Fits CUipcMemHandle and CUipcEventHandle: copy it in and out. A ticket that was accepted has the
 * size as offered. */
struct share_ticket {
    char magic[8];
    uint32_t kind;
    uint32_t zero;
    uint64_t socket; /* a random number: the socket's name */
    uint64_t id[2];  /* a random number: the offer */
    uint64_t size;   /* of memory, in bytes */
    uint64_t unused[2];
};

_Static_assert(sizeof(struct share_ticket) == 64, "no larger than CUDA's handles");

struct share_offer {
    RB_ENTRY(share_offer) node; /* in soft->share.offers */
    struct share_ticket ticket;
    int fd; /* borrowed */
};

RB_HEAD(share_tree, share_offer);

/* What a process offers; part of struct soft. */
struct share {
    pthread_mutex_t lock;
    struct server server;
    uint64_t socket; /* 0: nothing was offered yet */
    struct share_tree offers;
};

/* Offers an fd, which stays the caller's and open until the offer ends. of: kind and size are
 * the caller's to set, the rest is filled in; (*ret)->ticket is what to pass on. 0 or
 * -errno: -EMFILE, -ENOMEM, -EAGAIN (no thread). */
int share_offer_new(const struct share_ticket *of, int fd, struct share_offer **ret);
/* Ends the offer; NULL is fine. Afterwards nobody gets the fd any more. Returns NULL. */
struct share_offer *share_offer_free(struct share_offer *offer);

/* Whether the ticket is well-formed and of the kind; says nothing about the offer. */
bool share_ticket_is(const struct share_ticket *ticket, enum share_kind kind);

#define SHARE_OWN 1
/* Gets what the ticket is for: 0, and the caller owns *ret_fd (CLOEXEC), or SHARE_OWN when this
 * very process offers it, or
 *   -EINVAL  no ticket of this kind
 *   -ENOENT  the offer has ended, never was, or was another one
 *   -ESRCH   its process has ended
 *   -EACCES  not for this uid
 *   -errno   anything else, such as -EMFILE here, or -EAGAIN for a process that does not answer
 * Asks the other process and may take seconds when that one is stopped: call it with no lock
 * held. What comes must still be checked: any process can offer any fd. */
int share_take(const struct share_ticket *ticket, enum share_kind kind, int *ret_fd);

/* After fork(2), with the lock: the child has no offers. */
void share_in_child(void);
