/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/packet.h"
#include "client.h"
#include "feature.h"
#include "interrupt.h"
#include "spin.h"

/* When a client ends, it waits so long for the daemon to read. */
#define FLUSH_NS NSEC_PER_SEC
/* A thread that waits for room looks again after this time: another one reads. */
#define ROOM_NS (100 * NSEC_PER_MSEC)
/* A thread that reads takes meanwhile what has come. */
#define TURN_NS NSEC_PER_MSEC

static void
call_fds_closep(struct call_fds *fds)
{
    for (size_t i = 0; i < fds->n; i++)
        fd_close(fds->fd[i]);
}

/* ---- the states ---- */

void *
call_new(size_t size, enum msg_method method, const void *params)
{
    struct call *call = malloc(size);

    if (!call)
        return NULL;
    memset(call, 0, size);
    call->method = method;
    call->params = params;
    return call;
}

void
call_free(struct call *call)
{
    if (call && !call->left)
        free(call);
}

/* Whether something is still to be sent for a call in flight. */
static bool
is_behind(const struct call *call)
{
    return call->again.n > 0 || call->cancels;
}

/* Takes the call out of its list. */
static void
set_idle(struct caid_client *client, struct call *call)
{
    bool sent = call->state == CALL_SENT;

    TAILQ_REMOVE(sent ? &client->calls : &client->unsent, call, entry);
    call->state = CALL_IDLE;
    client->n_late -= call->late;
    call->late = false;
    if (is_behind(call)) {
        client->n_behind--;
        call->cancels = false;
        msg_buf_deinit(&call->again);
    }
    client->n_block_calls -= sent && call->has_blocks;
    client->n_page_calls -= sent && call->has_pages;
}

static void
set_sent(struct caid_client *client, struct call *call, uint64_t seq)
{
    if (call->state == CALL_UNSENT)
        TAILQ_REMOVE(&client->unsent, call, entry);
    call->state = CALL_SENT;
    call->seq = client->seq = seq;
    call->done = false;
    TAILQ_INSERT_TAIL(&client->calls, call, entry);
    client->n_block_calls += call->has_blocks;
    client->n_page_calls += call->has_pages;
}

static void
call_end(struct caid_client *client, struct call *call, int r)
{
    set_idle(client, call);
    if (client->barrier && client->n_block_calls == 0)
        reaper_wake(client);
    call->r = r;
    call->done = true;
    wake_all(&call->wake);
    if (call->waited)
        return;
    if (call->over)
        call->over(client, call);
    else if (call->left)
        free(call);
}

static void
fail_list(struct caid_client *client, struct call_list *list)
{
    struct call *call;

    while ((call = TAILQ_FIRST(list)))
        call_end(client, call, fail_again(&call->error, &client->lost));
}

void
call_fail_all(struct caid_client *client)
{
    fail_list(client, &client->calls);
    fail_list(client, &client->unsent);
}

bool
call_queue(struct caid_client *client, struct call *call)
{
    if (call->state != CALL_IDLE || client->lost.code != 0)
        return false;
    call->state = CALL_UNSENT;
    call->left = false;
    TAILQ_INSERT_TAIL(&client->unsent, call, entry);
    return true;
}

void
call_look_for(struct caid_client *client, struct call *call)
{
    client->n_late += !call->late;
    call->late = true;
}

bool
call_queue_late(struct caid_client *client, struct call *call)
{
    if (!call_queue(client, call))
        return false;
    call_look_for(client, call);
    return true;
}

void
call_cancel(struct caid_client *client, struct call *call)
{
    if (call->state == CALL_UNSENT) {
        call_end(client, call, 0);
    } else if (call->state == CALL_SENT) {
        client->n_behind += !is_behind(call);
        call->cancels = true;
    }
}

/* ---- sending ---- */

/* An error that answers no request: the daemon ends the connection, and says why. */
static bool
is_dismissal(const struct msg *m)
{
    return m->type == MSG_RESPONSE && m->error != 0 && m->id == 0;
}

