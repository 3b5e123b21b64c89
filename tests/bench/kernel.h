/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two kernels over an array of 32-bit words: one fills it, one counts the words that are not what
 * they should be. Where the driver has no modules, as the software one, a fill and a copy of the
 * driver's take their place, and a few words of the copy are looked at.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "drv.h"

struct kernel {
    struct drv *drv;
    CUfunction fill, check; /* NULL: no modules */
    CUresult (*launch)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                       unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                       void **params, void **extra);
    CUdeviceptr n_wrong; /* a word */
    CUdeviceptr copy;    /* without modules */
    uint32_t n_words;
};

/* In the current context, for arrays of n_words. A failure ends the program, here and below. */
void kernel_open(struct kernel *ret, struct drv *drv, uint32_t n_words);

void kernel_fill(const struct kernel *kernel, CUdeviceptr at, uint32_t value, CUstream stream);
void kernel_check(const struct kernel *kernel, CUdeviceptr at, uint32_t value, CUstream stream);

/* How many words the checks so far have found wrong. Without modules: how many the last one has,
 * of those that are looked at. */
uint32_t kernel_n_wrong(const struct kernel *kernel, uint32_t value);
