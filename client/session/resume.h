/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a client survives the end of its daemon, if that has a keeper (caid(8)): it resumes with the
 * next daemon. Until then it is away: calls wait; calls in flight are repeated under their old
 * numbers; what the program closes or ends meanwhile is sent later. Mappings and the GPU's work go
 * on.
 *
 * A thread of the client waits for the hang-up, and then for the next daemon. It is started with
 * the first array. It says by a token which connection the new one replaces, and what the client
 * has: its inventory, which the features fill in (feature.h, take_inventory). The inventory is of
 * one moment. It is sent without the client's lock, by ordinary calls of a second client (`talk`),
 * which has the new connection until all is sent. Calls may be abandoned meanwhile, and are
 * repeated all the same; what is closed or ended meanwhile is sent afterwards.
 *
 * If a service was stopped and its socket still listens, whoever connects starts it. That is left
 * to new clients: this thread waits until a daemon is there (presence.h).
 *
 * The connection has ended after `reconnect_timeout`, if the daemon has no keeper, or if the next
 * daemon does not know the client. A client that does not resume, or was closed while it was away,
 * tells the next daemon so, and nobody waits for it. That is done by a thread which
 * caid_client_close() does not wait for.
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
    INVENTORY_BEGIN, /* open brackets: inventory_add_begin() */
    N_INVENTORY_OWN, /* the lists that follow say nothing of what the client has */
    INVENTORY_REPEAT = N_INVENTORY_OWN,
    INVENTORY_UNDO,
    INVENTORY_LOST, /* the daemon's answer: leases that are gone */
    N_INVENTORY,
};

struct inventory {
    struct inventory_list {
        uint64_t *v;
        size_t n, capacity;
    } lists[N_INVENTORY];

    uint32_t deferring;
    bool failed; /* out of memory */
};

struct resume { /* under the client's lock */
    uint64_t token[2];
    bool has_token;
    bool sees_daemon;    /* there is one, by presence.h */
    uint64_t timeout_ns; /* 0: the client does not come back */
    pthread_t thread;
    bool started, ends;
    struct wake wake;  /* the thread's */
    uint64_t since_ns; /* since when it has been away, or the daemon has last made progress */
    uint64_t left;     /* how much the daemon had to restore, the least so far; 0: unknown */
    /* of threads that wait until it has resumed, or the connection has ended */
    struct wake back;
    struct caid_client *talk; /* with what may be the next daemon, or NULL */
    uint64_t n_returns;
    uint64_t n_lost; /* leases that are gone, and whose arrays have not been told */
};

extern const struct feature resume_feature;

/* The client has something to resume for: starts the thread. */
void resume_need(struct caid_client *client);
/* Threads of the program wait for others, and ask the daemon nothing: the thread waits for the
 * hang-up also where the client does not come back. Under the client's lock. */
void resume_watch(struct caid_client *client);
/* The client is closed and will not resume. Drops the lock meanwhile. */
void resume_stop(struct caid_client *client);

void inventory_add(struct inventory *inventory, enum inventory_kind kind, uint64_t value);
/* An open bracket. */
void inventory_add_begin(struct inventory *inventory, const struct msg_begin_params *params);
