/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a test commands a process that uses CUDA: one packet there, one back, on the socket that
 * the process has as fd 3. An fd travels with either. Both ends are the same build, so handles
 * and addresses of the process are plain numbers to the test.
 */
#pragma once

#include <stdint.h>

#include "packet.h"

#define FACTS_SOCKET 3
#define FACTS_N_ARGS 8
#define FACTS_BYTES  512

enum facts_op {
#define CALL(name, ...) FACTS_##name,
#define MAKE(name, ...) FACTS_##name,
#define STEP(name)      FACTS_##name,
#include "facts_calls.def"
#include "facts_steps.def"
#undef CALL
#undef MAKE
#undef STEP
    FACTS_N_OPS
};

enum facts_host_function {
    FACTS_HOLD,  /* waits until the 64 bits at its argument are not 0 */
    FACTS_COUNT, /* adds 1 to them */
    FACTS_CALL,  /* stores there what cuCtxGetCurrent() returns, plus 1 */
};

struct facts_command {
    enum facts_op op;
    uint64_t args[FACTS_N_ARGS];
    unsigned char bytes[FACTS_BYTES];
};

struct facts_reply {
    int result; /* CUresult, or -errno where no driver call failed; -ENOSYS: no such function */
    uint64_t value;
    unsigned char bytes[FACTS_BYTES];
};
