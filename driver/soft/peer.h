/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What devices are to each other. All of them are host memory, so copies reach everything, as they
 * do on hardware; but fills, stream memory operations and questions about pointers are answered as
 * if a device had only its own memory, and what it was given access to: that of peers by
 * cuCtxEnablePeerAccess, of mappings and of pools by the device.
 */
#pragma once

#include <stdbool.h>

#include "context.h"
#include "range.h"

/* Whether the context's device can use the memory. Needs the map's lock. */
bool peer_reaches(const struct context *context, const struct range *range);
/* The same for all that starts in [start, start + size); INVALID_VALUE. Takes the map's lock. */
CUresult peer_check(const struct context *context, uintptr_t start, size_t size);
/* The context is given work on that memory, which may be another's. Takes the map's lock. */
void peer_use(struct context *context, uintptr_t at);
/* CUmemAccess_flags that the device has. Needs the map's lock. */
int peer_access(const struct device *device, const struct range *range);
