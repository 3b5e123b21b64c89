/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting, faults on demand, the trace and the commands. Bodies that open a trace or a control
 * socket keep an fd for as long as the process lives, and are plain Tests.
 */
#include "caid_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "soft_test.h"

static char reply[32768];

static int
command(const char *text)
{
    return cu.caid_softcuda_control(text, reply, sizeof(reply));
}

static int
calls(const char *function)
{
    char text[128];
    snprintf(text, sizeof(text), "calls %s", function);
    cr_assert_eq(command(text), 0, "%s", reply);
    return atoi(reply);
}

static CUresult
create(CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = soft_prop(0);
    return cu.cuMemCreate(handle, GRAN, &prop, 0);
}

/* Creates and releases; what the creation says. */
static CUresult
try_create(void)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = create(&handle);
    if (result == CUDA_SUCCESS)
        MUST(cuMemRelease(handle));
    return result;
}

/* Counting. */

SOFT_TEST(soft_watch, calls_from_outside_are_counted_by_both_names)
{
    MUST(cuStreamDestroy_v2(soft_stream(0))); /* made by what cuStreamCreateWithPriority does */
    cu.cuStreamQuery(NULL);
    cu.cuStreamQuery_ptsz(NULL);
    cr_assert_eq(calls("cuStreamCreate"), 1);
    cr_assert_eq(calls("cuStreamCreateWithPriority"), 0);
    cr_assert_eq(calls("cuStreamQuery"), 2, "of all its forms");
    cr_assert_eq(calls("cuStreamQuery_ptsz"), 1);
    cr_assert_eq(command("calls cuNoSuchThing"), -ENOENT);
}

CAID_TEST(soft_watch, failed_calls_count_and_reset_starts_again)
{
    soft_start();
    cu.cuMemRelease(0);
    cr_assert_eq(calls("cuMemRelease"), 1);
    cr_assert_eq(command("reset"), 0);
    cr_assert_eq(calls("cuMemRelease"), 0);
    cr_assert_eq(command("calls"), 0);
    cr_assert_str_eq(reply, "");
    cu.cuMemRelease(0);
    cr_assert_eq(command("calls"), 0);
    cr_assert_str_eq(reply, "cuMemRelease 1\n");
}

SOFT_TEST(soft_watch, what_is_alive_is_told)
{
    struct soft_mapping mapping = soft_map(GRAN, 3);
    cr_assert_eq(soft_live("handles"), 1);
    cr_assert_eq(soft_live("mappings"), 1);
    cr_assert_eq(soft_live("reservations"), 1);
    cr_assert_eq(soft_live("contexts"), 1);
    soft_unmap(&mapping);
    cr_assert_eq(soft_live("handles"), 0);
    cr_assert_eq(soft_live("mappings"), 0);
    cr_assert_eq(soft_live("reservations"), 0);
}

/* Faults. */

/* What the calls of cuMemCreate give by these rules, one after the other. */
CAID_TEST(soft_watch, rules_say_which_calls_fail_and_how)
{
    static const struct {
        const char *rules;
        int want[6];
    } cases[] = {
        {"cuMemCreate@2=OUT_OF_MEMORY", {0, 2, 0}},
        {"cuMemCreate@2-3=CUDA_ERROR_UNKNOWN,cuMemCreate@5+=46", {0, 999, 999, 0, 46, 46}},
        {"cuMemCreate=delay:1,cuMemCreate=46,cuMemCreate=999", {46, 46, 46, 46, 46, 46}},
        {"cuMemCreate@2=vanish", {0, 46, 46, 46, 46, 46}},
    };

    soft_start();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[128];
        snprintf(text, sizeof(text), "fail %s", cases[i].rules);
        USED_IS(0);
        cr_assert_eq(command("reset"), 0);
        cr_assert_eq(command(text), 0);
        for (size_t n = 0; n < ARRAY_SIZE(cases[i].want); n++)
            cr_expect_eq((int)try_create(), cases[i].want[n], "%s: %zu", text, n + 1);
        cr_assert_eq(command("clear"), 0);
    }
}

