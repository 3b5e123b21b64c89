/* SPDX-License-Identifier: Apache-2.0 */
/* The begin of a bracket (access.h): what is asked for, and what is waited for after the grant. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "access.h"
#include "array.h"
#include "base/clock.h"
#include "client.h"
#include "lane.h"

/* ---- asking ---- */

static const char *
label(const struct caid_array *array)
{
    const char *name = caid_array_get_info(array)->name;
    return name && name[0] ? name : "(unnamed)";
}

int
access_check_array(const struct caid_array *array, bool write, struct caid_error *error)
{
    if (array->lease == 0)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "managed memory is this process's own: it is not shared, and has no "
                    "brackets");
    if (write && array->info.readonly)
        return fail(error, CAID_ERR_READ_ONLY, "array \"%s\" is open with mode \"r\"",
                    label(array));
    return 0;
}

static int
check_array(const struct caid_client *client, const struct caid_array *array, bool write,
            struct caid_error *error)
{
    if (!array)
        return fail(error, CAID_ERR_INVALID, "an array of the list is NULL");
    if (array->client != client)
        return fail(error, CAID_ERR_INVALID, "array \"%s\" is another client's", label(array));
    return access_check_array(array, write, error);
}

static int
check_arrays(const struct caid_client *client, struct caid_array *const *arrays, size_t n,
             bool write, struct caid_error *error)
{
    int r = 0;

    if (n > 0 && !arrays)
        return fail(error, CAID_ERR_INVALID, "%s is NULL", write ? "writes" : "reads");
    for (size_t i = 0; r == 0 && i < n; i++)
        r = check_array(client, arrays[i], write, error);
    return r;
}

static int
check_options(const struct caid_client *client, const struct caid_access_options *options,
              struct caid_error *error)
{
    size_t n;

    if (__builtin_add_overflow(options->n_reads, options->n_writes, &n) || n == 0 ||
        n > PROTO_BEGIN_MAX)
        return fail(error, CAID_ERR_INVALID,
                    "a bracket has 1 to %d arrays: %zu read, %zu written", PROTO_BEGIN_MAX,
                    options->n_reads, options->n_writes);
    int r = check_arrays(client, options->reads, options->n_reads, false, error);
    return r < 0 ? r : check_arrays(client, options->writes, options->n_writes, true, error);
}

/* Adds as many names as fit, and says how many there are more. */
static void
add_names(char *names, size_t size, const struct caid_access_options *options)
{
    size_t n = options->n_reads + options->n_writes, at = 0;

    for (size_t i = 0; i < n; i++) {
        const struct caid_array *array =
            i < options->n_reads ? options->reads[i] : options->writes[i - options->n_reads];
        size_t room = size - at, wanted = strlen(label(array)) + sizeof(", \"\" and 1000 more");
        if (i > 0 && wanted > room) {
            snprintf(names + at, room, " and %zu more", n - i);
            return;
        }
        int written = snprintf(names + at, room, "%s\"%s\"", i > 0 ? ", " : "", label(array));
        at += written < (int)room ? (size_t)written : room - 1;
    }
}

static void
add_leases(struct caid_access *access, const struct caid_access_options *options)
{
    uint64_t *leases = access->leases;
    size_t n_reads = options->n_reads, n_writes = options->n_writes;

    for (size_t i = 0; i < n_reads; i++)
        leases[i] = options->reads[i]->lease;
    for (size_t i = 0; i < n_writes; i++)
        leases[n_reads + i] = options->writes[i]->lease;
    access->params.read = (struct msg_u64s){n_reads ? leases : NULL, (uint32_t)n_reads};
    access->params.write =
        (struct msg_u64s){n_writes ? leases + n_reads : NULL, (uint32_t)n_writes};
}

