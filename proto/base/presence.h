/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a daemon is behind a socket, without connecting to it: a service manager that listens
 * there would start one for whoever does.
 *
 * A daemon has a read lock (F_OFD_SETLK, fcntl(2)) on the folder of its socket until it stops, or
 * dies. Nobody can keep it from that, since no folder can be opened for writing; who else has one
 * there only has others connect.
 */
#pragma once

#include <stdbool.h>

/* The lock is held until the fd is closed. */
int presence_take(const char *socket_path, int *ret_fd);
/* False also where the folder here is another one than the daemon's. */
bool presence_is_taken(const char *socket_path);
