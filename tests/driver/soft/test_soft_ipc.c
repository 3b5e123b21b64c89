/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of another process, by legacy inter-process handles. */
#include "caid_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "soft/share.h"
#include "soft_peer.h"
#include "soft_test.h"

#define SIZE  ((size_t)3 << 20)
#define FLAGS CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

/* A process that owns memory full of 0xab, tells its handle, and does what it is told. */

static void
owner_obey(char order, CUdeviceptr memory, int socket)
{
    unsigned char first = 0;
    switch (order) {
    case 'f': MUST(cuMemFree_v2(memory)); break;
    case 'r': MUST(cuDevicePrimaryCtxReset_v2(0)); break;
    case 'l': MUST(cuMemcpyDtoH_v2(&first, memory, 1)); break;
    case 'c': /* a forked child, which lives on when its parent is killed */
        if (fork() == 0) {
            char byte;
            peer_hear_if_any(socket, &byte, 1);
            _exit(0);
        }
        break;
    default: abort();
    }
    peer_say(socket, &first, 1);
}

static void
own_memory(int socket)
{
    CUipcMemHandle told;
    soft_start_context();
    CUdeviceptr memory = soft_memory(SIZE);
    soft_fill(memory, 0xab, SIZE);
    MUST(cuIpcGetMemHandle(&told, memory));
    peer_say(socket, &told, sizeof(told));
    for (char order;; owner_obey(order, memory, socket))
        peer_hear(socket, &order, 1);
}

static struct peer owner;
static CUipcMemHandle handle;

static void
start_owner(void)
{
    owner = peer_start(own_memory);
    peer_hear(owner.socket, &handle, sizeof(handle));
}

static void
start_both(void)
{
    start_owner();
    soft_start_context();
}

#define OWNER_TEST(name) \
    CAID_TEST_BETWEEN(soft_ipc, name, start_both(), soft_end(), .timeout = 60)

static unsigned char
tell(char order)
{
    unsigned char answer;
    peer_say(owner.socket, &order, 1);
    peer_hear(owner.socket, &answer, 1);
    return answer;
}

OWNER_TEST(pointers_tell_what_they_are)
{
    CUdeviceptr at, own, base;
    CUcontext context;
    size_t size;
    MUST(cuCtxGetCurrent(&context));
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuMemGetAddressRange_v2(&base, &size, at + 4096));
    cr_assert_eq(base, at);
    cr_assert_eq(size, SIZE);
    ATTRIBUTE_IS(CONTEXT, at, context);
    ATTRIBUTE_IS(DEVICE_ORDINAL, at, 0);
    MUST(cuMemAlloc_v2(&own, 4096));
    ATTRIBUTE_IS(IS_LEGACY_CUDA_IPC_CAPABLE, own, 1);
    MUST(cuMemFree_v2(own));
    struct soft_mapping mapping = soft_map(GRAN, 3);
    ATTRIBUTE_IS(IS_LEGACY_CUDA_IPC_CAPABLE, mapping.at, 0);
    soft_unmap(&mapping);
}

SOFT_TEST(soft_ipc, only_device_allocations_have_handles)
{
    CUdeviceptr at;
    void *host;
    int local;
    struct soft_mapping mapping = soft_map(GRAN, 3);
    REFUSED(INVALID_VALUE, cuIpcGetMemHandle(&handle, mapping.at));
    soft_unmap(&mapping);
    MUST(cuMemHostAlloc(&host, 4096, 0));
    REFUSED(INVALID_VALUE, cuIpcGetMemHandle(&handle, (uintptr_t)host));
    MUST(cuMemFreeHost(host));
    REFUSED(INVALID_VALUE, cuIpcGetMemHandle(&handle, (uintptr_t)&local));
    REFUSED(INVALID_VALUE, cuIpcGetMemHandle(&handle, 0));
    MUST(cuMemAlloc_v2(&at, 4096));
    REFUSED(INVALID_VALUE, cuIpcGetMemHandle(NULL, at));
    REFUSED(INVALID_VALUE, cuIpcCloseMemHandle(at));
    REFUSED(INVALID_VALUE, cuIpcCloseMemHandle(0));
}

