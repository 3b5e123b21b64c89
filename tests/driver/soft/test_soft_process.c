/* SPDX-License-Identifier: Apache-2.0 */
/* The device as several processes see it: one figure, given back by the kernel. */
#include "caid_test.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "soft_peer.h"
#include "soft_test.h"

static size_t held; /* by the next holder */

/* A process that has memory mapped and written, says its fd and waits for its end. */
static void
hold_memory(int socket)
{
    int fd;
    char byte;
    soft_start();
    struct soft_mapping mapping = soft_map(held, 3);
    memset((void *)(uintptr_t)mapping.at, 0xab, held);
    MUST(cuMemExportToShareableHandle(&fd, mapping.handle, 1, 0));
    peer_say_fd(socket, fd);
    peer_hear_if_any(socket, &byte, 1);
}

static struct peer
start_holder(size_t size)
{
    held = size;
    return peer_start(hold_memory);
}

CAID_TEST(soft_process, all_see_the_same_figure)
{
    struct peer first = start_holder(4 * MIB), second = start_holder(6 * MIB);
    close(peer_hear_fd(first.socket));
    close(peer_hear_fd(second.socket));
    setenv("CAID_SOFTCUDA_MEMORY", "12M", 1);
    soft_start();
    USED_IS(10 * MIB);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    REFUSED(OUT_OF_MEMORY, cuMemCreate(&handle, 4 * MIB, &prop, 0));
    peer_end(&first);
    USED_IS(6 * MIB);
    MUST(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    peer_kill(&second);
    USED_IS(4 * MIB, "a killed process holds nothing");
    MUST(cuMemRelease(handle));
}

/* A process whose own devices are others can still use it. */
SOFT_TEST_LATE(soft_process, memory_of_an_unknown_device_is_imported)
{
    struct peer holder = start_holder(2 * MIB);
    int fd = peer_hear_fd(holder.socket);
    CUmemAllocationProp prop;
    setenv("CAID_SOFTCUDA_UUID", "GPU-ffffffff-0000-4000-8000-000000000001", 1);
    soft_start_context();
    struct soft_mapping mapping = {.size = 2 * MIB};
    MUST(cuMemImportFromShareableHandle(&mapping.handle, (void *)(intptr_t)fd, 1));
    close(fd);
    MUST(cuMemGetAllocationPropertiesFromHandle(&prop, mapping.handle));
    cr_assert_eq(prop.location.id, CU_DEVICE_INVALID);
    MUST(cuMemAddressReserve(&mapping.at, mapping.size, 0, 0, 0));
    MUST(cuMemMap(mapping.at, mapping.size, 0, mapping.handle, 0));
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ATTRIBUTE_IS(DEVICE_ORDINAL, mapping.at, 0);
    soft_fill(mapping.at, 1, mapping.size);
    USED_IS(0, "not of this device");
    soft_unmap(&mapping);
}

/* In a process of another uid. */
static void
report_as_nobody(int socket)
{
    soft_load_path(SOFTCUDA_PATH);
    peer_check(setgid(65534) == 0 && setuid(65534) == 0);
    soft_start();
    uint64_t used = soft_used();
    peer_say(socket, &used, sizeof(used));
}

SOFT_TEST_LATE(soft_process, other_users_see_the_same_figure)
{
    uint64_t used;
    if (geteuid() != 0)
        cr_skip_test("needs to change its uid");
    struct peer holder = start_holder(6 * MIB);
    close(peer_hear_fd(holder.socket));
    struct peer nobody = peer_start(report_as_nobody);
    peer_hear(nobody.socket, &used, sizeof(used));
    cr_assert_eq(used, 6 * MIB);
    peer_wait(&nobody);
}

/* Whoever keeps the fd keeps the memory, and so does a socket that it is in. */
CAID_TEST(soft_process, an_fd_in_flight_counts)
{
    struct peer holder = start_holder(2 * MIB);
    char byte;
    cr_assert_eq(recv(holder.socket, &byte, 1, MSG_PEEK), 1); /* it has been sent */
    kill(holder.pid, SIGKILL);
    waitpid(holder.pid, NULL, 0);
    soft_start();
    USED_IS(2 * MIB);
    close(holder.socket);
    /* The kernel frees what was in a closed socket on its own time. */
    while (soft_used() != 0)
        usleep(1000);
}

/* A worker is busy meanwhile. That a child has no driver is in test_facts_streams.c; it may still
 * ask for the figure. */
SOFT_TEST(soft_process, a_forked_child_sees_the_figure)
{
    int status;
    struct gate gate;
    CUstream stream = soft_stream(0);
    struct soft_mapping mapping = soft_map(GRAN, 3);
    gate_close(&gate, stream);
    pid_t pid = fork();
    if (pid == 0)
        _exit(cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? (int)(soft_used() / MIB) : 255);
    waitpid(pid, &status, 0);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), GRAN / MIB);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
    soft_unmap(&mapping);
    USED_IS(0);
}
