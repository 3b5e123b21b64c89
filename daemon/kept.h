/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of its keeper (keeper.h): which fds the keeper has, under which numbers. A
 * thread sends what could not be sent at once, and sends everything to a keeper that has come back.
 *
 *     kept_init()     connects, and takes the fds that an earlier daemon has left: they are found
 *     kept_claim()    the caller owns the found fd of a number, and goes on keeping it
 *     kept_forget()   the rest is closed, and dropped
 *     kept_start()    from here on, by any thread:
 *     kept_put(), kept_set(), kept_drop()
 *
 * A kept fd stays the caller's: it is borrowed, and open until it is dropped. A found fd belongs to
 * this object until it is claimed. kept_put() never gives number 0. It is for kept_set(): a new
 * daemon looks there first.
 *
 * Nothing is promised to a client before the keeper has it. Most often kept_put() returns 0: the
 * keeper has it. After KEPT_LATER, kept_wait() on a thread that may block waits for that. While
 * there is no keeper, only the daemon has the memory.
 *
 * The invariant of pages (I7): where a keeper is there when a page of timelines is made, nobody is
 * given the page, its owner included, and it is not sealed, before that keeper has answered that it
 * has mapped it. So whichever daemon comes next can have it killed. A page that the keeper cannot
 * map, or of which it says nothing, is not made. The exceptions: a page that was made while no
 * keeper was there, or a keeper of version 1 (keep_wire.h), and that is sealed before the next
 * keeper comes; and a sealed page whose keeper has died. They are kept, but only the daemon that
 * made them can kill them.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KEPT_NONE  UINT32_MAX /* is no number */
#define KEPT_LATER 1

struct kept_slot {
    int fd;       /* 0: none */
    int write;    /* of a page that is not sealed: the keeper maps it by this; 0: none */
    uint32_t map; /* which of the MAPs that this keeper was sent is the page's; 0: not sent */
    int error;    /* errno: the keeper's answer to it */
    uint8_t due;  /* what the keeper is still to be sent */
    bool is_found;
};

enum kept_state {
    KEPT_STARTS, /* fds that the keeper sends are found */
    KEPT_NEVER,  /* there was no keeper yet */
    KEPT_THERE,
    KEPT_AWAY, /* the keeper has gone */
    KEPT_ENDS, /* nothing more is sent */
};

struct kept {
    const char
        *path;  /* of the keeper's socket; NULL: the keeper is our parent, or there is none */
    int sock;   /* -1: no keeper was ever there */
    int wake;   /* eventfd(2): the thread has something to do */
    int logged; /* -errno: the last reason in the log why there is no keeper */
    void (*told)(void *userdata); /* see kept_listen() */
    void *userdata;
    bool is_started;
    _Atomic bool is_stuck; /* a kept_wait() has timed out, and nothing could be sent since */
    _Atomic enum kept_state state;  /* changed with the lock, as are: */
    _Atomic uint32_t n_due, n_kept; /* slots; fds that the keeper has, as long as it is there */
    uint32_t n_maps, n_mapped;      /* MAPs that this keeper was sent; that it has answered */
    uint16_t version;               /* the keeper's, or ours if that is less */
    uint32_t limit; /* numbers are below it: the lesser of the keeper's limit and ours */
    uint32_t end;   /* no number from here on was ever used */
    uint32_t first_due, first_free; /* no number below it is due, or free */
    struct kept_slot *slots;        /* by number; NULL: nothing is kept */
    pthread_t thread;
    pthread_mutex_t lock;
};

/*
 * path: borrowed; or sock_consume: of --supervise; with neither, nothing is kept. Where no keeper
 * is there, that is logged, and the thread looks for one, which it uses only if that keeps nothing.
 * A keeper that still serves another daemon is waited for, for 5 seconds. A keeper that does not
 * tell what it has is an error, since its fds would be lost. Call it after fds_prepare(). -errno,
 * logged.
 */
int kept_init(struct kept *k, const char *path, int sock_consume);
/* Nothing is sent to the keeper after this, so that fds may be closed. Before, the keeper has two
 * seconds to take what is due, and to come back where it has gone. If it does not, that is
 * logged. */
void kept_stop(struct kept *k);
/* Calls kept_stop(). The keeper goes on keeping what it has. */
void kept_deinit(struct kept *k);

/* The fd that was found under that number, and is not claimed; -1: none. */
int kept_found(struct kept *k, uint32_t number);
/* The same; the caller owns the fd from now on. */
int kept_claim(struct kept *k, uint32_t number);
/* The same for a page of timelines that is not sealed, which the keeper maps by `write`, if it has
 * not. That is borrowed as in kept_put_page(). */
int kept_claim_page(struct kept *k, uint32_t number, int write);
/* Drops all fds that were found and not claimed, and kills the pages among them. Returns their
 * number. */
uint32_t kept_forget(struct kept *k);
/* Starts the thread: no fork(2) from here on. -errno, logged. */
int kept_start(struct kept *k);

/* Keeps fd under a free number. 0: the keeper has it; KEPT_LATER; -ENFILE: it takes no more;
 * -ENOTCONN: nothing is kept. */
int kept_put(struct kept *k, int fd, uint32_t *ret_number);
/* The same for a page of timelines (shared_page.h), which the keeper also maps, by `write`. That is
 * borrowed until the page is sealed or dropped. */
int kept_put_page(struct kept *k, int fd, int write, uint32_t *ret_number);
/* Whether the keeper has mapped the page. 0; KEPT_LATER: it has not answered yet; -ENOTCONN: it is
 * not there; its -errno. */
int kept_mapped(struct kept *k, uint32_t number);
/* The page is about to be sealed, and `write` closed. */
void kept_sealed(struct kept *k, uint32_t number);
/* told: called with the lock, on any thread, when kept_mapped() may have another answer. NULL: not
 * any more. */
void kept_listen(struct kept *k, void (*told)(void *userdata), void *userdata);
/* Has the keeper kill the page that is under that number. */
void kept_kill_page(struct kept *k, uint32_t number);
/* Keeps fd under that number, in place of the fd that it has, in one step. Errors as kept_put(). */
int kept_set(struct kept *k, uint32_t number, int fd);
/* Returns the fd, which the caller has to close; -1: there was none. The number is free as soon as
 * the keeper has been told. */
int kept_drop(struct kept *k, uint32_t number);
/* Waits until the keeper has all. 0; -ETIMEDOUT, at once if the last call timed out and the keeper
 * has taken nothing since; -ENOTCONN: the keeper is not there. */
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
