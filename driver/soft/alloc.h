/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that belong to a context: device memory of cuMemAlloc, managed memory, pinned and
 * registered host memory. They end by their own free call, or with what is in their context.
 * Freeing waits for the context's work, as CUDA's does.
 */
#pragma once

#include "range.h"

struct context;
struct memory;

/* A range of the context's, with full access, for range_insert(); NULL: no memory for it. */
struct range *alloc_range_new(const struct context *context, enum range_kind kind, void *at,
                              size_t size);
/* Maps so many bytes and inserts their range. memory is NULL for host memory; its reference is
 * consumed, also on failure. Needs the map's lock for both steps: a child that is forked finds in
 * the map what it has to unmap. */
CUresult alloc_map(const struct context *context, enum range_kind kind, size_t size,
                   struct memory *memory, struct range **ret);
/* Frees what starts at the address, or ends one of its openings, if it is of one of the kinds
 * (bits 1 << enum range_kind), else INVALID_VALUE. Needs no current context: finalizers call it.
 * Done even where a fault is the answer. */
CUresult alloc_free(unsigned int kinds, uintptr_t at);
/* Frees all that belongs to the context, whose work is done. */
void alloc_free_all(uint64_t context_handle);
