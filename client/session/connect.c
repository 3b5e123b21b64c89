/* SPDX-License-Identifier: Apache-2.0 */
#include "connect.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "answer.h"
#include "base/clock.h"
#include "base/packet.h"
#include "base/presence.h"
#include "client.h"
#include "interrupt.h"
#include "text.h"

#define SYSTEM_SOCKET  "/run/caid/caid.sock"
#define RUNTIME_SOCKET "caid.sock" /* in $XDG_RUNTIME_DIR */
#define START_ONE      "start one by caid --foreground, or in Python by caid.LocalDaemon()"
#define CONNECT_NS     (30 * NSEC_PER_SEC)
#define RETRY_NS       (100 * NSEC_PER_MSEC) /* while the daemon restores after a restart */
#define RECONNECT_NS   (10 * NSEC_PER_SEC)
#define SECONDS_MAX    1e9 /* a longer timeout is endless */

/* An environment variable; NULL where it is empty, and in a setuid program. */
static const char *
env(const char *name)
{
    const char *value = secure_getenv(name);
    return value && value[0] ? value : NULL;
}

/* ---- the time ---- */

/* *ret_ns 0: the variable is not set. */
static int
env_timeout(uint64_t *ret_ns, struct caid_error *error)
{
    const char *text = env("CAID_TIMEOUT");
    char *end;

    *ret_ns = 0;
    if (!text)
        return 0;
    double seconds = text_number(text, &end);
    if (end == text || *end || isnan(seconds) || seconds <= 0)
        return fail(error, CAID_ERR_INVALID,
                    "CAID_TIMEOUT=%s: seconds are wanted, more than 0, or \"inf\"", text);
    *ret_ns = seconds < SECONDS_MAX ? (uint64_t)(seconds * (double)NSEC_PER_SEC) + 1
                                    : CAID_FOREVER;
    return 0;
}

static uint64_t
first_of(uint64_t given_ns, uint64_t env_ns, uint64_t else_ns)
{
    return given_ns ? given_ns : env_ns ? env_ns : else_ns;
}

static int
fail_in_time(const struct caid_client *client, uint64_t timeout_ns, struct caid_error *error)
{
    return fail(error, CAID_ERR_TIMEOUT,
                "%s: the daemon did not answer in %g s: is it stopped?", client->socket,
                (double)timeout_ns / NSEC_PER_SEC);
}

