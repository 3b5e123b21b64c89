/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff.h"

#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define N_STREAMS  3
#define BOUND_NS   NSEC_PER_SEC
#define WAIT_NS    (5 * NSEC_PER_SEC) /* more than the bound, and it ends */
#define WARM_CASES 8                  /* after which the witness has all that it will have */
#define SETTLE_MS  1000

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
start(struct witness *w, struct lane *lane, bool writes)
{
    lane->bracket = handoff_start(w->a, w->array, writes, lane->stream, WAIT_NS);
}

static void
work(struct witness *w, struct lane *lane, bool writes)
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
begin(struct witness *w, struct lane *lane)
{
    int r = caid_bracket_wait(lane->bracket, WAIT_NS, &error);
    if (r > 0)
        stress_fail(w->a->s, "a begin has no answer");
    lane->begun = r == 0;
    if (is_told(w, r))
        lane->told = true;
    else
        work(w, lane, w->now->witness_writes);
}

static void
end(struct witness *w, struct lane *lane)
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
finish(struct witness *w, struct lane *lane)
{
    if (lane->begun) {
        if (!lane->ended)
            end(w, lane);
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
        start(w, &w->lanes[i], w->now->witness_writes);
    for (size_t i = 0; i < w->n && can_begin(w) && w->now->variant < 2; i++) {
        begin(w, &w->lanes[i]);
        if (w->now->variant == 1)
            end(w, &w->lanes[i]);
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
            start(w, &w->lanes[i], w->now->witness_writes);
    }
    for (size_t i = 0; i < w->n; i++)
        if (!w->lanes[i].begun && !w->lanes[i].told)
            begin(w, &w->lanes[i]);
    for (size_t i = 0; i < w->n; i++)
        finish(w, &w->lanes[i]);
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

    start(w, lane, writes);
    bool told = is_told(w, caid_bracket_wait(lane->bracket, WAIT_NS, &error));
    if (!told) {
        work(w, lane, writes);
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
run_case(struct witness *w)
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
    if (late > BOUND_NS)
        stress_fail(w->a->s, "it took longer than a second");
    if (late > w->shared->late_ns)
        w->shared->late_ns = late;
    if (!w->now->timeline)
        check_array(w);
    check_daemon(w);
    if (w->n_cases++ < WARM_CASES && count_mappings(w) > w->mine)
        w->mine = count_mappings(w);
    actor_reached(w->a);
}

void
handoff_witness(struct actor *a, unsigned unused UNUSED)
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
        run_case(&w);
    check_itself(&w);
    caid_array_close(w.array);
    MUST(caid_unlink(a->client, HANDOFF_NAME, NULL, &error));
    caid_client_close(a->client);
}
