/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of readers, writers and signallers at each step of a hand-off, one after the other, with
 * a witness that waits for each of them. Nobody may wait for the dead for more than a second, who
 * read what is not whole has to be told, and the daemon has nothing of the dead afterwards.
 *
 * By inter-process events, streams that wait for the dead wait for ever: those cases are left out
 * there, and said.
 *
 * A victim is brought to a moment of a hand-off and killed there, one for each case; a witness
 * lives as long as half the cases, and waits for each victim on the same array.
 */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stress.h"

#define MAX_CASES 256
#define SETTLE_MS 60000 /* what hangs alone takes so long */

/* MOMENT(name, when the victim is killed) */
#define MOMENTS(MOMENT)                                               \
    MOMENT(opened, "killed before its begin")                         \
    MOMENT(waiting, "killed while its begin waits")                   \
    MOMENT(started, "killed granted, before it looks for the answer") \
    MOMENT(begun, "killed begun")                                     \
    MOMENT(working, "killed with work enqueued")                      \
    MOMENT(signalled, "killed between the signal and the end")        \
    MOMENT(ended, "killed ended, the work not done")                  \
    MOMENT(done, "killed ended, the work done")                       \
    MOMENT(looping, "killed at any time, in a loop of brackets")      \
    MOMENT(submitted, "killed with a timeline's signal on its way")   \
    MOMENT(silent, "killed with a timeline's signal not even on its way")

#define MOMENT(name, when) MOMENT_##name,

enum moment {
    MOMENTS(MOMENT) N_MOMENTS
};

#undef MOMENT

enum handoff_role {
    WITNESS,
    VICTIM,
};

struct kill_case {
    enum moment moment;
    bool timeline;       /* or a bracket */
    bool writes;         /* the victim, or it reads */
    bool witness_writes; /* or it reads, on several streams */
    bool loses;          /* what the victim does by then leaves the array abandoned */
    unsigned variant;    /* of how the witness waits */
};

#define HANDOFF_VARIANTS 3
#define HANDOFF_WORDS    1024 /* of the array: all the same, or not whole */
#define HANDOFF_BYTES    (HANDOFF_WORDS * sizeof(uint32_t))
#define HANDOFF_NAME     "handoff" /* of the array, and of a timeline */

struct handoff_shared {
    struct kill_case now;
    uint64_t killed_ns;
    uint64_t late_ns; /* how long after the kill the witness had it all behind it, at most */
    unsigned n_told;  /* that what was read is not whole */
};

/* As actor_open(), for a daemon whose streams wait as the run says. */
static void
handoff_open(struct actor *a)
{
    const struct caid_device *const *devices;

    actor_open(a);
    if (caid_client_devices(a->client, &devices) < 1 ||
        strcmp(devices[0]->handoff, a->s->mode) != 0)
        errx(1, "the daemon's streams do not wait by %s", a->s->mode);
}

static struct caid_bracket *
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

/* ---- the victim ---- */

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

/* ---- the witness ---- */

#define N_STREAMS  3
#define WAIT_NS    (60 * NSEC_PER_SEC) /* what hangs alone takes so long */
#define WARM_CASES 8                   /* after which the witness has all that it will have */

/* A stream, and the bracket on it. */
struct lane {
    CUstream stream;
    CUdeviceptr copy;
    struct caid_bracket *bracket;
    bool begun, ended, told;
};

struct witness {
    struct actor *a;
    struct handoff_shared *shared;
    const struct kill_case *now;
    struct caid_array *array;
    struct lane lanes[N_STREAMS];
    size_t n;                  /* lanes in use */
    struct caid_bracket *held; /* for writing, while the victim waits */
    struct caid_timeline *timeline;
    unsigned n_cases;
    size_t mine; /* mappings of shared memory, at most */
};

static bool
is_told(const struct witness *w, int r)
{
    if (r >= 0)
        return false;
    if (error.code != CAID_ERR_ABANDONED)
        stress_fail(w->a->s, "%s", error.message);
    return true;
}

