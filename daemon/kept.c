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

#define ANSWER_S      5 /* that a keeper has for each packet of its answer */
#define BUSY_TRIES    50
#define BUSY_PAUSE_NS (100 * NSEC_PER_MSEC)
#define RETRY_MS      500                /* to connect */
#define SEND_RETRY_MS 20                 /* after too much was in flight */
#define LAST_WORDS_NS (2 * NSEC_PER_SEC) /* to say what is due, at the end */
#define FIRST_TO_GIVE 1                  /* of the numbers */

/* ---- what the keeper does not know yet; all with the lock ---- */

static void
make_due(struct kept *k, uint32_t number)
{
    struct kept_slot *slot = &k->slots[number];

    if (slot->is_due)
        return;
    slot->is_due = true;
    slot->next_due = KEPT_NONE;
    if (k->first_due == KEPT_NONE)
        k->first_due = number;
    else
        k->slots[k->last_due].next_due = number;
    k->last_due = number;
    k->n_due += slot->fd > 0;
}

/* The first of them, as many as are to be said by one packet. */
static void
fill_packet(struct kept *k, struct keep_packet *p, int fds[KEEP_NUMBERS_MAX])
{
    bool puts = k->slots[k->first_due].fd > 0;

    *p = (struct keep_packet){.version = KEEP_VERSION, .type = puts ? KEEP_PUT : KEEP_DROP};
    for (uint32_t i = k->first_due; i != KEPT_NONE && p->n < KEEP_NUMBERS_MAX;
         i = k->slots[i].next_due) {
        if ((k->slots[i].fd > 0) != puts)
            break;
        fds[p->n] = k->slots[i].fd;
        p->numbers[p->n++] = i;
    }
}

static void
free_number(struct kept *k, uint32_t number)
{
    k->slots[number].next_free = k->first_free;
    k->first_free = number;
}

/* A number is given again when the keeper has dropped what was under it. */
static void
settle_first(struct kept *k, uint32_t n)
{
    for (; n > 0; n--) {
        struct kept_slot *slot = &k->slots[k->first_due];

        uint32_t number = k->first_due;

        k->first_due = slot->next_due;
        slot->is_due = false;
        k->n_due -= slot->fd > 0;
        if (slot->fd == 0 && number >= FIRST_TO_GIVE)
            free_number(k, number);
    }
}

static void
set_lost(struct kept *k)
{
    if (k->is_connected)
        log_warning("the keeper has gone: without one, nothing outlives this daemon");
    k->is_connected = false;
    pthread_cond_broadcast(&k->changed);
}

/* One packet of what is due. 0; what keep_is_passing() tells of; -ENOTCONN. */
static int
send_some(struct kept *k)
{
    int fds[KEEP_NUMBERS_MAX], r;
    struct keep_packet p;

    if (!k->is_connected)
        return -ENOTCONN;
    fill_packet(k, &p, fds);
    r = keep_send(k->sock, &p, p.type == KEEP_PUT ? fds : NULL);
    if (r == 0)
        settle_first(k, p.n);
    else if (!keep_is_passing(r))
        set_lost(k);
    if (k->first_due == KEPT_NONE)
        pthread_cond_broadcast(&k->changed);
    return r == 0 || keep_is_passing(r) ? r : -ENOTCONN;
}

static void
wake(struct kept *k)
{
    uint64_t one = 1;
    ssize_t n UNUSED = write(k->wake, &one, sizeof(one));
}

/* At once, where nothing waits before it: one packet. */
static int
tell(struct kept *k, uint32_t number)
{
    bool is_first = k->first_due == KEPT_NONE;

    make_due(k, number);
    if (is_first && send_some(k) == 0)
        return 0;
    if (k->is_connected)
        wake(k);
    return KEPT_LATER;
}

/* ---- numbers ---- */

static uint32_t
take_number(struct kept *k)
{
    uint32_t number = k->first_free;

    if (number != KEPT_NONE)
        k->first_free = k->slots[number].next_free;
    else if (k->end < k->limit)
        number = k->end++;
    return number;
}

/* ---- connecting ---- */

/* At the start it is found. Later it is the keeper's alone, which is told what is under that
 * number by now. */
