/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a reply that grants leases. The daemon is not trusted: every number is checked against the
 * request, against the fds in the packet, and against the blocks that are here.
 */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "block.h"
#include "geometry.h"
#include "lease.h"
#include "session/client.h"
#include "session/text.h"

#define HANDLE_WORDS (CU_IPC_HANDLE_SIZE / sizeof(uint64_t))

/* ---- blocks ---- */

static bool
takes_fd(struct call_fds *fds, uint64_t index)
{
    return index < fds->n && fds->fd[index] >= 0;
}

/* The handle travels as numbers, since records have no type for raw bytes. */
static void
handle_put(uint8_t ret[CU_IPC_HANDLE_SIZE], const uint64_t words[HANDLE_WORDS])
{
    for (size_t i = 0; i < CU_IPC_HANDLE_SIZE; i++)
        ret[i] = (uint8_t)(words[i / 8] >> 8 * (i % 8));
}

/* A block that is here already must be the same: the fd that came is a second one of it (block.h).
 * */
static int
keep_block(struct caid_client *client, struct block_spec *spec)
{
    const struct block *here = block_find(client->blocks, spec->id);

    if (!here)
        return block_add(client, spec);
    return here->size == spec->size && here->device == spec->device &&
                   here->kind == spec->kind &&
                   memcmp(here->handle, spec->handle, sizeof(here->handle)) == 0
               ? 0
               : -EPROTO;
}

static int
take_block(struct caid_client *client, const struct msg_block *m, struct call_fds *fds,
           uint32_t *n_fds)
{
    int32_t device = client_find_device(client, m->device);
    int kind = block_kind_find(m->kind);

    if (m->block == 0 || m->size == 0 || m->size > SIZE_MAX / 2 || device < 0 || kind < 0)
        return -EPROTO;
    struct block_spec spec = {
        .id = m->block,
        .size = (size_t)m->size,
        .device = device,
        .kind = (enum block_kind)kind,
        .fd = -1,
    };
    if (kind == BLOCK_LEGACY) {
        if (m->handle.n != HANDLE_WORDS)
            return -EPROTO;
        handle_put(spec.handle, m->handle.v);
        return keep_block(client, &spec);
    }
    if (!takes_fd(fds, m->fd))
        return -EPROTO;
    _cleanup_fd_ int fd = TAKE_FD(fds->fd[m->fd]);
    (*n_fds)++;
    spec.fd = fd;
    int r = keep_block(client, &spec);
    fd = spec.fd;
    return r;
}

static bool
is_leased(const struct msg_arrays_result *result, uint64_t block)
{
    for (uint32_t i = 0; i < result->n_arrays; i++)
        if (result->arrays[i].block == block)
            return true;
    return false;
}

/* Whether an array lies in each block: the tables have room for as many blocks as leases
 * (lease.h). */
static bool
blocks_are_leased(const struct msg_arrays_result *result)
{
    if (result->n_blocks > result->n_arrays)
        return false;
    for (uint32_t i = 0; i < result->n_blocks; i++)
        if (!is_leased(result, result->blocks[i].block))
            return false;
    return true;
}

static int
take_blocks(struct caid_client *client, const struct msg_arrays_result *result,
            struct call_fds *fds)
{
    uint32_t n_fds = 0;

    if (!blocks_are_leased(result))
        return -EPROTO;
    for (uint32_t i = 0; i < result->n_blocks; i++) {
        int r = take_block(client, &result->blocks[i], fds, &n_fds);
        if (r < 0)
            return r;
    }
    return n_fds == fds->n ? 0 : -EPROTO; /* an fd that nothing refers to */
}

/* ---- arrays ---- */

/* Whether the array lies inside its block, and its elements where a device can read them. */
static bool
array_fits(const struct msg_array *m, const struct geometry *g, const struct block *block)
{
    if (g->nbytes != m->nbytes)
        return false;
    if (m->nbytes == 0)
        return m->block == 0 && m->offset == 0;
    if (m->offset % g->alignment)
        return false;
    return block && m->offset <= block->size && g->span <= block->size - m->offset;
}

/* The index of the array's device: its block's or, without a block, that of the reply. -1: the two
 * differ, or there is none. */
static int32_t
array_device(const struct caid_client *client, const struct msg_array *m,
             const struct block *block)
{
    int32_t device = m->device.p ? client_find_device(client, m->device) : -1;

    if (!block)
        return device;
    return !m->device.p || device == block->device ? block->device : -1;
}