static struct caid_access *
access_new(struct caid_client *client, const struct caid_access_options *options)
{
    size_t n = options->n_reads + options->n_writes;
    struct caid_access *access = calloc(1, sizeof(*access) + n * sizeof(access->leases[0]));
    uint64_t timeout_ns = options->timeout_ns == CAID_FOREVER ? 0 : options->timeout_ns;

    if (!access)
        return NULL;
    access->client = client_ref(client);
    access->refs = 1;
    access->deadline_ns = options->nowait ? 0
                                          : deadline_of(timeout_ns ? timeout_ns : CAID_FOREVER);
    access->params.timeout_ns = timeout_ns;
    access->params.nowait = options->nowait;
    access->params.thread = (uint64_t)gettid();
    add_leases(access, options);
    add_names(access->names, sizeof(access->names), options);
    access_prepare(access);
    return access;
}

/* Memory of a device is there for the streams of the one that it is mapped for; host memory for
 * those of all. */
static int
check_device(const struct lane *lane, const struct caid_array *array, struct caid_error *error)
{
    if (!array->block || array->block->kind == BLOCK_PINNED || array->place == lane_place(lane))
        return 0;
    return fail(error, CAID_ERR_DEVICE,
                "the stream is of another device than the one that array \"%s\" is mapped for",
                label(array));
}

static int
find_lane(struct caid_access *access, const struct caid_access_options *options,
          struct caid_error *error)
{
    const struct caid_array *first = options->n_reads ? options->reads[0] : options->writes[0];
    int32_t device = first->info.access_device >= 0 ? first->info.access_device
                                                    : first->info.device;

    if (options->stream == 0)
        return 0;
    int r = lane_get(access->client, options->stream, device, &access->lane, error);
    for (size_t i = 0; r == 0 && i < options->n_reads; i++)
        r = check_device(access->lane, options->reads[i], error);
    for (size_t i = 0; r == 0 && i < options->n_writes; i++)
        r = check_device(access->lane, options->writes[i], error);
    return r;
}

static int
ask(struct caid_access *access, struct caid_error *error)
{
    struct caid_client *client = access->client;

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    access->params.bracket = ++client->accesses.last_id;
    access->asked_ns = clock_now_ns();
    r = call_start(client, &access->call, error);
    if (r == 0) {
        access->standing = true;
        access->refs++;
        LIST_INSERT_HEAD(&client->accesses.all, access, of_table);
    }
    client_leave(client);
    return r;
}

/* Ends one that has not been asked for. */
static void
discard(struct caid_access *access)
{
    struct caid_client *client = access->client;

    access_let_go(access);
    client_enter_anyway(client);
    access_unref(access);
    client_leave(client);
}

int
caid_access_start(struct caid_client *client, struct caid_access **ret,
                  const struct caid_access_options *options, struct caid_error *error)
{
    struct caid_access_options opts;

    int r = client_check(client, error);
    if (r == 0 && (!ret || !options))
        r = fail(error, CAID_ERR_INVALID, "%s is NULL", ret ? "options" : "ret");
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_options(client, &opts, error);
    if (r < 0)
        return r;

    struct caid_access *access = access_new(client, &opts);
    if (!access)
        return fail_errno(error, ENOMEM, "no memory for a bracket");
    r = find_lane(access, &opts, error);
    if (r == 0)
        r = ask(access, error);
    if (r < 0)
        discard(access);
    else
        *ret = access;
    return r;
}

/* ---- after the grant ---- */

int
access_fail_abandoned(const struct caid_access *access, struct caid_error *error)
{
    return fail(error, CAID_ERR_ABANDONED,
                "%s: a process died before the work was done that this waited for",
                access->names);
}

/* Has the lane, or the host, wait for all fences: 0, 1 for not within the time. */
static int
wait_for_fences(struct caid_access *access, uint64_t deadline_ns, struct caid_error *error)
{
    uint64_t until_ns = deadline_ns < access->deadline_ns ? deadline_ns : access->deadline_ns;
    struct caid_error why = {0};
    int r = 0;

    while (r == 0 && access->more)
        r = access_ask_for_more(access, &why);
    if (r == 0)
        r = lane_wait(access->client, access->lane, access->fences, access->n_fences, until_ns,
                      &why);
    if (r > 0)
        return access_fail_abandoned(access, error);
    if (r == 0 || why.code != CAID_ERR_TIMEOUT)
        return r < 0 ? fail_again(error, &why) : 0;
    if (clock_now_ns() < access->deadline_ns)
        return 1;
    return fail(error, CAID_ERR_TIMEOUT, "%s: the work before it was not done in time",
                access->names);
}