/* A handle with any bit wrong, of zeros or of noise, is refused by somebody. One with another
 * process in it is one of a process that has ended. */
OWNER_TEST(forged_handles_are_refused)
{
    CUipcMemHandle forged;
    CUdeviceptr at;
    REFUSED(INVALID_VALUE, cuIpcOpenMemHandle_v2(NULL, handle, FLAGS));
    REFUSED(INVALID_VALUE, cuIpcOpenMemHandle_v2(&at, handle, 2));
    for (size_t i = 0; i < 8 * sizeof(handle); i++) {
        forged = handle;
        forged.reserved[i / 8] = (char)(forged.reserved[i / 8] ^ 1 << i % 8);
        bool of_nobody = i / 64 == offsetof(struct share_ticket, socket) / 8;
        cr_assert_eq(cu.cuIpcOpenMemHandle_v2(&at, forged, FLAGS),
                     of_nobody ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE,
                     "bit %zu", i);
    }
    memset(&forged, 0, sizeof(forged));
    REFUSED(INVALID_VALUE, cuIpcOpenMemHandle_v2(&at, forged, FLAGS));
    memset(&forged, 0xa5, sizeof(forged));
    REFUSED(INVALID_VALUE, cuIpcOpenMemHandle_v2(&at, forged, FLAGS));
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
}

/* A connection to the process that gave the handle out. */
static int
connect_to_owner(void)
{
    struct share_ticket ticket;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(&ticket, &handle, sizeof(ticket));
    int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                     "caid-softcuda-%016llx", (unsigned long long)ticket.socket);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, size), 0);
    return fd;
}

/* However many connect and say nothing, hang up, or talk nonsense, others are answered. */
OWNER_TEST(rude_peers_do_no_harm)
{
    CUdeviceptr at;
    char nonsense[4096] = "what?", byte;
    int silent[40];
    for (size_t i = 0; i < ARRAY_SIZE(silent); i++)
        silent[i] = connect_to_owner();
    close(connect_to_owner());
    int rude = connect_to_owner();
    cr_assert_eq(send(rude, nonsense, sizeof(nonsense), MSG_NOSIGNAL), sizeof(nonsense));
    cr_assert_leq(recv(rude, &byte, 1, 0), 0);
    close(rude);
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuIpcCloseMemHandle(at));
    for (size_t i = 0; i < ARRAY_SIZE(silent); i++)
        close(silent[i]);
    tell('l');
}

OWNER_TEST(a_mapping_outlives_its_owner)
{
    CUdeviceptr at, again;
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    peer_kill(&owner);
    cr_assert(soft_holds(at, 0xab, SIZE));
    USED_IS(SIZE, "it counts as long as somebody has it");
    int fds = test_count_fds();
    MUST(cuIpcOpenMemHandle_v2(&again, handle, FLAGS));
    cr_assert_eq(again, at);
    cr_assert_eq(test_count_fds_later(fds), fds);
    REFUSED(INVALID_VALUE, cuMemFree_v2(at));
    REFUSED(INVALID_VALUE, cuIpcCloseMemHandle(at + 1));
    MUST(cuIpcCloseMemHandle(at));
    MUST(cuIpcCloseMemHandle(at));
    cr_assert_eq(soft_live("opened"), 0);
    USED_IS(0);
    REFUSED(INVALID_HANDLE, cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
}

OWNER_TEST(a_reset_ends_what_the_owner_offers)
{
    CUdeviceptr at;
    tell('r');
    REFUSED(INVALID_VALUE, cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    USED_IS(0);
}

CAID_TEST(soft_ipc, a_forked_child_offers_nothing)
{
    CUdeviceptr at;
    start_both();
    tell('c');
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuIpcCloseMemHandle(at));
    kill(owner.pid, SIGKILL);
    waitpid(owner.pid, NULL, 0);
    REFUSED(INVALID_HANDLE, cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    USED_IS(0);
    close(owner.socket);
}

OWNER_TEST(one_context_of_a_device_has_it)
{
    CUdeviceptr at, other_at;
    CUcontext primary, other;
    MUST(cuCtxGetCurrent(&primary));
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuCtxCreate_v2(&other, 0, 0));
    REFUSED(INVALID_HANDLE, cuIpcOpenMemHandle_v2(&other_at, handle, FLAGS));
    MUST(cuIpcCloseMemHandle(at)); /* whoever is current */
    MUST(cuIpcOpenMemHandle_v2(&other_at, handle, FLAGS));
    MUST(cuCtxSetCurrent(primary));
    REFUSED(INVALID_HANDLE, cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuCtxDestroy_v2(other));
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuIpcCloseMemHandle(at));
    cr_assert_eq(soft_live("opened"), 0);
}

