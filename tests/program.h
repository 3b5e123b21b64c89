/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plain programs of the tests have in common (those of Criterion: caid_test.h): calls that
 * end the program when they fail, what such a program begins with, and processes that end with it.
 */
#pragma once

#include <err.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "caid/caid.h"
#include "drv.h"

/* Options with some fields set. */
#define OPTIONS(type, name, ...) \
    struct type name = {.struct_size = sizeof(struct type), __VA_ARGS__}

/* Of each thread: what is given to the calls that MUST() looks at. */
extern __thread struct caid_error error;

/* The call's result, which is no error, or the one that is allowed. */
#define MUST(call)             program_must((call), 0, #call)
#define MUST_OR(allowed, call) program_must((call), (allowed), #call)

int program_must(int r, int allowed, const char *call);

#define MUST_CUDA(call)                             \
    do {                                            \
        CUresult result_ = (call);                  \
        if (result_)                                \
            errx(1, "%s: %d", #call, (int)result_); \
    } while (0)

#define STREAM(s) ((uint64_t)(uintptr_t)(s))

struct caid_client *program_connect(const char *socket);

/* An array of n bytes. name and memory may be NULL; a name that is taken gives NULL. */
struct caid_array *program_make(struct caid_client *client, const char *name,
                                const char *memory, int64_t n);

/* Copying a byte gives this process the device's primary context: its closes wait for the GPU from
 * here on. */
void program_take_context(struct caid_client *client);

/* A driver, with a context of its first device that is current. */
struct drv *program_driver(const char *which);

/* Tells the software driver, of that path. */
void program_control(const char *path, const char *command);

/* Below that, by chance, from a number that each call changes. */
uint32_t program_random(uint32_t *random, uint32_t below);
#define rnd(who, below) program_random(&(who)->random, (below))

/* ---- processes: they load no CUDA library before they fork ---- */

/* As fork(2), and the child dies with this process. */
pid_t program_fork(void);

/* false: it had ended by itself. */
bool program_kill(pid_t pid);

/* Memory that the children have, too; zeros. */
void *program_share(size_t size);
void program_share_sem(sem_t *sem);

void program_wait(sem_t *sem);
/* false: not within so many seconds. */
bool program_wait_for(sem_t *sem, unsigned seconds);
