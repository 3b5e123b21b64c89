/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads files into the memory of devices, or of the host.
 *
 * Reading from the page cache costs the CPU a copy, so several threads read. They read small
 * pieces, which stay in the CPU's caches, into slots of many pieces: each copy to a device costs
 * some microseconds of the link beside its bytes. The thread that reads a slot's last piece has it
 * copied; by then others fill the next slots. A slot is used again when its copies are done.
 *
 * The slots are page-locked one after another while the first ones are filled. All of it lives as
 * long as a call of cuda_read().
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/local.h"
#include "cuda/piece.h"
#include "session/client.h"

#define SLOTS     4
#define PIECES    32 /* of a slot */
#define HUGE_PAGE ((size_t)2 << 20)
#define THREADS   64

struct lane { /* to one target */
    const struct cuda_target *target;
    CUcontext context;
    CUevent copied[SLOTS]; /* of each slot */
};

struct slot {
    uint64_t round; /* it has the pieces from round * PIECES on; the next ones n_slots later */
    size_t n_left;  /* of these, not read yet */
    bool is_ready;  /* page-locked, or no device needs it so */
    bool is_locked; /* is to be unlocked */
    bool is_issued; /* its copies are enqueued */
    struct piece pieces[PIECES];
};

struct reading {
    const struct cuda_reading *given;
    const struct drv *drv; /* NULL: no target is a device's */
    struct pieces pieces;
    struct lane lanes[CUDA_TARGETS_MAX];
    uint8_t *memory; /* of the slots; inside of the mapping */
    void *mapping;
    size_t slot_size, n_slots;
    _Atomic uint64_t next; /* piece */

    pthread_mutex_t lock; /* of the slots and the failure */
    pthread_cond_t changed;
    struct slot slots[SLOTS];

    struct { /* the first one */
        int e;
        int64_t file;
        CUresult result;
        const char *call;
    } failure;
};

/* ---- failures ---- */

static bool
is_stopped(const struct reading *r)
{
    return *r->given->stop;
}

