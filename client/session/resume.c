/* SPDX-License-Identifier: Apache-2.0 */
#include "resume.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/packet.h"
#include "base/presence.h"
#include "base/thread.h"
#include "client.h"
#include "connect.h"
#include "feature.h"
#include "text.h"

#define PAUSE_MIN_NS (2 * NSEC_PER_MSEC) /* between two looks for a daemon */
#define PAUSE_MAX_NS (50 * NSEC_PER_MSEC)
#define ANSWER_NS    (5 * NSEC_PER_SEC) /* for each answer of its */

/* ---- what is claimed ---- */

void
claims_add(struct claims *claims, enum claim claim, uint64_t value)
{
    struct claim_list *list = &claims->lists[claim];

    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        uint64_t *v = reallocarray(list->v, capacity, sizeof(v[0]));
        claims->failed |= !v;
        if (!v)
            return;
        list->v = v;
        list->capacity = capacity;
    }
    list->v[list->n++] = value;
}

void
claims_add_begin(struct claims *claims, const struct msg_begin_params *params)
{
    struct packet *packet = calloc(1, sizeof(*packet));

    claims->failed |= !packet;
    if (!packet)
        return;
    claims->failed |= msg_encode_request(&packet->buf, CLAIM_ID, MSG_BEGIN, params) < 0;
    STAILQ_INSERT_TAIL(&claims->brackets, packet, entry);
}

static void
claims_deinit(struct claims *claims)
{
    struct packet *packet;

    for (size_t i = 0; i < N_CLAIMS; i++)
        free(claims->lists[i].v);
    while ((packet = STAILQ_FIRST(&claims->brackets))) {
        STAILQ_REMOVE_HEAD(&claims->brackets, entry);
        msg_buf_deinit(&packet->buf);
        free(packet);
    }
}

/* ---- a talk with the daemon, before anybody else has one ---- */

struct talk {
    int sock;
    uint32_t id;
    uint64_t left; /* of the last answer: what is not back yet */
    struct msg_buf out;
    struct msg msg;            /* the last reply */
    struct caid_error refused; /* code 0: nothing was */
    uint8_t packet[PROTO_PACKET_MAX];
};

static void
talk_deinit(struct talk *talk)
{
    msg_deinit(&talk->msg);
    msg_buf_deinit(&talk->out);
    fd_close(talk->sock);
}

/* Nothing that is asked here is answered with fds. */
static int
receive(struct talk *talk)
{
    ssize_t n = packet_recv(talk->sock, talk->packet, NULL, 0, NULL, 0);

    if (n <= 0)
        return n < 0 ? (int)n : -ECONNRESET;
    msg_deinit(&talk->msg);
    return msg_parse(&talk->msg, talk->packet, (size_t)n);
}

/* It may say otherwise later: its driver is not there yet, others have left no room. */
static bool
is_passing(uint32_t error)
{
    return error == PROTO_ERR_NOT_READY || error == PROTO_ERR_LIMIT ||
           error == PROTO_ERR_QUOTA || error == PROTO_ERR_SHUTDOWN;
}

/* -EREMOTEIO: it refuses; -EAGAIN: for now. What the result borrows stays until the next one. */
static int
ask_packet(struct talk *talk, const struct msg_buf *packet, uint32_t id, enum msg_method method,
           void *ret_result)
{
    int r = packet_send(talk->sock, packet->data, packet->n, NULL, 0, 0);

    if (r == 0)
        r = receive(talk);
    if (r < 0)
        return r;
    if (talk->msg.type != MSG_RESPONSE || talk->msg.id != id)
        return -EPROTO;
    talk->left = talk->msg.error_left;
    if (is_passing(talk->msg.error))
        return -EAGAIN;
    if (talk->msg.error != 0) {
        fail_wire(&talk->refused, &talk->msg);
        return -EREMOTEIO;
    }
    return msg_decode_result(&talk->msg, method, ret_result);
}

static int
ask(struct talk *talk, enum msg_method method, const void *params, void *ret_result)
{
    int r = msg_encode_request(&talk->out, ++talk->id, method, params);
    return r < 0 ? r : ask_packet(talk, &talk->out, talk->id, method, ret_result);
}

static int
set_timeouts(int sock)
{
    const struct timeval time = {.tv_sec = ANSWER_NS / NSEC_PER_SEC};

    return setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) < 0 ||
                   setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) < 0
               ? -errno
               : 0;
}

/* ---- the claims ---- */

