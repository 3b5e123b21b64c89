/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one scenario in two halves, and takes the daemon's ledger before, between and after them: it
 * has to be the same each time, and the daemon's memory may not grow in the second half.
 *      usage: stress SCENARIO SOCKET PID MODE; PID of the daemon or its supervisor, which are this
 *      user's, MODE how its streams wait
 *      environment: CAID_STRESS_KILLS, CAID_STRESS_CREATES, CAID_STRESS_JOINS: how much is done
 */
#include "stress.h"

#include <err.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define HANG_S       20 /* after which nobody is waited for any more */
#define ALARM_S      (SANITIZED ? 1200 : 300)
#define MAX_DELAY_US 4000

static const struct scenario *const scenarios[] = {
    &scenario_client, &scenario_arena,   &scenario_publish, &scenario_kill,    &scenario_churn,
    &scenario_parts,  &scenario_handoff, &scenario_channel, &scenario_outages, &scenario_joins,
};

/* ---- for who runs a scenario ---- */

void
stress_fail(const struct stress *s, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "case %u (%s): ", s->number, s->what);
    va_start(args, format);
    verrx(1, format, args);
}

void
stress_count(struct stress *s, const char *what)
{
    for (size_t i = 0; i < ARRAY_SIZE(s->counts); i++)
        if (!s->counts[i].what || s->counts[i].what == what) {
            s->counts[i].what = what;
            s->counts[i].n++;
            return;
        }
    errx(1, "more is counted than there is room for");
}

struct ledger
stress_look(struct stress *s)
{
    struct ledger now = ledger_take(&s->source);

    if (now.leases >= s->ledgers.work.leases)
        s->ledgers.work = now;
    return now;
}

bool
stress_is_supervised(const struct stress *s)
{
    return s->source.daemon != s->started;
}

void
stress_outage(struct stress *s)
{
    if (kill(s->started, SIGSTOP) < 0 || kill(s->source.daemon, SIGKILL) < 0)
        stress_fail(s, "the daemon has ended by itself");
}

void
stress_revive(struct stress *s)
{
    pid_t before = s->source.daemon;

    kill(s->started, SIGCONT);
    while ((s->source.daemon = ledger_find_daemon(s->source.socket)) == before)
        usleep(1000);
}

void
role_start(struct stress *s, unsigned role, void (*actor)(struct actor *, unsigned), unsigned n)
{
    struct role *r = &s->roles[role];
    struct actor a = {.s = s, .role = r, .shared = s->shared, .random = rnd(s, 65536)};

    while (sem_trywait(&r->go) == 0 || sem_trywait(&r->reached) == 0)
        ;
    r->end = false;
    pid_t pid = program_fork();
    if (pid > 0) {
        r->pid = pid;
        return;
    }
    alarm(ALARM_S);
    actor(&a, n);
    exit(0);
}

static bool
role_has_ended(const struct role *r, siginfo_t *ret)
{
    ret->si_pid = 0;
    return waitid(P_PID, (id_t)r->pid, ret, WEXITED | WNOHANG | WNOWAIT) == 0 && ret->si_pid;
}

void
role_await(struct stress *s, unsigned role)
{
    struct role *r = &s->roles[role];
    siginfo_t end;

    for (int i = 0; i < HANG_S; i++) {
        bool ended = role_has_ended(r, &end);
        if (program_wait_for(&r->reached, !ended))
            return;
        if (ended)
            stress_fail(s, "actor %u has ended: status %d", role, end.si_status);
    }
    stress_fail(s, "actor %u does not get there", role);
}

void
role_go(struct stress *s, unsigned role)
{
    sem_post(&s->roles[role].go);
}

void
role_kill(struct stress *s, unsigned role)
{
    usleep(rnd(s, MAX_DELAY_US));
    if (!program_kill(s->roles[role].pid))
        stress_fail(s, "actor %u, to be killed, has ended by itself", role);
}

void
role_join(struct stress *s, unsigned role)
{
    int status;

    if (waitpid(s->roles[role].pid, &status, 0) != s->roles[role].pid || status)
        stress_fail(s, "actor %u has failed: status %#x", role, status);
}

/* ---- for actors ---- */

static struct actor *stop_before, *stop_after;

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);

/* Linked in the place of the library's sendmsg(2). */
ssize_t
__wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    if (stop_before)
        actor_stay(stop_before);
    ssize_t r = __real_sendmsg(fd, msg, flags);
    if (stop_after && r >= 0)
        actor_stay(stop_after);
    return r;
}