/* ---- its brackets ---- */

static void
lane_start(struct witness *w, struct lane *lane, bool writes)
{
    lane->bracket = handoff_start(w->a, w->array, writes, lane->stream, WAIT_NS);
}

static void
lane_work(struct witness *w, struct lane *lane, bool writes)
{
    CUdeviceptr at = caid_array_get_info(w->array)->ptr;
    const struct drv_table *cu = &w->a->drv->cu;

    if (writes)
        MUST_CUDA(cu->cuMemsetD32Async(at, w->a->s->number + 1, HANDOFF_WORDS, lane->stream));
    else
        MUST_CUDA(cu->cuMemcpyDtoDAsync(lane->copy, at, HANDOFF_BYTES, lane->stream));
}

/* The begin's answer, and the work. What is abandoned is told here at the latest chance before
 * it is read. */
static void
lane_begin(struct witness *w, struct lane *lane)
{
    int r = caid_bracket_wait(lane->bracket, WAIT_NS, &error);
    if (r > 0)
        stress_fail(w->a->s, "a begin has no answer");
    lane->begun = r == 0;
    if (is_told(w, r))
        lane->told = true;
    else
        lane_work(w, lane, w->now->witness_writes);
}

static void
lane_end(struct witness *w, struct lane *lane)
{
    lane->ended = true;
    if (is_told(w, caid_bracket_end(lane->bracket, &error)))
        lane->told = true;
}

static bool
stream_is_told(struct witness *w, const struct lane *lane)
{
    return is_told(w, caid_stream_synchronize(w->a->client, STREAM(lane->stream), 0, &error));
}

static bool
is_whole(struct witness *w, const struct lane *lane)
{
    uint32_t words[HANDOFF_WORDS];

    MUST_CUDA(w->a->drv->cu.cuMemcpyDtoH(words, lane->copy, HANDOFF_BYTES));
    return memcmp(words, words + 1, HANDOFF_BYTES - sizeof(words[0])) == 0;
}

/* Once the stream has come to the bracket's end, its check and, once, the stream's say the
 * truth. */
static void
lane_finish(struct witness *w, struct lane *lane)
{
    if (lane->begun) {
        if (!lane->ended)
            lane_end(w, lane);
        bool by_stream = stream_is_told(w, lane);
        bool by_check = is_told(w, caid_bracket_check(lane->bracket, &error));
        if ((lane->told || by_stream) && !by_check && !w->now->witness_writes)
            stress_fail(w->a->s, "the bracket's check denies what was told");
        lane->told = lane->told || by_stream || by_check;
        if (!w->now->witness_writes && !lane->told && !is_whole(w, lane))
            stress_fail(w->a->s, "read what is not whole, and was not told");
    }
    caid_bracket_free(lane->bracket);
}

/* ---- the parts of a case ---- */

/* Before there is a victim. */
static void
hold(struct witness *w)
{
    w->n = w->now->witness_writes ? 1 : N_STREAMS;
    for (size_t i = 0; i < N_STREAMS; i++)
        w->lanes[i].begun = w->lanes[i].ended = w->lanes[i].told = false;
    if (w->now->moment != MOMENT_waiting)
        return;
    w->held = handoff_start(w->a, w->array, true, w->lanes[0].stream, WAIT_NS);
    MUST(caid_bracket_wait(w->held, WAIT_NS, &error));
}

/* The victim's bracket has ended, or is no obstacle: and the host does not wait for its work. */
static bool
can_begin(const struct witness *w)
{
    enum moment moment = w->now->moment;

    return moment == MOMENT_opened || moment == MOMENT_done ||
           (moment == MOMENT_ended && strcmp(w->a->s->mode, "host") != 0);
}

/* The victim is where it will be killed. Variants: the begin alone is before that, the work and the
 * end too, or only the request. */
