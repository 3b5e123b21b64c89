/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "feature.h"
#include "text.h"

void
client_init(struct caid_client *client, const struct feature *const *features)
{
    client->features = features;
    atomic_init(&client->refs, 1);
    fork_guard_init(&client->guard);
    client->sock = client->wake_fd = client->epoll_fd = client->news_fd = -1;
    client->packet_max = PROTO_PACKET_MAX;
    client->call_timeout_ns = CAID_FOREVER;
    pthread_mutex_init(&client->lock, NULL);
    pthread_mutex_init(&client->gpu.lock, NULL);
    TAILQ_INIT(&client->calls);
    TAILQ_INIT(&client->unsent);
    TAILQ_INIT(&client->waiters);
    reaper_init(&client->reaper);
}

struct caid_client *
client_ref(struct caid_client *client)
{
    atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
    return client;
}

/* For a child after fork(). Where a thread of the parent had the lock, the tables may be half
 * changed: they are left as they are. */
static void
client_abandon(struct caid_client *client)
{
    if (pthread_mutex_trylock(&client->lock) == 0) {
        FEATURES_DO(client, abandon, client);
        pthread_mutex_unlock(&client->lock);
    }
}

static void
close_fds(struct caid_client *client)
{
    client->sock = fd_close(client->sock);
    client->epoll_fd = fd_close(client->epoll_fd);
    client->news_fd = fd_close(client->news_fd);
    client->wake_fd = fd_close(client->wake_fd);
    client->reaper.wake_fd = fd_close(client->reaper.wake_fd);
}

static void
client_free(struct caid_client *client)
{
    close_fds(client);
    if (fork_guard_crossed(&client->guard))
        client_abandon(client);
    else
        FEATURES_DO(client, deinit, client);
    fork_guard_deinit(&client->guard);
    msg_buf_deinit(&client->out);
    free(client->devices);
    free(client);
}

void
client_unref(struct caid_client *client)
{
    if (atomic_fetch_sub_explicit(&client->refs, 1, memory_order_acq_rel) == 1)
        client_free(client);
}

int
client_check(const struct caid_client *client, struct caid_error *error)
{
    if (!client)
        return fail(error, CAID_ERR_INVALID, "client is NULL");
    if (fork_guard_crossed(&client->guard))
        return fail(
            error, CAID_ERR_FORKED,
            "%s: this connection belongs to process %d; after fork(), connect anew, or, "
            "where that has used CUDA, use spawn or forkserver",
            client->socket, (int)client->guard.pid);
    return 0;
}

int
client_check_given(const struct caid_client *client, bool given, const char *what,
                   struct caid_error *error)
{
    int r = client_check(client, error);
    return r == 0 && !given ? fail(error, CAID_ERR_INVALID, "%s is NULL", what) : r;
}

int
client_check_name(const struct caid_client *client, const char *name, const char *pool,
                  struct caid_error *error)
{
    int r = client_check(client, error);
    if (r == 0)
        r = check_name(name, error);
    return r < 0 ? r : check_pool(pool, error);
}

int
client_check_awake(const struct caid_client *client, struct caid_error *error)
{
    return atomic_load(&client->wakefulness) == CLIENT_AWAKE
               ? 0
               : fail(error, CAID_ERR_NOT_READY, "%s: the client is suspended", client->socket);
}

int
client_enter(struct caid_client *client, struct caid_error *error)
{
    int r = client_check(client, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&client->lock);
    if (client->lost.code != 0) {
        r = fail_again(error, &client->lost);
        pthread_mutex_unlock(&client->lock);
        return r;
    }
    client_ref(client);
    client->n_running++;
    return 0;
}

void
client_enter_anyway(struct caid_client *client)
{
    pthread_mutex_lock(&client->lock);
    client_ref(client);
    client->n_running++;
}

/* Wakes the client's thread for what is left to do; without one, does it here. */
static void
see_to_the_rest(struct caid_client *client)
{
    if ((!call_has_unsent(client) && reaper_due(client) == UINT64_MAX) || reaper_kick(client))
        return;
    FEATURES_DO(client, tidy_here, client);
}

void
client_leave(struct caid_client *client)
{
    see_to_the_rest(client);
    if (--client->n_running == 0 && client->handle_closed)
        close_fds(client);
    pthread_mutex_unlock(&client->lock);
    client_unref(client);
}

void
client_lose(struct caid_client *client, int32_t code, const char *fmt, ...)
{
    va_list args;

    if (client->lost.code != 0)
        return;
    va_start(args, fmt);
    text_format(client->lost.message, sizeof(client->lost.message), fmt, args);
    va_end(args);
    client->lost.code = code;
    client->away = false;
    FEATURES_DO(client, lost, client);
    shutdown(client->sock, SHUT_RDWR); /* wakes the thread that reads */
    call_fail_all(client);
    wake_all(&client->barrier_gone);
    wake_all(&client->resume.back);
    wake_all(&client->resume.wake);
}

