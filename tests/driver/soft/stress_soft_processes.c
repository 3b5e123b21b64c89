/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_soft_processes PROCESSES STREAMS STEPS SEED: processes that share memory and order their
 * work on it between their streams, while some of them are killed.
 *
 * A step is a session of two lanes (a thread with a stream) in different processes: one makes
 * memory and asks in it, round by round, the other opens it and answers. All that lies between is
 * fences, so what is ordered wrongly is read wrongly, and found. This program starts the processes
 * and orders the sessions, and has no driver of its own. Every now and then it kills a process and
 * starts another one. Whoever was in a session with it must notice, and go on.
 *
 * When all sessions are over, the processes that live must hold no memory, and the device be
 * empty; after they ended in order there must be no trace of any. The same seed gives the same
 * sessions to the extent that the machine runs them in the same order.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "random.h"
#include "stress_soft_kinds.h"
#include "stress_soft_left.h"
#include "stress_soft_wire.h"
#include "stress_soft_worker.h"

#define MAX_WORKERS    64
#define MAX_LANES      64 /* of all workers */
#define MAX_ROUNDS     6
#define MIN_KILL_STEPS 8 /* from one to the next */
#define MAX_KILL_STEPS 24
#define PATIENCE_S     100 /* with nothing heard: something hangs */

/* ThreadSanitizer does not see the lock under which the C library frees what a thread had of the
 * driver's thread-local variables, long after the thread has ended. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);

const char *
__tsan_default_suppressions(void)
{
    return "race:_dl_deallocate_tls\n";
}

/* The supervisor's side of a lane. */
struct lane {
    struct worker *worker;
    int socket;
    struct lane *partner; /* in its session; NULL: idle */
    bool widowed;         /* its partner was killed since the session began */
};

struct worker {
    pid_t pid;
    bool stuck; /* only its end helps */
    struct lane *lanes;
};

struct supervisor {
    unsigned int n_workers, n_streams, n_lanes;
    struct worker workers[MAX_WORKERS];
    struct lane lanes[MAX_LANES];
    uint64_t seed, random;
    unsigned int n_started; /* processes */
    unsigned int n_ordered, n_kills;
    unsigned int n_ended[OUTCOME_STUCK + 1]; /* ends of sessions, by outcome */
    unsigned int until_kill;
};

/* Its children end with it. */
_Noreturn PRINTF(1, 2) static void fail(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "stress_soft_processes: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(1);
}

/* Starting and ending processes. */

_Noreturn static void
become(const char *mode, unsigned int n)
{
    char number[16];
    snprintf(number, sizeof(number), "%u", n);
    execl("/proc/self/exe", "stress_soft_processes", mode, number, NULL);
    wire_die("execl");
}

/* In the child: its ends of the lanes become FIRST_LANE and the following. */
_Noreturn static void
become_worker(const struct supervisor *s, int *ends)
{
    char seed[32];
    unsigned int n = s->n_streams;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)s->seed + s->n_started);
    setenv("CAID_SOFTCUDA_JITTER_SEED", seed, 1);
    for (unsigned int i = 0; i < n; i++)
        ends[i] = fcntl(ends[i], F_DUPFD_CLOEXEC, FIRST_LANE + (int)n);
    for (unsigned int i = 0; i < n; i++)
        if (ends[i] < 0 || dup2(ends[i], FIRST_LANE + (int)i) < 0)
            wire_die("dup2");
    become("--worker", n);
}

static void
worker_start(struct supervisor *s, struct worker *worker)
{
    int ends[MAX_LANES], pair[2];
    for (unsigned int i = 0; i < s->n_streams; i++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            fail("socketpair: %m");
        worker->lanes[i] = (struct lane){.worker = worker, .socket = pair[0]};
        ends[i] = pair[1];
    }
    s->n_started++;
    worker->stuck = false;
    worker->pid = fork();
    if (worker->pid < 0)
        fail("fork: %m");
    if (worker->pid == 0)
        become_worker(s, ends);
    for (unsigned int i = 0; i < s->n_streams; i++)
        close(ends[i]);
}

/* Waits for the process, some time. */
static int
reap(pid_t pid)
{
    struct timespec pause = {.tv_nsec = 5000000};
    int status;
    for (int i = 0; i < PATIENCE_S * 200; i++) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid)
            return status;
        if (ended < 0)
            fail("waitpid: %m");
        nanosleep(&pause, NULL);
    }
    fail("process %d does not end", (int)pid);
}

