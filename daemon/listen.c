/* SPDX-License-Identifier: Apache-2.0 */
#include "listen.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/macros.h"
#include "path.h"

#define LISTEN_BACKLOG  128 /* small, since a new client waits for all before it */
#define SYSTEM_FOLDER   "/run/caid"
#define SYSTEM_SOCKET   SYSTEM_FOLDER "/caid.sock"
#define LISTENER_CLOSED ((struct listener){.fd = -1, .lock_fd = -1})

int
listener_default_path(char **ret)
{
    const char *folder = getenv("XDG_RUNTIME_DIR");
    char *path = NULL;

    if (geteuid() != 0 && folder && *folder) {
        if (asprintf(&path, "%s/caid.sock", folder) < 0)
            return -ENOMEM;
    } else {
        path = strdup(SYSTEM_SOCKET);
    }
    if (!path)
        return -ENOMEM;
    *ret = path;
    return 0;
}

/* The unit makes the folder. A daemon that root starts by hand makes it, open to all users whatever
 * root's umask is. */
static void
make_system_folder(const char *path)
{
    if (strcmp(path, SYSTEM_SOCKET) != 0 || geteuid() != 0)
        return;
    if (mkdir(SYSTEM_FOLDER, 0755) < 0 ? errno != EEXIST : chmod(SYSTEM_FOLDER, 0755) < 0)
        log_warning("%s: %s", SYSTEM_FOLDER, strerror(errno));
}

