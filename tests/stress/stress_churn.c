/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays created and closed by several processes at once, of mixed sizes, kinds and pools, each
 * process with a few of them open; in between, arrays are published, opened by name and unlinked.
 * Afterwards the daemon's ledger has to be what it was, and its memory may not have grown in the
 * second half. Each process looks at its own fds and mappings, too.
 *      usage: stress_churn SOCKET PID, PID of the daemon, which is this user's and has a pool
 *             "shared" that this user may write
 *      environment: CAID_STRESS_CREATES, 100,000, or a tenth of that with a sanitizer
 *
 * This process itself never loads a CUDA library, so that the children that it forks can.
 */
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "ledger.h"
#include "program.h"

#define PROCESSES      4
#define CREATES        (SANITIZED ? 10000 : 100000)
#define N_OPEN         24 /* arrays that each process has open */
#define N_NAMES        32
#define LOOK_US        50000 /* after the start of the processes */
#define MAPPINGS_BOUND 16
#define RSS_BOUND      (512 * 1024)

struct worker {
    struct caid_client *client;
    uint32_t random;
    struct caid_array *open[N_OPEN];
};

/* Most are small and share blocks; a few are larger than what shares them, a few of no bytes. */
static int64_t
size_of_next(struct worker *w)
{
    uint32_t what = rnd(w, 1000);

    if (what < 10)
        return 0;
    if (what < 850)
        return 1 + rnd(w, 64 << 10);
    if (what < 980)
        return 1 + rnd(w, 1 << 20);
    if (what < 998)
        return 1 + rnd(w, 4 << 20);
    return 1 + rnd(w, 24 << 20);
}

static const char *
memory_of_next(struct worker *w)
{
    static const char *const kinds[] = {"pinned", "mapped", "legacy"};
    uint32_t what = rnd(w, 20);

    return what < ARRAY_SIZE(kinds) ? kinds[what] : "device";
}

static const char *
pool_of_next(struct worker *w)
{
    return rnd(w, 3) ? NULL : "shared";
}

static struct caid_array *
create(struct worker *w)
{
    int64_t n = size_of_next(w);
    OPTIONS(caid_create_options, options, .pool = pool_of_next(w), .memory = memory_of_next(w),
            .flags = rnd(w, 1000) ? 0 : CAID_ARRAY_EXCLUSIVE,
            .alignment = rnd(w, 50) ? 0 : UINT64_C(512) << rnd(w, 8),
            .metadata = rnd(w, 20) ? NULL : "a few words", .typestr = "|u1", .shape = &n,
            .ndim = 1);
    struct caid_array *array;

    MUST(caid_array_create(w->client, &array, &options, &error));
    return array;
}

static void
name_of_next(struct worker *w, char room[16])
{
    snprintf(room, 16, "n/%u", rnd(w, N_NAMES));
}

/* One in twelve is published, or an array opened by a name, or a name removed. */
static void
use_names(struct worker *w, struct caid_array *array)
{
    OPTIONS(caid_open_options, options, .pool = pool_of_next(w));
    struct caid_array *opened = NULL;
    char name[16];
    int r = 0;

    name_of_next(w, name);
    switch (rnd(w, 36)) {
    case 0: r = caid_array_publish(array, name, NULL, NULL, &error); break;
    case 1: r = caid_array_open(w->client, &opened, name, &options, &error); break;
    case 2: r = caid_unlink(w->client, name, options.pool, &error); break;
    default: break;
    }
    MUST_OR(-ENOENT, r);
    caid_array_close(opened);
}

static void
step(struct worker *w)
{
    struct caid_array **place = &w->open[rnd(w, N_OPEN)];

    caid_array_close(*place);
    *place = create(w);
    use_names(w, *place);
}

/* What this process itself holds. */
struct own {
    size_t fds, mappings;
};

static size_t
count_own_mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    size_t n = 0;
    int c;

    if (!f)
        err(1, "/proc/self/maps");
    while ((c = getc(f)) != EOF)
        n += c == '\n';
    fclose(f);
    return n;
}

static struct own
count_own(void)
{
    return (struct own){.fds = ledger_count_fds(&(struct ledger_source){.daemon = getpid()}),
                        .mappings = count_own_mappings()};
}

/* The allocator, stacks of threads and sanitizers map what they like. */
static void
check_own(const struct own *before, const struct own *after)
{
    if (after->fds != before->fds)
        errx(1, "%zu open fds, %zu after closing the client", before->fds, after->fds);
    if (!SANITIZED && after->mappings > before->mappings + MAPPINGS_BOUND)
        errx(1, "%zu mappings, %zu after closing the client", before->mappings,
             after->mappings);
}

static void
work_once(const struct ledger_source *source, struct worker *w, unsigned n)
{
    w->client = program_connect(source->socket);
    for (unsigned i = 0; i < n; i++)
        step(w);
    for (size_t i = 0; i < N_OPEN; i++) {
        caid_array_close(w->open[i]);
        w->open[i] = NULL;
    }
    caid_client_close(w->client);
}

/* What a driver opens and maps, it keeps: what a client leaves is what comes to it. */
static void
work(const struct ledger_source *source, uint32_t seed, unsigned n, bool context)
{
    struct worker w = {.random = seed};

    w.client = program_connect(source->socket);
    if (context)
        program_take_context(w.client);
    caid_client_close(w.client);
    work_once(source, &w, n / 10);
    struct own before = count_own();
    work_once(source, &w, n - n / 10);
    struct own after = count_own();
    check_own(&before, &after);
}

/* n arrays in all; the daemon while they come and go. */
static struct ledger
run_processes(const struct ledger_source *source, uint32_t seed, unsigned n)
{
    pid_t pids[PROCESSES];
    int status;

    for (uint32_t i = 0; i < PROCESSES; i++) {
        pids[i] = program_fork();
        if (pids[i] == 0) {
            work(source, seed + i, n / PROCESSES, i % 2 == 0);
            exit(0);
        }
    }
    usleep(LOOK_US);
    struct ledger work = ledger_take(source);
    for (uint32_t i = 0; i < PROCESSES; i++)
        if (waitpid(pids[i], &status, 0) != pids[i] || status)
            errx(1, "process %u failed: status %#x", i, status);
    return work;
}

static struct ledger
come_to_rest(const struct ledger_source *source, const struct ledger *start)
{
    ledger_unlink_all(source);
    return ledger_settle(source, start);
}

int
main(int argc, char **argv)
{
    const char *amount = getenv("CAID_STRESS_CREATES");
    unsigned n = amount ? (unsigned)atoi(amount) : CREATES;

    if (argc != 3 || n < 1000)
        errx(1, "usage: stress_churn SOCKET PID; CAID_STRESS_CREATES is at least 1000");
    setlinebuf(stdout);
    struct ledger_source source = {.socket = argv[1], .daemon = (pid_t)atoi(argv[2])};
    unsigned n_warm = n / 10, n_half = (n - n_warm) / 2;
    uint64_t begun = clock_now_ns();

    run_processes(&source, 1, n_warm);
    struct ledgers l = {.start = come_to_rest(&source, NULL)};
    l.work = run_processes(&source, 101, n_half);
    l.half = come_to_rest(&source, &l.start);
    run_processes(&source, 201, n_half);
    l.end = come_to_rest(&source, &l.start);
    printf("%u arrays created and closed by %d processes in %.1f s\n", n, PROCESSES,
           (double)(clock_now_ns() - begun) / 1e9);
    return ledgers_check(&l, RSS_BOUND) ? 0 : 1;
}
