/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histories against the model: I1 to I4, I6 and I8 after every step. How many is
 * CAID_TEST_SEQUENCES, 10,000 where that is not set; from CAID_TEST_SEED on, which alone runs one.
 */
#include <signal.h>
#include <stdlib.h>

#include "caid_test.h"
#include "model.h"

#define PARTS 4 /* bodies that share the work, run beside each other */

static struct model model;

static void
report(void)
{
    model_report(&model);
}

static void
on_signal(int sig)
{
    report();
    signal(sig, SIG_DFL);
    raise(sig);
}

static uint64_t
number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void
run_part(uint64_t part)
{
    uint64_t first = number("CAID_TEST_SEED", 0);
    uint64_t n = number("CAID_TEST_SEQUENCES", first ? 1 : 10000);

    signal(SIGABRT, on_signal);
    signal(SIGSEGV, on_signal);
    if (first == 0)
        first = PARTS;
    for (uint64_t seed = first; seed < first + n; seed++)
        if (seed % PARTS == part)
            model_run(&model, seed, false);
}

#define PART(i)                                                            \
    CAID_TEST_WITH(model, histories_##i, .timeout = 36000, .fini = report) \
    {                                                                      \
        run_part(i);                                                       \
    }

PART(0)
PART(1)
PART(2)
PART(3)