/* Has all threads stop. */
static void
stop(struct reading *r)
{
    pthread_mutex_lock(&r->lock);
    *r->given->stop = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static bool
has_failed(const struct reading *r)
{
    return r->failure.e < 0 || r->failure.result != CUDA_SUCCESS;
}

static void
fail_read(struct reading *r, int e, uint64_t file)
{
    pthread_mutex_lock(&r->lock);
    if (!has_failed(r)) {
        r->failure.e = e;
        r->failure.file = (int64_t)file;
    }
    pthread_mutex_unlock(&r->lock);
    stop(r);
}

/* Returns whether the call succeeded. */
static bool
check(struct reading *r, const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return true;
    pthread_mutex_lock(&r->lock);
    if (!has_failed(r)) {
        r->failure.result = result;
        r->failure.call = call;
    }
    pthread_mutex_unlock(&r->lock);
    stop(r);
    return false;
}

#define CALL(r, name, ...) check(r, #name, (r)->drv->cu.name(__VA_ARGS__))

/* ---- targets ---- */

static bool
is_host(const struct lane *lane)
{
    return lane->target->device == CUDA_TARGET_HOST;
}

static bool
enter(struct reading *r, const struct lane *lane)
{
    return CALL(r, cuCtxPushCurrent, lane->context);
}

static uint8_t *
host_address(const struct lane *lane, const struct piece *piece)
{
    return (uint8_t *)(uintptr_t)lane->target->ptr + piece->stretch->at + piece->before;
}

/* How many of a slot's pieces, from the i-th on, are one range in the slot and in a target; gives
 * its bytes. */
static size_t
find_run(const struct slot *slot, size_t i, size_t n, size_t *ret_nbytes)
{
    const struct piece *piece = &slot->pieces[i];
    size_t end = i + 1;

    *ret_nbytes = piece->n;
    while (end < n && slot->pieces[end].stretch == piece->stretch)
        *ret_nbytes += slot->pieces[end++].n;
    return end - i;
}

static size_t
n_pieces(const struct reading *r, uint64_t round)
{
    const uint64_t first = round * PIECES;

    if (first >= r->pieces.n)
        return 0;
    return r->pieces.n - first < PIECES ? r->pieces.n - first : PIECES;
}

static uint8_t *
memory_of(const struct reading *r, const struct slot *slot)
{
    return r->memory + (size_t)(slot - r->slots) * r->slot_size;
}

static bool
enqueue(struct reading *r, const struct lane *lane, const struct slot *slot)
{
    const CUstream stream = (CUstream)(uintptr_t)lane->target->stream;
    const size_t n = n_pieces(r, slot->round);
    size_t nbytes, n_run;

    for (size_t i = 0; i < n; i += n_run) {
        const struct piece *piece = &slot->pieces[i];
        n_run = find_run(slot, i, n, &nbytes);
        if (!CALL(r, cuMemcpyHtoDAsync, lane->target->ptr + piece->stretch->at + piece->before,
                  memory_of(r, slot) + i * PIECE + piece->skew, nbytes, stream))
            return false;
    }
    return CALL(r, cuEventRecord, lane->copied[slot - r->slots], stream);
}

/* ---- slots ---- */

static void
issue(struct reading *r, struct slot *slot)
{
    for (size_t i = 0; i < r->given->n_targets; i++) {
        const struct lane *lane = &r->lanes[i];
        if (is_host(lane))
            continue;
        if (!enter(r, lane))
            return;
        bool ok = enqueue(r, lane, slot);
        gpu_pop(r->drv);
        if (!ok)
            return;
    }
    pthread_mutex_lock(&r->lock);
    slot->is_issued = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* Waits for the copies of a slot that are enqueued. */
static bool
wait_copied(struct reading *r, const struct slot *slot)
{
    for (size_t i = 0; i < r->given->n_targets; i++) {
        const struct lane *lane = &r->lanes[i];
        if (is_host(lane))
            continue;
        if (!enter(r, lane))
            return false;
        bool ok = CALL(r, cuEventSynchronize, lane->copied[slot - r->slots]);
        gpu_pop(r->drv);
        if (!ok)
            return false;
    }
    return true;
}

/* Waits until a slot takes the pieces of that round. One of the threads that wait waits for the
 * copies. False: all are to stop. */
static bool
slot_enter(struct reading *r, struct slot *slot, uint64_t round)
{
    bool ok = true;

    pthread_mutex_lock(&r->lock);
    while (ok && !is_stopped(r) && slot->round != round) {
        if (!slot->is_issued) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        slot->is_issued = false;
        pthread_mutex_unlock(&r->lock);
        ok = wait_copied(r, slot);
        pthread_mutex_lock(&r->lock);
        slot->round += r->n_slots;
        slot->n_left = n_pieces(r, slot->round);
        pthread_cond_broadcast(&r->changed);
    }
    ok = ok && !is_stopped(r);
    pthread_mutex_unlock(&r->lock);
    return ok;
}

/* One piece less is to be read, or the slot is ready: whoever comes last has it copied. */
static void
slot_advance(struct reading *r, struct slot *slot, size_t n_read)
{
    pthread_mutex_lock(&r->lock);
    slot->n_left -= n_read;
    slot->is_ready = slot->is_ready || n_read == 0;
    bool is_full = slot->n_left == 0 && slot->is_ready;
    pthread_mutex_unlock(&r->lock);
    if (is_full)
        issue(r, slot);
}

/* ---- threads ---- */

static bool
read_piece(struct reading *r, struct slot *slot, size_t i)
{
    const struct piece *piece = &slot->pieces[i];
    const bool is_straight = r->given->n_targets == 1 && is_host(&r->lanes[0]);
    const uint8_t *from;

    int e = pieces_read(&r->pieces, piece, memory_of(r, slot) + i * PIECE,
                        is_straight ? host_address(&r->lanes[0], piece) : NULL, &from);
    if (e < 0) {
        fail_read(r, e, piece->stretch->file);
        return false;
    }
    for (size_t k = 0; k < r->given->n_targets; k++)
        if (is_host(&r->lanes[k]) && from != host_address(&r->lanes[k], piece))
            memcpy(host_address(&r->lanes[k], piece), from, piece->n);
    *r->given->done += piece->n;
    return true;
}

static void *
read_pieces(void *arg)
{
    struct reading *r = arg;
    uint64_t number;

    while (!is_stopped(r) && (number = r->next++) < r->pieces.n) {
        const uint64_t round = number / PIECES;
        struct slot *slot = &r->slots[round % r->n_slots];
        if (!slot_enter(r, slot, round))
            break;
        pieces_get(&r->pieces, number, &slot->pieces[number % PIECES]);
        if (!read_piece(r, slot, number % PIECES))
            break;
        slot_advance(r, slot, 1);
    }
    if (is_stopped(r))
        stop(r); /* it may have been another one who said so, and threads may wait */
    return NULL;
}

/* Whether the targets' addresses are there; waits for them, if asked to. */
static bool
is_open(const struct reading *r, bool wait)
{
    struct pollfd gate = {.fd = r->given->gate, .events = POLLIN};
    int n;

    if (gate.fd < 0)
        return true;
    do
        n = poll(&gate, 1, wait ? -1 : 0);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Page-locks the slots for all contexts. */
static void
lock_slots(struct reading *r)
{
    const struct lane *lane = r->lanes;
    size_t n_locked = 0, n_ready = 0;

    while (is_host(lane))
        lane++;
    if (!enter(r, lane))
        return;
    while (n_ready < r->n_slots && !is_stopped(r)) {
        if (n_locked < r->n_slots) {
            uint8_t *memory = memory_of(r, &r->slots[n_locked]);
            if (!CALL(r, cuMemHostRegister, memory, r->slot_size, CU_MEMHOSTREGISTER_PORTABLE))
                break;
            r->slots[n_locked++].is_locked = true;
        }
        if (is_open(r, n_locked == r->n_slots) && !is_stopped(r))
            while (n_ready < n_locked)
                slot_advance(r, &r->slots[n_ready++], 0);
    }
    gpu_pop(r->drv);
}

/* Starts threads, which take no signals. Where they cannot be started, there are fewer. */
static size_t
start(struct reading *r, pthread_t *threads, size_t n)
{
    sigset_t all, before;
    size_t n_started = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (n_started < n && pthread_create(&threads[n_started], NULL, read_pieces, r) == 0)
        n_started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n_started;
}

/* This thread is one of those that read. */
static void
run(struct reading *r)
{
    const uint64_t most = r->given->n_threads < THREADS ? r->given->n_threads : THREADS;
    const uint64_t n = r->pieces.n < most ? r->pieces.n : most;
    pthread_t threads[THREADS];

    size_t n_started = n > 1 ? start(r, threads, n - 1) : 0;
    if (r->drv)
        lock_slots(r);
    read_pieces(r);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
}

/* ---- life ---- */

/* Maps memory for the slots: huge pages, where there are some, which are locked in a fraction of
 * the time. They are there when a thread first reads into them. */
static int
map_slots(struct reading *r)
{
    const size_t n = r->pieces.n < PIECES ? r->pieces.n : PIECES;

    r->slot_size = n * PIECE;
    r->n_slots = (r->pieces.n + PIECES - 1) / PIECES;
    if (r->n_slots > SLOTS)
        r->n_slots = SLOTS;
    const size_t size = r->n_slots * r->slot_size + HUGE_PAGE;
    r->mapping = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->mapping == MAP_FAILED)
        return -errno;
    r->memory = (uint8_t *)r->mapping + HUGE_PAGE - (uintptr_t)r->mapping % HUGE_PAGE;
    madvise(r->memory, r->n_slots * r->slot_size, MADV_HUGEPAGE);
    for (size_t i = 0; i < r->n_slots; i++)
        r->slots[i] = (struct slot){.round = i, .n_left = n_pieces(r, i), .is_ready = !r->drv};
    return 0;
}

/* Retains the contexts. */
static int
find_targets(struct reading *r, struct caid_client *client, struct caid_error *error)
{
    for (size_t i = 0; i < r->given->n_targets; i++) {
        struct lane *lane = &r->lanes[i];
        uint32_t place;
        lane->target = &r->given->targets[i];
        if (is_host(lane))
            continue;
        int e = gpu_find_place(client, (int32_t)lane->target->device, NULL, &place, error);
        if (e == 0)
            e = gpu_context(client, place, &lane->context, error);
        if (e == 0)
            e = gpu_driver(client, &r->drv, error);
        if (e < 0)
            return e;
    }
    return client_check(client, error);
}

static void
make_events(struct reading *r)
{
    for (size_t i = 0; i < r->given->n_targets; i++) {
        struct lane *lane = &r->lanes[i];
        if (is_host(lane) || !enter(r, lane))
            continue;
        for (size_t k = 0; k < r->n_slots; k++)
            CALL(r, cuEventCreate, &lane->copied[k], CU_EVENT_DISABLE_TIMING);
        gpu_pop(r->drv);
    }
}

/* After a failure, copies may be under way that no event tells of. */
static void
end_targets(struct reading *r)
{
    for (size_t i = 0; i < r->given->n_targets; i++) {
        struct lane *lane = &r->lanes[i];
        if (is_host(lane) || r->drv->cu.cuCtxPushCurrent(lane->context) != CUDA_SUCCESS)
            continue;
        if (has_failed(r))
            r->drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)lane->target->stream);
        for (size_t k = 0; k < r->n_slots; k++)
            if (lane->copied[k])
                r->drv->cu.cuEventDestroy(lane->copied[k]);
        gpu_pop(r->drv);
    }
}

