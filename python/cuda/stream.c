/* SPDX-License-Identifier: Apache-2.0 */
/* Queries and callbacks of streams that only the Python package needs. */
#include <errno.h>
#include <stdlib.h>

#include "cuda/local.h"
#include "session/client.h"
#include "session/stream.h"

int
cuda_stream_query(struct caid_client *client, uint64_t handle, int32_t device,
                  struct caid_error *error)
{
    struct stream stream;

    int r = stream_enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    int mode = gpu_relax(stream.drv);
    CUresult result = stream.drv->cu.cuStreamQuery(stream.handle);
    gpu_unrelax(stream.drv, mode);
    stream_leave(&stream);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
        return result == CUDA_SUCCESS;
    return stream_result(client, &stream, "cuStreamQuery", result,
                         "cannot ask for a stream's work", error);
}

int
cuda_copy_aside(struct caid_client *client, const struct caid_copy *given,
                struct caid_error *error)
{
    struct caid_copy copy = *given;
    const struct drv *drv = NULL;
    struct caid_error unseen;
    CUstream stream;

    int r = gpu_push(client, copy.device, &drv, error);
    if (r < 0)
        return r;
    int mode = gpu_relax(drv);
    CUresult result = drv->cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    r = gpu_result(drv, "cuStreamCreate", result, "cannot make a stream", error);
    if (r == 0) {
        copy.stream = (uintptr_t)stream;
        r = caid_copy(client, &copy, error);
        result = drv->cu.cuStreamSynchronize(stream);
        int waited = gpu_result(drv, "cuStreamSynchronize", result, "cannot copy",
                                r < 0 ? &unseen : error);
        r = r < 0 ? r : waited;
        drv->cu.cuStreamDestroy(stream);
    }
    gpu_unrelax(drv, mode);
    gpu_pop(drv);
    return r;
}

struct stream_callback {
    void (*fn)(int32_t result, void *userdata);
    void *userdata;
};

static void
call_back(CUstream stream UNUSED, CUresult result, void *data)
{
    struct stream_callback callback = *(struct stream_callback *)data;

    free(data);
    callback.fn((int32_t)result, callback.userdata);
}

int
cuda_stream_add_callback(struct caid_client *client, uint64_t handle, int32_t device,
                         void (*fn)(int32_t result, void *userdata), void *userdata,
                         struct caid_error *error)
{
    struct stream stream;

    int r = client_check_given(client, fn, "fn", error);
    if (r == 0)
        r = stream_enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    struct stream_callback *callback = malloc(sizeof(*callback));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (callback) {
        *callback = (struct stream_callback){fn, userdata};
        result = stream.drv->cu.cuStreamAddCallback(stream.handle, call_back, callback, 0);
    }
    stream_leave(&stream);
    if (!callback)
        return fail_errno(error, ENOMEM, "no memory for a callback");
    if (result != CUDA_SUCCESS)
        free(callback);
    return stream_result(client, &stream, "cuStreamAddCallback", result,
                         "cannot add a callback", error);
}
