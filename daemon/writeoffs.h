/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of blocks that the driver failed to take back. The first one is told of at once; a device
 * that has failed takes none back any more, so those of the next 10 s have one line together.
 */
#pragma once

#include <stdint.h>

#include <uv.h>

struct writeoffs {
    uv_timer_t timer; /* active: what comes is counted */
    uint32_t n;       /* that nobody was told of */
    char text[256];   /* the driver's, of the last one */
};

void writeoffs_init(struct writeoffs *w, uv_loop_t *loop);
void writeoffs_add(struct writeoffs *w, const char *text);
/* Those that are counted, now. */
void writeoffs_tell(struct writeoffs *w);
