/* SPDX-License-Identifier: Apache-2.0 */
/* The program's streams: made, waited for and asked, with what caid knows of them (lane.h). Nothing is kept
 * here of a stream: its handle is the driver's. */
#include <errno.h>
#include <stdlib.h>

#include "lane.h"
#include "session/client.h"
#include "session/stream.h"

int
caid_stream_create(struct caid_client *client, int32_t device, uint32_t flags, uint64_t *ret,
                   struct caid_error *error)
{
    const struct drv *drv;
    CUstream handle;

    int r = client_check_given(client, ret, "ret", error);
    if (r == 0 && (flags & ~(uint32_t)CAID_STREAM_NON_BLOCKING))
        r = fail(error, CAID_ERR_INVALID, "flags 0x%x are not known", flags);
    if (r == 0)
        r = gpu_push(client, device, &drv, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuStreamCreate(&handle, flags & CAID_STREAM_NON_BLOCKING
                                                          ? CU_STREAM_NON_BLOCKING
                                                          : CU_STREAM_DEFAULT);
    gpu_pop(drv);
    if (result != CUDA_SUCCESS)
        return gpu_fail(drv, "cuStreamCreate", result, "cannot make a stream", error);
    *ret = (uintptr_t)handle;
    return 0;
}

/* Its lane cannot be asked any more, and goes when it waits for nothing. */
static void
forget_lane(struct caid_client *client, uint64_t handle)
{
    struct lane *lane;

    if (lane_find(client, handle, -1, &lane, NULL) < 0 || !lane)
        return;
    lane_lock(lane);
    lane->destroyed = true;
    lane_unlock(lane);
    lane_put(lane);
}

int
caid_stream_destroy(struct caid_client *client, uint64_t handle, struct caid_error *error)
{
    struct stream stream;

    int r = client_check(client, error);
    if (r == 0)
        r = stream_check(handle, error);
    if (r == 0 && stream_is_special(handle))
        r = fail(error, CAID_ERR_INVALID, "default streams cannot be destroyed");
    if (r == 0)
        r = stream_enter(client, handle, -1, &stream, error);
    if (r < 0)
        return r;
    forget_lane(client, handle);
    CUresult result = stream.drv->cu.cuStreamDestroy(stream.handle);
    stream_leave(&stream);
    return result == CUDA_SUCCESS ? 0
                                  : stream_fail(client, &stream, "cuStreamDestroy", result,
                                                "cannot destroy a stream", error);
}

static int
enter(struct caid_client *client, uint64_t handle, int32_t device, struct stream *ret,
      struct caid_error *error)
{
    int r = client_check(client, error);
    return r < 0 ? r : stream_enter(client, handle, device, ret, error);
}

static int
check_lane(struct caid_client *client, uint64_t handle, int32_t device,
           struct caid_error *error)
{
    struct lane *lane;

    int r = lane_find(client, handle, device, &lane, error);
    if (r < 0 || !lane)
        return r;
    r = lane_check(lane, error);
    lane_put(lane);
    return r;
}

int
caid_stream_synchronize(struct caid_client *client, uint64_t handle, int32_t device,
                        struct caid_error *error)
{
    struct stream stream;

    int r = enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    CUresult result = stream.drv->cu.cuStreamSynchronize(stream.handle);
    r = result == CUDA_SUCCESS ? check_lane(client, handle, device, error)
                               : stream_fail(client, &stream, "cuStreamSynchronize", result,
                                             "cannot wait for a stream", error);
    stream_leave(&stream);
    return r;
}

int
caid_stream_query(struct caid_client *client, uint64_t handle, int32_t device,
                  struct caid_error *error)
{
    struct stream stream;

    int r = enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    CUresult result = stream.drv->cu.cuStreamQuery(stream.handle);
    stream_leave(&stream);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
        return result == CUDA_SUCCESS;
    return stream_fail(client, &stream, "cuStreamQuery", result,
                       "cannot ask for a stream's work", error);
}

int
caid_stream_check(struct caid_client *client, uint64_t handle, int32_t device,
                  struct caid_error *error)
{
    int r = client_check(client, error);
    return r < 0 ? r : check_lane(client, handle, device, error);
}

struct stream_callback {
    void (*fn)(int32_t result, void *userdata);
    void *userdata;
};

static void
call_back(CUstream stream, CUresult result, void *data)
{
    struct stream_callback callback = *(struct stream_callback *)data;

    (void)stream;
    free(data);
    callback.fn((int32_t)result, callback.userdata);
}

int
caid_stream_add_callback(struct caid_client *client, uint64_t handle, int32_t device,
                         void (*fn)(int32_t result, void *userdata), void *userdata,
                         struct caid_error *error)
{
    struct stream stream;

    int r = client_check_given(client, fn, "fn", error);
    if (r == 0)
        r = enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    struct stream_callback *callback = malloc(sizeof(*callback));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (callback) {
        *callback = (struct stream_callback){fn, userdata};
        result = stream.drv->cu.cuStreamAddCallback(stream.handle, call_back, callback, 0);
    }
    stream_leave(&stream);
    if (result == CUDA_SUCCESS)
        return 0;
    free(callback);
    if (!callback)
        return fail_errno(error, ENOMEM, "no memory for a callback");
    return stream_fail(client, &stream, "cuStreamAddCallback", result, "cannot add a callback",
                       error);
}