static uint64_t
time_left(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_now_ns();

    if (deadline_ns == UINT64_MAX)
        return CAID_FOREVER;
    return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

/* ---- the socket ---- */

/* Whether the user has a socket of that name. */
static bool
runtime_socket(char *ret, size_t size)
{
    const char *dir = env("XDG_RUNTIME_DIR");
    struct stat st;

    if (!dir || snprintf(ret, size, "%s/" RUNTIME_SOCKET, dir) >= (int)size)
        return false;
    return stat(ret, &st) == 0;
}

int
connect_path(char *ret, size_t size, const char *given, const char **ret_origin,
             struct caid_error *error)
{
    const char *path = given;

    *ret_origin = "";
    if (!path && (path = env("CAID_SOCKET")))
        *ret_origin = " (from $CAID_SOCKET)";
    if (!path && runtime_socket(ret, size))
        return 0;
    if (!path)
        path = SYSTEM_SOCKET;
    if (strlen(path) >= size)
        return fail(error, CAID_ERR_NO_DAEMON,
                    "%.80s...%s: a socket's path has at most %zu bytes", path, *ret_origin,
                    size - 1);
    strcpy(ret, path);
    return 0;
}

static int
fail_connect(struct caid_error *error, int err, const char *path, const char *origin)
{
    char text[128];
    const char *why;

    switch (err) {
    case ENOENT: why = "no such socket; " START_ONE; break;
    case ENOTSOCK: why = "not a socket"; break;
    case EPROTOTYPE: why = "a socket, but not caid's"; break;
    case ECONNREFUSED: why = "nobody listens; " START_ONE; break;
    case EACCES: why = "no permission to connect"; break;
    default: why = strerror_r(err, text, sizeof(text));
    }
    return fail(error, CAID_ERR_NO_DAEMON, "%s%s: %s", path, origin, why);
}

static int
connect_socket(struct caid_client *client, const char *given, uint64_t deadline_ns,
               uint64_t timeout_ns, struct caid_error *error)
{
    const char *origin;

    int r = connect_path(client->socket, sizeof(client->socket), given, &origin, error);
    if (r < 0)
        return r;
    do {
        uint64_t left_ns = time_left(interrupt_look_by(client, deadline_ns));
        r = packet_connect_within(client->socket, left_ns == CAID_FOREVER ? 0 : left_ns + 1,
                                  &client->sock);
        if ((r == -EINTR || r == -EAGAIN) && interrupt_ask(client, error) < 0)
            return -EINTR;
    } while (r == -EINTR || (r == -EAGAIN && time_left(deadline_ns) > 0));
    if (r == -EAGAIN)
        return fail_in_time(client, timeout_ns, error);
    return r < 0 ? fail_connect(error, -r, client->socket, origin) : 0;
}

/* ---- HELLO ---- */

static int
devices_fill(struct caid_client *client, const struct reply *reply,
             const struct msg_hello_result *hello, struct caid_error *error)
{
    if (client_make_devices(client, hello->n_devices) < 0)
        return fail_errno(error, ENOMEM, "no memory for %u devices", hello->n_devices);
    for (uint32_t i = 0; i < hello->n_devices; i++) {
        const struct msg_device *m = &hello->devices[i];
        struct caid_device *device = client->devices[i];
        if (m->uuid.n == 0 || m->uuid.n >= sizeof(device->uuid) || !text_is_plain(m->uuid) ||
            !text_is_plain(m->handoff) ||
            answer_fill(&answer_device, client, reply, m, device) < 0)
            return client_violated(client, "hello", error);
    }
    return 0;
}

static void
resume_fill(struct caid_client *client, struct msg_u64s token)
{
    struct resume *resume = &client->resume;

    resume->has_token = token.n == 2;
    if (!resume->has_token)
        return;
    memcpy(resume->token, token.v, sizeof(resume->token));
    resume->sees_daemon = presence_is_taken(client->socket);
}

/* "auto" means the daemon's driver here: one driver cannot use the other's memory. */
static const char *
driver_choice(const char *given, const char *of_daemon)
{
    const char *choice = given && given[0] ? given : env("CAID_CUDA_DRIVER");
    return choice && strcmp(choice, "auto") != 0 ? choice : of_daemon;
}

static int
hello_apply(struct caid_client *client, const struct reply *reply,
            const struct msg_hello_result *hello, const char *driver, struct caid_error *error)
{
    /* Only these two words: by a path, the daemon could make us load any library. */
    const char *of_daemon = msg_str_eq(hello->driver, "soft") ? "soft" : "cuda";

    if (hello->version < PROTO_VERSION_MIN || hello->version > PROTO_VERSION_MAX ||
        hello->packet_max == 0 || hello->open_max == 0 || !msg_str_eq(hello->driver, of_daemon))
        return client_violated(client, "hello", error);
    client->packet_max = hello->packet_max < PROTO_PACKET_MAX ? (size_t)hello->packet_max
                                                              : PROTO_PACKET_MAX;
    client->open_max = hello->open_max < PROTO_OPEN_MAX ? (uint32_t)hello->open_max
                                                        : PROTO_OPEN_MAX;
    client->set_max = !hello->set_max                  ? PROTO_SET_MAX_OLD
                      : hello->set_max < PROTO_SET_MAX ? (uint32_t)hello->set_max
                                                       : PROTO_SET_MAX;
    text_copy(client->pool, sizeof(client->pool), hello->pool);
    text_copy(client->machine_id, sizeof(client->machine_id), hello->machine_id);
    text_copy(client->daemon_id, sizeof(client->daemon_id), hello->daemon_id);
    client->daemon = (struct caid_daemon){.driver = of_daemon,
                                          .socket = client->socket,
                                          .pool = client->pool,
                                          .machine_id = client->machine_id,
                                          .daemon_id = client->daemon_id};
    resume_fill(client, hello->token);

    int r = devices_fill(client, reply, hello, error);
    if (r < 0)
        return r;
    r = gpu_init(&client->gpu, driver_choice(driver, of_daemon));
    return r < 0 ? fail_errno(error, -r, "no memory for %u devices", client->n_devices) : 0;
}

static int
client_name(const char *given, struct msg_str *ret, struct caid_error *error)
{
    static const char *const what = "the client's name";

    if (!given) {
        const char *own = program_invocation_short_name;
        *ret = (struct msg_str){0};
        if (own && own[0] && text_is_utf8(own) && strlen(own) <= PROTO_CLIENT_MAX)
            *ret = MSG_STR(own);
        return 0;
    }
    if (strlen(given) > PROTO_CLIENT_MAX)
        return fail(error, CAID_ERR_INVALID, "%s has %zu bytes, more than %d", what,
                    strlen(given), PROTO_CLIENT_MAX);
    int r = check_text(what, given, true, error);
    if (r < 0)
        return r;
    *ret = MSG_STR(given);
    return 0;
}

static int
say_hello(struct caid_client *client, const struct caid_connect_options *options,
          struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    const struct msg_str features[] = {MSG_STR("told"), MSG_STR("resume")};
    struct msg_hello_result hello;
    struct msg_hello_params params = {
        .features = {.v = features, .n = client->resume.timeout_ns > 0 ? 2 : 1},
        .version_min = PROTO_VERSION_MIN,
        .version_max = PROTO_VERSION_MAX,
    };

    int r = client_name(options->name, &params.client, error);
    if (r < 0)
        return r;
    text_copy(client->name, sizeof(client->name), params.client);
    r = reply_get(&reply, client, MSG_HELLO, &params, &hello, error);
    if (r < 0)
        return r;
    return hello_apply(client, &reply, &hello, options->driver, error);
}

int
connect_client(struct caid_client *client, const struct caid_connect_options *options,
               struct attempts *attempts, struct caid_error *error)
{
    uint64_t env_ns, left = attempts->left;

    attempts->left = 0;
    int r = env_timeout(&env_ns, error);
    if (r < 0)
        return r;
    uint64_t timeout_ns = first_of(options->timeout_ns, env_ns, CONNECT_NS);
    if (!attempts->deadline_ns)
        attempts->deadline_ns = deadline_of(timeout_ns);
    client->interrupted = options->interrupted;
    client->returned = options->returned;
    client->userdata = options->userdata;
    client->resume.timeout_ns = options->reconnect_timeout_ns == CAID_NEVER
                                    ? 0
                                    : first_of(options->reconnect_timeout_ns, 0, RECONNECT_NS);
    r = connect_socket(client, options->socket, attempts->deadline_ns, timeout_ns, error);
    if (r == 0 && left) /* a signal may have come in the pause */
        r = interrupt_ask(client, error);
    if (r < 0)
        return r;
    client->call_timeout_ns = time_left(attempts->deadline_ns);
    r = say_hello(client, options, error);
    attempts->is_less = !left || client->left < left;
    attempts->left = client->left;
    client->call_timeout_ns = first_of(options->call_timeout_ns, env_ns, CAID_FOREVER);
    return r == -ETIMEDOUT ? fail_in_time(client, timeout_ns, error) : r;
}

bool
connect_pause(const struct attempts *attempts)
{
    if (!attempts->left || !attempts->is_less ||
        clock_now_ns() + RETRY_NS >= attempts->deadline_ns)
        return false;
    clock_pause_ns(RETRY_NS);
    return true;
}
