/* SPDX-License-Identifier: Apache-2.0 */
#include "kept.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/thread.h"
#include "fds.h"
#include "keep_wire.h"

#define ANSWER_S      5                  /* for each packet of a keeper's answer */
#define RETRY_MS      500                /* between attempts to connect */
#define SEND_RETRY_MS 20                 /* after too many fds were in flight */
#define LOOK_NS       NSEC_PER_MSEC      /* between two looks of a waiting thread */
#define LAST_WORDS_NS (2 * NSEC_PER_SEC) /* to send what is due, at the end */
#define FIRST_TO_GIVE 1                  /* the first number of kept_put() */

enum { /* what is still to be sent about a number, in the order of sending */
    DUE_KILL = 1,
    DUE_FD = 2,
    DUE_MAP = 4
};

/* ---- what is still to be sent; all with the lock ---- */

static void
set_slot(struct kept *k, uint32_t number, int fd, uint8_t due)
{
    struct kept_slot *slot = &k->slots[number];

    if (due && (k->n_due == 0 || number < k->first_due))
        k->first_due = number;
    if (fd == 0 && !due && number >= FIRST_TO_GIVE && number < k->first_free)
        k->first_free = number;
    k->n_kept += (fd > 0 && !due) - (slot->fd > 0 && !slot->due);
    k->n_due += (due != 0) - (slot->due != 0);
    slot->fd = fd;
    slot->due = due;
}

/* A number is free again when the keeper has been sent that it is dropped. */
static uint32_t
take_number(struct kept *k)
{
    uint32_t i = k->first_free;

    while (i < k->end && (k->slots[i].fd > 0 || k->slots[i].due))
        i++;
    k->first_free = i;
    if (i == k->limit)
        return KEPT_NONE;
    if (i == k->end)
        k->end++;
    return i;
}

static enum keep_type
next_word(const struct kept_slot *slot)
{
    if (slot->due & DUE_KILL)
        return KEEP_KILL;
    if (slot->due & DUE_FD)
        return slot->fd > 0 ? KEEP_PUT : KEEP_DROP;
    return KEEP_MAP;
}

/* Fills a packet with the first numbers that are due, as many as one packet of one type can have.
 * */
static void
fill_packet(const struct kept *k, struct keep_packet *p, int fds[KEEP_NUMBERS_MAX])
{
    uint32_t max = (uint32_t)min_u64(k->n_due, KEEP_NUMBERS_MAX);

    *p = (struct keep_packet){.version = k->version};
    for (uint32_t i = k->first_due; p->n < max; i++) {
        if (!k->slots[i].due)
            continue;
        if (p->n == 0)
            p->type = (uint16_t)next_word(&k->slots[i]);
        else if (p->type != next_word(&k->slots[i]))
            break;
        fds[p->n] = p->type == KEEP_MAP ? k->slots[i].write : k->slots[i].fd;
        p->numbers[p->n++] = i;
        if (p->type == KEEP_MAP)
            break;
    }
}

static void
kept_settle(struct kept *k, const struct keep_packet *p)
{
    uint8_t said = p->type == KEEP_KILL ? DUE_KILL : p->type == KEEP_MAP ? DUE_MAP : DUE_FD;

    for (uint32_t i = 0; i < p->n; i++) {
        struct kept_slot *slot = &k->slots[p->numbers[i]];

        if (said == DUE_MAP)
            slot->map = ++k->n_maps;
        set_slot(k, p->numbers[i], slot->fd, slot->due & ~said);
    }
    k->first_due = p->numbers[0];
    k->is_stuck = false;
}

static void
tell(const struct kept *k)
{
    if (k->told)
        k->told(k->userdata);
}

static void
set_lost(struct kept *k)
{
    if (!kept_is_there(k))
        return;
    log_warning("the keeper has gone: without one, nothing outlives this daemon");
    k->state = KEPT_AWAY;
    tell(k);
}

/* Sends one packet of what is due. 0: sent; 1: nothing is due; an error that keep_is_passing()
 * accepts; -ENOTCONN. */
