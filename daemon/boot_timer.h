/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timer by CLOCK_BOOTTIME, which libuv lacks. It goes on while the machine sleeps: if it has
 * become due meanwhile, it fires as soon as the machine is awake. It is embedded in the server; its
 * handle is closed with the loop.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

struct boot_timer {
    int fd; /* or -1 */
    uv_poll_t poll;
    uint64_t at_ns; /* when it fires; UINT64_MAX: it is not set */
    void (*fired)(void *userdata);
    void *userdata;
};

int boot_timer_init(struct boot_timer *timer, uv_loop_t *loop, void (*fired)(void *userdata),
                    void *userdata);
/* After the loop has closed its handle. */
void boot_timer_deinit(struct boot_timer *timer);
/* Calls fired() once at that time, or at once if it has passed. UINT64_MAX: never. */
void boot_timer_set(struct boot_timer *timer, uint64_t at_ns);
