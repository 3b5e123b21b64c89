/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include <errno.h>
#include <string.h>

#include "behind.h"
#include "block.h"
#include "drain.h"
#include "lease.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/text.h"

static const char *
put_name(char **text, const struct array_spec *spec)
{
    const char *name = *text;

    if (spec->set.n > 0)
        memcpy(*text, spec->set.p, spec->set.n);
    *text += spec->set.n;
    return text_put(text, spec->name) ? name : NULL;
}

struct caid_array *
array_new(struct caid_client *client, const struct array_spec *spec)
{
    size_t ndim = spec->ndim;
    size_t n_text = (size_t)spec->typestr.n + spec->descr.n + spec->set.n + spec->name.n +
                    spec->pool.n + spec->metadata.n + 5;
    struct caid_array *array = malloc(sizeof(*array) + 2 * ndim * sizeof(int64_t) + n_text);

    if (!array)
        return NULL;
    int64_t *shape = array->data, *strides = array->data + ndim;
    char *text = (char *)(array->data + 2 * ndim);
    if (ndim > 0) {
        memcpy(shape, spec->shape, ndim * sizeof(shape[0]));
        memcpy(strides, spec->strides, ndim * sizeof(strides[0]));
    }
    *array = (struct caid_array){.client = client_ref(client), .info = spec->info};
    array->info.ndim = spec->ndim;
    array->info.shape = shape;
    array->info.strides = strides;
    array->info.typestr = text_put(&text, spec->typestr);
    array->info.descr = text_put(&text, spec->descr);
    array->info.name = put_name(&text, spec);
    array->info.pool = text_put(&text, spec->pool);
    array->info.metadata = text_put(&text, spec->metadata);
    array->info.mapped_ordinal = array->info.mapped_device = -1;
    array->current = &array->info;
    return array;
}

void
array_free(struct caid_array *array)
{
    struct caid_client *client = array->client;
    struct array_text *text;

    if (array->closed_with)
        array_free(array->closed_with);
    while ((text = array->texts)) {
        array->texts = text->next;
        free(text);
    }
    free(array);
    client_unref(client);
}

const struct caid_array_info *
caid_array_get_info(const struct caid_array *array)
{
    return array ? atomic_load_explicit(&array->current, memory_order_acquire) : NULL;
}

/* ---- getting ---- */

static int
take_show(struct caid_client *client UNUSED, struct call *base, const void *reply,
          struct call_fds *fds UNUSED)
{
    struct array_call *call = container_of(base, struct array_call, call);
    const struct msg_details *result = reply;

    call->is_ours = result->n_entries == 1 && result->entries[0].generation == call->generation;
    return 0;
}

/* The call was left. The array that it made under a name is looked up, and then unlinked. */
static void
call_over(struct caid_client *client, struct call *base)
{
    struct array_call *call = container_of(base, struct array_call, call);
    enum msg_method next = MSG_UNKNOWN;

    if (base->take == array_take)
        lease_unreserve(client, call->n_wanted);
    if (base->method == MSG_CREATE && call->generation)
        next = MSG_SHOW;
    else if (base->method == MSG_SHOW && call->is_ours)
        next = MSG_UNLINK;
    base->method = next;
    base->params = &call->name;
    base->take = next == MSG_SHOW ? take_show : NULL;
    base->has_blocks = false;
    if (next == MSG_UNKNOWN || !call_queue_late(client, base))
        free(call);
}

static struct array_call *
call_for(struct array_request *request)
{
    const struct msg_create_params *made = request->made;
    size_t n_text = made ? (size_t)made->name.n + made->pool.n + 2 : 0;
    struct array_call *call =
        call_new(sizeof(*call) + n_text, request->method, request->params);

    if (!call)
        return NULL;
    call->call.take = array_take;
    call->call.over = call_over;
    call->call.has_blocks = true;
    call->request = request;
    call->n_wanted = request->n_wanted;
    if (made && made->name.p) {
        char *end = call->text;
        call->name.name = msg_str_opt(text_put(&end, made->name));
        call->name.pool = msg_str_opt(text_put(&end, made->pool));
    }
    return call;
}

/* The client is entered. */
static int
get_leases(struct caid_client *client, struct array_request *request, struct caid_error *error)
{
    int r = lease_reserve(client, request->n_wanted, error);
    if (r < 0)
        return r;
    struct array_call *call = call_for(request);
    if (!call) {
        lease_unreserve(client, request->n_wanted);
        return fail_errno(error, ENOMEM, "no memory for a request");
    }
    r = call_run(client, &call->call, error);
    request->refusal = call->call.error.code;
    if (!call->call.left)
        lease_unreserve(client, request->n_wanted - request->n_got);
    call_free(&call->call);
    return r;
}