static void
accept_found(struct kept *k, uint32_t number, int fd)
{
    struct kept_slot *slot = &k->slots[number];

    while (k->end <= number && k->is_taken)
        free_number(k, k->end++);
    if (k->end <= number)
        k->end = number + 1;
    if (k->is_taken) {
        fd_close(fd);
        make_due(k, number);
        return;
    }
    if (slot->is_found)
        fd_close(slot->fd);
    k->n_fds += !slot->is_found;
    slot->fd = fd;
    slot->is_found = true;
}

static int
accept_all_found(struct kept *k, const struct keep_packet *p, const int *fds)
{
    if (k->is_taken && !k->was_connected && p->n > 0) {
        keep_close(fds, p->n);
        return -EEXIST;
    }
    for (uint32_t i = 0; i < p->n; i++)
        if (p->numbers[i] >= fds_max()) {
            keep_close(fds, p->n);
            return -ENFILE;
        }
    pthread_mutex_lock(&k->lock);
    for (uint32_t i = 0; i < p->n; i++)
        accept_found(k, p->numbers[i], fds[i]);
    pthread_mutex_unlock(&k->lock);
    return 0;
}

/* The last packet of its answer. */
static int
check_end(struct kept *k, const struct keep_packet *p)
{
    if (p->type == KEEP_BUSY)
        return -EBUSY;
    if (p->type != KEEP_END || p->n != 1)
        return -EPROTO;
    pthread_mutex_lock(&k->lock);
    bool has_room = p->numbers[0] >= k->end;
    k->version = p->version;
    if (has_room)
        k->limit = (uint32_t)min_u64(p->numbers[0], fds_max());
    pthread_mutex_unlock(&k->lock);
    return has_room ? 0 : -ENFILE;
}

/* -EBUSY: it has another daemon; -ENFILE: it has, or has room for, other numbers than we; -EAGAIN:
 * no answer in time; -EPROTO, -ENOTCONN, ... */
static int
take_all(struct kept *k, int sock)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    int fds[KEEP_NUMBERS_MAX], r = keep_say(sock, KEEP_TAKE);
    struct keep_packet p;

    if (r == 0 && setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
        r = -errno;
    if (r == -EPIPE) /* it may have said why */
        r = 0;
    while (r == 0) {
        r = keep_recv(sock, &p, fds, 0);
        if (r == -ECONNRESET) /* it went without having read that: what it said comes next */
            r = keep_recv(sock, &p, fds, 0);
        if (r <= 0)
            return r == 0 ? -ENOTCONN : r;
        if (p.type != KEEP_PUT)
            return check_end(k, &p);
        r = accept_all_found(k, &p, fds);
    }
    return r;
}

/* What we have is all to be given, but at the start: then it is what the keeper has. */
static void
use_socket(struct kept *k, int sock_consume)
{
    pthread_mutex_lock(&k->lock);
    fd_close(k->sock);
    k->sock = sock_consume;
    k->is_connected = k->was_connected = true;
    for (uint32_t i = 0; i < k->end; i++)
        if (k->slots[i].fd > 0 && k->is_taken)
            make_due(k, i);
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static int
connect_once(struct kept *k)
{
    _cleanup_fd_ int sock = -1;
    int r = packet_connect_within(k->path, ANSWER_S * NSEC_PER_SEC, &sock);

    if (r == 0)
        r = take_all(k, sock);
    if (r == 0)
        use_socket(k, TAKE_FD(sock));
    return r;
}

/* The daemon before may still be on its way out. */
static int
connect_first(struct kept *k)
{
    int r = connect_once(k);

    for (int i = 0; r == -EBUSY && i < BUSY_TRIES; i++) {
        clock_pause_ns(BUSY_PAUSE_NS);
        r = connect_once(k);
    }
    return r;
}

/* ---- the thread ---- */

/* Until something is told, or the socket has such an event (0: the keeper's end). */
static void
await(struct kept *k, bool is_connected, short events, int timeout_ms)
{
    struct pollfd polls[] = {
        {.fd = is_connected ? k->sock : -1, .events = events},
        {.fd = k->wake, .events = POLLIN},
    };
    uint64_t count;
    ssize_t n UNUSED;

    poll(polls, ARRAY_SIZE(polls), timeout_ms);
    n = read(k->wake, &count, sizeof(count));
    if (polls[0].revents & (POLLHUP | POLLERR)) {
        pthread_mutex_lock(&k->lock);
        set_lost(k);
        pthread_mutex_unlock(&k->lock);
    }
}

static void
reconnect(struct kept *k)
{
    int r = k->path ? connect_once(k) : -ENOTCONN;

    if (r == 0)
        log_notice("%s: the keeper is there, and is given all", k->path);
    else if (r == -EEXIST && !k->is_told)
        log_error("%s: it has what a former daemon has left, which is for the next one: start "
                  "this one again",
                  k->path);
    k->is_told = k->is_told || r == -EEXIST;
    if (r < 0)
        await(k, false, 0, k->path ? RETRY_MS : -1);
}

/* false: the thread ends. */
static bool
work(struct kept *k)
{
    bool ends, is_connected;
    int r = 1; /* nothing is due */

    pthread_mutex_lock(&k->lock);
    ends = k->ends;
    if (!ends && k->is_connected && k->first_due != KEPT_NONE)
        r = send_some(k);
    is_connected = k->is_connected;
    pthread_mutex_unlock(&k->lock);
    if (ends)
        return false;
    if (!is_connected)
        reconnect(k);
    else if (r == 1 || r == -EAGAIN)
        await(k, true, r == 1 ? 0 : POLLOUT, -1);
    else if (r < 0)
        await(k, true, 0, SEND_RETRY_MS);
    return true;
}

static void *
run(void *userdata)
{
    while (work(userdata))
        ;
    return NULL;
}

/* ---- life ---- */

static int
init_slots(struct kept *k)
{
    pthread_condattr_t attr;

    k->limit = fds_max();
    k->slots = calloc(k->limit, sizeof(*k->slots)); /* what is not used takes no memory */
    k->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!k->slots || k->wake < 0)
        return k->slots ? -errno : -ENOMEM;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, &attr);
    pthread_condattr_destroy(&attr);
    return 0;
}

