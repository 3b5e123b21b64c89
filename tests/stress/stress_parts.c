/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of who publishes parts of its memory, of who reads them, or of both, at each step, one
 * case after the other. What was acknowledged as published can be opened by others and is whole,
 * before and after its name is gone; who publishes is told of all parts that are gone, also where a
 * dead process held them; and once all names are gone and everybody has left, the daemon's ledger
 * is what it was before, after each case. Its memory may not grow in the second half.
 *      usage: stress_parts SOCKET PID, PID of the daemon, which is this user's
 *      environment: CAID_STRESS_KILLS, 100
 *
 * This process itself never loads a CUDA library, so that the children that it forks can.
 */
#include "parts.h"

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "ledger.h"

#define KILLS        100
#define MAX_DELAY_US 3000
#define RSS_BOUND    (512 * 1024)

struct stress {
    struct ledger_source source;
    struct ledgers ledgers;
    const char *socket;
    struct parts_shared *shared;
    uint32_t random;
    pid_t publisher, reader;
    unsigned n_publisher[N_PUBLISHER_MOMENTS], n_reader[N_READER_MOMENTS], n_both;
};

static const char *const publisher_whens[] = {
#define MOMENT(name, when) when,
    PUBLISHER_MOMENTS(MOMENT)
#undef MOMENT
};

static const char *const reader_whens[] = {
#define MOMENT(name, when) when,
    READER_MOMENTS(MOMENT)
#undef MOMENT
};

static _Noreturn void
fail(const struct stress *s, const char *what)
{
    const struct parts_case *c = &s->shared->now;
    const char *publisher = c->victims & VICTIM_publisher ? "killed" : "alive";
    const char *reader = c->victims & VICTIM_reader ? "killed" : "alive";

    errx(1, "case %u (%s; publisher %s: %s; reader %s: %s): %s", s->shared->number,
         c->arena ? "an arena" : "an array", publisher, publisher_whens[c->publisher], reader,
         reader_whens[c->reader], what);
}

/* ---- the cases ---- */

/* Where a process is that survives. */
static const enum publisher_moment publisher_alive[] = {PUBLISHER_published, PUBLISHER_looping};

static const enum reader_moment reader_alive[] = {READER_holding, READER_looping};

#define N_ALIVE 2

/* In a round each kill of one process comes once with each way of the other, and of the source; the
 * rest are kills of both, by chance. */
static struct parts_case
make_case(struct stress *s, unsigned i)
{
    enum {
        PUBLISHERS = N_PUBLISHER_MOMENTS * N_ALIVE * 2,
        READERS = N_READER_MOMENTS * N_ALIVE * 2,
        ROUND = 100
    };
    struct parts_case c = {.arena = i % 2};

    i %= ROUND;
    if (i < PUBLISHERS) {
        c.victims = VICTIM_publisher;
        c.publisher = (enum publisher_moment)(i / 4);
        c.reader = reader_alive[i / 2 % N_ALIVE];
    } else if (i - PUBLISHERS < READERS) {
        c.victims = VICTIM_reader;
        c.reader = (enum reader_moment)((i - PUBLISHERS) / 4);
        c.publisher = publisher_alive[i / 2 % N_ALIVE];
    } else {
        c.victims = VICTIM_both;
        c.publisher = (enum publisher_moment)rnd(s, N_PUBLISHER_MOMENTS);
        c.reader = (enum reader_moment)rnd(s, N_READER_MOMENTS);
    }
    return c;
}

static void
count_case(struct stress *s, const struct parts_case *c)
{
    s->n_both += c->victims == VICTIM_both;
    if (c->victims & VICTIM_publisher)
        s->n_publisher[c->publisher]++;
    if (c->victims & VICTIM_reader)
        s->n_reader[c->reader]++;
}

/* ---- processes ---- */

static pid_t
start_process(struct stress *s, void (*run)(struct parts_process *))
{
    struct parts_process process = {.socket = s->socket,
                                    .shared = s->shared,
                                    .random = rnd(s, 65536)};
    pid_t pid = program_fork();

    if (pid > 0)
        return pid;
    alarm(3 * HANG_S);
    run(&process);
    _exit(1);
}

static void
await(struct stress *s, struct parts_role *role, const char *what)
{
    if (!program_wait_for(&role->reached, HANG_S))
        fail(s, what);
}

static void
await_exit(struct stress *s, pid_t pid, const char *what)
{
    int status;

    if (waitpid(pid, &status, 0) != pid || status)
        fail(s, what);
}

static void
kill_process(struct stress *s, pid_t pid)
{
    usleep(rnd(s, MAX_DELAY_US));
    if (!program_kill(pid))
        fail(s, "a victim ended by itself");
}

/* ---- a case ---- */

static void
reset_role(struct parts_role *role)
{
    while (sem_trywait(&role->go) == 0 || sem_trywait(&role->reached) == 0)
        ;
    role->stop = false;
}

static void
reset(struct parts_shared *shared)
{
    reset_role(&shared->publisher);
    reset_role(&shared->reader);
    for (size_t i = 0; i < PARTS_NAMES; i++)
        shared->acked[i] = shared->asked[i] = 0;
}

