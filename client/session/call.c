/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/packet.h"
#include "client.h"
#include "feature.h"
#include "interrupt.h"
#include "late.h"
#include "spin.h"

/* How long a client that ends waits for the daemon to read. */
#define FLUSH_NS NSEC_PER_SEC

static void
call_fds_closep(struct call_fds *fds)
{
    for (size_t i = 0; i < fds->n; i++)
        fd_close(fds->fd[i]);
}

static struct call_list *
list_of(struct caid_client *client, const struct call *call)
{
    return call->end ? &client->standing : &client->calls;
}

/* Lists the call as in flight. */
static void
call_begin(struct caid_client *client, struct call *call, uint64_t seq)
{
    call->seq = client->seq = seq;
    call->done = false;
    TAILQ_INSERT_TAIL(list_of(client, call), call, entry);
    client->n_block_calls += call->has_blocks;
    client->n_page_calls += call->has_pages;
}

/* Takes the call out of those in flight. */
static void
call_end(struct caid_client *client, struct call *call, int r)
{
    TAILQ_REMOVE(list_of(client, call), call, entry);
    client->n_block_calls -= call->has_blocks;
    client->n_page_calls -= call->has_pages;
    client->n_late -= call->late;
    call->late = false;
    if (client->barrier && client->n_block_calls == 0)
        reaper_wake(client);
    call->r = r;
    call->done = true;
    wake_all(&call->wake);
    if (call->end)
        call->end(client, call);
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
    fail_list(client, &client->standing);
}

/* ---- sending ---- */

/* The socket failed. What the daemon may have said before it left is not waited for. */
static int
send_failed(struct caid_client *client, int r)
{
    if (resume_away(client))
        return -EAGAIN;
    errno = -r;
    client_lose(client, CAID_ERR_DISCONNECTED, "%s: the connection to the daemon is lost: %m",
                client->socket);
    return r;
}

static int
send_out(struct caid_client *client)
{
    int r = client->away ? -EAGAIN
                         : packet_send(client->sock, client->out.data, client->out.n, NULL, 0,
                                       MSG_DONTWAIT);
    return r == 0 || r == -EAGAIN ? r : send_failed(client, r);
}

int
call_notify(struct caid_client *client, enum msg_method method, const void *params)
{
    int r = msg_encode_notify(&client->out, method, params);
    return r < 0 ? r : send_out(client);
}

bool
call_has_unsent(const struct caid_client *client)
{
    if (client->lost.code != 0)
        return false;
    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->has_unsent && (*feature)->has_unsent(client))
            return true;
    return false;
}

int
call_flush(struct caid_client *client)
{
    int r = 0;

    for (const struct feature *const *feature = client->features; r == 0 && *feature; feature++)
        if ((*feature)->flush)
            r = (*feature)->flush(client);
    return r;
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

/* A daemon that does not read is not to stop the threads that have a reply to read. 0, or
 * -ETIMEDOUT, -EINTR. */
static int
wait_for_room(struct caid_client *client, uint64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = client->sock, .events = POLLOUT};

    if (client->away)
        return wake_wait(&client->resume.back, &client->lock, deadline_ns);
    pthread_mutex_unlock(&client->lock);
    int r = poll_until(&poll_fd, 1, deadline_ns);
    pthread_mutex_lock(&client->lock);
    return r;
}

void
call_flush_all(struct caid_client *client)
{
    uint64_t end_ns = clock_now_ns() + FLUSH_NS;

    while (call_flush(client) < 0 && client->lost.code == 0 &&
           wait_for_room(client, end_ns) != -ETIMEDOUT)
        ;
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

static struct call *
find_in(const struct call_list *list, uint32_t id)
{
    struct call *call;

    TAILQ_FOREACH(call, list, entry)
        if ((uint32_t)call->seq == id)
            return call;
    return NULL;
}

static struct call *
find_call(const struct caid_client *client, uint32_t id)
{
    struct call *call = find_in(&client->calls, id);
    return call ? call : find_in(&client->standing, id);
}

/* Once the ids have gone round, one that is still in flight is left out. */
static uint64_t
next_seq(const struct caid_client *client)
{
    uint64_t seq = client->seq + 1;

    while (seq > UINT32_MAX && find_call(client, (uint32_t)seq))
        seq++;
    return seq;
}

int
call_post(struct caid_client *client, struct call *call, struct caid_error *error)
{
    uint64_t seq = next_seq(client);

    int r = encode(client, call, seq, error);
    if (r < 0)
        return r;
    r = send_out(client);
    if (client->lost.code != 0)
        return fail_again(error, &client->lost);
    if (r < 0)
        return 1; /* -EAGAIN */
    call_begin(client, call, seq);
    return 0;
}

/* Closes that wait go first: what the daemon sends for this request depends on them. */
static int
send_once(struct caid_client *client, struct call *call, struct caid_error *error)
{
    int r = call_flush(client);
    if (client->lost.code != 0)
        return fail_again(error, &client->lost);
    if (r == -ENOMEM)
        return fail_errno(error, ENOMEM, "cannot tell the daemon what waits to be told");
    return r < 0 ? 1 : call_post(client, call, error);
}

static uint64_t
timeout_of(const struct caid_client *client, const struct call *call)
{
    return call->timeout_ns ? call->timeout_ns : client->call_timeout_ns;
}

/* Nothing has been sent: the call leaves nothing behind. */
static int
fail_unsent(const struct caid_client *client, const struct call *call, struct caid_error *error)
{
    return fail(error, CAID_ERR_TIMEOUT,
                "%s: the daemon took no %s request in %g s: is it stopped?", client->socket,
                msg_method_name(call->method), (double)timeout_of(client, call) / NSEC_PER_SEC);
}

/* While blocks are to be forgotten, no call begins that could refer to them. Else 1 where the
 * socket took nothing. */
static int
try_to_send(struct caid_client *client, struct call *call, struct caid_error *error)
{
    if (call->has_blocks && client->barrier && client->lost.code == 0)
        return 1;
    return send_once(client, call, error);
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
            return fail_unsent(client, call, error);
        r = interrupt_ask_unlocked(client, error);
        if (r < 0)
            return r;
    }
    return r;
}