/* The array's `memory`, as a static string; NULL: it does not fit the block. */
static const char *
array_memory(const struct msg_array *m, const struct block *block)
{
    bool mapped = m->memory.p && msg_str_eq(m->memory, "mapped");

    if (mapped)
        return !block || block->kind == BLOCK_PINNED ? "mapped" : NULL;
    int kind = m->memory.p ? block_kind_find(m->memory)
               : block     ? (int)block->kind
                           : BLOCK_DEVICE;
    if (kind < 0 || (block && (int)block->kind != kind))
        return NULL;
    return block_kind_name((enum block_kind)kind);
}

static bool
array_strings_are_plain(const struct msg_array *m)
{
    return text_is_plain(m->typestr) && text_is_plain(m->descr) && text_is_plain(m->metadata) &&
           text_is_plain(m->name);
}

static int
take_array(struct caid_client *client, const struct msg_array *m, struct msg_str pool,
           const struct array_request *request, size_t i)
{
    struct block *block = m->block ? block_find(client->blocks, m->block) : NULL;
    int32_t device = array_device(client, m, block);
    const char *memory = array_memory(m, block);
    int64_t strides[PROTO_NDIM_MAX];
    char why[GEOMETRY_WHY_MAX];
    struct geometry geometry;

    if (m->lease == 0 || m->uid > UINT32_MAX || device < 0 || !memory ||
        !array_strings_are_plain(m) ||
        geometry_init(&geometry, m->typestr, m->shape, m->strides, why) < 0 ||
        !array_fits(m, &geometry, block))
        return -EPROTO;
    geometry_strides(&geometry, strides);
    const struct array_spec spec = {
        .typestr = m->typestr,
        .descr = m->descr,
        .set = m->name.p ? (struct msg_str){0} : request->set,
        .name = m->name.p ? m->name : request->names[i],
        .pool = pool,
        .metadata = m->metadata,
        .shape = m->shape.v,
        .strides = strides,
        .ndim = m->shape.n,
        .info = {.nbytes = m->nbytes,
                 .itemsize = geometry.itemsize,
                 .device = device,
                 .generation = m->generation,
                 .block = m->block,
                 .offset = m->offset,
                 .readonly = request->readonly,
                 .uid = (uint32_t)m->uid,
                 .members = m->members,
                 .layout = m->layout,
                 .memory = memory},
    };
    struct caid_array *array = array_new(client, &spec);
    if (!array)
        return -ENOMEM;
    array->lease = m->lease;
    array->id = m->array;
    array->block = block;
    request->arrays[i] = array;
    return 0;
}

static int
take_arrays(struct caid_client *client, const struct msg_arrays_result *result,
            struct array_request *request)
{
    for (uint32_t i = 0; i < result->n_arrays; i++) {
        int r = take_array(client, &result->arrays[i], result->pool, request, i);
        if (r < 0) {
            while (i-- > 0)
                /* it never drops the client's last reference: a call runs */
                array_free(request->arrays[i]);
            return r;
        }
    }
    return 0;
}

/* ---- the reply ---- */

/* Gives back leases for which there was no memory, or whose caller has left. */
static void
return_leases(struct caid_client *client, const struct msg_arrays_result *result)
{
    for (uint32_t i = 0; i < result->n_arrays; i++)
        lease_return(client, result->arrays[i].lease);
    call_flush(client);
}

int
array_take(struct caid_client *client, struct call *base, const void *reply,
           struct call_fds *fds)
{
    struct array_call *call = container_of(base, struct array_call, call);
    struct array_request *request = call->request;
    const struct msg_arrays_result *result = reply;

    if (result->n_arrays == 0 || result->n_arrays > call->n_wanted ||
        !text_is_plain(result->pool))
        return -EPROTO;
    int r = take_blocks(client, result, fds);
    if (r == -ENOMEM) {
        /* The daemon relies on us having the block: only the connection's end corrects that. */
        client_lose(client, CAID_ERR_DISCONNECTED, "%s: no memory for a block: hung up",
                    client->socket);
        return fail_again(&base->error, &client->lost);
    }
    if (r == 0 && base->left) {
        call->generation = result->arrays[0].generation;
        return_leases(client, result);
        return 0;
    }
    if (r == 0)
        r = take_arrays(client, result, request);
    if (r == -ENOMEM) {
        return_leases(client, result);
        return fail_errno(&base->error, ENOMEM, "no memory for %u arrays", result->n_arrays);
    }
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < result->n_arrays; i++) {
        LIST_INSERT_HEAD(&client->leases->arrays, request->arrays[i], of_leases);
        if (request->arrays[i]->block)
            block_lease(client, request->arrays[i]->block);
    }
    resume_need(client);
    request->n_got = result->n_arrays;
    request->generation = request->arrays[0]->info.generation;
    return 0;
}
