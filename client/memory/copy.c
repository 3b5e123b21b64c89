/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between strided layouts. The dimensions are put into the order of the destination's
 * memory, and merged where both sides allow it; the rest are rows of bytes. One dimension of rows
 * becomes a 2D copy of the driver; the others are looped over. So two layouts of the same order
 * cost one driver call, and a transposition costs one for each column.
 *
 * A copy of one element in host memory to all elements is a fill. If the element repeats one word,
 * a row is set by one memset. Else the part of the row that is filled is copied to the part behind
 * it, which doubles it each time. The other rows are copies of the filled ones, doubled likewise.
 *
 * If the caller gives no stream, the legacy default stream is used and waited for.
 */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "block.h"
#include "geometry.h"
#include "session/client.h"
#include "session/stream.h"

/* The longest pitch of a 2D copy: CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device so far. */
#define PITCH_MAX INT32_MAX

struct dim {
    int64_t n, dst, src; /* extent, steps in bytes */
};

struct plan {
    uint64_t dst, src; /* addresses of the first elements */
    size_t width;      /* bytes in a row; 0: nothing to copy */
    uint32_t ndim;
    struct dim dims[PROTO_NDIM_MAX]; /* outermost first */
};

/* ---- planning ---- */

static uint64_t
magnitude(int64_t step)
{
    return step < 0 ? -(uint64_t)step : (uint64_t)step;
}

static bool
is_inside(const struct dim *a, const struct dim *b)
{
    if (magnitude(a->dst) != magnitude(b->dst))
        return magnitude(a->dst) < magnitude(b->dst);
    return magnitude(a->src) < magnitude(b->src);
}

/* Adds a dimension in the order of steps. Left out is a dimension of one element, which has no
 * step, and one whose steps are 0, which would repeat the same copy. */
static void
plan_add(struct plan *plan, struct dim dim)
{
    uint32_t at = plan->ndim;

    if (dim.n == 1 || (dim.dst == 0 && dim.src == 0))
        return;
    for (; at > 0 && is_inside(&plan->dims[at - 1], &dim); at--)
        plan->dims[at] = plan->dims[at - 1];
    plan->dims[at] = dim;
    plan->ndim++;
}

static void
plan_remove(struct plan *plan, uint32_t at)
{
    plan->ndim--;
    for (uint32_t i = at; i < plan->ndim; i++)
        plan->dims[i] = plan->dims[i + 1];
}

/* Whether one step along outer is as long as all steps of inner. */
static bool
is_continued(const struct dim *outer, const struct dim *inner)
{
    int64_t dst, src;

    return !__builtin_mul_overflow(inner->dst, inner->n, &dst) &&
           !__builtin_mul_overflow(inner->src, inner->n, &src) && outer->dst == dst &&
           outer->src == src;
}

static void
plan_merge(struct plan *plan)
{
    while (plan->ndim > 0) {
        const struct dim *last = &plan->dims[plan->ndim - 1];
        if (last->dst != (int64_t)plan->width || last->src != (int64_t)plan->width)
            break;
        plan->width *= (size_t)last->n;
        plan->ndim--;
    }
    for (uint32_t i = plan->ndim; i-- > 1;)
        if (is_continued(&plan->dims[i - 1], &plan->dims[i])) {
            plan->dims[i].n *= plan->dims[i - 1].n;
            plan_remove(plan, i - 1);
        }
}

static int
plan_init(struct plan *ret, const struct caid_copy *copy, uint64_t itemsize,
          struct caid_error *error)
{
    int64_t c_order[PROTO_NDIM_MAX];
    char why[GEOMETRY_WHY_MAX];
    uint64_t nbytes;

    if (copy->ndim > PROTO_NDIM_MAX || (copy->ndim > 0 && !copy->shape) || itemsize == 0)
        return fail(error, CAID_ERR_INVALID,
                    "a copy needs a shape of at most %d dimensions and an itemsize",
                    PROTO_NDIM_MAX);
    if (geometry_c_order(copy->ndim, copy->shape, itemsize, c_order, &nbytes, why) < 0)
        return fail(error, CAID_ERR_INVALID, "a shape to copy: %s", why);

    const int64_t *dst = copy->dst_strides ? copy->dst_strides : c_order;
    const int64_t *src = copy->src_strides ? copy->src_strides : c_order;
    ret->dst = copy->dst;
    ret->src = copy->src;
    ret->ndim = 0;
    ret->width = nbytes > 0 ? (size_t)itemsize : 0;
    if (nbytes == 0)
        return 0;
    for (uint32_t i = 0; i < copy->ndim; i++)
        plan_add(ret, (struct dim){copy->shape[i], dst[i], src[i]});
    plan_merge(ret);
    return 0;
}