SOFT_TEST_LATE(soft_ipc, each_device_has_its_own)
{
    CUdeviceptr at, other_at;
    CUcontext first, second;
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    start_owner();
    first = soft_start_context();
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxSetCurrent(second));
    MUST(cuIpcOpenMemHandle_v2(&other_at, handle, FLAGS));
    cr_assert_neq(at, other_at);
    ATTRIBUTE_IS(DEVICE_ORDINAL, other_at, 1);
    soft_fill(other_at, 0x11, SIZE);
    MUST(cuCtxSetCurrent(first));
    cr_assert(soft_holds(at, 0x11, SIZE));
    USED_IS(SIZE);
}

OWNER_TEST(what_is_open_ends_with_its_context)
{
    CUdeviceptr at;
    CUcontext context;
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    cr_assert_eq(soft_live("opened"), 0);
    REFUSED(CONTEXT_IS_DESTROYED, cuIpcCloseMemHandle(at));
    tell('f');
    /* the thread that answered the owner's peers may have a file of it open for a moment */
    USED_IS(0);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    REFUSED(INVALID_VALUE, cuIpcCloseMemHandle(at));
}

/* A process whose own devices are others can still use it. */
SOFT_TEST_LATE(soft_ipc, memory_of_an_unknown_device_is_opened)
{
    CUdeviceptr at;
    start_owner();
    setenv("CAID_SOFTCUDA_UUID", "GPU-ffffffff-0000-4000-8000-000000000002", 1);
    soft_start_context();
    MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
    ATTRIBUTE_IS(DEVICE_ORDINAL, at, 0);
    cr_assert(soft_holds(at, 0xab, SIZE));
    USED_IS(0, "not of this device");
}

/* Threads that open and close the same memory at once. */

#define N_THREADS 8
#define N_ROUNDS  200

struct opener {
    pthread_t thread;
    CUcontext context;
};

static void *
open_and_close(void *arg)
{
    const struct opener *opener = arg;
    CUdeviceptr at, again;
    MUST(cuCtxSetCurrent(opener->context));
    for (int i = 0; i < N_ROUNDS; i++) {
        MUST(cuIpcOpenMemHandle_v2(&at, handle, FLAGS));
        if (!soft_holds(at, 0xab, 64))
            abort();
        MUST(cuIpcOpenMemHandle_v2(&again, handle, FLAGS));
        if (again != at) /* it was open all the time */
            abort();
        MUST(cuIpcCloseMemHandle(at));
        MUST(cuIpcCloseMemHandle(at));
    }
    return NULL;
}

OWNER_TEST(threads_open_and_close_at_once)
{
    struct opener openers[N_THREADS];
    CUcontext context;
    MUST(cuCtxGetCurrent(&context));
    for (int i = 0; i < N_THREADS; i++) {
        openers[i] = (struct opener){.context = context};
        pthread_create(&openers[i].thread, NULL, open_and_close, &openers[i]);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(openers[i].thread, NULL);
    cr_assert_eq(soft_live("opened"), 0);
    peer_end(&owner);
    USED_IS(0);
}
