/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test's side of facts_child: processes that use CUDA, commanded call by call and step by step
 * (facts_calls.def, facts_steps.def). What a process makes, the test holds as a number and hands
 * back in later calls: handles, and addresses in that process.
 *
 * A call that takes more than 30 seconds fails the test, as does a lost process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "caid_test.h"
#include "cuda_abi.h"
#include "facts_wire.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define READ      CU_MEM_ACCESS_FLAGS_PROT_READ
#define READWRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* A body with the time that a real driver needs to start several processes. */
#define FACT(suite, name) CAID_TEST_WITH(suite, name, .timeout = 150)

struct facts_process {
    pid_t pid; /* -1: killed */
    int socket;
    enum facts_op begun; /* where a reply is outstanding */
};

/* A new process with the driver open, on device 0, and no context. */
struct facts_process facts_start(void);
/* The same, with the device's primary context current. */
struct facts_process facts_start_context(void);
/* A new process that has loaded no driver. */
struct facts_process facts_start_bare(void);
/* SIGKILL, and waits for the exit. The cleanup of one whose streams may hang. */
void facts_kill(struct facts_process *process);
/* Hang-up, and waits for an orderly exit. The cleanup of all others. Both are harmless after a
 * kill. */
void facts_stop(struct facts_process *process);
/* May another user be one of the processes? Skips the test otherwise. */
void facts_need_other_users(void);
/* Is the driver so new that it has this? Skips the test otherwise. */
void facts_need_call(struct facts_process *process, const char *name, int version);

#define _cleanup_process_        _cleanup_(facts_stop)
#define _cleanup_process_killed_ _cleanup_(facts_kill)

/* A body with one or two processes; the file says of which SUITE it is, and how they START. */
#define FACT_OF_ONE(name, one) FACT_OF_ONE_IN(SUITE, name, one)
#define FACT_OF_ONE_IN(suite, name, one)                       \
    static void name##_of(struct facts_process *one);          \
    FACT(suite, name)                                          \
    {                                                          \
        _cleanup_process_ struct facts_process _one = START(); \
        name##_of(&_one);                                      \
    }                                                          \
    static void name##_of(struct facts_process *one)
#define FACT_OF_TWO(name, one, two) FACT_OF_TWO_IN(SUITE, name, one, two)
#define FACT_OF_TWO_IN(suite, name, one, two)                                    \
    static void name##_of(struct facts_process *one, struct facts_process *two); \
    FACT(suite, name)                                                            \
    {                                                                            \
        _cleanup_process_ struct facts_process _one = START();                   \
        _cleanup_process_ struct facts_process _two = START();                   \
        name##_of(&_one, &_two);                                                 \
    }                                                                            \
    static void name##_of(struct facts_process *one, struct facts_process *two)

/* Each takes the process, the name of a call or step, and its arguments.
 * TRY: what it answers. GET: its value, where it must succeed. MUST: it must succeed. EXPECT: it
 * must answer so. */
#define TRY(process, ...) facts_run((process), COMMAND(__VA_ARGS__)).result
#define GET(process, ...)                                                                \
    ({                                                                                   \
        const struct facts_command *_command = COMMAND(__VA_ARGS__);                     \
        struct facts_reply _reply = facts_run((process), _command);                      \
        cr_assert_eq(_reply.result, CUDA_SUCCESS, "%s: %s", facts_op_name(_command->op), \
                     facts_result_name(_reply.result));                                  \
        _reply.value;                                                                    \
    })
#define MUST(process, ...) ((void)GET(process, __VA_ARGS__))
#define EXPECT(process, expected, ...)                                                        \
    do {                                                                                      \
        const struct facts_command *_command = COMMAND(__VA_ARGS__);                          \
        int _result = facts_run((process), _command).result;                                  \
        cr_assert_eq(_result, (int)(expected), "%s: %s, not %s", facts_op_name(_command->op), \
                     facts_result_name(_result), facts_result_name(expected));                \
    } while (0)
#define COMMAND(name, ...)                          \
    &(struct facts_command)                         \
    {                                               \
        .op = FACTS_##name, .args = { __VA_ARGS__ } \
    }

const char *facts_op_name(enum facts_op op);
const char *facts_result_name(int result);
struct facts_reply facts_run(struct facts_process *process,
                             const struct facts_command *command);

/* A call that may block: begun, looked at, and awaited. */
#define BEGIN(process, ...) facts_begin((process), COMMAND(__VA_ARGS__))
#define EXPECT_END(process, expected)                                                    \
    do {                                                                                 \
        int _result = facts_end(process);                                                \
        cr_assert_eq(_result, (int)(expected), "%s, not %s", facts_result_name(_result), \
                     facts_result_name(expected));                                       \
    } while (0)
void facts_begin(struct facts_process *process, const struct facts_command *command);
/* Has the call not returned after a while (half a second)? */
bool facts_is_blocked(struct facts_process *process);
int facts_end(struct facts_process *process);

void facts_pause_ms(unsigned int ms);

/* The primary context of a device, current from now on. */
uint64_t facts_context(struct facts_process *process, int device);

/* Host memory of the process: a struct there and back. */
void facts_write(struct facts_process *process, uint64_t at, const void *data, size_t size);
void facts_read(struct facts_process *process, uint64_t at, void *ret_data, size_t size);
/* Memory of the process with a copy of the struct. */
uint64_t facts_put(struct facts_process *process, const void *data, size_t size);

/* Of a pointer, as a number: 32 or 64 bits. */
uint64_t facts_attribute(struct facts_process *process, CUpointer_attribute attribute,
                         uint64_t at);

/* Device memory. */
struct facts_memory {
    uint64_t handle, at, size;
};

/* Shareable memory of device 0, mapped. It needs no context. */
struct facts_memory facts_create(struct facts_process *process, uint64_t size);
/* The same from an exported fd. */
struct facts_memory facts_import(struct facts_process *process, int fd, uint64_t size,
                                 CUmemAccess_flags access);
void facts_map(struct facts_process *process, struct facts_memory *memory,
               CUmemAccess_flags access, int device);
int facts_export(struct facts_process *process,
                 uint64_t handle); /* the fd, owned by the caller */
int facts_import_fd(struct facts_process *process, int fd, uint64_t size,
                    uint64_t *ret_handle); /* the CUresult */
/* Fills, on the legacy default stream, and waits. */
void facts_fill(struct facts_process *process, uint64_t at, uint64_t size, uint32_t word);
/* All of it is word? */
void facts_assert_filled(struct facts_process *process, uint64_t at, uint64_t size,
                         uint32_t word);

/* An fd that the process owns and returns by its number, and back. */
uint64_t facts_give_fd(struct facts_process *process, int fd);
int facts_take_fd(struct facts_process *process, uint64_t number);
void facts_set_variable(struct facts_process *process, const char *text);

/* A page of shared host memory: a memfd, mapped here. */
#define FACTS_PAGE_SIZE (64 * KIB)

struct facts_page {
    int fd;
    _Atomic uint64_t *words;
};

struct facts_page facts_page_new(void);
void facts_page_deinit(struct facts_page *page);
/* Mapped and registered in a process: its device address there. */
uint64_t facts_page_register(struct facts_process *process, const struct facts_page *page,
                             int protection);
uint64_t facts_page_map(struct facts_process *process, const struct facts_page *page,
                        int protection);

#define _cleanup_page_ _cleanup_(facts_page_deinit)