static void
worker_hang_up(const struct supervisor *s, struct worker *worker)
{
    for (unsigned int i = 0; i < s->n_streams; i++)
        close(worker->lanes[i].socket);
}

static void
worker_kill(struct supervisor *s, struct worker *worker)
{
    left_note_sockets(worker->pid);
    kill(worker->pid, SIGKILL);
    int status = reap(worker->pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail("process %d ended by itself, with status %#x", (int)worker->pid, status);
    for (unsigned int i = 0; i < s->n_streams; i++) {
        struct lane *lane = &worker->lanes[i];
        if (lane->partner && lane->partner->partner == lane)
            lane->partner->widowed = true;
    }
    worker_hang_up(s, worker);
    s->n_kills++;
    worker_start(s, worker);
}

static void
workers_end(struct supervisor *s)
{
    for (unsigned int i = 0; i < s->n_workers; i++)
        worker_hang_up(s, &s->workers[i]);
    for (unsigned int i = 0; i < s->n_workers; i++) {
        int status = reap(s->workers[i].pid);
        if (status != 0)
            fail("process %d ended with status %#x", (int)s->workers[i].pid, status);
    }
}

/* Sessions. */

static void
send_order(struct lane *lane, struct order order, enum role role, int link_consume)
{
    order.role = role;
    if (!wire_send(lane->socket, &order, sizeof(order), link_consume))
        fail("process %d ended by itself, with status %#x", (int)lane->worker->pid,
             reap(lane->worker->pid));
    close(link_consume);
}

static void
order_session(struct supervisor *s, struct lane *maker, struct lane *taker)
{
    struct order order = {
        .memory = random_below(&s->random, n_memory_kinds),
        .maker_fence = random_below(&s->random, n_fence_kinds),
        .taker_fence = random_below(&s->random, n_fence_kinds),
        .n_rounds = 1 + random_below(&s->random, MAX_ROUNDS),
        .seed = random_next(&s->random),
    };
    int link[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) < 0)
        fail("socketpair: %m");
    maker->partner = taker;
    taker->partner = maker;
    maker->widowed = taker->widowed = false;
    send_order(maker, order, ROLE_MAKER, link[0]);
    send_order(taker, order, ROLE_TAKER, link[1]);
    s->n_ordered++;
}

/* An idle lane, of any worker but this one, which may be NULL; from a random one on. */
static struct lane *
find_idle(struct supervisor *s, const struct worker *but)
{
    unsigned int first = random_below(&s->random, s->n_lanes);
    for (unsigned int i = 0; i < s->n_lanes; i++) {
        struct lane *lane = &s->lanes[(first + i) % s->n_lanes];
        if (!lane->partner && lane->worker != but)
            return lane;
    }
    return NULL;
}

/* Now and then, and as often one of the two that just got an order as any other. */
static void
kill_some(struct supervisor *s, const struct lane *latest)
{
    if (--s->until_kill > 0)
        return;
    struct worker *worker = &s->workers[random_below(&s->random, s->n_workers)];
    if (random_below(&s->random, 2))
        worker = latest->worker;
    worker_kill(s, worker);
    s->until_kill = MIN_KILL_STEPS + random_below(&s->random, MAX_KILL_STEPS - MIN_KILL_STEPS);
}

/* False when there are no two idle lanes. */
static bool
order_some(struct supervisor *s)
{
    struct lane *maker = find_idle(s, NULL);
    struct lane *taker = maker ? find_idle(s, maker->worker) : NULL;
    if (!taker)
        return false;
    order_session(s, maker, taker);
    kill_some(s, random_below(&s->random, 2) ? maker : taker);
    return true;
}

static void
take_report(struct supervisor *s, struct lane *lane)
{
    struct report report;
    int fd;
    if (!wire_receive(lane->socket, &report, sizeof(report), &fd))
        fail("process %d ended by itself, with status %#x", (int)lane->worker->pid,
             reap(lane->worker->pid));
    if (!lane->partner)
        fail("a report from an idle lane");
    if (report.outcome != OUTCOME_DONE && !lane->widowed)
        fail("process %d was left alone, and nobody was killed", (int)lane->worker->pid);
    lane->partner = NULL;
    s->n_ended[report.outcome]++;
    if (report.outcome == OUTCOME_STUCK)
        lane->worker->stuck = true;
}