static bool
is_same_file(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* O_NONBLOCK: opening a FIFO or a device could block. */
static int
open_lock(const char *path, int *ret_fd)
{
    const int flags = O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    _cleanup_fd_ int fd = open(path, flags, 0600);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EEXIST;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* The last holder may have unlinked the file before we had its lock. Then the lock keeps nobody
 * out, and the file that is at the path now is tried. */
static int
lock(const char *path, int *ret_fd)
{
    for (;;) {
        _cleanup_fd_ int fd = -1;
        int r = open_lock(path, &fd);

        if (r < 0)
            return r;
        if (flock(fd, LOCK_EX | LOCK_NB) < 0)
            return errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
        if (is_same_file(fd, path)) {
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
    }
}

static int
listener_lock(struct listener *l)
{
    int r;

    if (asprintf(&l->lock_path, "%s.lock", l->path) < 0) {
        l->lock_path = NULL;
        return -ENOMEM;
    }
    r = lock(l->lock_path, &l->lock_fd);
    if (r == -EADDRINUSE)
        log_error("%s: another daemon listens here (%s is locked)", l->path, l->lock_path);
    else if (r == -EEXIST)
        log_error("%s: exists and is no file: not touched", l->lock_path);
    else if (r < 0)
        log_error("%s: %s", l->lock_path, strerror(-r));
    return r;
}

/* Removes the socket that a killed daemon has left. We hold the lock. */
static int
remove_stale(const char *path)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -EEXIST;
    log_notice("%s: removing the socket of a daemon that is gone", path);
    return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

/* The umask gives the file its mode in bind(2) itself: there is no moment with another mode. No
 * other thread exists yet that could make files under it. */
static int
bind_with_mode(int fd, const struct sockaddr_un *addr, mode_t mode)
{
    mode_t before = umask(~mode & 0777);
    int r = bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;

    umask(before);
    return r;
}

static int
listener_bind(struct listener *l, const char *path, mode_t mode)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int r = remove_stale(l->path);

    if (r == -EEXIST)
        log_error("%s: exists and is no socket: not touched", l->path);
    else if (r < 0)
        log_error("%s: %s", l->path, strerror(-r));
    if (r < 0)
        return r;

    memcpy(addr.sun_path, path, strlen(path) + 1);
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    r = l->fd < 0 ? -errno : bind_with_mode(l->fd, &addr, mode);
    if (r < 0)
        log_error("%s: cannot bind: %s", l->path, strerror(-r));
    return r;
}

int
listener_open(struct listener *ret, const char *path, mode_t mode)
{
    _cleanup_(listener_deinit) struct listener l = LISTENER_CLOSED;
    int r;

    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        log_error("%s: longer than the %zu bytes of a socket's path", path,
                  sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
        return -ENAMETOOLONG;
    }
    make_system_folder(path);
    r = path_make_absolute(path,
                           &l.path); /* for unlink(2) at the end, when the folder may differ */
    if (r < 0)
        return r;
    r = listener_lock(&l);
    if (r < 0)
        return r;
    r = listener_bind(&l, path, mode);
    if (r < 0) {
        l.fd = fd_close(l.fd); /* not bound: what lies at the path is not ours to unlink */
        return r;
    }
    *ret = l;
    l = LISTENER_CLOSED;
    return 0;
}

bool
listener_is_offered(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");

    return pid && fds && strtol(pid, NULL, 10) == (long)getpid();
}

int
listener_keeper(void)
{
    const char *names = listener_is_offered() ? getenv("LISTEN_FDNAMES") : NULL, *last;

    last = names ? strchr(names, ':') : NULL;
    if (!last || strcmp(last + 1, LISTEN_KEEPER_NAME) != 0 ||
        fcntl(LISTEN_KEEPER_FD, F_SETFD, FD_CLOEXEC) < 0)
        return -1;
    return LISTEN_KEEPER_FD;
}

static int
get_socket_option(int fd, int option)
{
    socklen_t n = sizeof(int);
    int value;

    return getsockopt(fd, SOL_SOCKET, option, &value, &n) < 0 ? -errno : value;
}

static bool
is_listening_seqpacket(int fd)
{
    return get_socket_option(fd, SO_DOMAIN) == AF_UNIX &&
           get_socket_option(fd, SO_TYPE) == SOCK_SEQPACKET &&
           get_socket_option(fd, SO_ACCEPTCONN) == 1;
}

/* The name for the log; an abstract or unnamed socket has none. */
static char *
socket_path(int fd)
{
    struct sockaddr_un addr = {0};
    socklen_t n = sizeof(addr);

    if (getsockname(fd, (struct sockaddr *)&addr, &n) < 0 || !addr.sun_path[0])
        return strdup("an inherited socket");
    return strndup(addr.sun_path, sizeof(addr.sun_path));
}

int
listener_inherit(struct listener *ret)
{
    _cleanup_(listener_deinit) struct listener l = LISTENER_CLOSED;
    long n = strtol(getenv("LISTEN_FDS"), NULL, 10) - (listener_keeper() >= 0);
    int flags;

    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (n != 1) {
        log_error("the service manager passes %ld sockets: one was expected", n);
        return -EINVAL;
    }
    if (!is_listening_seqpacket(LISTEN_FD)) {
        log_error("the service manager's socket is no listening SEQPACKET Unix socket "
                  "(ListenSequentialPacket=)");
        return -EINVAL;
    }
    l.fd = LISTEN_FD;
    flags = fcntl(l.fd, F_GETFL);
    if (flags < 0 || fcntl(l.fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(l.fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    l.path = socket_path(l.fd);
    if (!l.path)
        return -ENOMEM;
    *ret = l;
    l = LISTENER_CLOSED;
    return 0;
}

int
listener_start(struct listener *l)
{
    if (l->lock_fd >= 0 && listen(l->fd, LISTEN_BACKLOG) < 0) {
        log_error("%s: cannot listen: %s", l->path, strerror(errno));
        return -errno;
    }
    return 0;
}

void
listener_deinit(struct listener *l)
{
    /* The lock file goes last, while still locked: see lock(). */
    if (l->fd >= 0 && l->lock_fd >= 0)
        unlink(l->path);
    if (l->lock_fd >= 0)
        unlink(l->lock_path);
    fd_close(l->fd);
    fd_close(l->lock_fd);
    free(l->path);
    free(l->lock_path);
    *l = LISTENER_CLOSED;
}