static void
take_dismissal(struct caid_client *client, const struct msg *m)
{
    struct caid_error why;

    fail_wire(&why, m);
    client_lose(client, why.code, "%s: %s", client->socket, why.message);
}

#define DISMISSAL_MAX 2048 /* bytes; the error's text has up to 1,024 */

/* What the daemon has said last, where nobody has read that yet. The answers before it are to calls
 * that fail with the connection. */
static void
hear_dismissal(struct caid_client *client)
{
    uint8_t packet[DISMISSAL_MAX];
    struct msg m;
    ssize_t n;

    while (client->lost.code == 0 &&
           ((n = recv(client->sock, packet, sizeof(packet), MSG_DONTWAIT)) > 0 ||
            (n < 0 && errno == ECONNRESET))) /* told once, before what is to be read */
        if (n > 0 && msg_parse(&m, packet, (size_t)n) == 0) {
            if (is_dismissal(&m))
                take_dismissal(client, &m);
            msg_deinit(&m);
        }
}

/* The daemon has hung up. false: no feature waits for another one, and the connection ends. */
static bool
has_gone(struct caid_client *client)
{
    bool comes_back = false;

    if (!client->away)
        hear_dismissal(client);
    if (client->lost.code != 0)
        return false;
    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->hung_up)
            comes_back |= (*feature)->hung_up(client);
    return comes_back;
}

/* The socket has failed. Packets that the daemon may have sent before are not read. */
static int
send_failed(struct caid_client *client, int r)
{
    if (has_gone(client))
        return -EAGAIN;
    errno = -r;
    client_lose(client, CAID_ERR_DISCONNECTED, "%s: the connection to the daemon is lost: %m",
                client->socket);
    return r;
}

static int
send_out(struct caid_client *client, const struct msg_buf *packet)
{
    int r = client->away
                ? -EAGAIN
                : packet_send(client->sock, packet->data, packet->n, NULL, 0, MSG_DONTWAIT);
    return r == 0 || r == -EAGAIN ? r : send_failed(client, r);
}

int
call_notify(struct caid_client *client, enum msg_method method, const void *params)
{
    int r = msg_encode_notify(&client->out, method, params);
    return r < 0 ? r : send_out(client, &client->out);
}

static int
encode(struct caid_client *client, const struct call *call, uint64_t seq,
       struct caid_error *error)
{
    int r = msg_encode_request(&client->out, (uint32_t)seq, call->method, call->params);

    if (r == -EMSGSIZE || (r == 0 && client->out.n > client->packet_max))
        return fail(error, CAID_ERR_TOO_LARGE, "the %s request is larger than %zu bytes",
                    msg_method_name(call->method), client->packet_max);
    if (r < 0)
        return fail_errno(error, -r, "cannot encode the %s request",
                          msg_method_name(call->method));
    return 0;
}

/* Looks from the newest call on: most answers are to that. */
static struct call *
find_call(const struct caid_client *client, uint32_t id)
{
    struct call *call;

    TAILQ_FOREACH_REVERSE(call, &client->calls, call_list, entry)
        if ((uint32_t)call->seq == id)
            return call;
    return NULL;
}

/* After the ids have wrapped around, an id that is still in flight is skipped, and so is 0. */
static uint64_t
next_seq(const struct caid_client *client)
{
    uint64_t seq = client->seq + 1;

    while (seq > UINT32_MAX && ((uint32_t)seq == 0 || find_call(client, (uint32_t)seq)))
        seq++;
    return seq;
}

/* Sends the request. Returns 1 if the socket does not take it now. */
static int
send_request(struct caid_client *client, struct call *call, struct caid_error *error)
{
    uint64_t seq = next_seq(client);

    int r = encode(client, call, seq, error);
    if (r < 0)
        return r;
    r = send_out(client, &client->out);
    if (client->lost.code != 0)
        return fail_again(error, &client->lost);
    if (r < 0)
        return 1; /* -EAGAIN */
    set_sent(client, call, seq);
    return 0;
}

/* For a call in flight: sends its request again, and that it is cancelled, as far as either is due.
 * */
