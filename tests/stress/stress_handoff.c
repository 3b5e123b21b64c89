/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of readers, writers and signallers at each step of a hand-off, one after the other, with
 * a witness that waits for each of them. Nobody may wait for the dead for more than a second, who
 * read what is not whole has to be told, and the daemon has nothing of the dead afterwards.
 *      usage: stress_handoff SOCKET PID MODE; PID of the daemon, which is this user's, MODE how its
 *      streams wait environment: CAID_STRESS_KILLS, 100
 *
 * By inter-process events, streams that wait for the dead wait for ever: those cases are left out
 * there, and said.
 *
 * This process itself never loads a CUDA library, so that the children that it forks can.
 */
#include "handoff.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "ledger.h"

#define KILLS        100
#define MAX_CASES    256
#define MAX_DELAY_US 3000
#define RSS_BOUND    (512 * 1024)
#define HANG_S       20 /* after which nobody is waited for any more */
#define SETTLE_MS    1000

struct stress {
    struct ledger_source source;
    struct ledgers ledgers;
    struct handoff_process process;
    struct kill_case cases[MAX_CASES];
    size_t n_cases;
    unsigned n_kills[N_MOMENTS];
    uint64_t n_fds; /* of the daemon, with the witness alone */
    uint32_t random;
    pid_t witness, victim;
};

/* ---- the cases ---- */

bool
kill_case_loses(const struct kill_case *c)
{
    return c->writes && c->moment >= MOMENT_started && c->moment <= MOMENT_ended;
}

/* A stream of the witness would wait for the dead. */
static bool
waits_for_the_dead(const struct kill_case *c)
{
    return c->moment == MOMENT_looping ||
           (c->moment == MOMENT_ended && (c->writes || c->witness_writes)) ||
           (c->moment == MOMENT_submitted && c->variant != 0);
}

static void
add_case(struct stress *s, struct kill_case c)
{
    if (strcmp(s->process.mode, "events") == 0 && waits_for_the_dead(&c))
        return;
    if (s->n_cases == MAX_CASES)
        errx(1, "more cases than there is room for");
    s->cases[s->n_cases++] = c;
}

static void
make_cases(struct stress *s)
{
    for (int variant = 0; variant < HANDOFF_VARIANTS; variant++)
        for (int moment = 0; moment < N_MOMENTS; moment++)
            for (int how = 0; how < 4; how++) {
                bool timeline = moment >= MOMENT_submitted;
                struct kill_case c = {.moment = (enum moment)moment,
                                      .writes = how & 1 || timeline,
                                      .witness_writes = how & 2,
                                      .variant = variant};
                if (!timeline || how == 0)
                    add_case(s, c);
            }
}

/* ---- processes ---- */

void
handoff_open(struct handoff_process *p)
{
    const struct caid_device *devices;

    p->drv = program_driver("soft");
    p->client = program_connect(p->socket);
    if (caid_client_devices(p->client, &devices) < 1 ||
        strcmp(devices[0].handoff, p->mode) != 0)
        errx(1, "the daemon's streams do not wait by %s", p->mode);
}

static pid_t
start_process(struct stress *s, bool is_victim)
{
    pid_t pid = program_fork();

    if (pid > 0)
        return pid;
    if (is_victim)
        handoff_victim(&s->process);
    handoff_witness(&s->process);
    exit(0);
}

/* Nobody posts when one of them has failed, or hangs. */
static void
await(struct stress *s, sem_t *sem, const char *what)
{
    int status;

    if (program_wait_for(sem, HANG_S))
        return;
    if (waitpid(s->witness, &status, WNOHANG) > 0)
        errx(1, "the witness ended: status %#x", status);
    const struct kill_case *c = &s->process.shared->now;
    errx(1, "no %s: case %u, moment %d, %s %s, variant %d", what, s->process.shared->number,
         (int)c->moment, c->writes ? "writer" : "reader",
         c->witness_writes ? "before a writer" : "before readers", c->variant);
}

static void
ask_witness(struct stress *s, const char *what)
{
    sem_post(&s->process.shared->ask);
    await(s, &s->process.shared->answer, what);
}

/* ---- a kill ---- */

