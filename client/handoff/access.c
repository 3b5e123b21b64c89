/* SPDX-License-Identifier: Apache-2.0 */
#include "access.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "fence.h"
#include "lane.h"
#include "memory/array.h"
#include "memory/block.h"
#include "page.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/stream.h"

/* Fences of one bracket, which come in portions. Far more than pages have slots; only a daemon
 * that is none has more. */
#define FENCES_MAX (1u << 20)
/* How long the answer to a cancellation is waited for. */
#define CANCEL_NS NSEC_PER_SEC

enum access_state {
    ACCESS_ASKED,
    ACCESS_GRANTED,
    ACCESS_BUSY,
    ACCESS_OPEN,
    ACCESS_OVER,
};

struct caid_access {
    struct caid_client *client;

    /* Fixed. */
    struct lane *lane;    /* NULL: the host's; the caller's reference */
    uint64_t deadline_ns; /* of the whole begin; 0: it does not wait */
    struct msg_begin_params params;
    char names[128]; /* of the arrays, for messages */

    /* Under the client's lock. */
    uint32_t refs;
    enum access_state state;
    struct standing begin;
    uint64_t asked_ns;
    bool granted;   /* the daemon has opened the bracket */
    bool begun;     /* it is open, or was */
    bool given_up;  /* by its caller */
    bool is_unsent; /* is in the list: its end */
    TAILQ_ENTRY(caid_access) unsent;
    LIST_ENTRY(caid_access) of_table;
    struct msg_end_params end;
    struct caid_error failed; /* why it has not begun; code 0: it has, or may */

    /* What is waited for: under the client's lock until it is granted, then of the thread that
     * has it, and fixed from OPEN on. By page and slot. */
    struct fence *fences;
    size_t n_fences, fences_capacity;
    uint64_t last_page, last_slot; /* of the fences that came */
    bool more;                     /* are to be asked for */

    uint64_t leases[]; /* of arrays that are read, then of those that are written */
};

void
access_table_init(struct access_table *table)
{
    TAILQ_INIT(&table->unsent);
    LIST_INIT(&table->all);
}

/* ---- life ---- */

/* Never drops the client's last reference: who is here has entered it. */
static void
access_unref(struct caid_access *access)
{
    if (--access->refs > 0)
        return;
    pthread_cond_destroy(&access->begin.call.wake);
    client_unref(access->client);
    free(access);
}

/* Another state, which whoever waits for it is told. Under the client's lock. */
static void
set_state(struct caid_access *access, enum access_state state)
{
    if (state == ACCESS_OVER && access->state != ACCESS_OVER)
        LIST_REMOVE(access, of_table);
    access->state = state;
    pthread_cond_broadcast(&access->begin.call.wake);
}

static void
drop_fences(struct caid_access *access)
{
    while (access->n_fences > 0)
        fence_drop(&access->fences[--access->n_fences]);
    free(access->fences);
    access->fences = NULL;
}

/* Gives back what only the caller's reference needs: nothing is added to one that is given up, or
 * over. Not under the lock. */
static void
let_go(struct caid_access *access)
{
    if (access->lane)
        lane_put(access->lane);
    drop_fences(access);
}

/* ---- what is to be sent ---- */

static void
set_unsent(struct caid_access *access, bool unsent)
{
    struct access_list *list = &access->client->accesses->unsent;

    if (access->is_unsent == unsent)
        return;
    access->is_unsent = unsent;
    if (unsent) {
        access->refs++;
        TAILQ_INSERT_TAIL(list, access, unsent);
    } else {
        TAILQ_REMOVE(list, access, unsent);
        access_unref(access);
    }
}

static int
flush(struct caid_client *client)
{
    struct caid_access *access;

    while (client->lost.code == 0 && (access = TAILQ_FIRST(&client->accesses->unsent))) {
        int r = call_notify(client, MSG_END, &access->end);
        if (r < 0)
            return r;
        set_unsent(access, false);
    }
    return 0;
}

