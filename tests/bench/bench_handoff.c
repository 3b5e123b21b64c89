/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time to hand an array of 1 MiB from a kernel of one process to a kernel of another: from when
 * the producer's kernel has been enqueued, to when the consumer's is done and its host knows. The
 * consumer waits already, in the way that is measured:
 *
 *   event + socket         the producer records an inter-process event and sends a byte
 *   host sync + socket     the producer waits for its kernel on the host and sends a byte
 *   bare memory operation  a stream waits for a value in a host page that both have registered: the
 *                          least that is possible, and no help against a dead producer
 *   timeline               caid_timeline_wait(): the host until the signal is submitted, then the
 *                          stream
 *   timeline, ahead        the same with CAID_TIMELINE_AHEAD
 *   bracket                caid_bracket_begin() waits in the daemon's queue for the producer's end
 *   channel                caid_channel_get() of a channel "latest", and of a channel "fifo"
 *   channel, ahead         the same of the "fifo" with CAID_CHANNEL_AHEAD
 *   bare, 1 to 8           the streams of eight processes wait for the value of the bare memory
 *                          operation: until the last one's kernel is done, and, in brackets, each
 *                          one's own time; the least that is possible for eight
 *   channel, 1 to 8        the same eight get the frame of a "fifo"
 *   1 to 8, ahead          the same with CAID_CHANNEL_AHEAD
 *
 * They take turns, one hand-off each, so that a machine that changes its speed changes all. The
 * consumer's kernel checks what the producer's wrote.
 *      usage: bench_handoff SOCKET [ROUNDS [FILE]]
 * FILE gets the latencies of each way, to the last of its consumers: a line "NAME: NS NS ...".
 *
 * Producer and consumers are children of this process, which never loads a CUDA library.
 */
#include <err.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bench.h"
#include "floor.h"
#include "kernel.h"

#define ROUNDS    2000
#define WARM_UP   50
#define N_WORDS   (1u << 18)
#define SETTLE_NS (200 * NSEC_PER_USEC) /* for the consumer to be where it waits */
#define POLL_US   20
#define PAGE      4096

#define GOAL_TIMELINE 0.6
#define GOAL_AHEAD    1.2
#define GOAL_BRACKET  1.4
#define GOAL_CHANNEL  1.3 /* without MPS 1.05 */
#define GOAL_FRAME    1.1 /* ahead */
#define GOAL_MANY     1.1 /* of the bare memory operation for as many */

#define READERS 8

/* VARIANT(function, text) */
#define VARIANTS(VARIANT)                  \
    VARIANT(event, "event + socket")       \
    VARIANT(sync, "host sync + socket")    \
    VARIANT(bare, "bare memory operation") \
    VARIANT(timeline, "timeline")          \
    VARIANT(ahead, "timeline, ahead")      \
    VARIANT(bracket, "bracket")            \
    VARIANT(latest, "channel, latest")     \
    VARIANT(fifo, "channel, fifo")         \
    VARIANT(frame, "channel, ahead")       \
    VARIANT(all, "bare, 1 to 8")           \
    VARIANT(many, "channel, 1 to 8")       \
    VARIANT(crowd, "1 to 8, ahead")

enum variant {
#define VARIANT(name, text) VARIANT_##name,
    VARIANTS(VARIANT)
#undef VARIANT
    N_VARIANTS
};

/* What the processes share. A hand-off is a number, from 1. */
struct shared {
    _Alignas(
        PAGE) _Atomic uint64_t word; /* of the bare memory operation; on a page of its own */
    _Alignas(PAGE) _Atomic uint64_t made; /* what the producer makes is there, */
    _Atomic uint64_t open;                /* it has begun, */
    _Atomic uint64_t ready[READERS];      /* a consumer is about to wait, */
    _Atomic uint64_t over[READERS];       /* and has it all behind it */
    uint64_t done_ns[READERS];
    CUipcEventHandle event;
    size_t rounds;
    uint64_t ns[]; /* N_VARIANTS times rounds times READERS: each one's */
};

/* One of the processes. */
struct side {
    struct shared *shared;
    int reader; /* 0 to READERS - 1; -1: the producer */
    const char *socket;
    int sock; /* to the other one */
    struct drv *drv;
    struct kernel kernel;
    CUstream stream;
    CUevent event;
    CUdeviceptr word; /* shared->word, on the device */
    struct caid_client *client;
    struct caid_array *array;
    CUdeviceptr at;
    struct caid_timeline *timeline, *ahead;
    struct caid_bracket *bracket;
    struct caid_channel *latest, *fifo, *many;
    struct caid_channel *channel; /* of the frame that is open; NULL: none */
    struct caid_frame frame;
};

