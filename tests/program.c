/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define RECONNECT_NS (120 * NSEC_PER_SEC) /* an outage that only a hang makes as long */

__thread struct caid_error error;

int
program_must(int r, int allowed, const char *call)
{
    if (r < 0 && r != allowed)
        errx(1, "%s: %d: %s", call, r, error.message);
    return r;
}

struct caid_client *
program_connect(const char *socket)
{
    OPTIONS(caid_connect_options, options, .socket = socket,
            .reconnect_timeout_ns = RECONNECT_NS);
    struct caid_client *client;

    MUST(caid_connect(&client, &options, &error));
    return client;
}

struct caid_array *
program_make(struct caid_client *client, const char *name, const char *memory, int64_t n)
{
    OPTIONS(caid_create_options, options, .name = name, .memory = memory, .typestr = "|u1",
            .shape = &n, .ndim = 1);
    struct caid_array *array;

    int r = MUST_OR(-EEXIST, caid_array_create(client, &array, &options, &error));
    return r < 0 ? NULL : array;
}

void
program_take_context(struct caid_client *client)
{
    struct caid_array *array = program_make(client, NULL, NULL, 1);
    char byte = 0;

    MUST(caid_array_copy_from_host(array, &byte, 1, &error));
    caid_array_close(array);
}

struct drv *
program_driver(const char *which)
{
    struct drv_error cause;
    CUcontext context;
    struct drv *drv;

    if (drv_open(&drv, which, &cause) < 0)
        errx(1, "%s", cause.message);
    MUST_CUDA(drv->cu.cuDevicePrimaryCtxRetain(&context, 0));
    MUST_CUDA(drv->cu.cuCtxSetCurrent(context));
    return drv;
}

void
program_control(const char *path, const char *command)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "caid_softcuda_control") : NULL;
    int (*control)(const char *, char *, size_t);
    char reply[256];

    if (!symbol)
        errx(1, "%s", dlerror());
    dlclose(library);
    memcpy(&control, &symbol, sizeof(control));
    if (control(command, reply, sizeof(reply)))
        errx(1, "%s: %s", command, reply);
}

uint32_t
program_random(uint32_t *random, uint32_t below)
{
    *random = *random * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)*random * below >> 32);
}

pid_t
program_fork(void)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        err(1, "fork");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    return 0;
}

bool
program_kill(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGKILL;
}

void *
program_share(size_t size)
{
    void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED)
        err(1, "mmap");
    return shared;
}

void
program_share_sem(sem_t *sem)
{
    if (sem_init(sem, 1, 0) < 0)
        err(1, "sem_init");
}

void
program_wait(sem_t *sem)
{
    while (sem_wait(sem) < 0)
        if (errno != EINTR)
            err(1, "sem_wait");
}

bool
program_wait_for(sem_t *sem, unsigned seconds)
{
    struct timespec end;
    int r;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += seconds;
    while ((r = sem_timedwait(sem, &end)) < 0 && errno == EINTR)
        ;
    return r == 0;
}
