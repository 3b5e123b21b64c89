/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: attack SOCKET MILLISECONDS CONNECTIONS [NAME...]
 *
 * Measures the round trips of one uid while another attacks the daemon at SOCKET with up to
 * CONNECTIONS connections: a table, first without an attack, then for MILLISECONDS of each attack.
 * Runs as root, to become the two uids.
 *
 * "turn" is the longest turn of the daemon's loop since it started, as it says itself, in time of
 * its thread. "served" is the number of the attacker's requests that are answered between two of
 * the victim's, while the victim always has one: it shows in what order the daemon serves, however
 * fast it or the machine is. It is the lower quartile: a victim that waits for a processor has
 * none.
 * The exit status is 1 if that is more than a quarter of the attacker's connections, or if an
 * attack ended early.
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
#define N_AHEAD  16 /* requests of the victim that wait */
#define N_ROUNDS 20 /* of them, at least */

/* Of round trips in nanoseconds, or of other figures, in memory that all processes share. */
struct samples {
    size_t n;
    uint64_t ns[N_MAX];
};

struct results {
    _Atomic uint64_t n_answers; /* to the attacker */
    uint64_t turn_ns;           /* the longest of the daemon's loop, until now */
    struct samples pings, served, connects, creates;
};

static void
become(uid_t uid, unsigned int n_groups)
{
    static gid_t groups[1 << 16];

    for (unsigned int i = 0; i < n_groups; i++)
        groups[i] = uid + i;
    if (setgroups(n_groups, groups) < 0 || setresgid(uid, uid, uid) < 0 ||
        setresuid(uid, uid, uid) < 0)
        err(1, "uid %u", (unsigned int)uid);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void
add_figure(struct samples *s, uint64_t figure)
{
    if (s->n < N_MAX)
        s->ns[s->n++] = figure;
}

static void
add(struct samples *s, uint64_t since_ns)
{
    add_figure(s, clock_now_ns() - since_ns);
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

static void
count_for(const char *socket, uint64_t until_ns, struct results *ret)
{
    struct wire w;

    wire_init(&w, socket);
    for (int n = 0; n < N_ROUNDS || clock_now_ns() < until_ns; n++) {
        uint64_t before = ret->n_answers;
        for (int i = 0; i < N_AHEAD; i++)
            wire_send(&w, MSG_PING, &(struct msg_none){});
        for (int i = 0; i < N_AHEAD; i++)
            wire_answer(&w, MSG_PING, NULL);
        add_figure(&ret->served, (ret->n_answers - before) / N_AHEAD);
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

/* false: it was not served. */
static bool
measure(const char *socket, uint64_t for_ns, struct results *ret)
{
    int status;

    ret->pings.n = ret->served.n = ret->connects.n = ret->creates.n = 0;
    pid_t victim = fork();
    if (victim == 0) {
        become(VICTIM, 0);
        ping_for(socket, clock_now_ns() + for_ns, &ret->pings);
        count_for(socket, clock_now_ns() + for_ns / 4, ret);
        create_for(socket, clock_now_ns() + for_ns / 2, ret);
        _exit(0);
    }
    return waitpid(victim, &status, 0) == victim && status == 0;
}

/* ---- the table ---- */

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static double
quantile(const struct samples *s, double q)
{
    return s->n ? (double)s->ns[(size_t)((double)(s->n - 1) * q)] : -1;
}

static double
low_served(struct results *r)
{
    qsort(r->served.ns, r->served.n, sizeof(uint64_t), compare);
    return quantile(&r->served, 0.25);
}

static void
print_times(struct samples *s)
{
    qsort(s->ns, s->n, sizeof(uint64_t), compare);
    printf(" %9.0f %7.0f %7.0f", quantile(s, 0.5) / 1e3, quantile(s, 0.99) / 1e3,
           quantile(s, 1) / 1e3);
}

static void
print_row(const char *name, struct results *r)
{
    printf("%-8s", name);
    print_times(&r->pings);
    print_times(&r->connects);
    print_times(&r->creates);
    printf(" %7.0f %9.0f\n", low_served(r), (double)r->turn_ns / 1e3);
    fflush(stdout);
}

/* ---- the attacker ---- */

/* Until the attacker has hardly anything there, so that each attack has all to take. */
static void
wait_for_end(const char *socket, unsigned int n_conns, struct results *ret)
{
    struct msg_status status;
    const struct msg_users_params params = {.from = ATTACKER};
    struct msg_users_result result;
    const struct msg_user *user;
    struct wire w;

    wire_init(&w, socket);
    do {
        usleep(10000);
        wire_call(&w, MSG_USERS, &params, &result);
        user = result.n_users > 0 ? &result.users[0] : NULL;
    } while (user && user->uid == ATTACKER &&
             (user->connections > 0 || user->jobs > 0 || user->fds > n_conns / 4));
    wire_call(&w, MSG_STATUS, &(struct msg_none){}, &status);
    ret->turn_ns = status.turn_cpu_ns;
    wire_deinit(&w);
}

/* In processes that are children of this one. */
static void
start(const struct attack *a, const struct attack_setup *setup, struct results *results)
{
    for (unsigned int i = 0; i < a->n_processes; i++) {
        if (fork() > 0)
            continue;
        become(ATTACKER, a->n_groups);
        wire_count(&results->n_answers);
        a->run(setup);
        _exit(0);
    }
}

/* false: one of them did not go on to its end. */
static bool
wait_for_all(const struct attack *a)
{
    bool well = true;
    int status;

    for (unsigned int i = 0; i < a->n_processes; i++)
        well = wait(&status) > 0 && status == 0 && well;
    return well;
}

static bool
run_attack(const struct attack *a, const char *socket, unsigned int n_conns, uint64_t for_ns,
           struct results *results)
{
    int stop[2], ready[2];
    bool well = true;
    char byte;

    if (pipe(stop) < 0 || pipe(ready) < 0)
        err(1, "pipe");
    const struct attack_setup setup = {socket, n_conns, stop[0], ready[1]};
    start(a, &setup, results);
    close(ready[1]);
    for (unsigned int i = 0; i < a->n_processes; i++)
        well = read(ready[0], &byte, 1) == 1 && well;
    well = measure(socket, for_ns, results) && well;
    if (write(stop[1], "", 1) != 1)
        err(1, "pipe");
    well = wait_for_all(a) && well;
    wait_for_end(socket, n_conns, results);
    close(stop[0]);
    close(stop[1]);
    close(ready[0]);
    print_row(a->name, results);
    if (!well)
        warnx("%s: an attacker, or the victim, has failed", a->name);
    if (low_served(results) > n_conns / 4)
        warnx("%s: the attacker goes first", a->name);
    return well && low_served(results) <= n_conns / 4;
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
    bool well;
    struct rlimit fds = {n_conns + 1000, n_conns + 1000};
    struct results *results =
        mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (results == MAP_FAILED || setrlimit(RLIMIT_NOFILE, &fds) < 0)
        err(1, "%u connections", n_conns);
    printf("%-8s %9s %7s %7s %9s %7s %7s %9s %7s %7s %7s %9s\n", "us", "ping", "p99", "max",
           "connect", "p99", "max", "create", "p99", "max", "served", "turn");
    well = measure(argv[1], for_ns, results);
    print_row("(quiet)", results);
    for (size_t i = 0; i < n_attacks; i++)
        if (is_wanted(&attacks[i], argv + 4))
            well = run_attack(&attacks[i], argv[1], n_conns, for_ns, results) && well;
    return well ? 0 : 1;
}
