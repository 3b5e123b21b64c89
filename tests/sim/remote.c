/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/packet.h"
#include "peer.h"
#include "sim.h"

#define BUFFER_MAX   212992 /* net.core.wmem_default */
#define PACKET_BYTES 768    /* that a packet takes of it beside its own */

struct remotes remotes;

void
remotes_init(void)
{
    remotes = (struct remotes){0};
    STAILQ_INIT(&remotes.backlog);
}

/* ---- packets ---- */

static void
put(struct packets *to, size_t *n_bytes, const struct packet *head, const void *data)
{
    struct packet *p = malloc(sizeof(*p) + head->n);

    *p = *head;
    memcpy(p->data, data, p->n);
    STAILQ_INSERT_TAIL(to, p, next);
    *n_bytes += p->n + PACKET_BYTES;
}

static struct packet *
take(struct packets *from, size_t *n_bytes)
{
    struct packet *p = STAILQ_FIRST(from);

    if (!p)
        return NULL;
    STAILQ_REMOVE_HEAD(from, next);
    *n_bytes -= p->n + PACKET_BYTES;
    return p;
}

static void
count_inflight(struct remote *remote, int n)
{
    remotes.n_inflight += (uint32_t)n;
    remote->user->n_inflight += (uint32_t)n;
    if (!remote->shut)
        return;
    remotes.n_kept += (uint32_t)n;
    remote->user->n_kept += (uint32_t)n;
}

static void
wake(const struct remote *remote)
{
    if (remote->sock >= 0)
        file_wake(remote->sock);
}

bool
remote_send(struct remote *remote, const void *data, size_t n)
{
    bool is_first = STAILQ_EMPTY(&remote->to_daemon) && remote->accepted;
    struct packet head = {.n = n, .n_heard = is_first ? remote->user->n_heard : UINT64_MAX};

    if (remote->n_to_daemon + n > BUFFER_MAX / 2)
        return false;
    put(&remote->to_daemon, &remote->n_to_daemon, &head, data);
    wake(remote);
    return true;
}

struct packet *
remote_receive(struct remote *remote)
{
    struct packet *p = take(&remote->to_client, &remote->n_to_client);

    if (!p)
        return NULL;
    count_inflight(remote, -(int)p->n_fds);
    wake(remote);
    return p;
}

/* ---- life ---- */

struct remote *
remote_new(struct user *user, enum kind kind, void (*act)(struct event *event), uint64_t in_ns)
{
    static pid_t last_pid;
    struct remote *remote = calloc(1, sizeof(*remote));

    remote->act.run = act;
    remote->user = user;
    remote->kind = kind;
    remote->pid = ++last_pid;
    remote->sock = -1;
    TAILQ_INIT(&remote->pidfds);
    STAILQ_INIT(&remote->to_daemon);
    STAILQ_INIT(&remote->to_client);
    LIST_INSERT_HEAD(&remotes.all, remote, link);
    event_in(&remote->act, in_ns);
    return remote;
}

static void
drop_unheard(struct remote *remote)
{
    struct packet *p;

    while ((p = take(&remote->to_daemon, &remote->n_to_daemon)))
        free(p);
}

static void
free_if_over(struct remote *remote)
{
    if (!remote->over || !remote->exited || !TAILQ_EMPTY(&remote->pidfds) || remote->n_kept ||
        remote->sock >= 0)
        return;
    drop_unheard(remote);
    LIST_REMOVE(remote, link);
    free(remote->versions);
    free(remote);
}

static void
on_exit_of(struct event *event)
{
    struct remote *remote = container_of(event, struct remote, exit);

    const struct file *file;

    remote->exited = true;
    TAILQ_FOREACH(file, &remote->pidfds, of_process)
        file_wake((int)(file - files.all));
    free_if_over(remote);
}

/* Who waits for room in the backlog is as good as in it: first come, first served. */
void
remote_connect(struct remote *remote)
{
    remote->connected = true;
    STAILQ_INSERT_TAIL(&remotes.backlog, remote, backlog);
    file_wake(remotes.listener);
}

void
remote_reconnect(struct remote *remote)
{
    drop_unheard(remote);
    remote->over = remote->accepted = remote->shut = false;
    remote->n_asked = 0;
    remote_connect(remote);
}

