/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells a child after fork() from the process that made the guard, without a system call: by a page
 * that the kernel wipes in the child (MADV_WIPEONFORK, madvise(2)). Where the kernel cannot do
 * that, by getpid(2). The owner calls init and deinit; any thread may ask.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct fork_guard {
    pid_t pid;        /* of the process that made it */
    const char *page; /* its first byte is 1 here and 0 in a child; NULL: ask getpid() */
};

void fork_guard_init(struct fork_guard *guard);
void fork_guard_deinit(struct fork_guard *guard);

/* Whether this process is a child of the one that made the guard. */
bool fork_guard_crossed(const struct fork_guard *guard);
