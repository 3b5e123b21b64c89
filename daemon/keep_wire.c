/* SPDX-License-Identifier: Apache-2.0 */
#include "keep_wire.h"

#include <sys/socket.h>

#include "base/macros.h"

static size_t
packet_size(uint32_t n)
{
    return offsetof(struct keep_packet, numbers) + n * sizeof(uint32_t);
}

int
keep_send(int sock, const struct keep_packet *p, const int *fds)
{
    return packet_send(sock, p, packet_size(p->n), fds, fds ? p->n : 0, MSG_DONTWAIT);
}

void
keep_close(const int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fd_close(fds[i]);
}

static bool
is_sound(const struct keep_packet *p, size_t size, size_t n_fds)
{
    return size >= packet_size(0) && p->n <= KEEP_NUMBERS_MAX && size == packet_size(p->n) &&
           p->version > 0 && n_fds == (keep_has_fds(p->type) ? p->n : 0);
}

int
keep_recv(int sock, struct keep_packet *ret, int ret_fds[KEEP_NUMBERS_MAX], int flags)
{
    size_t n_fds = 0;
    ssize_t size =
        packet_recv_into(sock, ret, sizeof(*ret), ret_fds, KEEP_NUMBERS_MAX, &n_fds, flags);

    if (size < 0)
        return (int)size;
    if (size > 0 && is_sound(ret, (size_t)size, n_fds))
        return 1;
    keep_close(ret_fds, (uint32_t)n_fds); /* an empty packet may carry fds, too */
    return size == 0 ? 0 : -EBADMSG;
}

bool
keep_is_passing(int error)
{
    return error == -EAGAIN || error == -ETOOMANYREFS || error == -ENOBUFS || error == -ENOMEM;
}
