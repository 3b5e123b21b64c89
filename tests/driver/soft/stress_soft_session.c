/* SPDX-License-Identifier: Apache-2.0 */
#include "stress_soft_session.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "random.h"
#include "stress_soft_kinds.h"

/* The shared memory: a question of the maker, and behind it the taker's answer, which is the same
 * words. Each is made of chunks, filled and copied one by one. */
#define CHUNK    4096
#define N_CHUNKS 8
#define PART     ((size_t)N_CHUNKS * CHUNK)

#define MEMORY_SIZE GRAN

#define STUCK_MS 500 /* for a stream that should be stuck, and is then taken to be */

/* One end of a hand-off, on the stack of its lane's thread. */
struct session {
    struct lane *lane;
    const struct order *order;
    int link;
    bool alone; /* the other end hung up */
    bool stuck; /* and the stream waits for it */
    uint64_t random;
    struct memory shared;
    struct memory results; /* one PART for each round: what was read */
    struct fence own, other;
};

/* On the link. */

static bool
tell(struct session *session, enum what what, unsigned int round, struct offer *offer)
{
    struct packet packet = {.what = what, .round = round};
    if (offer)
        memcpy(packet.handle, offer->handle, sizeof(packet.handle));
    if (!wire_send(session->link, &packet, sizeof(packet), offer ? offer->fd : -1))
        session->alone = true;
    if (offer)
        offer->fd = fd_close(offer->fd);
    return !session->alone;
}

/* ret_offer, which may be NULL, is the caller's to close. */
static bool
hear(struct session *session, enum what what, unsigned int round, struct offer *ret_offer)
{
    struct packet packet;
    int fd;
    if (!wire_receive(session->link, &packet, sizeof(packet), &fd)) {
        session->alone = true;
        return false;
    }
    if (packet.what != what || packet.round != round)
        wire_die("another packet was expected");
    if (ret_offer) {
        memcpy(ret_offer->handle, packet.handle, sizeof(packet.handle));
        ret_offer->fd = TAKE_FD(fd);
    }
    fd_close(fd);
    return true;
}

/* Opening may fail for a dead maker's handles, and nothing else's. */
static bool
was_opened(struct session *session, CUresult result, bool dies, const char *name)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (!dies || !wire_await_hang_up(session->link))
        soft_must(result, name, __LINE__);
    session->alone = true;
    return false;
}

/* Meeting: each end has the memory and both fences, or is alone. */

static void
memory_make(struct memory *memory, const struct memory_kind *kind, CUstream stream,
            struct offer *ret)
{
    *memory = (struct memory){.kind = kind, .size = MEMORY_SIZE, .stream = stream};
    *ret = (struct offer){.fd = -1};
    kind->make(memory, ret);
}

static bool
memory_open(struct session *session, const struct memory_kind *kind)
{
    struct memory memory = {.kind = kind, .size = MEMORY_SIZE, .stream = session->lane->stream};
    struct offer offer;
    if (!hear(session, WHAT_MEMORY, 0, &offer))
        return false;
    CUresult result = kind->open(&memory, &offer);
    fd_close(offer.fd);
    if (!was_opened(session, result, kind->dies, kind->name))
        return false;
    session->shared = memory;
    return true;
}

static void
memory_drop(struct memory *memory, bool made)
{
    if (memory->kind)
        memory->kind->drop(memory, made);
    memory->kind = NULL;
}

static bool
meet_memory(struct session *session)
{
    const struct memory_kind *kind = memory_kinds[session->order->memory];
    struct offer offer;
    if (session->order->role == ROLE_TAKER)
        return memory_open(session, kind);
    memory_make(&session->shared, kind, session->lane->stream, &offer);
    return tell(session, WHAT_MEMORY, 0, &offer);
}

/* Of the device, since copies from host to host wait for the stream. */
static void
make_results(struct session *session)
{
    struct offer unwanted;
    unsigned int kind = random_below(&session->random, n_own_kinds);
    memory_make(&session->results, own_kinds[kind], session->lane->stream, &unwanted);
    fd_close(unwanted.fd);
}

static bool
fence_make(struct session *session, const struct fence_kind *kind)
{
    struct offer offer = {.fd = -1};
    session->own.kind = kind;
    if (kind->make)
        kind->make(&session->own, &offer);
    return tell(session, WHAT_FENCE, 0, &offer);
}

