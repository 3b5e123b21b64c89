/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attacks by one uid on the daemon. Each has processes of its own, and goes on until it is stopped.
 */
#pragma once

#include <stddef.h>

#include "wire.h"

struct attack_setup {
    const char *socket;
    unsigned int n_conns; /* that an attack may have open at once */
    int stop;             /* a pipe: readable when the attack is to end */
    int ready;            /* and one to say that it has begun */
};

struct attack {
    const char *name;
    const char *what;
    void (*run)(const struct attack_setup *setup); /* in a process of its own */
    unsigned int n_processes;
    unsigned int n_groups; /* that they are in */
};

extern const struct attack attacks[];
extern const size_t n_attacks;