/* Of what was found, and from there on. */
static void
free_numbers(struct kept *k)
{
    for (uint32_t i = FIRST_TO_GIVE; i < k->end; i++)
        if (k->slots[i].fd == 0)
            free_number(k, i);
    k->is_taken = true;
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
        .first_due = KEPT_NONE,
        .first_free = KEPT_NONE,
    };
    if (!path && sock < 0)
        return 0;
    r = init_slots(k);
    if (r < 0) {
        log_error("%s: %s", what, strerror(-r));
        kept_deinit(k);
        return r;
    }
    r = path ? connect_first(k) : take_all(k, sock);
    if (r == 0 && !path)
        use_socket(k, TAKE_FD(sock));
    free_numbers(k);
    if (r == 0)
        return 0;
    if (r == -ENOENT || r == -ECONNREFUSED) {
        log_warning(
            "%s: no keeper is there: nothing outlives this daemon as long as that is so", what);
        return 0;
    }
    log_error("%s: %s: what it has would be lost", what,
              r == -EBUSY ? "it keeps for another daemon" : strerror(-r));
    kept_deinit(k);
    return r;
}

int
kept_start(struct kept *k)
{
    int r;

    if (!k->slots)
        return 0;
    r = thread_spawn(&k->thread, run, k);
    k->is_started = r == 0;
    if (r < 0)
        log_error("cannot start a thread: %s", strerror(-r));
    return r;
}

/* With the lock. One that has gone is expected back. */
static bool
is_all_said(const struct kept *k)
{
    return k->is_connected ? k->first_due == KEPT_NONE : !k->path || !k->was_connected;
}

static bool
nothing_is_due(const struct kept *k)
{
    return !k->is_connected || k->first_due == KEPT_NONE;
}

/* With the lock. 0; -ETIMEDOUT. */
static int
await_change(struct kept *k, uint64_t timeout_ns, bool (*is_over)(const struct kept *))
{
    uint64_t end_ns = clock_now_ns() + timeout_ns;
    struct timespec end = {(time_t)(end_ns / NSEC_PER_SEC), (long)(end_ns % NSEC_PER_SEC)};
    int r = 0;

    while (r == 0 && !is_over(k))
        r = -pthread_cond_timedwait(&k->changed, &k->lock, &end);
    return r;
}