static bool
fence_open(struct session *session, const struct fence_kind *kind)
{
    struct fence fence = {.kind = kind};
    struct offer offer;
    if (!hear(session, WHAT_FENCE, 0, &offer))
        return false;
    CUresult result = kind->open ? kind->open(&fence, &offer) : CUDA_SUCCESS;
    fd_close(offer.fd);
    if (!was_opened(session, result, kind->dies, kind->name))
        return false;
    session->other = fence;
    return true;
}

static void
fence_drop(struct fence *fence, bool made)
{
    if (fence->kind && fence->kind->drop)
        fence->kind->drop(fence, made);
    fence->kind = NULL;
}

static bool
meet(struct session *session)
{
    const struct order *order = session->order;
    bool maker = order->role == ROLE_MAKER;
    const struct fence_kind *makers = &fence_kinds[order->maker_fence];
    const struct fence_kind *takers = &fence_kinds[order->taker_fence];
    return meet_memory(session) && fence_make(session, maker ? makers : takers) &&
           fence_open(session, maker ? takers : makers);
}

/* Work on the lane's stream. */

static void
tell_finished(void *data)
{
    const struct lane *lane = data;
    if (eventfd_write(lane->finished, 1) < 0)
        wire_die("eventfd");
}

/* The other end has died: what it signalled, it signalled. Returns how many milliseconds the stream
 * may take from now on, -1 for any time. */
static int
release(struct session *session)
{
    struct fence *other = &session->other;
    session->alone = true;
    if (!other->kind || other->kind->host)
        return -1;
    if (!other->kind->release)
        return other->kind->is_stuck(other) ? STUCK_MS : -1;
    other->kind->release(other);
    return -1;
}

/* Waits until all that was enqueued has run, or the stream is stuck. Where it waits for the other
 * end, and that one dies, nobody else can let it go. */
static void
finish(struct session *session)
{
    struct lane *lane = session->lane;
    struct pollfd fds[] = {{lane->finished, POLLIN, 0}, {session->link, 0, 0}};
    eventfd_t count;
    if (session->stuck)
        return;
    int limit_ms = session->alone ? release(session) : -1;
    MUST(cuLaunchHostFunc(lane->stream, tell_finished, lane));
    while (!(fds[0].revents & POLLIN)) {
        int n = poll(fds, session->alone ? 1 : 2, limit_ms);
        if (n < 0)
            wire_die("poll");
        session->stuck = n == 0;
        if (session->stuck)
            return;
        if (!session->alone && fds[1].revents & POLLHUP)
            limit_ms = release(session);
    }
    if (eventfd_read(lane->finished, &count) < 0)
        wire_die("eventfd");
}

/* A stream that runs behind what was enqueued so far. */
static CUstream
branch(struct session *session)
{
    struct lane *lane = session->lane;
    CUstream stream;
    MUST(cuStreamCreate(&stream, random_below(&session->random, 2)));
    MUST(cuEventRecord(lane->event, lane->stream));
    MUST(cuStreamWaitEvent(stream, lane->event, 0));
    return stream;
}

/* The lane's stream goes on behind it. */
static void
join(struct session *session, CUstream stream)
{
    struct lane *lane = session->lane;
    MUST(cuEventRecord(lane->event, stream));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuStreamWaitEvent(lane->stream, lane->event, 0));
}

static void
copy(struct session *session, CUdeviceptr to, CUdeviceptr from, size_t size)
{
    bool aside = random_below(&session->random, 4) == 0;
    CUstream stream = aside ? branch(session) : session->lane->stream;
    MUST(cuMemcpyAsync(to, from, size, stream));
    if (aside)
        join(session, stream);
}

/* Two chunks that follow each other have the same words. */
static uint32_t
word_of(const struct session *session, unsigned int round, unsigned int chunk)
{
    uint64_t state = session->order->seed + round * N_CHUNKS + chunk / 2;
    return (uint32_t)random_next(&state);
}

static CUdeviceptr
result_of(const struct session *session, unsigned int round)
{
    return session->results.at + round * PART;
}

