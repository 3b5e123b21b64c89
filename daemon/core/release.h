/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Releases doomed blocks to the driver, one at a time on each device. When all are released that
 * were doomed at the time, flushes are answered, and creates are tried again that were refused for
 * want of memory or quota. When a release fails, its block is written off and the others are
 * spared.
 */
#pragma once

#include <stdbool.h>

struct block;
struct core;

/* At the end of each event: starts releases that are due, and ends rounds for some of those who
 * wait. Returns whether some are left. */
bool release_run(struct core *core);
/* The driver has released the block: 0; or it has failed: -errno with a CUresult and its text. */
void release_done(struct core *core, struct block *block, int error, int cuda,
                  const char *text);
