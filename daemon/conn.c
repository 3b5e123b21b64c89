/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/macros.h"
#include "base/packet.h"
#include "conns.h"

/* Packets that are sent in one turn of the loop: few enough that others get their turn. */
#define FLUSH_MAX 64

/* Packets that are thrown away before a socket is closed. */
#define DISCARD_MAX 64

/* Batches that are received in one turn. */
#define RECEIVE_MAX 4

/* Outcomes of try_send(). */
#define SEND_BLOCKED 1 /* the socket is full */
#define SEND_WAIT    2 /* too many fds are in flight */

/* Waits for the events that the connection's state asks for. */
static void
update_events(struct conn *c)
{
    uint32_t events = EPOLLIN;

    if (c->lost)
        return;
    if (outq_first(&c->outq))
        events = c->waiting ? EPOLLRDHUP : EPOLLOUT | EPOLLRDHUP;
    pollset_change(&c->set->pollset, &c->source, events | EPOLLET);
}

static int
try_send(struct conn *c, const void *data, size_t n, const int *fds, size_t n_fds)
{
    struct flight *flight = &c->set->flight;
    int r;

    if (n_fds > 0 && !flight_admits(flight, &c->flight, n_fds, uv_now(c->set->loop)))
        return SEND_WAIT;
    r = packet_send(c->sock, data, n, fds, n_fds, MSG_DONTWAIT);
    if (r == -EAGAIN)
        return SEND_BLOCKED;
    if (r == -ETOOMANYREFS || r == -ENOBUFS || r == -ENOMEM)
        return SEND_WAIT;
    if (r == 0)
        flight_sent(flight, &c->flight, n_fds, uv_now(c->set->loop));
    return r;
}

static void
set_waiting(struct conn *c, bool waiting)
{
    if (waiting && !c->waiting)
        conns_wait(c->set, c);
    else if (!waiting && c->waiting)
        conns_unwait(c->set, c);
}

int
conn_send(struct conn *c, const void *data, size_t n, const int *fds, size_t n_fds)
{
    int r;

    if (c->why)
        return 0;
    if (!outq_first(&c->outq)) {
        r = try_send(c, data, n, fds, n_fds);
        if (r <= 0)
            return r;
        set_waiting(c, r == SEND_WAIT);
    }
    r = outq_push(&c->outq, data, n, fds, n_fds);
    if (r < 0)
        return r;
    conns_queued(c->set, c, n, n_fds);
    update_events(c);
    conns_make_room(c->set); /* it may end connections, and the core may free data then */
    return 0;
}

static void
pop(struct conn *c)
{
    struct outq_packet *p = outq_first(&c->outq);
    size_t n = p->n, n_fds = p->n_fds;

    outq_pop(&c->outq);
    conns_dequeued(c->set, c, n, n_fds);
}

static void
drop_output(struct conn *c)
{
    set_waiting(c, false);
    while (outq_first(&c->outq))
        pop(c);
}

void
conn_flush(struct conn *c)
{
    struct outq_packet *p;

    for (int i = 0; i < FLUSH_MAX && (p = outq_first(&c->outq)); i++) {
        int r = try_send(c, outq_packet_data(p), p->n, p->fds, p->n_fds);
        if (r < 0) {
            conn_fail(c, r);
            return;
        }
        set_waiting(c, r == SEND_WAIT);
        if (r > 0)
            break;
        pop(c);
    }
    update_events(c);
}

/* ---- the end ---- */

/* The bytes that have arrived and are not received yet. Clears the socket's error, since recvmsg(2)
 * would return that first. */
static size_t
count_unheard(const struct conn *c)
{
    int error, n = 0;

    getsockopt(c->sock, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof(error)});
    return ioctl(c->sock, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0;
}

static void
end_in_turn(struct conn *c, const char *why)
{
    c->why = c->why ? c->why : why;
    turns_add(&c->set->turns, &c->turn);
}

void
conn_fail(struct conn *c, int r)
{
    bool gone = r == -EPIPE || r == -ECONNRESET || r == -ECONNREFUSED;

    c->broken = !gone;
    drop_output(c);
    end_in_turn(c, gone ? "hung up" : r == -ENOBUFS ? "does not read" : strerror(-r));
}

/* The peer has gone, or does not read. Only what has arrived by now is still received, so that a
 * peer which goes on sending does not keep its connection. */
static void
end(struct conn *c)
{
    drop_output(c);
    c->unheard = c->broken ? 0 : count_unheard(c);
    c->ending = c->unheard > 0;
    if (!c->ending)
        conn_lose(c, c->why);
}

/* ---- input ---- */

static void
hear(struct conn *c, const void *packet, size_t n)
{
    struct conns *set = c->set;

    if (c->ending)
        c->unheard -= n < c->unheard ? n : c->unheard;
    conns_hear(set, c);
    set->ops->packet(set->userdata, c, packet, n);
    if (c->ending && c->unheard == 0)
        conn_lose(c, c->why);
}

/* n: the bytes of a packet; 0 or less: the end of the connection, or an error. */
static void
take(struct conn *c, const void *packet, ssize_t n)
{
    if (n > 0)
        hear(c, packet, (size_t)n);
    else if (c->ending && n != -ECONNRESET)
        conn_lose(c, c->why);
    else if (n == 0 || n == -ECONNRESET)
        end_in_turn(c, "hung up");
    else if (n == -EMSGSIZE)
        conn_lose(c, "sent a packet that is too large, or fds");
    else if (n != -EAGAIN)
        conn_lose(c, strerror((int)-n));
}

/* A batch that is not full has emptied the socket. Then the connection waits for the next event,
 * without a further recvmsg(2) that would find nothing. */
