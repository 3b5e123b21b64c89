/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled twice: as abi_own from driver/cuda_abi.h, and as abi_real from a real cuda.h. The
 * second also holds the prototypes of symbols.def and facts_calls.def against those that
 * cudaTypedefs.h gives for the same name and version; a difference does not compile.
 */
#include "abi_rows.h"

#include <stddef.h>

#ifdef ABI_REAL
#    include <cuda.h>
#    include <cudaTypedefs.h>

#    define SYMBOL(name, lookup, version, ret, args)                                       \
        _Static_assert(__builtin_types_compatible_p(ret(*) args, PFN_##name##_v##version), \
                       "symbols.def: prototype of " #name);
#    include "symbols.def"
#    undef SYMBOL

#    include "soft/params.h"
#    define PROTOTYPE(type, text, ...)                                                       \
        _Static_assert(__builtin_types_compatible_p(CUresult(*)(PARAMS(__VA_ARGS__)), type), \
                       text);
#    define CALL(name, version, ...)                                               \
        PROTOTYPE(PFN_##name##_v##version, "facts_calls.def: prototype of " #name, \
                  ##__VA_ARGS__)
#    define MAKE(name, version, type, ...)                                                 \
        PROTOTYPE(PFN_##name##_v##version, "facts_calls.def: prototype of " #name, type *, \
                  ##__VA_ARGS__)
#    include "facts_calls.def"
#    undef CALL
#    undef MAKE
#else
#    include "cuda_abi.h"
#endif

const struct abi_row ABI_ROWS[] = {
#define VALUE(name)         {#name, (long long)name},
#define SIZE(type)          {"sizeof " #type, (long long)sizeof(type)},
#define FIELD(type, member) {#type "." #member, (long long)offsetof(type, member)},
#include "abi_layout.def"
#include "abi_values.def"
    {NULL, 0},
};
