/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software driver with faults: calls of cuMemCreate take FAULTY_SLEEP_MS longer, and of the
 * function that FAULTY_CALL names the FAULTY_NTH call (1: the first) answers OUT_OF_MEMORY.
 * A failed release has released, as the real driver's has, which may report an earlier failure.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))

typedef CUresult lookup_fn(const char *, void **, int, cuuint64_t,
                           CUdriverProcAddressQueryResult *);

static CUresult (*real_create)(CUmemGenericAllocationHandle *, size_t,
                               const CUmemAllocationProp *, unsigned long long);
static CUresult (*real_export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                               unsigned long long);
static CUresult (*real_release)(CUmemGenericAllocationHandle);

static int
setting(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

/* Whether this call is the one that is to fail. */
static int
fails(const char *call)
{
    static atomic_int n_calls;
    const char *name = getenv("FAULTY_CALL");
    return name && strcmp(name, call) == 0 && ++n_calls == setting("FAULTY_NTH");
}

static CUresult
faulty_create(CUmemGenericAllocationHandle *handle, size_t size,
              const CUmemAllocationProp *prop, unsigned long long flags)
{
    int ms = setting("FAULTY_SLEEP_MS");
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
    if (fails("cuMemCreate"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return real_create(handle, size, prop, flags);
}

static CUresult
faulty_export(void *shareable, CUmemGenericAllocationHandle handle,
              CUmemAllocationHandleType type, unsigned long long flags)
{
    if (fails("cuMemExportToShareableHandle"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return real_export(shareable, handle, type, flags);
}

static CUresult
faulty_release(CUmemGenericAllocationHandle handle)
{
    CUresult result = real_release(handle);
    return fails("cuMemRelease") ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

static const struct {
    const char *name;
    void *faulty, *real; /* real: where the true address is kept */
} replaced[] = {
    {"cuMemCreate", (void *)faulty_create, &real_create},
    {"cuMemExportToShareableHandle", (void *)faulty_export, &real_export},
    {"cuMemRelease", (void *)faulty_release, &real_release},
};

EXPORT lookup_fn cuGetProcAddress_v2;

CUresult
cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status)
{
    lookup_fn *lookup = (lookup_fn *)dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    CUresult result = lookup(symbol, address, version, flags, status);

    for (size_t i = 0; i < sizeof(replaced) / sizeof(replaced[0]); i++)
        if (result == CUDA_SUCCESS && strcmp(symbol, replaced[i].name) == 0) {
            memcpy(replaced[i].real, address, sizeof(*address));
            *address = replaced[i].faulty;
        }
    return result;
}
