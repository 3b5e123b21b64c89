/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaving the terminal, daemon(7): the process that the user started waits until the daemon is
 * ready, or has failed with its reason on stderr, and exits with 0 or 1 accordingly.
 */
#pragma once

/* Returns 0 in the daemon only; *ret_fd is for detach_ready(). Threads and a CUDA driver must not
 * exist yet: a fork breaks them. -errno in the process that was started. */
int detach_start(int *ret_fd);

/* Lets the process that was started exit with 0; from here on stdio is /dev/null and the log goes
 * to syslog(3). Without a call the exit of the daemon is taken for a failure. */
void detach_ready(int fd_consume);