static struct msg_u64s
take_some(struct claim_list *list, size_t *at, uint32_t width, uint32_t *room)
{
    size_t left = (list->n - *at) / width, n = left < *room ? left : *room;
    struct msg_u64s some = {.v = n ? list->v + *at : NULL, .n = (uint32_t)n * width};

    *at += n * width;
    *room -= (uint32_t)n;
    return some;
}

static int
ask_resume(struct talk *talk, const struct msg_resume_params *params, struct claims *claims)
{
    struct msg_resume_result result;
    int r = ask(talk, MSG_RESUME, params, &result);

    for (uint32_t i = 0; r == 0 && i < result.lost.n; i++)
        claims_add(claims, CLAIM_LOST, result.lost.v[i]);
    return r == 0 && claims->failed ? -ENOMEM : r;
}

/* Leases come after the blocks that they are in, and ends after the pages of their fences. */
static int
tell_claims(struct talk *talk, struct claims *claims)
{
    struct claim_list *l = claims->lists;
    size_t at[N_CLAIMS] = {0};
    uint32_t room;
    int r = 0;

    do {
        room = PROTO_RESUME_MAX;
        const struct msg_resume_params params = {
            .blocks = take_some(&l[CLAIM_BLOCK], &at[CLAIM_BLOCK], 1, &room),
            .pages = take_some(&l[CLAIM_PAGE], &at[CLAIM_PAGE], 1, &room),
            .parts = take_some(&l[CLAIM_PART], &at[CLAIM_PART], 1, &room),
            .read = take_some(&l[CLAIM_READ], &at[CLAIM_READ], 2, &room),
            .write = take_some(&l[CLAIM_WRITE], &at[CLAIM_WRITE], 2, &room),
            .ended = take_some(&l[CLAIM_ENDED], &at[CLAIM_ENDED], 5, &room),
        };
        r = ask_resume(talk, &params, claims);
    } while (r == 0 && room == 0);
    return r;
}

static int
tell_brackets(struct talk *talk, const struct packet_list *brackets)
{
    struct msg_fences_result result;
    const struct packet *packet;
    int r = 0;

    STAILQ_FOREACH(packet, brackets, entry)
        if (r == 0)
            r = ask_packet(talk, &packet->buf, CLAIM_ID, MSG_BEGIN, &result);
    return r;
}

static bool
are_none(const struct claims *claims)
{
    for (size_t i = 0; i < N_CLAIMED; i++)
        if (claims->lists[i].n > 0)
            return false;
    return STAILQ_EMPTY(&claims->brackets) && claims->deferring == 0;
}

/* Of more, the daemon does not know what it has answered. */
static void
claim_call(struct claims *claims, enum claim claim, const struct call *call)
{
    if (claims->lists[claim].n < PROTO_RESUME_MAX / 2)
        claims_add(claims, claim, call->seq);
}

/* What is repeated may have been carried out; of that, the daemon that comes next knows. */
static void
claim_calls(struct caid_client *client, struct claims *claims)
{
    const struct call *call;

    TAILQ_FOREACH(call, &client->calls, entry)
        if (call->method == MSG_TAKE && !call->left)
            claim_call(claims, CLAIM_REPEAT, call);
        else if (call->method == MSG_CREATE && call->left)
            claim_call(claims, CLAIM_UNDO, call);
    claims->failed |= call_repeat_all(client) < 0;
}

static struct msg_u64s
all_of(const struct claim_list *list)
{
    return (struct msg_u64s){.v = list->v, .n = (uint32_t)list->n};
}

static int
tell_done(struct talk *talk, struct claims *claims)
{
    const struct msg_resume_params params = {
        .repeats = all_of(&claims->lists[CLAIM_REPEAT]),
        .undo = all_of(&claims->lists[CLAIM_UNDO]),
        .deferring = claims->deferring,
        .done = true,
    };

    return ask_resume(talk, &params, claims);
}

/* Under the client's lock. */
static int
collect(struct caid_client *client, struct claims *claims)
{
    FEATURES_DO(client, claim, client, claims);
    claim_calls(client, claims);
    claims->deferring = client->deferring;
    return claims->failed ? -ENOMEM : 0;
}

/* Who has nothing need not be known. */
static int
tell_all(struct talk *talk, struct claims *claims, bool is_known)
{
    int r = is_known || are_none(claims) ? 0 : -EREMOTEIO;

    if (r == 0 && is_known)
        r = tell_claims(talk, claims);
    if (r == 0 && is_known)
        r = tell_brackets(talk, &claims->brackets);
    if (r == 0 && is_known)
        r = tell_done(talk, claims);
    return r;
}

/* ---- the return ---- */

/* 1: it knows us. -EREMOTEIO: it is another kind of daemon. From its answer on it knows us by the
 * new token, also where it dies at once. */
