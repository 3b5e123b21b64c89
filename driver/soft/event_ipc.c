/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inter-process events. Each is a page that the processes share, the one that created it and those
 * that opened it by its handle; any of them may record it. Records are numbered when they are
 * enqueued, under the order lock of their stream, so that what waits for "the last record" refers
 * to the past here, too, and no circle of waits can arise. They pass in the order of their numbers:
 * a record waits in its stream for the one before it. Who waits sleeps on the page's futex.
 *
 * A record whose process was killed never passes, nor does any after it. Who waits for one waits
 * for ever, as on hardware: a host thread, or a stream and what comes after it. Only a fault of the
 * device ends that.
 *
 * The page is a memfd, sealed in size; every process that has it can write all of it, and at worst
 * makes waits end too early or never.
 */
#include "event.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "memory.h"

#define MAGIC "caidevnt"

struct shared {
    char magic[8];
    _Atomic uint64_t last;    /* number of the last record; 0: never recorded */
    _Atomic uint64_t passed;  /* all records up to this number are done */
    _Atomic uint32_t changes; /* futex */
};

#define SHARED_SIZE SOFT_PAGE_SIZE

_Static_assert(sizeof(struct shared) <= SHARED_SIZE, "one page");

/* What one process has of it. */
struct ipc_event {
    struct event event;
    LIST_ENTRY(ipc_event) link; /* in soft->ipc_events */
    struct shared *shared;
    int fd;                    /* of the creator: what it offers; -1 of an opened one */
    struct share_offer *offer; /* of the creator, from the first handle on; under the lock */
    uint64_t opened[2];        /* of an opened one: the id of its ticket */
};

/* A record, or a wait for one. */
struct ipc_op {
    struct op op;
    struct ipc_event *event; /* one reference */
    const struct device *device;
    uint64_t number;
};

static struct ipc_event *
ipc_of(struct event *event)
{
    return container_of(event, struct ipc_event, event);
}

/* The page. */

static bool
shared_passed(struct shared *shared, uint64_t number)
{
    return shared->passed >= number;
}

