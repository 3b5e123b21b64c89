/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor under a round trip to the daemon: two processes that answer each other over a
 * SOCK_SEQPACKET pair, with packets of the sizes that opening an array has and nothing else.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct floor {
    int sock;
    pid_t child; /* answers until the socket hangs up */
    size_t n_request, n_reply;
};

int floor_init(struct floor *ret);
void floor_deinit(struct floor *f);
/* One round trip, in nanoseconds. */
uint64_t floor_round_trip(struct floor *f);

/* Sorts v. */
uint64_t median_ns(uint64_t *v, size_t n);
