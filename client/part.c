/* SPDX-License-Identifier: Apache-2.0 */
#include "part.h"

#include <errno.h>

#include "client.h"

struct part {
    RB_ENTRY(part) of_ids, of_hooks;
    TAILQ_ENTRY(part) entry; /* of the list that it is in, once it has been told */
    uint64_t id;
    struct part_hook hook; /* released NULL: none, or forgotten */
    bool named; /* by the answer that is being read, or by one that ended the connection */
    bool told;
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

struct part *
part_new(const struct caid_part_options *options, const struct part_hook *hook)
{
    struct part *part = calloc(1, sizeof(*part));

    if (!part)
        return NULL;
    if (hook)
        part->hook = *hook;
    part->gone = options->gone;
    part->userdata = options->userdata;
    return part;
}

void
part_free(struct part *part)
{
    free(part);
}

/* ---- the table ---- */

static struct part *
find_part(struct part_table *table, uint64_t id)
{
    struct part key = {.id = id};
    return RB_FIND(part_ids, &table->live, &key);
}

int
part_add(struct caid_client *client, struct part *part, uint64_t id)
{
    struct part_table *table = &client->parts;

    if (id <= table->last)
        return -EPROTO;
    part->id = table->last = id;
    RB_INSERT(part_ids, &table->live, part);
    if (part->hook.released)
        RB_INSERT(part_hooks, &table->hooked, part);
    if (!table->standing)
        table->unsent = true;
    return 0;
}

static void
drop_hook(struct part_table *table, struct part *part)
{
    if (part->hook.released)
        RB_REMOVE(part_hooks, &table->hooked, part);
    part->hook.released = NULL;
}

/* Its hook has run, or there is none. */
static void
pass_on(struct part_table *table, struct part *part)
{
    if (part->gone)
        TAILQ_INSERT_TAIL(&table->gone, part, entry);
    else
        part_free(part);
}

/* ---- the request ---- */

/* Whether each is one that may be told, and is told once. Else nothing is. */
static bool
name_all(struct part_table *table, struct msg_u64s ids)
{
    for (uint32_t i = 0; i < ids.n; i++) {
        struct part *part = find_part(table, ids.v[i]);
        if (!part || part->named)
            return false;
        part->named = true;
    }
    return ids.n > 0; /* no news: asking again would go on for ever */
}

static void
tell(struct caid_client *client, struct part *part)
{
    struct part_table *table = &client->parts;

    RB_REMOVE(part_ids, &table->live, part);
    part->told = true;
    if (part->hook.released)
        TAILQ_INSERT_TAIL(&table->told, part, entry);
    else
        pass_on(table, part);
}

static int
take_parts(struct caid_client *client, struct call *call, struct msg *reply,
           struct call_fds *fds)
{
    struct part_table *table = &client->parts;
    struct msg_parts_result result;