static void
approach(struct witness *w)
{
    if (w->now->timeline)
        MUST(caid_timeline_open(w->a->client, &w->timeline, HANDOFF_NAME, NULL, &error));
    if (w->now->timeline || w->held)
        return;
    for (size_t i = 0; i < w->n; i++)
        lane_start(w, &w->lanes[i], w->now->witness_writes);
    for (size_t i = 0; i < w->n && can_begin(w) && w->now->variant < 2; i++) {
        lane_begin(w, &w->lanes[i]);
        if (w->now->variant == 1)
            lane_end(w, &w->lanes[i]);
    }
}

static void
wait_for_timeline(struct witness *w)
{
    struct lane *lane = &w->lanes[0];
    uint64_t stream = w->now->variant == 0 ? 0 : STREAM(lane->stream);
    bool ahead = w->now->variant == 2;

    int r = caid_timeline_wait(w->timeline, stream, 1, ahead ? CAID_FOREVER : WAIT_NS,
                               ahead ? CAID_TIMELINE_AHEAD : 0, &error);
    lane->told = is_told(w, r);
    if (stream && stream_is_told(w, lane))
        lane->told = true;
    if (!lane->told)
        stress_fail(w->a->s, "a wait for a timeline of the dead ended well");
    caid_timeline_close(TAKE_PTR(w->timeline));
}

static void
wait_for_array(struct witness *w)
{
    if (w->held) {
        MUST(caid_bracket_end(w->held, &error));
        caid_bracket_free(TAKE_PTR(w->held));
        for (size_t i = 0; i < w->n; i++)
            lane_start(w, &w->lanes[i], w->now->witness_writes);
    }
    for (size_t i = 0; i < w->n; i++)
        if (!w->lanes[i].begun && !w->lanes[i].told)
            lane_begin(w, &w->lanes[i]);
    for (size_t i = 0; i < w->n; i++)
        lane_finish(w, &w->lanes[i]);
}

/* ---- what has become of the array ---- */

static int
take_abandoned(const struct caid_entry *entry, void *userdata)
{
    *(bool *)userdata = entry->abandoned;
    return 0;
}

static bool
is_abandoned(struct witness *w)
{
    OPTIONS(caid_list_options, options);
    bool abandoned = false;

    MUST(caid_list(w->a->client, &options, take_abandoned, &abandoned, &error));
    return abandoned;
}

/* A bracket of the witness by itself: whether it was told. */
static bool
use(struct witness *w, bool writes)
{
    struct lane *lane = &w->lanes[0];

    lane_start(w, lane, writes);
    bool told = is_told(w, caid_bracket_wait(lane->bracket, WAIT_NS, &error));
    if (!told) {
        lane_work(w, lane, writes);
        MUST(caid_bracket_end(lane->bracket, &error));
        MUST(caid_stream_synchronize(w->a->client, STREAM(lane->stream), 0, &error));
    }
    caid_bracket_free(lane->bracket);
    return told;
}

static void
heal(struct witness *w)
{
    if (!use(w, false))
        stress_fail(w->a->s, "an abandoned array was read");
    if (w->now->variant == 0)
        MUST(caid_array_discard(w->array, &error));
    else if (use(w, true))
        stress_fail(w->a->s, "an abandoned array cannot be written");
    if (is_abandoned(w) || use(w, false))
        stress_fail(w->a->s, "the array was not healed");
    use(w, true); /* whole again */
}

static void
check_array(struct witness *w)
{
    bool loses = w->now->loses && !w->now->witness_writes;
    bool any = w->now->moment == MOMENT_looping;
    unsigned n_told = 0;

    for (size_t i = 0; i < w->n; i++)
        n_told += w->lanes[i].told;
    w->shared->n_told += n_told;
    if (!any && n_told != (loses ? w->n : 0))
        stress_fail(w->a->s, "%u brackets were told", n_told);
    bool abandoned = is_abandoned(w);
    if (!any && abandoned != loses)
        stress_fail(w->a->s, "the array is %sabandoned", abandoned ? "" : "not ");
    if (abandoned)
        heal(w);
    else if (use(w, false) || !is_whole(w, &w->lanes[0]))
        stress_fail(w->a->s, "the array is not whole");
}