static int
n_readers(enum variant variant)
{
    return variant == VARIANT_all || variant == VARIANT_many || variant == VARIANT_crowd
               ? READERS
               : 1;
}

static uint64_t *
latencies(struct shared *shared, enum variant variant, size_t round)
{
    return &shared->ns[((size_t)variant * shared->rounds + round) * READERS];
}

/* NULL: the hand-off is by no channel. */
static struct caid_channel *
channel_of(const struct side *s, enum variant variant)
{
    switch (variant) {
    case VARIANT_latest: return s->latest;
    case VARIANT_fifo:
    case VARIANT_frame: return s->fifo;
    case VARIANT_many:
    case VARIANT_crowd: return s->many;
    default: return NULL;
    }
}

/* Where the elements of a hand-off are. */
static CUdeviceptr
place(const struct side *s)
{
    return s->channel
               ? caid_array_get_info(caid_channel_array(s->channel))->ptr + s->frame.offset
               : s->at;
}

static void
await(_Atomic uint64_t *what, uint64_t number)
{
    while (atomic_load(what) < number)
        usleep(POLL_US);
}

/* The consumers are about to wait. Looks without sleeping, which may take a millisecond where
 * timers are coarse: after a wait as long as that the client does not look before it sleeps
 * (session/spin.h). */
static void
let_settle(struct shared *shared, int n, uint64_t number)
{
    for (int i = 0; i < n; i++)
        while (atomic_load(&shared->ready[i]) < number)
            sched_yield();
    for (uint64_t until_ns = clock_now_ns() + SETTLE_NS; clock_now_ns() < until_ns;)
        sched_yield();
}

static void
send_byte(struct side *s)
{
    if (send(s->sock, "", 1, MSG_NOSIGNAL) != 1)
        err(1, "send");
}

static void
receive_byte(struct side *s)
{
    char byte;

    if (recv(s->sock, &byte, 1, 0) != 1)
        err(1, "recv");
}

static struct caid_bracket *
begin(struct side *s, bool writes)
{
    OPTIONS(caid_bracket_options, options, .reads = &s->array, .n_reads = !writes,
            .writes = &s->array, .n_writes = writes, .stream = STREAM(s->stream));
    struct caid_bracket *bracket;

    MUST(caid_bracket_begin(s->client, &bracket, &options, &error));
    return bracket;
}

static void
end(struct side *s)
{
    MUST(caid_bracket_end(s->bracket, &error));
    caid_bracket_free(TAKE_PTR(s->bracket));
}

/* ---- the producer: what comes after its kernel has been enqueued ---- */

static void
signal_event(struct side *s, uint64_t number UNUSED)
{
    MUST_CUDA(s->drv->cu.cuEventRecord(s->event, s->stream));
    send_byte(s);
}

static void
signal_sync(struct side *s, uint64_t number UNUSED)
{
    MUST_CUDA(s->drv->cu.cuStreamSynchronize(s->stream));
    send_byte(s);
}

static void
signal_bare(struct side *s, uint64_t number)
{
    MUST_CUDA(s->drv->cu.cuStreamWriteValue64(s->stream, s->word, number, 0));
}

static void
signal_timeline(struct side *s, uint64_t number)
{
    MUST(caid_timeline_signal(s->timeline, STREAM(s->stream), number, &error));
}

static void
signal_ahead(struct side *s, uint64_t number)
{
    MUST(caid_timeline_signal(s->ahead, STREAM(s->stream), number, &error));
}

static void
signal_bracket(struct side *s, uint64_t number UNUSED)
{
    end(s);
}

static void
signal_latest(struct side *s, uint64_t number UNUSED)
{
    MUST(caid_channel_commit(TAKE_PTR(s->channel), &s->frame, &error));
}

#define signal_fifo  signal_latest
#define signal_frame signal_latest
#define signal_all   signal_bare
#define signal_many  signal_latest
#define signal_crowd signal_latest

