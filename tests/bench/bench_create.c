/* SPDX-License-Identifier: Apache-2.0 */
/*
 * create + close of an array of 1 MiB through the daemon, warm, against what the CUDA driver itself
 * takes for memory of that size: cuMemAlloc + cuMemFree, and memory that others can map
 * (cuMemCreate, an exported fd, a mapping; 2 MiB, the granularity). The process has a primary
 * context, as whoever uses a GPU has, so that every close waits for the GPU's work.
 *
 * caid and cuMemAlloc take turns in short rounds, with the daemon where the scheduler likes, then
 * on this program's CPU, then on another. The median is what one pair takes; the mean has the
 * client's thread in it, which tells the daemon of the closes. Shared memory has a process of its
 * own, without caid: the driver exports and maps in a tenth of the time where another export is
 * alive in the process, so both are measured.
 *      usage: bench_create SOCKET, as the daemon's user or root
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bench.h"
#include "drv.h"
#include "floor.h"
#include "vmm.h"

#define ROUNDS     100
#define PER_ROUND  40
#define SHARES     200
#define N_BYTES    (1 << 20)
#define GOAL_ALLOC 3
#define GOAL_SHARE 20

struct bench {
    struct caid_client *client;
    struct drv *drv;
    struct drv_device device;
    const char *uuid;
    double share_us[2]; /* the only export of its process; with another one alive */
};

struct times {
    uint64_t ns[ROUNDS * PER_ROUND];
    uint64_t total_ns;
};

static void
check(int r, const struct drv_error *cause)
{
    if (r < 0)
        errx(1, "%s", cause->message);
}

static void
caid_cycle(struct bench *b)
{
    bench_make(b->client, NULL, N_BYTES);
}

static void
alloc_cycle(struct bench *b)
{
    CUdeviceptr at;

    MUST_CUDA(b->drv->cu.cuMemAlloc(&at, N_BYTES));
    MUST_CUDA(b->drv->cu.cuMemFree(at));
}

/* ---- the peer that shares memory: in a process of its own ---- */

struct shared {
    struct vmm_alloc alloc;
    struct vmm_map map;
    int fd;
};

static void
share(struct bench *b, struct shared *ret)
{
    size_t size = ALIGN_UP((size_t)N_BYTES, b->device.granularity);
    struct drv_error cause;

    check(vmm_alloc_create(b->drv, b->device.ordinal, size, false, &ret->alloc, &cause),
          &cause);
    check(vmm_alloc_export(b->drv, &ret->alloc, &ret->fd, &cause), &cause);
    check(vmm_map_new(b->drv, &ret->alloc, 0, b->device.ordinal, VMM_READ_WRITE, &ret->map,
                      &cause),
          &cause);
}

static void
unshare(struct bench *b, struct shared *shared)
{
    struct drv_error cause;

    vmm_map_free(b->drv, &shared->map);
    check(vmm_alloc_release(b->drv, &shared->alloc, &cause), &cause);
    fd_close(shared->fd);
}

static double
share_median_us(struct bench *b)
{
    uint64_t ns[SHARES];

    for (size_t i = 0; i < ARRAY_SIZE(ns); i++) {
        struct shared shared;
        uint64_t start = clock_now_ns();
        share(b, &shared); /* what undoes it is not counted */
        ns[i] = clock_now_ns() - start;
        unshare(b, &shared);
    }
    return (double)median_ns(ns, ARRAY_SIZE(ns)) / 1e3;
}

static void
share_alone(struct bench *b, int result)
{
    struct shared other;

    b->share_us[0] = share_median_us(b);
    share(b, &other);
    b->share_us[1] = share_median_us(b);
    unshare(b, &other);
    if (write(result, b->share_us, sizeof(b->share_us)) != sizeof(b->share_us))
        err(1, "write");
}

static void
measure(struct bench *b, void (*cycle)(struct bench *), struct times *ret, size_t first)
{
    uint64_t begun = clock_now_ns();

    for (size_t i = first; i < first + PER_ROUND; i++) {
        uint64_t start = clock_now_ns();
        cycle(b);
        ret->ns[i] = clock_now_ns() - start;
    }
    ret->total_ns += clock_now_ns() - begun;
}

