/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that callers find: soft_*() of exports.def, each in a call. */
#include "soft.h"

/* An argument as a number, for the trace. A structure that is passed by value has none. */
/* clang-format off */
#define VALUE(a) (uintptr_t)_Generic((a), \
    CUipcMemHandle: 0, CUipcEventHandle: 0, CUmemLocation: 0, default: (a))

#define VALUES(...) VALUES_N(N_TYPES(__VA_ARGS__))
#define VALUES_N(n)  VALUES_N_(n)
#define VALUES_N_(n) VALUES_##n
#define VALUES_0
#define VALUES_1 VALUE(a1)
#define VALUES_2 VALUES_1, VALUE(a2)
#define VALUES_3 VALUES_2, VALUE(a3)
#define VALUES_4 VALUES_3, VALUE(a4)
#define VALUES_5 VALUES_4, VALUE(a5)
#define VALUES_6 VALUES_5, VALUE(a6)
#define VALUES_7 VALUES_6, VALUE(a7)
#define VALUES_8 VALUES_7, VALUE(a8)
#define VALUES_9 VALUES_8, VALUE(a9)
/* clang-format on */

/* enter: what is checked before the arguments are looked at. */
#define WRAP(type, symbol, work, enter, ...)                                     \
    type symbol(PARAMS(__VA_ARGS__))                                             \
    {                                                                            \
        struct call call;                                                        \
        uintptr_t values[MAX_ARGS] = {VALUES(__VA_ARGS__)};                      \
        type result = (type)0;                                                   \
        if (call_begin(&call, ENTRY_##symbol) && (result = (enter)) == 0)        \
            result = work(ARGS(__VA_ARGS__));                                    \
        return (type)call_end(&call, (int)result, values, N_TYPES(__VA_ARGS__)); \
    }
#define ENTER(symbol, work, ...) WRAP(CUresult, symbol, work, soft_enter(), ##__VA_ARGS__)

#define EARLY(symbol, base, version, ...) \
    WRAP(CUresult, symbol, soft_##symbol, CUDA_SUCCESS, ##__VA_ARGS__)
#define EXPORT(symbol, base, version, ...) ENTER(symbol, soft_##symbol, ##__VA_ARGS__)
#define EXPORT_PT(symbol, base, version, suffix, ...) \
    ENTER(symbol, soft_##symbol, ##__VA_ARGS__)       \
    ENTER(symbol##suffix, soft_##symbol, ##__VA_ARGS__)
#define ENTRY(symbol, base, version, ...) ENTER(symbol, soft_##symbol, ##__VA_ARGS__)
#define NVML(symbol, ...)                 WRAP(nvmlReturn_t, symbol, soft_##symbol, NVML_SUCCESS, ##__VA_ARGS__)
#include "exports.def"
