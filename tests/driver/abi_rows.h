/* SPDX-License-Identifier: Apache-2.0 */
/* What one header says of the CUDA ABI: numbers, sizes, offsets by name, up to a null name. */
#pragma once

struct abi_row {
    const char *name;
    long long value;
};

extern const struct abi_row abi_own[], abi_real[];
