/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test's own use of the GPU, beside the client's: the driver's table, the primary context
 * of device 0, and, on the software driver, its controls (driver/soft/README.md). Failures end
 * the test.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "drv.h"

struct test_gpu {
    struct drv *drv;
    CUcontext context; /* current to this thread until gpu_end() */
    void *library;
};

void gpu_begin(struct test_gpu *gpu);
void gpu_end(struct test_gpu *gpu);

bool gpu_is_soft(void);

/* An entry point that drv.h has not got. */
void *gpu_symbol(const struct test_gpu *gpu, const char *name);

CUstream gpu_stream_new(const struct test_gpu *gpu);

/* The end tells whether the capture of a graph was whole, and drops the graph. */
void gpu_capture_begin(const struct test_gpu *gpu, CUstream stream, CUstreamCaptureMode mode);
bool gpu_capture_end(const struct test_gpu *gpu, CUstream stream);

/* A word in page-locked memory, 0; the stream goes on when it is 1. */
_Atomic uint64_t *gpu_gate_new(const struct test_gpu *gpu);
void gpu_gate_free(const struct test_gpu *gpu, _Atomic uint64_t *gate);
void gpu_wait_at(const struct test_gpu *gpu, _Atomic uint64_t *gate, CUstream stream);

/* Software driver: carries out a command; what it answers is static. */
const char *soft_control(const struct test_gpu *gpu, const char *command);
/* How often a function was called; how many objects of a kind there are. */
uint64_t soft_calls(const struct test_gpu *gpu, const char *function);
uint64_t soft_live(const struct test_gpu *gpu, const char *kind);

#define assert_cuda(call)                                        \
    do {                                                         \
        CUresult result_ = (call);                               \
        cr_assert_eq(result_, 0, "%s: %d", #call, (int)result_); \
    } while (0)
