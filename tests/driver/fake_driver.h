/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fake driver lets its test see and set: dlsym(3) "fake_state" of the library that the
 * driver was opened from.
 */
#pragma once

#include <stdbool.h>

#include "cuda_abi.h"

#define FAKE_LOOKUPS 256

struct fake_lookup {
    char symbol[64];
    int version;
    cuuint64_t flags;
};

struct fake_state {
    int fail_at; /* the n-th next start of NVML does; -1: none */
    int n_nvml_inits;
    int persistence; /* -1: NVML does not tell */
    bool no_posix_fd;
    int n_lookups;
    struct fake_lookup lookups[FAKE_LOOKUPS];
};

struct fake_state *fake_state(void);