static bool
has_unsent(const struct caid_client *client)
{
    return !TAILQ_EMPTY(&client->accesses->unsent);
}

static void
lost(struct caid_client *client)
{
    struct caid_access *access;

    while ((access = TAILQ_FIRST(&client->accesses->unsent)))
        set_unsent(access, false);
}

/* Ends a bracket that the daemon has opened. Under the client's lock. */
static void
queue_end(struct caid_access *access, const struct msg_end_params *end)
{
    struct caid_client *client = access->client;

    if (client->lost.code != 0)
        return;
    access->end = *end;
    access->end.bracket = access->params.bracket;
    set_unsent(access, true);
    call_flush(client); /* what does not fit goes later */
}

/* The same, as if it had not been. */
static void
send_undone(struct caid_access *access)
{
    queue_end(access, &(struct msg_end_params){.undone = true});
}

/* The daemon answers at once, and if it was a grant that crossed the cancellation, others wait
 * for it to be given back: so the answer is not left to whoever reads next, unless the daemon
 * does not answer. */
static void
cancel(struct caid_access *access)
{
    struct caid_client *client = access->client;

    standing_cancel(client, &access->begin);
    call_flush(client);
    call_wait_until(client, &access->begin.call, clock_now_ns() + SPIN_MIN_NS,
                    clock_now_ns() + CANCEL_NS);
}

/* What is asked for is given up: cancelled, or given back. Under the client's lock, which it drops
 * meanwhile. */
static void
give_up(struct caid_access *access)
{
    access->given_up = true;
    if (access->begin.state != STANDING_IDLE) {
        cancel(access);
    } else if (access->state == ACCESS_GRANTED) {
        send_undone(access);
        set_state(access, ACCESS_OVER);
    }
}

/* ---- the daemon's answer ---- */

/* They come in order, each of them once: so portions come to an end. */
static bool
fences_are_new(const struct caid_access *access, const struct msg_fences_result *result)
{
    uint64_t page = access->last_page, slot = access->last_slot;

    for (uint32_t i = 0; i < result->n_fences; i++) {
        const struct msg_fence *fence = &result->fences[i];
        if (fence->page < page || (fence->page == page && fence->slot <= slot))
            return false;
        page = fence->page;
        slot = fence->slot;
    }
    return !result->more || result->n_fences > 0;
}

static bool
fences_reserve(struct caid_access *access, size_t n)
{
    size_t wanted = access->n_fences + n;

    if (wanted <= access->fences_capacity)
        return true;
    struct fence *fences = reallocarray(access->fences, 2 * wanted, sizeof(fences[0]));
    if (!fences)
        return false;
    access->fences = fences;
    access->fences_capacity = 2 * wanted;
    return true;
}

/* Under the client's lock. */
static int
add_fences(struct caid_access *access, const struct msg_fences_result *result,
           struct caid_error *error)
{
    size_t n = result->n_fences;

    if (!fences_are_new(access, result) || access->n_fences + n > FENCES_MAX)
        return -EPROTO;
    access->more = result->more;
    if (n == 0)
        return 0;
    if (!fences_reserve(access, n))
        return fail_errno(error, ENOMEM, "no memory for %zu fences", access->n_fences + n);
    int r = fences_take(access->client, result->fences, (uint32_t)n,
                        access->fences + access->n_fences);
    if (r < 0)
        return r;
    access->n_fences += n;
    access->last_page = result->fences[n - 1].page;
    access->last_slot = result->fences[n - 1].slot;
    return 0;
}

/* Takes the pages in any case: the daemon counts on them being here. When that fails, the
 * connection ends, and the access may have gone with it. */
static int
take_pages(struct caid_client *client, const struct call *call, struct msg *reply,
           struct call_fds *fds, struct msg_fences_result *ret)
{
    if (msg_decode_result(reply, call->method, ret) < 0)
        return -EPROTO;
    return pages_take(client, ret->pages, ret->n_pages, fds, false);
}