void
remote_hangup(struct remote *remote, uint64_t exit_ns)
{
    struct packet *p;

    while ((p = remote_receive(remote)))
        free(p);
    remote->over |= !remote->connected;
    remote->connected = false;
    remote->exit.run = on_exit_of;
    event_cancel(&remote->act);
    event_in(&remote->exit, exit_ns);
    wake(remote);
}

static void
end(struct remote *remote)
{
    if (!remote->over && remote->connected)
        users_wake(remote);
    remote->over = true;
}

/* What the client has not read is left to it, and its fds count. */
void
remote_close(struct remote *remote, int fd)
{
    if (fd == remote->sock) {
        remote->sock = -1;
        end(remote);
    }
    free_if_over(remote);
}

void
remote_keep(struct remote *remote, int n)
{
    remote->n_kept += (uint32_t)n;
    free_if_over(remote);
}

void
remotes_deinit(void)
{
    struct remote *remote;

    while ((remote = STAILQ_FIRST(&remotes.backlog))) {
        STAILQ_REMOVE_HEAD(&remotes.backlog, backlog);
        remote->over = true;
        free_if_over(remote);
    }
}

uint32_t
remote_events(const struct remote *remote)
{
    uint32_t ready = remote->n_to_client * 4 <= BUFFER_MAX ? EPOLLOUT : 0;

    if (remote->shut)
        return ready | EPOLLHUP;
    if (!STAILQ_EMPTY(&remote->to_daemon))
        ready |= EPOLLIN;
    return remote->connected ? ready : ready | EPOLLIN | EPOLLHUP | EPOLLRDHUP;
}

/* ---- system calls of the daemon ---- */

static struct remote *
remote_of(int fd)
{
    const struct file *file = file_get(fd);

    SIM_CHECK(file->kind == FILE_SOCKET, "fd %d is no connection", fd);
    world_spend(0);
    return file->remote;
}

WRAPPED(int, accept4, int fd UNUSED, struct sockaddr *addr UNUSED, socklen_t *n UNUSED,
        int flags UNUSED)
{
    struct remote *remote = STAILQ_FIRST(&remotes.backlog);

    fair_serve(NULL);
    world_spend(0);
    errno = EAGAIN;
    if (!remote)
        return -1;
    remote->sock = file_new(FILE_SOCKET, remote, 0);
    if (remote->sock >= 0)
        STAILQ_REMOVE_HEAD(&remotes.backlog, backlog);
    return remote->sock;
}

WRAPPED(int, shutdown, int fd, int how UNUSED)
{
    struct remote *remote = remote_of(fd);
    const struct packet *p;
    uint32_t n = 0;

    STAILQ_FOREACH(p, &remote->to_client, next)
        n += p->n_fds;
    remote->shut = true;
    remotes.n_kept += n;
    remote->user->n_kept += n;
    file_look(fd);
    end(remote);
    return 0;
}

WRAPPED(int, peer_init, struct peer *ret, int sock)
{
    struct remote *remote = remote_of(sock);
    int pidfd = -1;

    fair_serve(remote->user);
    if (!remote->exited) {
        pidfd = file_new(FILE_PIDFD, remote, 0);
        if (pidfd < 0)
            return -errno;
    }
    *ret = (struct peer){.uid = remote->user->uid, .pid = remote->pid, .pidfd = pidfd};
    return 0;
}

WRAPPED(int, getsockopt, int fd, int level UNUSED, int option, void *value, socklen_t *n UNUSED)
{
    const struct remote *remote = remote_of(fd);

    if (option == SO_PEERCRED)
        *(struct ucred *)value = (struct ucred){.pid = remote->pid, .uid = remote->user->uid};
    else
        *(int *)value = 0; /* SO_ERROR */
    return 0;
}

WRAPPED(int, ioctl, int fd, unsigned long request, ...)
{
    const struct remote *remote = remote_of(fd);
    const struct packet *p = STAILQ_FIRST(&remote->to_daemon);
    size_t n = remote->n_to_client;
    va_list ap;

    if (request != SIOCOUTQ)
        fair_serve(remote->user);
    if (request != SIOCOUTQ)
        for (n = 0; p; p = STAILQ_NEXT(p, next))
            n += p->n;
    va_start(ap, request);
    *va_arg(ap, int *) = (int)n;
    va_end(ap);
    return 0;
}

