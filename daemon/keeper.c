/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/macros.h"
#include "fds.h"
#include "timeline.h"

#define RESERVED (KEEP_NUMBERS_MAX + 64) /* fds of one packet, and of the process itself */
#define PAUSE_MS 20

static bool
is_same_file(int a, int b)
{
    struct stat of_a, of_b;

    return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* fd: 0 for none. A daemon that comes back puts its pages once more: one that is sealed could not
 * be mapped again. */
static void
set(struct keeper *k, uint32_t number, int fd)
{
    struct keeper_slot *slot = &k->slots[number];

    if (slot->page && !(fd > 0 && is_same_file(fd, slot->fd))) {
        munmap(slot->page, TIMELINE_PAGE_BYTES);
        slot->page = NULL;
    }
    if (slot->fd > 0)
        fd_close(slot->fd);
    k->n += (fd > 0) - (slot->fd > 0);
    slot->fd = fd;
    if (number >= k->end)
        k->end = number + 1;
}

int
keeper_init(struct keeper *ret, int listener)
{
    uint32_t max = fds_max();

    *ret = KEEPER_CLOSED;
    ret->listener = listener;
    if (max <= RESERVED) {
        log_error("a limit of %u open files leaves none to keep: more than %d are needed", max,
                  RESERVED);
        return -EMFILE;
    }
    ret->limit = max - RESERVED;
    ret->slots = calloc(ret->limit, sizeof(*ret->slots));
    if (!ret->slots) {
        log_error("cannot start: out of memory");
        return -ENOMEM;
    }
    return 0;
}

void
keeper_deinit(struct keeper *k)
{
    for (uint32_t i = 0; i < k->end; i++)
        set(k, i, 0);
    free(k->slots);
    fd_close(k->sock);
    fd_close(k->waiting);
    *k = KEEPER_CLOSED;
}

/* 0 or an errno. A page that is sealed already cannot be mapped. Its fd is kept all the same. */
static int
map_page(struct keeper *k, uint32_t number, int fd_consume)
{
    _cleanup_fd_ int fd = fd_consume;
    struct keeper_slot *slot = &k->slots[number];
    void *page;

    if (slot->fd == 0)
        return ENOENT;
    if (slot->page)
        return 0;
    page = mmap(NULL, TIMELINE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        log_warning("a page of timelines cannot be mapped: %s", strerror(errno));
        return errno;
    }
    slot->page = page;
    return 0;
}

/* Sends the answer to a MAP, if the socket has room. A daemon that has died needs none; what it has
 * sent is still read. */
static void
send_answer(struct keeper *k)
{
    int r = keep_send(k->sock, &k->answer, NULL);

    if (r == 0 || !keep_is_passing(r))
        k->answer.n = 0;
    else if (r != -EAGAIN) /* poll(2) cannot wait for the kernel's resources */
        k->pauses = true;
}

static void
map_and_answer(struct keeper *k, const struct keep_packet *p, int fd_consume)
{
    uint32_t error = (uint32_t)map_page(k, p->numbers[0], fd_consume);

    if (p->version < KEEP_ANSWERS)
        return;
    k->answer = (struct keep_packet){KEEP_VERSION, KEEP_MAPPED, 2, {p->numbers[0], error}};
    send_answer(k);
}

static void
carry_out_one(struct keeper *k, const struct keep_packet *p, uint32_t i, int fd)
{
    uint32_t number = p->numbers[i];

    if (p->type == KEEP_MAP)
        map_and_answer(k, p, fd);
    else if (p->type != KEEP_KILL)
        set(k, number, fd);
    else if (k->slots[number].page)
        timeline_kill_page(k->slots[number].page);
}

static void
hang_up(struct keeper *k, int error)
{
    k->sock = fd_close(k->sock);
    k->next = KEEPER_NOTHING;
    k->answer.n = 0;
    if (error < 0)
        log_warning("the daemon's connection is closed: %s; %u files kept", strerror(-error),
                    k->n);
    else
        log_info("the daemon has gone; %u files kept", k->n);
}

/* Carries out the whole packet or nothing of it. -EBADMSG: no daemon of this version sends it. */
static int
carry_out(struct keeper *k, const struct keep_packet *p, const int *fds)
{
    if (p->type == KEEP_TAKE) {
        k->next = 0;
        return 0;
    }
    if (!keep_has_fds(p->type) && p->type != KEEP_DROP && p->type != KEEP_KILL)
        return -EBADMSG;
    if (p->type == KEEP_MAP && p->n != 1)
        return -EBADMSG;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->numbers[i] >= k->limit)
            return -EBADMSG;
    for (uint32_t i = 0; i < p->n; i++)
        carry_out_one(k, p, i, keep_has_fds(p->type) ? fds[i] : 0);
    return 0;
}

