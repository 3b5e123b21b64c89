/* SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

#include <dlfcn.h>
#include <err.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static sem_t *stop_before, *stop_after;

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);

_Noreturn void
actor_stay(sem_t *reached)
{
    sem_post(reached);
    for (;;)
        pause();
}

/* Linked in the place of the library's sendmsg(2). */
ssize_t
__wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    if (stop_before)
        actor_stay(stop_before);
    ssize_t r = __real_sendmsg(fd, msg, flags);
    if (stop_after && r >= 0)
        actor_stay(stop_after);
    return r;
}

void
actor_stop_before_send(sem_t *reached)
{
    stop_before = reached;
}

void
actor_stop_after_send(sem_t *reached)
{
    stop_after = reached;
}

void
actor_set_speed(const struct drv *drv, const char *command)
{
    void *library = dlopen(drv->path, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "caid_softcuda_control") : NULL;
    int (*control)(const char *, char *, size_t);
    char reply[256];

    if (!symbol)
        errx(1, "%s", dlerror());
    memcpy(&control, &symbol, sizeof(control));
    if (control(command, reply, sizeof(reply)))
        errx(1, "%s: %s", command, reply);
}

void
actor_open(const char *socket, struct drv **ret_drv, struct caid_client **ret_client)
{
    struct caid_connect_options options = CAID_INIT(struct caid_connect_options);
    struct drv_error drv_error;
    struct caid_error error;
    CUcontext context;

    if (drv_open(ret_drv, "soft", &drv_error) < 0)
        errx(1, "%s", drv_error.message);
    MUST_CUDA((*ret_drv)->cu.cuDevicePrimaryCtxRetain(&context, 0));
    MUST_CUDA((*ret_drv)->cu.cuCtxSetCurrent(context));
    options.socket = socket;
    MUST(caid_connect(ret_client, &options, &error));
}