/* ---- once more ---- */

static struct call *
next_of(struct call *a, struct call *b)
{
    return a && (!b || a->seq < b->seq) ? a : b;
}

void
call_claim_all(struct caid_client *client, struct claims *claims)
{
    struct call *a = TAILQ_FIRST(&client->calls), *b = TAILQ_FIRST(&client->standing), *call;

    while ((call = next_of(a, b))) {
        if (call == a)
            a = TAILQ_NEXT(a, entry);
        else
            b = TAILQ_NEXT(b, entry);
        call->repeats = !call->given_up;
        if (call->repeats)
            claims_add_request(claims, &claims->calls, (uint32_t)call->seq, call->method,
                               call->params);
    }
}

/* Their callers have gone, and what they would be granted is not claimed. */
void
call_end_unrepeated(struct caid_client *client)
{
    struct call *call, *next;

    for (call = TAILQ_FIRST(&client->standing); call; call = next) {
        next = TAILQ_NEXT(call, entry);
        if (!call->repeats)
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
    if (fds->n > 0 && (!(call->has_blocks || call->has_pages) || reply->error != 0))
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
        return; /* it has been ended with the others */

    if (r == -EPROTO && reply->error == 0)
        client_lose(client, CAID_ERR_PROTOCOL, "%s: the daemon sent a malformed %s reply",
                    client->socket, msg_method_name(call->method));
    else
        call_end(client, call, r);
}

/* What came instead of a packet: n is packet_recv()'s answer. */
static void
lose_reader(struct caid_client *client, ssize_t n)
{
    if (n != -EMSGSIZE && resume_away(client))
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
 * A reply that needs no driver call is here within some 10 us, less than it takes to fall asleep
 * and be woken on another CPU: looked for without sleeping at first, giving way to whoever wants
 * this CPU. On 32 CPUs that takes a quarter off a round trip; where the daemon shares this CPU it
 * costs at most what sched_yield() costs (docs/PERFORMANCE.md).
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

/* Receives and takes one packet. Returns false when there was none in spin_ns; unless that is 0,
 * the lock is dropped meanwhile. */
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

    if (n == -EAGAIN || n_returns != client->resume.n_returns) /* it is the daemon's that was */
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

static int
read_until(struct caid_client *client, uint64_t deadline_ns)
{
    struct pollfd fds[] = {
        {.fd = client->sock, .events = POLLIN},
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
    if (r == 0 && fds[0].revents && client->lost.code == 0)
        receive(client, 0);
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
                   struct caid_error *error)
{
    uint64_t until_ns = error ? interrupt_look_by(client, deadline_ns) : deadline_ns;

    int r = client->reading || client->away ? wait_for_reader(client, call, until_ns)
                                            : read_until(client, until_ns);
    return r < 0 && error ? interrupt_ask_unlocked(client, error) : 0;
}

int
call_wait_until(struct caid_client *client, struct call *call, uint64_t spin_until_ns,
                uint64_t deadline_ns, struct caid_error *error)
{
    uint64_t now;
    int r = 0;

    if (spin_until_ns > deadline_ns)
        spin_until_ns = deadline_ns;
    while (!call->done && !client->reading && (now = clock_now_ns()) < spin_until_ns)
        receive(client, spin_until_ns - now);
    while (!call->done && r == 0) {
        r = call_wait_for_news(client, call, deadline_ns, error);
        if (deadline_ns != UINT64_MAX && clock_now_ns() >= deadline_ns)
            break;
    }
    call_pass_reading_on(client);
    return call->done ? 0 : r < 0 ? r : 1;
}

/* Waits for the reply. Where that does not come in time, the call is given up. */
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
        late_give_up(client, call, &why);
    return call->r < 0 ? fail_again(error, &call->error) : call->r;
}

int
call_run(struct caid_client *client, struct call *call, struct caid_error *error)
{
    call->error.code = 0;
    int r = call_start(client, call, error);
    if (r == 0)
        r = call_wait(client, call, error);
    return r;
}

int
call_make(struct caid_client *client, struct call *call, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = call_run(client, call, error);
    client_leave(client);
    return r;
}

int
call_ask(struct caid_client *client, enum msg_method method, const void *params,
         struct caid_error *error)
{
    struct call call = {.method = method, .params = params};
    return call_make(client, &call, error);
}

void
call_dispatch(struct caid_client *client)
{
    call_flush(client);
    while (client->lost.code == 0 && !client->reading && receive(client, 0))
        ;
}

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
    struct call call = {.method = method, .params = params, .copy = ret};

    int r = call_make(client, &call, error);
    if (r < 0)
        return r;
    r = reply_parse(ret, method, ret_result);
    if (r == -EPROTO)
        return client_violated(client, msg_method_name(method), error);
    if (r < 0)
        return fail_errno(error, -r, "no memory for the %s reply", msg_method_name(method));
    return 0;
}
