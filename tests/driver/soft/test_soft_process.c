/* SPDX-License-Identifier: Apache-2.0 */
/* The device as several processes see it: one figure, given back by the kernel. */
#include "caid_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "soft_test.h"

/* A child with a socket to its parent: made before either loads the driver. */
struct child {
    pid_t pid;
    int socket;
};

static void
send_fd(int socket, int fd)
{
    char byte = 0;
    struct iovec part = {&byte, 1};
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room,
                             .msg_controllen = sizeof(room)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
        _exit(1);
}

static int
receive_fd(int socket)
{
    char byte;
    int fd = -1;
    struct iovec part = {&byte, 1};
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room,
                             .msg_controllen = sizeof(room)};
    cr_assert_eq(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    cr_assert_neq(header, NULL);
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

/* Runs in the child: holds size bytes, mapped and written, sends the fd and waits to be ended. */
static void
hold_memory(int socket, size_t size)
{
    int fd;
    char byte;
    soft_start();
    struct soft_mapping mapping = soft_map(size, 3);
    memset((void *)(uintptr_t)mapping.at, 0xab, size);
    MUST(cuMemExportToShareableHandle(&fd, mapping.handle, 1, 0));
    send_fd(socket, fd);
    _exit(read(socket, &byte, 1) < 0);
}

static struct child
start_holder(size_t size)
{
    int ends[2];
    char uuid[64];
    snprintf(uuid, sizeof(uuid), "GPU-%08x-0000-4000-8000-000000000000", (unsigned)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 1);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        hold_memory(ends[1], size);
    }
    close(ends[1]);
    return (struct child){pid, ends[0]};
}

static void
end_holder(struct child *child, int signal)
{
    int status;
    if (signal)
        kill(child->pid, signal);
    shutdown(child->socket, SHUT_RDWR); /* later children have a copy of this end */
    close(child->socket);
    cr_assert_eq(waitpid(child->pid, &status, 0), child->pid);
    cr_assert_eq(WIFSIGNALED(status) ? WTERMSIG(status) : 0, signal);
}

CAID_TEST(soft_process, all_see_the_same_figure)
{
    struct child first = start_holder(4 * MIB), second = start_holder(6 * MIB);
    close(receive_fd(first.socket));
    close(receive_fd(second.socket));
    setenv("CAID_SOFTCUDA_MEMORY", "12M", 1);
    soft_start();
    cr_assert_eq(soft_used(), 10 * MIB);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    cr_assert_eq(cu.cuMemCreate(&handle, 4 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    end_holder(&first, 0);
    cr_assert_eq(soft_used(), 6 * MIB);
    MUST(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    end_holder(&second, SIGKILL);
    cr_assert_eq(soft_used(), 4 * MIB, "a killed process holds nothing");
    MUST(cuMemRelease(handle));
}

/* Whoever keeps the fd keeps the memory, with no driver loaded, and its contents. */
CAID_TEST(soft_process, an_fd_outlives_its_exporter)
{
    struct child holder = start_holder(2 * MIB);
    int fd = receive_fd(holder.socket);
    end_holder(&holder, SIGKILL);
    soft_start();
    cr_assert_eq(soft_used(), 2 * MIB);
    struct soft_mapping mapping = {.size = 2 * MIB};
    MUST(cuMemImportFromShareableHandle(&mapping.handle, (void *)(intptr_t)fd, 1));
    close(fd);
    MUST(cuMemAddressReserve(&mapping.at, mapping.size, 0, 0, 0));
    MUST(cuMemMap(mapping.at, mapping.size, 0, mapping.handle, 0));
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READ);
    for (size_t i = 0; i < mapping.size; i++)
        cr_assert_eq(((unsigned char *)(uintptr_t)mapping.at)[i], 0xab);
    cr_assert_eq(soft_used(), 2 * MIB, "an import is no second allocation");
    soft_unmap(&mapping);
    cr_assert_eq(soft_used(), 0);
}

/* A process whose own devices are others can still use it. */
CAID_TEST(soft_process, memory_of_an_unknown_device_is_imported)
{
    struct child holder = start_holder(2 * MIB);
    int fd = receive_fd(holder.socket), ordinal;
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
    MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapping.at));
    cr_assert_eq(ordinal, 0, "a pointer is told to be of a device that there is");
    MUST(cuMemsetD8_v2(mapping.at, 1, mapping.size));
    MUST(cuCtxSynchronize());
    cr_assert_eq(soft_used(), 0, "not of this device");
    soft_unmap(&mapping);
    end_holder(&holder, 0);
}

