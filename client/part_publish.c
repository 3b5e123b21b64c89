/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_publish_part(). */
#include <errno.h>

#include "array.h"
#include "client.h"
#include "drain.h"
#include "part.h"

struct publishing {
    struct call call;
    struct msg_publish_part_params params;
    struct part *part; /* taken with the reply */
    uint64_t generation;
};

/* Also one that cannot be read for want of memory ends the connection: the part is there, and
 * nobody knows its id. */
static int
take_publish_part(struct caid_client *client, struct call *call, struct msg *reply,
                  struct call_fds *fds)
{
    struct publishing *publishing = container_of(call, struct publishing, call);
    struct msg_publish_part_result result;

    (void)fds;
    int r = msg_decode_result(reply, MSG_PUBLISH_PART, &result);
    if (r == -ENOMEM)
        client_lose(client, CAID_ERR_DISCONNECTED, "%s: no memory for a reply", client->socket);
    if (r < 0 || result.generation == 0 || part_add(client, publishing->part, result.part) < 0)
        return -EPROTO;
    publishing->part = NULL;
    publishing->generation = result.generation;
    return 0;
}

static int
check_array(const struct caid_array *array, struct caid_error *error)
{
    if (array->managed)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "managed memory is of this process alone: no part of it can be published");
    if (array->info.readonly)
        return fail(
            error, CAID_ERR_READ_ONLY,
            "array \"%s\" is open with mode \"r\": who publishes a part of it writes it",
            array->info.name ? array->info.name : "");
    return 0;
}

static int
check_part(const char *name, const struct caid_part_options *o, struct caid_error *error)
{
    int r = check_name(name, error);

    if (r == 0)
        r = check_text("typestr", o->typestr, true, error);
    if (r == 0)
        r = check_text("descr", o->descr, false, error);
    if (r == 0)
        r = check_metadata(o->metadata, error);
    if (r < 0)
        return r;
    if (o->ndim > PROTO_NDIM_MAX)
        return fail(error, CAID_ERR_INVALID, "ndim %u: at most %d", o->ndim, PROTO_NDIM_MAX);
    if (o->ndim > 0 && !o->shape)
        return fail(error, CAID_ERR_INVALID, "shape is NULL, ndim is %u", o->ndim);
    return 0;
}

static void
fill_params(struct msg_publish_part_params *ret, const struct caid_array *array,
            uint64_t offset, const char *name, const struct caid_part_options *o)
{
    static const int64_t none; /* a list of no elements is there, and not NULL */

    *ret = (struct msg_publish_part_params){
        .lease = array->lease,
        .offset = offset,
        .name = MSG_STR(name),
        .typestr = MSG_STR(o->typestr),
        .shape = {o->ndim ? o->shape : &none, o->ndim},
        .strides = {o->strides, o->strides ? o->ndim : 0},
        .descr = msg_str_opt(o->descr),
        .metadata = msg_str_opt(o->metadata),
    };
}

static int
ask(struct caid_client *client, struct publishing *publishing, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = call_run(client, &publishing->call, error);
    if (r == 0)
        part_flush(client); /* else it goes with the next call */
    else if (publishing->call.error.code == CAID_ERR_UNKNOWN_METHOD)
        fail(error, CAID_ERR_UNKNOWN_METHOD,
             "%s: the daemon is too old to publish a part of an array", client->socket);
    client_leave(client);
    return r;
}

/* Whether the daemon has been asked, and has not said no. What kept the request from being sent is not
 * in call->error; a lost connection's codes are no answers. */
static bool
is_unknown(const struct call *call)
{
    int32_t code = call->error.code;

    return code == CAID_ERR_DISCONNECTED || code == CAID_ERR_PROTOCOL ||
           code == CAID_ERR_CLOSED;
}

int
part_publish(struct caid_array *array, uint64_t offset, const char *name,
             const struct caid_part_options *options, const struct part_hook *hook,
             uint64_t *ret_generation, bool *ret_unknown, struct caid_error *error)
{
    bool unknown;

    if (!ret_unknown)
        ret_unknown = &unknown;
    *ret_unknown = false;
    int r = client_check(array->client, error);
    if (r == 0)
        r = check_array(array, error);
    if (r == 0)
        r = check_part(name, options, error);
    if (r == 0)
        r = drain_writes(array, options->stream, error);
    if (r < 0)
        return r;
    struct publishing publishing = {
        .call = {.method = MSG_PUBLISH_PART, .take = take_publish_part},
        .part = part_new(options, hook),
    };
    if (!publishing.part)
        return fail_errno(error, ENOMEM, "no memory for a part");
    publishing.call.params = &publishing.params;
    fill_params(&publishing.params, array, offset, name, options);
    r = ask(array->client, &publishing, error);
    part_free(publishing.part);
    *ret_unknown = r < 0 && is_unknown(&publishing.call);
    if (r == 0 && ret_generation)
        *ret_generation = publishing.generation;
    return r;
}

int
caid_array_publish_part(struct caid_array *array, uint64_t offset, const char *name,
                        const struct caid_part_options *options, uint64_t *ret_generation,
                        struct caid_error *error)
{
    struct caid_part_options opts;

    if (!array)
        return fail(error, CAID_ERR_INVALID, "array is NULL");
    if (!options)
        return fail(error, CAID_ERR_INVALID, "options is NULL: a part has a typestr");
    int r = client_check(array->client, error);
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    return r < 0 ? r
                 : part_publish(array, offset, name, &opts, NULL, ret_generation, NULL, error);
}
