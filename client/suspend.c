/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that is suspended, so that the driver can checkpoint the process and restore it
 * (cuCheckpointProcessCheckpoint()): this process has no handle, mapping or registration of memory
 * that others have. What stays are addresses, leases, pages of timelines as memory of the host, and
 * the connection, with all that happens there: the daemon does not know of it.
 *
 *   AWAKE --suspend--> CHANGING --> SUSPENDED --resume--> CHANGING --> AWAKE
 *
 * From CHANGING on, client_check_awake() refuses what would use the driver for shared memory, and
 * what is in the way. What has begun before is in the way, or waited for by the lock that it has.
 * All else goes on: closes, and what only asks the daemon.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "channel/port.h"
#include "handoff/bracket.h"
#include "handoff/lane.h"
#include "handoff/page.h"
#include "memory/array.h"
#include "memory/block.h"
#include "memory/lease.h"
#include "session/call.h"
#include "session/client.h"
#include "session/interrupt.h"

/* ---- states ---- */

/* Enters the client. */
static int
change_begin(struct caid_client *client, enum wakefulness from, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    if (client->wakefulness != from) {
        r = from == CLIENT_AWAKE
                ? client_check_awake(client, error)
                : fail(error, CAID_ERR_INVALID, "%s: the client is %s", client->socket,
                       client->wakefulness == CLIENT_AWAKE ? "not suspended" : "being changed");
        client_leave(client);
        return r;
    }
    atomic_store(&client->wakefulness, CLIENT_CHANGING);
    return 0;
}

static void
change_end(struct caid_client *client, enum wakefulness to)
{
    atomic_store(&client->wakefulness, to);
    client_leave(client);
}

/* ---- what is in the way ---- */

static const char *
name_of(const struct caid_array *array)
{
    const char *name = caid_array_get_info(array)->name;
    return name && name[0] ? name : "(unnamed)";
}

/* What others wait for, or what cannot have its address again. Under the client's lock. */
static int
check_free(struct caid_client *client, struct caid_error *error)
{
    const struct caid_channel *channel = LIST_FIRST(&client->channels->all);
    const char *bracket = bracket_open_names(client);
    const struct caid_array *array;
    const struct page *page;

    if (bracket)
        return fail(error, CAID_ERR_INVALID, "a bracket on %s is not over", bracket);
    if (channel)
        return fail(error, CAID_ERR_INVALID, "channel \"%s\" is open", name_of(channel->array));
    LIST_FOREACH(page, &client->pages->all, of_table)
        if (page->timeline)
            return fail(error, CAID_ERR_INVALID, "timeline \"%s\" is this client's own",
                        page->timeline);
    LIST_FOREACH(array, &client->leases->arrays, of_leases)
        if (!array->closed && array->block && array->block->kind == BLOCK_LEGACY)
            return fail(error, CAID_ERR_UNSUPPORTED,
                        "array \"%s\" is legacy memory, which has no fixed address",
                        name_of(array));
    return 0;
}

/* CAID_ERR_TIMEOUT: something goes on that ends by itself. Another thread may close the client
 * meanwhile. */
static int
look_for_work(struct caid_client *client, struct caid_error *error)
{
    uint64_t stream = 0;
    int r = 0;

    bool waits = lanes_are_waiting(client, &stream);
    pthread_mutex_lock(&client->lock);
    if (client->lost.code != 0)
        r = fail_again(error, &client->lost);
    else if (waits)
        r = fail(error, CAID_ERR_TIMEOUT, "stream %#" PRIx64 " waits for another process",
                 stream);
    else if (pages_are_busy(client))
        r = fail(error, CAID_ERR_TIMEOUT, "a stream has a bracket's end yet to signal");
    pthread_mutex_unlock(&client->lock);
    return r;
}

static int
wait_for_work(struct caid_client *client, uint64_t deadline_ns, struct caid_error *error)
{
    struct pauses pauses = {0};
    int r;

    while ((r = look_for_work(client, error)) == -ETIMEDOUT && clock_now_ns() < deadline_ns) {
        r = interrupt_pause(client, &pauses, deadline_ns, error);
        if (r < 0)
            return r;
    }
    return r;
}

/* ---- suspend ---- */

/* Whether it will send blocks again: nothing that is given back could be mapped without that. There
 * is no block 0. */
static int
check_daemon(struct caid_client *client, struct caid_error *error)
{
    const struct msg_block_params params = {.block = 0};
    struct caid_error why = {0};

    int r = call_ask(client, MSG_BLOCK, &params, &why);
    if (why.code == CAID_ERR_UNKNOWN_METHOD)
        return fail(error, CAID_ERR_UNKNOWN_METHOD,
                    "%s: the daemon is too old for a client to be suspended", client->socket);
    return r < 0 && why.code != CAID_ERR_NOT_FOUND ? fail_again(error, &why) : 0;
}

/* Not under the lock. */
static int
give_back(struct caid_client *client, uint64_t deadline_ns, struct caid_error *error)
{
    int r = check_daemon(client, error);
    if (r == 0)
        r = wait_for_work(client, deadline_ns, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&client->gpu.lock);
    bool has_driver = client->gpu.drv;
    pthread_mutex_unlock(&client->gpu.lock);
    if (!has_driver)
        return 0;
    r = blocks_suspend(client, error);
    return r < 0 ? r : pages_suspend(client, error);
}

