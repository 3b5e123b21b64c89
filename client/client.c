/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "text.h"

struct caid_client *
client_ref(struct caid_client *client)
{
    atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
    return client;
}

/* In a child the parent's threads may have left the lock taken and the blocks half changed: then
 * they are left where they are. */
static void
client_abandon(struct caid_client *client)
{
    if (pthread_mutex_trylock(&client->lock) == 0) {
        block_table_abandon(&client->blocks);
        pthread_mutex_unlock(&client->lock);
    }
    gpu_abandon(&client->gpu);
}

static void
client_free(struct caid_client *client)
{
    fd_close(client->sock);
    if (fork_guard_crossed(&client->guard))
        client_abandon(client);
    else
        gpu_deinit(&client->gpu, client->n_devices);
    fork_guard_deinit(&client->guard);
    msg_buf_deinit(&client->out);
    free(client->closing);
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
        return fail(error, CAID_ERR_FORKED,
                    "%s: this connection belongs to process %d; after fork(), connect anew",
                    client->socket, (int)client->guard.pid);
    return 0;
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

void
client_leave(struct caid_client *client)
{
    struct block_list dead = TAILQ_HEAD_INITIALIZER(dead);

    if (--client->n_running == 0 && client->handle_closed)
        client->sock = fd_close(client->sock);
    block_sweep(client, &dead);
    pthread_mutex_unlock(&client->lock);

    block_list_free(client, &dead);
    client_unref(client);
}

void
client_lose(struct caid_client *client, int32_t code, const char *fmt, ...)
{
    va_list args;

    if (client->lost.code != 0)
        return;
    va_start(args, fmt);
    vsnprintf(client->lost.message, sizeof(client->lost.message), fmt, args);
    va_end(args);
    client->lost.code = code;
    client->n_closing = 0;             /* the daemon has ended them with the connection */
    shutdown(client->sock, SHUT_RDWR); /* wakes the thread that reads */
    call_fail_all(client);
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
    *ret = client->devices[device].uuid;
    return 0;
}

int32_t
client_find_device(const struct caid_client *client, struct msg_str uuid)
{
    for (uint32_t i = 0; i < client->n_devices; i++)
        if (msg_str_eq(uuid, client->devices[i].uuid))
            return (int32_t)i;
    return -1;
}

/* ---- the API ---- */

void
caid_client_close(struct caid_client *client)
{
    if (!client)
        return;
    if (!fork_guard_crossed(&client->guard)) {
        client_enter_anyway(client);
        client_lose(client, CAID_ERR_CLOSED, "%s: the client is closed", client->socket);
        client->handle_closed = true;
        client_leave(client);
    }
    client_unref(client);
}

int
caid_client_get_fd(const struct caid_client *client)
{
    if (!client)
        return -EINVAL;
    if (fork_guard_crossed(&client->guard))
        return -EPERM;
    return client->sock >= 0 ? client->sock : -ENOTCONN; /* caid_driver_open() */
}

int
caid_client_dispatch(struct caid_client *client, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    call_dispatch(client);
    if (client->lost.code != 0)
        r = fail_again(error, &client->lost);
    client_leave(client);
    return r;
}

int
caid_client_ping(struct caid_client *client, struct caid_error *error)
{
    struct msg_none params = {};
    struct call call = {.method = MSG_PING, .params = &params};

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = call_run(client, &call, error);
    client_leave(client);
    return r;
}

int
caid_client_devices(const struct caid_client *client, const struct caid_device **ret)
{
    if (!client)
        return -EINVAL;
    if (ret)
        *ret = client->devices;
    return (int)client->n_devices;
}

static void
status_fill(struct caid_status *s, const struct caid_client *client,
            const struct msg_status_result *m)
{
    text_copy(s->server, sizeof(s->server), m->server);
    text_copy(s->driver, sizeof(s->driver), m->driver);
    text_copy(s->driver_path, sizeof(s->driver_path), m->driver_path);
    memcpy(s->socket, client->socket, sizeof(s->socket));
    memcpy(s->pool, client->pool, sizeof(s->pool));
    s->driver_version = m->driver_version;
    s->pid = m->pid;
    s->uptime_ns = m->uptime_ns;
    s->connections = m->connections;
    s->pools = m->pools;
    s->blocks = m->blocks;
    s->arrays = m->arrays;
    s->names = m->names;
    s->leases = m->leases;
    s->jobs = m->jobs;
    s->release_errors = m->release_errors;
}

int
caid_client_status(struct caid_client *client, struct caid_status *ret,
                   struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_none params = {};
    struct msg_status_result result;
    struct caid_status status = {0};

    int r = reply_get(&reply, client, MSG_STATUS, &params, &result, error);
    if (r < 0)
        return r;
    status_fill(&status, client, &result);
    return result_write(ret, &status, sizeof(status), error);
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
