/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "known.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/options.h"
#include "session/text.h"

struct caid_watch {
    struct caid_client *client;
    void (*fn)(const struct caid_change *change, void *userdata);
    void *userdata;

    union {
        struct msg_watch_params name;
        struct msg_changes_params prefix;
    } params;

    struct known *known; /* NULL: it is of one name */

    /* Under the client's lock. */
    uint32_t refs;
    TAILQ_ENTRY(caid_watch) all, news;
    struct call request;
    bool is_news; /* in watch_table.news */
    bool has_news;
    bool is_stale; /* of a prefix: to be looked through again */
    bool is_looking;
    struct call list;
    struct msg_list_params list_params;
    uint64_t generation; /* the news: the name's generation; 0: the name is gone */
    uint32_t n_waiting;  /* threads that wait; one of them may read for all */
    bool calling_back, closed;
    struct caid_error failed; /* code 0: it has not failed */

    const char *pool; /* or NULL */
    char name[];      /* the name or the prefix, then the pool's */
};

void
watch_table_init(struct watch_table *table)
{
    TAILQ_INIT(&table->all);
    TAILQ_INIT(&table->news);
}

static void
watch_free(struct caid_watch *watch)
{
    client_unref(watch->client);
    if (watch->known)
        known_deinit(watch->known);
    free(watch->known);
    free(watch);
}

/* It never drops the client's last reference: the caller has entered the client. */
static void
watch_unref(struct caid_watch *watch)
{
    if (--watch->refs > 0)
        return;
    watch_free(watch);
}

static void
set_news(struct caid_watch *watch, bool news)
{
    struct watch_list *list = &watch->client->watches->news;

    if (watch->is_news == news)
        return;
    watch->is_news = news;
    if (news)
        TAILQ_INSERT_TAIL(list, watch, news);
    else
        TAILQ_REMOVE(list, watch, news);
}

/* ---- the request ---- */

static int
take_news(struct caid_client *client UNUSED, struct call *call, const void *reply,
          struct call_fds *fds UNUSED)
{
    struct caid_watch *watch = container_of(call, struct caid_watch, request);
    const struct msg_watch_result *result = reply;

    if (result->generation == watch->params.name.seen)
        return -EPROTO; /* such an answer would be asked for again for ever */
    watch->generation = result->generation;
    return 0;
}

static void
watch_signal(struct caid_watch *watch)
{
    wake_all(&watch->request.wake);
    if (watch->fn)
        set_news(watch, true);
    client_raise_fd(watch->client);
}

static void
watch_fail(struct caid_watch *watch, const struct caid_error *error)
{
    watch->failed = *error;
    watch_signal(watch);
}

/* The next call_flush() sends it. */
static void
queue(struct caid_watch *watch, struct call *call)
{
    if (call_queue(watch->client, call))
        watch->refs++;
}

/* Asks to be told of changes from now on, then for all names. */
static void
look_anew(struct caid_watch *watch)
{
    if (!watch->is_stale || watch->is_looking || watch->has_news)
        return;
    watch->is_stale = false;
    watch->params.prefix.again = true;
    queue(watch, &watch->request);
    known_begin(watch->known);
    watch->is_looking = true;
    watch->list_params.after = (struct msg_str){0};
    queue(watch, &watch->list);
}

static void
request_over(struct caid_client *client UNUSED, struct call *request)
{
    struct caid_watch *watch = container_of(request, struct caid_watch, request);

    if (watch->closed) {
        /* nobody wants to know */
    } else if (request->r < 0) {
        watch_fail(watch, &request->error);
    } else if (watch->known) {
        watch->is_stale = true;
        look_anew(watch);
        call_flush(watch->client);
    } else {
        watch->has_news = true;
        watch_signal(watch);
    }
    watch_unref(watch);
}

/* ---- a look at all names with the prefix ---- */

