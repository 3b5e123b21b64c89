/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/macros.h"
#include "legacy.h"
#include "value.h"

/* "host" needs only host functions of a device. */
static bool
can_hand_off(const struct drv_device *d, enum core_handoff handoff)
{
    switch (handoff) {
    case HANDOFF_MEMOPS: return d->memops && d->readonly_host;
    case HANDOFF_EVENTS: return d->ipc;
    case HANDOFF_HOST:
    case N_HANDOFFS: break;
    }
    return true;
}

static enum core_handoff
choose_handoff(const struct drv_device *d, int choice)
{
    enum core_handoff wanted = choice == HANDOFF_AUTO ? HANDOFF_MEMOPS
                                                      : (enum core_handoff)choice;

    if (can_hand_off(d, wanted))
        return wanted;
    if (choice != HANDOFF_AUTO)
        log_warning("device %s cannot do [handoff] mode = %s: hand-off is by the host", d->uuid,
                    core_handoff_name(wanted));
    return HANDOFF_HOST;
}

static bool
choose_rdma(const struct drv_device *d, int choice)
{
    if (choice == true && !d->rdma)
        log_warning("device %s cannot do [memory] rdma = yes: no network card can be given its "
                    "memory",
                    d->uuid);
    return choice && d->rdma;
}

/* The driver may open each device of the machine for this call: too slow after the start. */
static const char *
get_persistence(const struct drv *drv, const char *uuid)
{
    bool on;

    if (drv_persistence(drv, uuid, &on) < 0)
        return NULL;
    return on ? "on" : "off";
}

/* A device that cannot be shared is left out; the others are not affected. */
static void
add_device(struct gpu *g, int ordinal, int handoff, int rdma)
{
    struct gpu_device *d = &g->devices[g->n_devices];
    struct drv_error err = {0}; /* not the caller's: that one keeps its text */

    if (drv_device_get(g->drv, ordinal, &d->drv, &err) < 0) {
        log_error("device %d is left out: %s", ordinal, err.message);
        return;
    }
    if (!d->drv.vmm_fd) {
        log_error("device %d (%s, %s) is left out: it cannot share memory by file descriptors",
                  ordinal, d->drv.name, d->drv.uuid);
        return;
    }
    /* Clients register pinned memory: whether their driver can is found out there. */
    d->lacks[KIND_LEGACY] = !legacy_is_supported(g->drv, d->drv.ordinal);
    d->handoff = choose_handoff(&d->drv, handoff);
    d->rdma = choose_rdma(&d->drv, rdma);
    d->persistence = get_persistence(g->drv, d->drv.uuid);
    g->n_devices++;
}

static int
find_devices(struct gpu *g, int handoff, int rdma, struct drv_error *err)
{
    int n, r = drv_device_count(g->drv, &n, err);

    if (r < 0)
        return r;
    g->devices = calloc((size_t)n + 1, sizeof(*g->devices));
    if (!g->devices)
        return -ENOMEM;
    for (int i = 0; i < n; i++)
        add_device(g, i, handoff, rdma);
    if (g->n_devices == 0) {
        snprintf(err->message, sizeof(err->message), "%s: none of %d devices will do",
                 g->drv->path, n);
        return -ENODEV;
    }
    return 0;
}

/* reason: why "auto" did not take the real driver. */
static void
log_driver(const struct gpu *g, const char *choice, const char *reason)
{
    if (g->drv->kind == DRV_SOFT && strcmp(choice, "auto") == 0) {
        log_warning(
            "NO CUDA DEVICE ANSWERS: arrays live in host memory, on the software driver");
        log_warning("the reason: %s (--driver=cuda makes it an error)", reason);
    }
    log_info("driver %s (%s), CUDA %d.%d", drv_kind_name(g->drv->kind), g->drv->path,
             g->drv->version / 1000, g->drv->version % 1000 / 10);
}

static void
log_devices(const struct gpu *g)
{
    for (size_t i = 0; i < g->n_devices; i++)
        log_info("device %zu: %s, %s, %zu MiB, hand-off by %s%s", i, g->devices[i].drv.name,
                 g->devices[i].drv.uuid, g->devices[i].drv.total >> 20,
                 core_handoff_name(g->devices[i].handoff),
                 g->devices[i].lacks[KIND_LEGACY] ? ", no legacy handles" : "");
}

int
gpu_open(struct gpu *ret, const char *choice, int handoff, int rdma, struct drv_error *err)
{
    _cleanup_(gpu_deinit) struct gpu g = {0};
    int r = drv_open(&g.drv, choice, err);

    if (r < 0)
        return r;
    log_driver(&g, choice, err->message);
    r = find_devices(&g, handoff, rdma, err);
    if (r < 0)
        return r;
    log_devices(&g);
    *ret = g;
    g = (struct gpu){0};
    return 0;
}

void
gpu_deinit(struct gpu *g)
{
    free(g->devices);
    if (g->drv)
        drv_free(g->drv);
    *g = (struct gpu){0};
}
