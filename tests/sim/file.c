/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <unistd.h>

#include "sim.h"

struct files files;

void
files_init(uint32_t max)
{
    files = (struct files){.all = calloc(max, sizeof(struct file)), .max = max};
    TAILQ_INIT(&files.pending);
    for (int i = 0; i <= STDERR_FILENO; i++)
        file_new(FILE_OTHER, NULL, 0);
}

int
file_new(enum file_kind kind, struct remote *remote, uint32_t from)
{
    uint32_t fd = from > files.lowest ? from : files.lowest;

    while (fd < files.max && files.all[fd].kind)
        fd++;
    errno = EMFILE;
    if (fd >= files.max)
        return -1;
    if (from <= files.lowest)
        files.lowest = fd + 1;
    files.all[fd] =
        (struct file){.kind = kind, .remote = remote, .user = remote ? remote->user : NULL};
    if (kind == FILE_PIDFD)
        TAILQ_INSERT_TAIL(&remote->pidfds, &files.all[fd], of_process);
    files.n++;
    return (int)fd;
}

struct file *
file_get(int fd)
{
    SIM_CHECK(fd >= 0 && fd < (int)files.max && files.all[fd].kind, "fd %d is not open", fd);
    return &files.all[fd];
}

/* ---- who is ready ---- */

uint32_t
file_events(struct file *file)
{
    switch (file->kind) {
    case FILE_SOCKET: return remote_events(file->remote);
    case FILE_PIDFD: return file->remote->exited ? EPOLLIN : 0;
    case FILE_LISTENER: return STAILQ_EMPTY(&remotes.backlog) ? 0 : EPOLLIN;
    case FILE_LIBUV: return loop_is_ready() ? EPOLLIN : 0;
    case FILE_NONE:
    case FILE_KEEPER:
    case FILE_MEMFD:
    case FILE_OTHER: break;
    }
    return 0;
}

static uint32_t
told(struct file *file)
{
    return file_events(file) & (file->wanted.events | EPOLLERR | EPOLLHUP);
}

static void
untell(struct file *file)
{
    if (file->pending)
        TAILQ_REMOVE(&files.pending, file, link);
    file->pending = false;
}

static void
unlist(struct file *file)
{
    if (file->listed)
        TAILQ_REMOVE(&file->user->ready, file, of_user);
    file->listed = false;
    if (file->user && TAILQ_EMPTY(&file->user->ready))
        fair_rest(file->user);
}

/* Its user waits for as long as something of it is there, also when that has been told. */
static void
list(struct file *file)
{
    if (!file->user || file->listed || (file->kind == FILE_SOCKET && file->remote->shut))
        return;
    TAILQ_INSERT_TAIL(&file->user->ready, file, of_user);
    file->listed = true;
    fair_wait(file->user);
}

void
file_list(int fd, bool waits)
{
    waits ? list(file_get(fd)) : unlist(file_get(fd));
}

void
file_look(int fd)
{
    struct file *file = file_get(fd);

    if (!file->watched || !told(file))
        unlist(file);
}

void
file_wake(int fd)
{
    struct file *file = file_get(fd);

    if (!file->watched || !told(file))
        return;
    list(file);
    if (!file->pending)
        TAILQ_INSERT_TAIL(&files.pending, file, link);
    file->pending = true;
}

WRAPPED(int, epoll_create1, int flags UNUSED)
{
    world_spend(0);
    return file_new(FILE_OTHER, NULL, 0);
}

WRAPPED(int, epoll_ctl, int set UNUSED, int op, int fd, struct epoll_event *event)
{
    struct file *file = file_get(fd);

    world_spend(0);
    SIM_CHECK(file->watched != (op == EPOLL_CTL_ADD), "fd %d is watched twice, or not at all",
              fd);
    untell(file);
    unlist(file);
    file->watched = op != EPOLL_CTL_DEL;
    file->wanted = *event;
    file_wake(fd);
    return 0;
}

static bool
is_ready(void)
{
    struct file *file;

    while ((file = TAILQ_FIRST(&files.pending)) && !told(file))
        untell(file);
    return file != NULL;
}

/* Each of those that are there once, and again later where it is not edge-triggered. */
static int
collect(struct epoll_event *events, int n_max)
{
    struct file *file, *last = TAILQ_LAST(&files.pending, file_list);
    bool is_last = false;
    int n = 0;

    while (n < n_max && !is_last && (file = TAILQ_FIRST(&files.pending))) {
        uint32_t ready = told(file);
        is_last = file == last;
        untell(file);
        if (!ready)
            continue;
        events[n++] = (struct epoll_event){ready, file->wanted.data};
        if (!(file->wanted.events & EPOLLET))
            file_wake((int)(file - files.all));
    }
    return n;
}

WRAPPED(int, epoll_wait, int set UNUSED, struct epoll_event *events, int n_max, int timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;
    int n;

    loop_sleeps();
    world_spend(0);
    if (timeout_ms >= 0)
        until_ns = world_now_ns() + (uint64_t)timeout_ms * NSEC_PER_MSEC;
    while (!is_ready() && world_now_ns() < until_ns) {
        uint64_t event_ns = event_next_ns();
        world_sleep(event_ns < until_ns ? event_ns : until_ns);
    }
    n = collect(events, n_max);
    loop_wakes();
    return n;
}

/* ---- other system calls ---- */

int __real_close(int fd);

void
file_end_memfd(int memfd)
{
    __real_close(memfd);
}

static void
file_close(int fd)
{
    struct file *file = file_get(fd);
    struct remote *remote = file->remote;

    untell(file);
    unlist(file);
    if (file->kind == FILE_PIDFD)
        TAILQ_REMOVE(&remote->pidfds, file, of_process);
    if (file->kind == FILE_MEMFD)
        file_end_memfd(file->memfd);
    file->kind = FILE_NONE;
    files.n--;
    if ((uint32_t)fd < files.lowest)
        files.lowest = (uint32_t)fd;
    if (remote)
        remote_close(remote, fd);
}

WRAPPED(int, close, int fd)
{
    world_spend(0);
    file_close(fd);
    return 0;
}

void
files_end(void)
{
    for (uint32_t fd = STDERR_FILENO + 1; fd < files.max; fd++) {
        struct file *file = &files.all[fd];
        if (file->kind == FILE_LISTENER)
            untell(file);
        else if (file->kind)
            file_close((int)fd);
        file->watched = false;
    }
}

/* Only what is nothing but an fd is duplicated to be kept. */
WRAPPED(int, fcntl, int fd, int command, ...)
{
    va_list ap;
    int from;

    va_start(ap, command);
    from = va_arg(ap, int);
    va_end(ap);
    world_spend(0);
    SIM_CHECK(command == F_DUPFD_CLOEXEC, "fcntl(%d) is not simulated", command);
    file_get(fd);
    return file_new(FILE_OTHER, NULL, (uint32_t)from);
}

WRAPPED(int, presence_take, const char *socket_path UNUSED, int *ret_fd UNUSED)
{
    return -ENOENT;
}

WRAPPED(int, getrlimit, int resource UNUSED, struct rlimit *ret)
{
    *ret = (struct rlimit){files.max, files.max};
    return 0;
}

WRAPPED(int, poll, struct pollfd *fds, nfds_t n UNUSED, int timeout UNUSED)
{
    world_spend(0);
    return file_events(file_get(fds->fd)) != 0;
}
