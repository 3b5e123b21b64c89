/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's histories, each again and again with the n-th allocation inside the core failing, for
 * every n until none fails: no crash, no leak, sums and books that are right, and at most that one
 * connection ended. (The linker's --wrap puts the counter in front of the allocator; msgpack-c, a
 * shared library, is not concerned.)
 */
#include <signal.h>

#include "caid_test.h"
#include "model.h"

#define HISTORIES 60 /* in each body */

static bool armed;
static long countdown;
static struct model model;

static bool
fails(void)
{
    return armed && --countdown == 0;
}

static void
arm(bool on)
{
    armed = on;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *
__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *
__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *
__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

char *
__wrap_strndup(const char *s, size_t n)
{
    return fails() ? NULL : __real_strndup(s, n);
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
            countdown = ++n;
            model_run(&model, seed, true);
            cr_assert_leq(model.n_out_of_memory, 1, "one failure ended several connections");
        } while (countdown <= 0);
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
        countdown = ++n;
        armed = true;
        r = core_new(&core, &config, 0);
        armed = false;
        cr_assert(r == 0 || r == -ENOMEM);
    } while (r < 0);
    cr_assert_gt(n, 3);
    core_free(core);
}