static int
catch_up(struct caid_client *client, struct call *call)
{
    const struct msg_cancel_params params = {.request = (uint32_t)call->seq};

    if (call->again.n > 0) {
        int r = send_out(client, &call->again);
        if (r < 0)
            return r;
        msg_buf_deinit(&call->again);
    }
    if (call->cancels) {
        int r = call_notify(client, MSG_CANCEL, &params);
        if (r < 0)
            return r;
        call->cancels = false;
    }
    client->n_behind--;
    return 0;
}

static int
flush_in_flight(struct caid_client *client)
{
    struct call *call;
    int r = 0;

    if (client->n_behind == 0 || client->lost.code != 0)
        return 0;
    TAILQ_FOREACH(call, &client->calls, entry) {
        if (is_behind(call))
            r = catch_up(client, call);
        if (r < 0) /* the calls may have ended */
            break;
    }
    return r;
}

/* Ends a call that cannot be sent at all. */
static int
flush_unsent(struct caid_client *client)
{
    struct call *call;

    while (client->lost.code == 0 && (call = TAILQ_FIRST(&client->unsent))) {
        int r = send_request(client, call, &call->error);
        if (client->lost.code != 0 || r == -ENOMEM)
            return r;
        if (r > 0)
            return -EAGAIN;
        if (r < 0)
            call_end(client, call, r);
    }
    return 0;
}

bool
call_has_unsent(const struct caid_client *client)
{
    if (client->lost.code != 0 || client->away)
        return false;
    if (client->n_behind > 0 || !TAILQ_EMPTY(&client->unsent))
        return true;
    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->has_unsent && (*feature)->has_unsent(client))
            return true;
    return false;
}

int
call_flush(struct caid_client *client)
{
    int r = flush_in_flight(client);

    for (const struct feature *const *feature = client->features; r == 0 && *feature; feature++)
        if ((*feature)->flush)
            r = (*feature)->flush(client);
    return r == 0 ? flush_unsent(client) : r;
}

/* 0, or -ETIMEDOUT, -EINTR. */
static int
poll_until(struct pollfd *fds, nfds_t n, uint64_t deadline_ns)
{
    uint64_t now = clock_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
    const struct timespec time_left = {.tv_sec = (time_t)(left / NSEC_PER_SEC),
                                       .tv_nsec = (long)(left % NSEC_PER_SEC)};
    int r = ppoll(fds, n, deadline_ns == UINT64_MAX ? NULL : &time_left, NULL);

    return r > 0 ? 0 : r == 0 ? -ETIMEDOUT : -errno;
}

/* Closes that wait are sent first: the daemon's reply to this request depends on them. */
static int
send_once(struct caid_client *client, struct call *call, struct caid_error *error)
{
    int r = call_flush(client);
    if (client->lost.code != 0)
        return fail_again(error, &client->lost);
    if (r == -ENOMEM)
        return fail_errno(error, ENOMEM, "cannot tell the daemon what waits to be told");
    return r < 0 ? 1 : send_request(client, call, error);
}

static uint64_t
timeout_of(const struct caid_client *client, const struct call *call)
{
    return call->timeout_ns ? call->timeout_ns : client->call_timeout_ns;
}

/* The request has not been sent, so the call has no effect. */
static int
fail_unsent(const struct caid_client *client, const struct call *call, struct caid_error *error)
{
    return fail(error, CAID_ERR_TIMEOUT,
                "%s: the daemon took no %s request in %g s: is it stopped?", client->socket,
                msg_method_name(call->method), (double)timeout_of(client, call) / NSEC_PER_SEC);
}

/* Returns 1 if the socket takes nothing now, or if the reply may refer to blocks while blocks are
 * to be forgotten. */
static int
try_to_send(struct caid_client *client, struct call *call, struct caid_error *error)
{
    if (call->has_blocks && client->barrier && client->lost.code == 0)
        return 1;
    return send_once(client, call, error);
}

/* ---- once more ---- */

