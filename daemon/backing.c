/* SPDX-License-Identifier: Apache-2.0 */
#include "backing.h"

#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/macros.h"

struct backing_context {
    pthread_mutex_t lock;
    uint64_t n_backings; /* existing, or being made */
    CUcontext context;   /* as long as n_backings > 0 */
};

int
backings_init(struct backings *b, const struct gpu *gpu)
{
    *b = (struct backings){.gpu = gpu};
    b->contexts = calloc(gpu->n_devices, sizeof(*b->contexts));
    for (size_t i = 0; b->contexts && i < gpu->n_devices; i++)
        pthread_mutex_init(&b->contexts[i].lock, NULL);
    return b->contexts ? 0 : -ENOMEM;
}

void
backings_deinit(struct backings *b)
{
    free(b->contexts);
    b->contexts = NULL;
}

/* ---- device ---- */

static int
create_device(struct backings *b, struct backing *m, struct drv_error *err)
{
    const struct drv *drv = b->gpu->drv;
    const struct gpu_device *d = &b->gpu->devices[m->device];
    int r = vmm_alloc_create(drv, d->drv.ordinal, m->size, d->rdma, &m->vmm, err);

    if (r < 0)
        return r;
    r = vmm_alloc_export(drv, &m->vmm, &m->fd, err);
    if (r < 0)
        vmm_alloc_release(drv, &m->vmm, NULL);
    return r;
}

/* ---- legacy ---- */

/* Counts one more backing; the first one makes the context. */
static int
get_context(struct backings *b, uint32_t device, CUcontext *ret, struct drv_error *err)
{
    const struct drv_device *d = &b->gpu->devices[device].drv;
    struct backing_context *c = &b->contexts[device];
    int r = 0;

    pthread_mutex_lock(&c->lock);
    if (c->n_backings == 0) {
        r = legacy_context_retain(b->gpu->drv, d->ordinal, &c->context, err);
        if (r == 0)
            log_debug("device %u (%s): made a context, for legacy handles", (unsigned)device,
                      d->uuid);
    }
    if (r == 0) {
        c->n_backings++;
        *ret = c->context;
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* A release that fails is not tried again: the next backing asks for a context, and gets the old
 * one if the driver has kept it. */
static void
put_context(struct backings *b, uint32_t device)
{
    const struct drv_device *d = &b->gpu->devices[device].drv;
    struct backing_context *c = &b->contexts[device];
    struct drv_error err;

    pthread_mutex_lock(&c->lock);
    if (--c->n_backings == 0) {
        if (legacy_context_release(b->gpu->drv, d->ordinal, &err) < 0)
            log_error("device %u (%s): its context may stay until the daemon ends: %s",
                      (unsigned)device, d->uuid, err.message);
        else
            log_debug("device %u (%s): gave its context back", (unsigned)device, d->uuid);
    }
    pthread_mutex_unlock(&c->lock);
}

static void
put_handle(struct backing *m, const CUipcMemHandle *handle)
{
    _Static_assert(sizeof(m->ipc) == sizeof(*handle), "a handle is its words");
    memcpy(m->ipc, handle, sizeof(m->ipc));
    for (size_t i = 0; i < ARRAY_SIZE(m->ipc); i++)
        m->ipc[i] = le64toh(m->ipc[i]);
}

static int
create_in(CUcontext context, const struct drv *drv, struct backing *m, struct drv_error *err)
{
    CUipcMemHandle handle;
    int r = legacy_alloc_create(drv, context, m->size, &m->legacy, err);

    if (r < 0)
        return r;
    r = legacy_alloc_export(drv, context, &m->legacy, &handle, err);
    if (r < 0)
        legacy_alloc_release(drv, context, &m->legacy, NULL);
    else
        put_handle(m, &handle);
    return r;
}

static int
create_legacy(struct backings *b, struct backing *m, struct drv_error *err)
{
    CUcontext context = NULL;
    int r = get_context(b, m->device, &context, err);

    if (r < 0)
        return r;
    r = create_in(context, b->gpu->drv, m, err);
    if (r < 0)
        put_context(b, m->device);
    return r;
}

static int
release_legacy(struct backings *b, struct backing *m, struct drv_error *err)
{
    CUcontext context = b->contexts[m->device].context;
    int r = legacy_alloc_release(b->gpu->drv, context, &m->legacy, err);

    put_context(b, m->device);
    return r;
}

/* ---- pinned ---- */

static int
fail(struct drv_error *err, const char *call, int error)
{
    snprintf(err->message, sizeof(err->message), "%s: %s", call, strerror(error));
    return -error;
}

/* The seals keep everybody from cutting the file under a registration. Its mode keeps other uids
 * from opening it through /proc: the pool decides who gets it. Its pages are allocated, and
 * accounted for, when a client registers them. */
static int
create_pinned(struct backing *m, struct drv_error *err)
{
    _cleanup_fd_ int fd = memfd_create("caid-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return fail(err, "memfd_create", errno);
    if (fchmod(fd, 0600) < 0)
        return fail(err, "fchmod", errno);
    if (ftruncate(fd, (off_t)m->size) < 0)
        return fail(err, "ftruncate", errno);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fail(err, "F_ADD_SEALS", errno);
    m->fd = TAKE_FD(fd);
    return 0;
}

/* ---- any ---- */

int
backing_create(struct backings *b, enum core_kind kind, uint32_t device, uint64_t size,
               struct backing *ret, struct drv_error *err)
{
    struct backing m = {.kind = kind, .device = device, .size = size, .fd = -1};
    int r = -EINVAL;

    switch (kind) {
    case KIND_DEVICE: r = create_device(b, &m, err); break;
    case KIND_LEGACY: r = create_legacy(b, &m, err); break;
    case KIND_PINNED: r = create_pinned(&m, err); break;
    case N_KINDS: break;
    }
    if (r == 0)
        *ret = m;
    return r;
}

/* The size of a memfd can be asked for. That of an fd from the driver shows only in a mapping. */
static int
adopt_pinned(const struct backing *m, struct drv_error *err)
{
    struct stat st;

    if (fstat(m->fd, &st) < 0)
        return fail(err, "fstat", errno);
    return (uint64_t)st.st_size == m->size ? 0 : fail(err, "its size", EINVAL);
}

int
backing_adopt(struct backings *b, enum core_kind kind, uint32_t device, uint64_t size, int fd,
              struct backing *ret, struct drv_error *err)
{
    struct backing m = {.kind = kind, .device = device, .size = size, .fd = fd};
    int r = -EINVAL;

    if (kind == KIND_DEVICE)
        r = vmm_alloc_import(b->gpu->drv, fd, size, &m.vmm, err);
    else if (kind == KIND_PINNED)
        r = adopt_pinned(&m, err);
    if (r == 0)
        *ret = m;
    return r;
}

int
backing_release(struct backings *b, struct backing *m, struct drv_error *err)
{
    m->fd = fd_close(m->fd);
    switch (m->kind) {
    case KIND_DEVICE: return vmm_alloc_release(b->gpu->drv, &m->vmm, err);
    case KIND_LEGACY: return release_legacy(b, m, err);
    case KIND_PINNED:
    case N_KINDS: break;
    }
    return 0;
}
