/* SPDX-License-Identifier: Apache-2.0 */
#include "geometry.h"

#include "caid_test.h"

static char why[GEOMETRY_WHY_MAX];

static int
make(struct geometry *g, const char *typestr, uint32_t ndim, const int64_t *shape,
     const int64_t *strides)
{
    int r;

    why[0] = '\0';
    r = geometry_init(g, MSG_STR(typestr), (struct msg_i64s){shape, ndim},
                      (struct msg_i64s){strides, strides ? ndim : 0}, why);
    cr_assert_eq(r == 0, why[0] == '\0');
    return r;
}

CAID_TEST(geometry, typestrs)
{
    static const struct {
        const char *text;
        uint64_t size;
    } cases[] = {
        {"<f4", 4},
        {">f8", 8},
        {"|u1", 1},
        {"|b1", 1},
        {"<i1", 1},
        {"<c16", 16},
        {"|S7", 7},
        {"<U3", 12},
        {"|V12", 12},
        {"<M8[ns]", 8},
        {"<m8", 8},
        {"<f2", 2},
        {"<V4", 4},
        {"=f4", 0},
        {"f4", 0},
        {"<f3", 0},
        {"|f4", 0},
        {"|O8", 0},
        {"<f", 0},
        {"<4", 0},
        {"<f4x", 0},
        {"|V0", 0},
        {"<M8[", 0},
        {"<M8[]", 0},
        {"<M8[25us]", 8},
        {"<M8[0s]", 0},
        {"<M8[1234567890s]", 0},
        {"<M8[xs]", 0},
        {"<M8[sm]", 0},
        {"<i8[ns]", 0},
        {"", 0},
        {"<", 0},
        {"<u16", 0},
        {"bfloat16", 2},
        {"complex32", 4},
        {"float8_e4m3b11fnuz", 1},
        {"uint1", 1},
        {"float4_e2m1fn_x2", 1},
        {"float6_e2m3fn_x4", 3},
        {"float6_e3m2fn_x4", 3},
        {"bfloat", 0},
        {"bfloat160", 0},
        {"<bfloat16", 0},
        {"|V99999999999999999999", 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        cr_assert_eq(typestr_itemsize(MSG_STR(cases[i].text)), cases[i].size, "%s",
                     cases[i].text);
}

CAID_TEST(geometry, c_order)
{
    struct geometry g;

    cr_assert_eq(make(&g, "<f4", 3, (int64_t[]){2, 3, 4}, NULL), 0);
    cr_assert_eq(g.nbytes, 96);
    cr_assert_eq(g.span, 96);
    cr_assert_null(g.strides);

    cr_assert_eq(make(&g, "<f8", 0, (int64_t[]){0}, NULL), 0);
    cr_assert_eq(g.nbytes, 8);

    cr_assert_eq(make(&g, "<f8", 2, (int64_t[]){5, 0}, NULL), 0);
    cr_assert_eq(g.span, 0);
}

CAID_TEST(geometry, strides)
{
    struct geometry g;

    /* Fortran order, and rows padded to 512 bytes. */
    cr_assert_eq(make(&g, "<f4", 2, (int64_t[]){3, 5}, (int64_t[]){4, 12}), 0);
    cr_assert_not_null(g.strides);
    cr_assert_eq(g.span, 60);
    cr_assert_eq(make(&g, "<f4", 2, (int64_t[]){3, 5}, (int64_t[]){512, 4}), 0);
    cr_assert_eq(g.span, 2 * 512 + 20);

    /* What C order would be anyway is not strided; an extent of 1 is never stepped along. */
    cr_assert_eq(make(&g, "<f4", 2, (int64_t[]){3, 5}, (int64_t[]){20, 4}), 0);
    cr_assert_null(g.strides);
    cr_assert_eq(make(&g, "<f4", 2, (int64_t[]){1, 5}, (int64_t[]){9999, 4}), 0);
    cr_assert_null(g.strides);

    cr_assert_eq(make(&g, "<f4", 2, (int64_t[]){3, 5}, (int64_t[]){-20, 4}), -EINVAL);
    cr_assert_str_eq(why, "stride 0 is -20 and leaves the array");
    cr_assert_eq(make(&g, "<f4", 1, (int64_t[]){3}, (int64_t[]){INT64_MAX}), -EINVAL);
}

/* Nothing is misaligned where there is nothing, or no step is taken. */
CAID_TEST(geometry, alignment)
{
    struct geometry g;

    cr_assert_eq(make(&g, "<f8", 2, (int64_t[]){3, 5}, (int64_t[]){44, 8}), -EINVAL);
    cr_assert_str_eq(why, "stride 0 is 44, no multiple of 8");
    cr_assert_eq(make(&g, "<f8", 2, (int64_t[]){1, 5}, (int64_t[]){44, 8}), 0);
    cr_assert_eq(make(&g, "<f8", 2, (int64_t[]){3, 0}, (int64_t[]){44, 8}), 0);
    cr_assert_eq(make(&g, "<c32", 1, (int64_t[]){2}, (int64_t[]){48}), 0);
    cr_assert_eq(make(&g, "<c32", 1, (int64_t[]){2}, (int64_t[]){40}), -EINVAL);
    cr_assert_eq(make(&g, "|V8", 1, (int64_t[]){2}, (int64_t[]){9}), 0);
}

CAID_TEST(geometry, overflow)
{
    struct geometry g;
    int64_t many[33] = {0};

    cr_assert_eq(make(&g, "<f4", 2, (int64_t[]){2, -1}, NULL), -EINVAL);
    cr_assert_str_eq(why, "extent 1 is -1");
    cr_assert_eq(make(&g, "<f4", 1, (int64_t[]){INT64_MAX}, NULL), -EINVAL);
    cr_assert_eq(make(&g, "<f8", 2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32}, NULL),
                 -EINVAL);
    cr_assert_eq(make(&g, "|u1", 1, (int64_t[]){INT64_MAX}, NULL), 0);
    cr_assert_eq(make(&g, "<f4", 33, many, NULL), -EINVAL);
    cr_assert_eq(make(&g, "<g4", 1, (int64_t[]){1}, NULL), -EINVAL);
}
