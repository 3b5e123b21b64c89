/* SPDX-License-Identifier: Apache-2.0 */
#include "starting.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/packet.h"
#include "msg.h"

#define RETRY_MAX_S 8
#define GRACE_NS    (5 * NSEC_PER_SEC)
#define CLIENTS_MAX 64 /* that have not said hello; one more takes the place of the first */

enum {
    LISTENER,
    STOP,
    STOP_FD,
    NEWS,
    CLIENTS
};

struct starting {
    const struct starting_setup *setup;
    pthread_t thread;
    int stop_fd, news_fd;
    pthread_mutex_t lock;
    struct gpu gpu; /* of the thread, until it is joined; so is r */
    int r;
    atomic_bool opened; /* or it is over: the thread can be joined */
    bool failed;        /* under lock, as is the reason */
    char reason[256];

    struct pollfd fds[CLIENTS + CLIENTS_MAX];
    uint64_t until_ns[CLIENTS_MAX];
    size_t n;
};

/* ---- the driver's thread ---- */

static void
note_failure(struct starting *s, const char *reason)
{
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    snprintf(s->reason, sizeof(s->reason), "%s", reason);
    pthread_mutex_unlock(&s->lock);
    eventfd_write(s->news_fd, 1);
}

static int
open_gpu(struct starting *s)
{
    const struct starting_setup *o = s->setup;
    bool retry = o->notify->fd >= 0 && strcmp(o->driver, "cuda") == 0;

    for (uint64_t seconds = 1;; seconds = seconds < RETRY_MAX_S ? seconds * 2 : RETRY_MAX_S) {
        struct drv_error err = {0};
        int r = gpu_open(&s->gpu, o->driver, o->handoff, &err);

        if (r == 0)
            return 0;
        const char *reason = err.message[0] ? err.message : strerror(-r);
        log_error("driver \"%s\": %s", o->driver, reason);
        if (!retry)
            return r;
        note_failure(s, reason);
        notify_sendf(o->notify, "STATUS=No CUDA driver answers, retrying: %.100s", err.message);
        clock_pause_ns(seconds * NSEC_PER_SEC);
    }
}

static void *
thread_main(void *arg)
{
    struct starting *s = arg;

    s->r = open_gpu(s);
    atomic_store(&s->opened, true);
    eventfd_write(s->news_fd, 1);
    return NULL;
}

/* ---- clients ---- */

static void
drop(struct starting *s, size_t i)
{
    close(s->fds[CLIENTS + i].fd);
    s->n--;
    memmove(&s->fds[CLIENTS + i], &s->fds[CLIENTS + i + 1], (s->n - i) * sizeof(s->fds[0]));
    memmove(&s->until_ns[i], &s->until_ns[i + 1], (s->n - i) * sizeof(s->until_ns[0]));
}

static void
take_up(struct starting *s)
{
    int sock = accept4(s->setup->listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (sock < 0)
        return;
    if (s->n == CLIENTS_MAX)
        drop(s, 0);
    s->until_ns[s->n] = clock_now_ns() + s->setup->hello_timeout_ns;
    s->fds[CLIENTS + s->n++] = (struct pollfd){.fd = sock, .events = POLLIN};
}

static void
send_refusal(struct starting *s, int sock, uint32_t request)
{
    _cleanup_(msg_buf_deinit) struct msg_buf buf = {0};
    char text[384];

    pthread_mutex_lock(&s->lock);
    snprintf(text, sizeof(text), "caid is not ready, try again: %s",
             s->failed ? s->reason : "its driver has not answered yet");
    pthread_mutex_unlock(&s->lock);
    if (msg_encode_error(&buf, request, PROTO_ERR_NOT_READY, text, 0) == 0)
        packet_send(sock, buf.data, buf.n, NULL, 0, MSG_DONTWAIT);
}

static void
refuse(struct starting *s, int sock)
{
    static uint8_t packet[PACKET_MAX];
    struct msg m;

    ssize_t n = packet_recv(sock, packet, NULL, 0, NULL, MSG_DONTWAIT);
    if (n <= 0 || msg_parse(&m, packet, (size_t)n) < 0)
        return;
    if (m.type == MSG_REQUEST)
        send_refusal(s, sock, m.id);
    msg_deinit(&m);
}

static void
look_at_clients(struct starting *s)
{
    uint64_t now_ns = clock_now_ns();

    for (size_t i = s->n; i-- > 0;) {
        if (s->fds[CLIENTS + i].revents)
            refuse(s, s->fds[CLIENTS + i].fd);
        if (s->fds[CLIENTS + i].revents || s->until_ns[i] <= now_ns)
            drop(s, i);
    }
}

/* ---- the whole ---- */

static void
stop(struct starting *s)
{
    log_info("stopping: the driver has not answered");
    listener_deinit(s->setup->listener);
    _exit(EXIT_SUCCESS);
}

static bool
is_overdue(struct starting *s, uint64_t grace_ns)
{
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed;
    pthread_mutex_unlock(&s->lock);
    return failed || clock_now_ns() >= grace_ns;
}

static int
wait_for_driver(struct starting *s)
{
    uint64_t grace_ns = clock_now_ns() + GRACE_NS;
    eventfd_t count;

    while (!atomic_load(&s->opened)) {
        bool listens = s->fds[LISTENER].fd >= 0;
        if (!listens && is_overdue(s, grace_ns)) {
            int r = listener_start(s->setup->listener);
            if (r < 0)
                return r;
            s->fds[LISTENER].fd = s->setup->listener->fd;
        }
        /* Looked at each second: for the end of the grace, and of silent clients. */
        if (poll(s->fds, CLIENTS + s->n, 1000) < 0)
            continue;
        if (s->fds[STOP].revents || s->fds[STOP_FD].revents)
            stop(s);
        if (s->fds[NEWS].revents)
            (void)eventfd_read(s->news_fd, &count);
        look_at_clients(s);
        if (s->fds[LISTENER].revents)
            take_up(s);
    }
    return 0;
}

static int
run(struct starting *s)
{
    int r = -pthread_create(&s->thread, NULL, thread_main, s);
    if (r < 0) {
        log_error("cannot start a thread for the driver: %s", strerror(-r));
        return r;
    }
    r = wait_for_driver(s);
    if (r < 0) /* logged; the thread is left to the end of the process */
        _exit(EXIT_FAILURE);
    pthread_join(s->thread, NULL);
    while (s->n > 0)
        drop(s, 0);
    return s->r;
}

int
starting_open_gpu(struct gpu *ret, const struct starting_setup *setup)
{
    _cleanup_fd_ int stop_fd = signalfd(-1, setup->stop, SFD_CLOEXEC | SFD_NONBLOCK);
    _cleanup_fd_ int news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct starting s = {.setup = setup,
                         .stop_fd = stop_fd,
                         .news_fd = news_fd,
                         .lock = PTHREAD_MUTEX_INITIALIZER};

    if (stop_fd < 0 || news_fd < 0) {
        log_error("cannot start: %s", strerror(errno));
        return -errno;
    }
    s.fds[LISTENER] = (struct pollfd){.fd = -1, .events = POLLIN};
    s.fds[STOP] = (struct pollfd){.fd = stop_fd, .events = POLLIN};
    s.fds[STOP_FD] = (struct pollfd){.fd = setup->stop_fd, .events = POLLIN};
    s.fds[NEWS] = (struct pollfd){.fd = news_fd, .events = POLLIN};
    int r = run(&s);
    if (r == 0)
        *ret = s.gpu;
    return r;
}