CAID_TEST(soft_watch, a_call_that_fails_does_nothing_and_a_late_fault_comes_after_the_work)
{
    CUmemGenericAllocationHandle handle;
    soft_start();
    cr_assert_eq(create(&handle), CUDA_SUCCESS);
    cr_assert_eq(command("fail cuMemRelease=OPERATING_SYSTEM"), 0);
    REFUSED(OPERATING_SYSTEM, cuMemRelease(handle));
    USED_IS(GRAN);
    cr_assert_eq(command("clear"), 0);
    cr_assert_eq(command("fail cuMemRelease=late:LAUNCH_FAILED"), 0);
    REFUSED(LAUNCH_FAILED, cuMemRelease(handle));
    USED_IS(0);
    REFUSED(INVALID_VALUE, cuMemRelease(handle)); /* its own error */
}

CAID_TEST(soft_watch, a_skipped_call_does_nothing_and_says_success)
{
    CUmemGenericAllocationHandle handle = 7;
    setenv("CAID_SOFTCUDA_FAIL", "cuMemCreate@2=skip", 1);
    soft_start();
    cr_assert_eq(try_create(), CUDA_SUCCESS);
    cr_assert_eq(create(&handle), CUDA_SUCCESS);
    cr_assert_eq(handle, 7, "left alone");
    USED_IS(0);
    cr_assert_eq(calls("cuMemCreate"), 2);
    cr_assert_eq(create(&handle), CUDA_SUCCESS);
    cr_assert_eq(command("fail cuMemRelease@1=skip"), 0);
    cr_assert_eq(cu.cuMemRelease(handle), CUDA_SUCCESS);
    USED_IS(GRAN);
    MUST(cuMemRelease(handle));
}

SOFT_TEST(soft_watch, a_name_without_suffix_fails_all_its_forms)
{
    CUdeviceptr at;
    cr_assert_eq(command("fail cuMemAlloc=OUT_OF_MEMORY"), 0);
    REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&at, 1));
    cr_assert_eq(command("clear"), 0);
    cr_assert_eq(command("fail cuStreamQuery_ptsz@1=NOT_READY"), 0);
    cr_assert_eq(cu.cuStreamQuery(NULL), CUDA_SUCCESS);
    REFUSED(NOT_READY, cuStreamQuery_ptsz(NULL));
    cr_assert_eq(cu.cuStreamQuery_ptsz(NULL), CUDA_SUCCESS);
}

CAID_TEST(soft_watch, init_and_nvml_can_fail_too)
{
    setenv("CAID_SOFTCUDA_FAIL", "cuInit@1=NO_DEVICE,nvmlDeviceGetMemoryInfo@1=999", 1);
    nvmlDevice_t device;
    nvmlMemory_t memory;
    soft_load_path(SOFTCUDA_PATH);
    REFUSED(NO_DEVICE, cuInit(0));
    MUST(cuInit(0));
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_UNKNOWN);
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlShutdown(), NVML_SUCCESS);
}

SOFT_TEST(soft_watch, a_sticky_fault_stays_for_the_context_and_spares_memory_management)
{
    CUstream stream = soft_stream(0);
    cr_assert_eq(command("fail cuStreamSynchronize@2=sticky:LAUNCH_FAILED"), 0);
    MUST(cuStreamSynchronize(stream));
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
    REFUSED(LAUNCH_FAILED, cuCtxSynchronize());
    cr_assert_eq(try_create(), CUDA_SUCCESS);
    REFUSED(LAUNCH_FAILED, cuStreamDestroy_v2(stream));
}

