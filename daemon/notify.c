/* SPDX-License-Identifier: Apache-2.0 */
#include "notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"

/* A first '@' stands for the NUL byte of an abstract address. */
static int
notify_address(const char *path, struct sockaddr_un *ret, socklen_t *ret_size)
{
    size_t n = strlen(path);

    if ((path[0] != '/' && path[0] != '@') || n < 2 || n >= sizeof(ret->sun_path))
        return -EINVAL;
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, path, n);
    if (path[0] == '@')
        ret->sun_path[0] = '\0';
    *ret_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] == '/'));
    return 0;
}

static int
notify_connect(const char *path, int *ret_fd)
{
    _cleanup_fd_ int fd = -1;
    struct sockaddr_un addr;
    socklen_t size;
    int r = notify_address(path, &addr, &size);

    if (r < 0)
        return r;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, size) < 0)
        return -errno;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* The watchdog may be meant for another process, such as a wrapper that started this one. */
static uint64_t
watchdog_ns(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

    if (!usec || (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return strtoull(usec, NULL, 10) * NSEC_PER_USEC;
}

void
notify_init(struct notify *n)
{
    const char *path = getenv("NOTIFY_SOCKET");

    *n = (struct notify){.fd = -1};
    if (path && *path) {
        int r = notify_connect(path, &n->fd);
        if (r < 0)
            log_warning("NOTIFY_SOCKET=%s: %s", path, strerror(-r));
        else
            n->watchdog_ns = watchdog_ns();
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void
notify_deinit(struct notify *n)
{
    fd_close(n->fd);
    *n = (struct notify){.fd = -1};
}

/* Sends the first pending text. false: the manager's queue is full, and the text stays pending. */
static bool
send_first(struct notify *n)
{
    size_t size = strlen(n->pending) + 1;
    ssize_t r;

    do {
        r = send(n->fd, n->pending, size - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (r < 0 && errno == EINTR);
    if (r < 0 && (errno == EAGAIN || errno == ENOBUFS))
        return false;
    if (r < 0)
        log_warning("cannot notify the service manager: %s", strerror(errno));
    n->n_pending -= size;
    memmove(n->pending, n->pending + size, n->n_pending);
    return true;
}

void
notify_flush(struct notify *n)
{
    while (notify_is_pending(n) && send_first(n))
        ;
}

void
notify_send(struct notify *n, const char *state)
{
    size_t size = strlen(state) + 1;

    if (n->fd < 0)
        return;
    if (size > sizeof(n->pending) - n->n_pending) {
        log_warning("the service manager does not read: \"%s\" is lost", state);
        return;
    }
    memcpy(n->pending + n->n_pending, state, size);
    n->n_pending += size;
    notify_flush(n);
}
