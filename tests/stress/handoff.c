/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of readers, writers and signallers at each step of a hand-off, one after the other, with
 * a witness that waits for each of them. Nobody may wait for the dead for more than a second, who
 * read what is not whole has to be told, and the daemon has nothing of the dead afterwards.
 *
 * By inter-process events, streams that wait for the dead wait for ever: those cases are left out
 * there, and said.
 */
#include "handoff.h"

#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_CASES 256
#define SETTLE_MS 1000

static struct kill_case cases[MAX_CASES];
static unsigned n_cases;

#define MOMENT(name, when) when,
static const char *const whens[] = {MOMENTS(MOMENT)};
#undef MOMENT

/* ---- the victim ---- */

void
handoff_open(struct actor *a)
{
    const struct caid_device *devices;

    actor_open(a);
    if (caid_client_devices(a->client, &devices) < 1 ||
        strcmp(devices[0].handoff, a->s->mode) != 0)
        errx(1, "the daemon's streams do not wait by %s", a->s->mode);
}

struct caid_bracket *
handoff_start(const struct actor *a, struct caid_array *array, bool writes, CUstream stream,
              uint64_t timeout_ns)
{
    OPTIONS(caid_bracket_options, options, .reads = &array, .n_reads = !writes,
            .writes = &array, .n_writes = writes, .stream = STREAM(stream),
            .timeout_ns = timeout_ns);
    struct caid_bracket *bracket;

    MUST(caid_bracket_start(a->client, &bracket, &options, &error));
    return bracket;
}

/* Two halves, so that a kill can come between them. */
static void
work(const struct actor *a, struct caid_array *array, bool writes, CUdeviceptr copy)
{
    CUdeviceptr at = caid_array_get_info(array)->ptr;
    size_t half = HANDOFF_WORDS / 2, bytes = HANDOFF_BYTES / 2;

    for (size_t i = 0; i < 2; i++)
        if (writes)
            MUST_CUDA(
                a->drv->cu.cuMemsetD32Async(at + i * bytes, a->s->number, half, a->stream));
        else
            MUST_CUDA(a->drv->cu.cuMemcpyDtoDAsync(copy + i * bytes, at + i * bytes, bytes,
                                                   a->stream));
}

/* Brackets that end well. What a witness has left abandoned, nobody reads. */
static _Noreturn void
loop(struct actor *a, struct caid_array *array, CUdeviceptr copy, bool always_writes)
{
    actor_fast(a);
    actor_reached(a);
    for (unsigned i = 0;; i++) {
        bool writes = always_writes || i % 4 == 0;
        struct caid_bracket *bracket = handoff_start(a, array, writes, a->stream, 0);
        MUST(caid_bracket_wait(bracket, CAID_FOREVER, &error));
        work(a, array, writes, copy);
        MUST(caid_bracket_end(bracket, &error));
        caid_bracket_free(bracket);
    }
}

static _Noreturn void
run_timeline(struct actor *a, enum moment moment)
{
    struct caid_timeline *timeline;

    MUST(caid_timeline_create(a->client, &timeline, HANDOFF_NAME, NULL, &error));
    actor_slow(a);
    if (moment == MOMENT_submitted)
        MUST(caid_timeline_signal(timeline, STREAM(a->stream), 1, &error));
    actor_stay(a);
}

static _Noreturn void
run_bracket(struct actor *a, struct caid_array *array, const struct kill_case *c)
{
    enum moment moment = c->moment;
    CUdeviceptr copy;

    MUST_CUDA(a->drv->cu.cuMemAlloc(&copy, HANDOFF_BYTES));
    if (moment == MOMENT_opened)
        actor_stay(a);
    if (moment == MOMENT_looping)
        loop(a, array, copy, c->writes);
    struct caid_bracket *bracket = handoff_start(a, array, c->writes, a->stream, 0);
    MUST(caid_client_ping(a->client, &error)); /* the daemon has looked at the begin */
    if (moment == MOMENT_waiting || moment == MOMENT_started)
        actor_stay(a);
    MUST(caid_bracket_wait(bracket, CAID_FOREVER, &error));
    if (moment == MOMENT_begun)
        actor_stay(a);
    if (moment != MOMENT_done)
        actor_slow(a);
    work(a, array, c->writes, copy);
    if (moment == MOMENT_working)
        actor_stay(a);
    if (moment == MOMENT_signalled)
        actor_stop_before_send(a);
    MUST(caid_bracket_end(bracket, &error));
    if (moment == MOMENT_signalled)
        errx(1, "the end of a bracket was not sent");
    if (moment == MOMENT_done)
        MUST_CUDA(a->drv->cu.cuStreamSynchronize(a->stream));
    MUST(caid_client_ping(a->client, &error)); /* the daemon has looked at the end */
    actor_stay(a);
}

