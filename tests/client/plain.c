/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain HANDLE OFFSET BYTES FROM TO: a process that knows nothing of caid. It opens a CUDA IPC
 * handle (128 hexadecimal digits), checks that the bytes at OFFSET are FROM, and sets them to
 * TO. Exits 0, or 1 and says why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drv.h"

#define must(call)                                                  \
    do {                                                            \
        CUresult result = (call);                                   \
        if (result != CUDA_SUCCESS) {                               \
            fprintf(stderr, "plain: %s: %d\n", #call, (int)result); \
            exit(1);                                                \
        }                                                           \
    } while (0)

static CUipcMemHandle
parse_handle(const char *text)
{
    CUipcMemHandle handle;
    unsigned int byte;

    for (size_t i = 0; i < sizeof(handle.reserved); i++) {
        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            exit(1);
        handle.reserved[i] = (char)byte;
    }
    return handle;
}

int
main(int argc, char **argv)
{
    CUcontext context;
    CUdeviceptr base;
    struct drv *drv;

    if (argc != 6 || drv_open(&drv, NULL, NULL) < 0)
        return 1;
    size_t offset = strtoull(argv[2], NULL, 10), n = strtoull(argv[3], NULL, 10);
    unsigned char *bytes = malloc(n);
    must(drv->cu.cuDevicePrimaryCtxRetain(&context, 0));
    must(drv->cu.cuCtxPushCurrent(context));
    must(drv->cu.cuIpcOpenMemHandle(&base, parse_handle(argv[1]), 1));
    must(drv->cu.cuMemcpyDtoH(bytes, base + offset, n));
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != atoi(argv[4])) {
            fprintf(stderr, "plain: byte %zu is %d\n", i, bytes[i]);
            return 1;
        }
    must(drv->cu.cuMemsetD8(base + offset, (unsigned char)atoi(argv[5]), n));
    must(drv->cu.cuCtxSynchronize());
    must(drv->cu.cuIpcCloseMemHandle(base));
    free(bytes);
    drv_free(drv);
    return 0;
}