/* Memory of another device is reached over the link between the two, or not at all. */
static int
check_reach(const struct caid_array *array, struct caid_error *error)
{
    const struct gpu *gpu = &array->client->gpu;
    const struct gpu_device *by = &gpu->devices[array->place];
    const struct gpu_device *own = gpu_find_index(gpu, array->info.device);
    int can = 0;

    if (array->block->kind == BLOCK_PINNED || !own || own == by)
        return 0;
    CUresult result = gpu->drv->cu.cuDeviceCanAccessPeer(&can, by->ordinal, own->ordinal);
    if (result == CUDA_SUCCESS && can)
        return 0;
    return fail(
        error, CAID_ERR_DEVICE,
        "%s does not reach memory of %s: there is no peer access between them (nvidia-smi "
        "topo -p2p r); open it on its own device, and copy from there",
        by->uuid, own->uuid);
}

static enum vmm_mode
mode_of(const struct caid_array *array)
{
    return array->info.readonly ? VMM_READ : VMM_READ_WRITE;
}

/* Gives an array its address. */
static int
array_map(struct caid_array *array, const struct array_request *request,
          struct caid_error *error)
{
    struct caid_client *client = array->client;
    struct caid_array_info *info = &array->info;
    struct block_address base;

    if (!array->block)
        return 0;
    bool host_only = request->host_only && array->block->kind == BLOCK_PINNED;
    int r = host_only ? 0
                      : gpu_find_place(client, info->device, request->device_uuid,
                                       &array->place, error);
    if (r == 0 && !host_only)
        r = check_reach(array, error);
    if (r == 0)
        r = block_map(client, array->block, mode_of(array),
                      host_only ? BLOCK_NO_PLACE : array->place, &base, error);
    if (r < 0)
        return r;
    info->ptr = base.ptr + info->offset;
    info->block_size = array->block->size;
    info->host_ptr = base.host ? (char *)base.host + info->offset : NULL;
    if (host_only)
        return 0;
    info->mapped_ordinal = client->gpu.devices[array->place].ordinal;
    info->mapped_device = client->gpu.devices[array->place].index;
    return 0;
}

int
caid_array_register(const struct caid_array *array, struct caid_error *error)
{
    struct block_address base;
    uint32_t place;

    int r = CHECK_CLIENT_OF(array, error);
    if (r < 0 || !array->block || array->block->kind != BLOCK_PINNED)
        return r;
    r = gpu_find_place(array->client, array->info.device, NULL, &place, error);
    if (r == 0)
        r = block_map(array->client, array->block, mode_of(array), place, &base, error);
    if (r == 0 && base.ptr + array->info.offset != array->info.ptr)
        r = fail(error, CAID_ERR_UNSUPPORTED,
                 "the device has host memory at another address than the host");
    return r;
}

/* Also in what the program was given before. */
void
array_move(struct caid_array *array, CUdeviceptr block)
{
    array->info.ptr = block + array->info.offset;
    for (struct array_text *text = array->texts; text; text = text->next)
        text->info.ptr = array->info.ptr;
}

int
array_request_run(struct caid_client *client, struct array_request *request,
                  struct caid_error *error)
{
    int r = client_check_awake(client, error);
    if (r == 0)
        r = client_enter(client, error);
    if (r < 0)
        return r;
    r = get_leases(client, request, error);
    client_leave(client);
    for (size_t i = 0; r == 0 && i < request->n_got; i++)
        r = array_map(request->arrays[i], request, error);
    if (r < 0)
        for (size_t i = 0; i < request->n_got; i++)
            array_close_now(request->arrays[i]);
    return r;
}

/* ---- closing ---- */

/* Gives the lease back, unless the array is kept, and those of the arrays that were closed with it.
 * The next call_flush() tells the daemon. Under the client's lock. */
static void
end_lease(struct caid_array *array)
{
    struct caid_client *client = array->client;

    behind_forget(array);
    if (array->closed_with) {
        array->closed_with->drain.kept = array->drain.kept;
        end_lease(array->closed_with);
    }
    if (array->lease != 0 && !array->lost)
        LIST_REMOVE(array, of_leases);
    if (array->drain.kept)
        client->keeps = true;
    if (array->drain.kept || array->lease == 0)
        return;
    if (array->block)
        block_unlease(client, array->block);
    lease_unreserve(client, 1);
    if (!array->lost)
        lease_return(client, array->lease);
}

void
array_end(struct caid_array *array)
{
    struct caid_client *client = array->client;

    end_lease(array);
    client->reaper.n_freed += !array->drain.kept;
    array_free(array);
}

