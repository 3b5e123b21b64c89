/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled twice: as abi_own from driver/cuda_abi.h, and as abi_real from a real cuda.h. The
 * second also holds the prototypes of symbols.def against those that cudaTypedefs.h gives for
 * the same name and version; a difference does not compile.
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