CAID_TEST(soft_watch, a_fault_is_for_one_device)
{
    CUcontext first, second;
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    soft_start();
    MUST(cuDevicePrimaryCtxRetain(&first, 0));
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    cr_assert_eq(command("fault 1 ILLEGAL_ADDRESS"), 0);
    MUST(cuCtxSetCurrent(first));
    MUST(cuCtxSynchronize());
    MUST(cuCtxSetCurrent(second));
    REFUSED(ILLEGAL_ADDRESS, cuCtxSynchronize());
    cr_assert_eq(command("fault 2 ILLEGAL_ADDRESS"), -ENODEV);
}

SOFT_TEST(soft_watch, a_device_vanishes_and_what_it_had_can_be_given_back)
{
    nvmlDevice_t device;
    nvmlMemory_t memory;
    int fd;
    struct soft_mapping mapping = soft_map(GRAN, 3);
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    cr_assert_eq(command("vanish 0"), 0);
    cr_assert_eq(try_create(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    REFUSED(DEVICE_UNAVAILABLE, cuMemExportToShareableHandle(&fd, mapping.handle, 1, 0));
    REFUSED(DEVICE_UNAVAILABLE, cuCtxSynchronize());
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_GPU_IS_LOST);
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_ERROR_GPU_IS_LOST);
    soft_unmap(&mapping);
}

/* Nothing else can be seen of a delay without a clock than that it is over: it is at least as long
 * as was asked for. */
CAID_TEST(soft_watch, a_delayed_call_is_made_later)
{
    struct timespec before, after;
    soft_start();
    cr_assert_eq(command("fail cuMemCreate@1=delay:20000"), 0);
    clock_gettime(CLOCK_MONOTONIC, &before);
    cr_assert_eq(try_create(), CUDA_SUCCESS);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long us =
        (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
    cr_assert_geq(us, 20000);
}

CAID_TEST(soft_watch, rules_that_are_none_are_refused_whole)
{
    static const char *const bad[] = {
        "cuMemCreate",        "cuMemCreate=",         "cuMemCreate=NO_SUCH_RESULT",
        "cuMemCreate=0",      "cuMemCreate=1000",     "cuMemCreate@0=1",
        "cuMemCreate@=1",     "cuMemCreate@3-2=1",    "cuMemCreate@1x=1",
        "cuMemCreate@-1=1",   "cuNoSuchThing=1",      "=1",
        "cuMemCreate=delay:", "cuMemCreate=delay:-1", "cuMemCreate=sticky:",
        "cuMemCreate=late:",  "cuMemCreate=1,",       "cuMemCreate=1,cuNoSuchThing=1",
    };
    soft_start();
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char text[128];
        snprintf(text, sizeof(text), "fail %s", bad[i]);
        cr_expect_eq(command(text), -EINVAL, "%s", bad[i]);
        cr_expect_eq(strncmp(reply, "error: ", 7), 0);
    }
    cr_assert_eq(command("fail cuInit@9=1"), 0); /* with a rule, all that there are are met */
    cr_assert_eq(try_create(), CUDA_SUCCESS);
}

CAID_TEST(soft_watch, rules_have_a_limit)
{
    soft_start();
    for (int i = 0; i < 32; i++)
        cr_assert_eq(command("fail cuMemCreate@9=1"), 0);
    cr_assert_eq(command("fail cuMemCreate@9=1"), -ENOSPC);
}

static void
assert_no_driver(const char *setting, const char *value)
{
    setenv(setting, value, 1);
    soft_load_path(SOFTCUDA_PATH);
    REFUSED(INVALID_VALUE, cuInit(0));
    cr_assert_eq(cu.nvmlInit_v2(), NVML_ERROR_UNKNOWN);
    cr_assert_eq(command("live"), -EINVAL);
}

CAID_TEST(soft_watch, rules_that_make_no_sense_leave_no_driver)
{
    assert_no_driver("CAID_SOFTCUDA_FAIL", "nonsense");
}

