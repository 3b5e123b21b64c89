/* SPDX-License-Identifier: Apache-2.0 */
/* Looks into an array, and changes nothing. */
#include "array.h"
#include "device.h"
#include "state.h"

char *
array_text(const struct array *array)
{
    const int64_t *end = array->extents + (size_t)array->ndim * (array->has_strides ? 2 : 1);
    char *text;

    memcpy(&text, &end, sizeof(text)); /* without the const of the array */
    return text;
}

const int64_t *
array_shape(const struct array *array)
{
    return array->extents;
}

const int64_t *
array_strides(const struct array *array)
{
    return array->has_strides ? array->extents + array->ndim : NULL;
}

const char *
array_typestr(const struct array *array)
{
    return array_text(array);
}

const char *
array_descr(const struct array *array)
{
    return array->n_descr ? array_text(array) + array->n_typestr + 1 : NULL;
}

const char *
array_memory(const struct array *array)
{
    return array->mapped ? "mapped" : core_kind_name(array->kind);
}

struct range *
array_range(const struct array *array)
{
    return array->is_part || array->is_set ? NULL : array->range;
}

struct block *
array_block(const struct array *array)
{
    if (array->is_part && !array->span)
        return NULL;

    const struct range *range = array_range(array->is_part ? array->part->whole->array : array);

    return range ? container_of(range->extent, struct block, extent) : NULL;
}

uint64_t
array_offset(const struct array *array)
{
    if (array->is_part && !array->span)
        return 0;
    if (array->is_part)
        return array_offset(array->part->whole->array) + array->part->offset;
    return array_range(array) ? range_offset(array->range) : 0;
}

static uint64_t
in_units(const struct core *core, uint64_t span, uint32_t device, bool own)
{
    return ALIGN_UP(span, own ? core->devices[device].info.granularity : SPACE_UNIT);
}

uint64_t
array_bytes(const struct core *core, const struct array *array)
{
    return array->is_part ? 0 : in_units(core, array->span, array->device, array->own);
}

bool
array_request_is_own(const struct core *core, const struct array_request *req)
{
    return req->exclusive || req->geometry.span > core->config.memory.shared_max;
}

uint64_t
array_request_bytes(const struct core *core, const struct array_request *req)
{
    return in_units(core, req->geometry.span, req->device, array_request_is_own(core, req));
}

struct msg_str
array_name(const struct array *array)
{
    return (struct msg_str){array->name, array->n_name};
}

const char *
array_label(const struct array *array)
{
    return array->name[0] ? array->name : "(unnamed)";
}

struct msg_str
array_metadata(const struct array *array)
{
    return array->metadata ? (struct msg_str){array->metadata->s, array->metadata->n}
                           : (struct msg_str){0};
}
