/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An epoll(7) set of our own, with the sockets and pidfds of clients, and the fd of libuv's set. It
 * reports an event of a client's fd once (EPOLLET), so that 1,000 connections that wait for their
 * turn cost nothing meanwhile.
 *
 * Were this set in libuv's instead, each fd that is added would wait for a lock of the kernel that
 * any user can hold for 100 ms (epnested_mutex).
 */
#pragma once

#include <stdint.h>
#include <sys/epoll.h>

struct poll_source {
    void (*ready)(struct poll_source *source, uint32_t events);
    uint32_t events; /* as in epoll_ctl(2) */
    int fd;          /* -1: in no set */
};

struct pollset {
    int fd;
};

/* -EMFILE, -ENFILE, -ENOMEM. */
int pollset_init(struct pollset *set);
void pollset_deinit(struct pollset *set);

/* source: ready and events are set. -ENOSPC, -ENOMEM. */
int pollset_add(struct pollset *set, struct poll_source *source, int fd);
/* Waits for these events from now on; one that is there already is reported again. It makes a
 * system call only if the events differ from those before. */
void pollset_change(struct pollset *set, struct poll_source *source, uint32_t events);
/* Call it before the fd is closed: close(2) would remove it, too, but under a global lock of the
 * kernel (Linux before 6.4). */
void pollset_remove(struct pollset *set, struct poll_source *source);
/* Calls ready() of the sources that have events, of a bounded number; ready() must not remove
 * sources. timeout_ms: as in epoll_wait(2). */
void pollset_wait(struct pollset *set, int timeout_ms);