CAID_TEST(soft_watch, a_trace_that_cannot_be_written_leaves_no_driver)
{
    assert_no_driver("CAID_SOFTCUDA_TRACE", "/nonexistent/trace");
}

CAID_TEST(soft_watch, commands_that_are_none_are_told_so)
{
    static const char *const unknown[] = {"", " ", "nonsense", "call", "callsx", "CALLS"};
    static const char *const bad[] = {"reset now",    "fault x",       "vanish",
                                      "vanish 0 now", "fault 0 1 x",   "delay",
                                      "delay 5x",     "delay 5 abc",   "delay 5 -3",
                                      "delay 5 7 9",  "delay 60000001"};
    soft_start();
    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
        cr_expect_eq(command(unknown[i]), -EOPNOTSUPP, "%s", unknown[i]);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_expect_eq(command(bad[i]), -EINVAL, "%s", bad[i]);
    cr_expect_eq(command("vanish 1"), -ENODEV);
    cr_expect_eq(command("delay 0 7 "), 0);
    char small[4];
    cr_assert_eq(cu.caid_softcuda_control("nonsense", small, sizeof(small)), -EOPNOTSUPP);
    cr_assert_str_eq(small, "err");
}

/* It is not lost when the settings are read, as the first call does. */
CAID_TEST(soft_watch, a_delay_may_come_before_the_first_call)
{
    CUcontext context;
    void *at;
    char uuid[64];
    snprintf(uuid, sizeof(uuid), "GPU-%08x-0000-4000-8000-000000000000", (unsigned)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 1);
    soft_load_path(SOFTCUDA_PATH);
    cr_assert_eq(command("delay 30000000"), 0);
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAllocHost_v2(&at, 4));
    MUST(cuMemsetD8Async((uintptr_t)at, 1, 4, CU_STREAM_LEGACY));
    REFUSED(NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
}

/* The trace. */

static void
read_file(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
    ssize_t n = read(fd, out, size - 1);
    cr_assert_geq(n, 0);
    out[n] = '\0';
    close(fd);
}

static void
make_path(char *path, size_t size, const char *name)
{
    snprintf(path, size, "/tmp/caid-soft-watch-%d-%s", (int)getpid(), name);
}

Test(soft_watch, the_trace_has_a_line_for_each_call, .timeout = 60)
{
    char path[64], text[4096], want[64];
    make_path(path, sizeof(path), "trace");
    char pattern[64] = "/tmp/caid-soft-watch-%p-trace";
    setenv("CAID_SOFTCUDA_TRACE", pattern, 1);
    setenv("CAID_SOFTCUDA_FAIL", "cuMemCreate=OUT_OF_MEMORY,nvmlInit_v2@1=999", 1);
    soft_start();
    try_create();
    cu.nvmlInit_v2();
    cu.cuMemRelease(0x1234);
    cu.cuMemAddressFree(0x10, 0x20);
    read_file(path, text, sizeof(text));
    unlink(path);
    snprintf(want, sizeof(want), "%d %d ", (int)getpid(), (int)getpid());
    cr_assert_eq(strncmp(text, want, strlen(want)), 0, "%s", text);
    cr_assert_not_null(strstr(text, " cuInit(0) = CUDA_SUCCESS "), "%s", text);
    cr_assert_not_null(strstr(text, " cuMemRelease(0x1234) = CUDA_ERROR_INVALID_VALUE "));
    cr_assert_not_null(
        strstr(text, " cuMemAddressFree(0x10, 0x20) = CUDA_ERROR_INVALID_VALUE "));
    cr_assert_not_null(strstr(text, " = CUDA_ERROR_OUT_OF_MEMORY "), "%s", text);
    cr_assert_not_null(strstr(text, " nvmlInit_v2() = 999 "), "%s", text);
    cr_assert_eq(text[strlen(text) - 1], '\n');
}

/* The socket. */

static int
connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(address);
    strcpy(address.sun_path, path);
    if (path[0] == '@') {
        address.sun_path[0] = '\0';
        size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, size), 0, "%s", strerror(errno));
    return fd;
}

