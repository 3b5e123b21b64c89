/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software driver in a test: the library loaded at run time, its entry points as members of
 * one table under their exported names, and gates, which hold up a stream until they are opened.
 * With gates a test can show that something waits, or does not, without ever looking at a clock.
 */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "cuda_abi.h"
#include "soft/nvml_abi.h"
#include "soft/params.h"

#define MIB  ((size_t)1 << 20)
#define GRAN (2 * MIB)
#define PAGE ((size_t)4096)

struct soft_api {
#define EXPORT(symbol, base, version, ...) CUresult (*symbol)(PARAMS(__VA_ARGS__));
#define EXPORT_PT(symbol, base, version, suffix, ...) \
    CUresult (*symbol)(PARAMS(__VA_ARGS__));          \
    CUresult (*symbol##suffix)(PARAMS(__VA_ARGS__));
#define ENTRY(symbol, base, version, ...)
#define NVML(symbol, ...) nvmlReturn_t (*symbol)(PARAMS(__VA_ARGS__));
#include "soft/exports.def"
#undef EXPORT
#undef EXPORT_PT
#undef ENTRY
#undef NVML
    const char *(*nvmlErrorString)(nvmlReturn_t);
    const char *(*caid_softcuda_version)(void);
    int (*caid_softcuda_control)(const char *, char *, size_t);
};

extern struct soft_api cu;

/* Loads the library at path into the table; ends the process where that fails. */
void soft_load_path(const char *path);
/* A body with soft_end() behind it, and the first with soft_start_context() before it. */
#define SOFT_TEST(suite, name) \
    CAID_TEST_BETWEEN(suite, name, soft_start_context(), soft_end(), .timeout = 60)
#define SOFT_TEST_LATE(suite, name) \
    CAID_TEST_BETWEEN(suite, name, (void)0, soft_end(), .timeout = 60)

/* A device of this process's own: gives it a UUID that no other test has, loads the library
 * under test and initialises it. Settings are made before, by setenv(). */
void soft_start(void);
/* The same, with the primary context of device 0 current. */
CUcontext soft_start_context(void);
/* Ends what a test has left: peers, what is in the primary contexts, mappings of soft_map() and
 * pools of soft_pool(). What is in other contexts is the test's to end. */
void soft_end(void);
/* The peers' part in that. */
extern void (*soft_end_peers)(void);

/* Bytes in use on device 0, by all processes. */
uint64_t soft_used(void);
/* The same, once that is so much: the kernel gives back what a process had some time after it has
 * told of its exit, and a look at it may be wrong while other processes' locks come and go. What it
 * is after 10 s otherwise. */
uint64_t soft_used_later(uint64_t bytes);
#define USED_IS(bytes, ...) \
    cr_assert_eq(soft_used_later(bytes), bytes __VA_OPT__(, ) __VA_ARGS__)

struct soft_mapping {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t size;
};

CUmemAllocationProp soft_prop(int ordinal);
/* Memory of device 0, mapped; access 0 sets none. */
struct soft_mapping soft_map(size_t size, int access);
void soft_set_access(const struct soft_mapping *mapping, int access);
void soft_unmap(struct soft_mapping *mapping);

/* A stream that waits for no other, unless flags say otherwise. */
CUstream soft_stream(unsigned int flags);
CUevent soft_event(unsigned int flags);
CUdeviceptr soft_memory(size_t size);
/* A pool of the first device, or of the host or its first node; max 0 is no limit. */
CUmemoryPool soft_pool(CUmemAllocationHandleType handles, CUmemLocationType where, size_t max);
/* A page of pinned memory, of zeros. */
void *soft_pinned(void);
void soft_fill(CUdeviceptr at, unsigned char value, size_t size); /* and waits */
/* Whether all of it is value. */
bool soft_holds(CUdeviceptr at, unsigned char value, size_t size);
/* How many there are of a kind, as the command "live" has it: "opened", "registrations", ... */
size_t soft_live(const char *kind);

struct gate {
    sem_t open;
};

/* Everything that is enqueued into the stream from now on waits for the gate. */
void gate_close(struct gate *gate, CUstream stream);
void gate_open(struct gate *gate);

/* fork(), with a child that does not outlive its parent. Before either loads the driver. */
pid_t soft_fork(void);

/* A driver call that may block, made by a thread of its own. */
struct blocked {
    pthread_t thread;
    CUresult (*call)(void *arg);
    void *arg;
    CUresult result;
    _Atomic pid_t tid;
    _Atomic bool returned;
};

void blocked_start(struct blocked *blocked, CUresult (*call)(void *), void *arg);
/* Whether it has come to rest inside the call, and not to its end. */
bool blocked_waits(struct blocked *blocked);
CUresult blocked_join(struct blocked *blocked);

/* Ends the process with a line on stderr where a call does not succeed. */
void soft_must(CUresult result, const char *call, int line);
#define MUST(call) soft_must(cu.call, #call, __LINE__)
/* In a body: the call is refused with CUDA_ERROR_##error. */
#define REFUSED(error, call)                                                                 \
    do {                                                                                     \
        CUresult _result = cu.call;                                                          \
        cr_assert_eq(_result, CUDA_ERROR_##error, "%s: %d, not %s", #call, _result, #error); \
    } while (0)
/* In a body: what a pointer's attribute is. Of those that are shorter the rest is zeros. */
#define ATTRIBUTE_IS(name, at, want)                                                   \
    do {                                                                               \
        uint64_t _value = 0;                                                           \
        MUST(cuPointerGetAttribute(&_value, CU_POINTER_ATTRIBUTE_##name, (at)));       \
        cr_assert_eq(_value, (uint64_t)(want), #name " of " #at ": %#llx, not " #want, \
                     (unsigned long long)_value);                                      \
    } while (0)
