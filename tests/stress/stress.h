/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors are processes that work on a daemon. Most of them are killed, at chosen moments or at
 * random; afterwards the daemon's ledger has to be what it was. stress.c is the one
 * program: it knows the actors by their roles, and runs one of the scenarios, which says what they
 * do and what has to come of it.
 *
 * The process that runs a scenario never loads a CUDA library, so that its actors can. A failure
 * ends the process where it is found, and says which case it was.
 */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "ledger.h"
#include "program.h"

#define N_ROLES 8

struct role {
    sem_t go;         /* for the actor: the next part of the case, or its end */
    sem_t reached;    /* from the actor: it is there */
    _Atomic bool end; /* an actor's loop ends */
    pid_t pid;
};

/* One run, in memory that all its processes share. */
struct stress {
    const char *mode; /* how streams wait */
    pid_t started;    /* the daemon, or its supervisor */
    struct ledger_source source;
    struct ledgers ledgers;
    struct role roles[N_ROLES];
    uint32_t random, number; /* number: of the case */
    char what[256];          /* the case is, for who reads of a failure */
    void *shared;            /* the scenario's own, zeros at first */

    struct {
        const char *what;
        unsigned n;
    } counts[32];
};

struct actor {
    struct stress *s;
    struct role *role;
    void *shared;
    uint32_t random;
    struct caid_client *client; /* NULL: it has not connected */
    struct drv *drv;            /* actor_open() makes this, and the stream */
    CUstream stream;
};

struct scenario {
    const char *name, *variable; /* variable: of the environment, that says how much; or NULL */
    unsigned amount, least;
    unsigned warm; /* of that come before anything is compared: some is kept for good */
    size_t shared_size;
    void (*begin)(struct stress *s);                           /* or NULL */
    void (*run)(struct stress *s, unsigned first, unsigned n); /* NULL: one actor does all */
    void (*actor)(struct actor *a, unsigned n);
    void (*report)(const struct stress *s); /* or NULL */
};

extern const struct scenario scenario_client, scenario_arena, scenario_publish, scenario_kill,
    scenario_churn, scenario_parts, scenario_handoff, scenario_channel, scenario_outages,
    scenario_joins;

/* ---- for who runs a scenario ---- */

/* Its case is named by s->what. */
_Noreturn void stress_fail(const struct stress *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* One more of what: text that stays. */
void stress_count(struct stress *s, const char *what);

/* The ledger as it is, which is that of the work, if it has more leases than others had. */
struct ledger stress_look(struct stress *s);

/* Whether the daemon is started again when it dies. */
bool stress_is_supervised(const struct stress *s);
/* Kills the daemon; there is none until stress_revive(), which waits for the next one. */
void stress_outage(struct stress *s);
void stress_revive(struct stress *s);

/* A process of that role that runs actor with n. It is killed when it takes minutes. */
void role_start(struct stress *s, unsigned role, void (*actor)(struct actor *, unsigned),
                unsigned n);
/* Waits until it is there. */
void role_await(struct stress *s, unsigned role);
void role_go(struct stress *s, unsigned role);
/* Kills it, in a moment: it must not have ended by itself. */
void role_kill(struct stress *s, unsigned role);
/* Waits for its end: it must not have failed. */
void role_join(struct stress *s, unsigned role);

/* ---- for actors ---- */

/* Connects, opens the driver with a context that is current, and makes a stream. */
void actor_open(struct actor *a);
void actor_reached(struct actor *a);
/* Waits until it may go on. */
void actor_wait(struct actor *a);
/* The same for ever. */
_Noreturn void actor_stay(struct actor *a);

/* The next message is not sent, or sent and nothing after it is done: instead, actor_stay(). */
void actor_stop_before_send(struct actor *a);
void actor_stop_after_send(struct actor *a);

/* What is enqueued from here on is never done, or soon. */
void actor_slow(struct actor *a);
void actor_fast(struct actor *a);

/* A thread of an actor's process. */
struct worker {
    struct actor *a;
    pthread_t thread;
    uint32_t random;
    unsigned index, n; /* of all; steps that it takes */
    void (*run)(struct worker *w);
};

void workers_start(struct worker *workers, unsigned n_workers, struct actor *a,
                   void (*run)(struct worker *), unsigned n);
void workers_join(struct worker *workers, unsigned n_workers);
