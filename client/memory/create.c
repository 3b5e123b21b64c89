/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_create(). */
#include <string.h>

#include "array.h"
#include "block.h"
#include "session/client.h"

static int
check_create(const struct caid_create_options *o, struct caid_error *error)
{
    const uint32_t known = CAID_ARRAY_EXCLUSIVE | CAID_ARRAY_ATTACH_HOST;

    int r = check_shape(o->ndim, o->shape, error);
    if (r < 0)
        return r;
    if (o->flags & ~known)
        return fail(error, CAID_ERR_INVALID, "unknown flags %#x", o->flags & ~known);
    if (o->alignment > PROTO_ALIGNMENT_MAX || (o->alignment & (o->alignment - 1)) != 0)
        return fail(error, CAID_ERR_INVALID, "alignment %llu: a power of 2, at most %llu",
                    (unsigned long long)o->alignment, (unsigned long long)PROTO_ALIGNMENT_MAX);
    if (o->ttl_ns && !o->name)
        return fail(error, CAID_ERR_INVALID, "a time to live is a name's, and this has none");
    return 0;
}

static int
check_texts(const struct caid_create_options *o, struct caid_error *error)
{
    int r = o->name ? check_name(o->name, error) : 0;
    if (r == 0)
        r = check_pool(o->pool, error);
    if (r == 0)
        r = check_type(o->typestr, o->descr, o->metadata, error);
    return r < 0 ? r : check_text("memory", o->memory, false, error);
}

static void
fill_params(struct msg_create_params *ret, const struct caid_create_options *o,
            const char *uuid)
{
    static const int64_t none; /* an empty list is not NULL */

    *ret = (struct msg_create_params){
        .name = msg_str_opt(o->name),
        .pool = msg_str_opt(o->pool),
        .device = MSG_STR(uuid),
        .typestr = MSG_STR(o->typestr),
        .shape = {o->ndim ? o->shape : &none, o->ndim},
        .strides = {o->strides, o->strides ? o->ndim : 0},
        .descr = msg_str_opt(o->descr),
        .exclusive = o->flags & CAID_ARRAY_EXCLUSIVE,
        .memory = msg_str_opt(o->memory),
        .alignment = o->alignment,
        .metadata = msg_str_opt(o->metadata),
        .ttl_ns = o->ttl_ns,
    };
}

/* How many arrays and blocks this client has given back, ever. */
static uint64_t
n_freed(struct caid_client *client)
{
    pthread_mutex_lock(&client->lock);
    uint64_t n = client->reaper.n_freed;
    pthread_mutex_unlock(&client->lock);
    return n;
}

static bool
has_bytes(const struct caid_create_options *options)
{
    for (uint32_t i = 0; i < options->ndim; i++)
        if (options->shape[i] == 0)
            return false;
    return true;
}

/* Checks whether the array could be mapped, as far as that is known before it is made. */
static int
check_place(struct caid_client *client, const struct caid_create_options *options,
            struct caid_error *error)
{
    uint32_t place;

    return has_bytes(options) && !options->host_only
               ? gpu_find_place(client, options->device, NULL, &place, error)
               : 0;
}

/* Unlinks the name of an array that could not be mapped, unless another array has the name by now.
 * That is looked up before, so that a short time remains in which the name may change. */
static void
take_name_back(struct caid_client *client, const struct caid_create_options *options,
               uint64_t generation)
{
    const struct msg_name_params params = {.name = MSG_STR(options->name),
                                           .pool = msg_str_opt(options->pool)};
    _cleanup_reply_ struct reply reply = {0};
    struct msg_details result;

    if (reply_get(&reply, client, MSG_SHOW, &params, &result, NULL) == 0 &&
        result.n_entries == 1 && result.entries[0].generation == generation)
        caid_unlink(client, options->name, options->pool, NULL);
}

/* *ret_refusal: as array_request.refusal. */
static int
create(struct caid_client *client, const struct caid_create_options *options,
       struct caid_array **ret, int32_t *ret_refusal, struct caid_error *error)
{
    const struct msg_str name = msg_str_opt(options->name);
    struct msg_create_params params;
    const char *uuid;

    *ret_refusal = 0;
    int r = client_device_uuid(client, options->device, &uuid, error);
    if (r == 0)
        r = check_place(client, options, error);
    if (r < 0)
        return r;
    fill_params(&params, options, uuid);
    struct array_request request = {
        .method = MSG_CREATE,
        .params = &params,
        .names = &name,
        .made = &params,
        .arrays = ret,
        .n_wanted = 1,
        .host_only = options->host_only,
    };
    r = array_request_run(client, &request, error);
    *ret_refusal = request.refusal;
    if (r < 0 && request.n_got > 0 && options->name)
        take_name_back(client, options, request.generation);
    return r;
}

/* Where the daemon refuses a create for want of something, the client gives back what it has of it,
 * and tries once more. */
static int
create_or_retry(struct caid_client *client, const struct caid_create_options *options,
                struct caid_array **ret, struct caid_error *error)
{
    uint64_t before = n_freed(client);
    int32_t refusal;

    int r = create(client, options, ret, &refusal, error);
    if (r < 0 && code_is_short(refusal) && block_drain(client, NULL) == 0 &&
        n_freed(client) > before)
        r = create(client, options, ret, &refusal, error);
    return r;
}

int
caid_array_create(struct caid_client *client, struct caid_array **ret,
                  const struct caid_create_options *options, struct caid_error *error)
{
    struct caid_create_options opts;
    struct caid_error why = {0};
    struct caid_array *array;

    int r = client_check_given(client, ret && options, ret ? "options" : "ret", error);
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_texts(&opts, error);
    if (r == 0)
        r = check_create(&opts, error);
    if (r < 0)
        return r;

    opts.host_only &= opts.memory && strcmp(opts.memory, "pinned") == 0;
    if (opts.memory && strcmp(opts.memory, "managed") == 0) {
        r = managed_create(client, &opts, &array, &why);
    } else if (opts.flags & CAID_ARRAY_ATTACH_HOST) {
        return fail(error, CAID_ERR_INVALID,
                    "CAID_ARRAY_ATTACH_HOST is for \"managed\" memory");
    } else {
        r = create_or_retry(client, &opts, &array, &why);
    }
    if (r == 0)
        *ret = array;
    else if (error)
        *error = why;
    return r;
}
