/* SPDX-License-Identifier: Apache-2.0 */
/* What outlives a daemon that is killed: its keeper, with copies of its fds, and the journal's
 * file, which is a real one. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "keep_wire.h"
#include "kept.h"
#include "sim.h"

static struct file *has; /* by number */
static uint32_t n_has, answered;

/* ---- files ---- */

int __real_memfd_create(const char *name, unsigned flags);

WRAPPED(int, memfd_create, const char *name, unsigned flags)
{
    int fd = file_new(FILE_MEMFD, NULL, 0);

    world_spend(0);
    if (fd >= 0)
        file_get(fd)->memfd = __real_memfd_create(name, flags);
    return fd;
}

static int
real(int fd)
{
    return fd > STDERR_FILENO ? file_get(fd)->memfd : fd;
}

int __real_fstat(int fd, struct stat *ret);

WRAPPED(int, fstat, int fd, struct stat *ret)
{
    return __real_fstat(real(fd), ret);
}

int __real_ftruncate(int fd, off_t size);

WRAPPED(int, ftruncate, int fd, off_t size)
{
    world_spend(0);
    return __real_ftruncate(real(fd), size);
}

void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);

WRAPPED(void *, mmap, void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return __real_mmap(at, n, prot, flags, fd < 0 ? fd : real(fd), offset);
}

WRAPPED(int, eventfd, unsigned value UNUSED, int flags UNUSED)
{
    return file_new(FILE_OTHER, NULL, 0);
}

/* ---- what is kept ---- */

static void
drop(uint32_t number)
{
    struct file old = has[number];

    has[number] = (struct file){0};
    n_has -= old.kind != FILE_NONE;
    if (old.kind == FILE_MEMFD)
        file_end_memfd(old.memfd);
    if (old.remote)
        remote_keep(old.remote, -1);
}

static void
put(uint32_t number, const struct file *file)
{
    drop(number);
    n_has++;
    has[number] = (struct file){.kind = file->kind, .remote = file->remote};
    if (file->kind == FILE_MEMFD)
        has[number].memfd = dup(file->memfd);
    if (file->remote)
        remote_keep(file->remote, 1);
}

static int
take(uint32_t number)
{
    int fd = file_new(has[number].kind, has[number].remote, 0);

    SIM_CHECK(fd >= 0, "no fd for what is kept under %u", number);
    if (has[number].kind == FILE_MEMFD)
        file_get(fd)->memfd = dup(has[number].memfd);
    return fd;
}

void
keeper_init(void)
{
    has = calloc(files.max, sizeof(*has));
    n_has = 0;
}

void
keeper_deinit(void)
{
    for (uint32_t i = 0; i < files.max; i++)
        drop(i);
    free(has);
}

uint32_t
keeper_count(void)
{
    return n_has;
}

void
keeper_hear(const void *packet, const int *fds)
{
    const struct keep_packet *p = packet;

    answered = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->type == KEEP_PUT)
            put(p->numbers[i], file_get(fds[i]));
        else if (p->type == KEEP_DROP) /* no page is made that could be killed */
            drop(p->numbers[i]);
}

/* All, and the end. */
ssize_t
keeper_answer(void *packet, int *ret_fds, size_t *ret_n_fds)
{
    struct keep_packet *p = packet;

    *p = (struct keep_packet){.version = KEEP_VERSION, .type = KEEP_PUT};
    for (; answered < files.max && p->n < KEEP_NUMBERS_MAX; answered++)
        if (has[answered].kind) {
            ret_fds[p->n] = take(answered);
            p->numbers[p->n++] = answered;
        }
    *ret_n_fds = p->n;
    if (p->n == 0) {
        p->type = KEEP_END;
        p->numbers[p->n++] = files.max;
    }
    return (ssize_t)(offsetof(struct keep_packet, numbers) + p->n * sizeof(uint32_t));
}

/* It takes all at once, so that there is nothing for a thread. */
WRAPPED(int, kept_start, struct kept *k UNUSED)
{
    return 0;
}

WRAPPED(int, setsockopt, int fd, int level UNUSED, int option UNUSED, const void *v UNUSED,
        socklen_t n UNUSED)
{
    file_get(fd);
    return 0;
}

/* ---- processes that it does not have ---- */

long __real_syscall(long number, ...);

WRAPPED(long, syscall, long number, ...)
{
    struct remote *remote = NULL;
    va_list ap;
    long v[6];

    va_start(ap, number);
    for (size_t i = 0; i < ARRAY_SIZE(v); i++)
        v[i] = va_arg(ap, long);
    va_end(ap);
    if (number != SYS_pidfd_open)
        return __real_syscall(number, v[0], v[1], v[2], v[3], v[4], v[5]);
    LIST_FOREACH(remote, &remotes.all, link)
        if (remote->pid == (pid_t)v[0] && !remote->exited)
            return file_new(FILE_PIDFD, remote, 0);
    errno = ESRCH;
    return -1;
}
