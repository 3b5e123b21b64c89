/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: an allocation fails when somebody says so, in the file that $FAIL_MALLOC names.
 * It holds a number that counts down with each allocation; the one that brings it to 0 fails.
 *
 * Or an allocation kills the process: $DEADLY_MALLOC names a file with two numbers, the bytes of
 * the allocation (it may have up to 255 more), and how often that is still to happen.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#pragma GCC visibility push(default)
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static _Atomic int64_t nothing[2], *countdown = nothing, *deadly = nothing;

static _Atomic int64_t *
numbers_of(const char *variable)
{
    const char *path = getenv(variable);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, sizeof(nothing), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0)
        close(fd);
    return p == MAP_FAILED ? nothing : p;
}

__attribute__((constructor)) static void
init(void)
{
    countdown = numbers_of("FAIL_MALLOC");
    deadly = numbers_of("DEADLY_MALLOC");
}

static bool
fails(size_t size)
{
    if (deadly[1] > 0 && size >= (size_t)deadly[0] && size - (size_t)deadly[0] < 256 &&
        atomic_fetch_sub(&deadly[1], 1) > 0)
        raise(SIGKILL);
    if (atomic_load(countdown) <= 0 || atomic_fetch_sub(countdown, 1) != 1)
        return false;
    errno = ENOMEM;
    return true;
}

void *
malloc(size_t size)
{
    return fails(size) ? NULL : __libc_malloc(size);
}

void *
calloc(size_t n, size_t size)
{
    return fails(n * size) ? NULL : __libc_calloc(n, size);
}

void *
realloc(void *p, size_t size)
{
    return fails(size) ? NULL : __libc_realloc(p, size);
}