/* What has passed is of no interest any more, and its page may go. */
static void
drop_passed(struct caid_access *access)
{
    enum fence_state state;
    size_t n = 0;

    for (size_t i = 0; i < access->n_fences; i++) {
        struct fence *fence = &access->fences[i];
        if (fence_look(fence, true, &state, NULL) == 0 && state == FENCE_PASSED)
            fence_drop(fence);
        else
            access->fences[n++] = *fence;
    }
    access->n_fences = n;
}

/* With the lock, which is dropped meanwhile. */
static int
enter(struct caid_access *access, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = access->client;

    access_set_state(access, ACCESS_BUSY);
    pthread_mutex_unlock(&client->lock);
    struct caid_error why = {0};
    int r = wait_for_fences(access, deadline_ns, &why);
    if (r == 0)
        drop_passed(access);
    pthread_mutex_lock(&client->lock);
    if (r < 0) {
        access->failed = why;
        access_send_undone(access);
        fail_again(error, &why);
    }
    access->begun = r == 0;
    access_set_state(access, r < 0 ? ACCESS_OVER : r > 0 ? ACCESS_GRANTED : ACCESS_OPEN);
    return r;
}

/* Under the lock. */
static int
wait_for_turn(struct caid_access *access, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = access->client;

    uint64_t spin_until_ns = access->asked_ns + spin_for_ns(&client->accesses.spin);

    if (access->standing && !call_wait_until(client, &access->call, spin_until_ns, deadline_ns))
        return 1;
    while (access->state == ACCESS_BUSY) /* another thread's wait */
        if (!cond_wait_until(&access->call.wake, &client->lock, deadline_ns))
            return 1;
    if (access->state == ACCESS_GRANTED)
        return enter(access, deadline_ns, error);
    if (access->state == ACCESS_OPEN)
        return 0;
    return access->failed.code != 0
               ? fail_again(error, &access->failed)
               : fail(error, CAID_ERR_INVALID, "%s: the bracket has ended", access->names);
}

int
caid_access_wait(struct caid_access *access, uint64_t timeout_ns, struct caid_error *error)
{
    if (!access)
        return fail(error, CAID_ERR_INVALID, "access is NULL");
    struct caid_client *client = access->client;
    int r = client_check(client, error);
    if (r < 0)
        return r;
    uint64_t deadline_ns = deadline_of(timeout_ns);

    client_enter_anyway(client);
    r = wait_for_turn(access, deadline_ns, error);
    client_leave(client);
    return r;
}

int
caid_access_begin(struct caid_client *client, struct caid_access **ret,
                  const struct caid_access_options *options, struct caid_error *error)
{
    struct caid_access *access;

    if (!ret)
        return fail(error, CAID_ERR_INVALID, "ret is NULL");
    int r = caid_access_start(client, &access, options, error);
    if (r < 0)
        return r;
    r = caid_access_wait(access, CAID_FOREVER, error);
    if (r < 0)
        caid_access_free(access);
    else
        *ret = access;
    return r;
}

int
caid_array_begin(struct caid_array *array, struct caid_access **ret, uint32_t flags,
                 uint64_t stream, uint64_t timeout_ns, struct caid_error *error)
{
    struct caid_access_options options = CAID_INIT(struct caid_access_options);
    bool write = flags & CAID_ACCESS_WRITE;

    if (!array)
        return fail(error, CAID_ERR_INVALID, "array is NULL");
    if (flags & ~(uint32_t)CAID_ACCESS_WRITE)
        return fail(error, CAID_ERR_INVALID, "flags %#x: unknown here",
                    flags & ~(uint32_t)CAID_ACCESS_WRITE);
    options.reads = options.writes = &array;
    options.n_reads = !write;
    options.n_writes = write;
    options.stream = stream;
    options.timeout_ns = timeout_ns;
    options.nowait = timeout_ns == 0;
    return caid_access_begin(array->client, ret, &options, error);
}
