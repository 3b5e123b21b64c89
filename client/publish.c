/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_publish(). */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "client.h"
#include "drain.h"

struct publishing {
    struct call call;
    struct msg_publish_params params;
    uint64_t generation;
};

static int
take_publish(struct caid_client *client, struct call *call, struct msg *reply,
             struct call_fds *fds)
{
    struct publishing *publishing = container_of(call, struct publishing, call);
    struct msg_publish_result result;

    (void)client;
    (void)fds;
    int r = msg_decode_result(reply, MSG_PUBLISH, &result);
    if (r < 0)
        return -EPROTO; /* what became of the name is not known */
    if (result.generation == 0)
        return -EPROTO;
    publishing->generation = result.generation;
    return 0;
}

static int
check_publish(const struct caid_array *array, const char *name, const char *metadata,
              struct caid_error *error)
{
    int r = check_name(name, error);
    if (r == 0)
        r = check_metadata(metadata, error);
    if (r == 0 && array->managed)
        r = fail(error, CAID_ERR_UNSUPPORTED,
                 "managed memory is of this process alone: it cannot be published");
    return r;
}

/* Room for both strings, made before the daemon is asked: afterwards nothing may fail. */
static struct array_text *
text_new(const char *name, const char *metadata)
{
    size_t n_name = strlen(name) + 1, n_metadata = metadata ? strlen(metadata) + 1 : 0;
    struct array_text *text = malloc(sizeof(*text) + n_name + n_metadata);

    if (!text)
        return NULL;
    text->next = NULL;
    memcpy(text->text, name, n_name);
    if (metadata)
        memcpy(text->text + n_name, metadata, n_metadata);
    return text;
}

static void
apply(struct caid_array *array, struct array_text *text, bool has_metadata, uint64_t generation)
{
    text->next = array->texts;
    array->texts = text;
    array->info.name = text->text;
    array->info.generation = generation;
    if (has_metadata)
        array->info.metadata = text->text + strlen(text->text) + 1;
}

int
caid_array_publish(struct caid_array *array, const char *name,
                   const struct caid_publish_options *options, uint64_t *ret_generation,
                   struct caid_error *error)
{
    struct caid_publish_options opts;

    if (!array)
        return fail(error, CAID_ERR_INVALID, "array is NULL");
    struct caid_client *client = array->client;
    int r = client_check(client, error);
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_publish(array, name, opts.metadata, error);
    if (r == 0)
        r = drain_writes(array, opts.stream, error);
    if (r < 0)
        return r;
    _cleanup_free_ struct array_text *text = text_new(name, opts.metadata);
    if (!text)
        return fail_errno(error, ENOMEM, "no memory for a name");

    struct publishing publishing = {
        .params = {.lease = array->lease,
                   .name = MSG_STR(name),
                   .metadata = msg_str_opt(opts.metadata)},
        .call = {.method = MSG_PUBLISH, .take = take_publish},
    };
    publishing.call.params = &publishing.params;
    r = client_enter(client, error);
    if (r < 0)
        return r;
    r = call_run(client, &publishing.call, error);
    if (r == 0)
        apply(array, TAKE_PTR(text), opts.metadata, publishing.generation);
    client_leave(client);
    if (r == 0 && ret_generation)
        *ret_generation = publishing.generation;
    return r;
}
