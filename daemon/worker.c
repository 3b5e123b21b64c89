/* SPDX-License-Identifier: Apache-2.0 */
#include "worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"

#define KEEP_NS (2 * NSEC_PER_SEC) /* a keeper has so long to take a block */

/* The memory of one block, from its allocation until its release is done. It includes the work item
 * of its release, so that a release needs no allocation. */
struct memory {
    LIST_ENTRY(memory) link;
    uv_work_t work;
    struct worker *worker;
    struct backing backing;
    uint32_t kept; /* its number at the keeper; 0: not kept */
    uint64_t job;  /* of the release, as are the fields below */
    int error;
    struct drv_error err;
};

/* The allocations of a device. */
struct worker_device {
    TAILQ_HEAD(, alloc_work) waiting;
    uint32_t n_running;
    uint64_t back_ms; /* when the last one came back, or the first one was started */
};

static void
on_start(uv_work_t *work UNUSED)
{
}

#define STACK_BYTES ((size_t)8 << 20) /* as for libuv's threads */

static void
wait_for_go(void *go)
{
    uv_sem_wait(go);
}

/* libuv starts its threads with the first work, and aborts the process where it cannot (RLIMIT_AS,
 * RLIMIT_NPROC). So it is tried before. */
static int
try_threads(uint32_t n)
{
    const uv_thread_options_t options = {.flags = UV_THREAD_HAS_STACK_SIZE,
                                         .stack_size = STACK_BYTES};
    _cleanup_free_ uv_thread_t *threads = calloc(n, sizeof(*threads));
    uint32_t n_started = 0;
    uv_sem_t go;
    int r = threads ? uv_sem_init(&go, 0) : -ENOMEM;

    if (r < 0)
        return r;
    while (n_started < n &&
           (r = uv_thread_create_ex(&threads[n_started], &options, wait_for_go, &go)) == 0)
        n_started++;
    for (uint32_t i = 0; i < n_started; i++)
        uv_sem_post(&go);
    for (uint32_t i = 0; i < n_started; i++)
        uv_thread_join(&threads[i]);
    uv_sem_destroy(&go);
    if (r < 0)
        log_error("%" PRIu32 " threads for the driver's calls cannot be started: %s", n,
                  strerror(-r));
    return r;
}

/* Allocations and a release for each device, and two calls without a device: figures of all, pinned
 * memory. */
uint32_t
worker_threads(const struct gpu *gpu)
{
    return (uint32_t)gpu->n_devices * (WORKER_DEVICE_MAX + 1) + 2;
}

int
worker_init(struct worker *w, uv_loop_t *loop, const struct gpu *gpu, struct kept *kept,
            const struct worker_ops *ops, void *userdata)
{
    *w = (struct worker){.loop = loop,
                         .gpu = gpu,
                         .kept = kept,
                         .ops = ops,
                         .userdata = userdata};
    char threads[16];
    int r = try_threads(worker_threads(gpu));

    if (r < 0)
        return r;
    LIST_INIT(&w->memories);
    uv_timer_init(loop, &w->stuck);
    w->stuck.data = w;
    w->devices = calloc(gpu->n_devices, sizeof(*w->devices));
    if (!w->devices)
        return -ENOMEM;
    for (size_t i = 0; i < gpu->n_devices; i++)
        TAILQ_INIT(&w->devices[i].waiting);
    snprintf(threads, sizeof(threads), "%" PRIu32, worker_threads(gpu));
    setenv("UV_THREADPOOL_SIZE", threads, 1);
    uv_queue_work(loop, &w->start, on_start, NULL);
    return backings_init(&w->backings, gpu);
}

void
worker_deinit(struct worker *w)
{
    struct memory *m;
    struct drv_error err = {0}; /* of the last one that failed */
    uint64_t bytes = 0;

    while ((m = LIST_FIRST(&w->memories))) {
        if (backing_release(&w->backings, &m->backing, &err) < 0)
            bytes += m->backing.size;
        LIST_REMOVE(m, link);
        free(m);
    }
    if (bytes > 0)
        log_error("giving %" PRIu64 " bytes back at the end: %s", bytes, err.message);
    backings_deinit(&w->backings);
    free(w->devices);
}

/* ---- allocation ---- */

struct alloc_work {
    uv_work_t work;
    TAILQ_ENTRY(alloc_work) link; /* device->waiting */
    struct worker *worker;
    uint64_t job;
    enum core_kind kind;
    uint32_t device;
    uint64_t size;
    struct memory *memory; /* filled, and put into w->memories, on success */
    int error;
    struct drv_error err;
    uint64_t free; /* core_alloc_result */
};

static void
alloc_work_free(struct alloc_work *a)
{
    free(a->memory);
    free(a);
}

DEFINE_CLEANUP(struct alloc_work *, alloc_work_free)

