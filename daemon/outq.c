/* SPDX-License-Identifier: Apache-2.0 */
#include "outq.h"

#include <fcntl.h>
#include <string.h>

#include "base/macros.h"

static void
outq_packet_free(struct outq_packet *p)
{
    for (size_t i = 0; i < p->n_fds; i++)
        fd_close(p->fds[i]);
    free(p);
}

DEFINE_CLEANUP(struct outq_packet *, outq_packet_free)

void
outq_init(struct outq *q)
{
    *q = (struct outq){0};
    STAILQ_INIT(&q->packets);
}

void
outq_deinit(struct outq *q)
{
    while (outq_first(q))
        outq_pop(q);
}

static int
outq_packet_new(const void *data, size_t n, const int *fds, size_t n_fds,
                struct outq_packet **ret)
{
    _cleanup_(outq_packet_freep) struct outq_packet *p =
        malloc(sizeof(*p) + n_fds * sizeof(int) + n);

    if (!p)
        return -ENOMEM;
    p->n = n;
    for (p->n_fds = 0; p->n_fds < n_fds; p->n_fds++) {
        int fd = fcntl(fds[p->n_fds], F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return -errno;
        p->fds[p->n_fds] = fd;
    }
    memcpy(p->fds + n_fds, data, n);
    *ret = TAKE_PTR(p);
    return 0;
}

int
outq_push(struct outq *q, const void *data, size_t n, const int *fds, size_t n_fds)
{
    struct outq_packet *p = NULL;
    int r;

    if (q->n_packets >= OUTQ_MAX_PACKETS || n > OUTQ_MAX_BYTES - q->n_bytes ||
        n_fds > OUTQ_MAX_FDS - q->n_fds)
        return -ENOBUFS;
    r = outq_packet_new(data, n, fds, n_fds, &p);
    if (r < 0)
        return r;
    STAILQ_INSERT_TAIL(&q->packets, p, next);
    q->n_packets++;
    q->n_bytes += (uint32_t)n;
    q->n_fds += (uint32_t)n_fds;
    return 0;
}

struct outq_packet *
outq_first(const struct outq *q)
{
    return STAILQ_FIRST(&q->packets);
}

const void *
outq_packet_data(const struct outq_packet *p)
{
    return p->fds + p->n_fds;
}

void
outq_pop(struct outq *q)
{
    struct outq_packet *p = STAILQ_FIRST(&q->packets);

    STAILQ_REMOVE_HEAD(&q->packets, next);
    q->n_packets--;
    q->n_bytes -= (uint32_t)p->n;
    q->n_fds -= (uint32_t)p->n_fds;
    outq_packet_free(p);
}
