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
#define ANSWER_NS    (5 * NSEC_PER_SEC)   /* for each answer of the daemon */
#define FAREWELL_NS  (600 * NSEC_PER_SEC) /* how long to look for a daemon that is to be told */

/* ---- the inventory ---- */

void
inventory_add(struct inventory *inventory, enum inventory_kind kind, uint64_t value)
{
    struct inventory_list *list = &inventory->lists[kind];

    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        uint64_t *v = reallocarray(list->v, capacity, sizeof(v[0]));
        inventory->failed |= !v;
        if (!v)
            return;
        list->v = v;
        list->capacity = capacity;
    }
    list->v[list->n++] = value;
}

void
inventory_add_begin(struct inventory *inventory, const struct msg_begin_params *params)
{
    const struct msg_u64s *lists[] = {&params->read, &params->write, &params->read_ranges,
                                      &params->write_ranges};

    inventory_add(inventory, INVENTORY_BEGIN, params->bracket);
    inventory_add(inventory, INVENTORY_BEGIN, params->thread);
    for (size_t k = 0; k < ARRAY_SIZE(lists); k++) {
        inventory_add(inventory, INVENTORY_BEGIN, lists[k]->n);
        for (uint32_t i = 0; i < lists[k]->n; i++)
            inventory_add(inventory, INVENTORY_BEGIN, lists[k]->v[i]);
    }
}

static void
inventory_deinit(struct inventory *inventory)
{
    for (size_t i = 0; i < N_INVENTORY; i++)
        free(inventory->lists[i].v);
}

/* ---- calls that are made before the client's own ---- */

/* A client without features, for the calls of one attempt to resume. */
static struct caid_client *
talk_new(const struct caid_client *client)
{
    static const struct feature *const none[] = {NULL};
    struct caid_client *talk = calloc(1, sizeof(*talk));

    if (!talk)
        return NULL;
    client_init(talk, none);
    memcpy(talk->socket, client->socket, sizeof(talk->socket));
    memcpy(talk->name, client->name, sizeof(talk->name));
    memcpy(talk->resume.token, client->resume.token, sizeof(talk->resume.token));
    talk->resume.sees_daemon = client->resume.sees_daemon;
    talk->n_devices = client->n_devices;
    talk->call_timeout_ns = ANSWER_NS;
    return talk;
}

/* Ends its connection, and its call under way. */
static void
talk_cancel(struct caid_client *talk)
{
    client_enter_anyway(talk);
    client_lose(talk, CAID_ERR_CLOSED, "%s: the client is closed", talk->socket);
    client_leave(talk);
}

static void
talk_free(struct caid_client *talk)
{
    talk_cancel(talk); /* abandoned calls, too */
    client_unref(talk);
}

/* Whether another attempt may succeed: the driver is not there yet, limits are reached, or the
 * daemon has not answered and the failure is our own. */
static bool
is_passing(int32_t code)
{
    return code == CAID_ERR_NOT_READY || code == CAID_ERR_LIMIT || code == CAID_ERR_QUOTA ||
           code == CAID_ERR_SHUTDOWN || code == CAID_ERR_TIMEOUT || code >= CAID_ERR_NO_DAEMON;
}

/* -EREMOTEIO: the daemon refuses; -EAGAIN: it may accept later. */
static int
resume_ask(struct caid_client *talk, enum msg_method method, const void *params,
           struct reply *reply, void *ret_result, struct caid_error *why)
{
    int r = reply_get(reply, talk, method, params, ret_result, why);
    return r == 0 ? 0 : is_passing(why->code) ? -EAGAIN : -EREMOTEIO;
}

/* ---- sending the inventory ---- */

static struct msg_u64s
take_some(struct inventory_list *list, size_t *at, uint32_t width, uint32_t *room)
{
    size_t left = (list->n - *at) / width, n = left < *room ? left : *room;
    struct msg_u64s some = {.v = n ? list->v + *at : NULL, .n = (uint32_t)n * width};

    *at += n * width;
    *room -= (uint32_t)n;
    return some;
}

static int
ask_resume(struct caid_client *talk, const struct msg_resume_params *params,
           struct inventory *inventory, struct caid_error *why)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_resume_result result;
    int r = resume_ask(talk, MSG_RESUME, params, &reply, &result, why);

    for (uint32_t i = 0; r == 0 && i < result.lost.n; i++)
        inventory_add(inventory, INVENTORY_LOST, result.lost.v[i]);
    return r == 0 && inventory->failed ? -ENOMEM : r;
}