/* A list that does not advance ends the connection. */
static int
take_list(struct caid_client *client UNUSED, struct call *call, const void *reply,
          struct call_fds *fds UNUSED)
{
    struct caid_watch *watch = container_of(call, struct caid_watch, list);
    const struct msg_list_result *list = reply;
    int r = known_take(watch->known, list);

    watch->is_looking = r == 0 && list->more;
    if (r == -ENOMEM)
        fail_errno(&watch->failed, ENOMEM, "no memory for the names with a prefix");
    return r == -ENOMEM ? 0 : r;
}

static void
list_over(struct caid_client *client, struct call *list)
{
    struct caid_watch *watch = container_of(list, struct caid_watch, list);

    if (watch->closed) {
        /* nobody wants to know */
    } else if (list->r < 0 || watch->failed.code != 0) {
        watch->is_looking = false;
        watch_fail(watch, list->r < 0 ? &list->error : &watch->failed);
    } else if (watch->is_looking) {
        watch->list_params.after = known_after(watch->known);
        queue(watch, list);
        call_flush(client);
    } else {
        known_end(watch->known);
        watch->has_news = known_has_changes(watch->known);
        if (watch->has_news)
            watch_signal(watch);
        look_anew(watch);
        call_flush(client);
    }
    watch_unref(watch);
}

/* ---- news ---- */

static bool
has_news(const struct caid_client *client)
{
    const struct caid_watch *watch;

    TAILQ_FOREACH(watch, &client->watches->all, all)
        if (watch->has_news || watch->failed.code != 0)
            return true;
    return false;
}

/* Takes the news and asks for the next ones. */
static void
consume(struct caid_watch *watch, struct caid_change *ret)
{
    ret->pool = watch->pool;
    if (watch->known) {
        ret->generation = known_next(watch->known, ret->name);
        watch->has_news = known_has_changes(watch->known);
        look_anew(watch);
    } else {
        memcpy(ret->name, watch->name, strlen(watch->name) + 1);
        ret->generation = watch->generation;
        watch->has_news = false;
        watch->params.name.seen = watch->generation;
        queue(watch, &watch->request);
    }
    if (!watch->has_news)
        set_news(watch, false);
    call_flush(watch->client);
}

static void
call_back(struct caid_watch *watch)
{
    struct caid_client *client = watch->client;
    struct caid_change change;

    consume(watch, &change);
    watch->calling_back = true;
    watch->refs++;
    pthread_mutex_unlock(&client->lock);
    watch->fn(&change, watch->userdata);
    pthread_mutex_lock(&client->lock);
    watch->calling_back = false;
    if (!watch->closed && (watch->has_news || watch->failed.code != 0))
        watch_signal(watch); /* another thread may have skipped the watch meanwhile */
    watch_unref(watch);
}

static int
deliver(struct caid_client *client, int r, struct caid_error *error)
{
    struct watch_list *news = &client->watches->news;
    struct caid_watch *watch;
    size_t n = 0;

    TAILQ_FOREACH(watch, news, news)
        n++;
    while (n-- > 0 && (watch = TAILQ_FIRST(news))) {
        set_news(watch, false);
        if (watch->calling_back)
            continue;
        if (watch->has_news)
            call_back(watch);
        else if (watch->failed.code != 0)
            r = fail_again(error, &watch->failed);
    }
    if (!TAILQ_EMPTY(news))
        client_raise_fd(client);
    return r;
}

/* The names may have changed while there was no daemon. */
static void
take_inventory(struct caid_client *client, struct inventory *inventory UNUSED)
{
    struct caid_watch *watch;

    TAILQ_FOREACH(watch, &client->watches->all, all)
        if (watch->known) {
            watch->params.prefix.again = false;
            watch->is_stale = true;
        }
}

const struct feature watch_feature = {
    .take_inventory = take_inventory,
    .has_news = has_news,
    .deliver = deliver,
};

/* ---- the API ---- */

