/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caid --supervise, for machines without a service manager: keeper (keeper.h) and parent of the
 * daemon in one process, without CUDA and without clients. It holds the listening socket, so that
 * no client is refused while no daemon runs, and passes it to the daemon as a service manager does
 * (sd_listen_fds(3)), with a connection to the keeper beside it.
 *
 * When a daemon dies, for whatever reason, another is started: at once if it has lived for 10 s,
 * else after a pause that doubles each time, up to a second. The supervisor never gives up, since
 * clients would lose their memory; but it ends with a first daemon that exits with a failure within
 * 10 s, since somebody is there to read the reason. When a daemon ends with status 0, this process
 * ends, too.
 *
 *     SIGTERM, SIGINT, stop_fd   SIGTERM to the daemon; this process ends with it
 *     SIGHUP                     SIGHUP to the daemon
 *     SIGUSR2                    SIGTERM to the daemon; another is started from the same path
 *
 * When this process is killed, the kernel stops the daemon (SIGTERM).
 */
#pragma once

#include "listen.h"
#include "options.h"

struct supervise_setup { /* all borrowed */
    const struct options *options;
    struct listener *listener;
    const char *program; /* absolute */
};

/* The path by which this program was started, made absolute. A later version may replace the file
 * at that path. */
int supervise_find_program(const char *argv0, char **ret);

/* Returns the exit status: the daemon's, or EXIT_FAILURE. Errors are logged. The caller has blocked
 * SIGTERM, SIGINT and SIGHUP; the daemon starts with these blocked, too. */
int supervise(const struct supervise_setup *setup);