int
call_repeat_all(struct caid_client *client)
{
    struct call *call;
    int r = 0;

    TAILQ_FOREACH(call, &client->calls, entry) {
        client->n_behind -= is_behind(call);
        msg_buf_deinit(&call->again);
        if (!call->left && r == 0)
            r = msg_encode_request(&call->again, (uint32_t)call->seq, call->method,
                                   call->params);
        client->n_behind += is_behind(call);
    }
    return r;
}

/* Their callers have left, and the inventory lacks what they would be granted. */
void
call_end_unrepeated(struct caid_client *client)
{
    struct call *call, *next;

    for (call = TAILQ_FIRST(&client->calls); call; call = next) {
        next = TAILQ_NEXT(call, entry);
        if (call->again.n == 0)
            call_end(client, call,
                     fail(&call->error, CAID_ERR_CANCELLED, "the daemon was started anew"));
    }
}

/* ---- receiving ---- */

/* Why a packet cannot be the answer to call, or NULL. */
static const char *
reply_violation(const struct msg *reply, const struct call *call, const struct call_fds *fds)
{
    if (reply->type != MSG_RESPONSE)
        return "sent a packet that is no reply";
    if (!call)
        return "answered a request that was not made";
    if (fds->n > 0 &&
        (!(call->has_blocks || call->has_pages || call->has_fds) || reply->error != 0))
        return "sent file descriptors that nothing refers to";
    return NULL;
}

static int
copy_packet(struct caid_client *client, struct call *call)
{
    struct reply *copy = call->copy;

    copy->packet = malloc(client->n_packet);
    if (!copy->packet)
        return fail_errno(&call->error, ENOMEM, "no memory for the %s reply",
                          msg_method_name(call->method));
    memcpy(copy->packet, client->packet, client->n_packet);
    copy->n = client->n_packet;
    return 0;
}

static int
take_result(struct caid_client *client, struct call *call, struct msg *reply,
            struct call_fds *fds)
{
    union {
#define REQUEST(NAME, name, params, result) struct msg_##result name;
#include "messages.def"
    } result;

    if (call->copy)
        return copy_packet(client, call);
    if (!call->take)
        return 0;
    int r = msg_decode_result(reply, call->method, &result);
    if (r == -ENOMEM)
        client_lose(client, CAID_ERR_DISCONNECTED, "%s: no memory for a reply", client->socket);
    return r < 0 ? r : call->take(client, call, &result, fds);
}

static void
take_reply(struct caid_client *client, struct msg *reply, struct call_fds *fds)
{
    struct call *call = find_call(client, reply->id);
    const char *violation = reply_violation(reply, call, fds);
    int r = 0;

    if (is_dismissal(reply) && fds->n == 0) {
        take_dismissal(client, reply);
        return;
    }
    if (violation) {
        client_lose(client, CAID_ERR_PROTOCOL, "%s: the daemon %s", client->socket, violation);
        return;
    }
    if (call->seq > client->answered)
        client->answered = call->seq;
    client->left = reply->error_left;
    if (reply->error != 0)
        r = fail_wire(&call->error, reply);
    else
        r = take_result(client, call, reply, fds);
    if (client->lost.code != 0)
        return; /* the call has been ended with the others */

    if (r == -EPROTO && reply->error == 0)
        client_lose(client, CAID_ERR_PROTOCOL, "%s: the daemon sent a malformed %s reply",
                    client->socket, msg_method_name(call->method));
    else
        call_end(client, call, r);
}

/* No packet has come: n is packet_recv()'s result. */
static void
lose_reader(struct caid_client *client, ssize_t n)
{
    if (n != -EMSGSIZE && has_gone(client))
        return;
    errno = (int)-n;
    if (n == 0)
        client_lose(client, CAID_ERR_DISCONNECTED, "%s: the daemon closed the connection",
                    client->socket);
    else if (n == -EMSGSIZE)
        client_lose(client, CAID_ERR_DISCONNECTED,
                    "%s: a reply was cut off (too many open files here?)", client->socket);
    else
        client_lose(client, CAID_ERR_DISCONNECTED,
                    "%s: the connection to the daemon is lost: %m", client->socket);
}