/* Gives the block to the keeper before a client hears of it. A block that the keeper does not take
 * ends with this process. */
static void
keep(struct worker *w, struct memory *m)
{
    int r = m->backing.fd >= 0 ? kept_put(w->kept, m->backing.fd, &m->kept) : -ENOTCONN;

    if (r == KEPT_LATER) /* a keeper that has gone gets it when it is back */
        kept_wait(w->kept, KEEP_NS);
    else if (r < 0 && r != -ENOTCONN)
        log_error("a block of %" PRIu64 " bytes is not kept: %s", m->backing.size,
                  strerror(-r));
}

static void
alloc_run(uv_work_t *work)
{
    struct alloc_work *a = container_of(work, struct alloc_work, work);
    const struct gpu *gpu = a->worker->gpu;
    uint64_t total;

    a->free = CORE_FREE_UNKNOWN;
    a->error = backing_create(&a->worker->backings, a->kind, a->device, a->size,
                              &a->memory->backing, &a->err);
    if (a->error == 0)
        keep(a->worker, a->memory);
    if (a->error == -ENOMEM && a->kind != KIND_PINNED)
        drv_memory_info(gpu->drv, gpu->devices[a->device].drv.uuid, &a->free, &total, NULL);
}

/* Makes the core's result of a successful allocation. The worker owns the memory from now on. */
static void
take_result(struct alloc_work *a, struct core_alloc_result *result)
{
    struct memory *m = TAKE_PTR(a->memory);

    LIST_INSERT_HEAD(&a->worker->memories, m, link);
    result->handle = (uint64_t)(uintptr_t)m;
    result->fd = m->backing.fd;
    result->kept = m->kept;
    memcpy(result->ipc, m->backing.ipc, sizeof(result->ipc));
}

static void
report(struct alloc_work *a_consume)
{
    _cleanup_(alloc_work_freep) struct alloc_work *a = a_consume;
    struct core_alloc_result result = {.error = a->error,
                                       .cuda = a->err.result,
                                       .text = a->err.message,
                                       .free = a->free,
                                       .fd = -1};

    if (a->error == 0)
        take_result(a, &result);
    a->worker->ops->alloc_done(a->worker->userdata, a->job, &result);
}

static void on_stuck(uv_timer_t *timer);

static void
watch(struct worker *w, uint64_t ms)
{
    if (!uv_is_active((uv_handle_t *)&w->stuck))
        uv_timer_start(&w->stuck, on_stuck, ms, 0);
}

static void alloc_after(uv_work_t *work, int status);

static void
run_waiting(struct worker *w, struct worker_device *d)
{
    struct alloc_work *a;

    while (d->n_running < WORKER_DEVICE_MAX && (a = TAILQ_FIRST(&d->waiting))) {
        TAILQ_REMOVE(&d->waiting, a, link);
        if (d->n_running++ == 0)
            d->back_ms = uv_now(w->loop);
        uv_queue_work(w->loop, &a->work, alloc_run, alloc_after);
    }
    if (!TAILQ_EMPTY(&d->waiting))
        watch(w, uv_now(w->loop) - d->back_ms < WORKER_STUCK_MS ? WORKER_STUCK_MS : 0);
}

static void
alloc_after(uv_work_t *work, int status UNUSED)
{
    struct alloc_work *a = container_of(work, struct alloc_work, work);
    struct worker *w = a->worker;
    struct worker_device *d = &w->devices[a->device];

    if (a->kind == KIND_PINNED) {
        report(a);
        return;
    }
    d->n_running--;
    d->back_ms = uv_now(w->loop);
    report(a);
    run_waiting(w, d);
}

/* Fails one allocation at a time: the core may have thousands, and sends the next one then. */
static void
fail_first(struct worker *w, struct worker_device *d)
{
    struct alloc_work *a = TAILQ_FIRST(&d->waiting);

    TAILQ_REMOVE(&d->waiting, a, link);
    a->error = -EIO;
    snprintf(a->err.message, sizeof(a->err.message),
             "device %u: it has not answered the driver for %d s", (unsigned)a->device,
             WORKER_STUCK_MS / 1000);
    report(a);
    run_waiting(w, d);
}

void
worker_stop(struct worker *w)
{
    for (size_t i = 0; i < w->gpu->n_devices; i++)
        while (!TAILQ_EMPTY(&w->devices[i].waiting))
            fail_first(w, &w->devices[i]);
}

static void
on_stuck(uv_timer_t *timer)
{
    struct worker *w = timer->data;

    for (size_t i = 0; i < w->gpu->n_devices; i++) {
        struct worker_device *d = &w->devices[i];
        if (TAILQ_EMPTY(&d->waiting))
            continue;
        if (uv_now(w->loop) - d->back_ms >= WORKER_STUCK_MS)
            fail_first(w, d);
        else
            run_waiting(w, d);
    }
}

