/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking a reply that grants leases. Nothing in it is believed: every number is checked against
 * what was asked for, what came along, and what is here.
 */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "client.h"
#include "shape.h"
#include "text.h"

/* ---- blocks ---- */

static bool
takes_fd(struct call_fds *fds, uint64_t index)
{
    return index < fds->n && fds->fd[index] >= 0;
}

/* A block that is here already is the same one: the fd is a second one (block.h). */
static int
take_block(struct caid_client *client, const struct msg_block *m, struct call_fds *fds)
{
    int32_t device = client_find_device(client, m->device);

    if (m->block == 0 || m->size == 0 || m->size > SIZE_MAX / 2 || device < 0 ||
        !msg_str_eq(m->kind, "device") || !takes_fd(fds, m->fd))
        return -EPROTO;

    _cleanup_fd_ int fd = TAKE_FD(fds->fd[m->fd]);
    const struct block *here = block_find(&client->blocks, m->block);
    if (here)
        return here->size == m->size && here->device == device ? 0 : -EPROTO;
    return block_add(client, m->block, (size_t)m->size, device, &fd);
}

static int
take_blocks(struct caid_client *client, const struct msg_arrays_result *result,
            struct call_fds *fds)
{
    /* As every block takes a place of its own, this means that no fd is left over. */
    if (result->n_blocks != fds->n)
        return -EPROTO;
    for (uint32_t i = 0; i < result->n_blocks; i++) {
        int r = take_block(client, &result->blocks[i], fds);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- arrays ---- */

struct measure {
    uint64_t itemsize;
    uint64_t span;
    int64_t strides[PROTO_NDIM_MAX];
};

static bool
array_measure(const struct msg_array *m, struct measure *ret)
{
    uint64_t nbytes;

    ret->itemsize = shape_itemsize(m->typestr);
    ret->span = 0;
    if (ret->itemsize == 0 || m->shape.n > PROTO_NDIM_MAX ||
        !shape_c_strides(m->shape.n, m->shape.v, ret->itemsize, ret->strides, &nbytes) ||
        nbytes != m->nbytes)
        return false;
    if (m->strides.v && m->strides.n != m->shape.n)
        return false;
    if (m->strides.v && m->strides.n > 0)
        memcpy(ret->strides, m->strides.v, m->strides.n * sizeof(ret->strides[0]));
    return nbytes == 0 ||
           shape_span(m->shape.n, m->shape.v, ret->strides, ret->itemsize, &ret->span);
}

/* Whether the array lies inside its block. */
static bool
array_fits(const struct msg_array *m, const struct measure *measure, int32_t device,
           const struct block *block)
{
    if (m->nbytes == 0)
        return m->block == 0;
    return block && block->device == device && m->offset <= block->size &&
           measure->span <= block->size - m->offset;
}

static bool
array_strings_are_plain(const struct msg_array *m)
{
    return text_is_plain(m->typestr) && text_is_plain(m->descr) && text_is_plain(m->name) &&
           text_is_plain(m->pool);
}

static struct caid_array *
array_new(struct caid_client *client, const struct msg_array *m, const struct measure *measure)
{
    size_t ndim = m->shape.n;
    size_t n_text = (size_t)m->typestr.n + m->descr.n + m->name.n + m->pool.n + 4;
    struct caid_array *array = malloc(sizeof(*array) + 2 * ndim * sizeof(int64_t) + n_text);

    if (!array)
        return NULL;
    int64_t *shape = array->data, *strides = array->data + ndim;
    char *text = (char *)(array->data + 2 * ndim);
    if (ndim > 0) {
        memcpy(shape, m->shape.v, ndim * sizeof(shape[0]));
        memcpy(strides, measure->strides, ndim * sizeof(strides[0]));
    }
    array->client = client_ref(client);
    array->block = NULL;
    array->lease = m->lease;
    array->info = (struct caid_array_info){
        .nbytes = m->nbytes,
        .itemsize = measure->itemsize,
        .ndim = m->shape.n,
        .device = client_find_device(client, m->device),
        .shape = shape,
        .strides = strides,
        .typestr = text_put(&text, m->typestr),
        .descr = text_put(&text, m->descr),
        .name = text_put(&text, m->name),
        .pool = text_put(&text, m->pool),
        .generation = m->generation,
        .block = m->block,
        .offset = m->offset,
        .readonly = m->readonly,
    };
    return array;
}

/* An array that was not handed out yet, and has no lease in its block. */
static void
array_discard(struct caid_array *array)
{
    client_unref(array->client); /* never the last reference: a call is running */
    free(array);
}

static int
take_array(struct caid_client *client, const struct msg_array *m, bool readonly,
           struct caid_array **ret)
{
    int32_t device = client_find_device(client, m->device);
    struct measure measure;

    if (m->lease == 0 || device < 0 || m->readonly != readonly || !array_strings_are_plain(m) ||
        !array_measure(m, &measure))
        return -EPROTO;
    struct block *block = m->block ? block_find(&client->blocks, m->block) : NULL;
    if (!array_fits(m, &measure, device, block))
        return -EPROTO;

    struct caid_array *array = array_new(client, m, &measure);
    if (!array)
        return -ENOMEM;
    array->block = block;
    *ret = array;
    return 0;
}

static int
take_arrays(struct caid_client *client, const struct msg_arrays_result *result,
            struct array_call *call)
{
    for (uint32_t i = 0; i < result->n_arrays; i++) {
        int r = take_array(client, &result->arrays[i], call->readonly, &call->arrays[i]);
        if (r < 0) {
            while (i-- > 0)
                array_discard(call->arrays[i]);
            return r;
        }
    }
    return 0;
}

/* ---- the reply ---- */

/* Gives back what there was no memory for. */
static void
return_leases(struct caid_client *client, const struct msg_arrays_result *result)
{
    for (uint32_t i = 0; i < result->n_arrays; i++)
        client->closing[client->n_closing++] = result->arrays[i].lease;
    call_flush_closing(client);
}

static int
take_result(struct caid_client *client, const struct msg_arrays_result *result,
            struct array_call *call, struct call_fds *fds)
{
    if (result->n_arrays == 0 || result->n_arrays > call->n_wanted)
        return -EPROTO;
    int r = take_blocks(client, result, fds);
    if (r == 0)
        r = take_arrays(client, result, call);
    if (r == -ENOMEM) {
        return_leases(client, result);
        return fail_errno(&call->call.error, ENOMEM, "no memory for %u arrays",
                          result->n_arrays);
    }
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < result->n_arrays; i++)
        if (call->arrays[i]->block)
            block_lease(client, call->arrays[i]->block);
    call->n_got = result->n_arrays;
    return 0;
}

int
array_take(struct caid_client *client, struct call *call, struct msg *reply,
           struct call_fds *fds)
{
    struct msg_arrays_result result;

    int r = msg_decode_result(reply, call->method, &result);
    if (r == -ENOMEM)
        return -EPROTO; /* the leases in it are not known: only the connection's end frees them */
    if (r < 0)
        return r;
    return take_result(client, &result, container_of(call, struct array_call, call), fds);
}