/* Blocks come before the leases in them, and pages before the ends with fences in them. */
static int
send_inventory(struct caid_client *talk, struct inventory *inventory, struct caid_error *why)
{
    struct inventory_list *l = inventory->lists;
    size_t at[N_INVENTORY] = {0};
    uint32_t room;
    int r = 0;

    do {
        room = PROTO_RESUME_MAX;
        const struct msg_resume_params params = {
            .blocks = take_some(&l[INVENTORY_BLOCK], &at[INVENTORY_BLOCK], 1, &room),
            .pages = take_some(&l[INVENTORY_PAGE], &at[INVENTORY_PAGE], 1, &room),
            .parts = take_some(&l[INVENTORY_PART], &at[INVENTORY_PART], 1, &room),
            .read = take_some(&l[INVENTORY_READ], &at[INVENTORY_READ], 2, &room),
            .write = take_some(&l[INVENTORY_WRITE], &at[INVENTORY_WRITE], 2, &room),
            .ended = take_some(&l[INVENTORY_ENDED], &at[INVENTORY_ENDED], 5, &room),
        };
        r = ask_resume(talk, &params, inventory, why);
    } while (r == 0 && room == 0);
    return r;
}

/* One of the lists of inventory_add_begin(); *at moves behind it. */
static struct msg_u64s
take_list(const uint64_t **at)
{
    uint32_t n = (uint32_t) * *at;
    const uint64_t *v = *at + 1;

    *at = v + n;
    return (struct msg_u64s){n ? v : NULL, n};
}

static int
send_brackets(struct caid_client *talk, const struct inventory *inventory,
              struct caid_error *why)
{
    const struct inventory_list *list = &inventory->lists[INVENTORY_BEGIN];
    const uint64_t *at = list->v;
    int r = 0;

    while (r == 0 && at < list->v + list->n) {
        _cleanup_reply_ struct reply reply = {0};
        struct msg_begin_params params = {.bracket = at[0], .thread = at[1], .again = true};
        struct msg_fences_result result;
        at += 2;
        params.read = take_list(&at);
        params.write = take_list(&at);
        params.read_ranges = take_list(&at);
        params.write_ranges = take_list(&at);
        r = resume_ask(talk, MSG_BEGIN, &params, &reply, &result, why);
    }
    return r;
}

static bool
are_none(const struct inventory *inventory)
{
    for (size_t i = 0; i < N_INVENTORY_OWN; i++)
        if (inventory->lists[i].n > 0)
            return false;
    return inventory->deferring == 0;
}

/* The daemon remembers no more answers than that. */
static void
inventory_call(struct inventory *inventory, enum inventory_kind kind, const struct call *call)
{
    if (inventory->lists[kind].n < PROTO_RESUME_MAX / 2)
        inventory_add(inventory, kind, call->seq);
}

/* Calls that will be repeated, although an earlier daemon may have carried them out: the next one
 * remembers which. */
static void
inventory_calls(struct caid_client *client, struct inventory *inventory)
{
    const struct call *call;

    TAILQ_FOREACH(call, &client->calls, entry)
        if (call->method == MSG_TAKE && !call->left)
            inventory_call(inventory, INVENTORY_REPEAT, call);
        else if (call->method == MSG_CREATE && call->left)
            inventory_call(inventory, INVENTORY_UNDO, call);
    inventory->failed |= call_repeat_all(client) < 0;
}

static struct msg_u64s
all_of(const struct inventory_list *list)
{
    return (struct msg_u64s){.v = list->v, .n = (uint32_t)list->n};
}

static int
send_done(struct caid_client *talk, struct inventory *inventory, struct caid_error *why)
{
    const struct msg_resume_params params = {
        .repeats = all_of(&inventory->lists[INVENTORY_REPEAT]),
        .undo = all_of(&inventory->lists[INVENTORY_UNDO]),
        .deferring = inventory->deferring,
        .done = true,
    };

    return ask_resume(talk, &params, inventory, why);
}

/* Under the client's lock. */
static int
collect(struct caid_client *client, struct inventory *inventory)
{
    FEATURES_DO(client, take_inventory, client, inventory);
    inventory_calls(client, inventory);
    inventory->deferring = client->deferring;
    return inventory->failed ? -ENOMEM : 0;
}

static bool
is_ending(struct caid_client *client)
{
    pthread_mutex_lock(&client->lock);
    bool ends = client->resume.ends;
    pthread_mutex_unlock(&client->lock);
    return ends;
}

/* A client that has nothing need not be known to the daemon. */
static int
send_all(struct caid_client *client, struct caid_client *talk, struct inventory *inventory,
         bool is_known, struct caid_error *why)
{
    int r = is_known || are_none(inventory) ? 0 : -EREMOTEIO;

    if (r == 0 && is_known)
        r = send_inventory(talk, inventory, why);
    if (r == 0 && is_known)
        r = send_brackets(talk, inventory, why);
    if (r == 0 && is_known && is_ending(client))
        r = -ECANCELED; /* after RESUME is done, it could not say any more that it leaves */
    if (r == 0 && is_known)
        r = send_done(talk, inventory, why);
    return r;
}

