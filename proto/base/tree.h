/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered intrusive maps: the BSD red-black tree macros (RB_HEAD, RB_ENTRY, RB_GENERATE_STATIC,
 * RB_INSERT, RB_FIND, RB_NFIND, RB_REMOVE, RB_NEXT, RB_FOREACH), of which libuv installs a
 * maintained copy. Only macros come from there; nothing that includes this links libuv.
 * Lists are the ones of <sys/queue.h>.
 */
#pragma once

#include <sys/queue.h>
#include <uv/tree.h>

/* RB_NEXT with three arguments, as in BSD and in libuv before 1.50, whichever version is installed.
 * */
#undef RB_NEXT
#define RB_NEXT(name, head, x) name##_RB_NEXT(x)

/* Three-way comparison of two numbers, for RB comparison functions. */
#define CMP(a, b) (((a) > (b)) - ((a) < (b)))

/* The same for objects in the order of one field, a number. */
#define RB_COMPARE_BY(name, type, key)                                    \
    static int name##_compare(const struct type *a, const struct type *b) \
    {                                                                     \
        return CMP(a->key, b->key);                                       \
    }
#define RB_GENERATE_BY(name, type, node, key) \
    RB_COMPARE_BY(name, type, key)            \
    RB_GENERATE(name, type, node, name##_compare)
#define RB_GENERATE_STATIC_BY(name, type, node, key) \
    RB_COMPARE_BY(name, type, key)                   \
    RB_GENERATE_STATIC(name, type, node, name##_compare)