int
worker_alloc(struct worker *w, uint64_t job, enum core_kind kind, uint32_t device,
             uint64_t size)
{
    _cleanup_(alloc_work_freep) struct alloc_work *a = calloc(1, sizeof(*a));
    struct alloc_work *started;

    if (!a)
        return -ENOMEM;
    a->memory = calloc(1, sizeof(*a->memory));
    if (!a->memory)
        return -ENOMEM;
    a->memory->worker = a->worker = w;
    a->job = job;
    a->kind = kind;
    a->device = device;
    a->size = size;
    started = TAKE_PTR(a);
    if (kind == KIND_PINNED) {
        uv_queue_work(w->loop, &started->work, alloc_run, alloc_after);
        return 0;
    }
    TAILQ_INSERT_TAIL(&w->devices[device].waiting, started, link);
    run_waiting(w, &w->devices[device]);
    return 0;
}

int
worker_adopt(struct worker *w, const char *device, enum core_kind kind, uint64_t size,
             uint32_t kept, uint64_t *ret_handle)
{
    _cleanup_free_ struct memory *m = calloc(1, sizeof(*m));
    int fd = kept_found(w->kept, kept), r;
    struct drv_error err = {0};
    uint32_t i = 0;

    if (!m || fd < 0)
        return m ? -EBADF : -ENOMEM;
    while (i < w->gpu->n_devices && strcmp(w->gpu->devices[i].drv.uuid, device) != 0)
        i++;
    if (i == w->gpu->n_devices)
        return -EINVAL; /* its device is not there any more */
    r = backing_adopt(&w->backings, kind, i, size, fd, &m->backing, &err);
    if (r < 0) {
        log_error("device %s: %s", device, err.message);
        return r;
    }
    kept_claim(w->kept, kept);
    m->worker = w;
    m->kept = kept;
    LIST_INSERT_HEAD(&w->memories, m, link);
    *ret_handle = (uint64_t)(uintptr_t)TAKE_PTR(m);
    return 0;
}

/* ---- release ---- */

static void
release_run(uv_work_t *work)
{
    struct memory *m = container_of(work, struct memory, work);

    m->error = backing_release(&m->worker->backings, &m->backing, &m->err);
}

static void
release_after(uv_work_t *work, int status UNUSED)
{
    _cleanup_free_ struct memory *m = container_of(work, struct memory, work);

    m->worker->ops->release_done(m->worker->userdata, m->job, m->error, m->err.result,
                                 m->err.message);
}

void
worker_release(struct worker *w, uint64_t job, uint64_t handle)
{
    struct memory *m = (struct memory *)(uintptr_t)handle;

    LIST_REMOVE(m, link);
    if (m->kept)
        kept_drop(w->kept, m->kept);
    m->job = job;
    uv_queue_work(w->loop, &m->work, release_run, release_after);
}

/* ---- memory figures ---- */

struct memory_work {
    uv_work_t work;
    struct worker *worker;
    uint64_t job;
    uint32_t first;
    size_t n;
    struct core_memory_result *results;
    struct drv_error *errs; /* hold the results' texts */
};

static void
memory_work_free(struct memory_work *q)
{
    free(q->results);
    free(q->errs);
    free(q);
}

DEFINE_CLEANUP(struct memory_work *, memory_work_free)

static void
memory_run(uv_work_t *work)
{
    struct memory_work *q = container_of(work, struct memory_work, work);
    const struct gpu *gpu = q->worker->gpu;

    for (size_t i = 0; i < q->n; i++) {
        struct core_memory_result *r = &q->results[i];
        r->error = drv_memory_info(gpu->drv, gpu->devices[q->first + i].drv.uuid, &r->free,
                                   &r->total, &q->errs[i]);
        r->cuda = q->errs[i].result;
        r->text = q->errs[i].message;
    }
}

static void
memory_after(uv_work_t *work, int status UNUSED)
{
    _cleanup_(memory_work_freep) struct memory_work *q =
        container_of(work, struct memory_work, work);

    q->worker->ops->memory_done(q->worker->userdata, q->job, q->results, q->n);
}

int
worker_memory(struct worker *w, uint64_t job, uint32_t device)
{
    _cleanup_(memory_work_freep) struct memory_work *q = calloc(1, sizeof(*q));
    bool all = device >= w->gpu->n_devices;
    struct memory_work *started;

    if (!q)
        return -ENOMEM;
    q->worker = w;
    q->job = job;
    q->first = all ? 0 : device;
    q->n = all ? w->gpu->n_devices : 1;
    q->results = calloc(q->n, sizeof(*q->results));
    q->errs = calloc(q->n, sizeof(*q->errs));
    if (!q->results || !q->errs)
        return -ENOMEM;
    started = TAKE_PTR(q);
    uv_queue_work(w->loop, &started->work, memory_run, memory_after);
    return 0;
}
