/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* gettid() of glibc 2.30. */
static inline pid_t
thread_id(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* Starts a thread that takes no signal: other threads of the process take them. -errno. */
static inline int
thread_spawn(pthread_t *ret, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = -pthread_create(ret, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}
