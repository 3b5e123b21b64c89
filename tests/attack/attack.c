/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: attack SOCKET MILLISECONDS CONNECTIONS [NAME...]
 *
 * What one uid feels while another one attacks the daemon at SOCKET, with up to so many
 * connections: a table of its round trips, for each attack so long, and before all of them without
 * one. Run by root, who can take the two uids.
 */
#include <err.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "attacks.h"
#include "base/clock.h"

#define ATTACKER 65001
#define VICTIM   65002
#define N_MAX    200000

/* Round trips in nanoseconds, in memory that the victim's process shares. */
struct samples {
    size_t n;
    uint64_t ns[N_MAX];
};

struct results {
    struct samples pings, connects, creates;
};

static void
become(uid_t uid)
{
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        err(1, "uid %u", (unsigned int)uid);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void
add(struct samples *s, uint64_t since_ns)
{
    if (s->n < N_MAX)
        s->ns[s->n++] = clock_now_ns() - since_ns;
}

/* ---- the victim ---- */

static void
ping_for(const char *socket, uint64_t until_ns, struct samples *ret)
{
    struct wire w;

    wire_init(&w, socket);
    while (clock_now_ns() < until_ns) {
        uint64_t since = clock_now_ns();
        wire_call(&w, MSG_PING, &(struct msg_none){}, NULL);
        add(ret, since);
        usleep(100); /* an event loop's pace, not a second attack */
    }
    wire_deinit(&w);
}

/* Each on a new connection, which is heard of its hello, too; so the block's fd comes along. */
static void
create_for(const char *socket, uint64_t until_ns, struct results *ret)
{
    const int64_t n = 4096;
    const struct msg_create_params params = {.typestr = MSG_STR("|u1"), .shape = {&n, 1}};

    while (clock_now_ns() < until_ns) {
        struct wire w;
        uint64_t since = clock_now_ns();
        wire_init(&w, socket);
        add(&ret->connects, since);
        since = clock_now_ns();
        wire_call(&w, MSG_CREATE, &params, NULL);
        add(&ret->creates, since);
        wire_deinit(&w);
        usleep(1000);
    }
}

static void
measure(const char *socket, uint64_t for_ns, struct results *ret)
{
    ret->pings.n = ret->connects.n = ret->creates.n = 0;
    pid_t victim = fork();
    if (victim == 0) {
        become(VICTIM);
        ping_for(socket, clock_now_ns() + for_ns, &ret->pings);
        create_for(socket, clock_now_ns() + for_ns / 2, ret);
        _exit(0);
    }
    waitpid(victim, NULL, 0);
}

/* ---- the table ---- */

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static double
quantile_us(struct samples *s, double q)
{
    return s->n ? (double)s->ns[(size_t)((double)(s->n - 1) * q)] / 1e3 : -1;
}

static void
print_row(const char *name, struct results *r)
{
    qsort(r->pings.ns, r->pings.n, sizeof(uint64_t), compare);
    qsort(r->connects.ns, r->connects.n, sizeof(uint64_t), compare);
    qsort(r->creates.ns, r->creates.n, sizeof(uint64_t), compare);
    printf("%-10s %10.0f %10.0f %10.0f %12.0f %10.0f %12.0f %10.0f\n", name,
           quantile_us(&r->pings, 0.5), quantile_us(&r->pings, 0.99), quantile_us(&r->pings, 1),
           quantile_us(&r->connects, 0.5), quantile_us(&r->connects, 0.99),
           quantile_us(&r->creates, 0.5), quantile_us(&r->creates, 1));
    fflush(stdout);
}

/* ---- the attacker ---- */

static void
run_attack(const struct attack *a, const char *socket, unsigned int n_conns, uint64_t for_ns,
           struct results *results)
{
    int stop[2], ready[2];
    char byte;

    if (pipe(stop) < 0 || pipe(ready) < 0)
        err(1, "pipe");
    for (unsigned int i = 0; i < a->n_processes; i++) {
        if (fork() > 0)
            continue;
        close(stop[1]);
        become(ATTACKER);
        a->run(&(struct attack_setup){.socket = socket,
                                      .n_conns = n_conns,
                                      .stop = stop[0],
                                      .ready = ready[1]});
        _exit(0);
    }
    close(ready[1]);
    close(stop[0]);
    for (unsigned int i = 0; i < a->n_processes; i++)
        if (read(ready[0], &byte, 1) != 1)
            warnx("%s: an attacker has failed", a->name);
    measure(socket, for_ns, results);
    close(stop[1]);
    close(ready[0]);
    for (unsigned int i = 0; i < a->n_processes; i++)
        wait(NULL);
    print_row(a->name, results);
}

static bool
is_wanted(const struct attack *a, char **names)
{
    if (!*names)
        return true;
    for (; *names; names++)
        if (strcmp(*names, a->name) == 0)
            return true;
    return false;
}

int
main(int argc, char **argv)
{
    if (argc < 4)
        errx(2, "usage: attack SOCKET MILLISECONDS CONNECTIONS [NAME...]");
    uint64_t for_ns = strtoull(argv[2], NULL, 10) * NSEC_PER_MSEC;
    unsigned int n_conns = (unsigned int)strtoul(argv[3], NULL, 10);
    struct rlimit fds = {n_conns + 1000, n_conns + 1000};
    struct results *results =
        mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (results == MAP_FAILED || setrlimit(RLIMIT_NOFILE, &fds) < 0)
        err(1, "%u connections", n_conns);
    printf("%-10s %10s %10s %10s %12s %10s %12s %10s  (us)\n", "", "ping p50", "p99", "max",
           "connect p50", "p99", "create p50", "max");
    measure(argv[1], for_ns, results);
    print_row("(quiet)", results);
    for (size_t i = 0; i < n_attacks; i++)
        if (is_wanted(&attacks[i], argv + 4))
            run_attack(&attacks[i], argv[1], n_conns, for_ns, results);
    return 0;
}
