/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open + close of an array whose block is mapped, from C, against the floor. The two take turns
 * in short rounds, so that a machine that changes its speed changes both.
 *
 * Where the two ends run decides more than what they do: waking another CPU can cost ten times a
 * switch on one. So daemon and floor are placed alike, first on this program's CPU, then on
 * another one.
 *      usage: bench_open SOCKET, as the daemon's user or root
 */
#include <err.h>
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "caid/caid.h"
#include "floor.h"

#define ROUNDS    200
#define PER_ROUND 50

static uint64_t
open_close(struct caid_client *client)
{
    struct caid_array *array;
    struct caid_error error;
    uint64_t start = clock_now_ns();

    if (caid_array_open(client, &array, "bench", NULL, &error) < 0)
        errx(1, "open: %s", error.message);
    caid_array_close(array);
    return clock_now_ns() - start;
}

static void
place(pid_t pid, int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(pid, sizeof(set), &set) < 0)
        err(1, "process %d cannot be placed on CPU %d", (int)pid, cpu);
}

static void
run(struct caid_client *client, struct floor *f, const char *where)
{
    static uint64_t floor_ns[ROUNDS * PER_ROUND], open_ns[ROUNDS * PER_ROUND];
    size_t n = 0;

    for (int round = 0; round < ROUNDS; round++, n += PER_ROUND) {
        for (size_t i = 0; i < PER_ROUND; i++)
            floor_ns[n + i] = floor_round_trip(f);
        for (size_t i = 0; i < PER_ROUND; i++)
            open_ns[n + i] = open_close(client);
    }
    double floor_us = (double)median_ns(floor_ns, n) / 1e3;
    double open_us = (double)median_ns(open_ns, n) / 1e3;
    printf("open + close, block mapped, C, %s: %.1f us; floor (%zu + %zu bytes): %.1f us; "
           "ratio %.2f\n",
           where, open_us, f->n_request, f->n_reply, floor_us, open_us / floor_us);
}

/* On two of the CPUs that this process may use. */
static void
run_placed(struct caid_client *client, struct floor *f)
{
    struct caid_status status = CAID_INIT(struct caid_status);
    struct caid_error error;
    int cpus[2], n = 0;
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        err(1, "sched_getaffinity");
    for (int cpu = 0; n < 2 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[n++] = cpu;
    if (caid_client_status(client, &status, &error) < 0)
        errx(1, "%s", error.message);
    place(0, cpus[0]);
    for (int i = 0; i < n; i++) {
        place((pid_t)status.pid, cpus[i]);
        place(f->child, cpus[i]);
        run(client, f, i == 0 ? "one CPU" : "two CPUs");
    }
    if (sched_setaffinity((pid_t)status.pid, sizeof(set), &set) < 0)
        err(1, "the daemon cannot be let go");
}

int
main(int argc, char **argv)
{
    struct caid_connect_options connect = CAID_INIT(struct caid_connect_options);
    struct caid_create_options create = CAID_INIT(struct caid_create_options);
    const int64_t shape[] = {1024, 768};
    struct caid_client *client;
    struct caid_array *held, *held_read;
    struct caid_error error;
    struct floor f;

    if (argc != 2)
        errx(1, "usage: bench_open SOCKET");
    if (floor_init(&f) < 0)
        errx(1, "cannot set up the floor");
    connect.socket = argv[1];
    create.name = "bench";
    create.typestr = "<f4";
    create.shape = shape;
    create.ndim = 2;
    if (caid_connect(&client, &connect, &error) < 0 ||
        caid_array_create(client, &held, &create, &error) < 0 ||
        caid_array_open(client, &held_read, "bench", NULL, &error) < 0)
        errx(1, "%s", error.message);
    run_placed(client, &f);
    if (caid_unlink(client, "bench", NULL, &error) < 0)
        errx(1, "%s", error.message);
    caid_array_close(held_read);
    caid_array_close(held);
    caid_client_close(client);
    floor_deinit(&f);
    return 0;
}
