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
 *
 * They take turns, one hand-off each, so that a machine that changes its speed changes all. The
 * consumer's kernel checks what the producer's wrote.
 *      usage: bench_handoff SOCKET [ROUNDS]
 *
 * Producer and consumer are children of this process, which never loads a CUDA library.
 */
#include <err.h>
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
#define SETTLE_US 200 /* for the consumer to be where it waits */
#define POLL_US   20
#define PAGE      4096

#define GOAL_TIMELINE 0.6
#define GOAL_AHEAD    1.2
#define GOAL_BRACKET  1.4

/* VARIANT(function, text) */
#define VARIANTS(VARIANT)                  \
    VARIANT(event, "event + socket")       \
    VARIANT(sync, "host sync + socket")    \
    VARIANT(bare, "bare memory operation") \
    VARIANT(timeline, "timeline")          \
    VARIANT(ahead, "timeline, ahead")      \
    VARIANT(bracket, "bracket")

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
    _Alignas(PAGE) _Atomic uint64_t open; /* the producer has begun, */
    _Atomic uint64_t ready;               /* the consumer is about to wait, */
    _Atomic uint64_t over;                /* and has it all behind it */
    CUipcEventHandle event;
    uint64_t enqueued_ns; /* by the producer; the consumer reads it after the hand-off */
    size_t rounds;
    uint64_t ns[]; /* N_VARIANTS times rounds */
};

/* One of the two processes. */
struct side {
    struct shared *shared;
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
};

static void
await(_Atomic uint64_t *what, uint64_t number)
{
    while (atomic_load(what) < number)
        usleep(POLL_US);
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
produce(struct side *s, enum variant variant, uint64_t number)
{
    static void (*const signals[])(struct side *, uint64_t) = {
#define VARIANT(name, text) signal_##name,
        VARIANTS(VARIANT)
#undef VARIANT
    };
    struct shared *shared = s->shared;

    if (variant == VARIANT_bracket)
        s->bracket = begin(s, true);
    atomic_store(&shared->open, number);
    await(&shared->ready, number);
    usleep(SETTLE_US);
    kernel_fill(&s->kernel, s->at, (uint32_t)number, s->stream);
    shared->enqueued_ns = clock_now_ns();
    signals[variant](s, number);
    await(&shared->over, number);
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

/* These have enqueued their kernel before the producer begins. */
static bool
is_ahead(enum variant variant)
{
    return variant == VARIANT_bare || variant == VARIANT_ahead;
}

static uint64_t
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
        atomic_store(&shared->ready, number);
    waits[variant](s, number);
    kernel_check(&s->kernel, s->at, (uint32_t)number, s->stream);
    if (is_ahead(variant))
        atomic_store(&shared->ready, number);
    MUST_CUDA(s->drv->cu.cuStreamSynchronize(s->stream));
    uint64_t done_ns = clock_now_ns();
    if (s->bracket)
        end(s);
    uint64_t ns = done_ns - shared->enqueued_ns;
    if (kernel_n_wrong(&s->kernel, (uint32_t)number))
        errx(1, "hand-off %d read what the producer had not written", (int)number);
    atomic_store(&shared->over, number);
    return ns;
}

/* ---- the two ---- */

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
    send_byte(s);
}

static void
open_consumer(struct side *s)
{
    open_driver(s);
    receive_byte(s);
    MUST(caid_array_open(s->client, &s->array, "bench", NULL, &error));
    MUST(caid_timeline_open(s->client, &s->timeline, "bench", NULL, &error));
    MUST(caid_timeline_open(s->client, &s->ahead, "bench, ahead", NULL, &error));
    MUST_CUDA(s->drv->cu.cuIpcOpenEventHandle(&s->event, s->shared->event));
    s->at = caid_array_get_info(s->array)->ptr;
}

static void
run(struct side *s, bool producer)
{
    size_t rounds = s->shared->rounds;
    uint64_t number = 0;

    for (size_t round = 0; round < WARM_UP + rounds; round++)
        for (int variant = 0; variant < N_VARIANTS; variant++) {
            number++;
            if (producer)
                produce(s, (enum variant)variant, number);
            else if (round < WARM_UP)
                consume(s, (enum variant)variant, number);
            else
                s->shared->ns[(size_t)variant * rounds + round - WARM_UP] =
                    consume(s, (enum variant)variant, number);
        }
}

static void
close_side(struct side *s, bool producer)
{
    MUST_CUDA(s->drv->cu.cuEventDestroy(s->event));
    caid_timeline_close(s->timeline);
    caid_timeline_close(s->ahead);
    if (producer)
        MUST(caid_unlink(s->client, "bench", NULL, &error));
    caid_array_close(s->array);
    caid_client_close(s->client);
}

static pid_t
start(struct side *s, int sock, bool producer)
{
    pid_t pid = program_fork();

    if (pid > 0)
        return pid;
    s->sock = sock;
    if (producer)
        open_producer(s);
    else
        open_consumer(s);
    run(s, producer);
    close_side(s, producer);
    exit(0);
}

/* ---- figures ---- */

static double
print_variant(struct shared *shared, enum variant variant, const char *text)
{
    uint64_t *ns = &shared->ns[(size_t)variant * shared->rounds];
    double median_us = (double)median_ns(ns, shared->rounds) / 1e3;

    printf("%-22s median %7.1f us, 99 %% within %7.1f us\n", text, median_us,
           (double)p99_ns(ns, shared->rounds) / 1e3);
    return median_us;
}

static void
print(struct shared *shared)
{
    double us[N_VARIANTS];

#define VARIANT(name, text) us[VARIANT_##name] = print_variant(shared, VARIANT_##name, text);
    VARIANTS(VARIANT)
#undef VARIANT
    printf("timeline / event + socket: %.2f (goal under MPS: %.1f)\n",
           us[VARIANT_timeline] / us[VARIANT_event], GOAL_TIMELINE);
    printf("timeline, ahead / bare memory operation: %.2f (goal under MPS: %.1f)\n",
           us[VARIANT_ahead] / us[VARIANT_bare], GOAL_AHEAD);
    printf("bracket / event + socket: %.2f (goal under MPS: %.1f)\n",
           us[VARIANT_bracket] / us[VARIANT_event], GOAL_BRACKET);
}

int
main(int argc, char **argv)
{
    size_t rounds = argc > 2 ? (size_t)atol(argv[2]) : ROUNDS;
    struct side s = {0};
    int socks[2], status;

    if (argc < 2 || rounds == 0)
        errx(1, "usage: bench_handoff SOCKET [ROUNDS]");
    s.socket = argv[1];
    s.shared = program_share(sizeof(*s.shared) + N_VARIANTS * rounds * sizeof(uint64_t));
    s.shared->rounds = rounds;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks) < 0)
        err(1, "socketpair");
    pid_t pids[] = {start(&s, socks[0], true), start(&s, socks[1], false)};
    for (size_t left = ARRAY_SIZE(pids); left > 0; left--) {
        pid_t pid = wait(&status);
        if (status) {
            kill(pids[pid == pids[0]], SIGKILL); /* it would wait for ever */
            errx(1, "the %s failed: status %#x", pid == pids[0] ? "producer" : "consumer",
                 status);
        }
    }
    print(s.shared);
    return 0;
}
