/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff.h"

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"

#define N_STREAMS  3
#define BYTES      (HANDOFF_WORDS * sizeof(uint32_t))
#define BOUND_NS   NSEC_PER_SEC
#define WAIT_NS    (5 * NSEC_PER_SEC) /* more than the bound, and it ends */
#define WARM_CASES 8                  /* after which the witness has all that it will have */
#define SETTLE_MS  1000

struct witness {
    struct handoff_process *p;
    CUstream streams[N_STREAMS];
    CUdeviceptr copies[N_STREAMS];
    struct caid_bracket *brackets[N_STREAMS];
    struct caid_bracket *held; /* for writing, while the victim waits */
    struct caid_timeline *timeline;
    bool begun[N_STREAMS], ended[N_STREAMS], told[N_STREAMS];
    size_t n; /* streams in use */
    uint32_t n_cases;
    size_t mine; /* mappings of shared memory, at most */
};

static const struct kill_case *
now(const struct witness *w)
{
    return &w->p->shared->now;
}

static bool
is_timeline(const struct witness *w)
{
    return now(w)->moment >= MOMENT_submitted;
}

static _Noreturn void
fail(const struct witness *w, const char *what)
{
    static const char *const whens[] = {
#define MOMENT(name, when) when,
        MOMENTS(MOMENT)
#undef MOMENT
    };
    const struct kill_case *c = now(w);

    errx(1, "case %" PRIu32 " (%s, a %s killed %s; the witness %s, variant %d): %s",
         w->p->shared->number, w->p->mode, c->writes ? "writer" : "reader", whens[c->moment],
         c->witness_writes ? "writes" : "reads", c->variant, what);
}

static bool
is_told(const struct witness *w, int r)
{
    if (r >= 0)
        return false;
    if (error.code != CAID_ERR_ABANDONED)
        fail(w, error.message);
    return true;
}

/* ---- its brackets ---- */

static struct caid_bracket *
start(struct witness *w, bool writes, CUstream stream)
{
    struct caid_array **arrays = &w->p->array;
    OPTIONS(caid_bracket_options, options, .reads = arrays, .n_reads = !writes,
            .writes = arrays, .n_writes = writes, .stream = STREAM(stream),
            .timeout_ns = WAIT_NS);
    struct caid_bracket *bracket;

    MUST(caid_bracket_start(w->p->client, &bracket, &options, &error));
    return bracket;
}

static void
work(struct witness *w, bool writes, size_t i)
{
    CUdeviceptr at = caid_array_get_info(w->p->array)->ptr;

    if (writes)
        MUST_CUDA(w->p->drv->cu.cuMemsetD32Async(at, w->p->shared->number + 1, HANDOFF_WORDS,
                                                 w->streams[i]));
    else
        MUST_CUDA(w->p->drv->cu.cuMemcpyDtoDAsync(w->copies[i], at, BYTES, w->streams[i]));
}

/* The begin's answer, and the work. What is abandoned is told here at the latest chance before
 * it is read. */
static void
begin(struct witness *w, size_t i)
{
    int r = caid_bracket_wait(w->brackets[i], WAIT_NS, &error);
    if (r > 0)
        fail(w, "a begin has no answer");
    w->begun[i] = r == 0;
    if (is_told(w, r))
        w->told[i] = true;
    else
        work(w, now(w)->witness_writes, i);
}

static void
end(struct witness *w, size_t i)
{
    w->ended[i] = true;
    if (is_told(w, caid_bracket_end(w->brackets[i], &error)))
        w->told[i] = true;
}

static bool
is_whole(struct witness *w, CUdeviceptr at)
{
    uint32_t words[HANDOFF_WORDS];

    MUST_CUDA(w->p->drv->cu.cuMemcpyDtoH(words, at, BYTES));
    for (size_t i = 1; i < HANDOFF_WORDS; i++)
        if (words[i] != words[0])
            return false;
    return true;
}

/* Once the stream has come to the bracket's end, its check and, once, the stream's say the
 * truth. */
