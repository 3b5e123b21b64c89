/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of clients in every state that a connection can be in, eight at a time, and what the
 * daemon has of them afterwards: nothing. Its ledger has to be the same before, half-way and in the
 * end, and its memory may not grow in the second half.
 *      usage: stress_kill SOCKET PID, PID of the daemon, which is this user's
 *      environment: CAID_STRESS_KILLS, 100
 *
 * This process itself never loads a CUDA library, so that the children that it forks can.
 */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "ledger.h"
#include "program.h"
#include "victim.h"

#define AT_ONCE       8
#define KILLS         100
#define MAX_DELAY_US  4000
#define RSS_BOUND     (512 * 1024)
#define READY_TIMEOUT 60 /* seconds */

struct stress {
    struct ledger_source source;
    struct ledgers ledgers;
    uint32_t random;
    unsigned n_kills[N_VICTIM_STATES];
    unsigned n_in_driver; /* batches that were killed with a driver call under way */
};

/* ---- before and after ---- */

/* What a first array of each kind costs the daemon for good: threads, fds. */
static void
touch_kinds(const struct stress *s)
{
    static const char *const kinds[] = {"device", "legacy", "pinned"};
    struct caid_client *client = program_connect(s->source.socket);

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        caid_array_close(program_make(client, NULL, kinds[i], 1));
    caid_client_close(client);
}

static void
make_base(const struct stress *s)
{
    struct caid_client *client = program_connect(s->source.socket);

    for (unsigned i = 0; i < N_VICTIM_BASE; i++) {
        char name[16];
        snprintf(name, sizeof(name), VICTIM_BASE_FORMAT, i % 1000);
        caid_array_close(program_make(client, name, NULL, VICTIM_BASE_BYTES));
    }
    caid_client_close(client);
}

/* Runs fn in a child. */
static void
in_child(const struct stress *s, void (*fn)(const struct stress *s))
{
    int status;
    pid_t pid = program_fork();

    if (pid == 0) {
        fn(s);
        exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status)
        errx(1, "a child failed");
}

/* ---- a batch ---- */

static pid_t
start_victim(struct stress *s, enum victim_state state, int ready_fd)
{
    uint32_t seed = rnd(s, 65536);
    pid_t pid = program_fork();

    if (pid > 0)
        return pid;
    alarm(READY_TIMEOUT);
    victim_run(state, s->source.socket, seed, ready_fd);
}

static void
await_ready(int fd, size_t n)
{
    char bytes[AT_ONCE];

    for (size_t got = 0; got < n;) {
        ssize_t r = read(fd, bytes, n - got);
        if (r <= 0)
            errx(1, "a victim ended by itself");
        got += (size_t)r;
    }
}

/* What the daemon has of the victims, the most of arrays that there was. */
static void
look(struct stress *s)
{
    struct ledger now = ledger_take(&s->source);

    s->n_in_driver += now.jobs > 0;
    if (now.leases > s->ledgers.work.leases)
        s->ledgers.work = now;
}

static void
run_batch(struct stress *s, unsigned first, size_t n)
{
    pid_t pids[AT_ONCE];
    int fds[2];

    if (pipe(fds) < 0)
        err(1, "pipe");
    for (size_t i = 0; i < n; i++) {
        enum victim_state state = (enum victim_state)((first + i) % N_VICTIM_STATES);
        s->n_kills[state]++;
        pids[i] = start_victim(s, state, fds[1]);
    }
    close(fds[1]);
    await_ready(fds[0], n);
    close(fds[0]);
    look(s);
    for (size_t left = n; left > 0; left--) {
        size_t i = rnd(s, (uint32_t)left);
        usleep(rnd(s, MAX_DELAY_US));
        if (!program_kill(pids[i]))
            errx(1, "a victim ended by itself");
        pids[i] = pids[left - 1];
    }
}

static struct ledger
run_kills(struct stress *s, unsigned first, unsigned n)
{
    in_child(s, make_base);
    for (unsigned done = 0; done < n; done += AT_ONCE)
        run_batch(s, first + done, n - done < AT_ONCE ? n - done : AT_ONCE);
    ledger_unlink_all(&s->source);
    return ledger_settle(&s->source, &s->ledgers.start);
}

static void
print_kills(const struct stress *s, unsigned n, uint64_t ns)
{
    printf("%u clients killed in %.1f s; %u of %u batches with a driver call under way\n", n,
           (double)ns / 1e9, s->n_in_driver, (n + AT_ONCE - 1) / AT_ONCE);
    for (int i = 0; i < N_VICTIM_STATES; i++)
        printf("%6u %s\n", s->n_kills[i], victim_describe((enum victim_state)i));
}

int
main(int argc, char **argv)
{
    const char *amount = getenv("CAID_STRESS_KILLS");
    unsigned n = amount ? (unsigned)atoi(amount) : KILLS;
    struct stress s = {.random = 1};

    if (argc != 3 || n < 4)
        errx(1, "usage: stress_kill SOCKET PID; CAID_STRESS_KILLS is at least 4");
    setlinebuf(stdout);
    s.source = (struct ledger_source){.socket = argv[1], .daemon = (pid_t)atoi(argv[2])};
    in_child(&s, touch_kinds);
    s.ledgers.start = ledger_settle(&s.source, NULL);
    uint64_t begun = clock_now_ns();
    s.ledgers.half = run_kills(&s, 0, n / 2);
    s.ledgers.end = run_kills(&s, n / 2, n - n / 2);
    print_kills(&s, n, clock_now_ns() - begun);
    return ledgers_check(&s.ledgers, RSS_BOUND) ? 0 : 1;
}
