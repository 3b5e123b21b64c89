/* SPDX-License-Identifier: Apache-2.0 */
#include "part.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "drain.h"
#include "session/client.h"
#include "session/feature.h"

struct part {
    RB_ENTRY(part) of_ids, of_hooks;
    TAILQ_ENTRY(part) entry; /* in its list, after the daemon has reported it */
    uint64_t id;
    struct part_hook hook; /* released NULL: none, or forgotten */
    bool named; /* in the answer that is being read, or in one that ended the connection */
    bool reported;
    void (*gone)(void *userdata);
    void *userdata;
};

static int
cmp_id(const struct part *a, const struct part *b)
{
    return CMP(a->id, b->id);
}

static int
cmp_hook(const struct part *a, const struct part *b)
{
    uintptr_t x = (uintptr_t)a->hook.userdata, y = (uintptr_t)b->hook.userdata;
    return x != y ? CMP(x, y) : CMP(a->id, b->id);
}

RB_GENERATE_STATIC(part_ids, part, of_ids, cmp_id)
RB_GENERATE_STATIC(part_hooks, part, of_hooks, cmp_hook)

static struct part *
part_new(const struct part_hook *hook, void (*gone)(void *userdata), void *userdata)
{
    struct part *part = calloc(1, sizeof(*part));

    if (!part)
        return NULL;
    if (hook)
        part->hook = *hook;
    part->gone = gone;
    part->userdata = userdata;
    return part;
}

/* ---- the table ---- */

static struct part *
find_part(struct part_table *table, uint64_t id)
{
    struct part key = {.id = id};
    return RB_FIND(part_ids, &table->live, &key);
}

/* Adds the part under the id that the daemon gave it. The next call_flush() sends the request. */
static void
part_add(struct caid_client *client, struct part *part, uint64_t id)
{
    struct part_table *table = client->parts;

    part->id = table->last = id;
    RB_INSERT(part_ids, &table->live, part);
    if (part->hook.released)
        RB_INSERT(part_hooks, &table->hooked, part);
    call_queue(client, &table->request); /* nothing happens if it is under way */
}

static void
drop_hook(struct part_table *table, struct part *part)
{
    if (part->hook.released)
        RB_REMOVE(part_hooks, &table->hooked, part);
    part->hook.released = NULL;
}

/* The hook has run, or there is none: `gone` is next. */
static void
pass_on(struct part_table *table, struct part *part)
{
    if (part->gone)
        TAILQ_INSERT_TAIL(&table->gone, part, entry);
    else
        free(part);
}

/* ---- lists ---- */

int
part_list_add(struct part_list *list, const struct part_hook *hook,
              void (*gone)(void *userdata), void *userdata)
{
    struct part *part = part_new(hook, gone, userdata);

    if (!part)
        return -ENOMEM;
    TAILQ_INSERT_TAIL(list, part, entry);
    return 0;
}

int
part_list_take(struct caid_client *client, struct part_list *list, uint64_t first)
{
    struct part *part;

    while ((part = TAILQ_FIRST(list))) {
        if (first <= client->parts->last)
            return -EPROTO; /* ids grow, and do not wrap around */
        TAILQ_REMOVE(list, part, entry);
        part_add(client, part, first++);
    }
    return 0;
}

void
part_list_disown(struct part_list *list)
{
    struct part *part;

    TAILQ_FOREACH(part, list, entry) {
        part->hook.released = NULL;
        part->gone = NULL;
    }
}

void
part_list_free(struct part_list *list)
{
    struct part *part;

    while ((part = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, part, entry);
        free(part);
    }
}

/* ---- the request ---- */

/* Whether all ids are of living parts, and none comes twice. If not, the answer counts for nothing.
 * */
static bool
name_all(struct part_table *table, struct msg_u64s ids)
{
    for (uint32_t i = 0; i < ids.n; i++) {
        struct part *part = find_part(table, ids.v[i]);
        if (!part || part->named)
            return false;
        part->named = true;
    }
    return ids.n > 0; /* an empty answer would be asked for again for ever */
}

static void
part_report(struct caid_client *client, struct part *part)
{
    struct part_table *table = client->parts;

    RB_REMOVE(part_ids, &table->live, part);
    part->reported = true;
    if (part->hook.released)
        TAILQ_INSERT_TAIL(&table->reported, part, entry);
    else
        pass_on(table, part);
}

static bool
has_news(const struct caid_client *client)
{
    const struct part_table *table = client->parts;

    return !TAILQ_EMPTY(&table->reported) || !TAILQ_EMPTY(&table->gone) ||
           table->failed.code != 0;
}

static int
take_parts(struct caid_client *client, struct call *call UNUSED, const void *reply,
           struct call_fds *fds UNUSED)
{
    struct part_table *table = client->parts;
    const struct msg_parts_result *result = reply;

