/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening socket: inherited from the service manager (sd_listen_fds(3)), or bound to a
 * path of our own.
 *
 * An own path is guarded by PATH.lock, locked with flock(2) for as long as the daemon lives, so
 * that two daemons never share a path and a stale socket is removed only by who holds the lock.
 * Socket and lock file are unlinked by listener_deinit(); a killed daemon leaves both behind,
 * and the next one takes them over. Between listener_open() and listener_start(), which may be
 * called again, clients are refused, not kept waiting.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define LISTEN_FD          3 /* SD_LISTEN_FDS_START */
#define LISTEN_KEEPER_FD   4
#define LISTEN_KEEPER_NAME "keeper"

struct listener {
    int fd;
    char *path;  /* absolute where it is ours; for the log where it is inherited */
    int lock_fd; /* -1: inherited */
    char *lock_path;
};

/* Where a daemon listens that was told nothing: $XDG_RUNTIME_DIR/caid.sock for a user,
 * /run/caid/caid.sock for root and where there is no such folder. -ENOMEM. */
int listener_default_path(char **ret);

/* Binds path with that file mode. What is wrong is logged: -EADDRINUSE where another daemon
 * holds the path, -EEXIST where it is no socket or its lock no file, -ENAMETOOLONG, ... */
int listener_open(struct listener *ret, const char *path, mode_t mode);

/* Whether the environment offers this process sockets. */
bool listener_is_offered(void);
/* The connection to the keeper that supervise.h offers beside the socket; -1. To be asked for
 * before the offer is cleared. */
int listener_keeper(void);
/* Takes the one socket that is offered and clears the environment's offer. Logged: -EINVAL where
 * it is not one listening SEQPACKET Unix socket. */
int listener_inherit(struct listener *ret);

int listener_start(struct listener *l);
void listener_deinit(struct listener *l);