static int
send_some(struct kept *k)
{
    int fds[KEEP_NUMBERS_MAX], r;
    struct keep_packet p;

    if (!kept_is_there(k))
        return -ENOTCONN;
    if (k->n_due == 0)
        return 1;
    fill_packet(k, &p, fds);
    r = keep_send(k->sock, &p, keep_has_fds(p.type) ? fds : NULL);
    if (r == 0)
        kept_settle(k, &p);
    if (r == 0 || keep_is_passing(r))
        return r;
    set_lost(k);
    return -ENOTCONN;
}

static void
wake(struct kept *k)
{
    uint64_t one = 1;
    ssize_t n UNUSED = write(k->wake, &one, sizeof(one));
}

/* Makes it due, and sends it at once if nothing else is due. 0: sent; else KEPT_LATER. */
static int
kept_post(struct kept *k, uint32_t number, int fd, uint8_t due)
{
    bool is_first = k->n_due == 0;

    set_slot(k, number, fd, k->slots[number].due | due);
    if (is_first && send_some(k) == 0)
        return 0;
    if (kept_is_there(k))
        wake(k);
    return KEPT_LATER;
}

/* ---- connecting ---- */

/* An fd that the keeper has. At the start it is a found one. Later it is closed, and the keeper is
 * sent what the number has by now: where that is nothing, it has not read that it was to kill what
 * may be a page, and to drop it. */
static int
accept_one(struct kept *k, uint32_t number, int fd_consume)
{
    _cleanup_fd_ int fd = fd_consume;
    struct kept_slot *slot;

    if (number >= fds_max())
        return -ENFILE;
    slot = &k->slots[number];
    if (number >= k->end)
        k->end = number + 1;
    if (k->state != KEPT_STARTS) {
        set_slot(k, number, slot->fd, slot->due | (slot->fd > 0 ? DUE_FD : DUE_KILL | DUE_FD));
    } else if (!slot->is_found) {
        set_slot(k, number, TAKE_FD(fd), 0);
        slot->is_found = true;
    }
    return 0;
}

static int
accept_all(struct kept *k, const struct keep_packet *p, const int *fds)
{
    int r = k->state == KEPT_NEVER && p->n > 0 ? -EEXIST : 0;

    pthread_mutex_lock(&k->lock);
    for (uint32_t i = 0; i < p->n; i++)
        if (r == 0)
            r = accept_one(k, p->numbers[i], fds[i]);
        else
            fd_close(fds[i]);
    pthread_mutex_unlock(&k->lock);
    return r;
}

/* Checks the last packet of the keeper's answer. */
static int
check_end(struct kept *k, const struct keep_packet *p)
{
    bool has_room;

    if (p->type != KEEP_END || p->n != 1)
        return -EPROTO;
    pthread_mutex_lock(&k->lock);
    has_room = p->numbers[0] >= k->end;
    k->version = (uint16_t)min_u64(p->version, KEEP_VERSION);
    if (has_room)
        k->limit = (uint32_t)min_u64(p->numbers[0], fds_max());
    pthread_mutex_unlock(&k->lock);
    return has_room ? 0 : -ENFILE;
}

/* -EAGAIN: no answer in time; -EEXIST: the keeper has an earlier daemon's fds, and this daemon has
 * begun without them; -ENFILE: a number is above our limit or the keeper's; -EPROTO, -ENOTCONN,
 * ... */
static int
take_all(struct kept *k, int sock)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    struct keep_packet p = {.version = KEEP_VERSION, .type = KEEP_TAKE};
    int fds[KEEP_NUMBERS_MAX], r = keep_send(sock, &p, NULL);

    if (r == 0 && setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
        r = -errno;
    while (r == 0) {
        r = keep_recv(sock, &p, fds, 0);
        if (r <= 0)
            return r == 0 ? -ENOTCONN : r;
        if (p.type != KEEP_PUT)
            return check_end(k, &p);
        r = accept_all(k, &p, fds);
    }
    return r;
}

