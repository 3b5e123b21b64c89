/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file descriptors that this process may have: how many, whether they suffice, and memory for
 * all of them. One per process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

/* As many as libuv's table of them has in 4 MiB. */
#define FDS_MAX ((1 << 19) - 2)
/* Connections that are taken up before it is seen again whether fds are short, at most three each:
 * a socket, a pidfd, a poll set. */
#define FDS_ACCEPT_MAX 16

/* Raises the soft limit to the hard one: a connection takes two fds, a uid and a block one. */
void fds_raise_limit(void);
uint32_t fds_max(void);
/* Those of connections and blocks. Of the others a quarter is for pages of timelines, and a quarter
 * for what is queued. */
uint32_t fds_shared(void);

/* Whether the next connections could take fds that are kept for other uses. any_fd: an open one. */
bool fds_are_short(int any_fd);
/* Logged: -EMFILE where nobody would be served. */
int fds_check(int any_fd);

/* libuv's table of fds grows with the highest of them, and libuv ends the process where there is
 * no memory for that: it is made as large as it can get. scratch is the loop's until it has run. */
int fds_reserve(uv_loop_t *loop, uv_poll_t *scratch, int any_fd);