static bool
is_fill(const struct caid_copy *copy)
{
    if (!copy->src_on_host || copy->dst_on_host || !copy->src_strides)
        return false;
    for (uint32_t i = 0; i < copy->ndim; i++)
        if (copy->shape[i] != 1 && copy->src_strides[i] != 0)
            return false;
    return true;
}

/* All elements are equal, so any order will do: negative steps are turned around, and dimensions
 * are merged by the destination's steps alone. */
static void
plan_fill(struct plan *plan)
{
    for (uint32_t i = 0; i < plan->ndim; i++) {
        struct dim *dim = &plan->dims[i];
        if (dim->dst < 0) {
            plan->dst += (uint64_t)dim->dst * (uint64_t)(dim->n - 1);
            dim->dst = -dim->dst;
        }
        dim->src = dim->dst;
    }
    plan_merge(plan);
}

/* The rest of a fill, when its first rows are taken out: copies of these rows. */
static void
plan_repeat(struct plan *plan)
{
    plan->src = plan->dst;
    for (uint32_t i = 0; i < plan->ndim; i++)
        plan->dims[i].src = 0;
}

/* Takes out the longest dimension that a 2D copy can step along; n 0: there is none. */
static struct dim
plan_take_rows(struct plan *plan)
{
    int64_t width = (int64_t)plan->width;
    uint32_t best = plan->ndim;

    for (uint32_t i = 0; i < plan->ndim; i++) {
        const struct dim *dim = &plan->dims[i];
        if (dim->dst >= width && dim->dst <= PITCH_MAX && dim->src >= width &&
            dim->src <= PITCH_MAX && (best == plan->ndim || dim->n > plan->dims[best].n))
            best = i;
    }
    if (best == plan->ndim)
        return (struct dim){0};
    struct dim taken = plan->dims[best];
    plan_remove(plan, best);
    return taken;
}

/* ---- carrying out ---- */

struct copier {
    const struct drv *drv; /* NULL: from host to host */
    bool enqueues;         /* on stream, without waiting for it */
    CUstream stream;
    bool dst_on_host, src_on_host;
    const unsigned char *element; /* of a fill, element_size bytes; NULL: it copies */
    size_t element_size;
    size_t width;
    struct dim rows;
    const char *call; /* the driver call that was made last */
};

static void *
host(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static CUresult
copy_row(struct copier *c, uint64_t dst, uint64_t src)
{
    if (!c->drv) {
        memcpy(host(dst), host(src), c->width);
        return CUDA_SUCCESS;
    }
    if (c->src_on_host) {
        c->call = "cuMemcpyHtoDAsync";
        return c->drv->cu.cuMemcpyHtoDAsync(dst, host(src), c->width, c->stream);
    }
    if (c->dst_on_host) {
        c->call = "cuMemcpyDtoHAsync";
        return c->drv->cu.cuMemcpyDtoHAsync(host(dst), src, c->width, c->stream);
    }
    c->call = "cuMemcpyDtoDAsync";
    return c->drv->cu.cuMemcpyDtoDAsync(dst, src, c->width, c->stream);
}

static CUDA_MEMCPY2D
rows_2d(const struct copier *c, uint64_t dst, uint64_t src)
{
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = c->src_on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .srcPitch = (size_t)c->rows.src,
        .dstMemoryType = c->dst_on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dstPitch = (size_t)c->rows.dst,
        .WidthInBytes = c->width,
        .Height = (size_t)c->rows.n,
    };
    if (c->src_on_host)
        copy.srcHost = host(src);
    else
        copy.srcDevice = src;
    if (c->dst_on_host)
        copy.dstHost = host(dst);
    else
        copy.dstDevice = dst;
    return copy;
}

/* Uses the unaligned form where there is one: other forms may refuse a pitch that cuMemAllocPitch
 * would not return. */
static CUresult
copy_rows_2d(struct copier *c, uint64_t dst, uint64_t src)
{
    CUDA_MEMCPY2D copy = rows_2d(c, dst, src);

    if (c->enqueues) {
        c->call = "cuMemcpy2DAsync";
        return c->drv->cu.cuMemcpy2DAsync(&copy, c->stream);
    }
    c->call = "cuMemcpy2DUnaligned";
    return c->drv->cu.cuMemcpy2DUnaligned(&copy);
}

static CUresult
copy_rows_singly(struct copier *c, uint64_t dst, uint64_t src)
{
    CUresult result = CUDA_SUCCESS;

    for (int64_t i = 0; result == CUDA_SUCCESS && i < c->rows.n; i++)
        result =
            copy_row(c, dst + (uint64_t)(i * c->rows.dst), src + (uint64_t)(i * c->rows.src));
    return result;
}