static double
print(const char *what, const char *where, struct times *t)
{
    size_t n = ARRAY_SIZE(t->ns);
    double median_us = (double)median_ns(t->ns, n) / 1e3;

    printf("%s, %s: median %.1f us, 99 %% within %.1f us, mean %.1f us\n", what, where,
           median_us, (double)p99_ns(t->ns, n) / 1e3, (double)t->total_ns / (double)n / 1e3);
    t->total_ns = 0;
    return median_us;
}

static void
run(const char *where, int cpu UNUSED, void *userdata)
{
    static struct times caid, alloc;
    struct bench *b = userdata;

    caid_cycle(b); /* warm */
    for (size_t n = 0; n < ARRAY_SIZE(caid.ns); n += PER_ROUND) {
        measure(b, caid_cycle, &caid, n);
        measure(b, alloc_cycle, &alloc, n);
    }
    double caid_us = print("create + close of 1 MiB, C", where, &caid);
    double alloc_us = print("cuMemAlloc + cuMemFree of 1 MiB", where, &alloc);
    printf(
        "create + close, %s: faster than cuMemAlloc + cuMemFree %.2f times (goal on a GPU: %d), "
        "than cuMemCreate + export + map %.1f times (goal: %d), %.1f where another export is "
        "alive\n",
        where, alloc_us / caid_us, GOAL_ALLOC, b->share_us[0] / caid_us, GOAL_SHARE,
        b->share_us[1] / caid_us);
    fflush(stdout);
}

/* The device that the daemon calls its first. */
static void
find_device(struct bench *b)
{
    struct drv_error cause;
    int n = 0;

    check(drv_device_count(b->drv, &n, &cause), &cause);
    for (int i = 0; i < n; i++) {
        check(drv_device_get(b->drv, i, &b->device, &cause), &cause);
        if (strcmp(b->device.uuid, b->uuid) == 0)
            return;
    }
    errx(1, "device %s is not here", b->uuid);
}

static void
take_context(struct bench *b, const char *driver)
{
    struct drv_error cause;
    CUcontext context;

    check(drv_open(&b->drv, driver, &cause), &cause);
    find_device(b);
    MUST_CUDA(b->drv->cu.cuDevicePrimaryCtxRetain(&context, b->device.ordinal));
    MUST_CUDA(b->drv->cu.cuCtxSetCurrent(context));
}

/* The child is made before this process has opened a driver. */
static void
measure_share(struct bench *b, const char *driver)
{
    int fds[2], status;
    pid_t child;

    if (pipe(fds) < 0 || (child = fork()) < 0)
        err(1, "no child");
    if (child == 0) {
        take_context(b, driver);
        share_alone(b, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    ssize_t n = read(fds[0], b->share_us, sizeof(b->share_us));
    close(fds[0]);
    if (waitpid(child, &status, 0) < 0 || status != 0 || n != sizeof(b->share_us))
        errx(1, "the process that shares memory failed");
    printf(
        "cuMemCreate + export + map of 2 MiB: median %.1f us, where another export is alive in "
        "the process %.1f us\n",
        b->share_us[0], b->share_us[1]);
}

int
main(int argc, char **argv)
{
    OPTIONS(caid_status, status);
    const struct caid_device *const *devices;
    struct bench b = {0};

    if (argc != 2)
        errx(1, "usage: bench_create SOCKET");
    b.client = program_connect(argv[1]);
    MUST(caid_client_status(b.client, &status, &error));
    if (caid_client_devices(b.client, &devices) < 1)
        errx(1, "the daemon has no device");
    b.uuid = devices[0]->uuid;
    measure_share(&b, status.driver);
    take_context(&b, status.driver);
    bench_each_placement(b.client, run, &b);
    caid_client_close(b.client);
    b.drv->cu.cuDevicePrimaryCtxRelease(b.device.ordinal);
    drv_free(b.drv);
    return 0;
}
