/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening socket: inherited from the service manager (sd_listen_fds(3)), or bound to a
 * path of our own.
 *
 * A path of our own is guarded by PATH.lock, which the daemon locks with flock(2) for as long as it
 * lives. So two daemons never share a path, and only the holder of the lock removes a stale socket.
 * listener_deinit() unlinks socket and lock file. A killed daemon leaves both behind, and the next
 * one takes them over. Between listener_open() and listener_start(), which may be called again,
 * clients are refused, and do not wait.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define LISTEN_FD          3 /* SD_LISTEN_FDS_START */
#define LISTEN_KEEPER_FD   4
#define LISTEN_KEEPER_NAME "keeper"

struct listener {
    int fd;
    char *path;  /* of our own socket, absolute; of an inherited one, for the log only */
    int lock_fd; /* -1: inherited */
    char *lock_path;
};

/* The default path: $XDG_RUNTIME_DIR/caid.sock for a user, /run/caid/caid.sock for root and where
 * there is no such folder. -ENOMEM. */
int listener_default_path(char **ret);

/* Binds path with that file mode. Errors are logged: -EADDRINUSE: another daemon has the path;
 * -EEXIST: it is no socket, or its lock is no file; -ENAMETOOLONG, ... */
int listener_open(struct listener *ret, const char *path, mode_t mode);

/* Whether the environment offers this process sockets. */
bool listener_is_offered(void);
/* The connection to the keeper that supervise.h offers beside the socket; or -1. Call it before
 * listener_inherit(), which clears the offer. */
int listener_keeper(void);
/* Takes the one socket that is offered, and clears the offer in the environment. -EINVAL, logged:
 * it is not one listening SEQPACKET Unix socket. */
int listener_inherit(struct listener *ret);

int listener_start(struct listener *l);
void listener_deinit(struct listener *l);
