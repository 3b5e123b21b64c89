/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon among thousands of users: none waits for longer than its share allows (fair.c), no
 * limit is passed, users that ask for little are neither refused nor disconnected, whatever others
 * do (I6), and when all have gone all is given back (I4). After a kill of the daemon, all that it
 * has acknowledged is there, and quiet users do not wait for what others have piled up.
 * CAID_SIM_HISTORIES says how many histories there are, by default 2; CAID_TEST_SEED runs only one.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "caid_test.h"
#include "config.h"
#include "conns.h"
#include "fds.h"
#include "harness.h"
#include "kept.h"
#include "server.h"
#include "sim.h"

#define LAST_NS          (200 * NSEC_PER_MSEC)
#define REST_NS          (20 * NSEC_PER_SEC) /* until what waits for its age is over */
#define RESTORE_NS       (5 * NSEC_PER_MSEC) /* at most, to a kill that comes soon */
#define CHECK_TURNS      1000                /* from one look at all of the core to the next */
#define MAX_QUEUED_BYTES (64 << 20)

struct history {
    uint64_t seed;
    uint32_t max_fds;
    uint64_t last_ns;  /* that the users are busy */
    bool ends_at_once; /* the daemon, with all that is under way */
    bool is_checked;   /* core_check(), again and again */
    uint32_t n_kills;  /* of a daemon that has a keeper */
    struct population population;
};

static struct history history;
static struct event end;
static uint64_t n_turns;
static bool left; /* all users have */
static struct core *core;
static uint32_t n_at_first; /* fds, when the daemon is there */
static struct event kill_event;
static uint32_t n_killed;
static struct kept kept;

/* ---- what has to be so ---- */

int __real_core_new(struct core **ret, const struct core_config *config, uint64_t now_ns);

WRAPPED(int, core_new, struct core **ret, const struct core_config *config, uint64_t now_ns)
{
    int r = __real_core_new(ret, config, now_ns);

    core = *ret;
    return r;
}

/* Between two turns of the loop; the core as a whole at times. */
static void
came_round(void)
{
    const struct conns *set = loop_conns();

    if (!core)
        return;
    users_find_served();
    if (!n_killed && history.n_kills && !kill_event.at_ns && users_have_hoarded())
        event_in(&kill_event, sim_random(history.last_ns / 4));
    SIM_CHECK(set->flight.n <= set->flight.max, "%u fds in flight", set->flight.n);
    SIM_CHECK(remotes.n_inflight - remotes.n_kept <= set->flight.n,
              "%u fds in flight, of which %u are known", remotes.n_inflight - remotes.n_kept,
              set->flight.n);
    SIM_CHECK(set->n_queued_fds <= set->max_queued_fds, "%u fds queued", set->n_queued_fds);
    SIM_CHECK(set->n_queued_bytes <= MAX_QUEUED_BYTES, "%" PRIu64 " bytes queued",
              set->n_queued_bytes);
    if (history.is_checked && core_is_whole(core) && ++n_turns % CHECK_TURNS == 0)
        core_check(core);
}

static void
check_rest(void)
{
    const struct conns *set = loop_conns();
    struct core_counts counts;

    core_check(core);
    core_get_counts(core, &counts);
    SIM_CHECK(!counts.connections && !counts.departed && !counts.users && !counts.leases &&
                  !counts.jobs,
              "%" PRIu64 " users are left", counts.users);
    SIM_CHECK(!counts.arrays && !counts.names && !counts.blocks,
              "%" PRIu64 " arrays are left, %" PRIu64 " blocks", counts.arrays, counts.blocks);
    SIM_CHECK(RB_EMPTY(&set->owners) && !set->n_queued_bytes && !set->n_queued_fds,
              "connections are left");
    SIM_CHECK(!set->flight.n && !remotes.n_inflight, "%u fds in flight are left",
              set->flight.n);
    SIM_CHECK(files.n == n_at_first, "%u fds are left", files.n - n_at_first);
    SIM_CHECK(LIST_EMPTY(&remotes.all) && !device_bytes, "%" PRIu64 " bytes are left",
              device_bytes);
    SIM_CHECK(keeper_count() == (history.n_kills > 0), "%u fds are kept", keeper_count());
}

static void
on_end(struct event *event)
{
    if (history.ends_at_once) {
        users_expect_end();
        loop_signal(SIGTERM);
    } else if (!left) {
        left = true;
        users_leave();
        event_in(event, REST_NS);
    } else {
        check_rest();
        loop_signal(SIGTERM);
    }
}

static void
on_kill(struct event *event UNUSED)
{
    n_killed++;
    world.is_killed = true;
}

/* ---- one history ---- */