static void
receive_batch(struct conn *c)
{
    ssize_t sizes[PACKET_BATCH];
    int n = packet_recv_batch(c->sock, c->set->buffers, sizes);

    c->readable = n == PACKET_BATCH;
    if (n < 0)
        take(c, NULL, n);
    for (int i = 0; i < n && !c->lost; i++)
        take(c, c->set->buffers[i], sizes[i]);
}

static ssize_t
receive_one(const struct conn *c, void *packet, int flags)
{
    return packet_recv_into(c->sock, packet, PROTO_PACKET_MAX, NULL, 0, NULL,
                            flags | MSG_DONTWAIT);
}

/* A packet that is not admitted stays in the socket, and so do those behind it. */
static void
receive_admitted(struct conn *c)
{
    struct conns *set = c->set;
    void *packet = set->buffers;
    ssize_t n = receive_one(c, packet, MSG_PEEK);

    if (n > 0 && !set->ops->admits(set->userdata, c, packet, (size_t)n)) {
        conns_stall(set, c);
        return;
    }
    if (n > 0) /* else a packet that has come since would not have been looked at */
        n = receive_one(c, packet, 0);
    c->readable = n > 0;
    take(c, packet, n);
}

/* Receives few packets in a turn, for the sake of the uid's other connections. */
static void
receive(struct conn *c)
{
    int n = 0;

    do
        c->set->admits_all ? receive_batch(c) : receive_admitted(c);
    while (c->readable && !c->lost && !c->stalled && !outq_first(&c->outq) &&
           ++n < RECEIVE_MAX && conns_charge(c->set, c->owner) < c->set->until_ns);
}

static void
on_turn(struct turn *turn)
{
    struct conn *c = container_of(turn, struct conn, turn);

    if (c->why && !c->ending)
        end(c);
    else if (outq_first(&c->outq))
        conn_flush(c);
    else
        receive(c);
    if (c->lost)
        return;
    update_events(c);
    if (!c->stalled && (c->ending || (c->readable && !outq_first(&c->outq))))
        turns_add(&c->set->turns, turn);
}

static void
on_sock(struct poll_source *source, uint32_t events)
{
    struct conn *c = container_of(source, struct conn, source);

    c->readable = c->readable || events & EPOLLIN;
    if (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
        end_in_turn(c, "hung up");
    else
        turns_add(&c->set->turns, &c->turn);
}

void
conn_exited(struct conn *c)
{
    c->exited = true;
    end_in_turn(c, "process exited");
}

static int
watch(struct conn *c, struct peer *peer)
{
    int r = peer->pidfd < 0 ? 0 : process_new(c, TAKE_FD(peer->pidfd), &c->process);

    if (r < 0)
        return r;
    c->source = (struct poll_source){.ready = on_sock, .events = EPOLLIN | EPOLLET};
    return pollset_add(&c->set->pollset, &c->source, c->sock);
}

int
conn_new(struct conns *set, uint64_t id, int sock_consume, struct peer *peer, struct conn **ret)
{
    _cleanup_fd_ int sock = sock_consume;
    struct conn *c = calloc(1, sizeof(*c));
    int r;

    if (!c)
        return -ENOMEM;
    c->id = id;
    c->set = set;
    c->uid = peer->uid;
    c->pid = peer->pid;
    c->sock = TAKE_FD(sock);
    c->source.fd = -1;
    c->turn.serve = on_turn;
    outq_init(&c->outq);
    r = conns_add(set, c);
    if (r == 0)
        r = watch(c, peer);
    if (r < 0) {
        c->lost = true;
        conn_close(c);
        return r;
    }
    *ret = c;
    return 0;
}

static void on_landed(struct turn *turn);

void
conn_free(struct conn *c)
{
    pollset_remove(&c->set->pollset, &c->source);
    c->sock = fd_close(c->sock);
    if (c->turn.serve == on_landed)
        LIST_REMOVE(c, lingering);
    conns_bury(c->set, c);
}

static void
on_room(struct poll_source *source, uint32_t events UNUSED)
{
    struct conn *c = container_of(source, struct conn, source);

    turns_add(&c->set->turns, &c->turn);
}

static void
on_landed(struct turn *turn)
{
    struct conn *c = container_of(turn, struct conn, turn);

    if (!flight_keep(&c->set->flight, &c->flight))
        conn_free(c);
}

/* The client sees the end at once. The socket stays open until the client has received the fds that
 * it was sent, or has closed its end. */
static void
linger(struct conn *c)
{
    shutdown(c->sock, SHUT_RDWR);
    c->turn.serve = on_landed;
    c->source.ready = on_room;
    pollset_change(&c->set->pollset, &c->source, EPOLLOUT | EPOLLET);
    LIST_INSERT_HEAD(&c->set->lingering, c, lingering);
}

static void
close_sock(struct conn *c)
{
    c->lost = true;
    drop_output(c);
    conns_remove(c->set, c);
    if (c->owner && flight_keep(&c->set->flight, &c->flight))
        linger(c);
    else
        conn_free(c);
}

void
conn_close(struct conn *c)
{
    c->process = process_free(c->process);
    close_sock(c);
}

void
conn_depart(struct conn *c)
{
    process_depart(TAKE_PTR(c->process));
    close_sock(c);
}

void
conn_discard_input(const struct conn *c)
{
    char byte;

    for (int i = 0; i < DISCARD_MAX; i++)
        if (recv(c->sock, &byte, sizeof(byte), MSG_DONTWAIT | MSG_TRUNC) <= 0)
            break;
}

void
conn_lose(struct conn *c, const char *reason)
{
    if (c->lost)
        return;
    c->lost = true;
    c->set->ops->lost(c->set->userdata, c, reason);
}
