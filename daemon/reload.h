/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the settings anew while the daemon serves. A thread reads the files and looks up users,
 * since disks and name services may be slow (I5). The loop then takes over all settings or, where
 * there is a mistake, none. One reload at a time, from reload_start() until done().
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
    struct config *config; /* in force; a reload that succeeds writes it */
    struct core *core;
    uint32_t all_pages, all_fds;             /* as for core_setup() */
    void (*done)(void *userdata, int error); /* on the loop; error < 0: nothing has changed */
    void *userdata;
    struct log_window about_pools;
    bool running;
    struct config next;
    int r; /* of loading `next` */
    pthread_t thread;
    uv_async_t news;
};

/* The caller has set the fields up to `userdata`, and the rest to 0 at first; no reload is running.
 * Mistakes are logged, here and later. < 0: it has not started. */
int reload_start(struct reload *r, uv_loop_t *loop);
/* Waits for the thread, if one is running. */
void reload_deinit(struct reload *r);
