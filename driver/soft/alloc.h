/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that belong to a context: device memory of cuMemAlloc and pinned host memory. They
 * end by their own free call, or with what is in their context. Freeing waits for the context's
 * work, as CUDA's does.
 */
#pragma once

#include <stdint.h>

/* Frees all that belongs to the context, whose work is done. */
void alloc_free_all(uint64_t context_handle);