/* What it sends for all names with a prefix. false: out of memory. */
static bool
watch_init_prefix(struct caid_watch *watch, struct msg_str prefix, struct msg_str pool)
{
    watch->known = malloc(sizeof(*watch->known));
    if (!watch->known)
        return false;
    known_init(watch->known, prefix);
    watch->params.prefix = (struct msg_changes_params){.prefix = prefix, .pool = pool};
    watch->request = (struct call){.method = MSG_CHANGES,
                                   .params = &watch->params.prefix,
                                   .over = request_over};
    watch->list_params = (struct msg_list_params){.prefix = prefix, .pool = pool};
    watch->list = (struct call){.method = MSG_LIST,
                                .params = &watch->list_params,
                                .take = take_list,
                                .over = list_over};
    return true;
}

static struct caid_watch *
watch_new(struct caid_client *client, const char *name, const char *pool, bool of_prefix)
{
    size_t n = strlen(name) + 1 + (pool ? strlen(pool) + 1 : 0);
    struct caid_watch *watch = calloc(1, sizeof(*watch) + n);

    if (!watch)
        return NULL;
    char *end = watch->name;
    struct msg_str text = msg_str_opt(text_put(&end, MSG_STR(name)));
    watch->pool = text_put(&end, msg_str_opt(pool));
    if (of_prefix) {
        if (!watch_init_prefix(watch, text, msg_str_opt(watch->pool))) {
            free(watch);
            return NULL;
        }
    } else {
        watch->params.name =
            (struct msg_watch_params){.name = text, .pool = msg_str_opt(watch->pool)};
        watch->request = (struct call){.method = MSG_WATCH,
                                       .params = &watch->params.name,
                                       .take = take_news,
                                       .over = request_over};
    }
    watch->client = client_ref(client);
    watch->refs = 1;
    TAILQ_INSERT_TAIL(&client->watches->all, watch, all);
    return watch;
}

static void
watch_end(struct caid_watch *watch)
{
    struct caid_client *client = watch->client;

    watch->closed = true;
    TAILQ_REMOVE(&client->watches->all, watch, all);
    set_news(watch, false);
    call_cancel(client, &watch->request);
    wake_all(&watch->request.wake);
    if (watch->n_waiting > 0)
        eventfd_write(client->wake_fd, 1);
    call_flush(client);
    watch_unref(watch);
}

static int
make_wake_fd(struct caid_client *client, struct caid_error *error)
{
    if (client->wake_fd < 0)
        client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return client->wake_fd >= 0 ? 0 : fail_errno(error, errno, "cannot make an eventfd");
}

static int
wait_for_answers(struct caid_client *client, struct caid_error *error)
{
    const struct msg_none params = {};
    struct call *ping = call_new(sizeof(*ping), MSG_PING, &params);

    if (!ping)
        return fail_errno(error, ENOMEM, "no memory for a request");
    int r = call_run(client, ping, error);
    call_free(ping);
    return r;
}

/* The daemon refuses a watch at once or not at all. So the answer to a ping that is sent after the
 * request shows that it has not refused; of a prefix, so does the one after each packet of the
 * names that are there. What changes meanwhile is looked at later. */
static int
watch_begin(struct caid_watch *watch, struct caid_error *error)
{
    int r;

    queue(watch, &watch->request);
    do
        r = wait_for_answers(watch->client, error);
    while (r == 0 && watch->is_looking && watch->known->look == 1 && watch->failed.code == 0);
    return r == 0 && watch->failed.code != 0 ? fail_again(error, &watch->failed) : r;
}

/* Set when the watch has begun; another thread may have read news by then. */
static void
set_callback(struct caid_watch *watch,
             void (*fn)(const struct caid_change *change, void *userdata), void *userdata)
{
    watch->fn = fn;
    watch->userdata = userdata;
    if (watch->has_news || watch->failed.code != 0)
        watch_signal(watch);
}

