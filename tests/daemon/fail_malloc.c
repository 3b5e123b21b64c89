/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: an allocation fails when somebody says so, in the file that $FAIL_MALLOC names.
 * It holds a number that counts down with each allocation; the one that brings it to 0 fails.
 */
#include <errno.h>
#include <fcntl.h>
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

static _Atomic int64_t nothing, *countdown = &nothing;

__attribute__((constructor)) static void
init(void)
{
    const char *path = getenv("FAIL_MALLOC");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0
                  ? MAP_FAILED
                  : mmap(NULL, sizeof(*countdown), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p != MAP_FAILED)
        countdown = p;
    if (fd >= 0)
        close(fd);
}

static bool
fails(void)
{
    if (atomic_load(countdown) <= 0 || atomic_fetch_sub(countdown, 1) != 1)
        return false;
    errno = ENOMEM;
    return true;
}

void *
malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *
calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *
realloc(void *p, size_t size)
{
    return fails() ? NULL : __libc_realloc(p, size);
}
