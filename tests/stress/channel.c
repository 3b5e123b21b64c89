/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of the producer and the readers of two channels, one "latest" and one "fifo", at any
 * moment, with streams that are late. Who is killed is started anew, the next producer also while
 * the former one lives. One of the readers writes what it likes into its own page, of what cannot
 * hold up a "fifo". The others go on; every byte of a frame that nobody was told about is its own;
 * of a "fifo" no frame is missing that was not; and no sequence is used twice. Where the daemon is
 * supervised, it is killed, too: frames go on without it, and who dies meanwhile is let go of by
 * the next one.
 *
 * And processes that join and leave in a loop, which leaves nothing mapped.
 */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "channel/port.h"
#include "stress.h"

#define WORDS 2048
#define BYTES (WORDS * sizeof(uint32_t))
#define DEPTH 2
#define FEW   3 /* frames by which one goes on */
#define LOOK_NS \
    (100 * NSEC_PER_MSEC) /* that a reader waits before it looks whether it is to end */
#define HANG_NS (60 * NSEC_PER_SEC)
#define SLOTS   16 /* 3, and the depths of the readers of "latest", one of whom is dead */

#define LEFT_MAX \
    64 /* pages of others that a producer has mapped, and fds and mappings of who joins */

enum channel_role {
    PRODUCER,
    NEXT, /* producer */
    VIEWER,
    SLOW_VIEWER, /* with two frames at a time */
    HOST_VIEWER,
    RECORDER,
    SLOW_RECORDER,
    HOSTILE,
    CHANNEL_ROLES
};

struct channel_shared {
    pid_t producing;
    _Atomic pid_t hostile; /* that has been let in */
    _Atomic uint64_t n_frames[CHANNEL_ROLES];
    _Atomic pid_t from[CHANNEL_ROLES]; /* the producer of the last one */
    _Atomic uint64_t used[2];          /* the last sequence that was put: "latest", "fifo" */
    _Atomic unsigned n_told;
};

/* What a frame's info says. */
struct label {
    uint64_t sequence;
    uint64_t before; /* of the frame before it, by the same producer; 0: this is its first */
    pid_t producer;
};

/* ---- the producer ---- */

struct output {
    struct caid_channel *channel;
    uint64_t before;
    _Atomic uint64_t *used;
};

/* Waits for its turn. */
static struct caid_channel *
produce(struct actor *a, const char *mode)
{
    const int64_t shape = WORDS;
    OPTIONS(caid_channel_options, options, .mode = mode, .typestr = "<u4", .shape = &shape,
            .ndim = 1, .slots = SLOTS);
    struct caid_channel *channel;

    while (caid_channel_create(a->client, &channel, mode, &options, &error) < 0) {
        if (error.code != CAID_ERR_BUSY)
            errx(1, "%s", error.message);
        if (a->role->end)
            return NULL;
        usleep(1000);
    }
    return channel;
}

static void
put(struct actor *a, struct output *out)
{
    struct caid_frame frame;
    CUdeviceptr at = caid_array_get_info(caid_channel_array(out->channel))->ptr;

    MUST(caid_channel_begin(out->channel, STREAM(a->stream), HANG_NS, &frame, &error));
    if (frame.sequence <= atomic_load(out->used))
        errx(1, "frame %d is put a second time", (int)frame.sequence);
    for (int half = 0; half < 2; half++)
        MUST_CUDA(a->drv->cu.cuMemsetD32Async(at + frame.offset + (size_t)half * BYTES / 2,
                                              (uint32_t)frame.sequence, WORDS / 2, a->stream));
    if (rnd(a, 8) == 0) {
        MUST(caid_channel_abandon(out->channel, &frame, &error));
    } else {
        struct label label = {frame.sequence, out->before, getpid()};
        memcpy(frame.info, &label, sizeof(label));
        MUST(caid_channel_commit(out->channel, &frame, &error));
        out->before = frame.sequence;
    }
    atomic_store(out->used, frame.sequence);
}

static void
producer(struct actor *a, unsigned unused UNUSED)
{
    struct channel_shared *shared = a->shared;

    actor_open(a);
    actor_fast(a);
    struct output latest = {produce(a, "latest"), 0, &shared->used[0]};
    struct output fifo = {.used = &shared->used[1]};
    if (latest.channel)
        fifo.channel = produce(a, "fifo");
    while (fifo.channel && !a->role->end) {
        put(a, &latest);
        put(a, &fifo);
        usleep(rnd(a, 500));
    }
    caid_channel_close(latest.channel);
    caid_channel_close(fifo.channel);
    caid_client_close(a->client);
}

/* ---- a reader ---- */

