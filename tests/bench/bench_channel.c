/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a frame of a channel in host memory takes of the CPU, of the process that puts it and of the
 * one that gets it, which sleep when there is nothing to do: frames as fast as they come.
 *      usage: bench_channel SOCKET [FRAMES]
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "bench.h"

#define FRAMES  100000
#define GOAL_US 2.0

static double
cpu_us(void)
{
    struct rusage used;

    if (getrusage(RUSAGE_SELF, &used) < 0)
        err(1, "getrusage");
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static struct caid_channel *
produce(struct caid_client *client)
{
    const int64_t shape = 64;
    OPTIONS(caid_channel_options, options, .mode = "fifo", .typestr = "|u1", .shape = &shape,
            .ndim = 1, .slots = 64, .memory = "pinned");
    struct caid_channel *channel;

    MUST(caid_channel_create(client, &channel, "bench", &options, &error));
    return channel;
}

static void
put(struct caid_channel *channel)
{
    struct caid_frame frame;

    MUST(caid_channel_begin(channel, 0, CAID_FOREVER, &frame, &error));
    MUST(caid_channel_commit(channel, &frame, &error));
}

static void
get(struct caid_channel *channel)
{
    struct caid_frame frame;

    MUST(caid_channel_get(channel, 0, CAID_FOREVER, 0, &frame, &error));
    MUST(caid_channel_end(channel, &frame, 0, &error));
}

/* Returns the process's CPU for each frame. */
static double
run(struct caid_channel *channel, void (*one)(struct caid_channel *), long frames)
{
    double before = cpu_us();

    for (long i = 0; i < frames; i++)
        one(channel);
    return (cpu_us() - before) / (double)frames;
}

int
main(int argc, char **argv)
{
    long frames = argc > 2 ? atol(argv[2]) : FRAMES;
    OPTIONS(caid_channel_options, options, .wait = true, .timeout_ns = CAID_FOREVER);
    struct caid_channel *channel;
    struct caid_client *client;
    double *got_us, us;
    sem_t *ready;
    pid_t reader;
    int status;

    if (argc < 2 || frames <= 0)
        errx(1, "usage: bench_channel SOCKET [FRAMES]");
    got_us = program_share(sizeof(*got_us));
    ready = program_share(sizeof(*ready));
    program_share_sem(ready);
    reader = program_fork();
    client = program_connect(argv[1]);
    if (reader == 0) {
        MUST(caid_channel_open(client, &channel, "bench", &options, &error));
        sem_post(ready);
        *got_us = run(channel, get, frames);
        caid_channel_close(channel);
        caid_client_close(client);
        return 0;
    }
    channel = produce(client);
    while (sem_wait(ready) < 0)
        ;
    us = run(channel, put, frames);
    if (waitpid(reader, &status, 0) < 0 || status != 0)
        errx(1, "the reader failed");
    caid_channel_close(channel);
    MUST(caid_unlink(client, "bench", NULL, &error));
    caid_client_close(client);
    printf(
        "%ld frames in C: CPU %.2f us to put, %.2f us to get; together %.2f us (goal: %.0f)\n",
        frames, us, *got_us, us + *got_us, GOAL_US);
    return 0;
}
