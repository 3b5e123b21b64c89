/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's opening, which may take long, or never end: it has a thread of its own.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <uv.h>

#include "gpu.h"

#define OPENING_REASON_MAX 256

struct opening {
    const char *driver;
    int handoff;
    bool retries;
    struct gpu *gpu;
    pthread_t thread;
    uv_async_t news;
    void (*changed)(void *userdata);
    void *userdata;
    pthread_mutex_t lock; /* of what follows */
    bool over;
    int r;
    char reason[OPENING_REASON_MAX];
};

/* Before opening_start(): driver, handoff and gpu, as for gpu_open(); whether a failure is tried
 * again, ever more rarely; and what is called on the loop then, and when it is over. Logged. */
int opening_start(struct opening *o, uv_loop_t *loop);
/* Why there is no driver yet. */
void opening_reason(struct opening *o, char *ret, size_t size);
/* 1: it goes on. Else it is over, and this is for once: 0, and gpu is filled, or why not. Failures
 * are logged. */
int opening_end(struct opening *o);
