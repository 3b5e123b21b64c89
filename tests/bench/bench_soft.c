/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the software driver itself costs, so that it does not hide what the daemon does: medians,
 * with the target beside them where there is one. Without a delay setting.
 *      usage: bench_soft
 */
#include <err.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "driver/soft/soft_peer.h"
#include "driver/soft/soft_test.h"
#include "floor.h"

#define N_CYCLES 500
#define N_ROUNDS 15
#define N_OPS    10000 /* in each round */
#define N_TRIPS  1000  /* the same */

static void
print(const char *what, uint64_t ns, double target_us)
{
    printf("software driver, %s: %.2f us", what, (double)ns / 1e3);
    if (target_us > 0)
        printf(" (target: at most %.0f us)", target_us);
    printf("\n");
    fflush(stdout);
}

static void
print_cycles(const char *what, void (*cycle)(void), double target_us)
{
    static uint64_t ns[N_CYCLES];
    for (size_t i = 0; i < N_CYCLES; i++) {
        uint64_t start = clock_now_ns();
        cycle();
        ns[i] = clock_now_ns() - start;
    }
    print(what, median_ns(ns, N_CYCLES), target_us);
}

/* From memory to a mapping of it by who it was exported to, and all of it back. */
static void
share_cycle(void)
{
    struct soft_mapping mapping = {.size = GRAN};
    CUmemAllocationProp prop = soft_prop(0);
    CUmemGenericAllocationHandle exported;
    int fd;
    MUST(cuMemCreate(&exported, GRAN, &prop, 0));
    MUST(cuMemExportToShareableHandle(&fd, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      0));
    MUST(cuMemImportFromShareableHandle(&mapping.handle, (void *)(intptr_t)fd,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemAddressReserve(&mapping.at, GRAN, 0, 0, 0));
    MUST(cuMemMap(mapping.at, GRAN, 0, mapping.handle, 0));
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    soft_unmap(&mapping);
    MUST(cuMemRelease(exported));
    close(fd);
}

static void
alloc_cycle(void)
{
    CUdeviceptr at;
    MUST(cuMemAlloc_v2(&at, GRAN));
    MUST(cuMemFree_v2(at));
}

/* Operations that do next to nothing. */

static CUevent event;
static CUdeviceptr byte;

static void
do_nothing(void *data UNUSED)
{
}

static void
enqueue_record(CUstream stream)
{
    MUST(cuEventRecord(event, stream));
}

static void
enqueue_host_function(CUstream stream)
{
    MUST(cuLaunchHostFunc(stream, do_nothing, NULL));
}

static void
enqueue_fill(CUstream stream)
{
    MUST(cuMemsetD8Async(byte, 1, 1, stream));
}

static void
enqueue_alloc(CUstream stream)
{
    CUdeviceptr at;
    MUST(cuMemAllocAsync(&at, GRAN, stream));
    MUST(cuMemFreeAsync(at, stream));
}

/* Per operation, the wait for all of them included. */
static void
print_ops(const char *what, void (*enqueue)(CUstream), CUstream stream, double target_us)
{
    uint64_t ns[N_ROUNDS];
    for (size_t i = 0; i < N_ROUNDS; i++) {
        uint64_t start = clock_now_ns();
        for (int n = 0; n < N_OPS; n++)
            enqueue(stream);
        MUST(cuStreamSynchronize(stream));
        ns[i] = (clock_now_ns() - start) / N_OPS;
    }
    print(what, median_ns(ns, N_ROUNDS), target_us);
}

/* With another process. */

#define WORD_THERE 0 /* in the page, written by this process */
#define WORD_BACK  64

static unsigned char *page; /* shared by both, mapped before the fork */

static CUdeviceptr
page_register(void)
{
    CUdeviceptr at;
    MUST(cuMemHostRegister_v2(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer_v2(&at, page, 0));
    return at;
}

/* Answers N_TRIPS values from the first one on, all enqueued at once. */
static void
answer_trips(CUstream stream, CUdeviceptr at, uint64_t first)
{
    for (uint64_t value = first; value < first + N_TRIPS; value++) {
        MUST(cuStreamWaitValue64_v2(stream, at + WORD_THERE, value, CU_STREAM_WAIT_VALUE_GEQ));
        MUST(cuStreamWriteValue64_v2(stream, at + WORD_BACK, value, 0));
    }
}

/* What this process enqueues while the other one's stream waits: both streams go on by
 * themselves. In nanoseconds for each trip, of two hand-offs. */
static uint64_t
make_trips(CUstream stream, CUdeviceptr at, uint64_t first)
{
    uint64_t start = clock_now_ns();
    for (uint64_t value = first; value < first + N_TRIPS; value++) {
        MUST(cuStreamWriteValue64_v2(stream, at + WORD_THERE, value, 0));
        MUST(cuStreamWaitValue64_v2(stream, at + WORD_BACK, value, CU_STREAM_WAIT_VALUE_GEQ));
    }
    MUST(cuStreamSynchronize(stream));
    return (clock_now_ns() - start) / N_TRIPS;
}

/* The other process: makes events, then answers. */
static void
peer_body(int socket)
{
    static CUevent events[N_CYCLES];
    CUipcEventHandle handle;
    CUstream stream;
    uint64_t first;
    soft_start_context();
    for (size_t i = 0; i < N_CYCLES; i++) {
        MUST(cuEventCreate(&events[i], CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
        MUST(cuIpcGetEventHandle(&handle, events[i]));
        peer_say(socket, &handle, sizeof(handle));
    }
    CUdeviceptr at = page_register();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (peer_hear_if_any(socket, &first, sizeof(first))) {
        answer_trips(stream, at, first);
        peer_say(socket, &first, sizeof(first));
    }
}

static void
print_event_opens(int socket)
{
    uint64_t ns[N_CYCLES];
    for (size_t i = 0; i < N_CYCLES; i++) {
        CUipcEventHandle handle;
        CUevent opened;
        peer_hear(socket, &handle, sizeof(handle));
        uint64_t start = clock_now_ns();
        MUST(cuIpcOpenEventHandle(&opened, handle));
        ns[i] = clock_now_ns() - start;
        MUST(cuEventDestroy_v2(opened));
    }
    print("opening an inter-process event", median_ns(ns, N_CYCLES), 0);
}

static void
print_trips(int socket, CUstream stream)
{
    uint64_t ns[N_ROUNDS], first = 1, answer;
    CUdeviceptr at = page_register();
    for (size_t i = 0; i < N_ROUNDS; i++, first += N_TRIPS) {
        peer_say(socket, &first, sizeof(first));
        peer_hear(socket, &answer, sizeof(answer)); /* it has enqueued all */
        ns[i] = make_trips(stream, at, first);
    }
    print("hand-off to another process and back, stream memory operations",
          median_ns(ns, N_ROUNDS), 0);
    MUST(cuMemHostUnregister(page));
}

int
main(void)
{
    CUstream stream;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        err(1, "mmap");
    struct peer peer = peer_start(peer_body);
    soft_start_context();
    print_cycles("create + export + import + map + release of 2 MiB", share_cycle, 150);
    print_cycles("cuMemAlloc + cuMemFree of 2 MiB", alloc_cycle, 0);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc_v2(&byte, 1));
    print_ops("one of 10,000 event records", enqueue_record, stream, 10);
    print_ops("one of 10,000 empty host functions", enqueue_host_function, stream, 10);
    print_ops("one of 10,000 fills of a byte", enqueue_fill, stream, 10);
    print_ops("one of 10,000 cuMemAllocAsync + cuMemFreeAsync of 2 MiB", enqueue_alloc, stream,
              0);
    print_event_opens(peer.socket);
    print_trips(peer.socket, stream);
    peer_end(&peer);
    MUST(cuMemFree_v2(byte));
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}
