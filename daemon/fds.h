/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file descriptors of this process: how many it may have, whether they suffice, and the
 * kernel's table of them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FDS_MAX (1 << 19) /* no more are used: tables have an entry for each */
/* Connections, of two fds each, that are accepted between two calls of fds_are_short(). */
#define FDS_ACCEPT_MAX 16

/* Opens those of 0, 1 and 2 that are closed, so that no later file gets their numbers. */
void fds_fill_standard(void);
/* Closes all fds from 3 up but one (-1: none): a daemon that a script starts must not keep the
 * script's locks and pipes open. Kernels before 5.9 cannot do it: the fds stay open. */
void fds_close_others(int but);
/* Raises the soft limit to the hard one: each connection takes two fds, each block one. Also makes
 * the kernel enlarge its table of fds to that limit now. Once there are threads, the table grows
 * only after a grace period of RCU, and an accept4(2) waits 10 to 40 ms for it
 * (expand_fdtable()). */
void fds_prepare(void);
uint32_t fds_max(void);
/* The fds for connections and blocks. A quarter of all is for pages of timelines, and a quarter for
 * queued packets. */
uint32_t fds_shared(void);

/* Whether the next connections could take fds that are kept for other uses. any_fd: an open one. */
bool fds_are_short(int any_fd);
/* -EMFILE, logged: no client could be served. */
int fds_check(int any_fd);
