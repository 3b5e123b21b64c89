/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <sched.h>

pid_t
bench_daemon_pid(struct caid_client *client)
{
    OPTIONS(caid_status, status);

    MUST(caid_client_status(client, &status, &error));
    return (pid_t)status.pid;
}

void
bench_make(struct caid_client *client, const char *name, int64_t n)
{
    caid_array_close(program_make(client, name, NULL, n));
}

void
bench_drop(struct caid_client *client, const char *name)
{
    MUST(caid_unlink(client, name, NULL, &error));
}

static void
allow(pid_t pid, const cpu_set_t *set)
{
    if (sched_setaffinity(pid, sizeof(*set), set) < 0)
        err(1, "process %d cannot be placed", (int)pid);
}

void
bench_place(pid_t pid, int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    allow(pid, &set);
}

void
bench_each_placement(struct caid_client *client,
                     void (*fn)(const char *where, int cpu, void *userdata), void *userdata)
{
    pid_t daemon = bench_daemon_pid(client);
    int cpus[2], n = 0;
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        err(1, "sched_getaffinity");
    for (int cpu = 0; n < 2 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[n++] = cpu;
    fn("any CPUs", -1, userdata);
    bench_place(0, cpus[0]);
    for (int i = 0; i < n; i++) {
        bench_place(daemon, cpus[i]);
        fn(i == 0 ? "one CPU" : "two CPUs", cpus[i], userdata);
    }
    allow(daemon, &set);
    allow(0, &set);
}

uint64_t
p99_ns(const uint64_t *sorted, size_t n)
{
    return n ? sorted[n * 99 / 100] : 0;
}
