/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership helpers. A local that owns something carries a cleanup attribute; TAKE_PTR() and
 * TAKE_FD() move the value out and leave the local empty, so that every return path is right.
 * An fd that owns nothing is -1.
 */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define ARRAY_SIZE(a)   (sizeof(a) / sizeof((a)[0]))
#define ALIGN_UP(n, to) ((((n) + (to)-1) / (to)) * (to))
#define UNUSED          __attribute__((unused))
#define PRINTF(fmt, va) __attribute__((format(printf, fmt, va)))

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Defines fn##p(type *), the form that _cleanup_() wants, for a destructor that takes NULL. */
#define DEFINE_CLEANUP(type, fn)             \
    UNUSED static inline void fn##p(type *p) \
    {                                        \
        if (*p)                              \
            fn(*p);                          \
    }

#define TAKE_PTR(p)                       \
    ({                                    \
        __typeof__(p) *_take_p = &(p);    \
        __typeof__(p) _take_v = *_take_p; \
        *_take_p = NULL;                  \
        _take_v;                          \
    })

#define TAKE_FD(fd)             \
    ({                          \
        int *_take_p = &(fd);   \
        int _take_v = *_take_p; \
        *_take_p = -1;          \
        _take_v;                \
    })

static inline uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* close(2) that keeps errno and takes -1; always returns -1, to be stored back. */
static inline int
fd_close(int fd)
{
    if (fd >= 0) {
        int saved = errno;
        close(fd);
        errno = saved;
    }
    return -1;
}

UNUSED static inline void
fd_closep(int *fd)
{
    *fd = fd_close(*fd);
}

UNUSED static inline void
freep(void *p)
{
    free(*(void **)p);
}

#define _cleanup_fd_   _cleanup_(fd_closep)
#define _cleanup_free_ _cleanup_(freep)
