/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_dmabuf(): a block for those who are no clients. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "array.h"
#include "block.h"
#include "session/call.h"
#include "session/client.h"

static int
check_mapped(const struct caid_array *array, struct caid_error *error)
{
    int r = client_check_awake(array->client, error);
    return r == 0 && !caid_array_is_mapped(array)
               ? fail(error, CAID_ERR_INVALID, "the array is unmapped: map it first")
               : r;
}

static int
check(const struct caid_array *array, struct caid_error *error)
{
    if (!array->block || array->block->kind != BLOCK_DEVICE)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "only an array in memory of a device has a dma-buf");
    if (array->info.readonly)
        return fail(error, CAID_ERR_READ_ONLY,
                    "the array was opened \"r\", and a dma-buf can be written");
    return check_mapped(array, error);
}

static int
fail_export(const struct caid_array *array, int r, const struct drv_error *cause,
            struct caid_error *error)
{
    bool lacks = r == -ENOTSUP || r == -ENOSYS;
    bool soft = lacks && array->client->gpu.drv->kind == DRV_SOFT;

    return fail_driver(error, lacks ? -ENOTSUP : r, cause,
                       "no dma-buf of block %" PRIu64 " of %zu bytes%s", array->block->id,
                       array->block->size,
                       soft ? ", which the software driver makes by /dev/udmabuf" : "");
}

/* The block does not move, and is not unmapped, while its lock is held. */
static int export(const struct caid_array *array, int *ret_fd, struct caid_error *error)
{
    struct block *block = array->block;
    const struct vmm_map *map = &block->maps[true].vmm;
    const struct drv *drv;
    struct drv_error cause = {0};
    int fd = -1, r = gpu_push_place(array->client, array->place, &drv, error);

    if (r < 0)
        return r;
    pthread_mutex_lock(&block->lock);
    r = check_mapped(array, error); /* another thread may unmap while the daemon is asked */
    if (r == 0 && (r = DRV_CALL(drv, &cause, cuMemGetHandleForAddressRange, &fd, map->ptr,
                                map->size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)) < 0)
        r = fail_export(array, r, &cause, error);
    pthread_mutex_unlock(&block->lock);
    gpu_pop(drv);
    if (r == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        r = fail_errno(error, errno, "cannot keep a dma-buf from other programs");
        close(fd);
    }
    if (r == 0)
        *ret_fd = fd;
    return r;
}

/* The daemon is told first: whoever dies in between has given nothing away. */
int
caid_array_dmabuf(struct caid_array *array, int *ret_fd, uint64_t *ret_offset,
                  struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(array, ret_fd, error);

    if (r == 0 && !ret_offset)
        r = fail(error, CAID_ERR_INVALID, "ret_offset is NULL");
    if (r == 0)
        r = check(array, error);
    if (r < 0)
        return r;
    struct msg_export_params params = {.lease = array->lease};
    r = call_ask(array->client, MSG_EXPORT, &params, error);
    if (r == 0)
        r = export(array, ret_fd, error);
    if (r == 0)
        *ret_offset = array->info.offset;
    return r;
}
