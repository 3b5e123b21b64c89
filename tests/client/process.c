/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "caid_test.h"
#include "daemon.h"

#define N_ARGS  8
#define N_LOOKS 3
#define N_TRIES 2000

static pid_t
start(const char *program, va_list args, int in, int out)
{
    pid_t parent = getpid(), pid = fork();
    char *argv[N_ARGS] = {(char *)(uintptr_t)program};
    char path[64];

    cr_assert_geq(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    for (int i = 1; i < N_ARGS && argv[i - 1]; i++)
        argv[i] = va_arg(args, char *);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    snprintf(path, sizeof(path), "tests/client_%s", program);
    execv(build_path(path), argv);
    _exit(127);
}

void
process_start(struct process *process, const char *program, ...)
{
    int in[2], out[2];
    va_list args;

    cr_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    va_start(args, program);
    process->pid = start(program, args, in[0], out[1]);
    va_end(args);
    close(in[0]);
    close(out[1]);
    process->in = in[1];
    process->out = out[0];
}

void
process_expect(const struct process *process, const char *answer)
{
    char said[16] = "";

    cr_assert_gt(read(process->out, said, strlen(answer)), 0, "it has ended");
    cr_assert_str_eq(said, answer);
}

int
process_end(const struct process *process, int signal)
{
    if (signal)
        kill(process->pid, signal);
    close(process->in);
    int r = process_wait(process->pid);
    close(process->out);
    return r;
}

int
process_wait(pid_t pid)
{
    int status;

    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int
process_run(const char *program, ...)
{
    va_list args;

    va_start(args, program);
    pid_t pid = start(program, args, STDIN_FILENO, STDOUT_FILENO);
    va_end(args);
    return process_wait(pid);
}

static bool
sleeps(pid_t thread)
{
    char path[64], text[256] = "";

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
    FILE *file = fopen(path, "r");
    const char *name_end = file && fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
    if (file)
        fclose(file);
    return !name_end || name_end[2] == 'S'; /* or has ended */
}

bool
thread_waits(pid_t thread)
{
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};

    for (int i = 0; i < N_LOOKS; i++) {
        if (!sleeps(thread))
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

static bool
others_wait(void)
{
    const struct dirent *entry;
    bool wait = true;
    DIR *tasks = opendir("/proc/self/task");

    cr_assert(tasks);
    while (wait && (entry = readdir(tasks))) {
        pid_t thread = atoi(entry->d_name);
        wait = thread == 0 || thread == gettid() || thread_waits(thread);
    }
    closedir(tasks);
    return wait;
}

void
threads_wait(void)
{
    bool wait = false;

    for (int i = 0; i < N_TRIES && !wait; i++)
        wait = others_wait();
    cr_assert(wait, "a thread goes on");
}
