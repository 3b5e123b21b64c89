/* SPDX-License-Identifier: Apache-2.0 */
/* Offers, and both sides of asking for them. */
#include "share.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "soft.h"

#define MAGIC "caidsoft"

/* The one byte of a reply; an fd comes along with the first. */
enum answer {
    ANSWER_GIVEN = 'y',
    ANSWER_UNKNOWN = 'n',
    ANSWER_FORBIDDEN = 'f',
    ANSWER_NO_FD = 'e',
};

static int
share_compare(const struct share_offer *a, const struct share_offer *b)
{
    return memcmp(a->ticket.id, b->ticket.id, sizeof(a->ticket.id));
}

RB_GENERATE_STATIC(share_tree, share_offer, node, share_compare)

static socklen_t
share_address(uint64_t socket, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(ret->sun_path + 1, sizeof(ret->sun_path) - 1, "caid-softcuda-%016llx",
                     (unsigned long long)socket);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int
fill_random(void *at, size_t size)
{
    return getrandom(at, size, 0) == (ssize_t)size ? 0 : -errno;
}

/* What is offered by exactly this ticket, or NULL. Needs the lock. */
static struct share_offer *
share_find(const struct share_ticket *ticket)
{
    struct share_offer key = {.ticket = *ticket};
    struct share_offer *offer = RB_FIND(share_tree, &soft->share.offers, &key);
    return offer && memcmp(&offer->ticket, ticket, sizeof(*ticket)) == 0 ? offer : NULL;
}

/* The offering side. */

static ssize_t
share_answer(const struct ucred *peer, const char *request, size_t n, char *reply, int *ret_fd)
{
    struct share_ticket ticket;
    if (n != sizeof(ticket))
        return -1;
    memcpy(&ticket, request, sizeof(ticket));
    LOCKED(&soft->share.lock);
    struct share_offer *offer = share_find(&ticket);
    if (!offer)
        *reply = ANSWER_UNKNOWN;
    else if (ticket.kind == SHARE_EVENT && peer->uid != geteuid())
        *reply = ANSWER_FORBIDDEN;
    else if ((*ret_fd = fcntl(offer->fd, F_DUPFD_CLOEXEC, 0)) < 0)
        *reply = ANSWER_NO_FD;
    else
        *reply = ANSWER_GIVEN;
    return 1;
}

/* Needs the lock. */
static int
share_start(void)
{
    struct sockaddr_un address;
    uint64_t socket;
    if (soft->share.socket)
        return 0;
    int r = fill_random(&socket, sizeof(socket));
    if (r < 0)
        return r;
    socket |= 1; /* not 0 */
    r = serve_start(&soft->share.server, &address, share_address(socket, &address),
                    share_answer);
    if (r == 0)
        soft->share.socket = socket;
    return r;
}

int
share_offer_new(const struct share_ticket *of, int fd, struct share_offer **ret)
{
    _cleanup_free_ struct share_offer *offer = malloc(sizeof(*offer));
    if (!offer)
        return -ENOMEM;
    *offer = (struct share_offer){.ticket = *of, .fd = fd};
    struct share_ticket *ticket = &offer->ticket;
    memcpy(ticket->magic, MAGIC, sizeof(ticket->magic));
    ticket->zero = 0;
    int r = fill_random(ticket->id, sizeof(ticket->id));
    if (r < 0)
        return r;
    LOCKED(&soft->share.lock);
    r = share_start();
    if (r < 0)
        return r;
    ticket->socket = soft->share.socket;
    RB_INSERT(share_tree, &soft->share.offers, offer);
    *ret = TAKE_PTR(offer);
    return 0;
}

struct share_offer *
share_offer_free(struct share_offer *offer)
{
    if (!offer)
        return NULL;
    LOCKED(&soft->share.lock);
    RB_REMOVE(share_tree, &soft->share.offers, offer);
    free(offer);
    return NULL;
}

/* The asking side. */

bool
share_ticket_is(const struct share_ticket *ticket, enum share_kind kind)
{
    return memcmp(ticket->magic, MAGIC, sizeof(ticket->magic)) == 0 &&
           ticket->kind == (uint32_t)kind && ticket->zero == 0 && ticket->socket != 0;
}

static bool
share_is_ours(const struct share_ticket *ticket, int *ret)
{
    LOCKED(&soft->share.lock);
    if (ticket->socket != soft->share.socket)
        return false;
    *ret = share_find(ticket) ? SHARE_OWN : -ENOENT;
    return true;
}

static int
share_judge(char answer, int fd)
{
    switch (answer) {
    case ANSWER_GIVEN: return fd >= 0 ? 0 : -ENOENT;
    case ANSWER_FORBIDDEN: return -EACCES;
    case ANSWER_NO_FD: return -EAGAIN;
    default: return -ENOENT;
    }
}

int
share_take(const struct share_ticket *ticket, enum share_kind kind, int *ret_fd)
{
    struct sockaddr_un address;
    _cleanup_fd_ int fd = -1;
    char answer;
    int r;
    if (!share_ticket_is(ticket, kind))
        return -EINVAL;
    if (share_is_ours(ticket, &r))
        return r;
    socklen_t size = share_address(ticket->socket, &address);
    ssize_t n = serve_ask(&address, size, ticket, sizeof(*ticket), &answer, 1, &fd);
    if (n == -ECONNREFUSED || n == -ECONNRESET || n == -EPIPE)
        return -ESRCH; /* nobody there, or killed meanwhile */
    if (n < 0)
        return n == -EMSGSIZE ? -EMFILE : (int)n; /* cut off: the fd had no room here */
    r = share_judge(answer, fd);
    if (r == 0)
        *ret_fd = TAKE_FD(fd);
    return r;
}

/* The descriptors are for their owners to close. */
void
share_in_child(void)
{
    serve_forget(&soft->share.server);
    soft->share.socket = 0;
    RB_INIT(&soft->share.offers);
}
