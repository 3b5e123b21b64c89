/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening 10,000 small named arrays in a fresh process: from before fork(2), through exec,
 * connecting and the loading of the driver, to the last array in hand. Each run is this program
 * anew. Packets are counted where libcaid sends and receives them (--wrap), driver calls by the
 * software driver; those of a process that opens one array are what it takes to have a driver at
 * all.
 *      usage: bench_many SOCKET
 *             bench_many SOCKET N START_NS: the fresh process; a struct result to standard output
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bench.h"
#include "floor.h"

#define N_ARRAYS  10000
#define N_BYTES   256
#define NAME_SIZE 32
#define N_RUNS    31
#define GOAL_MS   50

struct result {
    uint64_t start_ns;   /* until main(): fork and exec */
    uint64_t connect_ns; /* caid_connect() */
    uint64_t open_ns;    /* caid_array_open_many() */
    uint64_t total_ns;
    uint64_t sent, received; /* packets */
    uint64_t blocks;         /* that the arrays lie in */
    int64_t calls;           /* of the software driver; -1: another driver */
};

/* ---- packets ---- */

static uint64_t n_sent, n_received;

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);

ssize_t
__wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t r = __real_sendmsg(fd, message, flags);

    n_sent += r > 0;
    return r;
}

ssize_t
__wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t r = __real_recvmsg(fd, message, flags);

    n_received += r > 0;
    return r;
}

/* ---- the fresh process ---- */

static int64_t
count_calls(void)
{
    int (*control)(const char *command, char *reply, size_t size);
    static char path[4096], reply[65536];
    int64_t n = 0;
    void *driver;

    if (caid_softcuda_path(path, sizeof(path)) < 0)
        return -1;
    driver = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!driver)
        return -1;
    *(void **)&control = dlsym(driver, "caid_softcuda_control");
    if (!control || control("calls", reply, sizeof(reply)) < 0)
        return -1;
    for (char *line = strtok(reply, "\n"); line; line = strtok(NULL, "\n"))
        n += atoll(strchr(line, ' '));
    return n;
}

static uint64_t
count_blocks(struct caid_array *const *arrays, size_t n)
{
    static uint64_t ids[N_ARRAYS];
    uint64_t blocks = 0;

    for (size_t i = 0; i < n; i++)
        ids[i] = caid_array_get_info(arrays[i])->block;
    median_ns(ids, n); /* sorts */
    for (size_t i = 0; i < n; i++)
        blocks += i == 0 || ids[i] != ids[i - 1];
    return blocks;
}

static char *
name_of(char *room, size_t i)
{
    snprintf(room, NAME_SIZE, "many/%05zu", i);
    return room;
}

static void
open_all(const char *socket, size_t n, uint64_t begun)
{
    static struct caid_array *arrays[N_ARRAYS];
    static const char *names[N_ARRAYS];
    static char rooms[N_ARRAYS][NAME_SIZE];
    struct result result = {.start_ns = clock_now_ns() - begun};

    for (size_t i = 0; i < n; i++)
        names[i] = name_of(rooms[i], i);
    uint64_t start = clock_now_ns();
    struct caid_client *client = program_connect(socket);
    result.connect_ns = clock_now_ns() - start;
    start = clock_now_ns();
    MUST(caid_array_open_many(client, arrays, names, n, NULL, &error));
    result.open_ns = clock_now_ns() - start;
    result.total_ns = clock_now_ns() - begun;
    result.sent = n_sent;
    result.received = n_received;
    result.blocks = count_blocks(arrays, n);
    result.calls = count_calls();
    for (size_t i = 0; i < n; i++)
        caid_array_close(arrays[i]);
    caid_client_close(client);
    if (write(STDOUT_FILENO, &result, sizeof(result)) != sizeof(result))
        err(1, "write");
}

/* ---- the program that starts them ---- */

static void
exec_self(const char *socket, size_t n, uint64_t begun, int out)
{
    char count[24], start[24];

    snprintf(count, sizeof(count), "%zu", n);
    snprintf(start, sizeof(start), "%" PRIu64, begun);
    dup2(out, STDOUT_FILENO);
    execl("/proc/self/exe", "bench_many", socket, count, start, (char *)NULL);
    err(1, "exec");
}

static struct result
run(const char *socket, size_t n)
{
    struct result result;
    int fds[2], status;

    if (pipe(fds) < 0)
        err(1, "pipe");
    uint64_t begun = clock_now_ns();
    pid_t pid = fork();
    if (pid < 0)
        err(1, "fork");
    if (pid == 0)
        exec_self(socket, n, begun, fds[1]);
    close(fds[1]);
    if (read(fds[0], &result, sizeof(result)) != sizeof(result))
        errx(1, "the fresh process failed");
    close(fds[0]);
    if (waitpid(pid, &status, 0) != pid || status)
        errx(1, "the fresh process failed");
    return result;
}

static int
compare(const void *a, const void *b)
{
    const struct result *x = a, *y = b;
    return (x->total_ns > y->total_ns) - (x->total_ns < y->total_ns);
}

static double
ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static void
print_times(const char *socket)
{
    struct result results[N_RUNS];

    for (size_t i = 0; i < N_RUNS; i++)
        results[i] = run(socket, N_ARRAYS);
    qsort(results, N_RUNS, sizeof(*results), compare);
    const struct result *r = &results[N_RUNS / 2];
    printf(
        "opening %d named arrays in a fresh process, C: median %.1f ms, worst %.1f ms (goal: %d "
        "ms); of the median: start %.1f ms, connect %.1f ms, open_many %.1f ms\n",
        N_ARRAYS, ms(r->total_ns), ms(results[N_RUNS - 1].total_ns), GOAL_MS, ms(r->start_ns),
        ms(r->connect_ns), ms(r->open_ns));
}

static void
print_counts(const char *socket)
{
    struct result one = run(socket, 1), all = run(socket, N_ARRAYS);

    printf("opening %d named arrays: %" PRIu64 " blocks, %" PRIu64 " packets sent, %" PRIu64
           " received",
           N_ARRAYS, all.blocks, all.sent, all.received);
    if (one.calls >= 0 && all.calls >= 0)
        printf(", %" PRId64 " driver calls; one array alone: %" PRId64, all.calls, one.calls);
    printf("\n");
    fflush(stdout);
}

static void
each_array(struct caid_client *client, void (*fn)(struct caid_client *client, const char *name))
{
    char room[NAME_SIZE];

    for (size_t i = 0; i < N_ARRAYS; i++)
        fn(client, name_of(room, i));
}

static void
make(struct caid_client *client, const char *name)
{
    bench_make(client, name, N_BYTES);
}

int
main(int argc, char **argv)
{
    if (argc != 2 && argc != 4)
        errx(1, "usage: bench_many SOCKET");
    if (argc == 4) {
        open_all(argv[1], strtoul(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
        return 0;
    }
    struct caid_client *client = program_connect(argv[1]);
    each_array(client, make);
    print_times(argv[1]);
    print_counts(argv[1]);
    each_array(client, bench_drop);
    caid_client_close(client);
    return 0;
}
