/* SPDX-License-Identifier: Apache-2.0 */
/* How client/channel/core.c loads and stores where it is explored: explore.c. */
#pragma once

#include <stdint.h>

uint64_t explore_load(const void *p);
void explore_store(void *p, uint64_t value);
void explore_store_relaxed(void *p, uint64_t value);

#define channel_load(p)                 explore_load(p)
#define channel_store(p, value)         explore_store((p), (value))
#define channel_store_relaxed(p, value) explore_store_relaxed((p), (value))
