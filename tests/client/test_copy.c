/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between layouts of all kinds, against a loop over the elements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "client_fixture.h"
#include "drv.h"
#include "random.h"

#define BUFFER   (1 << 16)
#define MAX_NDIM 4
#define N_CASES  600

struct layout {
    int64_t strides[MAX_NDIM];
    size_t start; /* of the first element in its buffer */
};

struct sample {
    uint32_t ndim, itemsize;
    int64_t shape[MAX_NDIM];
    struct layout dst, src;
};

/* A layout without overlap: dimensions in any order, with gaps, some of them backwards. */
static void
random_layout(uint64_t *rng, const struct sample *sample, struct layout *ret)
{
    uint32_t order[MAX_NDIM];
    int64_t step = sample->itemsize, first = 0;

    for (uint32_t i = 0; i < sample->ndim; i++)
        order[i] = i;
    if (random_below(rng, 2))
        for (uint32_t i = 0; i + 1 < sample->ndim; i++) {
            uint32_t j = i + random_below(rng, sample->ndim - i), t = order[i];
            order[i] = order[j], order[j] = t;
        }
    for (uint32_t k = sample->ndim; k-- > 0;) {
        uint32_t i = order[k];
        if (random_below(rng, 3) == 0)
            step += random_below(rng, 9);
        ret->strides[i] = step;
        step *= sample->shape[i] > 0 ? sample->shape[i] : 1;
        if (random_below(rng, 5) == 0) {
            first += ret->strides[i] * (sample->shape[i] - 1);
            ret->strides[i] = -ret->strides[i];
        }
    }
    cr_assert_lt(step, BUFFER / 2);
    ret->start = (size_t)(first + random_below(rng, 64));
}

static void
random_sample(uint64_t *rng, struct sample *ret)
{
    static const uint32_t itemsizes[] = {1, 2, 3, 4, 8, 12, 16};

    ret->ndim = random_below(rng, MAX_NDIM + 1);
    ret->itemsize = itemsizes[random_below(rng, ARRAY_SIZE(itemsizes))];
    for (uint32_t i = 0; i < ret->ndim; i++)
        ret->shape[i] = random_below(rng, 20) == 0 ? 0 : 1 + random_below(rng, 5);
    random_layout(rng, ret, &ret->dst);
    random_layout(rng, ret, &ret->src);
    for (uint32_t i = 0; i < ret->ndim; i++)
        if (random_below(rng, 12) == 0 && ret->src.strides[i] > 0)
            ret->src.strides[i] = 0; /* one element, many times */
    if (random_below(rng, 4) == 0)
        memset(ret->src.strides, 0, sizeof(ret->src.strides)); /* a fill */
}

/* What a copy is: one element after the other. */
static void
copy_elements(const struct sample *s, uint32_t dim, unsigned char *dst,
              const unsigned char *src)
{
    if (dim == s->ndim) {
        memcpy(dst, src, s->itemsize);
        return;
    }
    for (int64_t i = 0; i < s->shape[dim]; i++)
        copy_elements(s, dim + 1, dst + i * s->dst.strides[dim], src + i * s->src.strides[dim]);
}

enum {
    ON_HOST,
    ON_DEVICE
};

struct bench {
    struct caid_client *client;
    struct caid_array *arrays[2]; /* of BUFFER bytes: destination, source */
    unsigned char dst[BUFFER], src[BUFFER], wanted[BUFFER];
    struct caid_error error;
};

static void
bench_fill(struct bench *b, uint64_t *rng)
{
    for (size_t i = 0; i < BUFFER; i++) {
        b->src[i] = (unsigned char)random_below(rng, 256);
        b->dst[i] = b->wanted[i] = 0xaa;
    }
}

