/* SPDX-License-Identifier: Apache-2.0 */
#include "behind.h"

#include <errno.h>
#include <stdlib.h>

#include "array.h"
#include "base/clock.h"
#include "publish.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/interrupt.h"
#include "session/text.h"

/* When a client ends, it waits so long for the daemon's answers. */
#define CLOSE_NS (10 * NSEC_PER_SEC)

void
behind_table_init(struct behind_table *table)
{
    TAILQ_INIT(&table->landing);
    TAILQ_INIT(&table->asked);
    TAILQ_INIT(&table->done);
}

static struct behind_list *
list_of(struct behind_table *table, enum behind_state state)
{
    return state == BEHIND_LANDING ? &table->landing
           : state == BEHIND_ASKED ? &table->asked
                                   : &table->done;
}

static void
set_state(struct behind_table *table, struct behind *behind, enum behind_state state)
{
    TAILQ_REMOVE(list_of(table, behind->state), behind, entry);
    behind->state = state;
    TAILQ_INSERT_TAIL(list_of(table, state), behind, entry);
}

static void
behind_free(struct behind_table *table, struct behind *behind)
{
    TAILQ_REMOVE(list_of(table, behind->state), behind, entry);
    free(behind->text);
    free(behind);
}

/* It is DONE. */
static void
behind_unref(struct behind_table *table, struct behind *behind)
{
    if (--behind->refs == 0)
        behind_free(table, behind);
}

void
behind_forget(struct caid_array *array)
{
    struct behind *behind = TAKE_PTR(array->behind);

    if (behind)
        behind_unref(array->client->behinds, behind);
}

bool
behind_is_under_way(const struct caid_array *array)
{
    return array->behind && array->behind->state != BEHIND_DONE;
}

bool
behind_ends_array(struct caid_array *array)
{
    if (!behind_is_under_way(array))
        return false;
    array->behind->ends_array = true;
    return true;
}

/* ---- the request ---- */

/* It has its result, r and error. */
static void
finish(struct caid_client *client, struct behind *behind)
{
    struct caid_array *array = TAKE_PTR(behind->array);

    set_state(client->behinds, behind, BEHIND_DONE);
    wake_all(&behind->landed);
    wake_all(&client->behinds->over);
    if (behind->ends_array)
        array_end(array);
}

static int
take(struct caid_client *client UNUSED, struct call *call, const void *reply,
     struct call_fds *fds UNUSED)
{
    struct behind *behind = container_of(call, struct behind, call);
    const struct msg_publish_result *result = reply;

    if (result->generation == 0)
        return -EPROTO; /* a published name has a generation */
    behind->generation = result->generation;
    publish_apply(behind->array, TAKE_PTR(behind->text), result->generation);
    return 0;
}

static void
over(struct caid_client *client, struct call *call)
{
    struct behind *behind = container_of(call, struct behind, call);

    behind->r = call->r;
    behind->error = call->error;
    finish(client, behind);
}

static void
ask(struct caid_client *client, struct behind *behind)
{
    behind->call = (struct call){.method = MSG_PUBLISH,
                                 .params = &behind->params,
                                 .take = take,
                                 .over = over};
    if (call_queue_late(client, &behind->call)) {
        set_state(client->behinds, behind, BEHIND_ASKED);
        wake_all(&behind->landed);
        call_flush(client); /* the rest is sent later */
        return;
    }
    behind->r = fail_again(&behind->error, &client->lost);
    finish(client, behind);
}

/* ---- the work ---- */

/* Waits for all that is LANDING, and asks for it. Under the lock, which it drops meanwhile. */
static void
land(struct caid_client *client)
{
    struct behind_table *table = client->behinds;
    struct behind *behind;

    if (table->waiting)
        return; /* the thread that waits finds the rest */
    table->waiting = true;
    while ((behind = TAILQ_FIRST(&table->landing))) {
        pthread_mutex_unlock(&client->lock);
        int r = drain_wait(client, &behind->work, &behind->error);
        pthread_mutex_lock(&client->lock);
        client->reaper.stuck = false;
        behind->r = r;
        if (r == 0)
            ask(client, behind);
        else
            finish(client, behind);
    }
    table->waiting = false;
    wake_all(&table->over);
}

static uint64_t
due(const struct caid_client *client)
{
    const struct behind_table *table = client->behinds;

    return TAILQ_EMPTY(&table->landing) || table->waiting ? UINT64_MAX : 0;
}

static void
tidy(struct caid_client *client, bool all UNUSED)
{
    land(client);
}

/* Closes in a loop keep the thread from tidying. */
static void
reap(struct caid_client *client, struct reaped_queue *closed UNUSED)
{
    pthread_mutex_lock(&client->lock);
    land(client);
    pthread_mutex_unlock(&client->lock);
}

