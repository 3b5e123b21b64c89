/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of managed memory (cuMemAllocManaged), which belong to this process alone: the daemon does
 * not know them, and they have no lease, no block and no name. As all arrays they have a reference
 * to the client, and so to the primary context that the memory was made in.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "array.h"
#include "geometry.h"
#include "session/client.h"

/* The least alignment of cuMemAllocManaged(). */
#define MANAGED_ALIGNMENT 512

static int
check_managed(const struct caid_create_options *o, struct caid_error *error)
{
    if (o->name || o->pool)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "managed memory is of this process alone: it has no %s",
                    o->name ? "name" : "pool");
    return 0;
}

static int
find_geometry(struct geometry *ret, const struct caid_create_options *o,
              struct caid_error *error)
{
    char why[GEOMETRY_WHY_MAX];

    int r = geometry_init(ret, MSG_STR(o->typestr), (struct msg_i64s){o->shape, o->ndim},
                          (struct msg_i64s){o->strides, o->strides ? o->ndim : 0}, why);
    return r < 0 ? fail(error, CAID_ERR_INVALID, "managed array: %s", why) : 0;
}

static struct caid_array *
describe(struct caid_client *client, const struct caid_create_options *o,
         const struct geometry *geometry)
{
    int64_t strides[PROTO_NDIM_MAX];

    geometry_strides(geometry, strides);
    const struct array_spec spec = {
        .typestr = MSG_STR(o->typestr),
        .descr = msg_str_opt(o->descr),
        .metadata = msg_str_opt(o->metadata),
        .shape = o->shape,
        .strides = strides,
        .ndim = o->ndim,
        .info = {.nbytes = geometry->nbytes,
                 .itemsize = geometry->itemsize,
                 .device = o->device,
                 .memory = "managed",
                 .uid = (uint32_t)geteuid()},
    };
    return array_new(client, &spec);
}

/* Allocates the array's memory, with room to align it where that needs more than usual. */
static int
allocate(struct caid_client *client, const struct caid_create_options *o, uint64_t span,
         struct caid_array *array, struct caid_error *error)
{
    uint64_t extra = o->alignment > MANAGED_ALIGNMENT ? o->alignment : 0;
    const struct drv *drv;

    int r = gpu_push_place(client, array->place, &drv, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuMemAllocManaged(&array->managed, span + extra,
                                                o->flags & CAID_ARRAY_ATTACH_HOST
                                                    ? CU_MEM_ATTACH_HOST
                                                    : CU_MEM_ATTACH_GLOBAL);
    gpu_pop(drv);
    if (result != CUDA_SUCCESS) {
        array->managed = 0;
        return gpu_result(drv, "cuMemAllocManaged", result, "cannot make managed memory",
                          error);
    }
    uint64_t ptr = extra ? ALIGN_UP(array->managed, extra) : array->managed;
    array->info.ptr = ptr;
    array->info.host_ptr = (void *)(uintptr_t)ptr;
    array->info.mapped_ordinal = client->gpu.devices[array->place].ordinal;
    array->info.mapped_device = client->gpu.devices[array->place].index;
    return 0;
}

int
managed_create(struct caid_client *client, const struct caid_create_options *options,
               struct caid_array **ret, struct caid_error *error)
{
    struct geometry geometry;
    uint32_t place;

    int r = check_managed(options, error);
    if (r == 0)
        r = find_geometry(&geometry, options, error);
    if (r == 0)
        r = gpu_find_place(client, options->device, NULL, &place, error);
    if (r < 0)
        return r;
    struct caid_array *array = describe(client, options, &geometry);
    if (!array)
        return fail_errno(error, ENOMEM, "no memory for an array");
    array->place = place;
    if (geometry.span > 0)
        r = allocate(client, options, geometry.span, array, error);
    if (r < 0) {
        array_free(array);
        return r;
    }
    *ret = array;
    return 0;
}
