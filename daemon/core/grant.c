/* SPDX-License-Identifier: Apache-2.0 */
#include "grant.h"

#include <assert.h>

#include "array.h"
#include "device.h"
#include "set.h"
#include "settle.h"
#include "state.h"

static struct msg_array
array_record(const struct core *core, const struct array *array, const struct grant *grant)
{
    const struct block *block = array_block(array);
    const int64_t *strides = array_strides(array);
    struct msg_array record = {
        .array = array->id,
        .nbytes = array->nbytes,
        .typestr = MSG_STR(array_typestr(array)),
        .shape = {.v = array_shape(array), .n = array->ndim},
        .descr = msg_str_opt(array_descr(array)),
        .metadata = array_metadata(array),
        .generation = grant->set ? grant->set->generation : array->generation,
        .uid = array->charge.user->uid,
        .members = array->is_set ? array->set->n : 0,
        .layout = set_layout(array),
        .memory = msg_str_opt(array->mapped ? "mapped" : NULL), /* NULL: the block says it */
    };

    if (block) {
        record.block = block->id;
        record.offset = array_offset(array);
    } else {
        record.device = MSG_STR(core->devices[array->device].info.uuid);
        record.memory = MSG_STR(array_memory(array));
    }
    if (grant->named && array->n_name)
        record.name = (struct msg_str){array->name, array->n_name};
    if (strides)
        record.strides = (struct msg_i64s){.v = strides, .n = array->ndim};
    return record;
}

void
grant_deinit(struct grant *grant)
{
    free(grant->storage);
}

int
grant_init(struct grant *ret, const struct core *core, size_t n)
{
    size_t each = sizeof(struct msg_array) + sizeof(struct lease *) + sizeof(struct msg_block) +
                  sizeof(struct hold *) + sizeof(int);
    struct grant grant = {.room = room_init(core), .alone = n == 1};
    char *p = malloc(n * each + 1);

    if (!p)
        return -ENOMEM;
    grant.storage = p;
    grant.arrays = (struct msg_array *)(void *)p;
    p += n * sizeof(struct msg_array);
    grant.leases = (struct lease **)(void *)p;
    p += n * sizeof(struct lease *);
    grant.blocks = (struct msg_block *)(void *)p;
    p += n * sizeof(struct msg_block);
    grant.holds = (struct hold **)(void *)p;
    p += n * sizeof(struct hold *);
    grant.fds = (int *)(void *)p;
    *ret = grant;
    return 0;
}

static struct msg_block
block_record(const struct core *core, const struct grant *grant, const struct block *block)
{
    struct msg_block record = {
        .block = block->id,
        .size = block->size,
        .device = MSG_STR(core->devices[block->device].info.uuid),
        .kind = MSG_STR(core_kind_name(block->kind)),
    };

    if (block->kind == KIND_LEGACY)
        record.handle = (struct msg_u64s){.v = block->ipc, .n = CORE_HANDLE_WORDS};
    else
        record.fd = grant->n_fds;
    return record;
}

/* Whether the reply has room for the array, and for its block if the client does not have that. */
static bool
take_room(struct grant *grant, const struct msg_array *array, const struct msg_block *block)
{
    size_t bytes = msg_array_size(array);
    size_t fds = 0;

    if (block) {
        bytes += msg_block_size(block);
        fds = block->handle.v ? 0 : 1;
    }
    return room_take(&grant->room, bytes, fds);
}

static void
add_block(struct grant *grant, const struct msg_block *record, struct hold *hold)
{
    if (!record->handle.v)
        grant->fds[grant->n_fds++] = hold->block->fd;
    grant->holds[grant->n_blocks] = hold;
    grant->blocks[grant->n_blocks++] = *record;
}

static void
add_array(struct grant *grant, const struct msg_array *record, struct lease *lease)
{
    grant->leases[grant->n_arrays] = lease;
    grant->arrays[grant->n_arrays] = *record;
    grant->arrays[grant->n_arrays++].lease = lease->id;
}

void
grant_undo(struct core *core, struct grant *grant)
{
    while (grant->n_arrays)
        lease_free(core, grant->leases[--grant->n_arrays]);
    while (grant->n_blocks)
        block_unhold(core, grant->holds[--grant->n_blocks]);
}

void
grant_send(struct core *core, struct conn *conn, uint32_t id, enum msg_method method,
           const struct grant *grant)
{
    struct msg_arrays_result result = {
        .pool = MSG_STR(grant->pool->name),
        .arrays = grant->arrays,
        .n_arrays = grant->n_arrays,
        .blocks = grant->blocks,
        .n_blocks = grant->n_blocks,
    };

    send_result(core, conn, id, method, &result, grant->fds, grant->n_fds);
}

int
grant_add(struct core *core, struct conn *conn, struct grant *grant, struct array *array,
          bool readonly, struct refusal *r)
{
    const struct block *block = array_block(array);
    bool is_new = block && !hold_find(&conn->holds, block->id);
    struct msg_array record = array_record(core, array, grant);
    struct msg_block block_entry;
    struct lease *lease;
    int rc;

    if (is_new)
        block_entry = block_record(core, grant, block);
    grant->full = !grant->alone && !take_room(grant, &record, is_new ? &block_entry : NULL);
    if (grant->full)
        return 0;
    rc = lease_new(core, conn, array, readonly, &lease, &is_new, r);
    if (rc)
        return rc;
    if (is_new)
        add_block(grant, &block_entry, lease->hold);
    add_array(grant, &record, lease);
    return 0;
}

void
grant_created(struct core *core, struct conn *conn, uint32_t request, struct array *array)
{
    _cleanup_(grant_deinit) struct grant grant = {0};
    struct refusal r;
    int rc = grant_init(&grant, core, 1);

    grant.pool = array->pool;
    if (rc == 0)
        rc = grant_add(core, conn, &grant, array, false, &r);
    if (rc) {
        if (rc == REFUSED)
            send_refusal(core, conn, request, MSG_CREATE, &r);
        else
            conn_end(core, conn, "out of memory");
        array_abandon(core, array);
        return;
    }
    array_promise(core, array);
    if (array->named)
        done_note(core, conn, request, MSG_CREATE, array->generation, array->id);
    grant_send(core, conn, request, MSG_CREATE, &grant);
    if (array->named)
        watch_notify(core, array->pool, array_name(array), NULL, array);
}