static void
finish(struct witness *w, size_t i)
{
    if (w->begun[i]) {
        if (!w->ended[i])
            end(w, i);
        int r = caid_stream_synchronize(w->p->client, STREAM(w->streams[i]), 0, &error);
        bool by_stream = is_told(w, r);
        bool by_check = is_told(w, caid_bracket_check(w->brackets[i], &error));
        if ((w->told[i] || by_stream) && !by_check && !now(w)->witness_writes)
            fail(w, "the bracket's check denies what was told");
        w->told[i] = w->told[i] || by_stream || by_check;
        if (!now(w)->witness_writes && !w->told[i] && !is_whole(w, w->copies[i]))
            fail(w, "read what is not whole, and was not told");
    }
    caid_bracket_free(w->brackets[i]);
}

/* ---- the parts of a case ---- */

/* Before there is a victim. */
static void
hold(struct witness *w)
{
    w->n = now(w)->witness_writes ? 1 : N_STREAMS;
    memset(w->begun, 0, sizeof(w->begun));
    memset(w->ended, 0, sizeof(w->ended));
    memset(w->told, 0, sizeof(w->told));
    if (now(w)->moment != MOMENT_waiting)
        return;
    w->held = start(w, true, w->streams[0]);
    MUST(caid_bracket_wait(w->held, WAIT_NS, &error));
}

/* The victim's bracket has ended, or is no obstacle: and the host does not wait for its work. */
static bool
can_begin(const struct witness *w)
{
    const struct kill_case *c = now(w);
    bool unfinished = c->moment == MOMENT_ended && strcmp(w->p->mode, "host") == 0;

    if (c->moment == MOMENT_opened || c->moment == MOMENT_done)
        return true;
    return c->moment == MOMENT_ended && !unfinished;
}

/* The victim is where it will be killed. Variants: the begin alone is before that, the work and the
 * end too, or only the request. */
static void
approach(struct witness *w)
{
    if (is_timeline(w))
        MUST(caid_timeline_open(w->p->client, &w->timeline, HANDOFF_TIMELINE, NULL, &error));
    if (is_timeline(w) || w->held)
        return;
    for (size_t i = 0; i < w->n; i++)
        w->brackets[i] = start(w, now(w)->witness_writes, w->streams[i]);
    for (size_t i = 0; i < w->n && can_begin(w) && now(w)->variant < 2; i++) {
        begin(w, i);
        if (now(w)->variant == 1)
            end(w, i);
    }
}

static void
wait_for_timeline(struct witness *w)
{
    uint64_t stream = now(w)->variant == 0 ? 0 : STREAM(w->streams[0]);
    uint32_t flags = now(w)->variant == 2 ? CAID_TIMELINE_AHEAD : 0;

    int r = caid_timeline_wait(w->timeline, stream, 1, flags ? CAID_FOREVER : WAIT_NS, flags,
                               &error);
    w->told[0] = is_told(w, r);
    if (stream && is_told(w, caid_stream_synchronize(w->p->client, stream, 0, &error)))
        w->told[0] = true;
    if (!w->told[0])
        fail(w, "a wait for a timeline of the dead ended well");
    caid_timeline_close(w->timeline);
    w->timeline = NULL;
}

static void
wait_for_array(struct witness *w)
{
    if (w->held) {
        MUST(caid_bracket_end(w->held, &error));
        caid_bracket_free(TAKE_PTR(w->held));
        for (size_t i = 0; i < w->n; i++)
            w->brackets[i] = start(w, now(w)->witness_writes, w->streams[i]);
    }
    for (size_t i = 0; i < w->n; i++)
        if (!w->begun[i] && !w->told[i])
            begin(w, i);
    for (size_t i = 0; i < w->n; i++)
        finish(w, i);
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

    MUST(caid_list(w->p->client, &options, take_abandoned, &abandoned, &error));
    return abandoned;
}

/* A bracket of the witness by itself: whether it was told. */
static bool
use(struct witness *w, bool writes)
{
    w->brackets[0] = start(w, writes, w->streams[0]);
    int r = caid_bracket_wait(w->brackets[0], WAIT_NS, &error);
    bool told = is_told(w, r);
    if (!told) {
        work(w, writes, 0);
        MUST(caid_bracket_end(w->brackets[0], &error));
        MUST(caid_stream_synchronize(w->p->client, STREAM(w->streams[0]), 0, &error));
    }
    caid_bracket_free(w->brackets[0]);
    return told;
}

