/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel.h"

#include <dlfcn.h>
#include <string.h>

#include "program.h"

#define BLOCK 256

/* A thread for each word. */
#define INDEX(name)                                                         \
    ".reg .pred out; .reg .pred bad; .reg .u32 value, n, i, j, k, found;\n" \
    ".reg .u64 at, wrong, step;\n"                                          \
    "ld.param.u64 at, [" name "_at];\n"                                     \
    "ld.param.u32 value, [" name "_value];\n"                               \
    "ld.param.u32 n, [" name "_n];\n"                                       \
    "mov.u32 i, %ctaid.x;\n"                                                \
    "mov.u32 j, %ntid.x;\n"                                                 \
    "mov.u32 k, %tid.x;\n"                                                  \
    "mad.lo.u32 i, i, j, k;\n"                                              \
    "setp.ge.u32 out, i, n;\n"                                              \
    "@out bra end;\n"                                                       \
    "cvta.to.global.u64 at, at;\n"                                          \
    "mul.wide.u32 step, i, 4;\n"                                            \
    "add.u64 at, at, step;\n"

static const char ptx[] =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry fill(.param .u64 fill_at, .param .u32 fill_value, .param .u32 fill_n)\n"
    "{\n" INDEX(
        "fill") "st.global.u32 [at], value;\n"
                "end:\n"
                "ret;\n"
                "}\n"
                ".visible .entry check(.param .u64 check_at, .param .u32 check_value, .param .u32 check_n,\n"
                "                      .param .u64 check_wrong)\n"
                "{\n" INDEX("check") "ld.global.u32 found, [at];\n"
                                     "setp.eq.u32 bad, found, value;\n"
                                     "@bad bra end;\n"
                                     "ld.param.u64 wrong, [check_wrong];\n"
                                     "cvta.to.global.u64 wrong, wrong;\n"
                                     "red.global.add.u32 [wrong], 1;\n"
                                     "end:\n"
                                     "ret;\n"
                                     "}\n";

static void
load(struct kernel *kernel)
{
    CUresult (*load_data)(CUmodule *, const void *);
    CUresult (*get_function)(CUfunction *, CUmodule, const char *);
    void *library = dlopen(kernel->drv->path, RTLD_NOW | RTLD_NOLOAD);
    void *symbols[3] = {NULL};
    CUmodule module;

    if (library) {
        symbols[0] = dlsym(library, "cuModuleLoadData");
        symbols[1] = dlsym(library, "cuModuleGetFunction");
        symbols[2] = dlsym(library, "cuLaunchKernel");
    }
    if (!symbols[0] || !symbols[1] || !symbols[2])
        return;
    memcpy(&load_data, &symbols[0], sizeof(load_data));
    memcpy(&get_function, &symbols[1], sizeof(get_function));
    memcpy(&kernel->launch, &symbols[2], sizeof(kernel->launch));
    MUST_CUDA(load_data(&module, ptx));
    MUST_CUDA(get_function(&kernel->fill, module, "fill"));
    MUST_CUDA(get_function(&kernel->check, module, "check"));
}

void
kernel_open(struct kernel *ret, struct drv *drv, uint32_t n_words)
{
    *ret = (struct kernel){.drv = drv, .n_words = n_words};
    load(ret);
    MUST_CUDA(drv->cu.cuMemAlloc(&ret->n_wrong, sizeof(uint32_t)));
    MUST_CUDA(drv->cu.cuMemsetD32(ret->n_wrong, 0, 1));
    if (!ret->fill)
        MUST_CUDA(drv->cu.cuMemAlloc(&ret->copy, n_words * sizeof(uint32_t)));
    MUST_CUDA(drv->cu.cuCtxSynchronize());
}

static void
launch(const struct kernel *kernel, CUfunction function, void **params, CUstream stream)
{
    unsigned int grid = (kernel->n_words + BLOCK - 1) / BLOCK;

    MUST_CUDA(kernel->launch(function, grid, 1, 1, BLOCK, 1, 1, 0, stream, params, NULL));
}

void
kernel_fill(const struct kernel *kernel, CUdeviceptr at, uint32_t value, CUstream stream)
{
    uint32_t n = kernel->n_words;
    void *params[] = {&at, &value, &n};

    if (kernel->fill)
        launch(kernel, kernel->fill, params, stream);
    else
        MUST_CUDA(kernel->drv->cu.cuMemsetD32Async(at, value, n, stream));
}

void
kernel_check(const struct kernel *kernel, CUdeviceptr at, uint32_t value, CUstream stream)
{
    CUdeviceptr n_wrong = kernel->n_wrong;
    uint32_t n = kernel->n_words;
    void *params[] = {&at, &value, &n, &n_wrong};

    if (kernel->check)
        launch(kernel, kernel->check, params, stream);
    else
        MUST_CUDA(
            kernel->drv->cu.cuMemcpyDtoDAsync(kernel->copy, at, n * sizeof(uint32_t), stream));
}

uint32_t
kernel_n_wrong(const struct kernel *kernel, uint32_t value)
{
    uint32_t word, n = 0;

    if (kernel->check) {
        MUST_CUDA(kernel->drv->cu.cuMemcpyDtoH(&n, kernel->n_wrong, sizeof(n)));
        return n;
    }
    for (uint32_t i = 0; i < kernel->n_words; i += kernel->n_words / 8) {
        CUdeviceptr at = kernel->copy + (CUdeviceptr)i * sizeof(word);
        MUST_CUDA(kernel->drv->cu.cuMemcpyDtoH(&word, at, sizeof(word)));
        n += word != value;
    }
    return n;
}