static void
take_reports(struct supervisor *s)
{
    struct pollfd fds[MAX_LANES];
    for (unsigned int i = 0; i < s->n_lanes; i++)
        fds[i] = (struct pollfd){s->lanes[i].socket, POLLIN, 0};
    int n = poll(fds, s->n_lanes, PATIENCE_S * 1000);
    if (n < 0)
        fail("poll: %m");
    if (n == 0)
        fail("a session hangs");
    for (unsigned int i = 0; i < s->n_lanes; i++)
        if (fds[i].revents)
            take_report(s, &s->lanes[i]);
    for (unsigned int i = 0; i < s->n_workers; i++)
        if (s->workers[i].stuck)
            worker_kill(s, &s->workers[i]);
}

static bool
any_busy(const struct supervisor *s)
{
    for (unsigned int i = 0; i < s->n_lanes; i++)
        if (s->lanes[i].partner)
            return true;
    return false;
}

/* What is left. */

/* The kernel closes what was in a killed process's sockets on its own time. */
static void
check_device(void)
{
    struct timespec pause = {.tv_nsec = 50000000};
    int status = 1;
    for (int i = 0; status != 0; i++) {
        if (i > 0)
            nanosleep(&pause, NULL);
        if (i == 100)
            fail("memory of the device is left over");
        pid_t pid = fork();
        if (pid == 0)
            become("--left", 0);
        status = reap(pid);
    }
}

static void
check_quiet(const struct supervisor *s)
{
    bool found = false;
    for (unsigned int i = 0; i < s->n_workers; i++) {
        found |= left_in_process(s->workers[i].pid);
        left_note_sockets(s->workers[i].pid);
    }
    if (found)
        fail("an idle process holds memory");
    check_device();
}

static void
check_end(void)
{
    check_device();
    if (left_in_names())
        fail("names are left over");
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        fail("a child is left over");
}

static void
supervise(struct supervisor *s, unsigned int n_steps)
{
    for (unsigned int i = 0; i < s->n_workers; i++) {
        s->workers[i].lanes = &s->lanes[i * s->n_streams];
        worker_start(s, &s->workers[i]);
    }
    while (s->n_ordered < n_steps || any_busy(s)) {
        while (s->n_ordered < n_steps && order_some(s))
            ;
        take_reports(s);
    }
    check_quiet(s);
    workers_end(s);
    check_end();
}

static void
prepare(struct supervisor *s)
{
    char uuid[64];
    snprintf(uuid, sizeof(uuid), "GPU-%08x-0000-4000-8000-000000000000", (unsigned)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 1);
    setenv("CAID_SOFTCUDA_DELAY_US", "50", 0);
    setenv("TSAN_OPTIONS", "halt_on_error=1",
           0); /* a report must not die with a killed process */
    s->n_lanes = s->n_workers * s->n_streams;
    s->random = s->seed;
    s->until_kill = MIN_KILL_STEPS;
}

int
main(int argc, char **argv)
{
    static struct supervisor s;
    if (argc == 3 && strcmp(argv[1], "--worker") == 0)
        return worker_run((unsigned int)atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "--left") == 0)
        left_on_device();
    if (argc == 5) {
        s.n_workers = (unsigned int)atoi(argv[1]);
        s.n_streams = (unsigned int)atoi(argv[2]);
        s.seed = strtoull(argv[4], NULL, 10);
    }
    if (s.n_workers < 2 || s.n_workers > MAX_WORKERS || s.n_streams < 1 ||
        s.n_streams > MAX_LANES / s.n_workers) {
        fprintf(stderr,
                "usage: stress_soft_processes PROCESSES STREAMS STEPS SEED\n"
                "(2 processes or more, at most %d streams of them all)\n",
                MAX_LANES);
        return 2;
    }
    prepare(&s);
    supervise(&s, (unsigned int)atoi(argv[3]));
    printf(
        "seed %s: %u sessions, %u kills; %u ends done, %u alone, %u stuck; nothing is left\n",
        argv[4], s.n_ordered, s.n_kills, s.n_ended[OUTCOME_DONE], s.n_ended[OUTCOME_ALONE],
        s.n_ended[OUTCOME_STUCK]);
    return 0;
}
