/* SPDX-License-Identifier: Apache-2.0 */
#include "core_setup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "machine_id.h"
#include "worker.h"

static void
fill_device(struct core_device *ret, const struct gpu_device *d)
{
    memcpy(ret->uuid, d->drv.uuid, sizeof(ret->uuid));
    memcpy(ret->pci, d->drv.pci, sizeof(ret->pci));
    memcpy(ret->name, d->drv.name, sizeof(ret->name));
    memcpy(ret->lacks, d->lacks, sizeof(ret->lacks));
    ret->total = d->drv.total;
    ret->granularity = d->drv.granularity;
    ret->handoff = d->handoff;
    ret->memops = d->drv.memops;
    ret->readonly_host = d->drv.readonly_host;
    ret->mps = d->drv.mps;
    ret->rdma = d->rdma;
    ret->persistence = d->persistence;
    ret->compute_mode = d->drv.compute_mode;
}

/* Fills in settings that stand for what the machine has, and lowers those that exceed it. */
static struct core_limits
resolve_limits(const struct config *config, uint32_t all_pages, uint32_t all_fds)
{
    struct core_limits limits = config->limits;
    uint32_t max_pages = all_pages / 2; /* one uid leaves half of them to the others */

    if (limits.pages > max_pages) {
        log_info("[limits] pages is %u rather than %u: all uids together have room for %u",
                 max_pages, limits.pages, all_pages);
        limits.pages = max_pages;
    }
    if (limits.pinned_bytes == 0)
        limits.pinned_bytes =
            (uint64_t)sysconf(_SC_PHYS_PAGES) / 2 * (uint64_t)sysconf(_SC_PAGESIZE);
    limits.fds = all_fds;
    return limits;
}

/* The settings that a reload may change. */
static struct core_config
core_settings(const struct config *config, uint32_t all_pages, uint32_t all_fds)
{
    return (struct core_config){
        .hello_timeout_ns = config->hello_timeout_ns,
        .ticket_ttl_ns = config->ticket_ttl_ns,
        .ticket_age_ns = config->ticket_age_ns,
        .limits = resolve_limits(config, all_pages, all_fds),
        .totals = {.host_bytes = config->total_host_bytes, .fds = all_fds},
        .memory = config->memory,
        .blocks = config->blocks,
        .user_quota = config->user_quota,
        .user_mode = config->user_mode,
        .user_legacy = config->user_legacy,
        .pools = config->pools,
        .n_pools = config->n_pools,
    };
}

/* Where /proc/sys cannot be read: the default of user_namespaces(7). */
static uid_t
read_overflow_uid(void)
{
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
    unsigned uid = 65534;

    if (f) {
        if (fscanf(f, "%u", &uid) != 1)
            uid = 65534;
        fclose(f);
    }
    return uid;
}

int
core_setup(struct core **ret, const struct config *config, const struct gpu *gpu,
           const uint64_t id[2], uint32_t all_pages, uint32_t all_fds)
{
    _cleanup_free_ struct core_device *devices = calloc(gpu->n_devices, sizeof(*devices));
    struct core_config c = core_settings(config, all_pages, all_fds);

    if (!devices)
        return -ENOMEM;
    for (size_t i = 0; i < gpu->n_devices; i++)
        fill_device(&devices[i], &gpu->devices[i]);
    c.server = "caid " CAID_VERSION;
    c.driver = drv_kind_name(gpu->drv->kind);
    c.driver_path = gpu->drv->path;
    c.driver_version = (uint64_t)gpu->drv->version;
    c.pid = getpid();
    c.uid = geteuid();
    c.overflow_uid = read_overflow_uid();
    machine_id_get(config->start.machine_id, c.machine_id);
    snprintf(c.daemon_id, sizeof(c.daemon_id), "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
    c.threads = worker_threads(gpu);
    c.devices = devices;
    c.n_devices = gpu->n_devices;
    return core_new(ret, &c, clock_now_ns());
}

int
core_set_up_anew(struct core *core, const struct config *config, uint32_t all_pages,
                 uint32_t all_fds)
{
    struct core_config c = core_settings(config, all_pages, all_fds);

    return core_reconfigure(core, &c, clock_now_ns());
}