/* All that is kept becomes due; but not at the start, when it has come from the keeper. */
static int
use_socket(struct kept *k, int sock_consume)
{
    _cleanup_fd_ int sock = sock_consume;
    int r = take_all(k, sock);

    if (r < 0)
        return r;
    pthread_mutex_lock(&k->lock);
    fd_close(k->sock);
    k->sock = TAKE_FD(sock);
    k->n_maps = k->n_mapped = 0;
    for (uint32_t i = 0; i < k->end && k->state != KEPT_STARTS; i++) {
        struct kept_slot *slot = &k->slots[i];
        slot->map = 0;
        if (slot->fd > 0)
            set_slot(k, i, slot->fd, slot->due | (slot->write > 0 ? DUE_FD | DUE_MAP : DUE_FD));
    }
    if (k->state != KEPT_ENDS)
        k->state = KEPT_THERE;
    pthread_mutex_unlock(&k->lock);
    return 0;
}

static int
try_connecting(struct kept *k)
{
    int sock, r = packet_connect_within(k->path, ANSWER_S * NSEC_PER_SEC, &sock);

    return r == 0 ? use_socket(k, sock) : r;
}

static bool
is_absent(int error)
{
    return error == -ENOENT || error == -ECONNREFUSED;
}

/* The reason for an error that lasts; NULL for one that may pass by itself. */
static const char *
describe(int error)
{
    switch (error) {
    case -EAGAIN: return "it does not answer, or keeps for another daemon";
    case -EEXIST:
        return "it has what a former daemon has left, which is for the next one: start this one "
               "again";
    case -ENFILE: return "it does not take as many files as this daemon has";
    default: return NULL;
    }
}

/* ---- the thread ---- */

/* The keeper's answers to MAPs. They come in the order of the MAPs. A number may be another page's
 * by now. */
static void
hear(struct kept *k, int sock)
{
    int fds[KEEP_NUMBERS_MAX];
    struct keep_packet p;

    while (keep_recv(sock, &p, fds, MSG_DONTWAIT) > 0) {
        keep_close(fds, keep_has_fds(p.type) ? p.n : 0);
        if (p.type != KEEP_MAPPED || p.n != 2)
            continue;
        pthread_mutex_lock(&k->lock);
        k->n_mapped++;
        if (p.numbers[0] < k->end && k->slots[p.numbers[0]].map == k->n_mapped)
            k->slots[p.numbers[0]].error = (int)p.numbers[1];
        tell(k);
        pthread_mutex_unlock(&k->lock);
    }
}

/* Waits for wake(), for the timeout, or for such an event of the socket, its hang-up and answers
 * included. */
static void
await(struct kept *k, int sock, short events, int timeout_ms)
{
    struct pollfd polls[] = {
        {.fd = sock, .events = (short)(events | POLLIN)},
        {.fd = k->wake, .events = POLLIN},
    };
    uint64_t count;
    ssize_t n UNUSED;

    poll(polls, ARRAY_SIZE(polls), timeout_ms);
    n = read(k->wake, &count, sizeof(count));
    if (polls[0].revents & POLLIN)
        hear(k, sock);
    if (polls[0].revents & (POLLHUP | POLLERR)) {
        pthread_mutex_lock(&k->lock);
        set_lost(k);
        pthread_mutex_unlock(&k->lock);
    }
}

static void
reconnect(struct kept *k)
{
    int r = k->path ? try_connecting(k) : -ENOENT;
    const char *why = describe(r);

    if (r == 0) {
        log_notice("%s: the keeper is there, and is given all", k->path);
        k->logged = 0;
        return;
    }
    if (why && r != k->logged) {
        log_error("%s: %s", k->path, why);
        k->logged = r;
    }
    await(k, -1, 0, k->path ? RETRY_MS : -1);
}

/* false: the thread ends. */
static bool
work(struct kept *k)
{
    int r;

    pthread_mutex_lock(&k->lock);
    r = send_some(k);
    pthread_mutex_unlock(&k->lock);
    if (k->state == KEPT_ENDS)
        return false;
    if (r == -ENOTCONN)
        reconnect(k);
    else if (r == 1 || r == -EAGAIN)
        await(k, k->sock, r == 1 ? 0 : POLLOUT, -1);
    else if (r < 0)
        await(k, k->sock, 0, SEND_RETRY_MS);
    return true;
}

