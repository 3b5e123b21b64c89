/* SPDX-License-Identifier: Apache-2.0 */
/* The table of facts_calls.def: looked up, and called with the arguments of a command. */
#include <dlfcn.h>

#include "facts_child.h"
#include "soft/params.h"

/* clang-format off */
#define VALUES(...) VALUES_N(N_TYPES(__VA_ARGS__), ##__VA_ARGS__)
#define VALUES_N(n, ...)  VALUES_N_(n, ##__VA_ARGS__)
#define VALUES_N_(n, ...) VALUES_##n(__VA_ARGS__)
#define VALUES_0()
#define VALUES_1(t1) (t1)a[0]
#define VALUES_2(t1, t2) VALUES_1(t1), (t2)a[1]
#define VALUES_3(t1, t2, t3) VALUES_2(t1, t2), (t3)a[2]
#define VALUES_4(t1, t2, t3, t4) VALUES_3(t1, t2, t3), (t4)a[3]
#define VALUES_5(t1, t2, t3, t4, t5) VALUES_4(t1, t2, t3, t4), (t5)a[4]
#define VALUES_6(t1, t2, t3, t4, t5, t6) VALUES_5(t1, t2, t3, t4, t5), (t6)a[5]
#define COMMA_VALUES(...) COMMA_VALUES_N(N_TYPES(__VA_ARGS__), ##__VA_ARGS__)
#define COMMA_VALUES_N(n, ...)  COMMA_VALUES_N_(n, ##__VA_ARGS__)
#define COMMA_VALUES_N_(n, ...) COMMA_VALUES_##n(__VA_ARGS__)
#define COMMA_VALUES_0()
#define COMMA_VALUES_1(...) , VALUES_1(__VA_ARGS__)
#define COMMA_VALUES_2(...) , VALUES_2(__VA_ARGS__)
#define COMMA_VALUES_3(...) , VALUES_3(__VA_ARGS__)
#define COMMA_VALUES_4(...) , VALUES_4(__VA_ARGS__)

/* clang-format on */

static struct {
#define CALL(name, version, ...)       CUresult (*name)(PARAMS(__VA_ARGS__));
#define MAKE(name, version, type, ...) CUresult (*name)(PARAMS(type *, ##__VA_ARGS__));
#include "facts_calls.def"
#undef CALL
#undef MAKE
} table;

#define CALL(name, version, ...)                                            \
    static int call_##name(const uint64_t *a UNUSED, uint64_t *made UNUSED) \
    {                                                                       \
        if (!table.name)                                                    \
            return -ENOSYS;                                                 \
        return (int)table.name(VALUES(__VA_ARGS__));                        \
    }
#define MAKE(name, version, type, ...)                                  \
    static int call_##name(const uint64_t *a UNUSED, uint64_t *made)    \
    {                                                                   \
        type value = 0;                                                 \
        if (!table.name)                                                \
            return -ENOSYS;                                             \
        int result = (int)table.name(&value COMMA_VALUES(__VA_ARGS__)); \
        *made = (uint64_t)value;                                        \
        return result;                                                  \
    }
#include "facts_calls.def"
#undef CALL
#undef MAKE

int
calls_run(enum facts_op op, struct request *request)
{
    static int (*const calls[FACTS_N_OPS])(const uint64_t *, uint64_t *) = {
#define CALL(name, ...) [FACTS_##name] = call_##name,
#define MAKE(name, ...) [FACTS_##name] = call_##name,
#include "facts_calls.def"
#undef CALL
#undef MAKE
    };
    return calls[op](request->a, &request->reply->value);
}

/* Loading. */

static CUresult (*lookup)(const char *, void **, int, cuuint64_t,
                          CUdriverProcAddressQueryResult *);

void *
calls_find(const char *name, int version)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = lookup(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    return result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS ? address : NULL;
}

/* The library is loaded already, and stays so: dlopen(3) only finds it again. */
int
calls_load(const struct drv *drv)
{
    void *library = dlopen(drv->path, RTLD_NOW | RTLD_LOCAL);
    void *address = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!address)
        return -ENOSYS;
    memcpy(&lookup, &address, sizeof(lookup));
#define CALL(name, version, ...)          \
    address = calls_find(#name, version); \
    memcpy(&table.name, &address, sizeof(address));
#define MAKE(name, version, ...) CALL(name, version)
#include "facts_calls.def"
#undef CALL
#undef MAKE
    return 0;
}