/* One packet; false: there was none. -ECONNRESET comes once, if the daemon has ended without having
 * read all that it was sent. What it had sent comes after that. */
static bool
receive(struct keeper *k)
{
    int fds[KEEP_NUMBERS_MAX];
    struct keep_packet p;
    int r = keep_recv(k->sock, &p, fds, MSG_DONTWAIT);

    if (r == -EAGAIN)
        return false;
    if (r == -ECONNRESET)
        return true;
    if (r > 0) {
        r = carry_out(k, &p, fds);
        if (r == 0)
            return true;
        keep_close(fds, keep_has_fds(p.type) ? p.n : 0);
    }
    hang_up(k, r);
    return false;
}

/* Sends the next packet of the answer to TAKE. */
static int
give_some(struct keeper *k)
{
    struct keep_packet p = {.version = KEEP_VERSION, .type = KEEP_PUT};
    int fds[KEEP_NUMBERS_MAX];
    uint32_t i = k->next;
    int r;

    for (; i < k->end && p.n < KEEP_NUMBERS_MAX; i++)
        if (k->slots[i].fd > 0) {
            fds[p.n] = k->slots[i].fd;
            p.numbers[p.n++] = i;
        }
    if (p.n > 0) {
        r = keep_send(k->sock, &p, fds);
    } else {
        p = (struct keep_packet){KEEP_VERSION, KEEP_END, .n = 1, .numbers = {k->limit}};
        r = keep_send(k->sock, &p, NULL);
        i = KEEPER_NOTHING;
    }
    if (r == 0)
        k->next = i;
    return r;
}

static void
give(struct keeper *k)
{
    int r = give_some(k);

    if (r < 0 && !keep_is_passing(r))
        hang_up(k, r == -EPIPE || r == -ECONNRESET ? 0 : r);
    else if (r < 0 && r != -EAGAIN) /* poll(2) cannot wait for the kernel's resources */
        k->pauses = true;
}

/* The mode of the socket should keep others out already. */
static int
check_peer(int sock)
{
    struct ucred cred;
    socklen_t n = sizeof(cred);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
        return -errno;
    if (cred.uid != 0 && cred.uid != geteuid()) {
        log_warning("pid %d, uid %u is refused", (int)cred.pid, (unsigned)cred.uid);
        return -EPERM;
    }
    log_info("pid %d, uid %u connects", (int)cred.pid, (unsigned)cred.uid);
    return 0;
}

static void
accept_one(struct keeper *k)
{
    _cleanup_fd_ int sock = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);

    if (sock < 0) {
        k->pauses = errno != EAGAIN && errno != ECONNABORTED && errno != EINTR;
        return;
    }
    if (check_peer(sock) == 0)
        k->waiting = TAKE_FD(sock);
}

void
keeper_adopt(struct keeper *k, int sock_consume)
{
    while (k->sock >= 0 && receive(k)) /* packets that the last daemon has sent count */
        ;
    if (k->sock >= 0)
        hang_up(k, 0);
    k->sock = sock_consume;
}

void
keeper_turn(struct keeper *k, struct pollfd *polls, size_t n_polls, int timeout_ms)
{
    bool owes = k->answer.n > 0;
    bool gives = (owes || k->next != KEEPER_NOTHING) && !k->pauses;
    short events = (short)((owes ? 0 : POLLIN) | (gives ? POLLOUT : 0));

    if (k->sock < 0)
        k->sock = TAKE_FD(k->waiting);
    polls[0] = (struct pollfd){.fd = k->sock, .events = events};
    polls[1] = (struct pollfd){.fd = k->pauses || k->waiting >= 0 ? -1 : k->listener,
                               .events = POLLIN};
    if (k->pauses && (timeout_ms < 0 || timeout_ms > PAUSE_MS))
        timeout_ms = PAUSE_MS;
    if (poll(polls, n_polls, timeout_ms) < 0)
        return; /* EINTR: the process was stopped, and continued */
    k->pauses = false;
    if (owes && k->sock >= 0)
        send_answer(k);
    else if (k->sock >= 0 && polls[0].revents & (POLLIN | POLLHUP | POLLERR))
        receive(k);
    if (k->sock >= 0 && k->next != KEEPER_NOTHING)
        give(k);
    if (polls[1].revents)
        accept_one(k);
}
