/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's histories, each again and again with the n-th allocation inside the core failing, for
 * every n until none fails: no crash, no leak, sums and books that are right, and at most that one
 * connection ended.
 */
#include <signal.h>

#include "books.h"
#include "caid_test.h"
#include "model.h"
#include "nomem.h"

#define HISTORIES 30 /* in each body */

static bool armed;
static long n_failed;
static struct model model;

/* What is done long before the allocation that fails is checked where that was an earlier one. */
#define CHECKED_BEFORE 10

bool
nomem_fails(void)
{
    if (!armed)
        return false;
    nomem_countdown--;
    if (nomem_countdown < CHECKED_BEFORE)
        h_known = false;
    return nomem_countdown == 0;
}

static void
arm(bool on)
{
    armed = on;
}

static void
report(void)
{
    armed = false;
    model_report(&model);
}

static void
on_signal(int sig)
{
    report();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void
run_histories(uint64_t first)
{
    signal(SIGABRT, on_signal);
    signal(SIGSEGV, on_signal);
    h_arm = arm;
    for (uint64_t seed = first; seed < first + HISTORIES; seed++) {
        long n = 0;
        do {
            nomem_countdown = ++n;
            h_known = n > CHECKED_BEFORE;
            core_check_anew();
            model_run(&model, seed, true);
            h_known = false;
            cr_assert_leq(model.n_out_of_memory, 1, "one failure ended several connections");
        } while (nomem_countdown <= 0);
        cr_assert_gt(n, 30, "the counter is not in front of the allocator");
    }
}

#define PART(i)                                                          \
    CAID_TEST_WITH(nomem, histories_##i, .timeout = 240, .fini = report) \
    {                                                                    \
        run_histories(1000 * (i) + 1);                                   \
    }

PART(1)
PART(2)
PART(3)
PART(4)

/* ---- the way back ---- */

static void
fail_to_take_over(struct harness *h)
{
    long n = 0;

    do {
        nomem_countdown = ++n;
        n_failed += saved_fails(h, arm);
    } while (nomem_countdown <= 0);
}

/* A core that takes over ends where an allocation fails, or does without: the next one has all. */
CAID_TEST_WITH(nomem, the_way_back, .timeout = 240, .fini = report)
{
    signal(SIGABRT, on_signal);
    signal(SIGSEGV, on_signal);
    h_on_check = fail_to_take_over;
    for (uint64_t seed = 101; seed <= 100 + HISTORIES; seed++)
        model_run(&model, seed, false);
    cr_assert_gt(n_failed, 1000);
}

/* ---- parts ---- */

/* Publishes parts of an array over one another's names, has them read, and is told of their end.
 * Returns whether all of it was done. */
static bool
run_parts(struct harness *h)
{
    uint64_t b = h_connect(h, 1000, 1000), a = h_connect(h, 1000, 1000);
    uint64_t lease = h_create_now(h, a, "w", NULL, 1000)->lease;

    armed = false;
    h_arm = arm;
    const char *const names[] = {"p", "q", "p", "w"};
    for (size_t i = 0; i < ARRAY_SIZE(names) && !h->closed[a]; i++)
        h_part(h, a, lease, 100 * i, 100, names[i]);
    if (!h->closed[a])
        h_parts(h, a);
    for (size_t i = 0; i < 3 && !h->closed[b]; i++)
        h_open(h, b, names[i + 1], NULL, "r");
    if (!h->closed[a])
        h_close(h, a, lease);
    for (size_t i = 1; i < 4 && !h->closed[b]; i++)
        h_unlink(h, b, names[i], NULL);
    h_hangup(h, b);
    h_exit(h, b);
    if (!h->closed[a])
        h_parts(h, a);
    h_arm = NULL;
    return !h->closed[a] && !h->closed[b];
}

/* With the n-th allocation failing, for every n: what was refused has left nothing, and at most one
 * connection has ended. (Histories have parts, too.) */
CAID_TEST_WITH(nomem, parts, .timeout = 240)
{
    static struct harness h;
    bool done;
    long n = 0;

    do {
        h_init(&h, h_sharing);
        h.lenient = true;
        nomem_countdown = ++n;
        done = run_parts(&h);
        armed = false;
        cr_assert(nomem_countdown > 0 || !done, "an allocation that failed was not missed");
        cr_assert_leq(h.closed[1] + h.closed[2], 1, "one failure ended both");
        if (done)
            cr_assert_eq(h_counts(&h).arrays, 0);
        for (size_t i = 0; i < 3; i++) { /* what the reader had no time for */
            uint64_t c = h_connect(&h, 1000, 1000);
            h_unlink(&h, c, (const char *[]){"p", "q", "w"}[i], NULL);
            h_disconnect(&h, c);
        }
        h_disconnect(&h, 2);
        cr_assert_eq(h_counts(&h).arrays, 0, "after %ld allocations", n);
        h_deinit(&h);
    } while (nomem_countdown <= 0);
    cr_assert_gt(n, 20);
}

/* What an administrator should know of, and there is no memory for, is counted. */
CAID_TEST(nomem, audits)
{
    static struct harness h;
    uint64_t n_lost = 0;
    long n = 0;

    do {
        h_init(&h, NULL);
        uint64_t owner = h_connect(&h, 1000, 1000), other = h_connect(&h, 1001, 1001);
        h_create_now(&h, owner, "w", "open", 100);
        nomem_countdown = ++n;
        h_arm = arm;
        h_unlink(&h, other, "w", "open");
        h_arm = NULL;
        bool unlinked = h_open(&h, owner, "w", "open", "r")->error;
        if (!unlinked)
            h_unlink(&h, owner, "w", "open");
        h_create_now(&h, owner, "v", "open", 100); /* the next tells of it */
        h_unlink(&h, h_connect(&h, 1001, 1001), "v", "open");
        cr_assert_eq(h.n_audits, unlinked + 1);
        n_lost += h.n_audits_lost;
        h_deinit(&h);
    } while (nomem_countdown <= 0);
    cr_assert_gt(n_lost, 0);
}

CAID_TEST_WITH(nomem, the_core_itself, .timeout = 240)
{
    struct core_device device = {.uuid = "GPU-0", .total = 1 << 30, .granularity = 1 << 21};
    struct core_config config = {
        .server = "s",
        .driver = "soft",
        .driver_path = "/",
        .threads = 2,
        .user_mode = 0600,
        .devices = &device,
        .n_devices = 1,
        .pools = &(struct core_pool_config){.name = "p", .mode = 0666},
        .n_pools = 1,
    };
    struct core *core = NULL;
    long n = 0;
    int r;

    do {
        nomem_countdown = ++n;
        armed = true;
        r = core_new(&core, &config, 0);
        armed = false;
        cr_assert(r == 0 || r == -ENOMEM);
    } while (r < 0);
    cr_assert_gt(n, 3);
    core_free(core);
}
