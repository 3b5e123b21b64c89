/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define CALL_NS  1000 /* for a system call, and one for each 1,000 bytes */
#define BLOCK_NS 2

struct world world;

static int
compare(const struct event *a, const struct event *b)
{
    return a->at_ns == b->at_ns ? CMP(a->serial, b->serial) : CMP(a->at_ns, b->at_ns);
}

RB_HEAD(events, event);
RB_GENERATE_STATIC(events, event, node, compare)
static struct events events;
static uint64_t last_serial;

void
world_init(uint64_t seed)
{
    world = (struct world){.seed = seed,
                           .random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1,
                           .now_ns = NSEC_PER_SEC};
    RB_INIT(&events);
    last_serial = 0;
}

void
sim_fail(const char *condition, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "CAID_TEST_SEED=%llu, after %.3f ms: ", (unsigned long long)world.seed,
            (double)(world_now_ns() - NSEC_PER_SEC) / 1e6);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, " (%s)\n", condition);
    abort();
}

/* ---- chance, and its traces ---- */

uint64_t
sim_random(uint64_t below)
{
    world.random ^= world.random >> 12;
    world.random ^= world.random << 25;
    world.random ^= world.random >> 27;
    return below ? (world.random * UINT64_C(2685821657736338717) >> 16) % below : 0;
}

bool
sim_chance(uint32_t percent)
{
    return sim_random(100) < percent;
}

void
sim_note(uint64_t what)
{
    world.hash = (world.hash ^ what) * UINT64_C(1099511628211);
    world.hash = (world.hash ^ world_now_ns()) * UINT64_C(1099511628211);
}

WRAPPED(ssize_t, getrandom, void *ret, size_t n, unsigned flags UNUSED)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)ret)[i] = (uint8_t)sim_random(256);
    return (ssize_t)n;
}

/* ---- events ---- */

void
event_cancel(struct event *event)
{
    if (event->at_ns)
        RB_REMOVE(events, &events, event);
    event->at_ns = 0;
}

void
event_in(struct event *event, uint64_t ns)
{
    event_cancel(event);
    event->at_ns = world_now_ns() + ns;
    event->serial = ++last_serial;
    RB_INSERT(events, &events, event);
}

uint64_t
event_next_ns(void)
{
    const struct event *event = RB_MIN(events, &events);

    return event ? event->at_ns : UINT64_MAX;
}

/* They happen beside the daemon, also while it works. What they do takes none of its time. */
static void
run_events(void)
{
    static bool running;
    uint64_t now_ns = world_now_ns();

    if (running)
        return;
    running = true;
    while (event_next_ns() <= now_ns) {
        struct event *event = RB_MIN(events, &events);
        event_cancel(event);
        event->run(event);
    }
    world.blocks = 0;
    running = false;
    if (world.is_killed && world.life)
        longjmp(*TAKE_PTR(world.life), 1);
}

/* ---- time ---- */

void __sanitizer_cov_trace_pc(void);

void
__sanitizer_cov_trace_pc(void)
{
    world.blocks++;
}

uint64_t
world_now_ns(void)
{
    world.now_ns += world.blocks * BLOCK_NS;
    world.blocks = 0;
    return world.now_ns;
}

void
world_spend(size_t n_bytes)
{
    world.now_ns += CALL_NS + n_bytes * CALL_NS / 1000;
    run_events();
}

void
world_sleep(uint64_t until_ns)
{
    if (until_ns > world_now_ns())
        world.now_ns = until_ns;
    run_events();
}

/* For libuv, too, whichever clock it is; but not before there is a world. */
__attribute__((visibility("default"))) int
clock_gettime(clockid_t clock, struct timespec *ret)
{
    uint64_t now_ns = world_now_ns();

    if (now_ns == 0)
        return (int)syscall(SYS_clock_gettime, clock, ret);
    *ret = (struct timespec){(time_t)(now_ns / NSEC_PER_SEC), (long)(now_ns % NSEC_PER_SEC)};
    return 0;
}