/*
 * A reply that needs no driver call arrives within some 10 us, less than it takes to fall asleep
 * and be woken on another CPU. So the thread first polls without sleeping, and yields to whoever
 * wants this CPU. On 32 CPUs that shortens a round trip by a quarter. Where the daemon shares this
 * CPU, it costs at most the calls of sched_yield(2) (docs/PERFORMANCE.md).
 */
static ssize_t
recv_soon(struct caid_client *client, struct call_fds *fds, uint64_t spin_ns)
{
    uint64_t end = clock_now_ns() + spin_ns;
    ssize_t n;

    while ((n = packet_recv(client->sock, client->packet, fds->fd, PROTO_FDS_MAX, &fds->n,
                            MSG_DONTWAIT)) == -EAGAIN &&
           clock_now_ns() < end)
        sched_yield();
    return n;
}

/* Receives and takes one packet. false: none has come within spin_ns. Unless spin_ns is 0, the lock
 * is dropped meanwhile. */
static bool
receive(struct caid_client *client, uint64_t spin_ns)
{
    _cleanup_(call_fds_closep) struct call_fds fds;
    struct msg reply;
    int r = 0;

    uint64_t n_returns = client->resume.n_returns;
    fds.n = 0;
    if (client->away)
        return false;
    client->reading = true;
    if (spin_ns > 0)
        pthread_mutex_unlock(&client->lock);
    ssize_t n = recv_soon(client, &fds, spin_ns);
    if (n > 0)
        r = msg_parse(&reply, client->packet, (size_t)n);
    if (spin_ns > 0)
        pthread_mutex_lock(&client->lock);
    client->reading = false;

    if (n == -EAGAIN || n_returns != client->resume.n_returns) /* it is the earlier daemon's */
        return false;
    if (n <= 0) {
        lose_reader(client, n);
        return false;
    }
    if (r < 0) {
        client_lose(client, r == -ENOMEM ? CAID_ERR_DISCONNECTED : CAID_ERR_PROTOCOL, "%s: %s",
                    client->socket,
                    r == -ENOMEM ? "no memory for a reply"
                                 : "the daemon sent a malformed packet");
        return false;
    }
    client->n_packet = (size_t)n;
    take_reply(client, &reply, &fds);
    msg_deinit(&reply);
    return true;
}

void
call_pass_reading_on(struct caid_client *client)
{
    struct waiter *waiter;

    if (client->reading || client->away || TAILQ_EMPTY(&client->waiters))
        return;
    TAILQ_FOREACH(waiter, &client->waiters, entry)
        if (!waiter->call->done)
            break;
    wake_all(&(waiter ? waiter : TAILQ_FIRST(&client->waiters))->call->wake);
}

int
call_ask_interrupt(struct caid_client *client, struct caid_error *error)
{
    if (!client->interrupted)
        return 0;
    call_pass_reading_on(client);
    pthread_mutex_unlock(&client->lock);
    int r = interrupt_ask(client, error);
    pthread_mutex_lock(&client->lock);
    return r;
}

/* Reads for all. `also`: an event of the socket that ends the wait, too. */
static int
read_until(struct caid_client *client, short also, uint64_t deadline_ns)
{
    struct pollfd fds[] = {
        {.fd = client->sock, .events = (short)(POLLIN | also)},
        {.fd = client->wake_fd, .events = POLLIN},
    };
    eventfd_t count;

    client->reading = true;
    pthread_mutex_unlock(&client->lock);
    int r = poll_until(fds, ARRAY_SIZE(fds), deadline_ns);
    if (r == 0 && fds[1].revents)
        (void)eventfd_read(client->wake_fd, &count);
    pthread_mutex_lock(&client->lock);
    client->reading = false;
    if (r == 0 && fds[0].revents & ~POLLOUT && client->lost.code == 0)
        receive(client, 0);
    return r;
}

/* ---- waiting ---- */

/* Waits for room in the socket, and reads replies meanwhile: a daemon whose replies are not read
 * does not read, either. May return before there is room. 0, -ETIMEDOUT, -EINTR. */