/* Waits for the last copies, in their order: the slots that are done are unlocked meanwhile. Memory
 * that cannot be unlocked is not freed. */
static void
end_slots(struct reading *r)
{
    const uint64_t oldest = (r->pieces.n + PIECES - 1) / PIECES;
    bool is_locked = false;

    for (size_t i = 0; i < r->n_slots; i++) {
        struct slot *slot = &r->slots[(oldest + i) % r->n_slots];
        if (slot->is_issued)
            wait_copied(r, slot);
        if (slot->is_locked && !has_failed(r))
            slot->is_locked = !CALL(r, cuMemHostUnregister, memory_of(r, slot));
    }
    end_targets(r);
    for (size_t i = 0; i < r->n_slots; i++) {
        struct slot *slot = &r->slots[i];
        if (slot->is_locked)
            slot->is_locked = r->drv->cu.cuMemHostUnregister(memory_of(r, slot)) !=
                              CUDA_SUCCESS;
        is_locked = is_locked || slot->is_locked;
    }
    if (!is_locked)
        munmap(r->mapping, r->n_slots * r->slot_size + HUGE_PAGE);
}

static int
read_with_slots(struct reading *r, int64_t *ret_file, struct caid_error *error)
{
    int e = map_slots(r);

    if (e < 0)
        return fail_errno(error, -e, "no memory to read into: %s", strerror(-e));
    if (r->drv)
        make_events(r);
    if (!has_failed(r))
        run(r);
    end_slots(r);
    e = r->failure.e;
    *ret_file = r->failure.file;
    if (e < 0)
        return fail_errno(error, -e, "%s",
                          e == -ENODATA ? "the file has become shorter" : strerror(-e));
    return gpu_result(r->drv, r->failure.call, r->failure.result, "cannot copy to the device",
                      error);
}

int
cuda_read(struct caid_client *client, const struct cuda_reading *given, int64_t *ret_file,
          struct caid_error *error)
{
    struct reading r = {
        .given = given,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
        .failure = {.file = -1},
    };

    *ret_file = -1;
    int e = find_targets(&r, client, error);
    if (e < 0)
        return e;
    e = pieces_init(&r.pieces, given);
    if (e < 0)
        e = fail_errno(error, -e, "no memory for the list of reads");
    else if (r.pieces.n > 0)
        e = read_with_slots(&r, ret_file, error);
    pieces_deinit(&r.pieces);
    return e;
}
