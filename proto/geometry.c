/* SPDX-License-Identifier: Apache-2.0 */
#include "geometry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ITEMSIZE_MAX  UINT32_C(0x7fffffff)
#define ALIGNMENT_MAX 16 /* of any type, NumPy's and CUDA's */

/* The sizes in bytes that each kind of the array interface may have; 0 ends a row. Kinds of any
 * size (bytes, text, raw memory) have none. */
static const struct kind {
    char kind;
    uint8_t unit; /* bytes per counted unit */
    uint8_t sizes[6];
} kinds[] = {
    {'b', 1, {1}},           {'i', 1, {1, 2, 4, 8}}, {'u', 1, {1, 2, 4, 8}},
    {'f', 1, {2, 4, 8, 16}}, {'c', 1, {8, 16, 32}},  {'m', 1, {8}},
    {'M', 1, {8}},           {'S', 1, {0}},          {'U', 4, {0}},
    {'V', 1, {0}},
};

/* Types that the array interface lacks, by the names of ml_dtypes. A type of fewer than 8 bits
 * takes a byte. An element of a type with _x2 or _x4 (PyTorch's names) is two or four packed
 * numbers. */
static const struct named {
    const char *name;
    uint8_t itemsize;
} named[] = {
    {"bfloat16", 2},
    {"complex32", 4},
    {"float8_e3m4", 1},
    {"float8_e4m3", 1},
    {"float8_e4m3fn", 1},
    {"float8_e4m3b11fnuz", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"float6_e2m3fn", 1},
    {"float6_e3m2fn", 1},
    {"float4_e2m1fn", 1},
    {"int4", 1},
    {"uint4", 1},
    {"int2", 1},
    {"uint2", 1},
    {"int1", 1},
    {"uint1", 1},
    {"float4_e2m1fn_x2", 1},
    {"float6_e2m3fn_x4", 3},
    {"float6_e3m2fn_x4", 3},
};

static bool
is_named(struct msg_str s)
{
    return !memchr("<>|", s.p[0], 3);
}

static uint64_t
named_itemsize(struct msg_str s)
{
    for (size_t i = 0; i < ARRAY_SIZE(named); i++)
        if (msg_str_eq(s, named[i].name))
            return named[i].itemsize;
    return 0;
}

static bool
size_fits(const uint8_t *sizes, uint64_t count)
{
    if (sizes[0] == 0)
        return count > 0;
    for (; *sizes; sizes++)
        if (*sizes == count)
            return true;
    return false;
}

/* The "[ns]" or "[25us]" of a time type. */
static bool
is_unit(const char *p, const char *end)
{
    const char *first = p + 1;

    if (end - p < 3 || *p != '[' || end[-1] != ']')
        return false;
    for (p++, end--; *p >= '0' && *p <= '9'; p++)
        ;
    if (p - first > 9 || (p > first && *first == '0'))
        return false; /* too long for an int, or with a leading 0 */
    return end - p == 1 ? memchr("YMWDhms", *p, 7) != NULL
                        : end - p == 2 && memchr("munpfa", *p, 6) && p[1] == 's';
}

static const struct kind *
kind_find(char c)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (kinds[i].kind == c)
            return &kinds[i];
    return NULL;
}

uint64_t
typestr_itemsize(struct msg_str s)
{
    const char *p = s.p, *end = p + s.n;
    uint64_t count = 0;

    if (s.n < 3 || s.n > PROTO_TYPESTR_MAX)
        return 0;
    if (is_named(s))
        return named_itemsize(s);
    for (p += 2; p < end && *p >= '0' && *p <= '9'; p++) {
        count = count * 10 + (uint64_t)(*p - '0');
        if (count > ITEMSIZE_MAX)
            return 0;
    }

    const struct kind *kind = kind_find(s.p[1]);
    if (!kind)
        return 0;
    bool tail = p == end || (strchr("mM", s.p[1]) && is_unit(p, end));
    uint64_t size = count * kind->unit;
    /* "|", no byte order, is for single bytes and raw memory only. */
    bool order = s.p[0] != '|' || size == 1 || strchr("SV", s.p[1]);
    return tail && order && size_fits(kind->sizes, count) ? size : 0;
}

/* The alignment that a GPU demands of an element's address: a misaligned access kills the context.
 * Raw memory and structures may lie anywhere, as in NumPy. */
