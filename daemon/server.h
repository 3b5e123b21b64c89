/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at work: the loop, and the core in the middle of it. Whatever happens (a packet, a
 * hang-up, a driver call that is done, time) is told to the core, and then the actions that it
 * has for us are carried out in their order.
 *
 * One server per process, from the end of the start-up until the process ends. A stop (SIGTERM,
 * SIGINT, --stop-fd) ends all connections and waits for the driver calls that are under way, at
 * most 10 s; a second signal ends the process at once.
 */
#pragma once

#include "config.h"
#include "gpu.h"
#include "listen.h"
#include "notify.h"

struct server;

struct server_setup { /* all borrowed, and to stay until server_free() */
    const struct config *config;
    const struct gpu *gpu;
    struct listener *listener;
    struct notify *notify;
    int stop_fd; /* or -1 */
};

/* Logs what is wrong. Clients are not served before server_run(). */
int server_new(struct server **ret, const struct server_setup *setup);
/* Serves until stopped. SIGTERM and SIGINT, which the caller has blocked, are taken from here. */
void server_run(struct server *s);
/* Gives all memory back to the driver. */
struct server *server_free(struct server *s);