static int
hello(struct caid_client *client, struct talk *talk)
{
    const struct msg_str resume = MSG_STR("resume");
    const struct msg_hello_params params = {
        .version_min = PROTO_VERSION_MIN,
        .version_max = PROTO_VERSION_MAX,
        .client = msg_str_opt(client->name[0] ? client->name : NULL),
        .features = {.v = &resume, .n = 1},
        .token = {.v = client->resume.token, .n = 2},
    };
    struct msg_hello_result result;
    int r;

    if (client->resume.sees_daemon && !presence_is_taken(client->socket))
        return -EAGAIN; /* it was stopped: it is not for us to have it started */
    r = packet_connect_within(client->socket, ANSWER_NS, &talk->sock);

    if (r == 0)
        r = set_timeouts(talk->sock);
    if (r == 0)
        r = ask(talk, MSG_HELLO, &params, &result);
    if (r < 0)
        return r;
    if (result.token.n != 2) /* it is on its way out */
        return -EAGAIN;
    if (result.n_devices != client->n_devices)
        return -EREMOTEIO;
    memcpy(client->resume.token, result.token.v, sizeof(client->resume.token));
    return result.resumed;
}

/* Whoever polls the old one goes on with the new one. */
static int
replace_socket(struct caid_client *client, struct talk *talk)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = client->sock};

    if (dup3(talk->sock, client->sock, O_CLOEXEC) < 0)
        return -errno;
    if (client->epoll_fd >= 0 &&
        epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->sock, &event) < 0)
        return -errno;
    return 0;
}

/* Their arrays are told. */
static void
lose_leases(struct caid_client *client, const struct claim_list *lost)
{
    for (size_t i = 0; i < lost->n; i++)
        FEATURES_DO(client, lost_lease, client, lost->v[i]);
}

/* Drops the lock meanwhile. */
static int
come_back(struct caid_client *client, struct talk *talk, bool is_known)
{
    _cleanup_(claims_deinit) struct claims claims = {
        .brackets = STAILQ_HEAD_INITIALIZER(claims.brackets),
    };
    struct resume *resume = &client->resume;

    while (client->reading) /* of the socket that is shut down */
        wake_wait(&resume->wake, &client->lock, clock_now_ns() + PAUSE_MIN_NS);
    int r = collect(client, &claims);
    resume->sock = talk->sock;
    pthread_mutex_unlock(&client->lock);
    if (r == 0)
        r = tell_all(talk, &claims, is_known);
    pthread_mutex_lock(&client->lock);
    resume->sock = -1;
    if (r == 0 && (!client->away || resume->ends))
        r = -ECANCELED;
    if (r == 0)
        r = replace_socket(client, talk);
    if (r < 0)
        return r;
    lose_leases(client, &claims.lists[CLAIM_LOST]);
    client->away = false;
    resume->n_returns++;
    call_end_unrepeated(client);
    if (call_flush(client) < 0)
        reaper_kick(client); /* what does not fit goes later */
    wake_all(&resume->back);
    call_pass_reading_on(client);
    return 0;
}

/* Under lock, which it drops meanwhile. 0, or it is to be tried again. */
static int
seek(struct caid_client *client)
{
    _cleanup_(talk_deinit) struct talk talk = {.sock = -1};

    pthread_mutex_unlock(&client->lock);
    int r = hello(client, &talk);
    pthread_mutex_lock(&client->lock);
    if (talk.left && (!client->resume.left || talk.left < client->resume.left))
        client->resume.since_ns = clock_now_ns(); /* it comes on */
    client->resume.left = talk.left;
    if (r >= 0 && client->away && !client->resume.ends)
        r = come_back(client, &talk, r > 0);
    if (r != -EREMOTEIO)
        return r;
    client_lose(client, CAID_ERR_DISCONNECTED, "%s: the daemon was started anew: %s",
                client->socket,
                talk.refused.code ? talk.refused.message : "it does not know this client");
    return 0;
}

static void
tell_return(struct caid_client *client)
{
    uint64_t n_lost = client->resume.n_lost;

    client->resume.n_lost = 0;
    pthread_mutex_unlock(&client->lock);
    client->returned(n_lost, client->userdata);
    pthread_mutex_lock(&client->lock);
}

static void
claim_creates(const struct caid_client *client, struct claims *undone)
{
    const struct call *call;

    TAILQ_FOREACH(call, &client->calls, entry)
        if (call->method == MSG_CREATE)
            claim_call(undone, CLAIM_UNDO, call);
}