static void
run_sample(struct bench *b, const struct sample *s, int dst_where, int src_where, int number)
{
    uint64_t device_dst = caid_array_get_info(b->arrays[0])->ptr;
    uint64_t device_src = caid_array_get_info(b->arrays[1])->ptr;

    copy_elements(s, 0, b->wanted + s->dst.start, b->src + s->src.start);
    assert_ok(caid_array_copy_from_host(b->arrays[0], b->dst, BUFFER, &error));
    assert_ok(caid_array_copy_from_host(b->arrays[1], b->src, BUFFER, &error));
    OPTIONS(caid_copy, copy,
            .dst = (dst_where == ON_HOST ? (uintptr_t)b->dst : device_dst) + s->dst.start,
            .src = (src_where == ON_HOST ? (uintptr_t)b->src : device_src) + s->src.start,
            .dst_on_host = dst_where == ON_HOST, .src_on_host = src_where == ON_HOST,
            .dst_strides = s->dst.strides, .src_strides = s->src.strides, .shape = s->shape,
            .ndim = s->ndim, .itemsize = s->itemsize);
    assert_ok(caid_copy(b->client, &copy, &error));
    if (dst_where == ON_DEVICE)
        assert_ok(caid_array_copy_to_host(b->arrays[0], b->dst, BUFFER, &error));
    cr_assert_eq(memcmp(b->dst, b->wanted, BUFFER), 0, "case %d, %s to %s", number,
                 src_where == ON_HOST ? "host" : "device",
                 dst_where == ON_HOST ? "host" : "device");
}

CLIENT_TEST(copy, any_layout_to_any_other)
{
    static struct bench b;
    struct daemon daemon;
    struct sample sample;
    uint64_t rng = 1;

    daemon_start(&daemon);
    b.client = daemon_connect(&daemon);
    b.arrays[0] = make_bytes(b.client, NULL, BUFFER);
    b.arrays[1] = make_bytes(b.client, NULL, BUFFER);
    for (int i = 0; i < N_CASES; i++) {
        random_sample(&rng, &sample);
        bench_fill(&b, &rng);
        run_sample(&b, &sample, i / 2 % 2, i % 2, i);
    }
    caid_array_close(b.arrays[0]);
    caid_array_close(b.arrays[1]);
    caid_client_close(b.client);
    daemon_stop(&daemon);
}

/* The host side is in C order, whatever the array's strides. */
FIXTURE_TEST(copy, arrays_of_any_order)
{
    const int64_t shape[] = {5, 7, 3}, f_order[] = {2, 10, 70}, gaps[] = {200, 20, 4};
    const int64_t *const all[] = {NULL, f_order, gaps};
    uint16_t in[5 * 7 * 3], out[5 * 7 * 3];
    struct caid_array *array;

    for (size_t i = 0; i < ARRAY_SIZE(in); i++)
        in[i] = (uint16_t)(i * 31);
    OPTIONS(caid_create_options, options, .typestr = "<u2", .shape = shape, .ndim = 3);
    for (size_t k = 0; k < ARRAY_SIZE(all); k++) {
        options.strides = all[k];
        memset(out, 0, sizeof(out));
        assert_ok(caid_array_create(f.client, &array, &options, &error));
        assert_ok(caid_array_copy_from_host(array, in, sizeof(in), &error));
        assert_ok(caid_array_copy_to_host(array, out, sizeof(out), &error));
        cr_assert_eq(memcmp(in, out, sizeof(in)), 0, "strides %zu", k);
        caid_array_close(array);
    }
}

