/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies, all of them as rectangles: a plain one is a single row.
 *
 * Whether a call waits was measured on hardware. Copies within the device never do; between the
 * device and pinned memory the asynchronous forms do not; from ordinary memory to the device
 * neither, if the source is small enough to be staged. Every other copy waits, whatever its
 * name, and so does a plain fill of pinned memory. Ordinary memory is thus never touched after
 * the call, and an operation in a queue only holds addresses that the driver knows; it checks
 * them again when it runs.
 */
#include <string.h>

#include "peer.h"
#include "stream.h"

/* Up to here the source of an asynchronous copy from ordinary memory is staged. (Measured: on
 * hardware a copy of 2 MiB returns at once and one of 4 MiB does not.) */
#define STAGE_MAX ((size_t)2 << 20)

enum copy_flags {
    COPY_ASYNC = 1,
    COPY_TO_KNOWN = 2,   /* the destination must be memory that the driver knows */
    COPY_FROM_KNOWN = 4, /* the source must */
    COPY_FROM_HOST = 8,  /* the caller takes the source for memory of the host */
};

struct side {
    uintptr_t at;
    size_t pitch;
    bool pageable; /* not looked up again */
    size_t extent; /* the bytes from the first to the last that the rectangle touches */
};

struct copy_op {
    struct op op;
    struct side to, from;
    size_t width, height;
    CUresult fault;         /* the error when one side has been unmapped */
    unsigned char staged[]; /* the source, dense */
};

static CUresult
side_enter(const struct side *side, bool write)
{
    return side->pageable ? CUDA_SUCCESS : range_enter(side->at, side->extent, write);
}

static void
side_leave(const struct side *side)
{
    if (!side->pageable)
        range_leave(side->at, side->extent);
}

static void
copy_rows(void *to, size_t to_pitch, const struct side *from, size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from->at + row * from->pitch, width);
}

/* What was right when the copy was enqueued may be unmapped or read-only by now. Hardware copies
 * within the device by a kernel and else by a copy engine, and their faults differ. */