struct input {
    struct actor *a;
    const char *name;
    struct caid_channel *channel;
    uint32_t depth;
    bool on_host;
    CUdeviceptr copies[DEPTH];
    struct caid_frame frames[DEPTH];
    size_t n;        /* of them open */
    uint64_t before; /* the sequence of the last one */
    bool told;       /* that something is missing, or nothing was got before */
};

static bool
is_told(struct input *in, int r)
{
    if (r >= 0)
        return false;
    if (error.code != CAID_ERR_ABANDONED)
        stress_fail(in->a->s, "%s: %s", in->name, error.message);
    atomic_fetch_add(&((struct channel_shared *)in->a->shared)->n_told, 1);
    in->told = true;
    return true;
}

static CUdeviceptr
place(const struct input *in, const struct caid_frame *frame)
{
    return caid_array_get_info(caid_channel_array(in->channel))->ptr + frame->offset;
}

static uint64_t
stream_of(const struct input *in)
{
    return in->on_host ? 0 : STREAM(in->a->stream);
}

/* In order, and in a "fifo" after the one before. */
static void
check_label(struct input *in, const struct caid_frame *frame)
{
    struct channel_shared *shared = in->a->shared;
    size_t role = (size_t)(in->a->role - in->a->s->roles);
    bool fifo = caid_channel_is_fifo(in->channel);
    uint64_t missed = fifo || !in->before ? frame->missed : frame->sequence - in->before - 1;
    struct label label;

    memcpy(&label, frame->info, sizeof(label));
    if (label.sequence != frame->sequence || frame->sequence <= in->before ||
        frame->missed != missed)
        stress_fail(in->a->s, "%s: frame %d after %d, %d missed, says that it is %d", in->name,
                    (int)frame->sequence, (int)in->before, (int)frame->missed,
                    (int)label.sequence);
    if (fifo && !in->told && label.before != in->before)
        stress_fail(in->a->s, "fifo: frame %d comes after %d, and not after %d",
                    (int)frame->sequence, (int)in->before, (int)label.before);
    in->before = frame->sequence;
    in->told = false;
    atomic_fetch_add(&shared->n_frames[role], 1);
    atomic_store(&shared->from[role], label.producer);
}

/* false: there is none. */
static bool
get(struct input *in)
{
    struct caid_frame *frame = &in->frames[in->n];
    int r = caid_channel_get(in->channel, stream_of(in), in->n ? 0 : LOOK_NS, 0, frame, &error);

    if (r < 0 && error.code == CAID_ERR_TIMEOUT)
        return false;
    if (is_told(in, r))
        return false;
    check_label(in, frame);
    if (!in->on_host)
        MUST_CUDA(in->a->drv->cu.cuMemcpyDtoDAsync(in->copies[in->n], place(in, frame), BYTES,
                                                   in->a->stream));
    in->n++;
    return true;
}

static void
check_words(struct input *in, CUdeviceptr at, const struct caid_frame *frame)
{
    uint32_t words[WORDS];

    if (in->on_host)
        memcpy(words, (void *)(uintptr_t)at, BYTES); /* the software driver's memory */
    else
        MUST_CUDA(in->a->drv->cu.cuMemcpyDtoH(words, at, BYTES));
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != (uint32_t)frame->sequence)
            stress_fail(in->a->s, "%s: frame %d has %u at %zu", in->name, (int)frame->sequence,
                        words[i], i);
}

/* Ends what is open, the last one first, and looks at what was read. */
static void
finish(struct input *in)
{
    bool told = false;

    for (size_t i = in->n; i-- > 0;) {
        if (in->on_host)
            check_words(in, place(in, &in->frames[i]), &in->frames[i]);
        told |=
            is_told(in, caid_channel_end(in->channel, &in->frames[i], stream_of(in), &error));
    }
    if (!in->on_host)
        told |= is_told(in, caid_stream_synchronize(in->a->client, STREAM(in->a->stream), 0,
                                                    &error));
    for (size_t i = 0; !in->on_host && !told && i < in->n; i++)
        check_words(in, in->copies[i], &in->frames[i]);
    in->n = 0;
}

static void
reader(struct actor *a, unsigned role)
{
    struct input in = {
        .a = a,
        .name = role < RECORDER ? "latest" : "fifo",
        .depth = role == SLOW_VIEWER || role == SLOW_RECORDER ? DEPTH : 1,
        .on_host = role == HOST_VIEWER,
        .told = true,
    };
    OPTIONS(caid_channel_options, options, .depth = in.depth, .wait = true,
            .timeout_ns = HANG_NS);

    actor_open(a);
    actor_fast(a);
    for (int i = 0; i < DEPTH; i++)
        MUST_CUDA(a->drv->cu.cuMemAlloc(&in.copies[i], BYTES));
    MUST(caid_channel_open(a->client, &in.channel, in.name, &options, &error));
    while (!a->role->end) {
        while (in.n < in.depth && get(&in))
            ;
        finish(&in);
    }
    caid_channel_close(in.channel);
    caid_client_close(a->client);
}

