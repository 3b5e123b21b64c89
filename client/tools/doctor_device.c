/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the daemon's devices. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "format.h"
#include "vmm.h"

static int
ask_memory(const struct doctor *doctor, int32_t device, struct caid_memory_info *ret)
{
    *ret = (struct caid_memory_info)CAID_INIT(*ret);
    return caid_memory_info(doctor->ctl->client, device, ret, &doctor->ctl->error);
}

static void
look_found(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const struct caid_device *d = doctor->devices[device];
    struct caid_memory_info info;

    if (ask_memory(doctor, device, &info) < 0) {
        finding_problem(ret, "device_lost", "%s, %s: %s", d->name, d->uuid,
                        doctor->ctl->error.message);
        finding_remedy(ret, "dmesg may say why (Xid); then restart caid");
        return;
    }
    _cleanup_free_ char *total = format_bytes(info.total, doctor->ctl->bytes);
    _cleanup_free_ char *unused = format_bytes(info.free, doctor->ctl->bytes);
    finding_ok(ret, "device_ok", "%s, %s, %s of %s free", d->name, d->uuid, unused, total);
}

/* The ordinal that the device has in this process's driver; -1: it does not have the device. */
static int
find_here(const struct doctor *doctor, int32_t device, struct drv_device *ret)
{
    int n = 0;

    if (!doctor->drv || drv_device_count(doctor->drv, &n, NULL) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (drv_device_get(doctor->drv, i, ret, NULL) == 0 &&
            strcmp(ret->uuid, doctor->devices[device]->uuid) == 0)
            return i;
    return -1;
}

static void
look_here(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    struct drv_device here;
    int ordinal = find_here(doctor, device, &here);

    if (ordinal >= 0) {
        finding_ok(ret, "seen_ok", "device %d of this process", ordinal);
    } else if (visible) {
        finding_warning(
            ret, "seen_hidden",
            "hidden by CUDA_VISIBLE_DEVICES=%s: its arrays are reached from another "
            "device, if there is one",
            visible);
        finding_remedy(ret, "add %s to it", doctor->devices[device]->uuid);
    } else {
        finding_problem(ret, "seen_not", "this process's driver does not have it");
        finding_remedy(ret, "see \"driver here\"; in a container, pass this GPU in");
    }
}

#define KINDS "device legacy pinned"

static void
look_kinds(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const char *kinds = doctor->devices[device]->kinds;

    if (strcmp(kinds, KINDS) == 0) {
        finding_ok(ret, "kinds_ok", "%s", kinds);
    } else if (kinds[0]) {
        finding_warning(ret, "kinds_some", "%s: not all of " KINDS, kinds);
        finding_remedy(ret, "create arrays with memory= one of these; a newer driver may have "
                            "the others");
    } else {
        finding_problem(ret, "kinds_none", "none: no array can be created on it");
        finding_remedy(ret,
                       "caid needs virtual memory management with POSIX file descriptors, or "
                       "CUDA IPC: a newer driver may have them");
    }
}

static void
look_memops(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    if (doctor->devices[device]->memops) {
        finding_ok(ret, "memops_ok", "of 64 bits");
        return;
    }
    finding_warning(ret, "memops_none", "none of 64 bits: the host has to wait in hand-offs");
    finding_remedy(ret, "a newer driver may have them");
}

static void
look_readonly_host(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    if (doctor->devices[device]->readonly_host) {
        finding_ok(ret, "readonly_ok", "can be registered");
        return;
    }
    finding_warning(ret, "readonly_none",
                    "cannot be registered: the host has to wait in hand-offs");
    finding_remedy(ret, "a newer driver may take it");
}

/* Whether "auto" would choose memops. */
static bool
could_memops(const struct caid_device *device)
{
    return device->memops && device->readonly_host;
}

static void
look_handoff(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const struct caid_device *d = doctor->devices[device];

    if (strcmp(d->handoff, "memops") == 0) {
        finding_ok(ret, "handoff_memops", "memops: streams wait, and the host does not");
    } else if (strcmp(d->handoff, "events") == 0) {
        finding_warning(
            ret, "handoff_events",
            "events: a stream that waits for a process that is killed hangs for good");
        finding_remedy(ret, "[handoff] mode = %s in caid.conf, and restart caid",
                       could_memops(d) ? "auto" : "host");
    } else if (could_memops(d)) {
        finding_warning(ret, "handoff_host_chosen",
                        "host: the host waits, which costs 20 to 30 us and a thread each time");
        finding_remedy(ret,
                       "[handoff] mode = auto in caid.conf, and restart caid: the device has "
                       "what memops needs");
    } else {
        finding_warning(ret, "handoff_host",
                        "host: the host waits, which costs 20 to 30 us and a thread each time");
        finding_remedy(ret, "the device lacks what memops needs: see above");
    }
}

/* What counts is the driver of the process that has the contexts: this one's, not the daemon's. */
static bool
is_mps(const struct doctor *doctor, int32_t device)
{
    struct drv_device here;
    return find_here(doctor, device, &here) >= 0 ? here.mps : doctor->devices[device]->mps;
}

/* Figures of an H200: docs/PERFORMANCE.md. */
static void
look_mps(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    if (is_mps(doctor, device)) {
        finding_ok(
            ret, "mps_on",
            "on: a hand-off between kernels of two processes takes about 17 us (H200); a "
            "client that is killed in a kernel can hold up the others");
        return;
    }
    finding_warning(
        ret, "mps_off",
        "off: a GPU switches contexts between kernels of two processes, and a hand-off "
        "takes about 290 us (H200), with MPS 17 us");
    finding_remedy(ret, "where that is too long and the processes trust each other: "
                        "nvidia-cuda-mps-control -d");
}

/* Where the kernel lists network cards that can do RDMA; there, a card is known to be none. */
#define RDMA_CARDS "/sys/class/infiniband"

/* Whether caid's memory can be registered is tried by nobody here: that takes a card. An imported
 * mapping does not tell, and cannot be exported once more by a handle, which UCX would need. */
static void
look_rdma(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const struct caid_device *d = doctor->devices[device];
    bool cards = access(RDMA_CARDS, F_OK) == 0;

    if (d->rdma) {
        finding_ok(
            ret, "rdma_ok",
            "memory is made for it; a card %s. UCX cannot share such memory between "
            "processes by CUDA IPC, and copies it by the host: caid's names and tickets do",
            cards ? "registers it as a dma-buf (caid_array_dmabuf()), which is not tried"
                  : "is not there (" RDMA_CARDS "), so it is not tried");
        return;
    }
    struct drv_device here;

    if (find_here(doctor, device, &here) >= 0 && here.rdma) {
        finding_warning(ret, "rdma_off", "no: [memory] rdma = no in caid.conf");
        finding_remedy(ret, "rdma = auto costs nothing; then restart caid");
    } else if (cards) {
        finding_warning(ret, "rdma_not",
                        "no: the device cannot give its memory to network cards");
        finding_remedy(ret, "data for the network goes through the host");
    } else {
        finding_ok(ret, "rdma_none", "no, and no card here would need it");
    }
}

/* caid makes no use of them yet. */
static void
look_fabric(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    struct drv_error why = {0};
    struct drv_device here;
    int ordinal = find_here(doctor, device, &here);

    if (ordinal < 0 || !here.fabric)
        finding_ok(ret, "fabric_none", "no");
    else if (vmm_try_fabric(doctor->drv, ordinal, here.granularity, &why) == 0)
        finding_ok(ret, "fabric_ok",
                   "memory can be made for other hosts of the NVLink domain, "
                   "which caid does not do");
    else
        finding_ok(ret, "fabric_refused", "the device has them, and a create is refused: %s",
                   why.message);
}

static void
look_persistence(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const char *mode = doctor->devices[device]->persistence;

    if (strcmp(mode, "on") == 0) {
        finding_ok(ret, "persistence_on", "on");
    } else if (strcmp(mode, "off") == 0) {
        finding_warning(ret, "persistence_off",
                        "off: the GPU is shut down while no process uses it, and the next one, "
                        "caid too, waits until it is up again");
        finding_remedy(ret, "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1");
    } else {
        finding_warning(ret, "persistence_unknown", "not known: NVML does not tell");
        finding_remedy(ret, "install libnvidia-ml.so.1, which comes with the driver");
    }
}

static void
look_compute_mode(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    const char *mode = doctor->devices[device]->compute_mode;

    if (strcmp(mode, "default") == 0) {
        finding_ok(ret, "compute_default", "default: any number of processes");
    } else if (strcmp(mode, "exclusive") == 0 && is_mps(doctor, device)) {
        finding_ok(ret, "compute_exclusive_mps", "exclusive, of the MPS server");
    } else if (strcmp(mode, "exclusive") == 0) {
        finding_problem(ret, "compute_exclusive",
                        "exclusive: only one process at a time can have a context");
        finding_remedy(ret, "nvidia-smi -c DEFAULT, or MPS");
    } else if (strcmp(mode, "prohibited") == 0) {
        finding_problem(ret, "compute_prohibited", "prohibited: no process can have a context");
        finding_remedy(ret, "nvidia-smi -c DEFAULT");
    } else {
        finding_warning(ret, "compute_unknown", "not known: the driver does not tell");
        finding_remedy(ret, "nvidia-smi -q -d COMPUTE shows it");
    }
}

static void
look_quarantine(const struct doctor *doctor, int32_t device, struct finding *ret)
{
    struct caid_memory_info info;

    if (ask_memory(doctor, device, &info) < 0) {
        finding_no_answer(ret, doctor);
        return;
    }
    if (info.quarantined == 0) {
        finding_ok(ret, "quarantine_none", "no block");
        return;
    }
    _cleanup_free_ char *bytes = format_bytes(info.quarantined_bytes, doctor->ctl->bytes);
    finding_warning(ret, "quarantine_some",
                    "%" PRIu64 " blocks of %s that the driver would not take back",
                    info.quarantined, bytes);
    finding_remedy(ret, "caid's log has the driver's error; a restart gives them back");
}

const struct check doctor_checks_device[] = {
    {"found", look_found},
    {"seen here", look_here},
    {"kinds of memory", look_kinds},
    {"stream memory operations", look_memops},
    {"read-only host memory", look_readonly_host},
    {"hand-off", look_handoff},
    {"MPS", look_mps},
    {"RDMA", look_rdma},
    {"fabric handles", look_fabric},
    {"persistence mode", look_persistence},
    {"compute mode", look_compute_mode},
    {"quarantine", look_quarantine},
    {NULL, NULL},
};
