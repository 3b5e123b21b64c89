/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "caid_test.h"

bool
gpu_is_soft(void)
{
    const char *choice = getenv("CAID_CUDA_DRIVER");
    return !choice || !choice[0] || strcmp(choice, "soft") == 0;
}

void
gpu_begin(struct test_gpu *gpu)
{
    struct drv_error error = {0};

    cr_assert_eq(drv_open(&gpu->drv, gpu_is_soft() ? "soft" : NULL, &error), 0, "%s",
                 error.message);
    gpu->library = dlopen(gpu->drv->path, RTLD_NOW | RTLD_NOLOAD);
    cr_assert(gpu->library, "%s", dlerror());
    assert_cuda(gpu->drv->cu.cuDevicePrimaryCtxRetain(&gpu->context, 0));
    assert_cuda(gpu->drv->cu.cuCtxPushCurrent(gpu->context));
}

void
gpu_end(struct test_gpu *gpu)
{
    CUcontext context;

    gpu->drv->cu.cuCtxPopCurrent(&context);
    gpu->drv->cu.cuDevicePrimaryCtxRelease(0);
    dlclose(gpu->library);
    drv_free(gpu->drv);
}

void *
gpu_symbol(const struct test_gpu *gpu, const char *name)
{
    void *symbol = dlsym(gpu->library, name);

    cr_assert(symbol, "%s", name);
    return symbol;
}

CUstream
gpu_stream_new(const struct test_gpu *gpu)
{
    const unsigned int non_blocking = 1;
    CUstream stream;

    assert_cuda(gpu->drv->cu.cuStreamCreate(&stream, non_blocking));
    return stream;
}

void
gpu_capture_begin(const struct test_gpu *gpu, CUstream stream, CUstreamCaptureMode mode)
{
    CUresult (*begin)(CUstream, CUstreamCaptureMode);
    void *symbol = gpu_symbol(gpu, "cuStreamBeginCapture_v2");

    memcpy(&begin, &symbol, sizeof(begin));
    assert_cuda(begin(stream, mode));
}

bool
gpu_capture_end(const struct test_gpu *gpu, CUstream stream)
{
    CUresult (*end)(CUstream, CUgraph *);
    CUresult (*destroy)(CUgraph);
    void *symbol = gpu_symbol(gpu, "cuStreamEndCapture");
    CUgraph graph = NULL;

    memcpy(&end, &symbol, sizeof(end));
    CUresult result = end(stream, &graph);
    symbol = gpu_symbol(gpu, "cuGraphDestroy");
    memcpy(&destroy, &symbol, sizeof(destroy));
    if (graph)
        assert_cuda(destroy(graph));
    return result == CUDA_SUCCESS;
}

_Atomic uint64_t *
gpu_gate_new(const struct test_gpu *gpu)
{
    void *gate;

    assert_cuda(
        gpu->drv->cu.cuMemHostAlloc(&gate, sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP));
    *(_Atomic uint64_t *)gate = 0;
    return gate;
}

void
gpu_gate_free(const struct test_gpu *gpu, _Atomic uint64_t *gate)
{
    assert_cuda(gpu->drv->cu.cuMemFreeHost((void *)(uintptr_t)gate));
}

void
gpu_wait_at(const struct test_gpu *gpu, _Atomic uint64_t *gate, CUstream stream)
{
    CUdeviceptr at;

    assert_cuda(gpu->drv->cu.cuMemHostGetDevicePointer(&at, (void *)(uintptr_t)gate, 0));
    assert_cuda(gpu->drv->cu.cuStreamWaitValue64(stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

const char *
soft_control(const struct test_gpu *gpu, const char *command)
{
    static char reply[4096];
    int (*control)(const char *, char *, size_t);
    void *symbol = gpu_symbol(gpu, "caid_softcuda_control");

    memcpy(&control, &symbol, sizeof(control));
    cr_assert_eq(control(command, reply, sizeof(reply)), 0, "%s: %s", command, reply);
    return reply;
}

static uint64_t
number_of(const char *reply, const char *what)
{
    const char *line = reply;

    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, what, strlen(what)) == 0 && line[strlen(what)] == ' ')
            return strtoull(line + strlen(what) + 1, NULL, 10);
    return 0;
}

uint64_t
soft_calls(const struct test_gpu *gpu, const char *function)
{
    char command[80];

    snprintf(command, sizeof(command), "calls %s", function);
    return strtoull(soft_control(gpu, command), NULL, 10);
}

uint64_t
soft_live(const struct test_gpu *gpu, const char *kind)
{
    return number_of(soft_control(gpu, "live"), kind);
}
