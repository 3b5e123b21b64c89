/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long after the exit of a process, as its pidfd reports it, the others of a channel go on: the
 * producer of a "fifo" whose reader is killed with a frame, and the reader of a "latest" whose
 * producer is killed. Both sleep meanwhile. By the host, in memory of the host.
 *      usage: bench_deaths SOCKET
 */
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bench.h"
#include "floor.h"

#define ROUNDS    100
#define SLOTS     3
#define ASLEEP_US 5000 /* after which who waits sleeps, and looks seldom at anything else */

static struct shared {
    sem_t begin;        /* for the survivor */
    sem_t ready, waits; /* from the victim, and the survivor */
    sem_t over;
    uint64_t at_ns; /* the survivor goes on */
} * shared;

static const char *socket_path;

static struct caid_channel *
produce(const char *mode)
{
    const int64_t shape = 64;
    OPTIONS(caid_channel_options, options, .mode = mode, .typestr = "|u1", .shape = &shape,
            .ndim = 1, .slots = SLOTS, .memory = "pinned");
    struct caid_channel *channel;

    MUST(caid_channel_create(program_connect(socket_path), &channel, mode, &options, &error));
    return channel;
}

static struct caid_channel *
consume(const char *mode)
{
    OPTIONS(caid_channel_options, options, .wait = true, .timeout_ns = CAID_FOREVER);
    struct caid_channel *channel;

    MUST(caid_channel_open(program_connect(socket_path), &channel, mode, &options, &error));
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
end_wait(void)
{
    shared->at_ns = clock_now_ns();
    sem_post(&shared->over);
}

/* ---- a reader dies ---- */

_Noreturn static void
read_and_die(void)
{
    struct caid_channel *channel = consume("fifo");
    struct caid_frame frame;

    sem_post(&shared->begin);
    MUST(caid_channel_get(channel, 0, CAID_FOREVER, 0, &frame, &error));
    sem_post(&shared->ready);
    for (;;)
        pause();
}

_Noreturn static void
put_on(void)
{
    struct caid_channel *channel = produce("fifo");

    for (;;) {
        program_wait(&shared->begin);
        for (int i = 0; i < SLOTS; i++)
            put(channel);
        sem_post(&shared->waits);
        put(channel);
        end_wait();
    }
}

/* ---- a producer dies ---- */

_Noreturn static void
put_and_die(void)
{
    put(produce("latest"));
    sem_post(&shared->ready);
    for (;;)
        pause();
}

_Noreturn static void
read_on(void)
{
    struct caid_channel *channel = consume("latest");
    struct caid_frame frame;

    for (;;) {
        MUST(caid_channel_get(channel, 0, CAID_FOREVER, 0, &frame, &error));
        MUST(caid_channel_end(channel, &frame, 0, &error));
        sem_post(&shared->waits);
        MUST_OR(-EOWNERDEAD, caid_channel_get(channel, 0, CAID_FOREVER, 0, &frame, &error));
        end_wait();
    }
}

/* ---- the kills ---- */

static pid_t
start(void (*run)(void))
{
    pid_t pid = program_fork();

    if (pid == 0)
        run();
    return pid;
}

/* Returns when the kernel has reported the exit. */
static uint64_t
kill_one(pid_t pid)
{
    struct pollfd exit = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (exit.fd < 0)
        err(1, "pidfd_open");
    kill(pid, SIGKILL);
    while (poll(&exit, 1, -1) < 1)
        ;
    uint64_t at_ns = clock_now_ns();
    close(exit.fd);
    waitpid(pid, NULL, 0);
    return at_ns;
}

static void
measure(const char *what, void (*dies)(void), void (*survives)(void), double goal_ms)
{
    uint64_t ns[ROUNDS];
    pid_t survivor = start(survives);

    for (int i = 0; i < ROUNDS; i++) {
        pid_t victim = start(dies);
        program_wait(&shared->ready);
        program_wait(&shared->waits);
        usleep(ASLEEP_US);
        uint64_t dead_ns = kill_one(victim);
        program_wait(&shared->over);
        ns[i] = shared->at_ns > dead_ns ? shared->at_ns - dead_ns : 0;
    }
    program_kill(survivor);
    uint64_t median = median_ns(ns, ROUNDS);
    printf("%s: median %.2f ms after its exit, %.2f ms at the worst of %d (goal: %.0f)\n", what,
           (double)median / 1e6, (double)ns[ROUNDS - 1] / 1e6, ROUNDS, goal_ms);
}

int
main(int argc, char **argv)
{
    if (argc != 2)
        errx(1, "usage: bench_deaths SOCKET");
    socket_path = argv[1];
    shared = program_share(sizeof(*shared));
    program_share_sem(&shared->begin);
    program_share_sem(&shared->ready);
    program_share_sem(&shared->waits);
    program_share_sem(&shared->over);
    measure("a reader's death, a slot is back", read_and_die, put_on, 100);
    measure("a producer's death, its reader is told", put_and_die, read_on, 1000);
    return 0;
}
