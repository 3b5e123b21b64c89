/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays created and closed by several processes at once, of mixed sizes, kinds and pools, each
 * process with a few of them open; in between, arrays are published, opened by name and unlinked.
 * Each process looks at its own fds and mappings, too. The daemon has a pool "shared" that this
 * user may write.
 */
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "stress.h"

#define PROCESSES      4
#define CREATES        (SANITIZED ? 10000 : 100000)
#define N_OPEN         24 /* arrays that each process has open */
#define N_NAMES        32
#define LOOK_US        50000 /* after the start of the processes */
#define MAPPINGS_BOUND 16

/* Most are small and share blocks; a few are larger than what shares them, a few of no bytes. */
static int64_t
size_of_next(struct actor *a)
{
    uint32_t what = rnd(a, 1000);

    if (what < 10)
        return 0;
    if (what < 850)
        return 1 + rnd(a, 64 << 10);
    if (what < 980)
        return 1 + rnd(a, 1 << 20);
    return 1 + rnd(a, (what < 998 ? 4 : 24) << 20);
}

static const char *
memory_of_next(struct actor *a)
{
    static const char *const kinds[] = {"pinned", "mapped", "legacy"};
    uint32_t what = rnd(a, 20);

    return what < ARRAY_SIZE(kinds) ? kinds[what] : "device";
}

static const char *
pool_of_next(struct actor *a)
{
    return rnd(a, 3) ? NULL : "shared";
}

static struct caid_array *
create(struct actor *a)
{
    int64_t n = size_of_next(a);
    OPTIONS(caid_create_options, options, .pool = pool_of_next(a), .memory = memory_of_next(a),
            .flags = rnd(a, 1000) ? 0 : CAID_ARRAY_EXCLUSIVE,
            .alignment = rnd(a, 50) ? 0 : UINT64_C(512) << rnd(a, 8),
            .metadata = rnd(a, 20) ? NULL : "a few words", .typestr = "|u1", .shape = &n,
            .ndim = 1);
    struct caid_array *array;

    MUST(caid_array_create(a->client, &array, &options, &error));
    return array;
}

/* One in twelve is published, or an array opened by a name, or a name removed. */
static void
use_names(struct actor *a, struct caid_array *array)
{
    OPTIONS(caid_open_options, options, .pool = pool_of_next(a));
    struct caid_array *opened = NULL;
    char name[16];
    int r = 0;

    snprintf(name, sizeof(name), "n/%u", rnd(a, N_NAMES));
    switch (rnd(a, 36)) {
    case 0: r = caid_array_publish(array, name, NULL, NULL, &error); break;
    case 1: r = caid_array_open(a->client, &opened, name, &options, &error); break;
    case 2: r = caid_unlink(a->client, name, options.pool, &error); break;
    default: break;
    }
    MUST_OR(-ENOENT, r);
    caid_array_close(opened);
}

static void
work(struct actor *a, unsigned n)
{
    struct caid_array *open[N_OPEN] = {NULL};

    a->client = program_connect(a->s->source.socket);
    for (unsigned i = 0; i < n; i++) {
        struct caid_array **place = &open[rnd(a, N_OPEN)];
        caid_array_close(*place);
        *place = create(a);
        use_names(a, *place);
    }
    for (size_t i = 0; i < N_OPEN; i++)
        caid_array_close(open[i]);
    caid_client_close(a->client);
}

/* What a driver opens and maps, it keeps: what a client leaves is what comes to it. The allocator,
 * stacks of threads and sanitizers map what they like. */
static void
act(struct actor *a, unsigned n)
{
    a->client = program_connect(a->s->source.socket);
    if ((a->role - a->s->roles) % 2)
        program_take_context(a->client);
    caid_client_close(a->client);
    work(a, n / 10);
    uint64_t n_fds = ledger_count_fds(getpid());
    uint64_t n_mappings = ledger_count_mappings(getpid(), "");
    work(a, n - n / 10);
    uint64_t fds_after = ledger_count_fds(getpid());
    uint64_t mappings_after = ledger_count_mappings(getpid(), "");
    if (fds_after != n_fds)
        stress_fail(a->s, "%d open fds, %d after closing the client", (int)n_fds,
                    (int)fds_after);
    if (!SANITIZED && mappings_after > n_mappings + MAPPINGS_BOUND)
        stress_fail(a->s, "%d mappings, %d after closing the client", (int)n_mappings,
                    (int)mappings_after);
}

static void
run(struct stress *s, unsigned first UNUSED, unsigned n)
{
    for (unsigned i = 0; i < PROCESSES; i++)
        role_start(s, i, act, n / PROCESSES);
    usleep(LOOK_US);
    stress_look(s);
    for (unsigned i = 0; i < PROCESSES; i++)
        role_join(s, i);
}

const struct scenario scenario_churn = {.name = "churn",
                                        .variable = "CAID_STRESS_CREATES",
                                        .amount = CREATES,
                                        .least = 1000,
                                        .warm = CREATES / 10,
                                        .run = run};