/* What calls have made that will not hear of it is to be undone, where that can be said. */
static void
seek_until(struct caid_client *client, struct claims *undone)
{
    struct resume *resume = &client->resume;
    uint64_t pause_ns = PAUSE_MIN_NS;
    uint64_t n_returns = resume->n_returns;

    while (client->away && !resume->ends) {
        int r = seek(client);
        if (r < 0 && clock_now_ns() >= resume->since_ns + resume->timeout_ns) {
            claim_creates(client, undone);
            client_lose(client, CAID_ERR_DISCONNECTED,
                        "%s: the daemon has gone, and has not come back in %g s",
                        client->socket, (double)resume->timeout_ns / NSEC_PER_SEC);
        } else if (r < 0) {
            wake_wait(&resume->wake, &client->lock, clock_now_ns() + pause_ns);
        }
        pause_ns = 2 * pause_ns < PAUSE_MAX_NS ? 2 * pause_ns : PAUSE_MAX_NS;
    }
    if (resume->n_returns != n_returns && client->returned)
        tell_return(client);
}

/* What the daemon said before it went is taken first; where another thread reads, by that one. */
static void
await_hangup(struct caid_client *client)
{
    struct pollfd poll_fd = {.fd = client->sock, .events = POLLRDHUP};

    pthread_mutex_unlock(&client->lock);
    int r = poll(&poll_fd, 1, -1);
    pthread_mutex_lock(&client->lock);
    if (r <= 0 || client->away || client->resume.ends || client->lost.code != 0)
        return;
    call_dispatch(client);
    if (!client->away)
        wake_wait(&client->resume.wake, &client->lock, clock_now_ns() + PAUSE_MIN_NS);
}

/* Others need not wait for this client. 0: they do not. */
static int
say_goodbye(struct caid_client *client, const struct claims *undone)
{
    const struct msg_resume_params params = {.undo = all_of(&undone->lists[CLAIM_UNDO]),
                                             .done = true,
                                             .leaves = true};
    _cleanup_(talk_deinit) struct talk talk = {.sock = -1};
    struct msg_resume_result result;
    int r = hello(client, &talk);

    return r > 0 ? ask(&talk, MSG_RESUME, &params, &result) : r;
}

/* As soon as there is a daemon; where the client closes, if there is one by now. */
static void
leave(struct caid_client *client, const struct claims *undone)
{
    struct resume *resume = &client->resume;

    for (;;) {
        pthread_mutex_unlock(&client->lock);
        int r = say_goodbye(client, undone);
        pthread_mutex_lock(&client->lock);
        if (r >= 0 || r == -EREMOTEIO || resume->ends)
            return;
        wake_wait(&resume->wake, &client->lock, clock_now_ns() + PAUSE_MAX_NS);
    }
}

static void *
run(void *userdata)
{
    _cleanup_(claims_deinit) struct claims undone = {0};
    struct caid_client *client = userdata;
    bool was_away = false;

    pthread_mutex_lock(&client->lock);
    while (!client->resume.ends && client->lost.code == 0) {
        was_away = client->away;
        if (client->away)
            seek_until(client, &undone);
        else
            await_hangup(client);
    }
    if (was_away && (client->away || client->lost.code == CAID_ERR_DISCONNECTED))
        leave(client, &undone);
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* ---- for the others ---- */

/* Starts the thread. False: the client does not come back. */
static bool
start(struct caid_client *client)
{
    struct resume *resume = &client->resume;

    if (!resume->has_token || resume->timeout_ns == 0 || resume->ends || client->handle_closed)
        return false;
    if (!resume->started)
        resume->started = thread_spawn(&resume->thread, run, client) == 0;
    return resume->started;
}

void
resume_need(struct caid_client *client)
{
    start(client); /* where that fails, the hang-up is noticed by the next call */
}

static bool
hung_up(struct caid_client *client)
{
    if (client->away)
        return true;
    if (client->lost.code != 0 || !start(client))
        return false;
    client->away = true;
    if (client->epoll_fd >= 0)
        epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, client->sock, NULL);
    client->resume.since_ns = clock_now_ns();
    shutdown(client->sock, SHUT_RDWR); /* wakes those who read, and the thread */
    wake_all(&client->resume.wake);
    return true;
}

const struct feature resume_feature = {.hung_up = hung_up};

void
resume_stop(struct caid_client *client)
{
    struct resume *resume = &client->resume;

    resume->ends = true;
    if (!resume->started)
        return;
    wake_all(&resume->wake);
    shutdown(client->sock, SHUT_RDWR);
    if (resume->sock >= 0)
        shutdown(resume->sock, SHUT_RDWR);
    pthread_mutex_unlock(&client->lock);
    pthread_join(resume->thread, NULL);
    pthread_mutex_lock(&client->lock);
}