static _Noreturn void
victim(struct actor *a, unsigned unused UNUSED)
{
    const struct handoff_shared *shared = a->shared;
    OPTIONS(caid_open_options, options, .mode = "rw");
    struct caid_array *array;

    handoff_open(a);
    MUST(caid_array_open(a->client, &array, HANDOFF_NAME, &options, &error));
    if (shared->now.timeline)
        run_timeline(a, shared->now.moment);
    run_bracket(a, array, &shared->now);
}

/* ---- the cases ---- */

/* A stream of the witness would wait for the dead. */
static bool
waits_for_the_dead(const struct kill_case *c)
{
    return c->moment == MOMENT_looping ||
           (c->moment == MOMENT_ended && (c->writes || c->witness_writes)) ||
           (c->moment == MOMENT_submitted && c->variant != 0);
}

static void
begin(struct stress *s)
{
    bool events = strcmp(s->mode, "events") == 0;

    if (events)
        printf("left out: cases in which a stream waits for the dead\n");
    for (unsigned i = 0; i < HANDOFF_VARIANTS * N_MOMENTS * 4; i++) {
        struct kill_case c = {.variant = i / 4 / N_MOMENTS,
                              .moment = (enum moment)(i / 4 % N_MOMENTS),
                              .witness_writes = i & 2};
        c.timeline = c.moment >= MOMENT_submitted;
        c.writes = i & 1 || c.timeline;
        c.loses = c.writes && c.moment >= MOMENT_started && c.moment <= MOMENT_ended;
        if ((!c.timeline || i % 4 == 0) && !(events && waits_for_the_dead(&c)))
            cases[n_cases++] = c;
    }
}

/* The daemon has no more fds than before there was a victim, soon. */
static void
check_fds(struct stress *s, uint64_t n_fds)
{
    uint64_t n = 0;

    for (int i = 0; i < SETTLE_MS; i++) {
        n = ledger_count_fds(s->source.daemon);
        if (n <= n_fds)
            return;
        usleep(1000);
    }
    stress_fail(s, "the daemon has %d fds, not %d", (int)n, (int)n_fds);
}

static void
ask_witness(struct stress *s)
{
    role_go(s, WITNESS);
    role_await(s, WITNESS);
}

static void
run_case(struct stress *s, const struct kill_case *c)
{
    struct handoff_shared *shared = s->shared;

    shared->now = *c;
    s->number++;
    stress_count(s, whens[c->moment]);
    snprintf(s->what, sizeof(s->what), "%s, a %s %s; the witness %s, variant %u", s->mode,
             c->writes ? "writer" : "reader", whens[c->moment],
             c->witness_writes ? "writes" : "reads", c->variant);
    ask_witness(s);
    role_start(s, VICTIM, victim, 0);
    role_await(s, VICTIM);
    ask_witness(s);
    shared->killed_ns = clock_now_ns();
    role_kill(s, VICTIM);
    ask_witness(s);
}

/* With one witness, which ends afterwards. */
static void
run(struct stress *s, unsigned first, unsigned n)
{
    role_start(s, WITNESS, handoff_witness, 0);
    role_await(s, WITNESS);
    uint64_t n_fds = ledger_count_fds(s->source.daemon);
    for (unsigned i = first; i < first + n; i++) {
        run_case(s, &cases[i % n_cases]);
        check_fds(s, n_fds);
    }
    stress_look(s);
    s->roles[WITNESS].end = true;
    role_go(s, WITNESS);
    role_join(s, WITNESS);
}

static void
report(const struct stress *s)
{
    const struct handoff_shared *shared = s->shared;

    printf(
        "streams wait by %s; %u brackets were told; all over %.1f ms after the kill at most\n",
        s->mode, shared->n_told, (double)shared->late_ns / 1e6);
}

const struct scenario scenario_handoff = {.name = "handoff",
                                          .variable = "CAID_STRESS_KILLS",
                                          .amount = 100,
                                          .least = 4,
                                          .warm = 2,
                                          .shared_size = sizeof(struct handoff_shared),
                                          .begin = begin,
                                          .run = run,
                                          .report = report};
