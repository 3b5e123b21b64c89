/* SPDX-License-Identifier: Apache-2.0 */
/* Inter-process events. */
#include "caid_test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "soft_peer.h"
#include "soft_test.h"

#define FLAGS (CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)

/* A process that creates an event and memory, tells their handles, and does what it is told. */

struct owner {
    CUevent event;
    CUstream stream;
    CUdeviceptr memory;
    struct gate gate;
};

struct handles {
    CUipcEventHandle event;
    CUipcMemHandle memory;
};

static CUresult
owner_obey(struct owner *own, char order)
{
    switch (order) {
    case 'g': gate_close(&own->gate, own->stream); return CUDA_SUCCESS;
    case 'o': gate_open(&own->gate); return CUDA_SUCCESS;
    case 'm': return cu.cuMemsetD8Async(own->memory, 0x5a, MIB, own->stream);
    case 'r': return cu.cuEventRecord(own->event, own->stream);
    case 'w': return cu.cuStreamWaitEvent(own->stream, own->event, 0);
    case 'q': return cu.cuStreamQuery(own->stream);
    case 'e': return cu.cuEventQuery(own->event);
    case 's': return cu.cuStreamSynchronize(own->stream);
    case 'd': return cu.cuEventDestroy_v2(own->event);
    case 'f':
        return (CUresult)cu.caid_softcuda_control("fault 0 LAUNCH_FAILED", (char[64]){0}, 64);
    default: abort();
    }
}

static void
own_event(int socket)
{
    struct owner own;
    struct handles told;
    soft_start_context();
    MUST(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&own.event, FLAGS));
    MUST(cuMemAlloc_v2(&own.memory, MIB));
    MUST(cuIpcGetEventHandle(&told.event, own.event));
    MUST(cuIpcGetMemHandle(&told.memory, own.memory));
    peer_say(socket, &told, sizeof(told));
    for (;;) {
        char order;
        peer_hear(socket, &order, 1);
        CUresult result = owner_obey(&own, order);
        peer_say(socket, &result, sizeof(result));
    }
}

static struct peer owner;
static struct handles handles;
static CUevent event;

static void
start_owner(void)
{
    owner = peer_start(own_event);
    peer_hear(owner.socket, &handles, sizeof(handles));
}

/* The owner, and the event opened in the context that is made current. */
static void
start_both(void)
{
    start_owner();
    soft_start_context();
    MUST(cuIpcOpenEventHandle(&event, handles.event));
}

static void
end_both(void)
{
    cu.cuEventDestroy_v2(event); /* where it has not ended before */
    soft_end();
}

#define OWNER_TEST(name) \
    CAID_TEST_BETWEEN(soft_ipc_event, name, start_both(), end_both(), .timeout = 60)

static CUresult
tell(char order)
{
    CUresult result;
    peer_say(owner.socket, &order, 1);
    peer_hear(owner.socket, &result, sizeof(result));
    return result;
}

static void
tell_all(const char *orders)
{
    for (; *orders; orders++)
        cr_assert_eq(tell(*orders), CUDA_SUCCESS, "%s", orders);
}

OWNER_TEST(the_owner_waits_for_who_opened_it)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    gate_close(&gate, stream);
    MUST(cuEventRecord(event, stream));
    cr_assert_eq(tell('e'), CUDA_ERROR_NOT_READY);
    tell_all("w");
    cr_assert_eq(tell('q'), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    tell_all("sqe");
    MUST(cuStreamSynchronize(stream));
}

/* One that was made later, by whatever process, does not pass earlier. */
OWNER_TEST(records_pass_in_their_order)
{
    CUstream waiting = soft_stream(CU_STREAM_NON_BLOCKING);
    CUstream recording = soft_stream(CU_STREAM_NON_BLOCKING);
    tell_all("gr");
    MUST(cuStreamWaitEvent(waiting, event, 0));
    MUST(cuEventRecord(event, recording));
    REFUSED(NOT_READY, cuStreamQuery(recording));
    REFUSED(NOT_READY, cuStreamQuery(waiting));
    REFUSED(NOT_READY, cuEventQuery(event));
    tell_all("o");
    MUST(cuStreamSynchronize(waiting));
    MUST(cuStreamSynchronize(recording));
    MUST(cuEventQuery(event));
}

OWNER_TEST(it_outlives_its_owners_handle)
{
    tell_all("grd");
    REFUSED(NOT_READY, cuEventQuery(event));
    tell_all("os");
    MUST(cuEventSynchronize(event));
    MUST(cuEventRecord(event, NULL));
    MUST(cuEventSynchronize(event));
}

/* Who has it open can open it again, whatever became of its owner; others cannot. */
OWNER_TEST(what_is_open_can_be_opened_again)
{
    CUevent again;
    MUST(cuIpcOpenEventHandle(&again, handles.event));
    cr_assert_neq(again, event);
    REFUSED(INVALID_HANDLE,
            cuIpcGetEventHandle(&handles.event, again)); /* only its creator does */
    MUST(cuEventDestroy_v2(again));
    peer_kill(&owner);
    MUST(cuIpcOpenEventHandle(&again, handles.event));
    MUST(cuEventDestroy_v2(event));
    MUST(cuEventRecord(again, NULL));
    MUST(cuEventSynchronize(again));
    MUST(cuStreamSynchronize(NULL)); /* the operation has let go of it, too */
    MUST(cuEventDestroy_v2(again));
    REFUSED(MAP_FAILED, cuIpcOpenEventHandle(&again, handles.event));
}