void
array_close_now(struct caid_array *array)
{
    struct caid_client *client = array->client;

    client_enter_anyway(client);
    if (!behind_ends_array(array))
        array_end(array);
    call_flush(client); /* the rest is sent later */
    client_leave(client);
}

/* It never drops the client's last reference: the handle exists until the thread is joined. */
static void
reap(struct caid_client *client, struct reaped_queue *closed)
{
    struct caid_array *array;
    struct reaped *entry;

    drain_arrays(client, closed);
    pthread_mutex_lock(&client->lock);
    while ((entry = STAILQ_FIRST(closed))) {
        STAILQ_REMOVE_HEAD(closed, entry);
        array = container_of(entry, struct caid_array, reaped);
        if (!behind_ends_array(array))
            array_end(array);
    }
    call_flush(client);
    pthread_mutex_unlock(&client->lock);
}

static void
arrays_inventory(struct caid_client *client, struct inventory *inventory)
{
    const struct caid_array *array;

    LIST_FOREACH(array, &client->leases->arrays, of_leases) {
        enum inventory_kind kind = array->info.readonly ? INVENTORY_READ : INVENTORY_WRITE;
        inventory_add(inventory, kind, array->lease);
        inventory_add(inventory, kind, array->id);
    }
}

static void
lost_lease(struct caid_client *client, uint64_t lease)
{
    struct caid_array *array;

    LIST_FOREACH(array, &client->leases->arrays, of_leases)
        if (array->lease == lease)
            break;
    if (!array)
        return;
    client->resume.n_lost++;
    array->lost = true;
    LIST_REMOVE(array, of_leases);
}

const struct feature array_feature = {.reap = reap,
                                      .take_inventory = arrays_inventory,
                                      .lost_lease = lost_lease};

/* Has the client's thread wait for the GPU and then end the array; without one, waits here. */
static void
close_later(struct caid_array *array)
{
    struct reaped_queue alone = STAILQ_HEAD_INITIALIZER(alone);
    struct caid_client *client = array->client;

    array->reaped.nbytes = array->info.nbytes;
    pthread_mutex_lock(&client->lock);
    array->closed = true;
    bool added = reaper_add(client, &array->reaped);
    pthread_mutex_unlock(&client->lock);
    if (added)
        return;
    STAILQ_INSERT_TAIL(&alone, &array->reaped, entry);
    drain_arrays(client, &alone);
    array_close_now(array);
}

void
caid_array_close(struct caid_array *array)
{
    if (!array)
        return;
    if (fork_guard_crossed(&array->client->guard))
        array_free(array);
    else if (drain_note_contexts(array))
        close_later(array);
    else
        array_close_now(array);
}

int
caid_array_close_on(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(array, error);
    if (r == 0)
        r = drain_note_stream(array, stream, error);
    if (r < 0)
        return r;
    if (array->drain.event || array->managed)
        close_later(array);
    else
        array_close_now(array);
    return 0;
}

int
caid_array_close_with(struct caid_array *array, struct caid_array *with,
                      struct caid_error *error)
{
    struct caid_array *last = array;

    int r = CHECK_GIVEN_OF(array, with, error);
    if (r == 0 && (with == array || with->client != array->client))
        r = fail(error, CAID_ERR_INVALID, "an array is closed with another one of its client");
    if (r == 0 && (array->block || array->managed))
        r = fail(error, CAID_ERR_INVALID,
                 "an array that has memory is not closed with another");
    if (r < 0)
        return r;
    client_enter_anyway(array->client);
    bool busy = behind_is_under_way(array);
    if (!busy) {
        while (last->closed_with)
            last = last->closed_with;
        last->closed_with = with->closed_with;
        with->closed_with = array;
    }
    client_leave(array->client);
    return busy ? fail(error, CAID_ERR_INVALID, "the array is being published") : 0;
}

/* ---- handles ---- */

int
caid_array_ipc_handle(const struct caid_array *array, struct caid_ipc_handle *ret,
                      struct caid_error *error)
{
    if (!array || !ret)
        return fail(error, CAID_ERR_INVALID, "%s is NULL", array ? "ret" : "array");
    int r = client_check(array->client, error);
    if (r < 0)
        return r;
    const struct block *block = array->block;
    if (!block || block->kind != BLOCK_LEGACY)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "only arrays with memory=\"legacy\" have a handle; this one %s%s",
                    block || array->managed ? "is " : "has no bytes",
                    block || array->managed ? array->info.memory : "");
    *ret = (struct caid_ipc_handle){.offset = array->info.offset, .size = block->size};
    memcpy(ret->handle, block->handle, sizeof(ret->handle));
    return 0;
}
