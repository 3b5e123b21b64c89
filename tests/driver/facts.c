/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define STEP_SECONDS 30
#define LOOK_MS      500

extern char **environ;

/* Processes. */

static void
child_path(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    cr_assert_gt(n, 0);
    path[n] = '\0';
    char *name = strrchr(path, '/') + 1;
    snprintf(name, size - (size_t)(name - path), "facts_child");
}

struct facts_process
facts_start_bare(void)
{
    int sockets[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    struct timeval limit = {.tv_sec = STEP_SECONDS};
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char path[4096];
    child_path(path, sizeof(path));
    char *argv[] = {path, NULL};

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, sockets[1], FACTS_SOCKET);
    struct facts_process process = {.socket = sockets[0], .begun = FACTS_N_OPS};
    int r = posix_spawn(&process.pid, path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(sockets[1]);
    cr_assert_eq(r, 0, "%s: %s", path, strerror(r));
    return process;
}

struct facts_process
facts_start(void)
{
    struct facts_process process = facts_start_bare();
    MUST(&process, open, 0);
    return process;
}

struct facts_process
facts_start_context(void)
{
    struct facts_process process = facts_start();
    facts_context(&process, 0);
    return process;
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
    if (process->pid <= 0)
        return;
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

/* May every user walk to the build, and so to the software driver? */
static bool
others_reach(void)
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

void
facts_need_other_users(void)
{
    if (geteuid() != 0)
        cr_skip_test("only root can become another user");
    if (!others_reach())
        cr_skip_test("the build lies in a folder that others may not enter");
}

/* Commands. */

const char *
facts_op_name(enum facts_op op)
{
    static const char *const names[FACTS_N_OPS] = {
#define CALL(name, ...) [FACTS_##name] = #name,
#define MAKE(name, ...) [FACTS_##name] = #name,
#define STEP(name)      [FACTS_##name] = #name,
#include "facts_calls.def"
#include "facts_steps.def"
#undef CALL
#undef MAKE
#undef STEP
    };
    return names[op];
}

const char *
facts_result_name(int result)
{
    switch (result) {
#define RESULT(name, number, text) \
    case number:                   \
        return #name;
#include "results.def"
#undef RESULT
    default: return result < 0 ? strerror(-result) : "a result of another CUDA";
    }
}

static void
send_command(struct facts_process *process, const struct facts_command *command, int fd)
{
    cr_assert_eq(process->begun, FACTS_N_OPS, "%s: %s has not returned",
                 facts_op_name(command->op), facts_op_name(process->begun));
    cr_assert_eq(send_with_fd(process->socket, command, sizeof(*command), fd), 0,
                 "%s: the process is gone", facts_op_name(command->op));
    process->begun = command->op;
}

static struct facts_reply
receive_reply(struct facts_process *process, int *ret_fd)
{
    struct facts_reply reply;
    const char *name = facts_op_name(process->begun);
    int r = receive_with_fd(process->socket, &reply, sizeof(reply), ret_fd);
    cr_assert_eq(r, 0, "%s: %s", name,
                 r == -EAGAIN ? "does not return" : "the process is gone");
    cr_assert_neq(reply.result, -ENOSYS, "%s: not in this driver", name);
    process->begun = FACTS_N_OPS;
    return reply;
}

static struct facts_reply
exchange(struct facts_process *process, const struct facts_command *command, int fd,
         int *ret_fd)
{
    send_command(process, command, fd);
    return receive_reply(process, ret_fd);
}

struct facts_reply
facts_run(struct facts_process *process, const struct facts_command *command)
{
    int fd;
    struct facts_reply reply = exchange(process, command, -1, &fd);
    fd_close(fd);
    return reply;
}

void
facts_begin(struct facts_process *process, const struct facts_command *command)
{
    send_command(process, command, -1);
}

bool
facts_is_blocked(struct facts_process *process)
{
    struct pollfd look = {.fd = process->socket, .events = POLLIN};
    return poll(&look, 1, LOOK_MS) == 0;
}

int
facts_end(struct facts_process *process)
{
    int fd;
    struct facts_reply reply = receive_reply(process, &fd);
    fd_close(fd);
    return reply.result;
}

void
facts_pause_ms(unsigned int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L}, NULL);
}

/* fd there, and the value. */
static struct facts_reply
pass_fd(struct facts_process *process, const struct facts_command *command, int fd)
{
    int none;
    return exchange(process, command, fd, &none);
}

/* fd back. */
static int
fetch_fd(struct facts_process *process, const struct facts_command *command)
{
    int fd;
    struct facts_reply reply = exchange(process, command, -1, &fd);
    cr_assert_eq(reply.result, CUDA_SUCCESS, "%s: %s", facts_op_name(command->op),
                 facts_result_name(reply.result));
    cr_assert_geq(fd, 0);
    return fd;
}

uint64_t
facts_context(struct facts_process *process, int device)
{
    uint64_t context = GET(process, cuDevicePrimaryCtxRetain, device);
    MUST(process, cuCtxSetCurrent, context);
    return context;
}

/* Host memory. */

void
facts_write(struct facts_process *process, uint64_t at, const void *data, size_t size)
{
    struct facts_command *command = COMMAND(write_bytes, at, size);
    cr_assert_leq(size, sizeof(command->bytes));
    memcpy(command->bytes, data, size);
    cr_assert_eq(facts_run(process, command).result, 0);
}

