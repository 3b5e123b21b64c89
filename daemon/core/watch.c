/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <assert.h>

#include "array.h"
#include "set.h"
#include "state.h"

static int
watch_compare(const struct watch *a, const struct watch *b)
{
    if (a->pool != b->pool)
        return strcmp(a->pool->name, b->pool->name);
    if (a->method != b->method)
        return CMP(a->method, b->method);
    int c = memcmp(a->name, b->name, a->n_name < b->n_name ? a->n_name : b->n_name);
    if (c)
        return c;
    if (a->n_name != b->n_name)
        return CMP(a->n_name, b->n_name);
    if (a->conn->id != b->conn->id)
        return CMP(a->conn->id, b->conn->id);
    return CMP(a->request, b->request);
}

RB_GENERATE(watches, watch, node, watch_compare)
RB_GENERATE_BY(watches_of_conn, watch, of_conn, request)

static void
watch_answer(struct core *core, struct conn *conn, uint32_t request, uint64_t generation)
{
    send_result(core, conn, request, MSG_WATCH,
                &(struct msg_watch_result){.generation = generation}, NULL, 0);
}

static void
changes_answer(struct core *core, struct conn *conn, uint32_t request)
{
    send_result(core, conn, request, MSG_CHANGES, &(struct msg_none){}, NULL, 0);
}

static struct watch *
watch_alloc(struct conn *conn, uint32_t request, enum msg_method method, struct pool *pool,
            struct msg_str name)
{
    struct watch *watch = calloc(1, sizeof(*watch) + name.n);

    if (!watch)
        return NULL;
    watch->conn = conn;
    watch->pool = pool;
    watch->request = request;
    watch->method = method;
    watch->n_name = (uint8_t)name.n;
    memcpy(watch->name, name.p, name.n);
    return watch;
}

static int
watch_add(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
          struct pool *pool, struct msg_str name, struct refusal *r)
{
    struct watch *watch;

    assert(name.n <= PROTO_NAME_MAX);
    if (watch_find(conn, request))
        return refuse(r, PROTO_ERR_INVALID, "request %u is a watch already", request);
    watch = watch_alloc(conn, request, method, pool, name);
    if (!watch)
        return -ENOMEM;
    if (charge_init(&watch->charge, conn->user, RES_WATCHES, 1, 0, r)) {
        free(watch);
        return REFUSED;
    }
    pool->n_watches++;
    core->n_watches++;
    RB_INSERT(watches, &core->watches, watch);
    RB_INSERT(watches_of_conn, &conn->watches, watch);
    return 0;
}

int
watch_new(struct core *core, struct conn *conn, uint32_t request, struct pool *pool,
          struct msg_str name, uint64_t seen, struct refusal *r)
{
    struct named named = named_find(pool, name);
    uint64_t generation = named_generation(&named);

    if (generation == seen)
        return watch_add(core, conn, request, MSG_WATCH, pool, name, r);
    watch_answer(core, conn, request, generation);
    return 0;
}

int
watch_new_prefix(struct core *core, struct conn *conn, uint32_t request, struct pool *pool,
                 const struct msg_changes_params *params, struct refusal *r)
{
    if (params->again)
        return watch_add(core, conn, request, MSG_CHANGES, pool, params->prefix, r);
    changes_answer(core, conn, request);
    return 0;
}

struct watch *
watch_find(struct conn *conn, uint32_t request)
{
    struct watch key = {.request = request};

    return RB_FIND(watches_of_conn, &conn->watches, &key);
}

void
watch_free(struct core *core, struct watch *watch)
{
    if (watch->is_due)
        TAILQ_REMOVE(&watch->conn->user->due, watch, of_user);
    else
        RB_REMOVE(watches, &core->watches, watch);
    RB_REMOVE(watches_of_conn, &watch->conn->watches, watch);
    charge_deinit(&watch->charge);
    watch->pool->n_watches--;
    pool_touch(watch->pool); /* its user may go; the watcher's has the connection */
    core->n_watches--;
    free(watch);
}

void
watch_cancel(struct core *core, struct watch *watch)
{
    struct refusal r;

    refusal_fill(&r, PROTO_ERR_CANCELLED, "the watch was cancelled");
    send_refusal(core, watch->conn, watch->request, watch->method, &r);
    watch_free(core, watch);
}

