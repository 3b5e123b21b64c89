/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caid --supervise, for where there is no service manager: keeper (keeper.h) and parent of the
 * daemon in one process, which has no CUDA and no client in it. It holds the listening socket, so
 * that nobody is refused while no daemon runs, and passes it on as a service manager does
 * (sd_listen_fds(3)), with a connection to the keeper beside it.
 *
 * A daemon that dies, by whatever, is followed by another: at once, or after a pause that doubles,
 * up to a second, while each lives for less than 10 s. It never gives up, since that would give up
 * what clients hold; but for the first one, which fails before it has lived so long: somebody is
 * there to read why. A daemon that ends well, as it was told to, is the end of all.
 *
 *     SIGTERM, SIGINT, stop_fd   the daemon's SIGTERM, and its end is ours
 *     SIGHUP                     the daemon's
 *     SIGUSR2                    the daemon's SIGTERM, and another is started from the same path
 *
 * The daemon is stopped by the kernel (SIGTERM) when this process is killed.
 */
#pragma once

#include "listen.h"
#include "options.h"

struct supervise_setup { /* all borrowed */
    const struct options *options;
    struct listener *listener;
    const char *program; /* absolute */
};

/* The path by which this program was started, made absolute: a later version may lie there then. */
int supervise_find_program(const char *argv0, char **ret);

/* Logged. Returns the status to exit with: the daemon's, or EXIT_FAILURE. The caller
 * has blocked SIGTERM, SIGINT and SIGHUP, as the daemon finds them. */
int supervise(const struct supervise_setup *setup);