static int
wait_for_room(struct caid_client *client, uint64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = client->sock, .events = POLLOUT};

    if (client->away)
        return wake_wait(&client->resume.back, &client->lock, deadline_ns);
    if (!client->reading) {
        int r = read_until(client, POLLOUT, deadline_ns);
        call_pass_reading_on(client);
        return r;
    }
    pthread_mutex_unlock(&client->lock);
    int r = poll_until(&poll_fd, 1, min_u64(deadline_ns, clock_now_ns() + ROOM_NS));
    pthread_mutex_lock(&client->lock);
    return r;
}

void
call_flush_all(struct caid_client *client)
{
    uint64_t end_ns = clock_now_ns() + FLUSH_NS;

    while (call_flush(client) < 0 && client->lost.code == 0 && clock_now_ns() < end_ns)
        wait_for_room(client, end_ns);
}

static int
wait_to_send(struct caid_client *client, const struct call *call)
{
    uint64_t until_ns = interrupt_look_by(client, call->deadline_ns);

    return call->has_blocks && client->barrier
               ? wake_wait(&client->barrier_gone, &client->lock, until_ns)
               : wait_for_room(client, until_ns);
}

int
call_start(struct caid_client *client, struct call *call, struct caid_error *error)
{
    int r;

    call->deadline_ns = deadline_of(timeout_of(client, call));
    while ((r = try_to_send(client, call, error)) > 0) {
        if (wait_to_send(client, call) == 0)
            continue;
        if (clock_now_ns() >= call->deadline_ns)
            r = fail_unsent(client, call, error);
        else
            r = call_ask_interrupt(client, error);
        if (r < 0)
            return r;
    }
    return r;
}

static int
wait_for_reader(struct caid_client *client, struct call *call, uint64_t deadline_ns)
{
    struct waiter waiter = {.call = call};

    TAILQ_INSERT_TAIL(&client->waiters, &waiter, entry);
    int r = wake_wait(&call->wake, &client->lock, deadline_ns);
    TAILQ_REMOVE(&client->waiters, &waiter, entry);
    return r;
}

int
call_wait_for_news(struct caid_client *client, struct call *call, uint64_t deadline_ns,
                   uint64_t *look_ns, struct caid_error *error)
{
    if (*look_ns == 0)
        *look_ns = error ? interrupt_look_by(client, UINT64_MAX) : UINT64_MAX;
    uint64_t until_ns = min_u64(deadline_ns, *look_ns);

    int r = client->reading || client->away ? wait_for_reader(client, call, until_ns)
                                            : read_until(client, 0, until_ns);
    if (r == 0 || !error)
        return 0;
    *look_ns = 0;
    return call_ask_interrupt(client, error);
}

int
call_wait_until(struct caid_client *client, struct call *call, uint64_t spin_until_ns,
                uint64_t deadline_ns, struct caid_error *error)
{
    uint64_t now, look_ns = 0;
    int r = 0;

    if (spin_until_ns > deadline_ns)
        spin_until_ns = deadline_ns;
    while (!call->done && !client->reading && (now = clock_now_ns()) < spin_until_ns)
        receive(client, spin_until_ns - now);
    while (!call->done && r == 0) {
        r = call_wait_for_news(client, call, deadline_ns, &look_ns, error);
        if (deadline_ns != UINT64_MAX && clock_now_ns() >= deadline_ns)
            break;
    }
    call_pass_reading_on(client);
    return call->done ? 0 : r < 0 ? r : 1;
}

/* The caller leaves the call. */
static int
call_leave(struct caid_client *client, struct call *call, const struct caid_error *why,
           struct caid_error *error)
{
    call->waited = false;
    call->left = true;
    call->params = NULL;
    call->copy = NULL;
    call_look_for(client, call);
    if (client->barrier)
        reaper_wake(client);
    return fail_again(error, why);
}

