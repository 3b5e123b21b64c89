/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a daemon has given out or holds, as figures: each number of bytes or of things that it
 * says itself (memory_info, status, users), and what the kernel says of its process. Taken over a
 * connection of its own. A daemon with nobody else on it comes back to the same ledger after every
 * flush; what differs has leaked. A failure to ask ends the program. No CUDA library is loaded.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SANITIZED true
#else
#    define SANITIZED false
#endif

#define LEDGER_MAX 96

struct ledger {
    uint64_t figures[LEDGER_MAX]; /* those that have to come back to the start */
    size_t of_users;              /* where those of all users together begin */
    uint64_t leases, jobs;
    bool idle; /* nothing is held, and all of each device is free */
    pid_t daemon;
    uint64_t rss; /* bytes of resident memory: may grow while the heap finds its size */
};

struct ledger_source {
    const char *socket;
    pid_t daemon;
};

/* The daemon's process, which answers there. */
pid_t ledger_find_daemon(const char *socket);

/* The open fds of a process. */
uint64_t ledger_count_fds(pid_t pid);

/* Its mappings with that in their names; "": all. */
uint64_t ledger_count_mappings(pid_t pid, const char *name);

/* As it is now, without a flush. */
struct ledger ledger_take(const struct ledger_source *source);

/* After a flush, once the figures are those of start; start NULL: once it is idle, which the kernel
 * may bring about some time after the exit of who had something. What is still under way (exits
 * that the kernel has not reported, closes) is waited for; after a while the ledger is given as it
 * is. */
struct ledger ledger_settle(const struct ledger_source *source, const struct ledger *start);

/* Whether the figures are the same. */
bool ledger_is_same(const struct ledger *a, const struct ledger *b);

/* Removes every name of every pool. */
void ledger_unlink_all(const struct ledger_source *source);

/* A program's ledgers: before, in the midst of it, half-way, in the end. */
struct ledgers {
    struct ledger start, work, half, end;
};

/* Prints them as a table, and says whether nothing is left: half and end have the figures of start,
 * and from half to end the daemon's memory has grown by 512 KiB at most. That is not held against a
 * daemon with a sanitizer, which keeps what is freed, nor against another process. */
bool ledgers_check(const struct ledgers *l);
