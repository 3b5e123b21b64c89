/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks that talk to a daemon share: a client, its daemon's process, and where the
 * two run. A failure ends the program.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "program.h"

pid_t bench_daemon_pid(struct caid_client *client);

/* Makes an array of n bytes and closes it; by its name, which may be NULL, it stays until it is
 * dropped. */
void bench_make(struct caid_client *client, const char *name, int64_t n);
void bench_drop(struct caid_client *client, const char *name);

void bench_place(pid_t pid, int cpu);

/*
 * Calls fn with client and daemon where the scheduler likes, then on one CPU, then on two: waking
 * another CPU can cost ten times a switch on one. where is "any CPUs", "one CPU" or "two CPUs", cpu
 * where the daemon is, or -1. Both may run where they like again in the end. As the daemon's
 * user or root.
 */
void bench_each_placement(struct caid_client *client,
                          void (*fn)(const char *where, int cpu, void *userdata),
                          void *userdata);

/* Of n sorted values, as median_ns() leaves them: the value that 99 of 100 do not exceed. */
uint64_t p99_ns(const uint64_t *sorted, size_t n);
