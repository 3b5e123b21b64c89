/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says whether a daemon is behind a socket, without connecting to it: where a service manager
 * listens there, a connection would start a daemon.
 *
 * A daemon has a read lock (F_OFD_SETLK, fcntl(2)) on the folder of its socket until it stops or
 * dies. Nobody can keep the daemon from taking it, since a write lock needs an fd for writing,
 * which folders do not have. If another process has a read lock there, clients only connect in
 * vain.
 */
#pragma once

#include <stdbool.h>

/* The lock lasts until the fd is closed. */
int presence_take(const char *socket_path, int *ret_fd);
/* false also if the folder here is not the daemon's, as in a container. */
bool presence_is_taken(const char *socket_path);
