/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that uses CUDA as its parent commands (facts_wire.h), so that a test can have
 * several, kill them, and fork without ever forking CUDA. It has one allocation, one range and
 * one kept fd. It loads no driver before FACTS_OPEN and ends when its parent does.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "facts_wire.h"
#include "vmm.h"

struct child {
    struct drv *drv;
    struct drv_device device;
    struct vmm_alloc alloc;
    CUdeviceptr range;
    size_t range_size;
    size_t mapped; /* bytes at the start of range */
    int kept_fd;
};

struct answer {
    struct facts_reply reply;
    int fd; /* owned; -1: none */
};

/* The CUresult where a driver call failed, else the errno. */
static int
outcome(int r, const struct drv_error *err)
{
    return r < 0 && err->result ? err->result : r;
}

static int
do_set_uid(struct child *child UNUSED, const struct facts_command *command, int fd UNUSED,
           struct answer *answer UNUSED)
{
    uid_t uid = (uid_t)command->a;
    return setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0 ? -errno : 0;
}

static int
do_open(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
        struct answer *answer UNUSED)
{
    struct drv_error err = {0};
    int r = drv_open(&child->drv, NULL, &err);
    if (r == 0)
        r = drv_device_get(child->drv, 0, &child->device, &err);
    if (r < 0)
        fprintf(stderr, "facts_child: %s\n", err.message);
    return outcome(r, &err);
}

static int
do_context(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
           struct answer *answer UNUSED)
{
    CUcontext context;
    CUresult result = child->drv->cu.cuDevicePrimaryCtxRetain(&context, child->device.ordinal);
    return result ? (int)result : (int)child->drv->cu.cuCtxSetCurrent(context);
}

static int
do_has_context(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
               struct answer *answer)
{
    const struct drv_table *cu = &child->drv->cu;
    CUcontext current = NULL;
    unsigned int flags;
    int active = 0;
    CUresult result = cu->cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS)
        result = cu->cuDevicePrimaryCtxGetState(child->device.ordinal, &flags, &active);
    answer->reply.value = current || active;
    return (int)result;
}

static int
do_granularity(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
               struct answer *answer)
{
    answer->reply.value = child->device.granularity;
    return 0;
}

static int
do_memory_info(struct child *child, const struct facts_command *command, int fd UNUSED,
               struct answer *answer)
{
    struct drv_error err = {0};
    uint64_t free_bytes = 0, total = 0;
    int r = drv_memory_info(child->drv, child->device.uuid, &free_bytes, &total, &err);
    answer->reply.value = command->op == FACTS_FREE_BYTES ? free_bytes : total;
    return outcome(r, &err);
}

static int
do_create(struct child *child, const struct facts_command *command, int fd UNUSED,
          struct answer *answer UNUSED)
{
    struct drv_error err = {0};
    int r =
        vmm_alloc_create(child->drv, child->device.ordinal, command->a, &child->alloc, &err);
    return outcome(r, &err);
}

static int
do_export(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
          struct answer *answer)
{
    struct drv_error err = {0};
    int r = vmm_alloc_export(child->drv, &child->alloc, &answer->fd, &err);
    if (r == 0)
        answer->reply.value = (uint64_t)fcntl(answer->fd, F_GETFD);
    return outcome(r, &err);
}

static int
do_import(struct child *child, const struct facts_command *command, int fd,
          struct answer *answer UNUSED)
{
    struct drv_error err = {0};
    int r = vmm_alloc_import(child->drv, fd, command->a, &child->alloc, &err);
    return outcome(r, &err);
}

static int
do_release(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
           struct answer *answer UNUSED)
{
    struct drv_error err = {0};
    return outcome(vmm_alloc_release(child->drv, &child->alloc, &err), &err);
}

static int
do_reserve(struct child *child, const struct facts_command *command, int fd UNUSED,
           struct answer *answer)
{
    CUresult result =
        child->drv->cu.cuMemAddressReserve(&child->range, command->a, 0, command->b, 0);
    child->range_size = command->a;
    answer->reply.value = child->range;
    return (int)result;
}

static int
do_map(struct child *child, const struct facts_command *command, int fd UNUSED,
       struct answer *answer UNUSED)
{
    CUresult result =
        child->drv->cu.cuMemMap(child->range, command->a, 0, child->alloc.handle, 0);
    if (result == CUDA_SUCCESS)
        child->mapped = command->a;
    return (int)result;
}

static int
do_access(struct child *child, const struct facts_command *command, int fd UNUSED,
          struct answer *answer UNUSED)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = child->device.ordinal},
        .flags = (CUmemAccess_flags)command->a,
    };
    return (int)child->drv->cu.cuMemSetAccess(child->range, child->mapped, &desc, 1);
}