/* ret: how long it took to each of the consumers. */
static void
produce(struct side *s, enum variant variant, uint64_t number, uint64_t ret[READERS])
{
    static void (*const signals[])(struct side *, uint64_t) = {
#define VARIANT(name, text) signal_##name,
        VARIANTS(VARIANT)
#undef VARIANT
    };
    struct shared *shared = s->shared;

    if (variant == VARIANT_bracket)
        s->bracket = begin(s, true);
    s->channel = channel_of(s, variant);
    if (s->channel)
        MUST(
            caid_channel_begin(s->channel, STREAM(s->stream), CAID_FOREVER, &s->frame, &error));
    atomic_store(&shared->open, number);
    let_settle(shared, n_readers(variant), number);
    kernel_fill(&s->kernel, place(s), (uint32_t)number, s->stream);
    uint64_t enqueued_ns = clock_now_ns();
    signals[variant](s, number);
    for (int i = 0; i < n_readers(variant); i++) {
        await(&shared->over[i], number);
        ret[i] = shared->done_ns[i] - enqueued_ns;
    }
}

/* ---- the consumer: what comes before its kernel is enqueued ---- */

static void
wait_event(struct side *s, uint64_t number UNUSED)
{
    receive_byte(s);
    MUST_CUDA(s->drv->cu.cuStreamWaitEvent(s->stream, s->event, 0));
}

static void
wait_sync(struct side *s, uint64_t number UNUSED)
{
    receive_byte(s);
}

static void
wait_bare(struct side *s, uint64_t number)
{
    MUST_CUDA(
        s->drv->cu.cuStreamWaitValue64(s->stream, s->word, number, CU_STREAM_WAIT_VALUE_GEQ));
}

static void
wait_timeline(struct side *s, uint64_t number)
{
    MUST(caid_timeline_wait(s->timeline, STREAM(s->stream), number, CAID_FOREVER, 0, &error));
}

static void
wait_ahead(struct side *s, uint64_t number)
{
    MUST(caid_timeline_wait(s->ahead, STREAM(s->stream), number, CAID_FOREVER,
                            CAID_TIMELINE_AHEAD, &error));
}

static void
wait_bracket(struct side *s, uint64_t number UNUSED)
{
    s->bracket = begin(s, false);
}

static void
get(struct side *s, struct caid_channel *channel, uint32_t flags)
{
    s->channel = channel;
    MUST(caid_channel_get(channel, STREAM(s->stream), CAID_FOREVER, flags, &s->frame, &error));
}

static void
wait_latest(struct side *s, uint64_t number UNUSED)
{
    get(s, s->latest, 0);
}

static void
wait_fifo(struct side *s, uint64_t number UNUSED)
{
    get(s, s->fifo, 0);
}

static void
wait_frame(struct side *s, uint64_t number UNUSED)
{
    get(s, s->fifo, CAID_CHANNEL_AHEAD);
}

#define wait_all wait_bare

static void
wait_many(struct side *s, uint64_t number UNUSED)
{
    get(s, s->many, 0);
}

static void
wait_crowd(struct side *s, uint64_t number UNUSED)
{
    get(s, s->many, CAID_CHANNEL_AHEAD);
}

/* These have enqueued their kernel before the producer begins. */
static bool
is_ahead(enum variant variant)
{
    return variant == VARIANT_bare || variant == VARIANT_ahead || variant == VARIANT_frame ||
           variant == VARIANT_all || variant == VARIANT_crowd;
}

static void
consume(struct side *s, enum variant variant, uint64_t number)
{
    static void (*const waits[])(struct side *, uint64_t) = {
#define VARIANT(name, text) wait_##name,
        VARIANTS(VARIANT)
#undef VARIANT
    };
    struct shared *shared = s->shared;

    await(&shared->open, number);
    if (!is_ahead(variant))
        atomic_store(&shared->ready[s->reader], number);
    waits[variant](s, number);
    kernel_check(&s->kernel, place(s), (uint32_t)number, s->stream);
    if (is_ahead(variant))
        atomic_store(&shared->ready[s->reader], number);
    MUST_CUDA(s->drv->cu.cuStreamSynchronize(s->stream));
    shared->done_ns[s->reader] = clock_now_ns();
    if (s->bracket)
        end(s);
    if (s->channel)
        MUST(caid_channel_end(TAKE_PTR(s->channel), &s->frame, STREAM(s->stream), &error));
    if (kernel_n_wrong(&s->kernel, (uint32_t)number))
        errx(1, "hand-off %d read what the producer had not written", (int)number);
    atomic_store(&shared->over[s->reader], number);
}

/* ---- all of them ---- */

static void
open_driver(struct side *s)
{
    OPTIONS(caid_status, status);

    s->client = program_connect(s->socket);
    MUST(caid_client_status(s->client, &status, &error));
    s->drv = program_driver(status.driver);
    MUST_CUDA(s->drv->cu.cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING));
    kernel_open(&s->kernel, s->drv, N_WORDS);
    MUST_CUDA(s->drv->cu.cuMemHostRegister(&s->shared->word, PAGE,
                                           CU_MEMHOSTREGISTER_PORTABLE |
                                               CU_MEMHOSTREGISTER_DEVICEMAP));
    MUST_CUDA(s->drv->cu.cuMemHostGetDevicePointer(&s->word, &s->shared->word, 0));
}