static const char *
ask(const char *path, const char *text)
{
    int fd = connect_to(path);
    cr_assert_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
    ssize_t n = recv(fd, reply, sizeof(reply) - 1, 0);
    cr_assert_gt(n, 0);
    reply[n] = '\0';
    close(fd);
    return reply;
}

Test(soft_watch, commands_come_by_socket, .timeout = 60)
{
    char path[64];
    make_path(path, sizeof(path), "control");
    setenv("CAID_SOFTCUDA_CONTROL", "/tmp/caid-soft-watch-%p-control", 1);
    soft_start();
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_eq(try_create(), CUDA_SUCCESS);
    cr_assert_str_eq(ask(path, "calls cuMemCreate"), "1\n");
    cr_assert_str_eq(ask(path, "fail cuMemCreate@1=OUT_OF_MEMORY"), "");
    cr_assert_eq(try_create(), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_str_eq(ask(path, "nonsense"), "error: Operation not supported\n");
    /* One who connects and says nothing does not stop others for long. */
    int silent = connect_to(path);
    cr_assert_str_eq(ask(path, "calls cuMemCreate"), "2\n");
    close(silent);
    unlink(path);
}

/* Whether the path is still there after a process that ended so. */
static bool
path_stays(const char *path, bool killed)
{
    int status;
    pid_t pid = soft_fork();
    if (pid == 0) {
        soft_start();
        if (killed)
            kill(getpid(), SIGKILL);
        exit(access(path, F_OK) == 0 ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, killed ? SIGKILL : 0);
    return access(path, F_OK) == 0;
}

/* What a SIGKILL has left behind is no obstacle to the next process. */
Test(soft_watch, a_path_goes_with_its_process_or_is_taken_over, .timeout = 60)
{
    char path[64];
    make_path(path, sizeof(path), "stale");
    setenv("CAID_SOFTCUDA_CONTROL", path, 1);
    cr_assert(!path_stays(path, false));
    cr_assert(path_stays(path, true));
    soft_start();
    cr_assert_str_eq(ask(path, "calls cuInit"), "1\n");
    unlink(path);
}

/* A peer's fds are not kept, however many it sends: else this ends by its timeout. */
Test(soft_watch, fds_that_come_with_a_request_are_closed, .timeout = 60)
{
    char name[64];
    snprintf(name, sizeof(name), "@caid-soft-watch-fds-%d", (int)getpid());
    setenv("CAID_SOFTCUDA_CONTROL", "@caid-soft-watch-fds-%p", 1);
    soft_start();
    int before = test_count_fds();
    for (int n = 1; n <= 3; n++) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(3 * sizeof(int))];
        } control = {0};
        struct iovec iov = {"calls cuInit", 12};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int))};
        struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memset(CMSG_DATA(header), 0, (size_t)n * sizeof(int)); /* standard input, n times */
        int fd = connect_to(name);
        cr_assert_eq(sendmsg(fd, &msg, MSG_NOSIGNAL), 12);
        recv(fd, reply, sizeof(reply), 0); /* a reply, or a hang-up where it was too much */
        close(fd);
    }
    while (test_count_fds() != before) /* the server is a little behind */
        usleep(1000);
}

/* The socket is a process's own: a forked child, in which there is no driver, lets go of it, and
 * leaves the path to its parent. */
Test(soft_watch, a_forked_child_has_no_control_socket, .timeout = 60)
{
    char path[64];
    int status;
    make_path(path, sizeof(path), "fork");
    setenv("CAID_SOFTCUDA_CONTROL", path, 1);
    soft_start();
    int before = test_count_fds();
    pid_t pid = fork();
    if (pid == 0)
        exit(test_count_fds() == before - 1 ? 0 : 1);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_str_eq(ask(path, "calls cuInit"), "1\n");
    unlink(path);
}