static void
heal(struct witness *w)
{
    if (!use(w, false))
        fail(w, "an abandoned array was read");
    if (now(w)->variant == 0)
        MUST(caid_array_discard(w->p->array, &error));
    else if (use(w, true))
        fail(w, "an abandoned array cannot be written");
    if (is_abandoned(w) || use(w, false))
        fail(w, "the array was not healed");
    use(w, true); /* whole again */
}

static void
check_array(struct witness *w)
{
    bool loses = kill_case_loses(now(w)) && !now(w)->witness_writes;
    size_t n_told = 0;

    for (size_t i = 0; i < w->n; i++)
        n_told += w->told[i];
    w->p->shared->n_told += (uint32_t)n_told;
    if (now(w)->moment != MOMENT_looping && n_told != (loses ? w->n : 0))
        fail(w, loses ? "a bracket was not told" : "a bracket was told without cause");
    bool abandoned = is_abandoned(w);
    if (now(w)->moment != MOMENT_looping && abandoned != loses)
        fail(w, loses ? "the array is not abandoned" : "the array is abandoned");
    if (abandoned)
        heal(w);
    else if (use(w, false) || !is_whole(w, w->copies[0]))
        fail(w, "the array is not whole");
}

/* ---- nothing is left ---- */

static bool
daemon_is_as_before(struct witness *w)
{
    OPTIONS(caid_status, status);

    MUST(caid_client_status(w->p->client, &status, &error));
    return status.connections == 1 && status.leases == 1 && !status.brackets &&
           status.pages <= 1 && !status.timelines;
}

static void
check_daemon(struct witness *w)
{
    for (int i = 0; i < SETTLE_MS; i++) {
        if (daemon_is_as_before(w))
            return;
        usleep(1000);
    }
    fail(w, "the daemon still has something of the victim");
}

/* Of its own, and of what the dead shared that it has not given up yet. Pages that streams have
 * waited on by memory operations stay. */
static size_t
count_mappings(const struct witness *w)
{
    bool pages_stay = strcmp(w->p->mode, "memops") == 0;
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

/* What it once mapped has gone, soon: no more is left than after the first few cases. */
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
    warnx("%zu mappings, not %zu", n, w->mine);
    fail(w, "mappings of what the dead shared are left");
}

/* ---- */

static void
answer(struct witness *w)
{
    sem_post(&w->p->shared->answer);
}

static void
run_case(struct witness *w)
{
    hold(w);
    answer(w);
    program_wait(&w->p->shared->ask);
    approach(w);
    answer(w);
    if (is_timeline(w))
        wait_for_timeline(w);
    program_wait(&w->p->shared->ask); /* the victim has been killed */
    if (!is_timeline(w))
        wait_for_array(w);
    uint64_t late = clock_now_ns() - w->p->shared->killed_ns;
    if (late > BOUND_NS)
        fail(w, "it took longer than a second");
    if (late > w->p->shared->late_ns)
        w->p->shared->late_ns = late;
    if (!is_timeline(w))
        check_array(w);
    check_daemon(w);
    if (w->n_cases++ < WARM_CASES && count_mappings(w) > w->mine)
        w->mine = count_mappings(w);
    answer(w);
}

static void
prepare(struct witness *w)
{
    const int64_t shape = HANDOFF_WORDS;
    OPTIONS(caid_create_options, options, .name = HANDOFF_ARRAY, .typestr = "<u4",
            .shape = &shape, .ndim = 1);

    handoff_open(w->p);
    MUST(caid_array_create(w->p->client, &w->p->array, &options, &error));
    for (size_t i = 0; i < N_STREAMS; i++) {
        MUST_CUDA(w->p->drv->cu.cuStreamCreate(&w->streams[i], CU_STREAM_NON_BLOCKING));
        MUST_CUDA(w->p->drv->cu.cuMemAlloc(&w->copies[i], BYTES));
    }
    use(w, true);
    check_daemon(w); /* who was there before has gone */
}

void
handoff_witness(struct handoff_process *p)
{
    struct witness w = {.p = p};

    prepare(&w);
    answer(&w);
    for (program_wait(&p->shared->ask); !p->shared->end; program_wait(&p->shared->ask))
        run_case(&w);
    check_itself(&w);
    caid_array_close(p->array);
    MUST(caid_unlink(p->client, HANDOFF_ARRAY, NULL, &error));
    caid_client_close(p->client);
}