/* ---- coming back ---- */

/* In short steps: the client may close meanwhile. */
static int
reach(struct caid_client *talk)
{
    uint64_t end_ns = clock_now_ns() + ANSWER_NS;
    int fd, r;

    do {
        if (client_enter(talk, NULL) < 0)
            return -ECANCELED;
        client_leave(talk);
        r = packet_connect_within(talk->socket, PAUSE_MAX_NS, &fd);
    } while (r == -EAGAIN && clock_now_ns() < end_ns);
    if (r < 0)
        return r;
    client_enter_anyway(talk);
    talk->sock = fd;
    client_leave(talk);
    return 0;
}

/* 1: the daemon knows the client. -EREMOTEIO: it is another kind of daemon. As soon as it has
 * answered, it knows the client by the new token, also if the connection ends at once. So `talk`
 * has that token now. */
static int
hello(struct caid_client *talk, struct caid_error *why)
{
    _cleanup_reply_ struct reply reply = {0};
    const struct msg_str features[] = {MSG_STR("told"), MSG_STR("resume")};
    const struct msg_hello_params params = {
        .version_min = PROTO_VERSION_MIN,
        .version_max = PROTO_VERSION_MAX,
        .client = msg_str_opt(talk->name[0] ? talk->name : NULL),
        .features = {.v = features, .n = ARRAY_SIZE(features)},
        .token = {.v = talk->resume.token, .n = 2},
    };
    struct msg_hello_result result;

    if (talk->resume.sees_daemon && !presence_is_taken(talk->socket))
        return -EAGAIN; /* the daemon was stopped: do not have its socket start it */
    int r = reach(talk);
    if (r == 0)
        r = resume_ask(talk, MSG_HELLO, &params, &reply, &result, why);
    if (r < 0)
        return r;
    if (result.token.n != 2) /* it is stopping */
        return -EAGAIN;
    if (result.n_devices != talk->n_devices)
        return -EREMOTEIO;
    memcpy(talk->resume.token, result.token.v, sizeof(talk->resume.token));
    return result.resumed;
}

/* The program may poll the fd: the new socket takes the number of the old one. */
static int
replace_socket(struct caid_client *client, struct caid_client *talk)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = client->sock};

    if (dup3(talk->sock, client->sock, O_CLOEXEC) < 0)
        return -errno;
    talk->sock = fd_close(talk->sock); /* `talk` is freed without closing it */
    if (client->epoll_fd >= 0 &&
        epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->sock, &event) < 0)
        return -errno;
    return 0;
}

/* Tells the arrays whose leases are gone. */
static void
lose_leases(struct caid_client *client, const struct inventory_list *lost)
{
    for (size_t i = 0; i < lost->n; i++)
        FEATURES_DO(client, lost_lease, client, lost->v[i]);
}

/* Drops the lock meanwhile. */
static int
come_back(struct caid_client *client, struct caid_client *talk, bool is_known,
          struct caid_error *why)
{
    _cleanup_(inventory_deinit) struct inventory inventory = {0};
    struct resume *resume = &client->resume;

    while (client->reading) /* of the socket that is shut down */
        wake_wait(&resume->wake, &client->lock, clock_now_ns() + PAUSE_MIN_NS);
    int r = collect(client, &inventory);
    pthread_mutex_unlock(&client->lock);
    if (r == 0)
        r = send_all(client, talk, &inventory, is_known, why);
    pthread_mutex_lock(&client->lock);
    if (r == 0 && (!client->away || resume->ends))
        r = -ECANCELED;
    if (r == 0)
        r = replace_socket(client, talk);
    if (r < 0)
        return r;
    lose_leases(client, &inventory.lists[INVENTORY_LOST]);
    client->away = false;
    resume->n_returns++;
    call_end_unrepeated(client);
    if (call_flush(client) < 0)
        reaper_kick(client); /* what does not fit goes later */
    wake_all(&resume->back);
    call_pass_reading_on(client);
    return 0;
}

/* Under lock, which it drops meanwhile. */
static int
talk_over(struct caid_client *client, struct caid_client *talk, struct caid_error *why)
{
    struct resume *resume = &client->resume;

    resume->talk = talk;
    pthread_mutex_unlock(&client->lock);
    int r = hello(talk, why);
    pthread_mutex_lock(&client->lock);
    memcpy(resume->token, talk->resume.token, sizeof(resume->token));
    if (talk->left && (!resume->left || talk->left < resume->left)) {
        resume->since_ns = clock_now_ns(); /* progress: the time to wait begins anew */
        resume->left = talk->left;
    }
    if (r >= 0 && client->away && !resume->ends)
        r = come_back(client, talk, r > 0, why);
    resume->talk = NULL;
    return r;
}