    if (!name_all(table, result->parts))
        return -EPROTO;
    for (uint32_t i = 0; i < result->parts.n; i++)
        part_report(client, find_part(table, result->parts.v[i]));
    if (has_news(client))
        client_raise_fd(client);
    return 0;
}

/* Where the daemon has refused, it is asked again when there is another part. */
static void
request_over(struct caid_client *client, struct call *request)
{
    struct part_table *table = client->parts;

    if (client->lost.code != 0)
        return;
    if (request->r < 0) {
        table->failed = request->error;
        client_raise_fd(client);
    } else if (!RB_EMPTY(&table->live)) {
        call_queue(client, request);
        call_flush(client); /* what the socket does not take goes with the next call */
    }
}

void
part_table_init(struct part_table *table)
{
    static const struct msg_none nothing;

    RB_INIT(&table->live);
    RB_INIT(&table->hooked);
    TAILQ_INIT(&table->reported);
    TAILQ_INIT(&table->running);
    TAILQ_INIT(&table->gone);
    pthread_cond_init(&table->idle, NULL);
    table->request = (struct call){.method = MSG_PARTS,
                                   .params = &nothing,
                                   .take = take_parts,
                                   .over = request_over};
}

/* ---- calling back ---- */

static void
run_hook(struct caid_client *client, struct part *part)
{
    struct part_table *table = client->parts;
    struct part_hook hook = part->hook;

    drop_hook(table, part);
    TAILQ_REMOVE(&table->reported, part, entry);
    TAILQ_INSERT_TAIL(&table->running, part, entry);
    pthread_mutex_unlock(&client->lock);
    hook.released(hook.userdata);
    pthread_mutex_lock(&client->lock);
    TAILQ_REMOVE(&table->running, part, entry);
    pthread_cond_broadcast(&table->idle);
    pass_on(table, part);
}

static void
run_hooks(struct caid_client *client)
{
    struct part *part;

    while ((part = TAILQ_FIRST(&client->parts->reported)))
        run_hook(client, part);
}

/* Calls back for the first part of the list, and frees it. */
static void
call_back(struct caid_client *client, struct part_list *list)
{
    struct part *part = TAILQ_FIRST(list);

    TAILQ_REMOVE(list, part, entry);
    pthread_mutex_unlock(&client->lock);
    if (part->gone)
        part->gone(part->userdata);
    free(part);
    pthread_mutex_lock(&client->lock);
}

/* Calls back only for the parts that have gone by now: a callback may publish further ones. */
static void
call_back_all(struct caid_client *client)
{
    struct part_list *gone = &client->parts->gone;
    const struct part *part;
    size_t n = 0;

    TAILQ_FOREACH(part, gone, entry)
        n++;
    while (n-- > 0 && !TAILQ_EMPTY(gone))
        call_back(client, gone);
}

/* The fd may have been lowered while parts went on to the next list. */
static void
raise_again(struct caid_client *client)
{
    if (has_news(client))
        client_raise_fd(client);
}

static int
deliver(struct caid_client *client, int r, struct caid_error *error)
{
    struct part_table *table = client->parts;

    run_hooks(client);
    call_back_all(client);
    if (r == 0 && table->failed.code != 0) {
        r = fail_again(error, &table->failed);
        table->failed.code = 0;
    }
    raise_again(client);
    return r;
}

void
part_poll(struct caid_client *client)
{
    struct part_table *table = client->parts;

    if (client_check(client, NULL) < 0)
        return;
    client_enter_anyway(client);
    if (!RB_EMPTY(&table->live))
        call_dispatch(client);
    if (!TAILQ_EMPTY(&table->reported)) {
        run_hooks(client);
        raise_again(client);
    }
    client_leave(client);
}

/* Other news are left to caid_client_dispatch(): the fd stays raised for them. It is not raised
 * anew, since that would wake a thread that waits for edges. */
int
caid_client_dispatch_parts(struct caid_client *client, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    call_dispatch(client);
    r = deliver(client, 0, error);
    if (!client_has_news(client))
        client_lower_fd(client);
    if (client->lost.code != 0)
        r = fail_again(error, &client->lost);
    client_leave(client);
    return r;
}

/* ---- ending ---- */

/* A part that waits for its hook goes on to its `gone`. */
static void
forget_hook(struct part_table *table, struct part *part)
{
    drop_hook(table, part);
    if (!part->reported)
        return;
    TAILQ_REMOVE(&table->reported, part, entry);
    pass_on(table, part);
}

