/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that are read anew while the daemon serves: files and names of users are looked up on a
 * thread, since disks and name services take their time (I5); what they say is taken over on the
 * loop, all of it or, where there is a mistake, nothing. One at a time, from reload_start() until
 * it is done.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "audit.h"
#include "config.h"
#include "core.h"

struct reload {
    const char *path;      /* as for config_load() */
    struct config *config; /* in force: written when a reload is done */
    struct core *core;
    uint32_t all_pages, all_fds;             /* as for core_setup() */
    void (*done)(void *userdata, int error); /* on the loop; error: nothing has changed */
    void *userdata;
    struct log_window about_pools;
    bool running;
    struct config next;
    int r; /* of its loading */
    pthread_t thread;
    uv_async_t news;
};

/* All up to `userdata` is set, the rest 0 at first, and it does not run. What is wrong is logged,
 * here and later. < 0: it has not started. */
int reload_start(struct reload *r, uv_loop_t *loop);
/* Waits for the thread, where one runs. */
void reload_deinit(struct reload *r);
