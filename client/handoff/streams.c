/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, destroys, waits for and checks streams of the program, with their lanes (lane.h). It keeps
 * no state of a stream: the handle is the driver's. */
#include "lane.h"
#include "session/client.h"
#include "session/stream.h"

#define FLAGS_ALL (CAID_STREAM_NON_BLOCKING | CAID_STREAM_PRIORITY(255))

int
caid_stream_create(struct caid_client *client, int32_t device, uint32_t flags, uint64_t *ret,
                   struct caid_error *error)
{
    const int priority = -(int)(flags / CAID_STREAM_PRIORITY(1));
    unsigned int cuda_flags = CU_STREAM_DEFAULT;
    const struct drv *drv;
    CUstream handle;

    int r = client_check_given(client, ret, "ret", error);
    if (r == 0 && (flags & ~(uint32_t)FLAGS_ALL))
        r = fail(error, CAID_ERR_INVALID, "flags 0x%x are not known", flags);
    if (r == 0)
        r = gpu_push(client, device, &drv, error);
    if (r < 0)
        return r;
    if (flags & CAID_STREAM_NON_BLOCKING)
        cuda_flags = CU_STREAM_NON_BLOCKING;
    CUresult result = drv->cu.cuStreamCreateWithPriority(&handle, cuda_flags, priority);
    gpu_pop(drv);
    if (result == CUDA_SUCCESS)
        *ret = (uintptr_t)handle;
    return gpu_result(drv, "cuStreamCreateWithPriority", result, "cannot make a stream", error);
}

/* The lane of a destroyed stream cannot be asked any more. It is freed when it waits for nothing.
 * */
static void
forget_lane(struct caid_client *client, uint64_t handle)
{
    struct lane *lane;

    if (lane_find(client, handle, -1, &lane, NULL) < 0 || !lane)
        return;
    pthread_mutex_lock(&lane->lock);
    lane->destroyed = true;
    pthread_mutex_unlock(&lane->lock);
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
    return stream_result(client, &stream, "cuStreamDestroy", result, "cannot destroy a stream",
                         error);
}

int
caid_stream_check(struct caid_client *client, uint64_t handle, int32_t device,
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

    int r = stream_enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    CUresult result;
    r = stream_synchronize(client, &stream, &result, error);
    if (r == 0)
        r = stream_result(client, &stream, "cuStreamSynchronize", result,
                          "cannot wait for a stream", error);
    if (r == 0)
        r = caid_stream_check(client, handle, device, error);
    stream_leave(&stream);
    return r;
}