static int
watch_start(struct caid_client *client, struct caid_watch **ret, const char *name,
            const char *pool, bool of_prefix,
            void (*fn)(const struct caid_change *change, void *userdata), void *userdata,
            struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;

    r = make_wake_fd(client, error);
    struct caid_watch *watch = r == 0 ? watch_new(client, name, pool, of_prefix) : NULL;
    if (r == 0 && !watch)
        r = fail_errno(error, ENOMEM, "no memory for a watch");
    if (r == 0) {
        r = watch_begin(watch, error);
        if (r < 0) {
            watch_end(watch);
        } else {
            *ret = watch;
            set_callback(watch, fn, userdata);
        }
    }
    client_leave(client);
    return r;
}

int
caid_watch_new(struct caid_client *client, struct caid_watch **ret, const char *name,
               const char *pool, void (*fn)(const struct caid_change *change, void *userdata),
               void *userdata, struct caid_error *error)
{
    int r = client_check_given(client, ret, "ret", error);
    if (r == 0)
        r = client_check_name(client, name, pool, error);
    return r < 0 ? r : watch_start(client, ret, name, pool, false, fn, userdata, error);
}

int
caid_watch_prefix(struct caid_client *client, struct caid_watch **ret, const char *prefix,
                  const char *pool,
                  void (*fn)(const struct caid_change *change, void *userdata), void *userdata,
                  struct caid_error *error)
{
    int r = client_check_given(client, ret, "ret", error);
    if (r == 0)
        r = client_check_given(client, prefix, "prefix", error);
    if (r == 0)
        r = check_text("prefix", prefix, false, error);
    if (r == 0)
        r = check_pool(pool, error);
    return r < 0 ? r : watch_start(client, ret, prefix, pool, true, fn, userdata, error);
}

/* Whether caid_watch_next() can return now, with *ret_r. */
static bool
look(struct caid_watch *watch, struct caid_change *ret, int *ret_r, struct caid_error *error)
{
    if (watch->closed)
        *ret_r = fail(error, CAID_ERR_CANCELLED, "the watch of \"%s\" is closed", watch->name);
    else if (watch->has_news) {
        consume(watch, ret);
        *ret_r = 0;
    } else if (watch->failed.code != 0)
        *ret_r = fail_again(error, &watch->failed);
    else if (watch->client->lost.code != 0)
        *ret_r = fail_again(error, &watch->client->lost);
    else
        return false;
    return true;
}

static int
watch_next(struct caid_watch *watch, uint64_t deadline_ns, struct caid_change *ret,
           struct caid_error *error)
{
    bool first = true; /* packets that have come are read also if the time is over */
    struct caid_error unwanted;
    uint64_t look_ns = 0;
    int r;

    while (!look(watch, ret, &r, error)) {
        if (!first && deadline_ns != UINT64_MAX && clock_now_ns() >= deadline_ns)
            return fail(error, CAID_ERR_TIMEOUT, "no news of \"%s\" in time", watch->name);
        first = false;
        watch->n_waiting++;
        r = call_wait_for_news(watch->client, &watch->request, deadline_ns, &look_ns,
                               error ? error : &unwanted);
        watch->n_waiting--;
        if (r < 0)
            return r;
    }
    return r;
}

int
caid_watch_next(struct caid_watch *watch, uint64_t timeout_ns, struct caid_change *ret,
                struct caid_error *error)
{
    if (!watch || !ret)
        return fail(error, CAID_ERR_INVALID, "%s is NULL", watch ? "ret" : "watch");
    struct caid_client *client = watch->client;
    int r = client_check(client, error);
    if (r < 0)
        return r;
    uint64_t deadline_ns = deadline_of(timeout_ns);

    client_enter_anyway(client);
    watch->refs++;
    r = watch_next(watch, deadline_ns, ret, error);
    watch_unref(watch);
    call_pass_reading_on(client);
    client_leave(client);
    return r;
}

void
caid_watch_close(struct caid_watch *watch)
{
    if (!watch)
        return;
    struct caid_client *client = watch->client;
    if (fork_guard_crossed(&client->guard)) {
        watch_free(watch);
        return;
    }
    client_enter_anyway(client);
    watch_end(watch);
    client_leave(client);
}