/* ---- a hostile reader ---- */

/* Announces what it likes, also what it may not, and lets go of what it never got, or never. */
static void
write_anything(struct actor *a, struct timeline_slot *slot, struct channel_reader *tail)
{
    uint64_t value = (uint64_t)rnd(a, UINT32_MAX) << rnd(a, 33);

    for (int i = 0; i < CHANNEL_DEPTH_MAX; i++)
        atomic_store(&tail->announcements[i].word, channel_word(value, rnd(a, 2 * SLOTS)));
    atomic_store(&tail->got, value);
    atomic_store(&tail->missed, value);
    atomic_store(&tail->waits, value);
    atomic_store(&slot->done, value);
    atomic_store(&slot->submitted, value << rnd(a, 33));
}

/* It holds up no "fifo": it has let go of all, as it says. */
static void
hostile(struct actor *a, unsigned unused UNUSED)
{
    bool fifo = rnd(a, 2);
    OPTIONS(caid_channel_options, options, .depth = DEPTH, .wait = true, .timeout_ns = HANG_NS);
    struct caid_channel *channel;

    a->client = program_connect(a->s->source.socket);
    MUST(caid_channel_open(a->client, &channel, fifo ? "fifo" : "latest", &options, &error));
    struct timeline_slot *slots = channel->page->slots;
    atomic_store(&((struct channel_shared *)a->shared)->hostile, getpid());
    for (unsigned i = 0; !a->role->end; i++) {
        if (!fifo)
            write_anything(a, &slots[0], channel_reader_of(slots));
        else
            atomic_store(&slots[0].done, TIMELINE_VALUE_MAX << rnd(a, 2));
        if (i % 100 == 0)
            usleep(100);
    }
    _exit(0); /* a close would wait for what it says is on its way */
}

/* ---- kills ---- */

static void
start(struct stress *s, unsigned role)
{
    struct channel_shared *shared = s->shared;

    role_start(s, role, role < VIEWER ? producer : role == HOSTILE ? hostile : reader, role);
    if (role < VIEWER)
        shared->producing = s->roles[role].pid;
}

/* There is no channel yet. */
static void
begin(struct stress *s)
{
    struct channel_shared *shared = s->shared;

    shared->used[0] = shared->used[1] = 0;
    start(s, PRODUCER);
}

/* All get frames of the last producer. */
static void
await_frames(struct stress *s)
{
    struct channel_shared *shared = s->shared;
    uint64_t before[CHANNEL_ROLES], hang_ns = clock_now_ns() + HANG_NS;

    for (int i = 0; i < CHANNEL_ROLES; i++)
        before[i] = atomic_load(&shared->n_frames[i]);
    for (int i = VIEWER; i < HOSTILE; i++)
        while (atomic_load(&shared->n_frames[i]) < before[i] + FEW ||
               atomic_load(&shared->from[i]) != shared->producing) {
            if (clock_now_ns() > hang_ns)
                stress_fail(s, "actor %d gets no frames", i);
            usleep(500);
        }
}

/* One that the producer waits for, and that waits for the next daemon, would hold a "fifo" up. */
static void
await_hostile(struct stress *s)
{
    struct channel_shared *shared = s->shared;
    uint64_t hang_ns = clock_now_ns() + HANG_NS;

    while (atomic_load(&shared->hostile) != s->roles[HOSTILE].pid) {
        if (clock_now_ns() > hang_ns)
            stress_fail(s, "the hostile reader is not let in");
        usleep(500);
    }
}

/* Before the kill, so that all that is known of it is known by the next daemon. */
static void
begin_outage(struct stress *s)
{
    bool goes_on = rnd(s, 2);

    if (goes_on)
        await_hostile(s);
    stress_outage(s);
    stress_count(s, "outages");
    if (goes_on)
        await_frames(s);
}

/* Returns who produces. */
static unsigned
kill_one(struct stress *s, unsigned producing)
{
    unsigned victim = rnd(s, 3) == 0 ? producing : VIEWER + rnd(s, CHANNEL_ROLES - VIEWER);
    unsigned next = victim >= VIEWER ? victim : producing == PRODUCER ? NEXT : PRODUCER;
    bool outage = stress_is_supervised(s) && rnd(s, 3) == 0;
    bool waits = victim < VIEWER && !outage && rnd(s, 2);

    snprintf(s->what, sizeof(s->what), "actor %u is killed%s", victim,
             outage ? ", while there is no daemon" : "");
    stress_count(s, victim >= VIEWER ? "readers killed"
                    : waits          ? "producers killed, with the next one waiting"
                                     : "producers killed");
    if (waits)
        start(s, next);
    if (outage)
        begin_outage(s);
    role_kill(s, victim);
    if (outage)
        stress_revive(s);
    if (!waits)
        start(s, next);
    return next < VIEWER ? next : producing;
}

