/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "caid_test.h"
#include "cuda_abi.h"

extern char **environ;

static void
child_path(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    cr_assert_gt(n, 0);
    path[n] = '\0';
    char *name = strrchr(path, '/') + 1;
    snprintf(name, size - (size_t)(name - path), "facts_child");
}

bool
facts_others_reach(void)
{
    char path[4096];
    child_path(path, sizeof(path));
    for (char *slash = strrchr(path, '/'); slash != path; slash = strrchr(path, '/')) {
        *slash = '\0';
        struct stat folder;
        if (stat(path, &folder) < 0 || !(folder.st_mode & S_IXOTH))
            return false;
    }
    return true;
}

struct facts_process
facts_start_bare(void)
{
    int sockets[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    struct timeval limit = {.tv_sec = 30};
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char path[4096];
    child_path(path, sizeof(path));
    char *argv[] = {path, NULL};

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, sockets[1], FACTS_SOCKET);
    struct facts_process process = {.socket = sockets[0]};
    int r = posix_spawn(&process.pid, path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(sockets[1]);
    cr_assert_eq(r, 0, "%s: %s", path, strerror(r));
    return process;
}

static int
exchange(struct facts_process *process, const struct facts_command *command, int fd,
         uint64_t *ret_value, int *ret_fd)
{
    cr_assert_eq(facts_send(process->socket, command, sizeof(*command), fd), 0,
                 "step %d: the process is gone", (int)command->op);
    struct facts_reply reply;
    int received = -1;
    int r = facts_receive(process->socket, &reply, sizeof(reply), &received);
    cr_assert_eq(r, 0, "step %d: no answer: %s", (int)command->op, strerror(-r));
    *ret_value = reply.value;
    *ret_fd = received;
    return reply.result;
}

int
facts_do(struct facts_process *process, enum facts_op op, uint64_t a)
{
    struct facts_command command = {.op = op, .a = a};
    uint64_t value;
    int fd;
    int result = exchange(process, &command, -1, &value, &fd);
    fd_close(fd);
    return result;
}

uint64_t
facts_get(struct facts_process *process, enum facts_op op, uint64_t a)
{
    struct facts_command command = {.op = op, .a = a};
    uint64_t value;
    int fd;
    int result = exchange(process, &command, -1, &value, &fd);
    fd_close(fd);
    cr_assert_eq(result, CUDA_SUCCESS, "step %d: result %d", (int)op, result);
    return value;
}

struct facts_process
facts_start(void)
{
    struct facts_process process = facts_start_bare();
    facts_get(&process, FACTS_OPEN, 0);
    return process;
}

void
facts_create(struct facts_process *process, uint64_t size)
{
    facts_get(process, FACTS_CREATE, size);
}

static int
receive_fd(struct facts_process *process, enum facts_op op)
{
    struct facts_command command = {.op = op};
    uint64_t value;
    int fd;
    int result = exchange(process, &command, -1, &value, &fd);
    cr_assert_eq(result, CUDA_SUCCESS, "step %d: result %d", (int)op, result);
    cr_assert_geq(fd, 0);
    return fd;
}

int
facts_export(struct facts_process *process)
{
    return receive_fd(process, FACTS_EXPORT);
}

int
facts_give(struct facts_process *process)
{
    return receive_fd(process, FACTS_GIVE);
}

int
facts_import(struct facts_process *process, int fd, uint64_t size)
{
    struct facts_command command = {.op = FACTS_IMPORT, .a = size};
    uint64_t value;
    int none;
    return exchange(process, &command, fd, &value, &none);
}

void
facts_keep(struct facts_process *process, int fd)
{
    struct facts_command command = {.op = FACTS_KEEP};
    uint64_t value;
    int none;
    cr_assert_eq(exchange(process, &command, fd, &value, &none), 0);
}

uint64_t
facts_reserve(struct facts_process *process, uint64_t size, uint64_t hint)
{
    struct facts_command command = {.op = FACTS_RESERVE, .a = size, .b = hint};
    uint64_t value;
    int none;
    cr_assert_eq(exchange(process, &command, -1, &value, &none), CUDA_SUCCESS);
    return value;
}

void
facts_map(struct facts_process *process, uint64_t size, int access)
{
    facts_reserve(process, size, 0);
    facts_get(process, FACTS_MAP, size);
    facts_get(process, FACTS_ACCESS, (uint64_t)access);
    facts_get(process, FACTS_CONTEXT, 0);
}

static int
reap(struct facts_process *process)
{
    int status = 0;
    pid_t pid = waitpid(process->pid, &status, 0);
    cr_assert_eq(pid, process->pid);
    process->pid = -1;
    process->socket = fd_close(process->socket);
    return status;
}

void
facts_kill(struct facts_process *process)
{
    kill(process->pid, SIGKILL);
    reap(process);
}

void
facts_stop(struct facts_process *process)
{
    if (process->pid <= 0)
        return;
    shutdown(process->socket, SHUT_RDWR);
    int status = reap(process);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "facts_child: status %#x",
              (unsigned)status);
}