FIXTURE_TEST(copy, what_is_refused)
{
    struct caid_copy copy = CAID_INIT(copy), bad;
    const int64_t shape[33] = {4}, negative = -4, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    char a[16] = {0}, b[16] = {1};

    OWNED struct caid_array *array = make_bytes(f.client, NULL, 16);
    copy.dst = (uintptr_t)a;
    copy.src = (uintptr_t)b;
    copy.dst_on_host = copy.src_on_host = true;
    copy.shape = shape;
    copy.ndim = 1;
    copy.itemsize = 1;
    assert_ok(caid_copy(f.client, &copy, &error));
    cr_assert(a[0] == 1 && a[4] == 0);

#define REFUSED(code, ...)                                      \
    do {                                                        \
        bad = copy;                                             \
        __VA_ARGS__;                                            \
        assert_failed(caid_copy(f.client, &bad, &error), code); \
    } while (0)
    REFUSED(CAID_ERR_INVALID, bad.struct_size = 3);
    REFUSED(CAID_ERR_INVALID, bad.shape = NULL);
    REFUSED(CAID_ERR_INVALID, bad.shape = &negative);
    REFUSED(CAID_ERR_INVALID, bad.shape = huge, bad.ndim = 2);
    REFUSED(CAID_ERR_INVALID, bad.ndim = 33);
    REFUSED(CAID_ERR_INVALID, bad.itemsize = 0);
    REFUSED(CAID_ERR_DEVICE, bad.dst_on_host = false, bad.device = 77);
#undef REFUSED
    assert_failed(caid_copy(f.client, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_copy(NULL, &copy, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_copy_to_host(array, a, 15, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_copy_to_host(array, NULL, 16, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_copy_to_host(NULL, a, 16, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_copy_from_host(array, a, 17, &error), CAID_ERR_INVALID);
}

FIXTURE_TEST(copy, pointers_and_streams)
{
    int on_stack = 0;
    uint64_t found;
    int32_t device;

    OWNED struct caid_array *array = make_bytes(f.client, NULL, 4096);
    uint64_t ptr = caid_array_get_info(array)->ptr;
    assert_ok(cuda_pointer_resolve(f.client, ptr + 100, &found, &device, &error));
    cr_assert_eq(found, ptr + 100);
    cr_assert_eq(device, 0);
    assert_failed(cuda_pointer_resolve(f.client, (uintptr_t)&on_stack, &found, &device, &error),
                  CAID_ERR_INVALID);

    assert_ok(caid_stream_synchronize(f.client, 1, 0, &error));
    assert_ok(caid_stream_synchronize(f.client, 2, 0, &error));
    assert_failed(caid_stream_synchronize(f.client, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_stream_synchronize(f.client, 1, 9, &error), CAID_ERR_DEVICE);

    if (gpu_is_soft()) { /* it is asked, in the current context and then in the primary one */
        gpu_begin(&f.gpu);
        soft_control(&f.gpu, "fail cuPointerGetAttribute@2=INVALID_VALUE");
        assert_ok(cuda_pointer_resolve(f.client, ptr, &found, &device, &error));
        soft_control(&f.gpu, "clear");
        soft_control(&f.gpu, "fail cuPointerGetAttribute@2-3=INVALID_VALUE");
        assert_failed(cuda_pointer_resolve(f.client, ptr, &found, &device, &error),
                      CAID_ERR_INVALID);
        soft_control(&f.gpu, "clear");
    }
}

/* What was current before a copy is current after it. */
CLIENT_TEST(copy, leaves_the_current_context_alone)
{
    struct daemon daemon;
    CUcontext mine, now;
    struct drv *drv;
    char bytes[16];

    cr_assert_eq(drv_open(&drv, NULL, NULL), 0);
    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    struct caid_array *array = make_bytes(client, NULL, 16);
    cr_assert_eq(drv->cu.cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    assert_ok(caid_array_copy_to_host(array, bytes, 16, &error));
    cr_assert_eq(drv->cu.cuCtxGetCurrent(&now), CUDA_SUCCESS);
    cr_assert_null(now);

    cr_assert_eq(drv->cu.cuDevicePrimaryCtxRetain(&mine, 0), CUDA_SUCCESS);
    cr_assert_eq(drv->cu.cuCtxSetCurrent(mine), CUDA_SUCCESS);
    assert_ok(caid_array_copy_to_host(array, bytes, 16, &error));
    cr_assert_eq(drv->cu.cuCtxGetCurrent(&now), CUDA_SUCCESS);
    cr_assert_eq(now, mine);
    drv->cu.cuDevicePrimaryCtxRelease(0);
    caid_array_close(array);
    caid_client_close(client);
    daemon_stop(&daemon);
    drv_free(drv);
}