/* A part whose hook has this userdata, or NULL. */
static struct part *
find_hook(struct part_table *table, const void *userdata)
{
    struct part key = {.hook.userdata = (void *)(uintptr_t)userdata};
    struct part *part = RB_NFIND(part_hooks, &table->hooked, &key);
    return part && part->hook.userdata == userdata ? part : NULL;
}

static bool
is_running(const struct part_table *table, const void *userdata)
{
    const struct part *part;

    TAILQ_FOREACH(part, &table->running, entry)
        if (part->hook.userdata == userdata)
            return true;
    return false;
}

void
part_forget(struct caid_client *client, const void *hook_userdata)
{
    struct part_table *table = client->parts;
    struct part *part;

    if (client_check(client, NULL) < 0)
        return;
    pthread_mutex_lock(&client->lock);
    while ((part = find_hook(table, hook_userdata)))
        forget_hook(table, part);
    while (is_running(table, hook_userdata))
        pthread_cond_wait(&table->idle, &client->lock);
    raise_again(client);
    pthread_mutex_unlock(&client->lock);
}

/* The daemon reports nothing any more, so only hooks that other threads run are waited for. */
void
part_close_all(struct caid_client *client)
{
    struct part_list left = TAILQ_HEAD_INITIALIZER(left);
    struct part_table *table = client->parts;
    struct part *part;

    run_hooks(client);
    while (!TAILQ_EMPTY(&table->running))
        pthread_cond_wait(&table->idle, &client->lock);
    TAILQ_CONCAT(&left, &table->gone, entry);
    while ((part = RB_MIN(part_ids, &table->live))) {
        RB_REMOVE(part_ids, &table->live, part);
        drop_hook(table, part);
        TAILQ_INSERT_TAIL(&left, part, entry);
    }
    while (!TAILQ_EMPTY(&left))
        call_back(client, &left);
}

/* Frees all parts, and calls nobody back. */
static void
parts_abandon(struct caid_client *client)
{
    struct part_table *table = client->parts;
    struct part *part;

    while ((part = RB_MIN(part_ids, &table->live))) {
        RB_REMOVE(part_ids, &table->live, part);
        free(part);
    }
    part_list_free(&table->reported);
    part_list_free(&table->running);
    part_list_free(&table->gone);
}

static void
parts_inventory(struct caid_client *client, struct inventory *inventory)
{
    struct part *part;

    RB_FOREACH(part, part_ids, &client->parts->live)
        inventory_add(inventory, INVENTORY_PART, part->id);
}

const struct feature part_feature = {
    .take_inventory = parts_inventory,
    .has_news = has_news,
    .deliver = deliver,
    .abandon = parts_abandon,
};

/* ---- publishing ---- */

struct publishing {
    struct call call;
    struct part *part; /* the table's after the reply */
    uint64_t generation;
    bool sent; /* by a ticket, without a name */
};

static int
take_publish_part(struct caid_client *client, struct call *call, const void *reply,
                  struct call_fds *fds UNUSED)
{
    struct publishing *publishing = container_of(call, struct publishing, call);
    const struct msg_publish_part_result *result = reply;
    struct part *part = publishing->part;

    if ((result->generation == 0) != publishing->sent || result->part <= client->parts->last)
        return -EPROTO; /* ids grow: that one, or a higher one, has been used */
    if (call->left && part->hook.released)
        RB_REMOVE(part_hooks, &client->parts->hooked, part);
    part_add(client, part, result->part);
    publishing->part = NULL;
    publishing->generation = result->generation;
    return 0;
}

/* The call was left. */
static void
publish_over(struct caid_client *client, struct call *call)
{
    struct publishing *publishing = container_of(call, struct publishing, call);
    struct part *part = publishing->part;
    bool refused = call->r < 0 && client->lost.code == 0;

    free(publishing);
    if (part && part->hook.released && refused) {
        part->reported = true;
        TAILQ_INSERT_TAIL(&client->parts->reported, part, entry);
    } else if (part) {
        drop_hook(client->parts, part);
        free(part);
    }
}

/* The program is not called back. But the daemon may report the part, so the hook is called when
 * nobody can reach the part, or when there is none. Until the reply comes, the hook can be
 * forgotten: the part is in the table of hooks under an id that no part gets. */
static void
publishing_leave(struct caid_client *client, struct publishing *publishing)
{
    struct part *part = publishing->part;

    part->gone = NULL;
    part->id = UINT64_MAX - publishing->call.seq;
    if (part->hook.released)
        RB_INSERT(part_hooks, &client->parts->hooked, part);
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
    int r = !o->ret_ticket ? check_name(name, error)
            : name         ? fail(error, CAID_ERR_INVALID, "a part that is sent has no name")
                           : 0;
    if (r == 0)
        r = check_type(o->typestr, o->descr, o->metadata, error);
    return r < 0 ? r : check_shape(o->ndim, o->shape, error);
}

