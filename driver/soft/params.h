/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of up to nine types, as exports.def has them:
 *   PARAMS(int, void *)  ->  int a1, void * a2       what a function with these takes
 *   ARGS(int, void *)    ->  a1, a2                  what it passes on
 *   N_TYPES(int, void *) ->  2
 * and of none: void, nothing, 0.
 */
#pragma once

/* clang-format off */
#define N_TYPES(...) N_TYPES_(0, ##__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define N_TYPES_(_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, n, ...) n

#define PARAMS(...) PARAMS_N(N_TYPES(__VA_ARGS__), ##__VA_ARGS__)
#define PARAMS_N(n, ...)  PARAMS_N_(n, ##__VA_ARGS__)
#define PARAMS_N_(n, ...) PARAMS_##n(__VA_ARGS__)
#define PARAMS_0() void
#define PARAMS_1(t1) t1 a1
#define PARAMS_2(t1, t2) t1 a1, t2 a2
#define PARAMS_3(t1, t2, t3) PARAMS_2(t1, t2), t3 a3
#define PARAMS_4(t1, t2, t3, t4) PARAMS_3(t1, t2, t3), t4 a4
#define PARAMS_5(t1, t2, t3, t4, t5) PARAMS_4(t1, t2, t3, t4), t5 a5
#define PARAMS_6(t1, t2, t3, t4, t5, t6) PARAMS_5(t1, t2, t3, t4, t5), t6 a6
#define PARAMS_7(t1, t2, t3, t4, t5, t6, t7) PARAMS_6(t1, t2, t3, t4, t5, t6), t7 a7
#define PARAMS_8(t1, t2, t3, t4, t5, t6, t7, t8) PARAMS_7(t1, t2, t3, t4, t5, t6, t7), t8 a8
#define PARAMS_9(t1, t2, t3, t4, t5, t6, t7, t8, t9) \
    PARAMS_8(t1, t2, t3, t4, t5, t6, t7, t8), t9 a9

#define ARGS(...) ARGS_N(N_TYPES(__VA_ARGS__))
#define ARGS_N(n)  ARGS_N_(n)
#define ARGS_N_(n) ARGS_##n
#define ARGS_0
#define ARGS_1 a1
#define ARGS_2 a1, a2
#define ARGS_3 ARGS_2, a3
#define ARGS_4 ARGS_3, a4
#define ARGS_5 ARGS_4, a5
#define ARGS_6 ARGS_5, a6
#define ARGS_7 ARGS_6, a7
#define ARGS_8 ARGS_7, a8
#define ARGS_9 ARGS_8, a9
/* clang-format on */
