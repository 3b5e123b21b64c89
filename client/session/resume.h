/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that dies, or is started anew, and has a keeper (caid(8)): the client comes back to the
 * next one. Until then it is away: calls wait, those in flight are repeated with the numbers that
 * they have, and what is closed or ended meanwhile is told on the return. Mappings, and work of the
 * GPU's, do not notice.
 *
 * A thread of the client's own waits for the hang-up, and then for the next daemon; it is started
 * with the first array. It says by a token whose place the new connection is to have, and what this
 * client has of the daemon that was: the features add that to the claims (feature.h, claim). These
 * are of one moment, and told without the client's lock, by ordinary calls of a client that has the
 * new connection until all is told: calls may be left meanwhile, and are repeated all the same;
 * what is closed or ended meanwhile is told on the return, as before.
 *
 * A service that was stopped and whose socket still listens would be started by whoever connects.
 * That is for new clients: this thread waits until a daemon is there (presence.h).
 *
 * After `reconnect_timeout` the connection has ended, as it has where the daemon keeps nothing, or
 * the client is not known any more. That it does not come back, or was closed while it was away, it
 * tells the next daemon, so that nobody waits for it; on a thread that closing does not wait for.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "msg.h"
#include "wake.h"

struct caid_client;
struct feature;
struct msg_begin_params;

enum inventory_kind { /* the lists of msg_resume_params, and: */
    INVENTORY_READ,
    INVENTORY_WRITE,
    INVENTORY_BLOCK,
    INVENTORY_PAGE,
    INVENTORY_PART,
    INVENTORY_ENDED,
    INVENTORY_BEGIN, /* brackets that are open: inventory_add_begin() */
    N_INVENTORY_OWN, /* those that follow say nothing of what the client has */
    INVENTORY_REPEAT = N_INVENTORY_OWN,
    INVENTORY_UNDO,
    INVENTORY_LOST, /* the daemon's answer: leases that cannot be had again */
    N_INVENTORY,
};

struct inventory {
    struct inventory_list {
        uint64_t *v;
        size_t n, capacity;
    } lists[N_INVENTORY];

    uint32_t deferring;
    bool failed; /* there was no memory */
};

struct resume { /* under the client's lock */
    uint64_t token[2];
    bool has_token;
    bool sees_daemon;    /* by presence.h, while it is there */
    uint64_t timeout_ns; /* 0: the client does not come back */
    pthread_t thread;
    bool started, ends;
    struct wake wake;  /* the thread's */
    uint64_t since_ns; /* it has been away, or what is not back has become less */
    uint64_t left;     /* of that, the least that a daemon has told; 0: none has */
    struct wake back;  /* whoever waits for the return, or for the end of the connection */
    struct caid_client *talk; /* with a daemon that may be the next one, or NULL */
    uint64_t n_returns;
    uint64_t n_lost; /* leases, of which nobody was told */
};

extern const struct feature resume_feature;

/* There is something to come back for: the thread is started. */
void resume_need(struct caid_client *client);
/* The client closes: nobody comes back any more. Drops the lock meanwhile. */
void resume_stop(struct caid_client *client);

void inventory_add(struct inventory *inventory, enum inventory_kind kind, uint64_t value);
/* Of a bracket that is open. */
void inventory_add_begin(struct inventory *inventory, const struct msg_begin_params *params);