void
watch_end(struct core *core, struct watch *watch)
{
    struct refusal r;

    if (watch->is_over) {
        refusal_fill(&r, PROTO_ERR_NOT_FOUND, "no pool \"%s\" any more", watch->pool->name);
        send_refusal(core, watch->conn, watch->request, watch->method, &r);
    } else if (watch->method == MSG_CHANGES) {
        changes_answer(core, watch->conn, watch->request);
    } else {
        watch_answer(core, watch->conn, watch->request, watch->generation);
    }
    watch_free(core, watch);
}

/* Queues the answer: it is sent in its user's turn. */
static void
watch_wake(struct core *core, struct watch *watch)
{
    struct user *user = watch->conn->user;

    RB_REMOVE(watches, &core->watches, watch);
    watch->is_due = true;
    TAILQ_INSERT_TAIL(&user->due, watch, of_user);
    user_wake(user);
}

/* The first watch by that method of that name, or of a name after it. */
static struct watch *
watch_first(struct core *core, struct pool *pool, enum msg_method method, struct msg_str name)
{
    struct conn nobody = {.id = 0};

    union {
        struct watch watch;
        char room[sizeof(struct watch) + PROTO_NAME_MAX];
    } key = {
        .watch = {.conn = &nobody, .pool = pool, .method = method, .n_name = (uint8_t)name.n}};

    memcpy(key.room + offsetof(struct watch, name), name.p, name.n);
    return RB_NFIND(watches, &core->watches, &key.watch);
}

/* Whether the watched name is this one or begins with it. */
static bool
is_under(const struct watch *watch, const struct pool *pool, enum msg_method method,
         struct msg_str name)
{
    return watch && watch->pool == pool && watch->method == method && watch->n_name >= name.n &&
           memcmp(watch->name, name.p, name.n) == 0;
}

/* Whether the array has the name (key empty), or is a set with that key. */
static bool
has_key(const struct array *array, struct msg_str key)
{
    return array && (key.n == 0 || set_get(array, key));
}

static void
notify_names(struct core *core, struct pool *pool, struct msg_str name, const struct array *old,
             const struct array *new, bool is_sets)
{
    struct watch *watch = watch_first(core, pool, MSG_WATCH, name), *next;

    for (; is_under(watch, pool, MSG_WATCH, name); watch = next) {
        struct msg_str key = {watch->name + name.n, watch->n_name - name.n};
        next = RB_NEXT(watches, &core->watches, watch);
        if (key.n && !is_sets)
            break; /* watches of the name itself come first */
        if (key.n && !has_key(old, key) && !has_key(new, key))
            continue;
        watch->generation = has_key(new, key) ? new->generation : 0;
        watch_wake(core, watch);
    }
}

/* Of prefixes that begin with the name, but for the name itself, only if `longer`. */
static void
notify_prefix(struct core *core, struct pool *pool, struct msg_str prefix, bool longer)
{
    struct watch *watch = watch_first(core, pool, MSG_CHANGES, prefix), *next;

    for (; is_under(watch, pool, MSG_CHANGES, prefix); watch = next) {
        next = RB_NEXT(watches, &core->watches, watch);
        if (watch->n_name > prefix.n && !longer)
            break;
        watch_wake(core, watch);
    }
}

void
watch_notify(struct core *core, struct pool *pool, struct msg_str name, const struct array *old,
             const struct array *new)
{
    bool is_sets = (old && old->is_set) || (new &&new->is_set);

    if (!pool->n_watches)
        return;
    notify_names(core, pool, name, old, new, is_sets);
    if (is_under(watch_first(core, pool, MSG_CHANGES, MSG_STR("")), pool, MSG_CHANGES,
                 MSG_STR("")))
        for (uint32_t n = 0; n <= name.n; n++)
            notify_prefix(core, pool, (struct msg_str){name.p, n}, n == name.n && is_sets);
}

void
watches_end(struct core *core, struct pool *pool)
{
    struct watch *watch = NULL, *next;

    if (pool->n_watches)
        watch = watch_first(core, pool, 0, MSG_STR(""));
    for (; watch && watch->pool == pool; watch = next) {
        next = RB_NEXT(watches, &core->watches, watch);
        watch->is_over = true;
        watch_wake(core, watch);
    }
}