void
actor_stop_before_send(struct actor *a)
{
    stop_before = a;
}

void
actor_stop_after_send(struct actor *a)
{
    stop_after = a;
}

void
actor_open(struct actor *a)
{
    a->drv = program_driver("soft");
    a->client = program_connect(a->s->source.socket);
    MUST_CUDA(a->drv->cu.cuStreamCreate(&a->stream, CU_STREAM_NON_BLOCKING));
}

void
actor_reached(struct actor *a)
{
    sem_post(&a->role->reached);
}

void
actor_wait(struct actor *a)
{
    program_wait(&a->role->go);
}

void
actor_stay(struct actor *a)
{
    actor_reached(a);
    for (;;)
        pause();
}

void
actor_slow(struct actor *a)
{
    program_control(a->drv->path, "delay 60000000");
}

void
actor_fast(struct actor *a)
{
    program_control(a->drv->path, "delay 200 1");
}

static void *
work(void *arg)
{
    struct worker *w = arg;

    w->run(w);
    return NULL;
}

void
workers_start(struct worker *workers, unsigned n_workers, struct actor *a,
              void (*run)(struct worker *), unsigned n)
{
    for (unsigned i = 0; i < n_workers; i++) {
        workers[i] =
            (struct worker){.a = a, .random = rnd(a, 65536), .index = i, .n = n, .run = run};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            errx(1, "no thread");
    }
}

void
workers_join(struct worker *workers, unsigned n_workers)
{
    for (unsigned i = 0; i < n_workers; i++)
        pthread_join(workers[i].thread, NULL);
}

/* ---- the whole ---- */

static struct stress *
stress_new(const struct scenario *scenario, char **argv)
{
    struct stress *s = program_share(sizeof(*s));

    *s = (struct stress){.random = 1,
                         .started = (pid_t)atoi(argv[3]),
                         .source = {argv[2], ledger_find_daemon(argv[2])},
                         .mode = argv[4],
                         .shared = program_share(scenario->shared_size + 1)};
    for (unsigned i = 0; i < N_ROLES; i++) {
        program_share_sem(&s->roles[i].go);
        program_share_sem(&s->roles[i].reached);
    }
    snprintf(s->what, sizeof(s->what), "%s", scenario->name);
    return s;
}

/* What comes of it once all names have gone. */
static struct ledger
run(const struct scenario *scenario, struct stress *s, unsigned first, unsigned n,
    const struct ledger *start)
{
    if (scenario->run) {
        scenario->run(s, first, n);
    } else {
        role_start(s, 0, scenario->actor, n);
        role_join(s, 0);
    }
    ledger_unlink_all(&s->source);
    return ledger_settle(&s->source, start);
}

static int
run_all(const struct scenario *scenario, struct stress *s, unsigned n)
{
    struct ledgers *l = &s->ledgers;

    if (scenario->begin)
        scenario->begin(s);
    l->start = run(scenario, s, 0, scenario->warm, NULL);
    memset(s->counts, 0, sizeof(s->counts));
    uint64_t begun = clock_now_ns();
    l->half = run(scenario, s, 0, n / 2, &l->start);
    l->end = run(scenario, s, n / 2, n - n / 2, &l->start);
    printf("%s: %u in %.1f s\n", scenario->name, n, (double)(clock_now_ns() - begun) / 1e9);
    for (size_t i = 0; i < ARRAY_SIZE(s->counts) && s->counts[i].what; i++)
        printf("%6u %s\n", s->counts[i].n, s->counts[i].what);
    if (scenario->report)
        scenario->report(s);
    return ledgers_check(l) ? 0 : 1;
}

int
main(int argc, char **argv)
{
    setlinebuf(stdout);
    for (size_t i = 0; argc == 5 && i < ARRAY_SIZE(scenarios); i++) {
        const struct scenario *scenario = scenarios[i];
        const char *amount = scenario->variable ? getenv(scenario->variable) : NULL;
        unsigned n = amount ? (unsigned)atoi(amount) : scenario->amount;
        if (strcmp(scenario->name, argv[1]) != 0)
            continue;
        if (n < scenario->least)
            errx(1, "%s is at least %u", scenario->variable, scenario->least);
        return run_all(scenario, stress_new(scenario, argv), n);
    }
    errx(1, "usage: stress SCENARIO SOCKET PID MODE");
}