    (void)call;
    (void)fds;
    int r = msg_decode_result(reply, MSG_PARTS, &result);
    if (r == -ENOMEM) { /* what it tells is told once */
        client_lose(client, CAID_ERR_DISCONNECTED, "%s: no memory for a reply", client->socket);
        return r;
    }
    if (r < 0 || !name_all(table, result.parts))
        return -EPROTO;
    for (uint32_t i = 0; i < result.parts.n; i++)
        tell(client, find_part(table, result.parts.v[i]));
    if (part_has_news(client))
        client_raise_fd(client);
    return 0;
}

/* A daemon that refuses to tell is asked again when there is another part. */
static void
parts_end(struct caid_client *client, struct call *call)
{
    struct part_table *table = &client->parts;

    table->standing = false;
    if (client->lost.code != 0)
        return;
    if (call->r < 0) {
        table->failed = call->error;
        client_raise_fd(client);
        return;
    }
    table->unsent = !RB_EMPTY(&table->live);
    part_flush(client); /* else it goes with the next call */
}

int
part_flush(struct caid_client *client)
{
    struct part_table *table = &client->parts;

    if (!table->unsent || client->lost.code != 0)
        return 0;
    table->call.error.code = 0;
    int r = call_post(client, &table->call, &table->call.error);
    if (client->lost.code != 0 || r == -ENOMEM)
        return r;
    if (r > 0)
        return -EAGAIN;
    table->unsent = false;
    if (r == 0)
        table->standing = true;
    else
        table->failed = table->call.error;
    return 0;
}

bool
part_has_unsent(const struct caid_client *client)
{
    return client->parts.unsent;
}

bool
part_has_news(const struct caid_client *client)
{
    const struct part_table *table = &client->parts;

    return !TAILQ_EMPTY(&table->told) || !TAILQ_EMPTY(&table->gone) || table->failed.code != 0;
}

void
part_table_init(struct part_table *table)
{
    static const struct msg_none nothing;

    RB_INIT(&table->live);
    RB_INIT(&table->hooked);
    TAILQ_INIT(&table->told);
    TAILQ_INIT(&table->running);
    TAILQ_INIT(&table->gone);
    pthread_cond_init(&table->idle, NULL);
    table->call = (struct call){.method = MSG_PARTS,
                                .params = &nothing,
                                .take = take_parts,
                                .end = parts_end};
}

/* ---- telling ---- */

static void
run_hook(struct caid_client *client, struct part *part)
{
    struct part_table *table = &client->parts;
    struct part_hook hook = part->hook;

    drop_hook(table, part);
    TAILQ_REMOVE(&table->told, part, entry);
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

    while ((part = TAILQ_FIRST(&client->parts.told)))
        run_hook(client, part);
}

/* Calls back for the first of the list, and frees it. */
static void
call_back(struct caid_client *client, struct part_list *list)
{
    struct part *part = TAILQ_FIRST(list);

    TAILQ_REMOVE(list, part, entry);
    pthread_mutex_unlock(&client->lock);
    if (part->gone)
        part->gone(part->userdata);
    part_free(part);
    pthread_mutex_lock(&client->lock);
}

/* No more than have gone by now: a callback may publish the next one. */
static void
call_back_all(struct caid_client *client)
{
    struct part_list *gone = &client->parts.gone;
    const struct part *part;
    size_t n = 0;

    TAILQ_FOREACH(part, gone, entry)
    n++;
    while (n-- > 0 && !TAILQ_EMPTY(gone))
        call_back(client, gone);
}

/* The fd may have been lowered for what has gone on to the next list since. */
static void
raise_again(struct caid_client *client)
{
    if (part_has_news(client))
        client_raise_fd(client);
}

int
part_deliver(struct caid_client *client, int r, struct caid_error *error)
{
    struct part_table *table = &client->parts;

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
    struct part_table *table = &client->parts;

    if (client_check(client, NULL) < 0)
        return;
    client_enter_anyway(client);
    if (!RB_EMPTY(&table->live))
        call_dispatch(client);
    if (!TAILQ_EMPTY(&table->told)) {
        run_hooks(client);
        raise_again(client);
    }
    client_leave(client);
}

/* ---- ending ---- */

/* One that waits for its hook goes on to what comes after that. */
static void
forget_hook(struct part_table *table, struct part *part)
{
    drop_hook(table, part);
    if (!part->told)
        return;
    TAILQ_REMOVE(&table->told, part, entry);
    pass_on(table, part);
}

/* The next one with this userdata that is not before the given one, or NULL. */
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
    struct part_table *table = &client->parts;
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

/* Nothing is told any more, so only hooks that other threads run are left to wait for. */
void
part_close_all(struct caid_client *client)
{
    struct part_list left = TAILQ_HEAD_INITIALIZER(left);
    struct part_table *table = &client->parts;
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

static void
free_list(struct part_list *list)
{
    struct part *part;

    while ((part = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, part, entry);
        part_free(part);
    }
}

void
part_table_deinit(struct part_table *table)
{
    struct part *part;

    while ((part = RB_MIN(part_ids, &table->live))) {
        RB_REMOVE(part_ids, &table->live, part);
        part_free(part);
    }
    free_list(&table->told);
    free_list(&table->running);
    free_list(&table->gone);
}