int
caid_client_suspend(struct caid_client *client, uint64_t timeout_ns, struct caid_error *error)
{
    uint64_t now = clock_now_ns();
    uint64_t deadline_ns = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;

    int r = change_begin(client, CLIENT_AWAKE, error);
    if (r < 0)
        return r;
    r = check_free(client, error);
    bool awake = r < 0;
    if (r == 0) {
        pthread_mutex_unlock(&client->lock);
        r = give_back(client, deadline_ns, error);
        awake = r < 0 && blocks_resume(client, NULL) == 0;
        pthread_mutex_lock(&client->lock);
    }
    change_end(client, awake ? CLIENT_AWAKE : CLIENT_SUSPENDED);
    return r;
}

/* ---- resume ---- */

/* A name by which an array is open. */
struct known_name {
    char name[256], pool[72];
    uint64_t generation, now; /* of the name; 0: nobody has it */
};

static int
known_cmp(const void *a, const void *b)
{
    const struct known_name *x = a, *y = b;
    int c = strcmp(x->pool, y->pool);

    if (c == 0)
        c = strcmp(x->name, y->name);
    return c ? c : CMP(x->generation, y->generation);
}

/* The names of all open arrays, in order. Under the client's lock. */
static int
list_known(struct caid_client *client, struct known_name **ret, size_t *ret_n)
{
    const struct caid_array *array;
    size_t n = 0;

    LIST_FOREACH(array, &client->leases->arrays, of_leases)
        n++;
    struct known_name *v = calloc(n + 1, sizeof(*v));
    if (!v)
        return -ENOMEM;
    n = 0;
    LIST_FOREACH(array, &client->leases->arrays, of_leases) {
        const struct caid_array_info *info = caid_array_get_info(array);
        if (!info->name || !info->name[0])
            continue;
        snprintf(v[n].name, sizeof(v[n].name), "%s", info->name);
        snprintf(v[n].pool, sizeof(v[n].pool), "%s", info->pool);
        v[n++].generation = info->generation;
    }
    qsort(v, n, sizeof(*v), known_cmp);
    *ret = v;
    *ret_n = n;
    return 0;
}

/* Whether the name is known by the one before it: the same, or the set that it is a member of. */
static bool
is_covered(const struct known_name *known, const struct known_name *by)
{
    size_t n = strlen(by->name);

    return by->generation == known->generation && strcmp(by->pool, known->pool) == 0 &&
           strncmp(by->name, known->name, n) == 0 &&
           (known->name[n] == '\0' || (n > 0 && by->name[n - 1] == '/'));
}

static int
note_generation(const struct caid_details *details, void *userdata)
{
    *(uint64_t *)userdata = details->entry->generation;
    return 0;
}

static int
ask_now(struct caid_client *client, struct known_name *known, struct caid_error *error)
{
    struct caid_error why = {0};

    int r = caid_show(client, known->name, known->pool, note_generation, &known->now, &why);
    if (r < 0 && why.code != CAID_ERR_NOT_FOUND && why.code != CAID_ERR_LOST &&
        why.code != CAID_ERR_DROPPED)
        return fail_again(error, &why);
    return 0;
}

static int
ask_all(struct caid_client *client, struct known_name *known, size_t n,
        struct caid_error *error)
{
    const struct known_name *last = NULL;
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        known[i].now = known[i].generation;
        if (last && is_covered(&known[i], last))
            continue;
        last = &known[i];
        known[i].now = 0;
        r = ask_now(client, &known[i], error);
    }
    return r;
}

static void
tell(const struct known_name *known,
     void (*fn)(const struct caid_change *change, void *userdata), void *userdata)
{
    struct caid_change change = {.pool = known->pool, .generation = known->now};

    memcpy(change.name, known->name, sizeof(change.name));
    fn(&change, userdata);
}

/* A process that was restored elsewhere has the memory of this one, and another pid. */
static int
check_process(const struct caid_client *client, struct caid_error *error)
{
    return getpid() == client->guard.pid
               ? 0
               : fail(error, CAID_ERR_FORKED,
                      "%s: this connection belongs to process %d: connect anew", client->socket,
                      (int)client->guard.pid);
}

int
caid_client_resume(struct caid_client *client,
                   void (*fn)(const struct caid_change *change, void *userdata), void *userdata,
                   struct caid_error *error)
{
    _cleanup_free_ struct known_name *known = NULL;
    size_t n = 0;

    int r = client_check(client, error);
    if (r == 0)
        r = check_process(client, error);
    if (r == 0)
        r = change_begin(client, CLIENT_SUSPENDED, error);
    if (r < 0)
        return r;
    if (fn && list_known(client, &known, &n) < 0)
        r = fail_errno(error, ENOMEM, "no memory for the names of arrays");
    if (r == 0) {
        pthread_mutex_unlock(&client->lock);
        r = ask_all(client, known, n, error);
        if (r == 0)
            r = blocks_resume(client, error);
        pthread_mutex_lock(&client->lock);
    }
    change_end(client, r < 0 ? CLIENT_SUSPENDED : CLIENT_AWAKE);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (known[i].now != known[i].generation)
            tell(&known[i], fn, userdata);
    return r;
}