static void *
kept_run(void *userdata)
{
    while (work(userdata))
        ;
    return NULL;
}

/* ---- life ---- */

static int
init_slots(struct kept *k)
{
    k->limit = fds_max();
    k->slots = calloc(k->limit, sizeof(*k->slots)); /* unused parts take no memory */
    k->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&k->lock, NULL);
    if (!k->slots)
        return -ENOMEM;
    return k->wake < 0 ? -errno : 0;
}

int
kept_init(struct kept *k, const char *path, int sock_consume)
{
    _cleanup_fd_ int sock = sock_consume;
    const char *what = path ? path : "the keeper";
    int r;

    *k = (struct kept){
        .path = path,
        .sock = -1,
        .wake = -1,
        .end = FIRST_TO_GIVE,
        .first_free = FIRST_TO_GIVE,
    };
    if (!path && sock < 0)
        return 0;
    r = init_slots(k);
    if (r == 0)
        r = path ? try_connecting(k) : use_socket(k, TAKE_FD(sock));
    if (r == 0)
        return 0;
    if (is_absent(r)) {
        k->state = KEPT_NEVER;
        log_warning(
            "%s: no keeper is there: nothing outlives this daemon as long as that is so", what);
        return 0;
    }
    log_error("%s: %s: what it has would be lost", what,
              describe(r) ? describe(r) : strerror(-r));
    kept_deinit(k);
    return r;
}

int
kept_start(struct kept *k)
{
    int r;

    if (!k->slots)
        return 0;
    r = thread_spawn(&k->thread, kept_run, k);
    k->is_started = r == 0;
    if (r < 0)
        log_error("cannot start a thread: %s", strerror(-r));
    return r;
}

/* Waits until the keeper has been sent all that is due. expected: waits also for a keeper that has
 * gone, and is to come back. */
static int
await_all_said(const struct kept *k, uint64_t timeout_ns, bool expected)
{
    uint64_t end_ns = clock_now_ns() + timeout_ns;

    while (kept_is_there(k) ? k->n_due > 0 : k->state == KEPT_AWAY && k->path && expected) {
        if (clock_now_ns() >= end_ns)
            return -ETIMEDOUT;
        clock_pause_ns(LOOK_NS);
    }
    return 0;
}

void
kept_stop(struct kept *k)
{
    if (!k->is_started || k->state == KEPT_ENDS)
        return;
    pthread_mutex_lock(&k->lock);
    if (poll(&(struct pollfd){.fd = k->sock}, 1, 0) > 0)
        set_lost(k); /* the thread may not have seen it yet */
    pthread_mutex_unlock(&k->lock);
    if (await_all_said(k, LAST_WORDS_NS, true) < 0)
        log_warning("the keeper does not take all: what it lacks ends with this daemon");
    pthread_mutex_lock(&k->lock);
    k->state = KEPT_ENDS;
    pthread_mutex_unlock(&k->lock);
    wake(k);
}

void
kept_deinit(struct kept *k)
{
    kept_stop(k);
    if (k->is_started)
        pthread_join(k->thread, NULL);
    for (uint32_t i = 0; k->slots && i < k->end; i++)
        if (k->slots[i].is_found)
            fd_close(k->slots[i].fd);
    if (k->slots)
        pthread_mutex_destroy(&k->lock);
    free(k->slots);
    fd_close(k->wake);
    fd_close(k->sock);
    *k = (struct kept){.sock = -1, .wake = -1};
}

/* ---- by any thread ---- */

int
kept_found(struct kept *k, uint32_t number)
{
    int fd = -1;

    if (!k->slots)
        return -1;
    pthread_mutex_lock(&k->lock);
    if (number < k->end && k->slots[number].is_found)
        fd = k->slots[number].fd;
    pthread_mutex_unlock(&k->lock);
    return fd;
}

int
kept_claim(struct kept *k, uint32_t number)
{
    int fd = kept_found(k, number);

    if (fd >= 0)
        k->slots[number].is_found = false;
    return fd;
}

