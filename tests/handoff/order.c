/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one scenario of order_scenarios.c on a daemon, and says how often the outcome was wrong.
 *      usage: handoff_order --list MODE
 *             handoff_order SOCKET MODE SCENARIO [STEP]
 * --list prints each scenario's name and the steps that can be left without their wait. With a
 * STEP, that one is, and the run ends at the first wrong outcome.
 *
 * This process never loads a CUDA library, so that the ones that it forks can.
 */
#include "order.h"

#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS    16
#define TIMEOUT_S 60

static void
list(const char *mode)
{
    for (size_t i = 0; i < n_order_scenarios; i++) {
        const struct order_scenario *scenario = &order_scenarios[i];
        printf("%s", scenario->name);
        for (int k = 0; k < scenario->n_steps; k++)
            if (scenario->steps[k].waits &&
                !(scenario->steps[k].by_stream && strcmp(mode, "host") == 0))
                printf(" %d", k);
        printf("\n");
    }
}

static const struct order_scenario *
find_scenario(const char *name)
{
    for (size_t i = 0; i < n_order_scenarios; i++)
        if (strcmp(order_scenarios[i].name, name) == 0)
            return &order_scenarios[i];
    errx(2, "no scenario %s", name);
}

static struct order_shared *
shared_new(const struct order_scenario *scenario)
{
    pthread_barrierattr_t attr;
    struct order_shared *shared = program_share(sizeof(*shared));

    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (pthread_barrier_init(&shared->barrier, &attr, (unsigned)scenario->n_roles))
        errx(1, "pthread_barrier_init");
    for (size_t i = 0; i < ORDER_STEPS; i++)
        program_share_sem(&shared->turns[i]);
    return shared;
}

_Noreturn static void
run_role(struct order *o, const char *socket)
{
    alarm(TIMEOUT_S); /* a hang is a failure */
    order_open(o, socket);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        order_round(o, round);
        if (o->without >= 0 && o->shared->n_wrong)
            break;
    }
    order_close(o);
    exit(0);
}

/* Those that still run when one has failed wait for it for ever. */
static bool
await(pid_t *pids, int n)
{
    bool failed = false;

    for (int left = n; left > 0; left--) {
        int status;
        pid_t pid = wait(&status);
        for (int i = 0; i < n; i++) {
            if (pids[i] == pid)
                pids[i] = 0;
            else if (pids[i] && status && !failed)
                kill(pids[i], SIGKILL);
        }
        failed = failed || status;
    }
    return !failed;
}

int
main(int argc, char **argv)
{
    struct order o = {0};
    pid_t pids[ORDER_ROLES];

    if (argc == 3 && strcmp(argv[1], "--list") == 0) {
        list(argv[2]);
        return 0;
    }
    if (argc != 4 && argc != 5)
        errx(2, "usage: handoff_order SOCKET MODE SCENARIO [STEP]");
    o.mode = argv[2];
    o.scenario = find_scenario(argv[3]);
    o.without = argc == 5 ? atoi(argv[4]) : -1;
    o.shared = shared_new(o.scenario);
    for (o.role = 0; o.role < o.scenario->n_roles; o.role++) {
        pids[o.role] = program_fork();
        if (pids[o.role] == 0)
            run_role(&o, argv[1]);
    }
    if (!await(pids, o.scenario->n_roles))
        errx(1, "%s by %s failed", o.scenario->name, o.mode);
    printf("%u\n", o.shared->n_wrong);
    return 0;
}