static void
setup_config(struct config *config)
{
    static struct core_pool_config pools[] = {{.name = "shared", .uid = 1000, .mode = 0666},
                                              {.name = "large", .uid = 1000, .mode = 0666}};

    config_init(config);
    config->hello_timeout_ns = 100 * NSEC_PER_MSEC;
    config->spin_us = 0;
    config->start.machine_id = strdup("00000000000000000000000000000000"); /* no file is read */
    config->pools = pools;
    config->n_pools = ARRAY_SIZE(pools);
}

static void
setup_world(const struct history *h)
{
    history = *h;
    core = NULL;
    n_turns = 0;
    left = false;
    end = (struct event){.run = on_end};
    kill_event = (struct event){.run = on_kill};
    n_killed = 0;
    world_init(h->seed);
    files_init(h->max_fds);
    remotes_init();
    loop_init(came_round);
    fds_max(); /* is asked once */
    keeper_init();
    world.blocks = 0;
}

static void
serve(struct config *config, int fd)
{
    struct gpu_device gpu_device = {
        .drv = {.uuid = "GPU-0", .total = 1 << 30, .granularity = 2 << 20}};
    struct drv drv = {.path = (char[]){"sim"}};
    struct gpu gpu = {.drv = &drv, .devices = &gpu_device, .n_devices = 1};
    struct listener listener = {.path = (char[]){"sim"}, .fd = fd};
    struct notify notify = {.fd = -1};
    const struct server_setup setup = {config,    NULL,    true,  "sim", &gpu,
                                       &listener, &notify, &kept, -1,    -1};
    struct server *server;

    SIM_CHECK(kept_init(&kept, NULL, history.n_kills ? file_new(FILE_KEEPER, NULL, 0) : -1) ==
                  0,
              "no keeper");
    SIM_CHECK(server_new(&server, &setup) == 0, "no server");
    if (!n_killed)
        n_at_first = files.n + (history.n_kills > 0); /* the journal */
    if (n_killed == history.n_kills)
        event_in(&end, history.last_ns);
    SIM_CHECK(server_run(server) == 0, "it does not serve");
    core = NULL;
    server_free(server);
    kept_deinit(&kept);
}

/* false: it was killed. What it had in memory is left as it is. */
static bool
live(struct config *config, int fd)
{
    static jmp_buf life;

    world.life = &life;
    if (setjmp(life))
        return false;
    serve(config, fd);
    world.life = NULL;
    return true;
}

/* Often the next one is killed while not all is back. */
static void
end_life(void)
{
    fair_serve(NULL);
    world.is_killed = false;
    core = NULL;
    loop_end();
    files_end();
    users_bereave();
    if (n_killed < history.n_kills)
        event_in(&kill_event, sim_random(sim_chance(50) ? history.last_ns / 4 : RESTORE_NS));
}

/* What is left of the world then is the sockets' other ends. */
static uint64_t
run(const struct history *h)
{
    struct config config;

    setup_world(h);
    setup_config(&config);
    users_init(&h->population);
    remotes.listener = file_new(FILE_LISTENER, NULL, 0);
    while (!live(&config, remotes.listener))
        end_life();
    config.n_pools = 0; /* not its own */
    config.pools = NULL;
    config_deinit(&config);
    remotes_deinit();
    users_deinit();
    SIM_CHECK(LIST_EMPTY(&remotes.all) && !remotes.n_inflight && !device_bytes &&
                  files.n + (h->n_kills ? 4 : 1) == n_at_first, /* the set has gone */
              "%u of %u fds are left at the end", files.n, n_at_first);
    keeper_deinit();
    free(files.all);
    return world.hash;
}

/* libuv opens a pipe for signals once. */
static void
set_up(void)
{
    uv_loop_t loop;

    log_set_level(LOG_LEVEL_ERROR);
    uv_loop_init(&loop);
    uv_loop_close(&loop);
}

static uint64_t
number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static struct history
some_history(uint64_t seed, uint64_t last_ns)
{
    struct history h = {
        .seed = seed,
        .max_fds = 1 << 12,
        .last_ns = last_ns,
        .ends_at_once = seed % 4 == 0,
        .is_checked = true,
        .population = {.think_ns = 50 * NSEC_PER_USEC},
    };

    world_init(seed);
    for (uint32_t kind = 0; kind < N_KINDS_OF_USERS; kind++) {
        bool is_many = kind == seed % N_KINDS_OF_USERS; /* of one kind */
        h.population.n_users[kind] = (is_many || kind == QUIET) + (uint32_t)sim_random(4);
        h.population.n_conns[kind] = 1 + (uint32_t)sim_random(is_many
                                                                  ? (kind == QUIET ? 100 : 300)
                                                              : sim_chance(50) ? 3
                                                                               : 30);
    }
    return h;
}

