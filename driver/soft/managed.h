/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory. Here the host and the device have the same pages anyway, so an allocation is
 * ordinary memory that comes into being when it is touched, counts for no device, and may be larger
 * than one. Advice and prefetches move nothing; they are kept, page by page, and told.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct advice;

/* Of the pages of an allocation; NULL: no memory. */
struct advice *advice_new(uintptr_t start, size_t size);

/* Of the allocation that is freed; NULL is fine. */
void advice_free(struct advice *advice);