static int
take_grant(struct caid_client *client, struct call *call, struct msg *reply,
           struct call_fds *fds)
{
    struct caid_access *access = container_of(call, struct caid_access, begin.call);
    struct msg_fences_result result;

    int r = take_pages(client, call, reply, fds, &result);
    if (r < 0)
        return r;
    access->granted = true;
    return access->given_up ? 0 : add_fences(access, &result, &call->error);
}

/* The begin is answered, or the connection has ended. A grant that nobody wants is given back. */
static void
begin_over(struct caid_client *client, struct standing *begin)
{
    struct caid_access *access = container_of(begin, struct caid_access, begin);
    const struct call *call = &begin->call;

    spin_note(&client->accesses->spin, clock_now_ns() - access->asked_ns);
    if (call->r < 0)
        access->failed = call->error;
    if (access->granted && (call->r < 0 || access->given_up))
        send_undone(access);
    set_state(access, call->r < 0 || access->given_up ? ACCESS_OVER : ACCESS_GRANTED);
    access_unref(access);
}

/* ---- what did not fit its answer ---- */

struct more_call {
    struct call call;
    struct caid_access *access;
};

static int
take_more(struct caid_client *client, struct call *call, struct msg *reply,
          struct call_fds *fds)
{
    struct caid_access *access = container_of(call, struct more_call, call)->access;
    struct msg_fences_result result;

    int r = take_pages(client, call, reply, fds, &result);
    return r < 0 ? r : add_fences(access, &result, &call->error);
}

/* Asks for the fences after those that came. Not under the lock. */
static int
ask_for_more(struct caid_access *access, struct caid_error *error)
{
    struct msg_fences_params params = {
        .bracket = access->params.bracket,
        .page = access->last_page,
        .slot = access->last_slot,
    };
    struct more_call more = {
        .call = {.method = MSG_FENCES, .params = &params, .take = take_more, .has_pages = true},
        .access = access,
    };

    return call_make(access->client, &more.call, error);
}

/* ---- asking ---- */

static const char *
label(const struct caid_array *array)
{
    const char *name = caid_array_get_info(array)->name;
    return name && name[0] ? name : "(unnamed)";
}

static int
check_kind(const struct caid_array *array, bool write, struct caid_error *error)
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
    return check_kind(array, write, error);
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
    access->begin.call = (struct call){
        .method = MSG_BEGIN,
        .params = &access->params,
        .take = take_grant,
        .has_pages = true,
    };
    standing_init(&access->begin, begin_over);
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
    access->params.bracket = ++client->accesses->last_id;
    access->asked_ns = clock_now_ns();
    r = standing_start(client, &access->begin, error);
    if (r == 0) {
        access->refs++;
        LIST_INSERT_HEAD(&client->accesses->all, access, of_table);
    }
    client_leave(client);
    return r;
}

/* Ends one that has not been asked for. */
static void
discard(struct caid_access *access)
{
    struct caid_client *client = access->client;

    let_go(access);
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

static int
fail_abandoned(const struct caid_access *access, struct caid_error *error)
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
        r = ask_for_more(access, &why);
    if (r == 0)
        r = lane_wait(access->client, access->lane, access->fences, access->n_fences, until_ns,
                      &why);
    if (r > 0)
        return fail_abandoned(access, error);
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

    set_state(access, ACCESS_BUSY);
    pthread_mutex_unlock(&client->lock);
    struct caid_error why = {0};
    int r = wait_for_fences(access, deadline_ns, &why);
    if (r == 0)
        drop_passed(access);
    pthread_mutex_lock(&client->lock);
    if (r < 0) {
        access->failed = why;
        send_undone(access);
        fail_again(error, &why);
    }
    access->begun = r == 0;
    set_state(access, r < 0 ? ACCESS_OVER : r > 0 ? ACCESS_GRANTED : ACCESS_OPEN);
    return r;
}

