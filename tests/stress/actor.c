/* SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

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
