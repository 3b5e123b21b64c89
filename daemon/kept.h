/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of its keeper (keeper.h): which fds the keeper has been given, under which
 * numbers, and a thread that gives it what it could not be given at once, and all anew to a keeper
 * that has come back.
 *
 *     kept_init()     connects, and takes what a former daemon has left: it is found
 *     kept_claim()    the caller owns what was found under a number, and goes on keeping it
 *     kept_forget()   the rest is closed, and dropped
 *     kept_start()    from here on, by any thread:
 *     kept_put(), kept_set(), kept_drop()
 *
 * An fd that is kept stays the caller's: it is borrowed, open until it is dropped. What was found
 * is ours until it is claimed. Number 0 is nobody's until kept_set() gives it: there a new daemon
 * looks first.
 *
 * Nothing is promised to a client before the keeper has it: kept_put() says so at once, as a rule;
 * where it says KEPT_LATER, kept_wait(), on a thread that may wait, tells. While no keeper is there
 * only the daemon has the memory.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KEPT_NONE  UINT32_MAX /* is no number */
#define KEPT_LATER 1

struct kept_slot {
    int fd;      /* 0: none */
    uint8_t due; /* what the keeper does not know yet, or not for certain */
    bool is_found;
};

enum kept_state {
    KEPT_STARTS, /* what the keeper has is found */
    KEPT_NEVER,  /* none was there */
    KEPT_THERE,
    KEPT_AWAY, /* one was */
    KEPT_ENDS, /* nothing is told to it any more */
};

struct kept {
    const char *path; /* of the keeper's socket; NULL: it is our parent, and ends with us */
    int sock;         /* -1: none was ever there */
    int wake;         /* eventfd(2): the thread has something to do */
    int logged;       /* the log, why a keeper cannot be had: -errno */
    bool is_started;
    _Atomic bool is_stuck; /* it has been waited for in vain, and has taken nothing since */
    _Atomic enum kept_state state;  /* changed with the lock, as are: */
    _Atomic uint32_t n_due, n_kept; /* slots; fds that the keeper has, as long as it is there */
    uint32_t limit; /* numbers are below it; the keeper's, or ours where that is less */
    uint32_t end;   /* no number from here on was ever used */
    uint32_t first_due, first_free; /* at the least */
    struct kept_slot *slots;        /* by number; NULL: nobody keeps anything */
    pthread_t thread;
    pthread_mutex_t lock;
};

/*
 * path: borrowed; or sock_consume: of --supervise; with neither, nobody keeps anything. A keeper
 * that is not there is logged, and looked for by the thread, which leaves it alone where it has
 * something then. One that has another daemon still is waited for, for 5 seconds; one that does
 * not say what it has is an error: that would be lost. After fds_prepare(). -errno, logged.
 */
int kept_init(struct kept *k, const char *path, int sock_consume);
/* Nothing is told to the keeper from here on, so that fds may be closed. It has two seconds to take
 * what it does not have, and to be back, where it has gone; what it lacks then is logged. */
void kept_stop(struct kept *k);
/* The same first. The keeper goes on keeping what it has. */
void kept_deinit(struct kept *k);

/* What was found under that number, and nobody has claimed; -1: nothing was. */
int kept_found(struct kept *k, uint32_t number);
/* The same, which the caller owns from now on. */
int kept_claim(struct kept *k, uint32_t number);
/* Drops what was found and not claimed, and kills the pages of it. Returns how many. */
uint32_t kept_forget(struct kept *k);
/* The thread. No fork(2) from here on. -errno, logged. */
int kept_start(struct kept *k);

/* Under a number that is free. 0: the keeper has it; KEPT_LATER; -ENFILE: it takes no more;
 * -ENOTCONN: there is none, and there will be none. */
int kept_put(struct kept *k, int fd, uint32_t *ret_number);
/* The same of a page of timelines (shared_page.h): `write` is what the keeper maps it by, where it
 * gets it at once. */
int kept_put_page(struct kept *k, int fd, int write, uint32_t *ret_number);
/* Kills the page that is under that number, which an earlier daemon has put. */
void kept_kill_page(struct kept *k, uint32_t number);
/* The same in place of what is under that number, in one step. */
int kept_set(struct kept *k, uint32_t number, int fd);
/* Returns the fd, which is the caller's to close; -1: there was none. The number is free as soon as
 * the keeper knows. */
int kept_drop(struct kept *k, uint32_t number);
/* Until the keeper has all. 0; -ETIMEDOUT, at once where that was so before and it has taken
 * nothing since; -ENOTCONN: it is not there. */
int kept_wait(struct kept *k, uint64_t timeout_ns);

static inline bool
kept_is_there(const struct kept *k)
{
    return k->state == KEPT_THERE;
}

/* Fds that the keeper has. */
static inline uint32_t
kept_count(const struct kept *k)
{
    return kept_is_there(k) ? k->n_kept : 0;
}
