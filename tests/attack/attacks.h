/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one uid can do to the daemon, each by processes of its own, until it is told to stop.
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
