/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at work: the loop, and the core in the middle of it. Whatever happens (a packet, a
 * hang-up, a driver call that is done, time) is told to the core, and then the actions that it
 * has for us are carried out in their order.
 *
 * One server per process. Until the driver has answered there is no core. Clients are kept waiting
 * at first; when it has failed once and is asked again, or has not answered for 5 s, they are taken
 * up: each one's hello is refused with NOT_READY, which tells why, and its connection ends.
 *
 * SIGHUP has the settings read anew (reload.h), as soon as there is a core.
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

struct server_setup {        /* all borrowed, and to stay until server_free() */
    struct config *config;   /* which a reload changes */
    const char *config_path; /* as for config_load() */
    bool keeps_log_level;    /* whatever the settings say */
    const char *driver;      /* as for gpu_open() */
    struct gpu *gpu;         /* to be filled */
    struct listener *listener;
    struct notify *notify;
    struct kept *kept; /* that has been connected */
    int stop_fd;       /* or -1 */
    int ready_fd;      /* of detach_start(), or -1 */
};

/* Logs what is wrong. */
int server_new(struct server **ret, const struct server_setup *setup);
/*
 * Opens the driver and serves until stopped. SIGTERM, SIGINT and SIGHUP, which the caller has
 * blocked, are taken from here. With "cuda" under a service manager the GPU's modules may still be
 * on their way: the driver is asked again, ever more rarely. Elsewhere somebody is there to read
 * the reason, which is logged: < 0. A driver that hangs cannot be waited for: a stop ends the
 * process here, with status 0.
 */
int server_run(struct server *s);
/* Gives all memory back to the driver. */
struct server *server_free(struct server *s);
