/* SPDX-License-Identifier: Apache-2.0 */
#include "notify.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"

/* '@' at the start stands for the NUL byte of an abstract address. */
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

void
notify_flush(struct notify *n)
{
    ssize_t r;

    if (n->fd < 0 || !notify_is_pending(n))
        return;
    do {
        r = send(n->fd, n->pending, strlen(n->pending), MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (r < 0 && errno == EINTR);
    if (r < 0 && (errno == EAGAIN || errno == ENOBUFS))
        return;
    if (r < 0)
        log_warning("cannot notify the service manager: %s", strerror(errno));
    n->pending[0] = '\0';
}

void
notify_send(struct notify *n, const char *state)
{
    size_t used = strlen(n->pending);

    if (n->fd < 0)
        return;
    if (used + strlen(state) + 2 > sizeof(n->pending)) {
        log_warning("the service manager does not read: \"%s\" is lost", state);
        return;
    }
    snprintf(n->pending + used, sizeof(n->pending) - used, "%s%s", used ? "\n" : "", state);
    notify_flush(n);
}
