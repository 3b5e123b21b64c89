/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 1,000,000 named arrays of 512 bytes in one daemon: its resident memory for each, and whether
 * opening one by its name takes longer than among 1,000. Several connections create them, and close
 * them at once, so that what is left is names.
 *      usage: bench_million SOCKET [N], as the daemon's user or root; on a daemon without names,
 *             and a device with N * 512 bytes
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bench.h"
#include "floor.h"

#define N_BYTES       512
#define NAME_SIZE     24
#define N_FEW         1000
#define N_MANY        1000000
#define N_CONNECTIONS 4
#define N_OPENS       20000
#define GOAL_BYTES    300
#define GOAL_RATIO    1.5

static struct caid_client *clients[N_CONNECTIONS];

static const char *
name_of(char room[NAME_SIZE], size_t i)
{
    snprintf(room, NAME_SIZE, "m/%07zu", i);
    return room;
}

/* VmRSS or VmHWM of a process. */
static uint64_t
memory_of(pid_t pid, const char *what)
{
    char path[32], line[128];
    uint64_t kib = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        err(1, "%s", path);
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, what, strlen(what)) == 0)
            kib = strtoull(line + strlen(what), NULL, 10);
    fclose(f);
    return kib * 1024;
}

/* ---- on all connections at once ---- */

struct share {
    pthread_t thread;
    struct caid_client *client;
    size_t first, end;
    void (*fn)(struct caid_client *client, const char *name);
};

static void *
work(void *arg)
{
    struct share *s = arg;
    char room[NAME_SIZE];

    for (size_t i = s->first; i < s->end; i++)
        s->fn(s->client, name_of(room, i));
    return NULL;
}

/* Calls fn for the names from first to end; seconds. */
static double
each_name(size_t first, size_t end, void (*fn)(struct caid_client *client, const char *name))
{
    struct share shares[N_CONNECTIONS];
    uint64_t start = clock_now_ns();

    for (size_t i = 0; i < N_CONNECTIONS; i++) {
        shares[i] = (struct share){.client = clients[i],
                                   .fn = fn,
                                   .first = first + (end - first) * i / N_CONNECTIONS,
                                   .end = first + (end - first) * (i + 1) / N_CONNECTIONS};
        if (pthread_create(&shares[i].thread, NULL, work, &shares[i]))
            errx(1, "pthread_create");
    }
    for (size_t i = 0; i < N_CONNECTIONS; i++)
        pthread_join(shares[i].thread, NULL);
    return (double)(clock_now_ns() - start) / 1e9;
}

static void
make(struct caid_client *client, const char *name)
{
    bench_make(client, name, N_BYTES);
}

/* ---- opening by name ---- */

struct bench {
    size_t n;            /* names that there are */
    double median_us[3]; /* as bench_each_placement() goes */
    int n_placed;
};

/* Opens one array in each block and keeps it, so that what is measured maps nothing. */
static size_t
hold_blocks(struct caid_client *client, size_t n, struct caid_array **ret_held)
{
    char room[NAME_SIZE];
    size_t n_held = 0;

    for (size_t i = 0; i < n; i += N_FEW)
        MUST(caid_array_open(client, &ret_held[n_held++], name_of(room, i), NULL, &error));
    return n_held;
}

static void
open_some(const char *where UNUSED, int cpu UNUSED, void *userdata)
{
    static uint64_t ns[N_OPENS], random = 88172645463325252;
    struct bench *b = userdata;
    struct caid_array *array;
    char room[NAME_SIZE];

    for (size_t i = 0; i < N_OPENS; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        name_of(room, random % b->n);
        uint64_t start = clock_now_ns();
        MUST(caid_array_open(clients[0], &array, room, NULL, &error));
        caid_array_close(array);
        ns[i] = clock_now_ns() - start;
    }
    b->median_us[b->n_placed++] = (double)median_ns(ns, N_OPENS) / 1e3;
}

/* What an open + close takes among n names, in each placement. */
static struct bench
time_opens(size_t n)
{
    static struct caid_array *held[N_MANY / N_FEW + 1];
    struct bench b = {.n = n};
    size_t n_held = hold_blocks(clients[0], n, held);

    bench_each_placement(clients[0], open_some, &b);
    for (size_t i = 0; i < n_held; i++)
        caid_array_close(held[i]);
    return b;
}

static void
print_opens(const struct bench *few, const struct bench *many)
{
    static const char *const where[] = {"any CPUs", "one CPU", "two CPUs"};

    for (int i = 0; i < few->n_placed; i++)
        printf(
            "open + close by name, %s: %.2f us among %zu names, %.2f us among %zu; ratio %.2f "
            "(goal: at most %.1f)\n",
            where[i], few->median_us[i], few->n, many->median_us[i], many->n,
            many->median_us[i] / few->median_us[i], GOAL_RATIO);
}

static void
run(pid_t daemon, size_t n)
{
    uint64_t empty = memory_of(daemon, "VmRSS:");
    double create_s = each_name(0, N_FEW, make);
    struct bench few = time_opens(N_FEW);

    create_s += each_name(N_FEW, n, make);
    uint64_t full = memory_of(daemon, "VmRSS:");
    printf(
        "%zu named arrays: %.1f bytes of the daemon's memory each (goal: at most %d); created "
        "in %.1f s, %.1f us each\n",
        n, (double)(full - empty) / (double)n, GOAL_BYTES, create_s,
        create_s * 1e6 / (double)n);
    fflush(stdout);
    struct bench many = time_opens(n);
    print_opens(&few, &many);
    double unlink_s = each_name(0, n, bench_drop);
    sleep(5); /* it gives memory back when nothing has happened for a while */
    printf(
        "%zu names unlinked in %.1f s, %.1f us each; %.1f MiB of the daemon's memory before, "
        "%.1f with all, %.1f after\n",
        n, unlink_s, unlink_s * 1e6 / (double)n, (double)empty / 1048576,
        (double)full / 1048576, (double)memory_of(daemon, "VmRSS:") / 1048576);
}

int
main(int argc, char **argv)
{
    size_t n = argc > 2 ? strtoul(argv[2], NULL, 10) : N_MANY;

    if (argc < 2 || n < N_FEW || n > N_MANY)
        errx(1, "usage: bench_million SOCKET [N], N from %d to %d", N_FEW, N_MANY);
    for (size_t i = 0; i < N_CONNECTIONS; i++)
        clients[i] = program_connect(argv[1]);
    make(clients[0], "warm"); /* what the first array alone costs is not of each */
    bench_drop(clients[0], "warm");
    run(bench_daemon_pid(clients[0]), n);
    for (size_t i = 0; i < N_CONNECTIONS; i++)
        caid_client_close(clients[i]);
    return 0;
}
