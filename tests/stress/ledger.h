/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a daemon has given out or holds, as figures: what it says itself (memory_info, status,
 * users), and what the kernel says of its process. Taken over a connection of its own. A daemon
 * with nobody else on it comes back to the same ledger after every flush; what differs has leaked.
 * A failure to ask ends the program. No CUDA library is loaded by it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SANITIZED true
#else
#    define SANITIZED false
#endif

/* FIGURE(name, what it is): those that have to come back to the start. */
#define FIGURES(FIGURE)                                 \
    FIGURE(device_free, "device bytes free")            \
    FIGURE(device_used, "device bytes of blocks")       \
    FIGURE(allocated, "device bytes of arrays")         \
    FIGURE(reserve, "device bytes in reserve")          \
    FIGURE(pinned, "host bytes of blocks")              \
    FIGURE(quarantined, "blocks written off")           \
    FIGURE(release_errors, "release errors")            \
    FIGURE(contexts, "contexts")                        \
    FIGURE(pools, "pools")                              \
    FIGURE(blocks, "blocks")                            \
    FIGURE(arrays, "arrays")                            \
    FIGURE(names, "names")                              \
    FIGURE(leases, "leases")                            \
    FIGURE(watches, "watches")                          \
    FIGURE(brackets, "brackets")                        \
    FIGURE(pages, "pages of timelines")                 \
    FIGURE(timelines, "timelines")                      \
    FIGURE(pending, "entries pending")                  \
    FIGURE(jobs, "driver calls")                        \
    FIGURE(connections, "connections")                  \
    FIGURE(users, "users charged")                      \
    FIGURE(charged_connections, "charged: connections") \
    FIGURE(charged_arrays, "charged: arrays")           \
    FIGURE(charged_names, "charged: names")             \
    FIGURE(charged_leases, "charged: leases")           \
    FIGURE(charged_watches, "charged: watches")         \
    FIGURE(charged_brackets, "charged: brackets")       \
    FIGURE(charged_pages, "charged: pages")             \
    FIGURE(charged_jobs, "charged: driver calls")       \
    FIGURE(charged_bytes, "charged: device bytes")      \
    FIGURE(charged_pinned, "charged: host bytes")       \
    FIGURE(charged_host, "charged: daemon's bytes")     \
    FIGURE(deferred, "deferring connections")           \
    FIGURE(fds, "open fds")

struct ledger {
#define FIGURE(name, what) uint64_t name;
    FIGURES(FIGURE)
#undef FIGURE
    uint64_t device_total;
    uint64_t rss; /* bytes of resident memory: may grow while the heap finds its size */
};

struct ledger_source {
    const char *socket;
    pid_t daemon;
};

/* The daemon's open fds. */
uint64_t ledger_count_fds(const struct ledger_source *source);

/* As it is now, without a flush. */
struct ledger ledger_take(const struct ledger_source *source);

/* After a flush, once all FIGURES are those of start; start NULL: once nothing is held, and all of
 * the device is free, which the kernel may bring about some time after the exit of who had
 * something. What is still under way (exits that the kernel has not reported, closes) is waited
 * for; after a while the ledger is given as it is. */
struct ledger ledger_settle(const struct ledger_source *source, const struct ledger *start);

/* Whether all FIGURES are the same. */
bool ledger_is_same(const struct ledger *a, const struct ledger *b);

/* Removes every name of every pool. */
void ledger_unlink_all(const struct ledger_source *source);

/* A program's ledgers: before, in the midst of it, half-way, in the end. */
struct ledgers {
    struct ledger start, work, half, end;
};

/*
 * Prints them as a table, and says whether nothing is left: half and end have the FIGURES of start,
 * and from half to end the daemon's memory has grown by rss_bound bytes at most. That is not held
 * against a daemon with a sanitizer, which keeps what is freed.
 */
bool ledgers_check(const struct ledgers *l, uint64_t rss_bound);