static CUresult
copy_run(struct op *op, CUresult status)
{
    struct copy_op *copy = container_of(op, struct copy_op, op);
    if (status != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (side_enter(&copy->from, false) != CUDA_SUCCESS)
        return copy->fault;
    CUresult result = side_enter(&copy->to, true);
    if (result == CUDA_SUCCESS) {
        copy_rows((void *)copy->to.at, copy->to.pitch, &copy->from, copy->width, copy->height);
        side_leave(&copy->to);
    }
    side_leave(&copy->from);
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : copy->fault;
}

static CUresult
side_check(struct side *side, size_t width, size_t height, bool write, bool must_know,
           enum range_kind *ret_kind)
{
    size_t rows;
    if (__builtin_mul_overflow(height - 1, side->pitch, &rows) ||
        __builtin_add_overflow(rows, width, &side->extent))
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(range_check(side->at, side->extent, write, ret_kind));
    side->pageable = *ret_kind == RANGE_PAGEABLE;
    return side->pageable && must_know ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static bool
is_device(enum range_kind kind)
{
    return range_kind_has(kind, TRAIT_DEVICE);
}

/* From the device to pinned memory or the other way. */
static bool
is_between(enum range_kind to, enum range_kind from)
{
    return (is_device(to) && range_kind_has(from, TRAIT_HOST)) ||
           (range_kind_has(to, TRAIT_HOST) && is_device(from));
}

static struct copy_op *
copy_new(const struct side *to, const struct side *from, size_t width, size_t height,
         bool stage)
{
    struct copy_op *copy = malloc(sizeof(*copy) + (stage ? width * height : 0));
    if (!copy)
        return NULL;
    op_init(&copy->op, copy_run, NULL);
    copy->to = *to;
    copy->from = *from;
    copy->width = width;
    copy->height = height;
    if (stage) {
        copy_rows(copy->staged, width, from, width, height);
        copy->from =
            (struct side){.at = (uintptr_t)copy->staged, .pitch = width, .pageable = true};
    }
    return copy;
}

static CUresult
copy_submit(struct side *to, struct side *from, size_t width, size_t height, unsigned int flags,
            CUstream handle)
{
    enum range_kind to_kind, from_kind;
    uint64_t number;
    HOLD(stream, stream, handle);
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    RETURN_IF(side_check(to, width, height, true, flags & COPY_TO_KNOWN, &to_kind));
    RETURN_IF(side_check(from, width, height, false, flags & COPY_FROM_KNOWN, &from_kind));

    bool async = flags & COPY_ASYNC;
    /* Managed memory as what is called a source in the host is like ordinary memory, and not
     * staged either. */
    bool from_host = (flags & COPY_FROM_HOST) && from_kind == RANGE_MANAGED;
    bool within = is_device(to_kind) && is_device(from_kind) && !from_host;
    bool stage = async && from->pageable && is_device(to_kind) && width <= STAGE_MAX / height;
    struct copy_op *copy = copy_new(to, from, width, height, stage);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    peer_use(stream->context, to->at);
    peer_use(stream->context, from->at);
    copy->op.stretched = async || within;
    copy->fault = within ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED;
    RETURN_IF(stream_submit(stream, &copy->op, &number));
    if (stage || within || (async && !from_host && is_between(to_kind, from_kind)))
        return CUDA_SUCCESS;
    return stream_finish(stream, number);
}

static CUresult
copy_bytes(uintptr_t to_at, uintptr_t from_at, size_t size, unsigned int flags, CUstream stream)
{
    struct side to = {.at = to_at, .pitch = size}, from = {.at = from_at, .pitch = size};
    return copy_submit(&to, &from, size, 1, flags, stream);
}

/* One side of a CUDA_MEMCPY2D. */
struct place {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    size_t x, y, pitch;
};

/* Where the rectangle starts on that side. A pitch of 0 will do for one row. */
static CUresult
place_side(const struct place *place, size_t width, size_t height, struct side *ret)
{
    uintptr_t base = (uintptr_t)place->device;
    size_t pitch = place->pitch, row, end, offset;
    if (place->type == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (place->type == CU_MEMORYTYPE_HOST)
        base = (uintptr_t)place->host;
    else if (place->type != CU_MEMORYTYPE_DEVICE && place->type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_add_overflow(place->x, width, &end))
        return CUDA_ERROR_INVALID_VALUE;
    if (pitch == 0 && height <= 1)
        pitch = end;
    if (pitch < end || __builtin_mul_overflow(place->y, pitch, &row) ||
        __builtin_add_overflow(row, place->x, &offset))
        return CUDA_ERROR_INVALID_VALUE;
    *ret = (struct side){.at = base + offset, .pitch = pitch};
    return CUDA_SUCCESS;
}

static CUresult
copy_rect(const CUDA_MEMCPY2D *copy, unsigned int flags, CUstream stream)
{
    struct side to, from;
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    struct place to_place = {copy->dstMemoryType, copy->dstHost, copy->dstDevice,
                             copy->dstXInBytes,   copy->dstY,    copy->dstPitch};
    struct place from_place = {copy->srcMemoryType, copy->srcHost, copy->srcDevice,
                               copy->srcXInBytes,   copy->srcY,    copy->srcPitch};
    RETURN_IF(place_side(&to_place, copy->WidthInBytes, copy->Height, &to));
    RETURN_IF(place_side(&from_place, copy->WidthInBytes, copy->Height, &from));
    if (to_place.type == CU_MEMORYTYPE_DEVICE)
        flags |= COPY_TO_KNOWN;
    if (from_place.type == CU_MEMORYTYPE_DEVICE)
        flags |= COPY_FROM_KNOWN;
    return copy_submit(&to, &from, copy->WidthInBytes, copy->Height, flags, stream);
}

/* Entry points. The ones that end in Async take a stream, the others are on the default one. */

#define COPY(symbol, to_type, from_type, flags)                                 \
    CUresult soft_##symbol##_v2(to_type to, from_type from, size_t size)        \
    {                                                                           \
        return copy_bytes((uintptr_t)to, (uintptr_t)from, size, (flags), NULL); \
    }                                                                           \
    COPY_ON(symbol##Async_v2, to_type, from_type, flags)
#define COPY_ON(symbol, to_type, from_type, flags)                                             \
    CUresult soft_##symbol(to_type to, from_type from, size_t size, CUstream stream)           \
    {                                                                                          \
        return copy_bytes((uintptr_t)to, (uintptr_t)from, size, COPY_ASYNC | (flags), stream); \
    }

COPY(cuMemcpyHtoD, CUdeviceptr, const void *, COPY_TO_KNOWN | COPY_FROM_HOST)
COPY(cuMemcpyDtoH, void *, CUdeviceptr, COPY_FROM_KNOWN)
COPY(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr, COPY_TO_KNOWN | COPY_FROM_KNOWN)
COPY_ON(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, 0)

CUresult
soft_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
    return copy_rect(copy, 0, NULL);
}

CUresult
soft_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    return copy_rect(copy, COPY_ASYNC, stream);
}