/* ---- nothing is left, soon ---- */

static void
check_daemon(struct witness *w)
{
    OPTIONS(caid_status, status);

    for (int i = 0; i < SETTLE_MS; i++) {
        MUST(caid_client_status(w->a->client, &status, &error));
        if (status.connections == 1 && status.leases == 1 && !status.brackets &&
            status.pages <= 1 && !status.timelines)
            return;
        usleep(1000);
    }
    stress_fail(w->a->s, "the daemon still has something of the victim");
}

/* Of its own, and of what the dead shared that it has not given up yet. Pages that streams have
 * waited on by memory operations stay. */
static size_t
count_mappings(const struct witness *w)
{
    bool pages_stay = strcmp(w->a->s->mode, "memops") == 0;
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    size_t n = 0;

    if (!f)
        err(1, "/proc/self/maps");
    while (fgets(line, sizeof(line), f))
        n += strstr(line, "memfd:") && !(pages_stay && strstr(line, "memfd:caid-timelines"));
    fclose(f);
    return n;
}

/* What it once mapped has gone: no more is left than after the first few cases. */
static void
check_itself(struct witness *w)
{
    size_t n = 0;

    for (int i = 0; i < SETTLE_MS; i++) {
        n = count_mappings(w);
        if (n <= w->mine)
            return;
        usleep(1000);
    }
    stress_fail(w->a->s, "%zu mappings are left, not %zu", n, w->mine);
}

/* ---- */

static void
witness_case(struct witness *w)
{
    hold(w);
    actor_reached(w->a);
    actor_wait(w->a);
    approach(w);
    actor_reached(w->a);
    if (w->now->timeline)
        wait_for_timeline(w);
    actor_wait(w->a); /* the victim has been killed */
    if (!w->now->timeline)
        wait_for_array(w);
    uint64_t late = clock_now_ns() - w->shared->killed_ns;
    if (late > w->shared->late_ns)
        w->shared->late_ns = late;
    if (!w->now->timeline)
        check_array(w);
    check_daemon(w);
    if (w->n_cases++ < WARM_CASES && count_mappings(w) > w->mine)
        w->mine = count_mappings(w);
    actor_reached(w->a);
}

/* Says that it is there before a first case, at its parts, and after it. */
static void
witness(struct actor *a, unsigned unused UNUSED)
{
    struct handoff_shared *shared = a->shared;
    struct witness w = {.a = a, .shared = shared, .now = &shared->now};
    const int64_t shape = HANDOFF_WORDS;
    OPTIONS(caid_create_options, options, .name = HANDOFF_NAME, .typestr = "<u4",
            .shape = &shape, .ndim = 1);

    handoff_open(a);
    MUST(caid_array_create(a->client, &w.array, &options, &error));
    for (size_t i = 0; i < N_STREAMS; i++) {
        MUST_CUDA(a->drv->cu.cuStreamCreate(&w.lanes[i].stream, CU_STREAM_NON_BLOCKING));
        MUST_CUDA(a->drv->cu.cuMemAlloc(&w.lanes[i].copy, HANDOFF_BYTES));
    }
    use(&w, true);
    check_daemon(&w); /* who was there before has gone */
    actor_reached(a);
    for (actor_wait(a); !a->role->end; actor_wait(a))
        witness_case(&w);
    check_itself(&w);
    caid_array_close(w.array);
    MUST(caid_unlink(a->client, HANDOFF_NAME, NULL, &error));
    caid_client_close(a->client);
}

/* ---- the cases ---- */

#define MOMENT(name, when) when,
static const char *const whens[] = {MOMENTS(MOMENT)};
#undef MOMENT

static struct kill_case cases[MAX_CASES];
static unsigned n_cases;

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
    role_start(s, WITNESS, witness, 0);
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
