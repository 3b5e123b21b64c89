/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The release of doomed blocks to the driver, one at a time on each device, and who waits for that:
 * flushes are answered, and creates that were refused for want of memory or quota are tried once
 * more, when all that was doomed at their time has been released. When a release fails, its block
 * is written off and the others are spared.
 */
#pragma once

#include <stdbool.h>

struct block;
struct core;

/* At the end of each event: starts the releases that are due, or ends rounds, for some of those who
 * wait. Whether it has left some out. */
bool release_run(struct core *core);
/* The block's is over: 0, or -errno with a CUresult and its text. */
void release_done(struct core *core, struct block *block, int error, int cuda,
                  const char *text);
