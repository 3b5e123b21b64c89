/* SPDX-License-Identifier: Apache-2.0 */
#include "floor.h"

#include <err.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "msg.h"

/* Packets as they are between libcaid and the daemon for an array whose block is mapped. */
static int
packet_sizes(struct floor *f)
{
    struct msg_buf buf = {0};
    struct msg_str name = MSG_STR("bench");
    int64_t shape[] = {1024, 768};
    struct msg_open_params params = {.names = {.v = &name, .n = 1}, .mode = MSG_STR("r")};
    struct msg_array array = {
        .lease = 1000,
        .block = 1,
        .nbytes = 4 * 1024 * 768,
        .typestr = MSG_STR("<f4"),
        .shape = {.v = shape, .n = 2},
        .generation = 1,
    };
    struct msg_arrays_result result = {.pool = MSG_STR("uid:1000"),
                                       .arrays = &array,
                                       .n_arrays = 1};
    int r = msg_encode_request(&buf, 1000, MSG_OPEN, &params);

    f->n_request = buf.n;
    if (r == 0)
        r = msg_encode_result(&buf, 1000, MSG_OPEN, &result);
    f->n_reply = buf.n;
    msg_buf_deinit(&buf);
    return r;
}

static void
answer(int sock, size_t n_reply)
{
    char packet[PROTO_PACKET_MAX] = {0};

    while (recv(sock, packet, sizeof(packet), 0) > 0)
        if (send(sock, packet, n_reply, MSG_NOSIGNAL) < 0)
            break;
    _exit(0);
}

int
floor_init(struct floor *ret)
{
    struct floor f = {0};
    int sv[2], r = packet_sizes(&f);

    if (r < 0)
        return r;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
        return -errno;
    f.sock = sv[0];
    f.child = fork();
    if (f.child < 0) {
        r = -errno;
        close(sv[0]);
        close(sv[1]);
        return r;
    }
    if (f.child == 0) {
        close(sv[0]);
        answer(sv[1], f.n_reply);
    }
    close(sv[1]);
    *ret = f;
    return 0;
}

void
floor_deinit(struct floor *f)
{
    close(f->sock);
    waitpid(f->child, NULL, 0);
}

uint64_t
floor_round_trip(struct floor *f)
{
    static char packet[PROTO_PACKET_MAX];
    uint64_t start = clock_now_ns();

    if (send(f->sock, packet, f->n_request, MSG_NOSIGNAL) < 0 ||
        recv(f->sock, packet, sizeof(packet), 0) != (ssize_t)f->n_reply)
        err(1, "floor");
    return clock_now_ns() - start;
}

static int
compare(const void *a, const void *b)
{
    uint64_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

uint64_t
median_ns(uint64_t *v, size_t n)
{
    qsort(v, n, sizeof(*v), compare);
    return n ? v[n / 2] : 0;
}