/* Of one that is looked at when it is accepted, and again in its turn; or when it is closed. */
WRAPPED(ssize_t, recv, int fd, void *data UNUSED, size_t n UNUSED, int flags)
{
    struct remote *remote = remote_of(fd);
    struct packet *p = STAILQ_FIRST(&remote->to_daemon);

    if (flags & MSG_PEEK && remote->accepted)
        fair_serve(remote->user);
    remote->accepted = true;
    errno = EAGAIN;
    if (!p)
        return remote->connected ? -1 : 0;
    if (!(flags & MSG_PEEK))
        free(take(&remote->to_daemon, &remote->n_to_daemon));
    file_look(fd);
    return 1;
}

/* Of a uid that reads its answers, each connection is heard about as often as the others. */
static ssize_t
receive(int sock, void *data)
{
    struct remote *remote = remote_of(sock);
    struct user *user = remote->user;
    struct packet *p = take(&remote->to_daemon, &remote->n_to_daemon);
    ssize_t n;

    fair_serve(user);
    file_look(sock);
    if (!p)
        return remote->connected ? -EAGAIN : 0;
    SIM_CHECK(user->kind > GREEDY || p->n_heard == UINT64_MAX ||
                  user->n_heard - p->n_heard <= (user->kind ? 16 : 4) * user->n_conns,
              "uid %u was heard %llu times while a connection of it waited", user->uid,
              (unsigned long long)(user->n_heard - p->n_heard));
    user->n_heard++;
    n = (ssize_t)p->n;
    memcpy(data, p->data, p->n);
    sim_note((uint64_t)sock << 32 | p->n);
    free(p);
    return n;
}

WRAPPED(int, packet_recv_batch, int sock, uint8_t data[PACKET_BATCH][PACKET_MAX],
        ssize_t ret_n[PACKET_BATCH])
{
    int n = 0;

    for (; n < PACKET_BATCH; n++) {
        ret_n[n] = receive(sock, data[n]);
        if (ret_n[n] < 0)
            break;
    }
    return n ? n : (int)ret_n[0];
}

/* While not all is back: one packet, which may be looked at first; or of the keeper. */
WRAPPED(ssize_t, packet_recv_into, int sock, void *data, size_t room UNUSED, int *ret_fds,
        size_t max_fds UNUSED, size_t *ret_n_fds, int flags)
{
    struct remote *remote;
    const struct packet *p;

    if (file_get(sock)->kind == FILE_KEEPER)
        return keeper_answer(data, ret_fds, ret_n_fds);
    if (!(flags & MSG_PEEK))
        return receive(sock, data);
    remote = remote_of(sock);
    p = STAILQ_FIRST(&remote->to_daemon);
    fair_serve(remote->user);
    if (!p)
        return remote->connected ? -EAGAIN : 0;
    memcpy(data, p->data, p->n);
    return (ssize_t)p->n;
}

/* A uid leaves as much to the others as it has; and with what lies on connections that have ended,
 * it has no more than all may have: flight.h. */
static void
check_inflight(const struct user *user, uint32_t n)
{
    uint32_t live = user->n_inflight - user->n_kept, max = files.max / 4;
    uint32_t others = remotes.n_inflight - remotes.n_kept - live;

    SIM_CHECK(!n || !live || 2 * (live + n) <= max - others,
              "uid %u has %u of %u fds in flight, and is sent %u", user->uid, live,
              live + others, n);
    SIM_CHECK(!n || !user->n_kept || user->n_inflight + n <= max,
              "uid %u has left %u fds in flight, and is sent %u", user->uid, user->n_inflight,
              n);
}

WRAPPED(int, packet_send, int sock, const void *data, size_t n, const int *fds, size_t n_fds,
        int flags UNUSED)
{
    struct packet head = {.n = n, .n_fds = (uint32_t)n_fds};
    struct remote *remote;

    if (file_get(sock)->kind == FILE_KEEPER) { /* with a lock: nothing else happens meanwhile */
        keeper_hear(data, fds);
        return 0;
    }
    world_spend(n);
    remote = remote_of(sock);
    for (size_t i = 0; i < n_fds; i++)
        file_get(fds[i]);
    if (!remote->connected)
        return -EPIPE;
    if (remote->n_to_client >= BUFFER_MAX)
        return -EAGAIN;
    check_inflight(remote->user, head.n_fds);
    count_inflight(remote, (int)head.n_fds);
    put(&remote->to_client, &remote->n_to_client, &head, data);
    sim_note((uint64_t)sock << 32 | n | (uint64_t)n_fds << 24);
    file_look(sock); /* which may be full now */
    users_wake(remote);
    return 0;
}