static void
kill_victim(struct stress *s)
{
    usleep(rnd(s, MAX_DELAY_US));
    s->process.shared->killed_ns = clock_now_ns();
    if (!program_kill(s->victim))
        errx(1, "a victim ended by itself");
}

/* The daemon has no more fds than before there was a victim, soon. */
static void
check_fds(struct stress *s)
{
    uint64_t n = 0;

    for (int i = 0; i < SETTLE_MS; i++) {
        n = ledger_count_fds(&s->source);
        if (n <= s->n_fds)
            return;
        usleep(1000);
    }
    errx(1, "the daemon has %d fds, not %d", (int)n, (int)s->n_fds);
}

static void
run_case(struct stress *s, const struct kill_case *c)
{
    struct handoff_shared *shared = s->process.shared;

    shared->now = *c;
    shared->number++;
    s->n_kills[c->moment]++;
    ask_witness(s, "witness");
    s->victim = start_process(s, true);
    await(s, &shared->reached, "victim");
    ask_witness(s, "witness that approaches");
    kill_victim(s);
    ask_witness(s, "witness after the kill");
    check_fds(s);
}

/* With one witness, which ends afterwards. */
static void
run_kills(struct stress *s, unsigned first, unsigned n)
{
    struct handoff_shared *shared = s->process.shared;
    int status;

    shared->end = false;
    s->witness = start_process(s, false);
    await(s, &shared->answer, "witness");
    s->n_fds = ledger_count_fds(&s->source);
    for (unsigned i = first; i < first + n; i++)
        run_case(s, &s->cases[i % s->n_cases]);
    struct ledger work = ledger_take(&s->source);
    if (work.pages > s->ledgers.work.pages)
        s->ledgers.work = work;
    shared->end = true;
    sem_post(&shared->ask);
    if (waitpid(s->witness, &status, 0) != s->witness || status)
        errx(1, "the witness failed: status %#x", status);
}

/* ---- */

static struct handoff_shared *
shared_new(void)
{
    struct handoff_shared *shared = program_share(sizeof(*shared));

    program_share_sem(&shared->ask);
    program_share_sem(&shared->answer);
    program_share_sem(&shared->reached);
    return shared;
}

/* What a first hand-off costs the daemon for good. */
static void
warm_up(struct stress *s)
{
    run_kills(s, 0, 2);
    memset(s->n_kills, 0, sizeof(s->n_kills));
    s->ledgers.start = ledger_settle(&s->source, NULL);
}

static void
print_kills(const struct stress *s, unsigned n, uint64_t ns)
{
    static const char *const whens[] = {
#define MOMENT(name, when) when,
        MOMENTS(MOMENT)
#undef MOMENT
    };

    printf("%u processes killed in %.1f s, streams wait by %s; %u brackets were told; all "
           "over %.1f ms after the kill at most\n",
           n, (double)ns / 1e9, s->process.mode, s->process.shared->n_told,
           (double)s->process.shared->late_ns / 1e6);
    if (strcmp(s->process.mode, "events") == 0)
        printf("left out: cases in which a stream waits for the dead\n");
    for (int i = 0; i < N_MOMENTS; i++)
        printf("%6u %s\n", s->n_kills[i], whens[i]);
}

int
main(int argc, char **argv)
{
    const char *amount = getenv("CAID_STRESS_KILLS");
    unsigned n = amount ? (unsigned)atoi(amount) : KILLS;
    struct stress s = {.random = 1};

    if (argc != 4 || n < 4)
        errx(1, "usage: stress_handoff SOCKET PID MODE; CAID_STRESS_KILLS is at least 4");
    setlinebuf(stdout);
    s.source = (struct ledger_source){.socket = argv[1], .daemon = (pid_t)atoi(argv[2])};
    s.process =
        (struct handoff_process){.socket = argv[1], .mode = argv[3], .shared = shared_new()};
    make_cases(&s);
    warm_up(&s);
    uint64_t begun = clock_now_ns();
    run_kills(&s, 0, n / 2);
    s.ledgers.half = ledger_settle(&s.source, &s.ledgers.start);
    run_kills(&s, n / 2, n - n / 2);
    s.ledgers.end = ledger_settle(&s.source, &s.ledgers.start);
    print_kills(&s, n, clock_now_ns() - begun);
    return ledgers_check(&s.ledgers, RSS_BOUND) ? 0 : 1;
}
