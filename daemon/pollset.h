/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fds that clients have a part in, and the one by which libuv's loop waits: an epoll(7) set of
 * our own around libuv's. Of a client's fd it tells once that something has come to it
 * (EPOLLET), so that 1,000 connections which wait for their turn cost nothing until it comes.
 *
 * The other way round, ours in libuv's, each fd that is added would wait for a lock of the kernel
 * that any user can hold for 100 ms (epnested_mutex).
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
/* Waits for those events from now on, of which it tells anew; a system call only where they
 * change. */
void pollset_change(struct pollset *set, struct poll_source *source, uint32_t events);
/* Before the fd is closed, which would do it, under a lock that all have (Linux before 6.4). */
void pollset_remove(struct pollset *set, struct poll_source *source);
/* Calls ready() of those to which something has come, some at a time; it removes none. timeout_ms:
 * as in epoll_wait(2). */
void pollset_wait(struct pollset *set, int timeout_ms);
