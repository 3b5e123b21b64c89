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
owner_obey(struct owner *owner, char order)
{
    switch (order) {
    case 'g': gate_close(&owner->gate, owner->stream); return CUDA_SUCCESS;
    case 'o': gate_open(&owner->gate); return CUDA_SUCCESS;
    case 'm': return cu.cuMemsetD8Async(owner->memory, 0x5a, MIB, owner->stream);
    case 'r': return cu.cuEventRecord(owner->event, owner->stream);
    case 'w': return cu.cuStreamWaitEvent(owner->stream, owner->event, 0);
    case 'q': return cu.cuStreamQuery(owner->stream);
    case 'e': return cu.cuEventQuery(owner->event);
    case 's': return cu.cuStreamSynchronize(owner->stream);
    case 'd': return cu.cuEventDestroy_v2(owner->event);
    case 'f':
        return (CUresult)cu.caid_softcuda_control("fault 0 LAUNCH_FAILED", (char[64]){0}, 64);
    default: abort();
    }
}

static void
own_event(int socket)
{
    struct owner owner;
    struct handles handles;
    soft_start_context();
    MUST(cuStreamCreate(&owner.stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&owner.event, FLAGS));
    MUST(cuMemAlloc_v2(&owner.memory, MIB));
    MUST(cuIpcGetEventHandle(&handles.event, owner.event));
    MUST(cuIpcGetMemHandle(&handles.memory, owner.memory));
    peer_say(socket, &handles, sizeof(handles));
    for (;;) {
        char order;
        peer_hear(socket, &order, 1);
        CUresult result = owner_obey(&owner, order);
        peer_say(socket, &result, sizeof(result));
    }
}

static CUresult
tell(const struct peer *owner, char order)
{
    CUresult result;
    peer_say(owner->socket, &order, 1);
    peer_hear(owner->socket, &result, sizeof(result));
    return result;
}

static void
tell_all(const struct peer *owner, const char *orders)
{
    for (; *orders; orders++)
        cr_assert_eq(tell(owner, *orders), CUDA_SUCCESS, "%s", orders);
}

/* The owner, and the event opened in the context that is made current. */
static struct peer
start_both(CUevent *ret_event)
{
    struct handles handles;
    struct peer owner = peer_start(own_event);
    peer_hear(owner.socket, &handles, sizeof(handles));
    soft_start_context();
    MUST(cuIpcOpenEventHandle(ret_event, handles.event));
    return owner;
}

static void
end_both(struct peer *owner, CUevent event)
{
    MUST(cuEventDestroy_v2(event));
    peer_end(owner);
}

CAID_TEST(soft_ipc_event, the_owner_waits_for_who_opened_it)
{
    CUevent event;
    CUstream stream;
    struct gate gate;
    struct peer owner = start_both(&event);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    gate_close(&gate, stream);
    MUST(cuEventRecord(event, stream));
    cr_assert_eq(tell(&owner, 'e'), CUDA_ERROR_NOT_READY);
    tell_all(&owner, "w");
    cr_assert_eq(tell(&owner, 'q'), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    tell_all(&owner, "sqe");
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
    end_both(&owner, event);
}

/* One that was made later, by whatever process, does not pass earlier. */
CAID_TEST(soft_ipc_event, records_pass_in_their_order)
{
    CUevent event;
    CUstream waiting, recording;
    struct peer owner = start_both(&event);
    MUST(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&recording, CU_STREAM_NON_BLOCKING));
    tell_all(&owner, "gr");
    MUST(cuStreamWaitEvent(waiting, event, 0));
    MUST(cuEventRecord(event, recording));
    REFUSED(NOT_READY, cuStreamQuery(recording));
    REFUSED(NOT_READY, cuStreamQuery(waiting));
    REFUSED(NOT_READY, cuEventQuery(event));
    tell_all(&owner, "o");
    MUST(cuStreamSynchronize(waiting));
    MUST(cuStreamSynchronize(recording));
    MUST(cuEventQuery(event));
    MUST(cuStreamDestroy_v2(waiting));
    MUST(cuStreamDestroy_v2(recording));
    end_both(&owner, event);
}

