/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_publish() and caid_array_send(). */
#include "publish.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "drain.h"
#include "session/client.h"
#include "session/text.h"

struct publishing {
    struct call call;
    struct caid_array *array;
    struct array_text **text; /* the array's after the reply */
    uint64_t *ret_generation; /* or NULL */
};

/* Another thread that reads the info sees all of the change or nothing. */
void
publish_apply(struct caid_array *array, struct array_text *text, uint64_t generation)
{
    const char *name = text->info.name, *metadata = text->info.metadata;

    text->info = *array->current;
    text->info.name = name;
    text->info.generation = generation;
    if (metadata)
        text->info.metadata = metadata;
    text->next = array->texts;
    array->texts = text;
    atomic_store_explicit(&array->current, &text->info, memory_order_release);
}

/* Applies the change in the order in which the daemon did. Not if the call was left: its caller may
 * have closed the array. */
static int
take_publish(struct caid_client *client UNUSED, struct call *call, const void *reply,
             struct call_fds *fds UNUSED)
{
    struct publishing *publishing = container_of(call, struct publishing, call);
    const struct msg_publish_result *result = reply;

    if (result->generation == 0)
        return -EPROTO; /* a published name has a generation */
    if (call->left)
        return 0;
    if (publishing->ret_generation)
        *publishing->ret_generation = result->generation;
    publish_apply(publishing->array, TAKE_PTR(*publishing->text), result->generation);
    return 0;
}

int
publish_check(const struct caid_array *array, const char *name,
              const struct caid_publish_options *options, struct caid_publish_options *o,
              struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(array, error);
    if (r == 0)
        r = options_read(o, sizeof(*o), options, error);
    if (r == 0)
        r = check_name(name, error);
    if (r == 0)
        r = check_metadata(o->metadata, error);
    if (r == 0 && o->flags & ~(uint32_t)(CAID_PUBLISH_NEW | CAID_PUBLISH_DROPPABLE))
        r = fail(error, CAID_ERR_INVALID, "unknown flags %#x", o->flags);
    if (r == 0 && o->companion && o->companion->client != array->client)
        r = fail(error, CAID_ERR_INVALID, "the companion is another client's");
    if (r == 0 && array->managed)
        r = fail(error, CAID_ERR_UNSUPPORTED,
                 "managed memory is of this process alone: it cannot be published");
    return r;
}

/* Room for both strings. It is made before the daemon is asked, since nothing may fail after that.
 * */
struct array_text *
publish_text_new(const struct msg_publish_params *params)
{
    struct array_text *text = malloc(sizeof(*text) + params->name.n + params->metadata.n + 2);

    if (!text)
        return NULL;
    char *end = text->text;
    text->info.name = text_put(&end, params->name);
    text->info.metadata = text_put(&end, params->metadata);
    return text;
}

struct msg_publish_params
publish_params(const struct caid_array *array, const char *name,
               const struct caid_publish_options *o)
{
    return (struct msg_publish_params){
        .lease = array->lease,
        .name = MSG_STR(name),
        .metadata = msg_str_opt(o->metadata),
        .companion = o->companion ? o->companion->lease : 0,
        .new = (o->flags & CAID_PUBLISH_NEW) != 0,
        .ttl_ns = o->ttl_ns,
        .droppable = (o->flags & CAID_PUBLISH_DROPPABLE) != 0,
        .priority = o->priority,
        .reload_ns = o->reload_ns,
        .after = o->after,
    };
}

static int
array_publish_run(struct caid_array *array, const struct msg_publish_params *params,
                  uint64_t *ret_generation, struct caid_error *error)
{
    _cleanup_free_ struct array_text *text = publish_text_new(params);
    struct publishing *publishing = call_new(sizeof(*publishing), MSG_PUBLISH, params);

    if (!text || !publishing) {
        free(publishing);
        return fail_errno(error, ENOMEM, "no memory for a name");
    }
    publishing->call.take = take_publish;
    publishing->array = array;
    publishing->text = &text;
    publishing->ret_generation = ret_generation;
    return call_make(array->client, &publishing->call, error);
}

int
caid_array_publish(struct caid_array *array, const char *name,
                   const struct caid_publish_options *options, uint64_t *ret_generation,
                   struct caid_error *error)
{
    struct caid_publish_options opts;

    int r = publish_check(array, name, options, &opts, error);
    if (r == 0)
        r = drain_writes(array, opts.stream, error);
    if (r == 0 && opts.companion)
        r = drain_writes(opts.companion, opts.stream, error);
    if (r < 0)
        return r;
    const struct msg_publish_params params = publish_params(array, name, &opts);
    return array_publish_run(array, &params, ret_generation, error);
}

int
ticket_draw(uint64_t words[TICKET_WORDS], struct caid_error *error)
{
    return getrandom(words, CAID_TICKET_SIZE, 0) == CAID_TICKET_SIZE
               ? 0
               : fail_errno(error, errno, "no random bytes");
}

static int
array_send(struct caid_array *array, bool many, uint8_t ret_ticket[CAID_TICKET_SIZE],
           struct caid_error *error)
{
    uint64_t words[TICKET_WORDS];

    int r = CHECK_GIVEN_OF(array, ret_ticket, error);
    if (r == 0 && array->managed)
        r = fail(error, CAID_ERR_UNSUPPORTED,
                 "managed memory is of this process alone: it cannot be sent");
    if (r == 0)
        r = ticket_draw(words, error);
    if (r < 0)
        return r;
    struct msg_send_params params = {.lease = array->lease,
                                     .ticket = {.v = words, .n = ARRAY_SIZE(words)},
                                     .many = many};
    r = call_ask(array->client, MSG_SEND, &params, error);
    if (r == 0)
        memcpy(ret_ticket, words, sizeof(words));
    return r;
}

int
caid_array_send(struct caid_array *array, uint8_t ret_ticket[CAID_TICKET_SIZE],
                struct caid_error *error)
{
    return array_send(array, false, ret_ticket, error);
}

int
caid_array_refer(struct caid_array *array, uint8_t ret_ticket[CAID_TICKET_SIZE],
                 struct caid_error *error)
{
    return array_send(array, true, ret_ticket, error);
}