void
facts_read(struct facts_process *process, uint64_t at, void *ret_data, size_t size)
{
    struct facts_reply reply = facts_run(process, COMMAND(read_bytes, at, size));
    cr_assert_eq(reply.result, 0);
    memcpy(ret_data, reply.bytes, size);
}

uint64_t
facts_put(struct facts_process *process, const void *data, size_t size)
{
    uint64_t at = GET(process, allocate_host, size);
    facts_write(process, at, data, size);
    return at;
}

uint64_t
facts_attribute(struct facts_process *process, CUpointer_attribute attribute, uint64_t at)
{
    uint64_t value_at = GET(process, allocate_host, 8);
    MUST(process, cuPointerGetAttribute, value_at, attribute, at);
    return GET(process, load, value_at);
}

/* Device memory. */

void
facts_map(struct facts_process *process, struct facts_memory *memory, CUmemAccess_flags access,
          int device)
{
    memory->at = GET(process, cuMemAddressReserve, memory->size, 0, 0, 0);
    MUST(process, cuMemMap, memory->at, memory->size, 0, memory->handle, 0);
    MUST(process, set_access, memory->at, memory->size, access, device);
}

struct facts_memory
facts_create(struct facts_process *process, uint64_t size)
{
    struct facts_memory memory = {.handle = GET(process, create, size, 0), .size = size};
    facts_map(process, &memory, READWRITE, 0);
    return memory;
}

int
facts_export(struct facts_process *process, uint64_t handle)
{
    return fetch_fd(process, COMMAND(export_fd, handle));
}

int
facts_import_fd(struct facts_process *process, int fd, uint64_t size, uint64_t *ret_handle)
{
    struct facts_reply reply = pass_fd(process, COMMAND(import_fd, size), fd);
    *ret_handle = reply.value;
    return reply.result;
}

struct facts_memory
facts_import(struct facts_process *process, int fd, uint64_t size, CUmemAccess_flags access)
{
    struct facts_memory memory = {.size = size};
    cr_assert_eq(facts_import_fd(process, fd, size, &memory.handle), CUDA_SUCCESS);
    facts_map(process, &memory, access, 0);
    return memory;
}

void
facts_fill(struct facts_process *process, uint64_t at, uint64_t size, uint32_t word)
{
    MUST(process, cuMemsetD32, at, word, size / 4);
    MUST(process, cuCtxSynchronize);
}

void
facts_assert_filled(struct facts_process *process, uint64_t at, uint64_t size, uint32_t word)
{
    uint64_t n = GET(process, count_words, at, size, word);
    cr_assert_eq(n, size / 4, "%llu of %llu words are %#x", (unsigned long long)n,
                 (unsigned long long)size / 4, word);
}

uint64_t
facts_give_fd(struct facts_process *process, int fd)
{
    struct facts_reply reply = pass_fd(process, COMMAND(take_fd), fd);
    cr_assert_eq(reply.result, 0);
    return reply.value;
}

int
facts_take_fd(struct facts_process *process, uint64_t number)
{
    return fetch_fd(process, COMMAND(give_fd, number));
}

void
facts_set_variable(struct facts_process *process, const char *text)
{
    struct facts_command *command = COMMAND(set_variable);
    memcpy(command->bytes, text, strlen(text) + 1);
    cr_assert_eq(facts_run(process, command).result, 0);
}

void
facts_need_call(struct facts_process *process, const char *name, int version)
{
    struct facts_command *command = COMMAND(has_call, (uint64_t)version);
    memcpy(command->bytes, name, strlen(name) + 1);
    if (!facts_run(process, command).value)
        cr_skip_test("the driver has no %s", name);
}

/* Shared host pages. */

struct facts_page
facts_page_new(void)
{
    struct facts_page page = {
        .fd = memfd_create("facts", MFD_CLOEXEC | MFD_ALLOW_SEALING),
    };
    cr_assert_eq(ftruncate(page.fd, FACTS_PAGE_SIZE), 0);
    page.words = mmap(NULL, FACTS_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, page.fd, 0);
    cr_assert_neq(page.words, MAP_FAILED);
    return page;
}

void
facts_page_deinit(struct facts_page *page)
{
    munmap(page->words, FACTS_PAGE_SIZE);
    fd_close(page->fd);
}

uint64_t
facts_page_map(struct facts_process *process, const struct facts_page *page, int protection)
{
    struct facts_reply reply =
        pass_fd(process, COMMAND(map_host, FACTS_PAGE_SIZE, protection), page->fd);
    cr_assert_eq(reply.result, 0, "mmap: %s", strerror(-reply.result));
    return reply.value;
}

uint64_t
facts_page_register(struct facts_process *process, const struct facts_page *page,
                    int protection)
{
    uint64_t at = facts_page_map(process, page, protection);
    unsigned int flags = protection & PROT_WRITE ? 0 : CU_MEMHOSTREGISTER_READ_ONLY;
    MUST(process, cuMemHostRegister, at, FACTS_PAGE_SIZE, flags | CU_MEMHOSTREGISTER_DEVICEMAP);
    return GET(process, cuMemHostGetDevicePointer, at, 0);
}