static CUresult
copy_rows(struct copier *c, uint64_t dst, uint64_t src)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    if (c->rows.n == 0)
        return copy_row(c, dst, src);
    if (c->drv)
        result = copy_rows_2d(c, dst, src);
    if (!c->drv || (c->enqueues && result == CUDA_ERROR_INVALID_VALUE))
        return copy_rows_singly(c, dst, src); /* a pitch that the device does not take */
    return result;
}

/* The bytes of the word that the element repeats; 0: there is none that a memset can set. */
static size_t
word_size(const struct copier *c, uint64_t dst)
{
    for (size_t size = 1; size <= sizeof(uint32_t) && size <= c->element_size; size *= 2)
        if (dst % size == 0 && c->element_size % size == 0 &&
            memcmp(c->element, c->element + size, c->element_size - size) == 0)
            return size;
    return 0;
}

static CUresult
fill_row_by_copies(struct copier *c, uint64_t dst)
{
    struct copier piece = *c;

    piece.width = c->element_size;
    CUresult result = copy_row(&piece, dst, (uintptr_t)c->element);
    piece.src_on_host = false;
    for (size_t done = piece.width; result == CUDA_SUCCESS && done < c->width;
         done += piece.width) {
        piece.width = done < c->width - done ? done : c->width - done;
        result = copy_row(&piece, dst + done, dst);
    }
    c->call = piece.call;
    return result;
}

static CUresult
fill_row(struct copier *c, uint64_t dst)
{
    size_t size = word_size(c, dst);
    uint16_t word16;
    uint32_t word32;

    switch (size) {
    case 1:
        c->call = "cuMemsetD8Async";
        return c->drv->cu.cuMemsetD8Async(dst, c->element[0], c->width, c->stream);
    case 2:
        c->call = "cuMemsetD16Async";
        memcpy(&word16, c->element, size);
        return c->drv->cu.cuMemsetD16Async(dst, word16, c->width / size, c->stream);
    case 4:
        c->call = "cuMemsetD32Async";
        memcpy(&word32, c->element, size);
        return c->drv->cu.cuMemsetD32Async(dst, word32, c->width / size, c->stream);
    default: return fill_row_by_copies(c, dst);
    }
}

/* Fills the first rows. After that the copier copies these rows to all others. */
static CUresult
fill_rows(struct copier *c, uint64_t dst)
{
    const struct dim rows = c->rows;
    CUresult result = fill_row(c, dst);

    c->element = NULL;
    c->src_on_host = false;
    c->enqueues = true;
    for (int64_t done = 1; result == CUDA_SUCCESS && done < rows.n; done += c->rows.n) {
        c->rows.n = done < rows.n - done ? done : rows.n - done;
        result = copy_rows(c, dst + (uint64_t)(done * rows.dst), dst);
    }
    c->rows = rows;
    return result;
}

/* Loops over the other dimensions, the innermost one fastest. Steps are added modulo 2^64, which is
 * right for negative ones, too. */
static CUresult
copy_loop(struct copier *c, const struct plan *plan)
{
    int64_t index[PROTO_NDIM_MAX] = {0};
    uint64_t dst = plan->dst, src = plan->src;

    for (;;) {
        CUresult result = c->element ? fill_rows(c, dst) : copy_rows(c, dst, src);
        if (result != CUDA_SUCCESS)
            return result;
        uint32_t d = plan->ndim;
        for (; d > 0; d--) {
            const struct dim *dim = &plan->dims[d - 1];
            dst += (uint64_t)dim->dst;
            src += (uint64_t)dim->src;
            if (++index[d - 1] < dim->n)
                break;
            dst -= (uint64_t)dim->dst * (uint64_t)dim->n;
            src -= (uint64_t)dim->src * (uint64_t)dim->n;
            index[d - 1] = 0;
        }
        if (d == 0)
            return CUDA_SUCCESS;
    }
}

/* Waits also after a failure: copies that were started before it still use the caller's memory. An
 * array is copied by the device that it is mapped for. */
static int
copy_on_gpu(struct caid_client *client, struct copier *c, const struct plan *plan,
            const struct caid_copy *copy, const struct caid_array *array,
            struct caid_error *error)
{
    int r = array ? caid_array_register(array, error) : 0;
    if (r == 0)
        r = array ? gpu_push_place(client, array->place, &c->drv, error)
                  : gpu_push(client, copy->device, &c->drv, error);
    if (r < 0)
        return r;
    CUresult result = copy_loop(c, plan);
    CUresult waited = c->drv->cu.cuStreamSynchronize(NULL);
    gpu_pop(c->drv);

    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        c->call = "cuStreamSynchronize";
        result = waited;
    }
    return gpu_result(c->drv, c->call, result, "cannot copy", error);
}

