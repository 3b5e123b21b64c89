/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at work: the loop, and the core in the middle of it. The server passes each event (a
 * packet, a hang-up, the end of a driver call, a deadline) to the core, and then carries out the
 * core's actions in their order.
 *
 * One server per process. Until the driver has answered there is no core, and clients wait. When
 * the driver has failed once and is tried again, or has not answered for 5 s, clients are refused:
 * each hello gets NOT_READY with the reason, and its connection ends.
 *
 * SIGHUP reads the settings anew (reload.h), as soon as there is a core.
 *
 * A stop (SIGTERM, SIGINT, --stop-fd) ends all connections and waits for the driver calls that are
 * under way, at most 10 s; a second signal ends the process at once.
 */
#pragma once

#include "config.h"
#include "gpu.h"
#include "listen.h"
#include "notify.h"

struct server;

struct server_setup {        /* all borrowed, until server_free() */
    struct config *config;   /* a reload changes it */
    const char *config_path; /* as for config_load() */
    bool keeps_log_level;    /* whatever the settings say */
    const char *driver;      /* as for gpu_open() */
    struct gpu *gpu;         /* filled here */
    struct listener *listener;
    struct notify *notify;
    struct kept *kept; /* after kept_init() */
    int stop_fd;       /* or -1 */
    int ready_fd;      /* of detach_start(), or -1 */
};

/* Errors are logged. */
int server_new(struct server **ret, const struct server_setup *setup);
/*
 * Opens the driver and serves until stopped. It handles SIGTERM, SIGINT and SIGHUP, which the
 * caller has blocked. A driver that fails is tried again, at growing intervals, with "cuda" under a
 * service manager, since the GPU's modules may not be loaded yet at boot; else the failure is
 * logged and returned. A stop does not wait for a driver that hangs: it ends the process here, with
 * status 0.
 */
int server_run(struct server *s);
/* Gives all memory back to the driver. */
struct server *server_free(struct server *s);
