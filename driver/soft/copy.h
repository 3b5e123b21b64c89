/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies, all of them as rectangles: a plain one is a single row.
 *
 * Whether a call waits was measured on hardware. Copies within the device never do; between the
 * device and pinned memory the asynchronous forms do not; from ordinary memory to the device
 * neither, if the source is small enough to be staged. Every other copy waits, whatever its
 * name, and so does a plain fill of pinned memory. Ordinary memory is thus never touched after
 * the call, and an operation in a queue only holds addresses that the driver knows; it checks
 * them again when it runs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

enum copy_flags {
    COPY_ASYNC = 1,
    COPY_TO_KNOWN = 2,   /* the destination must be memory that the driver knows */
    COPY_FROM_KNOWN = 4, /* the source must */
    COPY_EARLY = 8,      /* the source is read before the call returns */
    COPY_FROM_HOST = 16, /* the caller takes the source for memory of the host */
};

CUresult copy_bytes(uintptr_t to, uintptr_t from, size_t size, unsigned int flags,
                    CUstream stream);
CUresult copy_rect(const CUDA_MEMCPY2D *copy, unsigned int flags, CUstream stream);