int
kept_claim_page(struct kept *k, uint32_t number, int write)
{
    int fd = kept_claim(k, number);

    if (fd < 0)
        return -1;
    pthread_mutex_lock(&k->lock);
    k->slots[number].write = write;
    kept_post(k, number, fd, DUE_MAP);
    pthread_mutex_unlock(&k->lock);
    return fd;
}

uint32_t
kept_forget(struct kept *k)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < k->end; i++)
        if (kept_claim(k, i) >= 0) {
            kept_kill_page(k, i); /* it may be a page; the keeper knows */
            fd_close(kept_drop(k, i));
            n++;
        }
    return n;
}

int
kept_set(struct kept *k, uint32_t number, int fd)
{
    int r;

    if (!k->slots)
        return -ENOTCONN;
    pthread_mutex_lock(&k->lock);
    r = kept_post(k, number, fd, DUE_FD);
    pthread_mutex_unlock(&k->lock);
    return r;
}

/* write: 0, or of a page. */
static int
put(struct kept *k, int fd, int write, uint32_t *ret_number)
{
    uint32_t number = take_number(k);
    int r;

    if (number == KEPT_NONE)
        return -ENFILE;
    k->slots[number].write = write;
    k->slots[number].map = 0;
    k->slots[number].error = 0;
    r = kept_post(k, number, fd, DUE_FD);
    if (write > 0)
        r = kept_post(k, number, fd, DUE_MAP);
    *ret_number = number;
    return r;
}

int
kept_put_page(struct kept *k, int fd, int write, uint32_t *ret_number)
{
    int r;

    if (!k->slots)
        return -ENOTCONN;
    pthread_mutex_lock(&k->lock);
    r = put(k, fd, write, ret_number);
    pthread_mutex_unlock(&k->lock);
    return r;
}

int
kept_put(struct kept *k, int fd, uint32_t *ret_number)
{
    return kept_put_page(k, fd, 0, ret_number);
}

int
kept_mapped(struct kept *k, uint32_t number)
{
    const struct kept_slot *slot = &k->slots[number];
    int r;

    pthread_mutex_lock(&k->lock);
    if (!kept_is_there(k))
        r = -ENOTCONN;
    else if (slot->map == 0 || (k->version >= KEEP_ANSWERS && slot->map > k->n_mapped))
        r = KEPT_LATER;
    else
        r = -slot->error;
    pthread_mutex_unlock(&k->lock);
    return r;
}

/* No MAP is sent from here on. */
static void
forget_write(struct kept *k, uint32_t number)
{
    struct kept_slot *slot = &k->slots[number];

    slot->write = 0;
    set_slot(k, number, slot->fd, slot->due & ~DUE_MAP);
}

void
kept_sealed(struct kept *k, uint32_t number)
{
    pthread_mutex_lock(&k->lock);
    forget_write(k, number);
    pthread_mutex_unlock(&k->lock);
}

void
kept_listen(struct kept *k, void (*told)(void *userdata), void *userdata)
{
    if (!k->slots)
        return;
    pthread_mutex_lock(&k->lock);
    k->told = told;
    k->userdata = userdata;
    pthread_mutex_unlock(&k->lock);
}

void
kept_kill_page(struct kept *k, uint32_t number)
{
    if (!k->slots)
        return;
    pthread_mutex_lock(&k->lock);
    if (number < k->end && k->slots[number].fd > 0)
        kept_post(k, number, k->slots[number].fd, DUE_KILL);
    pthread_mutex_unlock(&k->lock);
}

int
kept_drop(struct kept *k, uint32_t number)
{
    int fd = -1;

    if (!k->slots)
        return -1;
    pthread_mutex_lock(&k->lock);
    if (k->slots[number].fd > 0) {
        fd = k->slots[number].fd;
        forget_write(k, number);
        kept_post(k, number, 0, DUE_FD);
    }
    pthread_mutex_unlock(&k->lock);
    return fd;
}

int
kept_wait(struct kept *k, uint64_t timeout_ns)
{
    int r = k->slots ? await_all_said(k, k->is_stuck ? 0 : timeout_ns, false) : 0;

    if (r < 0 && timeout_ns > 0)
        k->is_stuck = true;
    return r == 0 && !kept_is_there(k) ? -ENOTCONN : r;
}
