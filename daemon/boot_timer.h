/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timer by CLOCK_BOOTTIME, which libuv has not: it goes on while the machine sleeps, and what has
 * become due meanwhile fires as soon as the machine is awake. Lives in the server; its handle is
 * closed with the loop.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

struct boot_timer {
    int fd; /* or -1 */
    uv_poll_t poll;
    uint64_t at_ns; /* that it is set to; UINT64_MAX: it is not */
    void (*fired)(void *userdata);
    void *userdata;
};

int boot_timer_init(struct boot_timer *timer, uv_loop_t *loop, void (*fired)(void *userdata),
                    void *userdata);
/* After the loop has closed its handle. */
void boot_timer_deinit(struct boot_timer *timer);
/* fired() is called once, at that time or at once if that has passed. UINT64_MAX: never. */
void boot_timer_set(struct boot_timer *timer, uint64_t at_ns);