/* The reader comes to what was published first, and may hold it when the publisher goes on. */
static void
bring_to_moments(struct stress *s)
{
    struct parts_shared *shared = s->shared;

    s->publisher = start_process(s, parts_publisher);
    await(s, &shared->publisher, "no publisher");
    s->reader = start_process(s, parts_reader);
    await(s, &shared->reader, "no reader");
    sem_post(&shared->publisher.go);
    await(s, &shared->publisher, "the publisher does not get to its moment");
}

static void
kill_victims(struct stress *s)
{
    bool publisher = s->shared->now.victims & VICTIM_publisher;
    bool reader = s->shared->now.victims & VICTIM_reader;
    bool reader_first = rnd(s, 2);

    if (reader && reader_first)
        kill_process(s, s->reader);
    if (publisher)
        kill_process(s, s->publisher);
    if (reader && !reader_first)
        kill_process(s, s->reader);
}

static void
stop_publisher(struct stress *s)
{
    struct parts_role *role = &s->shared->publisher;

    role->stop = true;
    sem_post(&role->go);
    await(s, role, "the publisher does not stop");
}

static void
look(struct stress *s)
{
    struct ledger now = ledger_take(&s->source);

    if (now.leases >= s->ledgers.work.leases)
        s->ledgers.work = now;
}

static void
run_case(struct stress *s, struct parts_case c)
{
    struct parts_shared *shared = s->shared;

    shared->now = c;
    shared->number++;
    reset(shared);
    bring_to_moments(s);
    look(s);
    kill_victims(s);
    if (!(c.victims & VICTIM_publisher))
        stop_publisher(s);
    await_exit(s, start_process(s, parts_witness), "the witness failed");
    if (!(c.victims & VICTIM_reader)) {
        shared->reader.stop = true;
        sem_post(&shared->reader.go);
        await_exit(s, s->reader, "the reader that was left failed");
    }
    if (!(c.victims & VICTIM_publisher)) {
        sem_post(&shared->publisher.go);
        await_exit(s, s->publisher, "the publisher that was left failed");
    }
}

/* What is left after a case is left by it: the ledger shows what. */
static void
check_ledger(struct stress *s)
{
    s->ledgers.end = ledger_settle(&s->source, &s->ledgers.start);
    if (ledger_is_same(&s->ledgers.end, &s->ledgers.start))
        return;
    s->ledgers.half = s->ledgers.end;
    ledgers_check(&s->ledgers, RSS_BOUND);
    fail(s, "not all was given back");
}

static void
run_kills(struct stress *s, unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) {
        struct parts_case c = make_case(s, i);
        run_case(s, c);
        count_case(s, &c);
        check_ledger(s);
    }
}

/* ---- */

/* What a first array, arena and part cost the daemon for good. */
static void
warm_up(struct stress *s)
{
    for (unsigned i = 0; i < 2; i++)
        run_case(s, make_case(s, i));
    s->ledgers.start = ledger_settle(&s->source, NULL);
}

static struct parts_shared *
shared_new(void)
{
    struct parts_shared *shared = program_share(sizeof(*shared));
    struct parts_role *roles[] = {&shared->publisher, &shared->reader};

    for (size_t i = 0; i < ARRAY_SIZE(roles); i++) {
        program_share_sem(&roles[i]->go);
        program_share_sem(&roles[i]->reached);
    }
    return shared;
}

static void
print_kills(const struct stress *s, unsigned n, uint64_t ns)
{
    printf("%u cases in %.1f s, in %u of them both were killed; %" PRIu64
           " parts published, %" PRIu64 " opened\n",
           n, (double)ns / 1e9, s->n_both, (uint64_t)s->shared->n_published,
           (uint64_t)s->shared->n_opened);
    for (int i = 0; i < N_PUBLISHER_MOMENTS; i++)
        printf("%6u publishers killed %s\n", s->n_publisher[i], publisher_whens[i]);
    for (int i = 0; i < N_READER_MOMENTS; i++)
        printf("%6u readers killed %s\n", s->n_reader[i], reader_whens[i]);
}

int
main(int argc, char **argv)
{
    const char *amount = getenv("CAID_STRESS_KILLS");
    unsigned n = amount ? (unsigned)atoi(amount) : KILLS;
    struct stress s = {.random = 1};

    if (argc != 3 || n < 4)
        errx(1, "usage: stress_parts SOCKET PID; CAID_STRESS_KILLS is at least 4");
    setlinebuf(stdout);
    s.socket = argv[1];
    s.source = (struct ledger_source){.socket = argv[1], .daemon = (pid_t)atoi(argv[2])};
    s.shared = shared_new();
    warm_up(&s);
    uint64_t begun = clock_now_ns();
    run_kills(&s, 0, n / 2);
    struct ledger half = s.ledgers.end;
    run_kills(&s, n / 2, n - n / 2);
    s.ledgers.half = half;
    print_kills(&s, n, clock_now_ns() - begun);
    return ledgers_check(&s.ledgers, RSS_BOUND) ? 0 : 1;
}