/* Under the lock, which it drops meanwhile. 0: resumed, or lost; -errno: try again. */
static int
seek(struct caid_client *client)
{
    struct caid_client *talk = talk_new(client);
    struct caid_error why = {0};

    int r = talk ? talk_over(client, talk, &why) : -ENOMEM;
    if (talk)
        talk_free(talk);
    if (r != -EREMOTEIO)
        return r;
    if (why.code == CAID_ERR_KICKED)
        client_lose(client, why.code, "%s", why.message);
    else
        client_lose(client, CAID_ERR_DISCONNECTED, "%s: the daemon was started anew: %s",
                    client->socket, why.code ? why.message : "it does not know this client");
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
inventory_creates(const struct caid_client *client, struct inventory *undone)
{
    const struct call *call;

    TAILQ_FOREACH(call, &client->calls, entry)
        if (call->method == MSG_CREATE)
            inventory_call(undone, INVENTORY_UNDO, call);
}

/* Undoes what calls have created whose callers do not hear of it, as far as the daemon can be
 * told. */
static void
seek_until(struct caid_client *client, struct inventory *undone)
{
    struct resume *resume = &client->resume;
    uint64_t pause_ns = PAUSE_MIN_NS;
    uint64_t n_returns = resume->n_returns;

    while (client->away && !resume->ends) {
        int r = seek(client);
        if (r < 0 && clock_now_ns() - resume->since_ns >= resume->timeout_ns) {
            inventory_creates(client, undone);
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

/* Messages that came before the hang-up are handled first, by the thread that reads if there is
 * one. */
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

/* ---- the end ---- */

/* A client that does not come back, which the next daemon is to be told: on a thread of its own, so
 * that the program need not wait. */
struct farewell {
    struct caid_client *as;
    struct inventory undone;
    uint64_t until_ns;
};

static void
farewell_free(struct farewell *farewell)
{
    client_unref(farewell->as);
    inventory_deinit(&farewell->undone);
    free(farewell);
}

/* Tells the daemon that nobody need wait for this client. -EAGAIN: not yet. */
static int
say_goodbye(struct farewell *farewell)
{
    _cleanup_reply_ struct reply reply = {0};
    const struct msg_resume_params params = {
        .undo = all_of(&farewell->undone.lists[INVENTORY_UNDO]),
        .done = true,
        .leaves = true,
    };
    struct caid_client *talk = talk_new(farewell->as);
    struct msg_resume_result result;
    struct caid_error why = {0};

    if (!talk)
        return -ENOMEM;
    int r = hello(talk, &why);
    memcpy(farewell->as->resume.token, talk->resume.token, sizeof(talk->resume.token));
    if (r > 0)
        r = resume_ask(talk, MSG_RESUME, &params, &reply, &result, &why);
    talk_free(talk);
    return r;
}

static void *
run_farewell(void *userdata)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MAX_NS};
    struct farewell *farewell = userdata;
    int r;

    while ((r = say_goodbye(farewell)) < 0 && r != -EREMOTEIO &&
           clock_now_ns() < farewell->until_ns)
        nanosleep(&pause, NULL);
    farewell_free(farewell);
    return NULL;
}

static void
resume_leave(const struct caid_client *client, struct inventory *undone)
{
    struct farewell *farewell = calloc(1, sizeof(*farewell));
    pthread_t thread;

    if (!farewell || !(farewell->as = talk_new(client))) {
        free(farewell);
        return;
    }
    farewell->undone = *undone;
    *undone = (struct inventory){0};
    farewell->until_ns = clock_now_ns() + FAREWELL_NS;
    if (thread_spawn(&thread, run_farewell, farewell) == 0)
        pthread_detach(thread);
    else
        farewell_free(farewell);
}

static void *
resume_run(void *userdata)
{
    _cleanup_(inventory_deinit) struct inventory undone = {0};
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
    if (was_away && client->lost.code != CAID_ERR_PROTOCOL &&
        client->lost.code != CAID_ERR_KICKED) /* its token is void */
        resume_leave(client, &undone);
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* ---- for the others ---- */

void
resume_watch(struct caid_client *client)
{
    struct resume *resume = &client->resume;

    if (!resume->started && !resume->ends && !client->handle_closed && client->lost.code == 0)
        resume->started = thread_spawn(&resume->thread, resume_run, client) == 0;
}

/* Starts the thread. false: the client will not come back. */
static bool
start(struct caid_client *client)
{
    struct resume *resume = &client->resume;

    if (!resume->has_token || resume->timeout_ns == 0 || resume->ends || client->handle_closed)
        return false;
    resume_watch(client);
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
    if (resume->talk)
        talk_cancel(resume->talk);
    pthread_mutex_unlock(&client->lock);
    pthread_join(resume->thread, NULL);
    pthread_mutex_lock(&client->lock);
}
