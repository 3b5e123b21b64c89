/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that uses CUDA as its parent commands (facts_wire.h), so that a test can have
 * several, kill them, and fork without ever forking CUDA. It loads no driver before the step
 * "open", and keeps no books: what it made, the test knows by its handle or address, and what is
 * left ends with the process, as it ends when its parent does.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "facts_wire.h"
#include "vmm.h"

struct child {
    struct drv *drv;
    struct drv_device device;
};

struct request {
    const uint64_t *a;
    const unsigned char *bytes; /* of the command */
    int fd;                     /* borrowed; -1: none came */
    struct facts_reply *reply;
    int reply_fd; /* closed once sent; -1: none */
};

/* The step or call of an op; the result is a CUresult or -errno. */
#define STEP(name) int step_##name(struct child *child, struct request *request);
#include "facts_steps.def"
#undef STEP

/* The tests' own table of functions, from the library that drv_open() opened. */
int calls_load(const struct drv *drv);
int calls_run(enum facts_op op, struct request *request);
/* One function by name; NULL where the driver has none of that version. */
void *calls_find(const char *name, int version);

/* The CUresult where a driver call failed, else the errno. */
int outcome(int r, const struct drv_error *err);