/* Waits for the reply. If it does not come in time, the call is left. */
static int
call_wait(struct caid_client *client, struct call *call, struct caid_error *error)
{
    struct caid_error why;

    int r =
        call_wait_until(client, call, clock_now_ns() + SPIN_MIN_NS, call->deadline_ns, &why);
    if (r > 0)
        fail(&why, CAID_ERR_TIMEOUT,
             "%s: the daemon did not answer the %s request in %g s: is it stopped?",
             client->socket, msg_method_name(call->method),
             (double)timeout_of(client, call) / NSEC_PER_SEC);
    if (r != 0)
        return call_leave(client, call, &why, error);
    return call->r < 0 ? fail_again(error, &call->error) : call->r;
}

int
call_run(struct caid_client *client, struct call *call, struct caid_error *error)
{
    call->waited = true;
    int r = call_start(client, call, error);
    if (r == 0)
        r = call_wait(client, call, error);
    return r;
}

int
call_make(struct caid_client *client, struct call *call, struct caid_error *error)
{
    if (!call)
        return fail_errno(error, ENOMEM, "no memory for a request");
    int r = client_enter(client, error);
    if (r < 0) {
        call_free(call);
        return r;
    }
    r = call_run(client, call, error);
    call_free(call);
    client_leave(client);
    return r;
}

int
call_ask(struct caid_client *client, enum msg_method method, const void *params,
         struct caid_error *error)
{
    return call_make(client, call_new(sizeof(struct call), method, params), error);
}

void
call_dispatch(struct caid_client *client)
{
    call_flush(client);
    while (client->lost.code == 0 && !client->reading && receive(client, 0))
        ;
}

/* ---- replies that nobody waits for ---- */

/* The client's thread is to wait in call_await_late(). */
static uint64_t
due(const struct caid_client *client)
{
    return client->n_late > 0 && !client->reaper.looks ? 0 : UINT64_MAX;
}

static void
calls_tidy(struct caid_client *client, bool all UNUSED)
{
    if (client->n_late > 0)
        call_dispatch(client);
}

void
call_await_late(struct caid_client *client, int wake_fd, uint64_t deadline_ns)
{
    struct pollfd fds[] = {
        {.fd = client->sock, .events = POLLIN},
        {.fd = wake_fd, .events = POLLIN},
    };
    eventfd_t count;

    pthread_mutex_unlock(&client->lock);
    int r = poll_until(fds, ARRAY_SIZE(fds), deadline_ns);
    if (r == 0 && fds[1].revents)
        (void)eventfd_read(wake_fd, &count);
    pthread_mutex_lock(&client->lock);
    if (r == 0 && fds[0].revents && client->reading)
        wake_wait(&client->reaper.wake, &client->lock, clock_now_ns() + TURN_NS);
}

/* A forked child gets no reply: frees calls that were left. */
static void
calls_abandon(struct caid_client *client)
{
    struct call *call, *next;

    for (call = TAILQ_FIRST(&client->calls); call; call = next) {
        next = TAILQ_NEXT(call, entry);
        if (call->left)
            call_end(client, call, fail(&call->error, CAID_ERR_FORKED, "forked"));
    }
}

const struct feature call_feature = {
    .due = due,
    .tidy = calls_tidy,
    .abandon = calls_abandon,
};

/* ---- replies to be read later ---- */

void
reply_deinit(struct reply *reply)
{
    msg_deinit(&reply->msg);
    free(reply->packet);
}

static int
reply_parse(struct reply *reply, enum msg_method method, void *ret_result)
{
    int r = msg_parse(&reply->msg, reply->packet, reply->n);
    return r < 0 ? r : msg_decode_result(&reply->msg, method, ret_result);
}

int
reply_get(struct reply *ret, struct caid_client *client, enum msg_method method,
          const void *params, void *ret_result, struct caid_error *error)
{
    struct call *call = call_new(sizeof(*call), method, params);

    if (call)
        call->copy = ret;
    int r = call_make(client, call, error);
    if (r < 0)
        return r;
    r = reply_parse(ret, method, ret_result);
    if (r == -EPROTO)
        return client_violated(client, msg_method_name(method), error);
    if (r < 0)
        return fail_errno(error, -r, "no memory for the %s reply", msg_method_name(method));
    return 0;
}