static void
fill_params(struct msg_publish_part_params *ret, const struct caid_array *array,
            uint64_t offset, const char *name, const struct caid_part_options *o)
{
    static const int64_t none; /* an empty list is not NULL */

    *ret = (struct msg_publish_part_params){
        .lease = array->lease,
        .offset = offset,
        .name = msg_str_opt(name),
        .typestr = MSG_STR(o->typestr),
        .shape = {o->ndim ? o->shape : &none, o->ndim},
        .strides = {o->strides, o->strides ? o->ndim : 0},
        .descr = msg_str_opt(o->descr),
        .metadata = msg_str_opt(o->metadata),
        .many = o->many,
        .own = o->own,
    };
}

/* Whether the daemon has the request, and has not refused it. call->error has the daemon's refusal
 * or the end of the connection, not a failure to send. */
static bool
is_unknown(const struct call *call)
{
    int32_t code = call->error.code;

    return call->left || code == CAID_ERR_DISCONNECTED || code == CAID_ERR_PROTOCOL ||
           code == CAID_ERR_KICKED || code == CAID_ERR_CLOSED;
}

static void
publishing_free(struct publishing *publishing)
{
    free(publishing->part);
    free(publishing);
}

/* Takes over the publishing. The client is entered. */
static int
part_publish_run(struct caid_client *client, struct publishing *publishing,
                 uint64_t *ret_generation, bool *ret_unknown, struct caid_error *error)
{
    struct call *call = &publishing->call;

    int r = call_run(client, call, error);
    *ret_unknown = r < 0 && is_unknown(call);
    if (r == 0 && ret_generation)
        *ret_generation = publishing->generation;
    if (r == 0)
        call_flush(client); /* what the socket does not take goes with the next call */
    else if (call->error.code == CAID_ERR_UNKNOWN_METHOD)
        fail(error, CAID_ERR_UNKNOWN_METHOD,
             "%s: the daemon is too old to publish a part of an array", client->socket);
    if (call->left)
        publishing_leave(client, publishing);
    else
        publishing_free(publishing);
    return r;
}

static struct publishing *
publishing_new(const struct msg_publish_part_params *params,
               const struct caid_part_options *options, const struct part_hook *hook)
{
    struct publishing *publishing = call_new(sizeof(*publishing), MSG_PUBLISH_PART, params);

    if (!publishing)
        return NULL;
    publishing->call.take = take_publish_part;
    publishing->call.over = publish_over;
    publishing->sent = options->ret_ticket;
    publishing->part = part_new(hook, options->gone, options->userdata);
    if (publishing->part)
        return publishing;
    publishing_free(publishing);
    return NULL;
}

int
part_publish(struct caid_array *array, uint64_t offset, const char *name,
             const struct caid_part_options *options, const struct part_hook *hook,
             uint64_t *ret_generation, bool *ret_unknown, struct caid_error *error)
{
    struct caid_client *client = array->client;
    struct msg_publish_part_params params;
    uint64_t ticket[TICKET_WORDS];
    bool unknown;

    if (!ret_unknown)
        ret_unknown = &unknown;
    *ret_unknown = false;
    int r = client_check(client, error);
    if (r == 0)
        r = check_array(array, error);
    if (r == 0)
        r = check_part(name, options, error);
    if (r == 0)
        r = drain_writes(array, options->stream, error);
    if (r < 0)
        return r;
    fill_params(&params, array, offset, name, options);
    r = options->ret_ticket ? ticket_draw(ticket, error) : 0;
    if (r < 0)
        return r;
    if (options->ret_ticket)
        params.ticket = (struct msg_u64s){ticket, TICKET_WORDS};
    struct publishing *publishing = publishing_new(&params, options, hook);
    if (!publishing)
        return fail_errno(error, ENOMEM, "no memory for a part");
    r = client_enter(client, error);
    if (r < 0) {
        publishing_free(publishing);
        return r;
    }
    r = part_publish_run(client, publishing, ret_generation, ret_unknown, error);
    client_leave(client);
    if (r == 0 && options->ret_ticket)
        memcpy(options->ret_ticket, ticket, CAID_TICKET_SIZE);
    return r;
}

int
caid_array_publish_part(struct caid_array *array, uint64_t offset, const char *name,
                        const struct caid_part_options *options, uint64_t *ret_generation,
                        struct caid_error *error)
{
    struct caid_part_options opts;

    int r = CHECK_CLIENT_OF(array, error);
    if (r == 0 && !options)
        r = fail(error, CAID_ERR_INVALID, "options is NULL: a part has a typestr");
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    return r < 0 ? r
                 : part_publish(array, offset, name, &opts, NULL, ret_generation, NULL, error);
}