static int
do_unmap(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
         struct answer *answer UNUSED)
{
    CUresult result = child->drv->cu.cuMemUnmap(child->range, child->mapped);
    if (result == CUDA_SUCCESS)
        result = child->drv->cu.cuMemAddressFree(child->range, child->range_size);
    return (int)result;
}

static int
do_fill(struct child *child, const struct facts_command *command, int fd UNUSED,
        struct answer *answer UNUSED)
{
    const struct drv_table *cu = &child->drv->cu;
    CUresult result =
        cu->cuMemsetD32(child->range, (unsigned int)command->a, child->mapped / 4);
    return result ? (int)result : (int)cu->cuCtxSynchronize();
}

static int
do_count(struct child *child, const struct facts_command *command, int fd UNUSED,
         struct answer *answer)
{
    _cleanup_free_ uint32_t *words = malloc(child->mapped);
    if (!words)
        return -ENOMEM;
    CUresult result = child->drv->cu.cuMemcpyDtoH(words, child->range, child->mapped);
    if (result != CUDA_SUCCESS)
        return (int)result;
    for (size_t i = 0; i < child->mapped / 4; i++)
        answer->reply.value += words[i] == (uint32_t)command->a;
    return 0;
}

static int
do_keep(struct child *child, const struct facts_command *command UNUSED, int fd,
        struct answer *answer UNUSED)
{
    child->kept_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return child->kept_fd < 0 ? -errno : 0;
}

static int
do_give(struct child *child, const struct facts_command *command UNUSED, int fd UNUSED,
        struct answer *answer)
{
    answer->fd = TAKE_FD(child->kept_fd);
    return 0;
}

static int
export_one(const struct child *child, struct vmm_alloc *ret_alloc, int *ret_fd)
{
    struct vmm_alloc alloc;
    struct drv_error err = {0};
    int r = vmm_alloc_create(child->drv, child->device.ordinal, child->device.granularity,
                             &alloc, &err);
    if (r < 0)
        return outcome(r, &err);
    r = vmm_alloc_export(child->drv, &alloc, ret_fd, &err);
    if (r < 0)
        vmm_alloc_release(child->drv, &alloc, NULL);
    else
        *ret_alloc = alloc;
    return outcome(r, &err);
}

static int
do_export_many(struct child *child, const struct facts_command *command, int fd UNUSED,
               struct answer *answer)
{
    _cleanup_free_ struct vmm_alloc *allocs = calloc(command->a, sizeof(*allocs));
    _cleanup_free_ int *fds = calloc(command->a, sizeof(*fds));
    if (!allocs || !fds)
        return -ENOMEM;
    size_t n = 0;
    int r = 0;
    while (n < command->a && r == 0) {
        r = export_one(child, &allocs[n], &fds[n]);
        n += r == 0;
    }
    answer->reply.value = n;
    while (n-- > 0) {
        close(fds[n]);
        vmm_alloc_release(child->drv, &allocs[n], NULL);
    }
    return r;
}

typedef int (*operation_fn)(struct child *child, const struct facts_command *command, int fd,
                            struct answer *answer);

static const operation_fn operations[] = {
    [FACTS_SET_UID] = do_set_uid,
    [FACTS_OPEN] = do_open,
    [FACTS_CONTEXT] = do_context,
    [FACTS_HAS_CONTEXT] = do_has_context,
    [FACTS_GRANULARITY] = do_granularity,
    [FACTS_FREE_BYTES] = do_memory_info,
    [FACTS_TOTAL_BYTES] = do_memory_info,
    [FACTS_CREATE] = do_create,
    [FACTS_EXPORT] = do_export,
    [FACTS_IMPORT] = do_import,
    [FACTS_RELEASE] = do_release,
    [FACTS_RESERVE] = do_reserve,
    [FACTS_MAP] = do_map,
    [FACTS_ACCESS] = do_access,
    [FACTS_UNMAP] = do_unmap,
    [FACTS_FILL] = do_fill,
    [FACTS_COUNT] = do_count,
    [FACTS_KEEP] = do_keep,
    [FACTS_GIVE] = do_give,
    [FACTS_EXPORT_MANY] = do_export_many,
};

static int
serve_one(struct child *child)
{
    struct facts_command command;
    _cleanup_fd_ int fd = -1;
    int r = facts_receive(FACTS_SOCKET, &command, sizeof(command), &fd);
    if (r < 0)
        return r;
    struct answer answer = {.fd = -1};
    answer.reply.result = operations[command.op](child, &command, fd, &answer);
    r = facts_send(FACTS_SOCKET, &answer.reply, sizeof(answer.reply), answer.fd);
    fd_close(answer.fd);
    return r;
}

int
main(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct child child = {.kept_fd = -1};
    while (serve_one(&child) == 0)
        continue;
    fd_close(child.kept_fd);
    drv_free(child.drv);
    return 0;
}