static uint64_t
typestr_alignment(struct msg_str s, uint64_t itemsize)
{
    const struct kind *kind = is_named(s) ? NULL : kind_find(s.p[1]);

    if (kind && kind->sizes[0] == 0)
        return kind->unit;
    itemsize &= -itemsize; /* its largest factor that is a power of 2: for 3 bytes, 1 */
    return itemsize < ALIGNMENT_MAX ? itemsize : ALIGNMENT_MAX;
}

static int PRINTF(2, 3) invalid(char *ret_why, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ret_why, GEOMETRY_WHY_MAX, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

int
geometry_c_order(uint32_t ndim, const int64_t *shape, uint64_t itemsize, int64_t *ret_strides,
                 uint64_t *ret_nbytes, char ret_why[static GEOMETRY_WHY_MAX])
{
    uint64_t step = itemsize;
    bool empty = false;

    for (uint32_t i = ndim; i-- > 0;) {
        if (shape[i] < 0)
            return invalid(ret_why, "extent %u is %" PRId64, i, shape[i]);
        uint64_t extent = (uint64_t)shape[i];
        ret_strides[i] = (int64_t)step;
        empty |= extent == 0;
        if (__builtin_mul_overflow(step, extent ? extent : 1, &step) || step > INT64_MAX)
            return invalid(ret_why, "extents %u to %u make 2^63 bytes or more", i, ndim - 1);
    }
    *ret_nbytes = empty ? 0 : step;
    return 0;
}

static int
apply_strides(struct geometry *g, const int64_t *strides, const int64_t *c_order, char *ret_why)
{
    uint64_t last = g->itemsize;
    bool differ = false;

    for (uint32_t i = 0; i < g->ndim; i++) {
        uint64_t reach;
        if (strides[i] < 0)
            return invalid(ret_why, "stride %u is %" PRId64 " and leaves the array", i,
                           strides[i]);
        if (g->shape[i] <= 1)
            continue; /* a single element has no step */
        if (__builtin_mul_overflow((uint64_t)g->shape[i] - 1, (uint64_t)strides[i], &reach) ||
            __builtin_add_overflow(last, reach, &last) || last > INT64_MAX)
            return invalid(ret_why, "stride %u is %" PRId64 " and reaches beyond 2^63 bytes", i,
                           strides[i]);
        if (g->nbytes && strides[i] % (int64_t)g->alignment)
            return invalid(ret_why, "stride %u is %" PRId64 ", no multiple of %" PRIu64, i,
                           strides[i], g->alignment);
        differ |= c_order[i] != strides[i];
    }
    if (g->nbytes && differ) {
        g->strides = strides;
        g->span = last;
    }
    return 0;
}

int
geometry_init(struct geometry *ret, struct msg_str typestr, struct msg_i64s shape,
              struct msg_i64s strides, char ret_why[static GEOMETRY_WHY_MAX])
{
    struct geometry g = {.ndim = shape.n,
                         .shape = shape.v,
                         .itemsize = typestr_itemsize(typestr)};
    int64_t c_order[PROTO_NDIM_MAX];
    int r;

    if (g.itemsize == 0)
        return invalid(ret_why, "unknown typestr \"%.*s\"",
                       typestr.n < PROTO_TYPESTR_MAX ? (int)typestr.n : PROTO_TYPESTR_MAX,
                       typestr.p);
    g.alignment = typestr_alignment(typestr, g.itemsize);
    if (shape.n > PROTO_NDIM_MAX)
        return invalid(ret_why, "%u dimensions, more than %d", shape.n, PROTO_NDIM_MAX);
    if (strides.v && strides.n != shape.n)
        return invalid(ret_why, "%u strides for %u dimensions", strides.n, shape.n);
    r = geometry_c_order(g.ndim, g.shape, g.itemsize, c_order, &g.nbytes, ret_why);
    g.span = g.nbytes;
    if (r == 0 && strides.v)
        r = apply_strides(&g, strides.v, c_order, ret_why);
    if (r == 0)
        *ret = g;
    return r;
}

void
geometry_strides(const struct geometry *geometry, int64_t *ret)
{
    char why[GEOMETRY_WHY_MAX];
    uint64_t nbytes;

    if (geometry->strides)
        memcpy(ret, geometry->strides, geometry->ndim * sizeof(ret[0]));
    else
        geometry_c_order(geometry->ndim, geometry->shape, geometry->itemsize, ret, &nbytes,
                         why);
}