void
kept_stop(struct kept *k)
{
    int r;

    if (!k->is_started || k->ends)
        return;
    pthread_mutex_lock(&k->lock);
    if (k->is_connected && poll(&(struct pollfd){.fd = k->sock}, 1, 0) > 0)
        set_lost(k); /* which the thread has not seen yet */
    r = await_change(k, LAST_WORDS_NS, is_all_said);
    k->ends = true;
    pthread_mutex_unlock(&k->lock);
    wake(k);
    if (r < 0)
        log_warning("the keeper does not take all: what it lacks ends with this daemon");
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
    if (k->slots && k->wake >= 0) {
        pthread_mutex_destroy(&k->lock);
        pthread_cond_destroy(&k->changed);
    }
    free(k->slots);
    fd_close(k->wake);
    fd_close(k->sock);
    *k = (struct kept){.sock = -1, .wake = -1};
}

/* ---- by any thread ---- */

int
kept_claim(struct kept *k, uint32_t number)
{
    int fd = -1;

    if (!k->slots || number >= k->end)
        return -1;
    pthread_mutex_lock(&k->lock);
    if (k->slots[number].is_found) {
        k->slots[number].is_found = false;
        fd = k->slots[number].fd;
    }
    pthread_mutex_unlock(&k->lock);
    return fd;
}

uint32_t
kept_forget(struct kept *k)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < k->end; i++) {
        int fd = kept_claim(k, i);

        if (fd < 0)
            continue;
        kept_drop(k, i);
        fd_close(fd);
        n++;
    }
    return n;
}

/* With the lock. fd: 0 for none. */
static int
change(struct kept *k, uint32_t number, int fd)
{
    struct kept_slot *slot = &k->slots[number];

    if (slot->is_due)
        k->n_due += (fd > 0) - (slot->fd > 0);
    k->n_fds += (fd > 0) - (slot->fd > 0);
    slot->fd = fd;
    return tell(k, number);
}

int
kept_set(struct kept *k, uint32_t number, int fd)
{
    int r;

    if (!k->slots)
        return -ENOTCONN;
    pthread_mutex_lock(&k->lock);
    r = change(k, number, fd);
    pthread_mutex_unlock(&k->lock);
    return r;
}

int
kept_put(struct kept *k, int fd, uint32_t *ret_number)
{
    uint32_t number;
    int r;

    if (!k->slots)
        return -ENOTCONN;
    pthread_mutex_lock(&k->lock);
    number = take_number(k);
    r = number == KEPT_NONE ? -ENFILE : change(k, number, fd);
    pthread_mutex_unlock(&k->lock);
    if (r >= 0)
        *ret_number = number;
    return r;
}

/* Of one page, where nothing waits before it. */
static void
say_of_page(struct kept *k, enum keep_type type, uint32_t number, int fd)
{
    const struct keep_packet p = {KEEP_VERSION, (uint16_t)type, .n = 1, .numbers = {number}};

    pthread_mutex_lock(&k->lock);
    if (k->is_connected && k->version >= KEEP_MAPS_PAGES && k->first_due == KEPT_NONE)
        keep_send(k->sock, &p, fd >= 0 ? &fd : NULL);
    pthread_mutex_unlock(&k->lock);
}

int
kept_put_page(struct kept *k, int fd, int write, uint32_t *ret_number)
{
    int r = kept_put(k, fd, ret_number);

    if (r == 0)
        say_of_page(k, KEEP_PUT_PAGE, *ret_number, write);
    return r;
}

void
kept_kill_page(struct kept *k, uint32_t number)
{
    if (k->slots)
        say_of_page(k, KEEP_KILL, number, -1);
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
        change(k, number, 0);
    }
    pthread_mutex_unlock(&k->lock);
    return fd;
}

int
kept_wait(struct kept *k, uint64_t timeout_ns)
{
    int r;

    if (!k->slots)
        return -ENOTCONN;
    pthread_mutex_lock(&k->lock);
    r = await_change(k, timeout_ns, nothing_is_due);
    if (r == 0 && !k->is_connected)
        r = -ENOTCONN;
    pthread_mutex_unlock(&k->lock);
    return r;
}

void
kept_figures(struct kept *k, struct kept_figures *ret)
{
    *ret = (struct kept_figures){0};
    if (!k->slots)
        return;
    pthread_mutex_lock(&k->lock);
    *ret = (struct kept_figures){
        .is_connected = k->is_connected,
        .n_kept = k->is_connected ? k->n_fds - k->n_due : 0,
        .n_waiting = k->is_connected ? k->n_due : k->n_fds,
    };
    pthread_mutex_unlock(&k->lock);
}