/* Made behind the results, and copied from there. */
static void
ask(struct session *session, unsigned int round)
{
    CUdeviceptr from = result_of(session, session->order->n_rounds), to = session->shared.at;
    for (unsigned int i = 0; i < N_CHUNKS; i += 2) {
        MUST(cuMemsetD32Async(from + i * CHUNK, word_of(session, round, i), CHUNK / 4,
                              session->lane->stream));
        copy(session, to + i * CHUNK, from + i * CHUNK, CHUNK);
        copy(session, to + (i + 1) * CHUNK, from + i * CHUNK, CHUNK);
    }
}

/* Turns. */

static bool
give_turn(struct session *session, unsigned int round)
{
    const struct fence_kind *kind = session->own.kind;
    if (kind->host)
        finish(session);
    else
        kind->signal(&session->own, round + 1, session->lane->stream);
    return !session->alone && tell(session, WHAT_TURN, round, NULL);
}

static bool
await_turn(struct session *session, unsigned int round)
{
    const struct fence_kind *kind = session->other.kind;
    if (!hear(session, WHAT_TURN, round, NULL))
        return false;
    if (!kind->host)
        kind->wait(&session->other, round + 1, session->lane->stream);
    return true;
}

static void
maker_rounds(struct session *session)
{
    for (unsigned int round = 0; round < session->order->n_rounds; round++) {
        ask(session, round);
        if (!give_turn(session, round) || !await_turn(session, round))
            return;
        copy(session, result_of(session, round), session->shared.at + PART, PART);
    }
}

static void
taker_rounds(struct session *session)
{
    for (unsigned int round = 0; round < session->order->n_rounds; round++) {
        if (!await_turn(session, round))
            return;
        copy(session, result_of(session, round), session->shared.at, PART);
        copy(session, session->shared.at + PART, result_of(session, round), PART);
        if (!give_turn(session, round))
            return;
    }
}

/* Every word of every round; the stream has nothing left that waits for another process. */
static void
check_results(struct session *session)
{
    size_t size = session->order->n_rounds * PART;
    _cleanup_free_ uint32_t *words = malloc(size);
    if (!words)
        wire_die("malloc");
    MUST(cuMemcpyAsync((uintptr_t)words, session->results.at, size, session->lane->stream));
    MUST(cuStreamSynchronize(session->lane->stream));
    for (size_t i = 0; i < size / 4; i++) {
        unsigned int round = (unsigned int)(i / (PART / 4));
        unsigned int chunk = (unsigned int)(i % (PART / 4) / (CHUNK / 4));
        if (words[i] == word_of(session, round, chunk))
            continue;
        fprintf(stderr, "%s, round %u, word %zu: %08x, not %08x (%s, %s, %s)\n",
                session->order->role == ROLE_MAKER ? "maker" : "taker", round, i, words[i],
                word_of(session, round, chunk), session->shared.kind->name,
                session->own.kind->name, session->other.kind->name);
        abort();
    }
}

static void
session_drop(struct session *session)
{
    memory_drop(&session->shared, session->order->role == ROLE_MAKER);
    memory_drop(&session->results, true);
    fence_drop(&session->own, true);
    fence_drop(&session->other, false);
}

/* Neither end gives back what the other one's stream may still look at, and who opened memory does
 * it before who made it. */
static bool
part(struct session *session)
{
    bool maker = session->order->role == ROLE_MAKER;
    if (session->alone || !tell(session, WHAT_BYE, 0, NULL) ||
        !hear(session, WHAT_BYE, 0, NULL))
        return false;
    check_results(session);
    if (maker && !hear(session, WHAT_CLOSED, 0, NULL))
        return false;
    session_drop(session);
    return maker || tell(session, WHAT_CLOSED, 0, NULL);
}

enum outcome
session_run(struct lane *lane, const struct order *order, int link)
{
    struct session session = {.lane = lane, .order = order, .link = link};
    session.random = order->seed + order->role;
    make_results(&session);
    if (meet(&session)) {
        if (order->role == ROLE_MAKER)
            maker_rounds(&session);
        else
            taker_rounds(&session);
    }
    finish(&session);
    if (session.stuck)
        return OUTCOME_STUCK;
    if (part(&session))
        return OUTCOME_DONE;
    session_drop(&session);
    return OUTCOME_ALONE;
}