int
client_violated(struct caid_client *client, const char *what, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    client_lose(client, CAID_ERR_PROTOCOL, "%s: the daemon sent a malformed %s reply",
                client->socket, what);
    r = fail_again(error, &client->lost);
    client_leave(client);
    return r;
}

int
client_device_uuid(const struct caid_client *client, int32_t device, const char **ret,
                   struct caid_error *error)
{
    if (device < 0 || (uint32_t)device >= client->n_devices)
        return fail(error, CAID_ERR_DEVICE, "device %d: the daemon has %u", device,
                    client->n_devices);
    *ret = client->devices[device]->uuid;
    return 0;
}

int
client_make_devices(struct caid_client *client, uint32_t n)
{
    struct caid_device **devices = calloc((size_t)n + 1, sizeof(*devices) + sizeof(**devices));

    if (!devices)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        devices[i] = (struct caid_device *)(void *)(devices + n) + i;
    client->devices = devices;
    client->n_devices = n;
    return 0;
}

int32_t
client_find_device(const struct caid_client *client, struct msg_str uuid)
{
    for (uint32_t i = 0; i < client->n_devices; i++)
        if (msg_str_eq(uuid, client->devices[i]->uuid))
            return (int32_t)i;
    return -1;
}

void
client_context_died(struct caid_client *client, CUcontext context)
{
    FEATURES_DO(client, context_died, client, context);
}

/* ---- news ---- */

bool
client_has_news(const struct caid_client *client)
{
    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->has_news && (*feature)->has_news(client))
            return true;
    return false;
}

void
client_raise_fd(struct caid_client *client)
{
    if (client->news_fd >= 0)
        eventfd_write(client->news_fd, 1);
}

static int
epoll_new(int sock, int news_fd)
{
    struct epoll_event of_sock = {.events = EPOLLIN, .data.fd = sock};
    struct epoll_event of_news = {.events = EPOLLIN, .data.fd = news_fd};
    _cleanup_fd_ int fd = epoll_create1(EPOLL_CLOEXEC);

    if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, sock, &of_sock) < 0 ||
        epoll_ctl(fd, EPOLL_CTL_ADD, news_fd, &of_news) < 0)
        return -errno;
    return TAKE_FD(fd);
}

/* An fd of its own beside the socket: another thread may have read news of a watch. Under lock. */
static int
client_get_fd(struct caid_client *client)
{
    if (client->epoll_fd >= 0)
        return client->epoll_fd;
    if (client->sock < 0)
        return -ENOTCONN;
    _cleanup_fd_ int news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (news_fd < 0)
        return -errno;
    int fd = epoll_new(client->sock, news_fd);
    if (fd < 0)
        return fd;
    client->epoll_fd = fd;
    client->news_fd = TAKE_FD(news_fd);
    if (client_has_news(client))
        client_raise_fd(client);
    return fd;
}

int
caid_client_get_fd(struct caid_client *client)
{
    if (!client)
        return -EINVAL;
    if (fork_guard_crossed(&client->guard))
        return -EPERM;
    pthread_mutex_lock(&client->lock);
    int r = client_get_fd(client);
    pthread_mutex_unlock(&client->lock);
    return r;
}

void
client_lower_fd(struct caid_client *client)
{
    eventfd_t count;

    if (client->news_fd >= 0)
        (void)eventfd_read(client->news_fd, &count);
}

/* The fd is lowered for all packets that are read by now; the callbacks for these follow. */
int
caid_client_dispatch(struct caid_client *client, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    call_dispatch(client);
    client_lower_fd(client);
    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->deliver)
            r = (*feature)->deliver(client, r, error);
    if (client->lost.code != 0)
        r = fail_again(error, &client->lost);
    client_leave(client);
    return r;
}

/* ---- the daemon ---- */

int
caid_client_ping(struct caid_client *client, struct caid_error *error)
{
    return call_ask(client, MSG_PING, &(struct msg_none){}, error);
}

int
caid_kick(struct caid_client *client, uint64_t conn, struct caid_error *error)
{
    return call_ask(client, MSG_KICK, &(struct msg_kick_params){.conn = conn}, error);
}

int
caid_client_devices(const struct caid_client *client, const struct caid_device *const **ret)
{
    if (!client)
        return -EINVAL;
    if (ret)
        *ret = (const struct caid_device *const *)client->devices;
    return (int)client->n_devices;
}

const struct caid_daemon *
caid_client_daemon(const struct caid_client *client)
{
    return &client->daemon;
}

const char *
caid_code_name(int32_t code)
{
    return code > 0 ? proto_error_name((uint32_t)code) : NULL;
}

const char *
caid_version(void)
{
    return CAID_VERSION;
}

int
caid_softcuda_path(char *ret_path, size_t size)
{
    return drv_soft_path(ret_path, size);
}