static uint64_t
run_seed(uint64_t seed, uint64_t last_ns)
{
    const struct history h = some_history(seed, last_ns);

    return run(&h);
}

/* What a daemon that is killed leaves in memory goes with its process. */
static void
run_apart(const struct history *h)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also where the test has run out of time */
        run(h);
        SIM_CHECK(n_killed == h->n_kills, "%u kills", n_killed);
        if (!h->is_checked)
            SIM_CHECK(loop_holds() && users_answered_between(),
                      "%u requests waited, %u were answered between", loop_holds(),
                      users_answered_between());
        _exit(EXIT_SUCCESS);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0, "it ended with %#x", (unsigned)status);
}

/* The same with kills. */
static void
run_restarts(uint64_t seed)
{
    struct history h = some_history(seed, LAST_NS / 2);

    h.ends_at_once = false;
    h.max_fds *= 2; /* until all is back a former connection and its successor have their fds */
    h.n_kills = 1 + (uint32_t)sim_random(4);
    h.population.outlives = h.population.publishes = true;
    h.population.wait_ns = NSEC_PER_SEC;
    if (h.population.n_users[GREEDY]) /* one connection hoards, in turn with its uid's others */
        h.population.n_hoard = (uint32_t)sim_random(4000) / h.population.n_conns[GREEDY];
    run_apart(&h);
}

static void
run_history(uint64_t seed)
{
    run_seed(seed, LAST_NS);
}

static void
run_seeds(void (*run_one)(uint64_t seed))
{
    uint64_t seed = number("CAID_TEST_SEED", 0), n = number("CAID_SIM_HISTORIES", 2);

    for (uint64_t i = seed ? seed : 1; i <= (seed ? seed : n); i++)
        run_one(i);
}

CAID_TEST_WITH(sim, histories, .init = set_up, .timeout = 36000)
{
    run_seeds(run_history);
}

CAID_TEST_WITH(sim, restarts, .init = set_up, .timeout = 36000)
{
    run_seeds(run_restarts);
    run_restarts(62); /* in which a packet comes between two looks at its socket */
}

/* One uid has piled up names; the quiet ask while they come back. */
CAID_TEST_WITH(sim, restart_with_a_hoard, .init = set_up, .timeout = 600)
{
    const struct history h = {
        .seed = 1,
        .max_fds = 1 << 12,
        .last_ns = LAST_NS,
        .n_kills = 3,
        .population = {.n_users = {[QUIET] = 4, [GREEDY] = 1},
                       .n_conns = {[QUIET] = 10, [GREEDY] = 1},
                       .think_ns = 50 * NSEC_PER_USEC,
                       .outlives = true,
                       .wait_ns = 5 * NSEC_PER_MSEC,
                       .n_hoard = 20000},
    };

    run_apart(&h);
}

CAID_TEST_WITH(sim, same_seed_same_history, .init = set_up, .timeout = 600)
{
    uint64_t first;

    first = run_seed(1, LAST_NS / 10);
    cr_assert_eq(run_seed(1, LAST_NS / 10), first);
    cr_assert_neq(run_seed(2, LAST_NS / 10), first);
}

/* Thousands of uids, a connection or two of each. */
CAID_TEST_WITH(sim, thousands_of_users, .init = set_up, .timeout = 600)
{
    const struct history h = {
        .seed = 1,
        .max_fds = 1 << 16,
        .last_ns = 100 * NSEC_PER_MSEC,
        .population = {.n_users = {500, 500, 500, 500, 500},
                       .n_conns = {1, 2, 2, 2, 2},
                       .think_ns = 50 * NSEC_PER_MSEC},
    };

    run(&h);
}

static uint64_t
p99_of_opens(uint32_t n_active, uint32_t n_idle)
{
    const struct history h = {
        .seed = 1,
        .max_fds = 1 << 17,
        .last_ns = 2200 * NSEC_PER_MSEC,
        .population = {.n_users = {[QUIET] = 10},
                       .n_conns = {[QUIET] = n_active},
                       .n_idle = n_idle,
                       .think_ns = n_active * 200 * NSEC_PER_USEC,
                       .only_open = true,
                       .settling_ns = 2000 * NSEC_PER_MSEC},
    };

    run(&h);
    fprintf(stderr, "%6u connections, %4u active: p99 of an open %.1f us of work\n",
            10 * (n_active + n_idle), 10 * n_active, (double)users_p99_ns() / 1e3);
    return users_p99_ns();
}

/* As much is asked for in all: 20,000 connections, 1,000 of them active, beside 10. */
CAID_TEST_WITH(sim, connections_cost_an_open_nothing, .init = set_up, .timeout = 600)
{
    uint64_t few = p99_of_opens(1, 0), many = p99_of_opens(100, 1900);

    cr_assert_leq(many, 3 * few);
}