static struct caid_channel *
produce_channel(struct side *s, const char *name, const char *mode)
{
    const int64_t shape = N_WORDS;
    OPTIONS(caid_channel_options, options, .mode = mode, .typestr = "<u4", .shape = &shape,
            .ndim = 1);
    struct caid_channel *channel;

    MUST(caid_channel_create(s->client, &channel, name, &options, &error));
    return channel;
}

static struct caid_channel *
open_channel(struct side *s, const char *name)
{
    struct caid_channel *channel;

    MUST(caid_channel_open(s->client, &channel, name, NULL, &error));
    return channel;
}

static void
open_producer(struct side *s)
{
    const int64_t shape = N_WORDS;
    OPTIONS(caid_create_options, options, .name = "bench", .typestr = "<u4", .shape = &shape,
            .ndim = 1);

    open_driver(s);
    MUST(caid_array_create(s->client, &s->array, &options, &error));
    MUST(caid_timeline_create(s->client, &s->timeline, "bench", NULL, &error));
    MUST(caid_timeline_create(s->client, &s->ahead, "bench, ahead", NULL, &error));
    MUST_CUDA(
        s->drv->cu.cuEventCreate(&s->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    MUST_CUDA(s->drv->cu.cuIpcGetEventHandle(&s->shared->event, s->event));
    s->at = caid_array_get_info(s->array)->ptr;
    s->latest = produce_channel(s, "latest", "latest");
    s->fifo = produce_channel(s, "fifo", "fifo");
    s->many = produce_channel(s, "many", "fifo");
    atomic_store(&s->shared->made, 1);
}

static void
open_consumer(struct side *s)
{
    open_driver(s);
    await(&s->shared->made, 1);
    MUST(caid_array_open(s->client, &s->array, "bench", NULL, &error));
    s->at = caid_array_get_info(s->array)->ptr;
    s->many = open_channel(s, "many");
    if (s->reader > 0)
        return;
    s->latest = open_channel(s, "latest");
    s->fifo = open_channel(s, "fifo");
    MUST(caid_timeline_open(s->client, &s->timeline, "bench", NULL, &error));
    MUST(caid_timeline_open(s->client, &s->ahead, "bench, ahead", NULL, &error));
    MUST_CUDA(s->drv->cu.cuIpcOpenEventHandle(&s->event, s->shared->event));
}

static void
run(struct side *s)
{
    size_t rounds = s->shared->rounds;
    uint64_t number = 0;

    for (size_t round = 0; round < WARM_UP + rounds; round++)
        for (int variant = 0; variant < N_VARIANTS; variant++) {
            number++;
            if (s->reader >= 0 && s->reader < n_readers((enum variant)variant))
                consume(s, (enum variant)variant, number);
            if (s->reader < 0)
                produce(s, (enum variant)variant, number,
                        latencies(s->shared, (enum variant)variant,
                                  round < WARM_UP ? 0 : round - WARM_UP));
        }
}

static void
close_side(struct side *s)
{
    if (s->event)
        MUST_CUDA(s->drv->cu.cuEventDestroy(s->event));
    caid_timeline_close(s->timeline);
    caid_timeline_close(s->ahead);
    caid_channel_close(s->latest);
    caid_channel_close(s->fifo);
    caid_channel_close(s->many);
    if (s->reader < 0)
        MUST(caid_unlink(s->client, "bench", NULL, &error));
    caid_array_close(s->array);
    caid_client_close(s->client);
}

static pid_t
start(struct side *s, int sock, int reader)
{
    pid_t pid = program_fork();

    if (pid > 0)
        return pid;
    s->sock = sock;
    s->reader = reader;
    if (reader < 0)
        open_producer(s);
    else
        open_consumer(s);
    run(s);
    close_side(s);
    exit(0);
}

/* ---- figures ---- */

/* Of all consumers; *ret_last: of the last one of each round. Sorts them. */
static double
print_variant(struct shared *shared, enum variant variant, const char *text, uint64_t *ret_last)
{
    size_t n = (size_t)n_readers(variant), rounds = shared->rounds;
    uint64_t *all = latencies(shared, variant, 0);

    for (size_t round = 0; round < rounds; round++) {
        const uint64_t *ns = latencies(shared, variant, round);
        ret_last[round] = 0;
        for (size_t i = 0; i < n; i++) {
            all[round * n + i] = ns[i];
            if (ns[i] > ret_last[round])
                ret_last[round] = ns[i];
        }
    }
    double median_us = (double)median_ns(ret_last, rounds) / 1e3;
    printf("%-22s median %7.1f us, 99 %% within %7.1f us", text, median_us,
           (double)p99_ns(ret_last, rounds) / 1e3);
    if (n > 1) {
        double each_us = (double)median_ns(all, n * rounds) / 1e3;
        printf(" (each: %.1f us, %.1f us)", each_us, (double)p99_ns(all, n * rounds) / 1e3);
    }
    printf("\n");
    return median_us;
}

static void
write_latencies(FILE *file, const char *name, const uint64_t *ns, size_t n)
{
    fprintf(file, "%s:", name);
    for (size_t i = 0; i < n; i++)
        fprintf(file, " %" PRIu64, ns[i]);
    fprintf(file, "\n");
}

/* file NULL: none. */
static void
print(struct shared *shared, FILE *file)
{
    uint64_t *last = calloc(shared->rounds, sizeof(*last));
    double us[N_VARIANTS];

    if (!last)
        err(1, "calloc");

#define VARIANT(name, text)                                                 \
    us[VARIANT_##name] = print_variant(shared, VARIANT_##name, text, last); \
    if (file)                                                               \
        write_latencies(file, text, last, shared->rounds);
    VARIANTS(VARIANT)
#undef VARIANT
    free(last);
    printf("timeline / event + socket: %.2f (goal under MPS: %.1f)\n",
           us[VARIANT_timeline] / us[VARIANT_event], GOAL_TIMELINE);
    printf("timeline, ahead / bare memory operation: %.2f (goal under MPS: %.1f)\n",
           us[VARIANT_ahead] / us[VARIANT_bare], GOAL_AHEAD);
    printf("bracket / event + socket: %.2f (goal under MPS: %.1f)\n",
           us[VARIANT_bracket] / us[VARIANT_event], GOAL_BRACKET);
    printf(
        "channel / bare memory operation: latest %.2f, fifo %.2f (goal under MPS: %.1f), ahead "
        "%.2f (%.1f)\n",
        us[VARIANT_latest] / us[VARIANT_bare], us[VARIANT_fifo] / us[VARIANT_bare],
        GOAL_CHANNEL, us[VARIANT_frame] / us[VARIANT_bare], GOAL_FRAME);
    printf(
        "1 to 8, channel / bare memory operation: %.2f, ahead %.2f (goal under MPS: %.1f); of "
        "one reader's: %.2f, %.2f, the bare one %.2f\n",
        us[VARIANT_many] / us[VARIANT_all], us[VARIANT_crowd] / us[VARIANT_all], GOAL_MANY,
        us[VARIANT_many] / us[VARIANT_bare], us[VARIANT_crowd] / us[VARIANT_bare],
        us[VARIANT_all] / us[VARIANT_bare]);
}

int
main(int argc, char **argv)
{
    size_t rounds = argc > 2 ? (size_t)atol(argv[2]) : ROUNDS;
    struct side s = {0};
    int socks[2], status;

    if (argc < 2 || rounds == 0)
        errx(1, "usage: bench_handoff SOCKET [ROUNDS [FILE]]");
    s.socket = argv[1];
    s.shared =
        program_share(sizeof(*s.shared) + N_VARIANTS * rounds * READERS * sizeof(uint64_t));
    s.shared->rounds = rounds;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks) < 0)
        err(1, "socketpair");
    pid_t pids[1 + READERS];
    for (int i = 0; i < 1 + READERS; i++)
        pids[i] = start(&s, socks[i > 0], i - 1);
    for (size_t left = ARRAY_SIZE(pids); left > 0; left--) {
        pid_t pid = wait(&status);
        if (!status)
            continue;
        for (size_t i = 0; i < ARRAY_SIZE(pids); i++) /* they would wait for ever */
            if (pids[i] != pid)
                kill(pids[i], SIGKILL);
        errx(1, "the %s failed: status %#x", pid == pids[0] ? "producer" : "consumer", status);
    }
    FILE *file = argc > 3 ? fopen(argv[3], "w") : NULL;
    if (argc > 3 && !file)
        err(1, "%s", argv[3]);
    print(s.shared, file);
    if (file && fclose(file) != 0)
        err(1, "%s", argv[3]);
    return 0;
}
