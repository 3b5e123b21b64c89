/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file descriptors that this process may have: how many, whether they suffice, and memory for
 * all of them. One per process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FDS_MAX (1 << 19) /* more are not of use: a table has a pointer for each */
/* Connections that are taken up before it is seen again whether fds are short, two each. */
#define FDS_ACCEPT_MAX 16

/* Opens those of 0, 1 and 2 that are not: what is opened later must not be taken for one. */
void fds_fill_standard(void);
/* Closes all others, but one (or -1): a lock or a pipe of a script's is not to be held by what it
 * leaves running. Of kernels before 5.9 they stay. */
void fds_close_others(int but);
/* Raises the soft limit to the hard one: every connection takes two fds, every block one. And has
 * the kernel's table of them as large as it may become: once there are threads, it grows only after
 * a grace period of RCU, 10 to 40 ms in the midst of an accept4(2) (expand_fdtable()). */
void fds_prepare(void);
uint32_t fds_max(void);
/* Those of connections and blocks. Of the others a quarter is for pages of timelines, and a quarter
 * for what is queued. */
uint32_t fds_shared(void);

/* Whether the next connections could take fds that are kept for other uses. any_fd: an open one. */
bool fds_are_short(int any_fd);
/* Logged: -EMFILE where nobody would be served. */
int fds_check(int any_fd);
