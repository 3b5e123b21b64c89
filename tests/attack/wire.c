/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <err.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/packet.h"

static uint8_t buffer[PROTO_PACKET_MAX];
static struct msg answer;
static _Atomic uint64_t none, *count = &none;

void
wire_count(_Atomic uint64_t *answers)
{
    count = answers;
}

static void
connect_to(struct wire *ret, const char *path)
{
    *ret = (struct wire){.sock = -1};
    int r = packet_connect(path, &ret->sock);
    if (r < 0)
        errx(1, "%s: %s", path, strerror(-r));
}

static const struct msg_hello_params hello = {.version_min = 1, .version_max = 1};

void
wire_init(struct wire *ret, const char *path)
{
    connect_to(ret, path);
    wire_call(ret, MSG_HELLO, &hello, NULL);
}

bool
wire_open(struct wire *ret, const char *path)
{
    connect_to(ret, path);
    if (wire_try(ret, MSG_HELLO, &hello, NULL) == 0)
        return true;
    wire_deinit(ret);
    return false;
}

void
wire_deinit(struct wire *w)
{
    w->sock = fd_close(w->sock);
    msg_buf_deinit(&w->out);
}

bool
wire_repeat(const struct wire *w)
{
    return packet_send(w->sock, w->out.data, w->out.n, NULL, 0, 0) == 0;
}

void
wire_send(struct wire *w, enum msg_method method, const void *params)
{
    int r = msg_method_is_request(method) ? msg_encode_request(&w->out, 1, method, params)
                                          : msg_encode_notify(&w->out, method, params);

    if (r < 0)
        errx(1, "%s: %s", msg_method_name(method), strerror(-r));
    if (!wire_repeat(w))
        errx(1, "%s: the daemon has ended the connection", msg_method_name(method));
}

size_t
wire_receive(const struct wire *w)
{
    ssize_t n = recv(w->sock, buffer, sizeof(buffer), 0);

    if (n == 0)
        errno = ECONNRESET;
    atomic_fetch_add_explicit(count, n > 0, memory_order_relaxed);
    return n > 0 ? (size_t)n : 0;
}

static uint32_t
parse(size_t n, enum msg_method method, void *ret)
{
    msg_deinit(&answer);
    int r = msg_parse(&answer, buffer, n);
    if (r == 0 && answer.error == 0 && ret)
        r = msg_decode_result(&answer, method, ret);
    if (r < 0)
        errx(1, "the answer to %s: %s", msg_method_name(method), strerror(-r));
    return answer.error;
}

uint32_t
wire_answer(const struct wire *w, enum msg_method method, void *ret)
{
    size_t n = wire_receive(w);

    if (n == 0)
        err(1, "the answer to %s", msg_method_name(method));
    return parse(n, method, ret);
}

uint32_t
wire_try(struct wire *w, enum msg_method method, const void *params, void *ret)
{
    wire_send(w, method, params);
    return wire_answer(w, method, ret);
}

static void
must(enum msg_method method, uint32_t error)
{
    if (error != 0)
        errx(1, "%s: %.*s", msg_method_name(method), (int)answer.error_text.n,
             answer.error_text.p);
}

void
wire_call(struct wire *w, enum msg_method method, const void *params, void *ret)
{
    must(method, wire_try(w, method, params, ret));
}

int
wire_call_fd(struct wire *w, enum msg_method method, const void *params, void *ret)
{
    size_t n_fds = 0;
    int fd = -1;

    wire_send(w, method, params);
    ssize_t n = packet_recv(w->sock, buffer, &fd, 1, &n_fds, 0);
    must(method, parse(n > 0 ? (size_t)n : 0, method, ret));
    return fd;
}