static void
end_all(struct stress *s, unsigned producing)
{
    for (unsigned i = CHANNEL_ROLES; i-- > VIEWER;) {
        s->roles[i].end = true;
        role_join(s, i);
    }
    s->roles[producing].end = true;
    role_join(s, producing);
}

static void
run(struct stress *s, unsigned first, unsigned n)
{
    unsigned producing = PRODUCER;

    begin(s);
    for (unsigned i = VIEWER; i < CHANNEL_ROLES; i++)
        start(s, i);
    for (s->number = first; s->number < first + n; s->number++) {
        await_frames(s);
        producing = kill_one(s, producing);
    }
    await_frames(s);
    end_all(s, producing);
}

static void
report(const struct stress *s)
{
    const struct channel_shared *shared = s->shared;
    uint64_t n = 0;

    for (int i = VIEWER; i < HOSTILE; i++)
        n += shared->n_frames[i];
    printf("%6d frames were got, %u times they were told that one is lost\n", (int)n,
           shared->n_told);
}

const struct scenario scenario_channel = {
    .name = "channel",
    .variable = "CAID_STRESS_KILLS",
    .amount = 100,
    .least = 10,
    .warm = 10,
    .shared_size = sizeof(struct channel_shared),
    .run = run,
    .report = report,
};

/* Of a daemon that is supervised. */
const struct scenario scenario_outages = {
    .name = "outages",
    .variable = "CAID_STRESS_KILLS",
    .amount = 30,
    .least = 10,
    .warm = 10,
    .shared_size = sizeof(struct channel_shared),
    .run = run,
    .report = report,
};

/* ---- joins ---- */

static void
join(struct actor *a, unsigned i)
{
    struct input in = {.a = a,
                       .name = i % 2 ? "fifo" : "latest",
                       .on_host = true,
                       .told = true};
    OPTIONS(caid_channel_options, options, .depth = 1 + i % DEPTH, .wait = true,
            .timeout_ns = HANG_NS);

    MUST(caid_channel_open(a->client, &in.channel, in.name, &options, &error));
    while (i % 3 && !get(&in))
        ;
    if (i % 5)
        finish(&in);
    caid_channel_close(in.channel); /* every fifth with a frame that is open */
}

/* Mappings of what is called so, or NULL: fds. */
static uint64_t
count(pid_t pid, const char *of)
{
    return of ? ledger_count_mappings(pid, of) : ledger_count_fds(pid);
}

/* What a client does not need any more goes soon. */
static void
await_few(const struct stress *s, const char *what, pid_t pid, const char *of, uint64_t before)
{
    uint64_t now, hang_ns = clock_now_ns() + HANG_NS;

    while ((now = count(pid, of)) > before + LEFT_MAX) {
        if (clock_now_ns() > hang_ns)
            stress_fail(s, "%s: %d, and %d before", what, (int)now, (int)before);
        usleep(1000);
    }
}

static void
joiner(struct actor *a, unsigned n)
{
    uint64_t n_fds = 0, n_mappings = 0;

    a->client = program_connect(a->s->source.socket);
    for (unsigned i = 0; i < n; i++) {
        if (i == n / 10) {
            n_fds = count(getpid(), NULL);
            n_mappings = count(getpid(), "");
        }
        join(a, i);
    }
    await_few(a->s, "fds of who joins", getpid(), NULL, n_fds);
    await_few(a->s, "mappings of who joins", getpid(), "", n_mappings);
    caid_client_close(a->client);
}

static void
run_joins(struct stress *s, unsigned first UNUSED, unsigned n)
{
    begin(s);
    for (unsigned i = VIEWER; i < HOSTILE; i++)
        role_start(s, i, joiner, n / (HOSTILE - VIEWER));
    for (unsigned i = VIEWER; i < HOSTILE; i++)
        role_join(s, i);
    await_few(s, "pages that a producer has mapped", s->roles[PRODUCER].pid, "caid-timelines",
              0);
    s->roles[PRODUCER].end = true;
    role_join(s, PRODUCER);
}

const struct scenario scenario_joins = {
    .name = "joins",
    .variable = "CAID_STRESS_JOINS",
    .amount = 500,
    .least = 20,
    .warm = 20,
    .shared_size = sizeof(struct channel_shared),
    .run = run_joins,
};
