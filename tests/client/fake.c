/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/packet.h"
#include "caid_test.h"
#include "daemon.h"

#define must(expression)                         \
    do {                                         \
        if (!(expression)) {                     \
            perror("fake daemon: " #expression); \
            abort();                             \
        }                                        \
    } while (0)

const char *
fake_uuid(void)
{
    const char *uuid = getenv("CAID_SOFTCUDA_UUID");

    return uuid ? uuid : "GPU-63616964-736f-6674-6375-646100000001";
}

void
fake_send(struct fake *fake, const void *packet, size_t n, const int *fds, size_t n_fds)
{
    int r = packet_send(fake->conn, packet, n, fds, n_fds, 0);
    must(r == 0 || r == -EPIPE || r == -ECONNRESET); /* the client may have hung up */
}

void
fake_result(struct fake *fake, enum msg_method method, const void *result, const int *fds,
            size_t n_fds)
{
    struct msg_buf out = {0};

    must(msg_encode_result(&out, fake->id, method, result) == 0);
    fake_send(fake, out.data, out.n, fds, n_fds);
    msg_buf_deinit(&out);
}

void
fake_error(struct fake *fake, uint32_t code, const char *text, int cuda)
{
    struct msg_buf out = {0};

    must(msg_encode_error(&out, fake->id,
                          &(struct msg_error){.code = code,
                                              .text = MSG_STR(text),
                                              .cuda = cuda}) == 0);
    fake_send(fake, out.data, out.n, NULL, 0);
    msg_buf_deinit(&out);
}

static void
note_closed(struct fake *fake, struct msg *m)
{
    struct msg_close_params close;

    must(msg_decode_params(m, &close) == 0);
    for (uint32_t i = 0; i < close.leases.n; i++) {
        must(fake->n_closed < ARRAY_SIZE(fake->closed));
        fake->closed[fake->n_closed++] = close.leases.v[i];
    }
}

static void
note_others(struct fake *fake, struct msg *m)
{
    struct msg_begin_params begin;

    if (m->method == MSG_BEGIN) {
        must(msg_decode_params(m, &begin) == 0);
        fake->begun = begin.bracket;
    } else if (m->method == MSG_END) {
        must(fake->n_ended < ARRAY_SIZE(fake->ended));
        must(msg_decode_params(m, &fake->ended[fake->n_ended++]) == 0);
    } else if (m->method == MSG_CANCEL) {
        must(msg_decode_params(m, &fake->cancelled) == 0);
    }
}

enum msg_method
fake_request(struct fake *fake)
{
    static _Thread_local uint8_t packet[PROTO_PACKET_MAX];
    enum msg_method method;
    struct msg m;

    for (;;) {
        ssize_t n = packet_recv(fake->conn, packet, NULL, 0, NULL, 0);
        if (n <= 0)
            return MSG_UNKNOWN;
        must(msg_parse(&m, packet, (size_t)n) == 0);
        method = m.method;
        if (m.type == MSG_REQUEST)
            fake->id = m.id;
        if (method == MSG_CLOSE)
            note_closed(fake, &m);
        else
            note_others(fake, &m);
        msg_deinit(&m);
        if (method != MSG_CLOSE)
            return method;
    }
}

void
fake_pong(struct fake *fake)
{
    static const struct msg_none nothing;

    fake_result(fake, MSG_PING, &nothing, NULL, 0);
}

void
fake_open(struct fake *fake)
{
    static const int64_t shape[] = {0};
    const struct msg_array array = {
        .lease = 11,
        .typestr = MSG_STR("|u1"),
        .shape = {shape, 1},
        .generation = 1,
        .device = MSG_STR(fake_uuid()),
    };
    struct msg_arrays_result result = {
        .pool = MSG_STR("uid:0"),
        .arrays = &array,
        .n_arrays = 1,
    };

    if (fake_request(fake) == MSG_OPEN)
        fake_result(fake, MSG_OPEN, &result, NULL, 0);
}

void
fake_go_on(struct fake *fake)
{
    enum msg_method method;

    while ((method = fake_request(fake)) != MSG_UNKNOWN)
        if (method == MSG_PING)
            fake_pong(fake);
}

void
fake_drain(struct fake *fake)
{
    while (fake_request(fake) != MSG_UNKNOWN)
        ;
}

void
fake_answer(struct fake *fake)
{
    const struct fake_answer *answer = fake->data;

    fake_request(fake);
    fake_result(fake, answer->method, answer->result, NULL, 0);
    fake_drain(fake);
}

static void
fake_hello(struct fake *fake)
{
    const struct msg_device device = {
        .uuid = MSG_STR(fake_uuid()),
        .name = MSG_STR("fake"),
        .total = 1 << 30,
        .granularity = 1 << 21,
        .handoff = MSG_STR("memops"),
    };
    const struct msg_str feature = MSG_STR("none");
    const uint64_t token[2] = {1, 2};
    struct msg_hello_result hello = {
        .version = 1,
        .features = {&feature, 1},
        .server = MSG_STR("fake 0"),
        .driver = MSG_STR("soft"),
        .pool = MSG_STR("uid:0"),
        .devices = &device,
        .n_devices = 1,
        .packet_max = PROTO_PACKET_MAX,
        .fds_max = PROTO_FDS_MAX,
        .open_max = 16,
        .token = {token, fake->keeps ? 2 : 0},
    };

    must(fake_request(fake) == MSG_HELLO);
    fake_result(fake, MSG_HELLO, &hello, NULL, 0);
}

static void
fake_accept(struct fake *fake)
{
    fake->conn = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    must(fake->conn >= 0);
}

void
fake_hang_up(struct fake *fake)
{
    close(fake->conn);
    fake_accept(fake);
}

static void *
fake_main(void *arg)
{
    struct fake *fake = arg;

    fake_accept(fake);
    fake_hello(fake);
    fake->script(fake);
    close(fake->conn);
    return NULL;
}

/* The caller has filled in the script, and what it needs. */
static struct caid_client *
start(struct fake *fake)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(fake->dir, "/tmp/caid-test-XXXXXX");
    must(mkdtemp(fake->dir));
    snprintf(fake->path, sizeof(fake->path), "%s/s", fake->dir);
    strcpy(address.sun_path, fake->path);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    must(bind(fake->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
    must(listen(fake->listener, 1) == 0);
    must(pthread_create(&fake->thread, NULL, fake_main, fake) == 0);

    OPTIONS(caid_connect_options, options, .socket = fake->path);
    assert_ok(caid_connect(&fake->client, &options, &error));
    return fake->client;
}

struct caid_client *
fake_start(struct fake *fake, void (*script)(struct fake *fake), const void *data)
{
    *fake = (struct fake){.script = script, .data = data};
    return start(fake);
}

struct caid_client *
fake_start_keeping(struct fake *fake, void (*script)(struct fake *fake))
{
    *fake = (struct fake){.script = script, .keeps = true};
    return start(fake);
}

void
fake_stop(struct fake *fake)
{
    caid_client_close(fake->client);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
    unlink(fake->path);
    must(rmdir(fake->dir) == 0);
}