CAID_TEST(soft_ipc_event, it_outlives_its_owners_handle)
{
    CUevent event;
    struct peer owner = start_both(&event);
    tell_all(&owner, "grd");
    REFUSED(NOT_READY, cuEventQuery(event));
    tell_all(&owner, "os");
    MUST(cuEventSynchronize(event));
    MUST(cuEventRecord(event, NULL));
    MUST(cuEventSynchronize(event));
    end_both(&owner, event);
}

/* Who has it open can open it again, whatever became of its owner; others cannot. */
CAID_TEST(soft_ipc_event, what_is_open_can_be_opened_again)
{
    struct handles handles;
    CUevent event, again;
    struct peer owner = peer_start(own_event);
    peer_hear(owner.socket, &handles, sizeof(handles));
    soft_start_context();
    MUST(cuIpcOpenEventHandle(&event, handles.event));
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
    CUstream waiting, recording, other;
    char byte;
    peer_hear(socket, &handle, sizeof(handle));
    soft_start_context();
    MUST(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&ordinary, 0));
    MUST(cuIpcOpenEventHandle(&event, handle));
    MUST(cuStreamWaitEvent(waiting, event, 0));
    MUST(cuEventRecord(ordinary, waiting));
    peer_say(socket, "", 1);
    peer_hear(socket, &byte, 1); /* the owner was killed */
    MUST(cuStreamCreate(&recording, CU_STREAM_NON_BLOCKING));
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
    struct handles handles;
    char byte;
    struct peer owner = peer_start(own_event), waiter = peer_start(wait_for_the_dead);
    peer_hear(owner.socket, &handles, sizeof(handles));
    tell_all(&owner, "gr");
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

CAID_TEST(soft_ipc_event, a_fault_ends_the_waits)
{
    struct handles handles;
    struct peer owner = peer_start(own_event), waiter = peer_start(fault_while_waiting);
    peer_hear(owner.socket, &handles, sizeof(handles));
    tell_all(&owner, "gr");
    peer_say(waiter.socket, &handles.event, sizeof(handles.event));
    peer_wait(&waiter);
    peer_end(&owner);
}

CAID_TEST(soft_ipc_event, a_faulted_process_signals_no_more)
{
    CUevent event;
    struct peer owner = start_both(&event);
    tell_all(&owner, "grfo");
    cr_assert_eq(tell(&owner, 's'), CUDA_ERROR_LAUNCH_FAILED);
    REFUSED(NOT_READY, cuEventQuery(event));
    end_both(&owner, event);
}

/* A handle of memory is none of an event, nor is a wrong bit forgiven. */
CAID_TEST(soft_ipc_event, forged_handles_are_refused)
{
    struct handles handles;
    CUipcEventHandle forged;
    CUevent event;
    struct peer owner = peer_start(own_event);
    peer_hear(owner.socket, &handles, sizeof(handles));
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
    peer_end(&owner);
}

CAID_TEST(soft_ipc_event, it_ends_with_its_context)
{
    CUevent event;
    struct peer owner = start_both(&event);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&(CUcontext){0}, 0));
    REFUSED(CONTEXT_IS_DESTROYED, cuEventQuery(event));
    REFUSED(CONTEXT_IS_DESTROYED, cuEventDestroy_v2(event));
    peer_end(&owner);
}

CAID_TEST(soft_ipc_event, a_forked_child_has_none)
{
    CUevent event;
    int status, before = test_count_fds();
    soft_start_context();
    MUST(cuEventCreate(&event, FLAGS));
    cr_assert_eq(test_count_fds(), before + 1);
    pid_t pid = fork();
    if (pid == 0)
        _exit(test_count_fds() != before);
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
    MUST(cuEventDestroy_v2(event));
}

/* A fault wakes who waits for another process's records; in a forked child there is nobody to wake,
 * and none of the pages. */
CAID_TEST(soft_ipc_event, a_fault_in_a_forked_child_touches_no_event)
{
    CUevent event;
    int status;
    soft_start_context();
    MUST(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    pid_t child = fork();
    if (child == 0) {
        char reply[64];
        _exit(cu.caid_softcuda_control("fault 0 700", reply, sizeof(reply)) == 0 ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    MUST(cuEventDestroy_v2(event));
}
