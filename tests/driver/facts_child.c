/* SPDX-License-Identifier: Apache-2.0 */
#include "facts_child.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#    define PR_SET_MDWE              65
#    define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

int
outcome(int r, const struct drv_error *err)
{
    return r < 0 && err->result ? err->result : r;
}

/* The process. */

int
step_set_uid(struct child *child UNUSED, struct request *request)
{
    uid_t uid = (uid_t)request->a[0];
    if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        return -errno;
    return prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ? -errno : 0; /* a new identity loses it */
}

int
step_set_variable(struct child *child UNUSED, struct request *request)
{
    char text[FACTS_BYTES + 1] = {0};
    memcpy(text, request->bytes, FACTS_BYTES);
    char *value = strchr(text, '=');
    if (!value)
        return -EINVAL;
    *value++ = '\0';
    return setenv(text, value, 1) < 0 ? -errno : 0;
}

/* What needs a newer kernel, or root, is done where it can be done. */
int
step_confine(struct child *child UNUSED, struct request *request UNUSED)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) < 0 && errno != EINVAL)
        return -errno;
    if (unshare(CLONE_NEWNET) < 0 && errno != EPERM)
        return -errno;
    return 0;
}

/* The parent waits meanwhile; its answer is that to "quit". */
int
step_fork(struct child *child UNUSED, struct request *request UNUSED)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        return prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ? -errno : 0;
    int status;
    if (waitpid(pid, &status, 0) != pid)
        return -errno;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}

int
step_quit(struct child *child UNUSED, struct request *request UNUSED)
{
    _exit(0);
}

int
step_take_fd(struct child *child UNUSED, struct request *request)
{
    int fd = fcntl(request->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    request->reply->value = (uint64_t)fd;
    return 0;
}

int
step_give_fd(struct child *child UNUSED, struct request *request)
{
    request->reply_fd = (int)request->a[0];
    return 0;
}

int
step_fd_flags(struct child *child UNUSED, struct request *request)
{
    int flags = fcntl((int)request->a[0], F_GETFD);
    if (flags < 0)
        return -errno;
    request->reply->value = (uint64_t)flags;
    return 0;
}

int
step_raise_fd_limit(struct child *child UNUSED, struct request *request)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    request->reply->value = limit.rlim_cur;
    return 0;
}

/* The driver. */

int
step_open(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    int r = drv_open(&child->drv, NULL, &err);
    if (r == 0)
        r = drv_device_get(child->drv, (int)request->a[0], &child->device, &err);
    if (r < 0)
        fprintf(stderr, "facts_child: %s\n", err.message);
    return r < 0 ? outcome(r, &err) : calls_load(child->drv);
}

int
step_has_call(struct child *child UNUSED, struct request *request)
{
    char name[FACTS_BYTES + 1] = {0};
    memcpy(name, request->bytes, FACTS_BYTES);
    request->reply->value = calls_find(name, (int)request->a[0]) != NULL;
    return 0;
}

int
step_has_context(struct child *child, struct request *request)
{
    const struct drv_table *cu = &child->drv->cu;
    CUcontext current = NULL;
    unsigned int flags;
    int active = 0;
    CUresult result = cu->cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS)
        result = cu->cuDevicePrimaryCtxGetState(child->device.ordinal, &flags, &active);
    request->reply->value = current || active;
    return (int)result;
}

int
step_granularity(struct child *child, struct request *request)
{
    request->reply->value = child->device.granularity;
    return 0;
}

int
step_free_bytes(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    uint64_t total;
    int r =
        drv_memory_info(child->drv, child->device.uuid, &request->reply->value, &total, &err);
    return outcome(r, &err);
}

int
step_total_bytes(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    uint64_t free_bytes;
    int r = drv_memory_info(child->drv, child->device.uuid, &free_bytes, &request->reply->value,
                            &err);
    return outcome(r, &err);
}

/* Serving. */

static int (*const steps[FACTS_N_OPS])(struct child *, struct request *) = {
#define STEP(name) [FACTS_##name] = step_##name,
#include "facts_steps.def"
#undef STEP
};

static int
serve_one(struct child *child)
{
    struct facts_command command;
    struct facts_reply reply = {0};
    _cleanup_fd_ int fd = -1;
    int r = receive_with_fd(FACTS_SOCKET, &command, sizeof(command), &fd);
    if (r < 0)
        return r;
    struct request request = {
        .a = command.args,
        .bytes = command.bytes,
        .fd = fd,
        .reply = &reply,
        .reply_fd = -1,
    };
    if (steps[command.op])
        reply.result = steps[command.op](child, &request);
    else
        reply.result = calls_run(command.op, &request);
    r = send_with_fd(FACTS_SOCKET, &reply, sizeof(reply), request.reply_fd);
    fd_close(request.reply_fd);
    return r;
}

int
main(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct child child = {0};
    while (serve_one(&child) == 0)
        continue;
    drv_free(child.drv);
    return 0;
}