/* Runs in a child of another uid: exits with what it sees in use, in MiB. */
static void
report_as_nobody(void)
{
    soft_load_path(SOFTCUDA_PATH);
    if (setgid(65534) < 0 || setuid(65534) < 0)
        _exit(255);
    soft_start();
    _exit((int)(soft_used() / MIB));
}

CAID_TEST(soft_process, other_users_see_the_same_figure)
{
    int status;
    if (geteuid() != 0)
        cr_skip_test("needs to change its uid");
    struct child holder = start_holder(6 * MIB);
    close(receive_fd(holder.socket));
    pid_t pid = fork();
    if (pid == 0)
        report_as_nobody();
    waitpid(pid, &status, 0);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 6);
    end_holder(&holder, 0);
}

CAID_TEST(soft_process, an_fd_in_flight_counts)
{
    struct child holder = start_holder(2 * MIB);
    char byte;
    cr_assert_eq(recv(holder.socket, &byte, 1, MSG_PEEK), 1); /* it has been sent */
    kill(holder.pid, SIGKILL);
    waitpid(holder.pid, NULL, 0);
    soft_start();
    cr_assert_eq(soft_used(), 2 * MIB);
    close(holder.socket);
    /* The kernel frees what was in a closed socket on its own time. */
    while (soft_used() != 0)
        usleep(1000);
}

/* Runs in a forked child of an initialised process: the number of the check that failed. */
static int
check_forked(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    CUcontext context;
    int n;
    if (cu.cuInit(0) != CUDA_ERROR_NOT_INITIALIZED)
        return 1;
    if (cu.cuDeviceGetCount(&n) != CUDA_ERROR_NOT_INITIALIZED)
        return 2;
    if (cu.cuMemCreate(&handle, GRAN, &prop, 0) != CUDA_ERROR_NOT_INITIALIZED)
        return 3;
    if (cu.cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED)
        return 4;
    if (cu.cuCtxSynchronize() != CUDA_ERROR_NOT_INITIALIZED)
        return 5;
    return 0;
}

CAID_TEST(soft_process, a_forked_child_cannot_use_it)
{
    int status;
    CUstream stream;
    struct gate gate;
    soft_start_context();
    MUST(cuStreamCreate(&stream, 0));
    gate_close(&gate, stream); /* a worker is busy meanwhile */
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_forked());
    waitpid(pid, &status, 0);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0, "check %d", WEXITSTATUS(status));
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
}

/* Memory is the parent's to give back, whether or not a child lives. */
CAID_TEST(soft_process, a_forked_child_holds_no_memory)
{
    int ends[2], fd;
    char byte = 0;
    soft_start();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    MUST(cuMemExportToShareableHandle(&fd, mapping.handle, 1, 0));
    close(fd);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        byte = (char)(soft_used() / MIB); /* a child may still ask */
        if (write(ends[1], &byte, 1) != 1 || read(ends[1], &byte, 1) < 0)
            _exit(1);
        _exit(0);
    }
    close(ends[1]);
    cr_assert_eq(read(ends[0], &byte, 1), 1);
    cr_assert_eq(byte, 2);
    *(int *)(uintptr_t)mapping.at = 1; /* the parent still has it */
    soft_unmap(&mapping);
    cr_assert_eq(soft_used(), 0);
    close(ends[0]);
    waitpid(pid, NULL, 0);
}