void
behind_close(struct caid_client *client)
{
    struct behind_table *table = client->behinds;
    uint64_t end_ns = clock_now_ns() + CLOSE_NS;
    struct behind *behind;

    land(client);
    while (table->waiting)
        wake_wait(&table->over, &client->lock, UINT64_MAX);
    while ((behind = TAILQ_FIRST(&table->asked)) && clock_now_ns() < end_ns) {
        behind->refs++;
        call_wait_until(client, &behind->call, 0, end_ns, NULL);
        behind_unref(table, behind);
    }
}

static void
abandon(struct caid_client *client)
{
    for (enum behind_state state = 0; state <= BEHIND_DONE; state++) {
        struct behind_list *list = list_of(client->behinds, state);
        while (!TAILQ_EMPTY(list))
            behind_free(client->behinds, TAILQ_FIRST(list));
    }
}

const struct feature behind_feature = {
    .due = due,
    .tidy = tidy,
    .tidy_here = land,
    .reap = reap,
    .abandon = abandon,
};

/* ---- the API ---- */

static struct behind *
behind_new(struct caid_array *array, const struct msg_publish_params *params)
{
    struct behind *behind =
        calloc(1, sizeof(*behind) + params->name.n + params->metadata.n + 2);

    if (!behind)
        return NULL;
    char *end = behind->names;
    behind->array = array;
    behind->refs = 1;
    behind->params = *params;
    behind->params.name = msg_str_opt(text_put(&end, params->name));
    behind->params.metadata = msg_str_opt(text_put(&end, params->metadata));
    behind->text = publish_text_new(params);
    return behind;
}

static int
start(struct caid_array *array, struct behind *behind, struct caid_error *error)
{
    struct caid_client *client = array->client;
    bool busy;

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    busy = behind_is_under_way(array);
    if (!busy) {
        behind_forget(array);
        array->behind = behind;
        TAILQ_INSERT_TAIL(&client->behinds->landing, behind, entry);
    }
    client_leave(client); /* where there is no thread, this one waits for the work */
    return busy ? fail(error, CAID_ERR_INVALID, "the array is being published") : 0;
}

int
caid_array_publish_behind(struct caid_array *array, const char *name,
                          const struct caid_publish_options *options, struct caid_error *error)
{
    struct caid_publish_options opts;
    const struct drv *drv;

    int r = publish_check(array, name, options, &opts, error);
    if (r == 0)
        r = gpu_driver(array->client, &drv, error);
    if (r < 0)
        return r;
    const struct msg_publish_params params = publish_params(array, name, &opts);
    struct behind *behind = behind_new(array, &params);
    if (!behind || !behind->text) {
        free(behind);
        return fail_errno(error, ENOMEM, "no memory for a name");
    }
    r = drain_note_work(array->client, array->place, opts.stream, &behind->work, error);
    if (r == 0)
        r = start(array, behind, error);
    if (r < 0) {
        drain_forget(array->client, &behind->work);
        free(behind->text);
        free(behind);
    }
    return r;
}

/* While its work is waited for, or its request is in flight. */
static int
wait_a_while(struct caid_client *client, struct behind *behind, uint64_t deadline_ns,
             struct caid_error *error)
{
    if (behind->state == BEHIND_ASKED)
        return call_wait_until(client, &behind->call, 0, deadline_ns, error);
    if (wake_wait(&behind->landed, &client->lock, interrupt_look_by(client, deadline_ns)) == 0)
        return 0;
    int r = call_ask_interrupt(client, error);
    return r == 0 && clock_now_ns() >= deadline_ns ? 1 : r;
}

static int
wait_for_result(struct caid_client *client, struct behind *behind, uint64_t timeout_ns,
                uint64_t *ret_generation, struct caid_error *error)
{
    uint64_t deadline_ns = deadline_of(timeout_ns);
    int r = 0;

    while (r == 0 && behind->state != BEHIND_DONE)
        r = wait_a_while(client, behind, deadline_ns, error);
    if (r > 0)
        return fail(error, CAID_ERR_TIMEOUT, "the array is not published yet");
    if (r == 0 && behind->r < 0)
        r = fail_again(error, &behind->error);
    if (r == 0 && ret_generation)
        *ret_generation = behind->generation;
    return r;
}

int
caid_array_publish_wait(struct caid_array *array, uint64_t timeout_ns, uint64_t *ret_generation,
                        struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(array, error);
    if (r < 0)
        return r;
    struct caid_client *client = array->client;
    client_enter_anyway(client); /* the result outlives the connection */
    struct behind *behind = array->behind;
    if (behind) {
        behind->refs++;
        r = wait_for_result(client, behind, timeout_ns, ret_generation, error);
        behind_unref(client->behinds, behind);
    } else {
        r = fail(error, CAID_ERR_INVALID, "the array is not being published");
    }
    client_leave(client);
    return r;
}
