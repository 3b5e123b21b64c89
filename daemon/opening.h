/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the driver. That may take long, or never end, so it has a thread of its own.
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
    int handoff, rdma;
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

/* The caller has set driver, handoff, rdma and gpu, as for gpu_open(); `retries`: whether to try
 * again after a failure, at growing intervals; `changed`, which is called on the loop after each
 * failure and at the end. -errno, logged. */
int opening_start(struct opening *o, uv_loop_t *loop);
/* Why there is no driver yet. */
void opening_reason(struct opening *o, char *ret, size_t size);
/* 1: the driver is still being opened. 0: gpu is filled; < 0: it could not be opened; after either
 * this must not be called again. Failures are logged. */
int opening_end(struct opening *o);