static void
shared_wake(struct shared *shared)
{
    shared->changes++;
    syscall(SYS_futex, &shared->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Waits until the record has passed: true, or the device is faulted: false. */
static bool
shared_wait(struct shared *shared, uint64_t number, const struct device *device)
{
    for (;;) {
        uint32_t seen = shared->changes;
        if (device->fault != CUDA_SUCCESS)
            return false;
        if (shared_passed(shared, number))
            return true;
        syscall(SYS_futex, &shared->changes, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
}

/* Operations. */

/* A faulted device does not signal any more. */
static CUresult
record_run(struct op *op, CUresult status UNUSED)
{
    struct ipc_op *record = container_of(op, struct ipc_op, op);
    struct shared *shared = record->event->shared;
    if (shared_wait(shared, record->number - 1, record->device)) {
        shared->passed = record->number;
        shared_wake(shared);
    }
    return CUDA_SUCCESS;
}

static void
record_placed(struct op *op)
{
    struct ipc_op *record = container_of(op, struct ipc_op, op);
    record->number = ++record->event->shared->last;
}

static CUresult
wait_run(struct op *op, CUresult status UNUSED)
{
    struct ipc_op *wait = container_of(op, struct ipc_op, op);
    shared_wait(wait->event->shared, wait->number, wait->device);
    return CUDA_SUCCESS;
}

static void
ipc_op_free(struct op *op)
{
    struct ipc_op *ipc_op = container_of(op, struct ipc_op, op);
    event_unref(&ipc_op->event->event);
    free(ipc_op);
}

static struct ipc_op *
ipc_op_new(struct event *event, struct stream *stream,
           CUresult (*run)(struct op *op, CUresult status))
{
    struct ipc_op *ipc_op = calloc(1, sizeof(*ipc_op));
    if (!ipc_op)
        return NULL;
    op_init(&ipc_op->op, run, ipc_op_free);
    ipc_op->op.stretched = false;
    ipc_op->event = ipc_of(event_ref(event));
    ipc_op->device = stream->context->device;
    return ipc_op;
}

/* The event. */

static CUresult
ipc_record(struct event *event, struct stream *stream)
{
    struct ipc_op *record = ipc_op_new(event, stream, record_run);
    if (!record)
        return CUDA_ERROR_OUT_OF_MEMORY;
    record->op.placed = record_placed;
    return stream_submit(stream, &record->op, NULL);
}

static CUresult
ipc_wait(struct event *event, struct stream *stream)
{
    struct shared *shared = ipc_of(event)->shared;
    uint64_t number = shared->last;
    if (shared_passed(shared, number))
        return CUDA_SUCCESS;
    struct ipc_op *wait = ipc_op_new(event, stream, wait_run);
    if (!wait)
        return CUDA_ERROR_OUT_OF_MEMORY;
    wait->number = number;
    return stream_submit(stream, &wait->op, NULL);
}

static bool
ipc_passed(struct event *event)
{
    struct shared *shared = ipc_of(event)->shared;
    return shared_passed(shared, shared->last);
}

static void
ipc_finish(struct event *event)
{
    struct shared *shared = ipc_of(event)->shared;
    shared_wait(shared, shared->last, event->context->device);
}

static const struct event_kind ipc_kind = {
    .record = ipc_record,
    .wait = ipc_wait,
    .passed = ipc_passed,
    .finish = ipc_finish,
};

static void
ipc_free(struct object *object)
{
    struct event *event = container_of(object, struct event, object);
    struct ipc_event *ipc = ipc_of(event);
    pthread_mutex_lock(&soft->ipc_events.lock);
    LIST_REMOVE(ipc, link);
    share_offer_free(ipc->offer);
    fd_close(ipc->fd);
    pthread_mutex_unlock(&soft->ipc_events.lock);
    munmap(ipc->shared, SHARED_SIZE);
    event_deinit(event);
    free(ipc);
}

/* A forked child, which could not use the page, does not get it. */
static struct shared *
shared_map(int fd)
{
    void *at = mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return NULL;
    madvise(at, SHARED_SIZE, MADV_DONTFORK);
    return at;
}

/* An event with this page, which passes, and for its creator the fd, or else the id that it was
 * opened by. NULL when there is no memory, or no page. */
static struct ipc_event *
ipc_new(struct context *context, unsigned int flags, struct shared *shared, int fd,
        const uint64_t id[2])
{
    struct ipc_event *ipc = shared ? calloc(1, sizeof(*ipc)) : NULL;
    if (!ipc) {
        if (shared)
            munmap(shared, SHARED_SIZE);
        return NULL;
    }
    event_init(&ipc->event, &ipc_kind, context, flags, ipc_free);
    ipc->shared = shared;
    ipc->fd = fd;
    memcpy(ipc->opened, id, sizeof(ipc->opened));
    LOCKED(&soft->ipc_events.lock);
    LIST_INSERT_HEAD(&soft->ipc_events.all, ipc, link);
    return ipc;
}

CUresult
event_ipc_new(struct context *context, unsigned int flags, struct event **ret)
{
    _cleanup_fd_ int fd = memfd_create("caid-softcuda-event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, SHARED_SIZE) < 0 ||
        fcntl(fd, F_ADD_SEALS, MEMFD_SEALS | F_SEAL_SEAL) < 0)
        return memfd_error(-errno);
    if (pwrite(fd, MAGIC, 8, 0) != 8)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ipc_event *ipc = ipc_new(context, flags, shared_map(fd), fd, (const uint64_t[2]){0});
    if (!ipc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    TAKE_FD(fd);
    *ret = &ipc->event;
    return CUDA_SUCCESS;
}

/* Whether an fd from another process is such a page. */
static bool
is_shared(int fd)
{
    char magic[8];
    struct stat st;
    return memfd_is_sealed(fd) && fstat(fd, &st) == 0 && st.st_size == (off_t)SHARED_SIZE &&
           pread(fd, magic, 8, 0) == 8 && memcmp(magic, MAGIC, 8) == 0;
}

/* Around a fault, and around fork(2). */

void
event_ipc_interrupt(void)
{
    struct ipc_event *ipc;
    LOCKED(&soft->ipc_events.lock);
    LIST_FOREACH(ipc, &soft->ipc_events.all, link)
        shared_wake(ipc->shared);
}

void
event_ipc_in_child(void)
{
    struct ipc_event *ipc;
    LIST_FOREACH(ipc, &soft->ipc_events.all, link)
        ipc->fd = fd_close(ipc->fd);
    LIST_INIT(&soft->ipc_events.all); /* their pages are not here, nobody may touch them */
}

/* Entry points. */

_Static_assert(sizeof(CUipcEventHandle) == sizeof(struct share_ticket), "a handle is a ticket");

CUresult
soft_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event_handle)
{
    if (!handle || !event_handle)
        return CUDA_ERROR_INVALID_VALUE;
    CURRENT(context);
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED));
    HOLD(event, event, event_handle);
    if (event->kind != &ipc_kind ||
        ipc_of(event)->fd < 0) /* only the creator gives out handles */
        return CUDA_ERROR_INVALID_HANDLE;
    struct ipc_event *ipc = ipc_of(event);
    LOCKED(&soft->ipc_events.lock);
    if (!ipc->offer &&
        share_offer_new(&(struct share_ticket){.kind = SHARE_EVENT}, ipc->fd, &ipc->offer) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(handle, &ipc->offer->ticket, sizeof(*handle));
    return CUDA_SUCCESS;
}

/* The page of an event that is open already, once more; NULL when none is. What is open can be
 * opened again whatever became of its creator. (An old size of 0 makes a second mapping.) */
static struct shared *
shared_again(const struct share_ticket *ticket)
{
    struct ipc_event *ipc;
    LOCKED(&soft->ipc_events.lock);
    LIST_FOREACH(ipc, &soft->ipc_events.all, link) {
        if (ipc->fd >= 0 || memcmp(ipc->opened, ticket->id, sizeof(ticket->id)) != 0)
            continue;
        void *at = mremap(ipc->shared, 0, SHARED_SIZE, MREMAP_MAYMOVE);
        return at == MAP_FAILED ? NULL : at;
    }
    return NULL;
}

/* The page that a ticket is for. */
static CUresult
shared_take(const struct share_ticket *ticket, struct shared **ret)
{
    _cleanup_fd_ int fd = -1;
    if (share_ticket_is(ticket, SHARE_EVENT) && (*ret = shared_again(ticket)))
        return CUDA_SUCCESS;
    switch (share_take(ticket, SHARE_EVENT, &fd)) {
    case 0: break;
    case SHARE_OWN: return CUDA_ERROR_INVALID_CONTEXT;
    case -EMFILE:
    case -ENFILE: return CUDA_ERROR_OPERATING_SYSTEM;
    default: return CUDA_ERROR_MAP_FAILED;
    }
    *ret = is_shared(fd) ? shared_map(fd) : NULL;
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
}

CUresult
soft_cuIpcOpenEventHandle(CUevent *ret, CUipcEventHandle handle)
{
    struct shared *shared;
    struct share_ticket ticket;
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    CURRENT(context);
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED));
    memcpy(&ticket, &handle, sizeof(ticket));
    RETURN_IF(shared_take(&ticket, &shared));
    struct ipc_event *ipc = ipc_new(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
                                    shared, -1, ticket.id);
    if (!ipc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return object_hand_out(&ipc->event.object, ret);
}
