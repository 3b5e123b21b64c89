/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test's side of facts_child: processes that use CUDA, commanded step by step. A step that
 * takes more than 30 seconds fails the test, as does a lost process; what the driver answers is
 * returned, or must be CUDA_SUCCESS where a function returns something else.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "facts_wire.h"

struct facts_process {
    pid_t pid; /* -1: killed */
    int socket;
};

/* A new process with the driver open and no context. */
struct facts_process facts_start(void);
/* A new process that has loaded no driver. */
struct facts_process facts_start_bare(void);
/* May every user walk to the build, and so to the software driver? */
bool facts_others_reach(void);
/* A step with its outcome: a CUresult, or -errno. */
int facts_do(struct facts_process *process, enum facts_op op, uint64_t a);
/* A step that must succeed, with its value. */
uint64_t facts_get(struct facts_process *process, enum facts_op op, uint64_t a);

void facts_create(struct facts_process *process, uint64_t size);
int facts_export(struct facts_process *process); /* the fd, owned by the caller */
int facts_import(struct facts_process *process, int fd, uint64_t size);
void facts_keep(struct facts_process *process, int fd);
int facts_give(struct facts_process *process);
uint64_t facts_reserve(struct facts_process *process, uint64_t size, uint64_t hint);
/* Reserves, maps and gives access, and makes a context for what comes next. */
void facts_map(struct facts_process *process, uint64_t size, int access);

/* SIGKILL, and waits for the exit. */
void facts_kill(struct facts_process *process);
/* Hang-up, and waits for an orderly exit. The cleanup of a struct facts_process. */
void facts_stop(struct facts_process *process);

#define _cleanup_process_ _cleanup_(facts_stop)
