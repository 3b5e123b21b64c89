/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of managed memory (cuMemAllocManaged): of this process alone, with no lease, no block
 * and no name. The daemon has no part in them. They hold the client, as all arrays do, and
 * through it the primary context that the memory was made in.
 */
#include <inttypes.h>
#include <string.h>

#include "array.h"
#include "client.h"
#include "shape.h"

/* What cuMemAllocManaged() aligns to at least. */
#define MANAGED_ALIGNMENT 512

struct layout {
    uint64_t itemsize, nbytes, span;
    int64_t strides[PROTO_NDIM_MAX];
};

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
layout_init(struct layout *ret, const struct caid_create_options *o, struct caid_error *error)
{
    static const char kinds[] = "biufcmMSUV";

    ret->itemsize = shape_itemsize(MSG_STR(o->typestr));
    if (ret->itemsize == 0 || !strchr("<>|", o->typestr[0]) || !strchr(kinds, o->typestr[1]))
        return fail(error, CAID_ERR_INVALID, "typestr \"%.64s\" is none", o->typestr);
    if (!shape_c_strides(o->ndim, o->shape, ret->itemsize, ret->strides, &ret->nbytes))
        return fail(error, CAID_ERR_INVALID,
                    "the shape has negative extents, or 2^63 bytes and "
                    "more");
    if (o->strides && o->ndim > 0)
        memcpy(ret->strides, o->strides, o->ndim * sizeof(ret->strides[0]));
    ret->span = 0;
    if (ret->nbytes > 0 &&
        !shape_span(o->ndim, o->shape, ret->strides, ret->itemsize, &ret->span))
        return fail(error, CAID_ERR_INVALID, "a stride is negative, or too large");
    return 0;
}

static struct caid_array *
describe(struct caid_client *client, const struct caid_create_options *o,
         const struct layout *layout)
{
    const struct array_spec spec = {
        .typestr = MSG_STR(o->typestr),
        .descr = msg_str_opt(o->descr),
        .metadata = msg_str_opt(o->metadata),
        .shape = o->shape,
        .strides = layout->strides,
        .ndim = o->ndim,
        .info = {.nbytes = layout->nbytes,
                 .itemsize = layout->itemsize,
                 .device = o->device,
                 .memory = "managed"},
    };
    return array_new(client, &spec);
}

/* Gives the array its memory; more than it needs where it is to be aligned more than usual. */
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
        return gpu_fail(drv, "cuMemAllocManaged", result, "cannot make managed memory", error);
    }
    uint64_t ptr = extra ? ALIGN_UP(array->managed, extra) : array->managed;
    array->info.ptr = ptr;
    array->info.host_ptr = (void *)(uintptr_t)ptr;
    array->info.access = client->gpu.devices[array->place].ordinal;
    array->info.access_device = client->gpu.devices[array->place].index;
    return 0;
}

int
managed_create(struct caid_client *client, const struct caid_create_options *options,
               struct caid_array **ret, struct caid_error *error)
{
    struct layout layout;
    uint32_t place;

    int r = check_managed(options, error);
    if (r == 0)
        r = layout_init(&layout, options, error);
    if (r == 0)
        r = gpu_find_place(client, options->device, NULL, &place, error);
    if (r < 0)
        return r;
    struct caid_array *array = describe(client, options, &layout);
    if (!array)
        return fail_errno(error, ENOMEM, "no memory for an array");
    array->place = place;
    if (layout.span > 0)
        r = allocate(client, options, layout.span, array, error);
    if (r < 0) {
        array_free(array);
        return r;
    }
    *ret = array;
    return 0;
}