/* Does not wait after a failure: copies that were enqueued before it run before any later work. */
static int
copy_on_stream(struct caid_client *client, struct copier *c, const struct plan *plan,
               const struct caid_copy *copy, struct caid_error *error)
{
    struct stream stream;
    CUresult result = CUDA_SUCCESS;

    int r = stream_enter(client, copy->stream, copy->device, &stream, error);
    if (r < 0)
        return r;
    if (c->dst_on_host && c->src_on_host) { /* the host copies, when the stream has drained */
        c->call = "cuStreamSynchronize";
        result = stream.drv->cu.cuStreamSynchronize(stream.handle);
    } else {
        c->drv = stream.drv;
        c->stream = stream.handle;
        c->enqueues = true;
    }
    if (result == CUDA_SUCCESS)
        result = copy_loop(c, plan);
    r = stream_result(client, &stream, c->call, result, "cannot copy", error);
    stream_leave(&stream);
    return r;
}

/* array: the array that is copied from or to; NULL: not known. */
static int
copy_run(struct caid_client *client, const struct caid_copy *copy, uint64_t itemsize,
         const struct caid_array *array, struct caid_error *error)
{
    struct plan plan;

    int r = client_check_awake(client, error);
    if (r == 0)
        r = plan_init(&plan, copy, itemsize, error);
    if (r < 0 || plan.width == 0)
        return r;
    bool fills = is_fill(copy);
    if (fills)
        plan_fill(&plan);
    struct copier copier = {
        .dst_on_host = copy->dst_on_host,
        .src_on_host = copy->src_on_host,
        .element = fills ? host(copy->src) : NULL,
        .element_size = itemsize,
        .rows = plan_take_rows(&plan),
        .width = plan.width,
    };
    if (fills)
        plan_repeat(&plan);
    if (copy->stream != 0)
        return copy_on_stream(client, &copier, &plan, copy, error);
    if (!copy->dst_on_host || !copy->src_on_host)
        return copy_on_gpu(client, &copier, &plan, copy, array, error);
    copy_loop(&copier, &plan);
    return 0;
}

/* ---- the API ---- */

int
caid_copy(struct caid_client *client, const struct caid_copy *copy, struct caid_error *error)
{
    struct caid_copy given;

    int r = client_check_given(client, copy, "copy", error);
    if (r == 0)
        r = options_read(&given, sizeof(given), copy, error);
    if (r < 0)
        return r;
    block_addresses_hold(client);
    r = copy_run(client, &given, given.itemsize, NULL, error);
    block_addresses_release(client);
    return r;
}

/* A copy between an array and memory of the host, in C order. */
static int
transfer(struct caid_array *array, struct caid_copy *copy, uint64_t host_memory, size_t nbytes,
         struct caid_error *error)
{
    const struct caid_array_info *info = &array->info;

    if (!caid_array_is_mapped(array))
        return fail(error, CAID_ERR_CLOSED, "the array is unmapped");
    if (nbytes != info->nbytes)
        return fail(error, CAID_ERR_INVALID, "the array has %llu bytes, the host memory %zu",
                    (unsigned long long)info->nbytes, nbytes);
    if (nbytes > 0 && !host_memory)
        return fail(error, CAID_ERR_INVALID, "the host memory is NULL");
    const char *name = caid_array_get_info(array)->name;
    if (copy->src_on_host && info->readonly)
        return fail(error, CAID_ERR_READ_ONLY, "array \"%s\" is open with mode \"r\"",
                    name ? name : "");
    copy->shape = info->shape;
    copy->ndim = info->ndim;
    return copy_run(array->client, copy, info->itemsize, array, error);
}

int
caid_array_copy_to_host(struct caid_array *array, void *dst, size_t nbytes,
                        struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(array, error);
    if (r < 0)
        return r;
    block_addresses_hold(array->client);
    struct caid_copy copy = {
        .dst = (uintptr_t)dst,
        .dst_on_host = true,
        .src = array->info.ptr,
        .src_strides = array->info.strides,
    };
    r = transfer(array, &copy, copy.dst, nbytes, error);
    block_addresses_release(array->client);
    return r;
}

int
caid_array_copy_from_host(struct caid_array *array, const void *src, size_t nbytes,
                          struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(array, error);
    if (r < 0)
        return r;
    block_addresses_hold(array->client);
    struct caid_copy copy = {
        .dst = array->info.ptr,
        .dst_strides = array->info.strides,
        .src = (uintptr_t)src,
        .src_on_host = true,
    };
    r = transfer(array, &copy, copy.src, nbytes, error);
    block_addresses_release(array->client);
    return r;
}
