/* SPDX-License-Identifier: Apache-2.0 */
#include "nomem.h"

#include <stddef.h>

long nomem_countdown;

__attribute__((weak)) bool
nomem_fails(void)
{
    return nomem_countdown > 0 && --nomem_countdown == 0;
}

/* The linker's --wrap puts these in front of the allocator. */
#define ALLOCATOR(name, parameters, arguments)                 \
    void *__real_##name parameters;                            \
    void *__wrap_##name parameters;                            \
    void *__wrap_##name parameters                             \
    {                                                          \
        return nomem_fails() ? NULL : __real_##name arguments; \
    }

ALLOCATOR(malloc, (size_t n), (n))
ALLOCATOR(calloc, (size_t n, size_t size), (n, size))
ALLOCATOR(realloc, (void *old, size_t n), (old, n))
ALLOCATOR(reallocarray, (void *old, size_t n, size_t size), (old, n, size))
ALLOCATOR(strdup, (const char *s), (s))
ALLOCATOR(strndup, (const char *s, size_t n), (s, n))