/* A record of a killed process never passes, nor does any after it. Other streams do not mind, nor
 * does the exit. */

static void
wait_for_the_dead(int socket)
{
    CUipcEventHandle handle;
    CUevent event, ordinary;
    char byte;
    peer_hear(socket, &handle, sizeof(handle));
    soft_start_context();
    CUstream waiting = soft_stream(CU_STREAM_NON_BLOCKING);
    CUstream other = soft_stream(CU_STREAM_NON_BLOCKING);
    MUST(cuEventCreate(&ordinary, 0));
    MUST(cuIpcOpenEventHandle(&event, handle));
    MUST(cuStreamWaitEvent(waiting, event, 0));
    MUST(cuEventRecord(ordinary, waiting));
    peer_say(socket, "", 1);
    peer_hear(socket, &byte, 1); /* the owner was killed */
    CUstream recording = soft_stream(CU_STREAM_NON_BLOCKING);
    MUST(cuEventRecord(event, recording));
    for (int i = 0; i < 100; i++) {
        MUST(cuLaunchHostFunc(other, (CUhostFn)free, NULL));
        MUST(cuStreamSynchronize(other));
    }
    peer_check(cu.cuStreamQuery(waiting) == CUDA_ERROR_NOT_READY);
    peer_check(cu.cuStreamQuery(recording) == CUDA_ERROR_NOT_READY);
    peer_check(cu.cuEventQuery(ordinary) == CUDA_ERROR_NOT_READY);
    peer_check(cu.cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    MUST(cuStreamDestroy_v2(waiting));
    MUST(cuEventDestroy_v2(event));
    exit(0);
}

CAID_TEST(soft_ipc_event, a_record_of_the_dead_never_passes)
{
    char byte;
    struct peer waiter = peer_start(wait_for_the_dead);
    start_owner();
    tell_all("gr");
    peer_say(waiter.socket, &handles.event, sizeof(handles.event));
    peer_hear(waiter.socket, &byte, 1);
    peer_kill(&owner);
    peer_say(waiter.socket, &byte, 1);
    peer_wait(&waiter);
}

/* A fault of the waiting device ends its waits; one of the recording device ends none. */

static void
fault_while_waiting(int socket)
{
    CUipcEventHandle handle;
    CUevent event;
    char reply[64];
    peer_hear(socket, &handle, sizeof(handle));
    soft_start_context();
    MUST(cuIpcOpenEventHandle(&event, handle));
    MUST(cuStreamWaitEvent(NULL, event, 0));
    peer_check(cu.cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
    peer_check(cu.caid_softcuda_control("fault 0 LAUNCH_FAILED", reply, sizeof(reply)) == 0);
    peer_check(cu.cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS); /* waits for the stream */
}

SOFT_TEST_LATE(soft_ipc_event, a_fault_ends_the_waits)
{
    struct peer waiter = peer_start(fault_while_waiting);
    start_owner();
    tell_all("gr");
    peer_say(waiter.socket, &handles.event, sizeof(handles.event));
    peer_wait(&waiter);
}

OWNER_TEST(a_faulted_process_signals_no_more)
{
    tell_all("grfo");
    cr_assert_eq(tell('s'), CUDA_ERROR_LAUNCH_FAILED);
    REFUSED(NOT_READY, cuEventQuery(event));
}

/* A handle of memory is none of an event, nor is a wrong bit forgiven. */
SOFT_TEST_LATE(soft_ipc_event, forged_handles_are_refused)
{
    CUipcEventHandle forged;
    start_owner();
    soft_start_context();
    REFUSED(INVALID_VALUE, cuIpcOpenEventHandle(NULL, handles.event));
    for (size_t i = 0; i < 8 * sizeof(forged); i++) {
        forged = handles.event;
        forged.reserved[i / 8] = (char)(forged.reserved[i / 8] ^ 1 << i % 8);
        REFUSED(MAP_FAILED, cuIpcOpenEventHandle(&event, forged));
    }
    memcpy(&forged, &handles.memory, sizeof(forged));
    REFUSED(MAP_FAILED, cuIpcOpenEventHandle(&event, forged));
    memset(&forged, 0, sizeof(forged));
    REFUSED(MAP_FAILED, cuIpcOpenEventHandle(&event, forged));
}

OWNER_TEST(it_ends_with_its_context)
{
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&(CUcontext){0}, 0));
    REFUSED(CONTEXT_IS_DESTROYED, cuEventQuery(event));
    REFUSED(CONTEXT_IS_DESTROYED, cuEventDestroy_v2(event));
}

SOFT_TEST_LATE(soft_ipc_event, a_forked_child_has_none)
{
    int status, before = test_count_fds();
    soft_start_context();
    CUevent event = soft_event(FLAGS);
    cr_assert_eq(test_count_fds(), before + 1);
    pid_t pid = fork();
    if (pid == 0)
        _exit(test_count_fds() != before);
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
    MUST(cuEventDestroy_v2(event)); /* it has an fd, which a reset leaves it */
}

/* A fault wakes who waits for another process's records; in a forked child there is nobody to wake,
 * and none of the pages. */
SOFT_TEST(soft_ipc_event, a_fault_in_a_forked_child_touches_no_event)
{
    int status;
    CUevent event = soft_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    pid_t child = fork();
    if (child == 0) {
        char reply[64];
        _exit(cu.caid_softcuda_control("fault 0 700", reply, sizeof(reply)) == 0 ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    MUST(cuEventDestroy_v2(event));
}
