/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fds of one uid, as one fd: an epoll(7) set that the loop looks at like at any other fd. So
 * what a uid has piled up is one event in a turn of the loop, whatever it is: packets, room for
 * output, hang-ups, exits (I6). Which of its fds is next the kernel says, round robin.
 *
 * An fd that is closed leaves the set by itself, as long as nobody else has it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct poll_source {
    void (*ready)(struct poll_source *source, uint32_t events); /* may free it */
    int set, fd;
    uint32_t events; /* as in epoll_ctl(2), level-triggered */
};

/* An fd, to be closed; or -EMFILE, -ENFILE, -ENOMEM. */
int pollset_new(void);
/* source: ready and events are set. -ENOSPC, -ENOMEM. */
int pollset_add(int set, struct poll_source *source, int fd);
/* Waits for those events from now on; a system call only where they change. */
void pollset_change(struct poll_source *source, uint32_t events);
void pollset_remove(struct poll_source *source);
/* Calls ready() of the next one for which an event has come. false: there is none. */
bool pollset_serve(int set);
