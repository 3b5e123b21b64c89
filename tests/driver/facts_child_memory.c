/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are about memory: the host's, the device's, and inter-process handles. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "facts_child.h"

/* Host memory. */

int
step_allocate_host(struct child *child UNUSED, struct request *request)
{
    void *at =
        mmap(NULL, request->a[0], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -errno;
    request->reply->value = (uintptr_t)at;
    return 0;
}

int
step_map_host(struct child *child UNUSED, struct request *request)
{
    void *at = mmap(NULL, request->a[0], (int)request->a[1], MAP_SHARED, request->fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    request->reply->value = (uintptr_t)at;
    return 0;
}

int
step_read_bytes(struct child *child UNUSED, struct request *request)
{
    if (request->a[1] > FACTS_BYTES)
        return -E2BIG;
    memcpy(request->reply->bytes, (const void *)request->a[0], request->a[1]);
    return 0;
}

int
step_write_bytes(struct child *child UNUSED, struct request *request)
{
    if (request->a[1] > FACTS_BYTES)
        return -E2BIG;
    memcpy((void *)request->a[0], request->bytes, request->a[1]);
    return 0;
}

int
step_load(struct child *child UNUSED, struct request *request)
{
    request->reply->value = atomic_load((const _Atomic uint64_t *)request->a[0]);
    return 0;
}

int
step_store(struct child *child UNUSED, struct request *request)
{
    atomic_store((_Atomic uint64_t *)request->a[0], request->a[1]);
    return 0;
}

/* Host functions. */

static void
hold(void *word)
{
    while (atomic_load((_Atomic uint64_t *)word) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void
count(void *word)
{
    atomic_fetch_add((_Atomic uint64_t *)word, 1);
}

static const struct drv_table *callback_table;

static void
call(void *word)
{
    CUcontext context;
    atomic_store((_Atomic uint64_t *)word, callback_table->cuCtxGetCurrent(&context) + 1ULL);
}

int
step_host_function(struct child *child, struct request *request)
{
    static void (*const functions[])(void *) = {
        [FACTS_HOLD] = hold,
        [FACTS_COUNT] = count,
        [FACTS_CALL] = call,
    };
    callback_table = &child->drv->cu;
    request->reply->value = (uintptr_t)functions[request->a[0]];
    return 0;
}

static void
tell(CUstream stream UNUSED, CUresult status, void *word)
{
    atomic_store((_Atomic uint64_t *)word, status + 1ULL);
}

int
step_callback(struct child *child UNUSED, struct request *request)
{
    request->reply->value = (uintptr_t)tell;
    return 0;
}

/* Device memory. */

int
step_create(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    struct vmm_alloc alloc = {0};
    int r =
        vmm_alloc_create(child->drv, (int)request->a[1], request->a[0], false, &alloc, &err);
    request->reply->value = alloc.handle;
    return outcome(r, &err);
}

int
step_create_many(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    struct vmm_alloc alloc;
    int r = 0;
    uint64_t n = 0;
    while (n < request->a[1] && r == 0) {
        r = vmm_alloc_create(child->drv, child->device.ordinal, request->a[0], false, &alloc,
                             &err);
        n += r == 0;
    }
    request->reply->value = n;
    return outcome(r, &err);
}

int
step_export_fd(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    struct vmm_alloc alloc = {.handle = request->a[0]};
    int r = vmm_alloc_export(child->drv, &alloc, &request->reply_fd, &err);
    if (r == 0)
        request->reply->value = (uint64_t)fcntl(request->reply_fd, F_GETFD);
    return outcome(r, &err);
}

int
step_import_fd(struct child *child, struct request *request)
{
    struct drv_error err = {0};
    struct vmm_alloc alloc = {0};
    int r = vmm_alloc_import(child->drv, request->fd, request->a[0], &alloc, &err);
    request->reply->value = alloc.handle;
    return outcome(r, &err);
}

int
step_set_access(struct child *child, struct request *request)
{
    const uint64_t *a = request->a;
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)a[3]},
        .flags = (CUmemAccess_flags)a[2],
    };
    return (int)child->drv->cu.cuMemSetAccess(a[0], a[1], &desc, 1);
}

int
step_count_words(struct child *child, struct request *request)
{
    const uint64_t *a = request->a;
    _cleanup_free_ uint32_t *words = malloc(a[1]);
    if (!words)
        return -ENOMEM;
    CUresult result = child->drv->cu.cuMemcpyDtoH(words, a[0], a[1]);
    if (result != CUDA_SUCCESS)
        return (int)result;
    for (size_t i = 0; i < a[1] / sizeof(*words); i++)
        request->reply->value += words[i] == (uint32_t)a[2];
    return 0;
}

/* Many exports. */

static int
export_one(const struct child *child, struct vmm_alloc *ret_alloc, int *ret_fd)
{
    struct vmm_alloc alloc;
    struct drv_error err = {0};
    int r = vmm_alloc_create(child->drv, child->device.ordinal, child->device.granularity,
                             false, &alloc, &err);
    if (r < 0)
        return outcome(r, &err);
    r = vmm_alloc_export(child->drv, &alloc, ret_fd, &err);
    if (r < 0)
        vmm_alloc_release(child->drv, &alloc, NULL);
    else
        *ret_alloc = alloc;
    return outcome(r, &err);
}

int
step_export_many(struct child *child, struct request *request)
{
    size_t n_wanted = request->a[0], n = 0;
    _cleanup_free_ struct vmm_alloc *allocs = calloc(n_wanted, sizeof(*allocs));
    _cleanup_free_ int *fds = calloc(n_wanted, sizeof(*fds));
    if (!allocs || !fds)
        return -ENOMEM;
    int r = 0;
    while (n < n_wanted && r == 0) {
        r = export_one(child, &allocs[n], &fds[n]);
        n += r == 0;
    }
    request->reply->value = n;
    while (n-- > 0) {
        fd_close(fds[n]);
        vmm_alloc_release(child->drv, &allocs[n], NULL);
    }
    return r;
}

/* Inter-process handles: the two calls that take a structure by value. */

int
step_open_ipc_memory(struct child *child UNUSED, struct request *request)
{
    CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
    void *address = calls_find("cuIpcOpenMemHandle", 11000);
    if (!address)
        return -ENOSYS;
    memcpy(&open, &address, sizeof(open));
    CUdeviceptr made = 0;
    CUipcMemHandle handle;
    memcpy(&handle, (const void *)request->a[0], sizeof(handle));
    int result = (int)open(&made, handle, (unsigned int)request->a[1]);
    request->reply->value = made;
    return result;
}

int
step_open_ipc_event(struct child *child UNUSED, struct request *request)
{
    CUresult (*open)(CUevent *, CUipcEventHandle);
    void *address = calls_find("cuIpcOpenEventHandle", 4010);
    if (!address)
        return -ENOSYS;
    memcpy(&open, &address, sizeof(open));
    CUevent made = NULL;
    CUipcEventHandle handle;
    memcpy(&handle, (const void *)request->a[0], sizeof(handle));
    int result = (int)open(&made, handle);
    request->reply->value = (uintptr_t)made;
    return result;
}
