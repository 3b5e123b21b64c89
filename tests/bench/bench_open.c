/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open + close of an array whose block is mapped, from C, against the floor. The two take turns
 * in short rounds, so that a machine that changes its speed changes both.
 *
 * Where the two ends run decides more than what they do, so daemon and floor are placed alike:
 * first on this program's CPU, then on another one.
 *      usage: bench_open SOCKET, as the daemon's user or root
 */
#include <stdio.h>

#include "base/clock.h"
#include "bench.h"
#include "floor.h"

#define ROUNDS    200
#define PER_ROUND 50

static uint64_t
open_close(struct caid_client *client)
{
    struct caid_array *array;
    uint64_t start = clock_now_ns();

    MUST(caid_array_open(client, &array, "bench", NULL, &error));
    caid_array_close(array);
    return clock_now_ns() - start;
}

struct bench {
    struct caid_client *client;
    struct floor floor;
};

static void
run(const char *where, int cpu, void *userdata)
{
    static uint64_t floor_ns[ROUNDS * PER_ROUND], open_ns[ROUNDS * PER_ROUND];
    struct bench *b = userdata;
    size_t n = 0;

    if (cpu >= 0)
        bench_place(b->floor.child, cpu);
    for (int round = 0; round < ROUNDS; round++, n += PER_ROUND) {
        for (size_t i = 0; i < PER_ROUND; i++)
            floor_ns[n + i] = floor_round_trip(&b->floor);
        for (size_t i = 0; i < PER_ROUND; i++)
            open_ns[n + i] = open_close(b->client);
    }
    double floor_us = (double)median_ns(floor_ns, n) / 1e3;
    double open_us = (double)median_ns(open_ns, n) / 1e3;
    printf("open + close, block mapped, C, %s: %.1f us; floor (%zu + %zu bytes): %.1f us; "
           "ratio %.2f\n",
           where, open_us, b->floor.n_request, b->floor.n_reply, floor_us, open_us / floor_us);
}

int
main(int argc, char **argv)
{
    const int64_t shape[] = {1024, 768};
    OPTIONS(caid_create_options, create, .name = "bench", .typestr = "<f4", .shape = shape,
            .ndim = 2);
    struct caid_array *held, *held_read;
    struct bench b;

    if (argc != 2)
        errx(1, "usage: bench_open SOCKET");
    if (floor_init(&b.floor) < 0)
        errx(1, "cannot set up the floor");
    b.client = program_connect(argv[1]);
    MUST(caid_array_create(b.client, &held, &create, &error));
    MUST(caid_array_open(b.client, &held_read, "bench", NULL, &error));
    bench_each_placement(b.client, run, &b);
    MUST(caid_unlink(b.client, "bench", NULL, &error));
    caid_array_close(held_read);
    caid_array_close(held);
    caid_client_close(b.client);
    floor_deinit(&b.floor);
    return 0;
}