/* Under the lock. */
static int
wait_for_turn(struct caid_access *access, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = access->client;

    uint64_t spin_until_ns = access->asked_ns + spin_for_ns(&client->accesses->spin);

    if (access->begin.state != STANDING_IDLE &&
        !call_wait_until(client, &access->begin.call, spin_until_ns, deadline_ns))
        return 1;
    while (access->state == ACCESS_BUSY) /* another thread's wait */
        if (!cond_wait_until(&access->begin.call.wake, &client->lock, deadline_ns))
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

/* ---- the end ---- */

static void
send_end(struct caid_access *access, const struct msg_end_params *end)
{
    struct caid_client *client = access->client;

    pthread_mutex_lock(&client->lock);
    queue_end(access, end);
    pthread_mutex_unlock(&client->lock);
}

/* Under the lane's lock from the signal until the end is on its way: the daemon takes no fence
 * that runs backwards. */
static int
signal_end(struct caid_access *access, bool abandon, struct caid_error *error)
{
    struct fence fence;

    lane_lock(access->lane);
    int r = lane_signal(access->client, access->lane, &fence, error);
    if (r == 0) {
        const struct msg_end_params end = {
            .page = fence.page->id,
            .slot = fence.slot,
            .value = fence.value,
            .abandon = abandon,
        };
        send_end(access, &end);
        fence_drop(&fence);
    }
    lane_unlock(access->lane);
    return r;
}

/* Whether the stream could be waited for: then there is nothing to signal. A capture would be
 * ended by that, and a stream of another thread's is not to be had. */
static bool
has_drained(struct caid_access *access, const struct caid_error *why)
{
    struct stream stream;

    if (why->code == CAID_ERR_INVALID || gpu_is_gone((CUresult)why->cuda_result) ||
        stream_enter_context(access->client, access->lane->handle, access->lane->context,
                             &stream, NULL) < 0)
        return false;
    CUresult result = stream.drv->cu.cuStreamSynchronize(stream.handle);
    stream_leave(&stream);
    return result == CUDA_SUCCESS;
}

/* Where no signal can be enqueued (there is no page for one more stream, say), the host waits for
 * the stream; where it cannot, nobody knows what was written. */
static int
finish(struct caid_access *access, bool abandon, struct caid_error *error)
{
    struct caid_error why = {0};

    if (!access->lane) {
        send_end(access, &(struct msg_end_params){.abandon = abandon});
        return 0;
    }
    if (signal_end(access, abandon, &why) == 0)
        return 0;
    bool drained = has_drained(access, &why);
    send_end(access, &(struct msg_end_params){.abandon = abandon || !drained});
    return drained ? 0 : fail_again(error, &why);
}

/* Takes it from others who might end it. Under the lock. */
static int
take_open(struct caid_access *access, struct caid_error *error)
{
    struct caid_client *client = access->client;

    if (client->lost.code != 0) { /* it was ended with the connection */
        if (access->state == ACCESS_OPEN)
            set_state(access, ACCESS_OVER);
        return fail_again(error, &client->lost);
    }
    if (access->state != ACCESS_OPEN)
        return fail(error, CAID_ERR_INVALID, "%s: the bracket has %s", access->names,
                    access->begun ? "ended" : "not begun");
    set_state(access, ACCESS_BUSY);
    return 0;
}

/* Entered; drops the lock meanwhile. */
static int
end(struct caid_access *access, bool abandon, struct caid_error *error)
{
    struct caid_client *client = access->client;

    int r = take_open(access, error);
    if (r < 0)
        return r;
    pthread_mutex_unlock(&client->lock);
    r = finish(access, abandon, error);
    pthread_mutex_lock(&client->lock);
    set_state(access, ACCESS_OVER);
    return r == 0 && client->lost.code != 0 ? fail_again(error, &client->lost) : r;
}

static int
access_end(struct caid_access *access, bool abandon, struct caid_error *error)
{
    if (!access)
        return fail(error, CAID_ERR_INVALID, "access is NULL");
    int r = client_check(access->client, error);
    if (r < 0)
        return r;
    client_enter_anyway(access->client);
    r = end(access, abandon, error);
    client_leave(access->client);
    return r;
}

int
caid_access_end(struct caid_access *access, struct caid_error *error)
{
    int r = access_end(access, false, error);
    return r < 0 ? r : caid_access_check(access, error);
}

int
caid_access_abandon(struct caid_access *access, struct caid_error *error)
{
    return access_end(access, true, error);
}

/* Ends what is open as abandoned, and gives up what is asked for. Under the client's lock, which it drops
 * meanwhile. */
static void
abandon_bracket(struct caid_access *access)
{
    if (access->state == ACCESS_OPEN)
        end(access, true, NULL);
    give_up(access);
}

void
caid_access_free(struct caid_access *access)
{
    if (!access)
        return;
    struct caid_client *client = access->client;
    if (fork_guard_crossed(&client->guard)) {
        free(access->fences);
        free(access);
        client_unref(client);
        return;
    }
    client_enter_anyway(client);
    abandon_bracket(access);
    pthread_mutex_unlock(&client->lock);
    let_go(access);
    pthread_mutex_lock(&client->lock);
    access_unref(access);
    client_leave(client);
}

/* NULL: there is none that can be ended. What another thread has is that thread's. */
static struct caid_access *
find_unfinished(struct caid_client *client)
{
    struct caid_access *access;

    LIST_FOREACH(access, &client->accesses->all, of_table)
        if (access->state != ACCESS_BUSY && !access->given_up)
            return access;
    return NULL;
}

void
access_close(struct caid_client *client)
{
    struct caid_access *access;

    while (client->lost.code == 0 && (access = find_unfinished(client))) {
        access->refs++;
        abandon_bracket(access);
        access_unref(access);
    }
}

const struct feature access_feature = {.has_unsent = has_unsent, .flush = flush, .lost = lost};

/* ---- what it has read ---- */

/* Whether a fence is lost of what it read: 1. What cannot be is CAID_ERR_PROTOCOL. */
static int
look_for_loss(const struct caid_access *access, struct caid_error *error)
{
    enum fence_state state;

    for (size_t i = 0; i < access->n_fences; i++) {
        int r = fence_look(&access->fences[i], true, &state, error);
        if (r < 0)
            return r;
        if (state == FENCE_LOST && access->fences[i].data)
            return 1;
    }
    return 0;
}

/* Whether the bracket has begun, by now or before it ended: its fences change no more. */
static bool
has_begun(struct caid_access *access)
{
    struct caid_client *client = access->client;

    pthread_mutex_lock(&client->lock);
    bool begun = access->begun;
    pthread_mutex_unlock(&client->lock);
    return begun;
}

int
caid_access_check(struct caid_access *access, struct caid_error *error)
{
    if (!access)
        return fail(error, CAID_ERR_INVALID, "access is NULL");
    int r = client_check(access->client, error);
    if (r < 0)
        return r;
    if (!has_begun(access))
        return fail(error, CAID_ERR_INVALID, "%s: the bracket has not begun", access->names);
    r = look_for_loss(access, error);
    return r > 0 ? fail_abandoned(access, error) : r;
}

/* ---- abandoned arrays ---- */

int
caid_array_discard(struct caid_array *array, struct caid_error *error)
{
    if (!array)
        return fail(error, CAID_ERR_INVALID, "array is NULL");
    int r = client_check(array->client, error);
    if (r == 0)
        r = check_kind(array, true, error);
    if (r < 0)
        return r;
    struct msg_discard_params params = {.lease = array->lease};
    return call_ask(array->client, MSG_DISCARD, &params, error);
}
