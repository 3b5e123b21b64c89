/* SPDX-License-Identifier: Apache-2.0 */
#include "bracket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "fence.h"
#include "lane.h"
#include "memory/array.h"
#include "memory/block.h"
#include "page.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/interrupt.h"
#include "session/stream.h"

/* Fences of one bracket, which come in portions. Far more than pages have slots: only a broken
 * daemon sends more. */
#define FENCES_MAX (1u << 20)
/* How long to wait for the answer to a cancellation. */
#define CANCEL_NS (200 * NSEC_PER_MSEC)
/* How much longer than the timeout the daemon may take to answer. */
#define GRACE_NS NSEC_PER_SEC

enum bracket_state {
    BRACKET_ASKED,
    BRACKET_GRANTED,
    BRACKET_BUSY,
    BRACKET_OPEN,
    BRACKET_OVER,
};

struct caid_bracket {
    struct caid_client *client;

    /* Fixed. */
    struct lane *lane;    /* NULL: the host waits; holds a reference */
    uint64_t deadline_ns; /* of the whole begin; 0: do not wait */
    struct msg_begin_params params;
    char names[128]; /* of the arrays, for messages */

    /* Under the client's lock. */
    uint32_t refs;
    enum bracket_state state;
    struct call begin;
    uint64_t asked_ns;
    bool granted;              /* the daemon has granted it */
    bool begun;                /* it is open, or was open */
    bool given_up;             /* by its caller */
    bool has_ended;            /* it is in a list, or was */
    uint64_t sent_seq;         /* the last request before its end */
    struct bracket_list *list; /* the table's `unsent` or `sent`; NULL: in neither */
    TAILQ_ENTRY(caid_bracket) of_list;
    LIST_ENTRY(caid_bracket) of_table;
    struct msg_end_params end;
    struct caid_error failed; /* why it has not begun; code 0: it has not failed */

    /* What is waited for: under the client's lock until it is granted, then of the thread that
     * has it, and fixed from OPEN on. By page and slot. */
    struct fence *fences;
    size_t n_fences, fences_capacity;
    uint64_t last_page, last_slot; /* of the fences that came */
    bool more;                     /* there are more fences to ask for */

    /* the daemon's numbers of the arrays that it writes: behind the leases */
    uint64_t *written;
    /* of arrays that it reads, then of those that it writes; their ranges are last */
    uint64_t leases[];
};

void
bracket_table_init(struct bracket_table *table)
{
    TAILQ_INIT(&table->unsent);
    TAILQ_INIT(&table->sent);
    LIST_INIT(&table->all);
}

/* ---- life ---- */

/* Never drops the client's last reference: the calling thread has entered the client. */
static void
bracket_unref(struct caid_bracket *bracket)
{
    if (--bracket->refs > 0)
        return;
    client_unref(bracket->client);
    free(bracket);
}

/* Changes the state and wakes who waits for it. Under the client's lock. */
static void
set_state(struct caid_bracket *bracket, enum bracket_state state)
{
    if (state == BRACKET_OVER && bracket->state != BRACKET_OVER)
        LIST_REMOVE(bracket, of_table);
    bracket->state = state;
    wake_all(&bracket->begin.wake);
}

static void
drop_fences(struct caid_bracket *bracket)
{
    while (bracket->n_fences > 0)
        fence_drop(&bracket->fences[--bracket->n_fences]);
    free(bracket->fences);
    bracket->fences = NULL;
}

/* Frees what only the caller's reference needs: nothing is added once it is given up or over. Not
 * under the lock. */
static void
let_go(struct caid_bracket *bracket)
{
    if (bracket->lane)
        lane_put(bracket->lane);
    drop_fences(bracket);
}

/* ---- what is sent ---- */

/* Moves it into that list of the table; NULL: into none. */
static void
set_list(struct caid_bracket *bracket, struct bracket_list *list)
{
    struct bracket_list *was = bracket->list;

    if (was)
        TAILQ_REMOVE(was, bracket, of_list);
    bracket->list = list;
    if (list)
        TAILQ_INSERT_TAIL(list, bracket, of_list);
    if (list && !was)
        bracket->refs++;
    else if (was && !list)
        bracket_unref(bracket);
}

/* Forgets ends that the daemon has received: it has answered a later request. */
static void
forget_heard(struct caid_client *client)
{
    struct caid_bracket *bracket;

    while ((bracket = TAILQ_FIRST(&client->brackets->sent)) &&
           bracket->sent_seq < client->answered)
        set_list(bracket, NULL);
}

/* The end is sent. If the bracket wrote, it stays in `sent` until the daemon has received it. */
static void
note_sent(struct caid_bracket *bracket)
{
    struct caid_client *client = bracket->client;
    bool stays = bracket->params.write.n > 0 && client->resume.has_token;

    bracket->sent_seq = client->seq;
    set_list(bracket, stays ? &client->brackets->sent : NULL);
}

static int
flush(struct caid_client *client)
{
    struct caid_bracket *bracket;

    forget_heard(client);
    while (client->lost.code == 0 && (bracket = TAILQ_FIRST(&client->brackets->unsent))) {
        int r = call_notify(client, MSG_END, &bracket->end);
        if (r < 0)
            return r;
        note_sent(bracket);
    }
    return 0;
}

const char *
bracket_open_names(const struct caid_client *client)
{
    const struct caid_bracket *bracket = LIST_FIRST(&client->brackets->all);
    return bracket ? bracket->names : NULL;
}

static bool
has_unsent(const struct caid_client *client)
{
    return !TAILQ_EMPTY(&client->brackets->unsent);
}

static void
lost(struct caid_client *client)
{
    struct caid_bracket *bracket;

    while ((bracket = TAILQ_FIRST(&client->brackets->unsent)) ||
           (bracket = TAILQ_FIRST(&client->brackets->sent)))
        set_list(bracket, NULL);
}

/* Each array that the bracket could write, with the fence of its end. */
static void
inventory_end(const struct caid_bracket *bracket, const struct msg_end_params *end,
              struct inventory *inventory)
{
    for (uint32_t i = 0; i < bracket->params.write.n; i++) {
        inventory_add(inventory, INVENTORY_ENDED, bracket->written[i]);
        inventory_add(inventory, INVENTORY_ENDED, end->page);
        inventory_add(inventory, INVENTORY_ENDED, end->slot);
        inventory_add(inventory, INVENTORY_ENDED, end->value);
        inventory_add(inventory, INVENTORY_ENDED,
                      end->undone ? MSG_ENDED_UNDONE : end->abandon);
    }
}

static void
inventory_open(const struct caid_bracket *bracket, struct inventory *inventory)
{
    struct msg_begin_params params = bracket->params;

    params.again = true;
    inventory_add_begin(inventory, &params);
}

/* An end that was not sent yet: the bracket is open there, so it is said to be open. What it has
 * written is said at once: if a lease was closed meanwhile, the bracket is opened again without
 * that array. */
static void
brackets_inventory(struct caid_client *client, struct inventory *inventory)
{
    static const struct msg_end_params undone = {.undone = true};
    const struct bracket_table *table = client->brackets;
    const struct caid_bracket *bracket;

    forget_heard(client);
    LIST_FOREACH(bracket, &table->all, of_table)
        if (bracket->granted && !bracket->has_ended)
            inventory_open(bracket, inventory);
        else if (!bracket->granted) /* it may have been granted, and the answer lost */
            inventory_end(bracket, &undone, inventory);
    TAILQ_FOREACH(bracket, &table->unsent, of_list) {
        inventory_end(bracket, &bracket->end, inventory);
        inventory_open(bracket, inventory);
    }
    TAILQ_FOREACH(bracket, &table->sent, of_list)
        inventory_end(bracket, &bracket->end, inventory);
}

/* Ends a bracket that the daemon has opened. Under the client's lock. */
static void
queue_end(struct caid_bracket *bracket, const struct msg_end_params *end)
{
    struct caid_client *client = bracket->client;

    if (client->lost.code != 0)
        return;
    bracket->end = *end;
    bracket->end.bracket = bracket->params.bracket;
    bracket->has_ended = true;
    set_list(bracket, &client->brackets->unsent);
    call_flush(client); /* what does not fit goes later */
}

/* Ends it as if it had not been granted. */
static void
send_undone(struct caid_bracket *bracket)
{
    queue_end(bracket, &(struct msg_end_params){.undone = true});
}

/* The daemon answers a cancellation at once. If a grant had crossed it, other clients wait until
 * that is given back. So the answer is awaited here, and not left to whoever reads next. */
static void
cancel(struct caid_bracket *bracket)
{
    struct caid_client *client = bracket->client;

    call_cancel(client, &bracket->begin);
    call_flush(client);
    if (call_wait_until(client, &bracket->begin, clock_now_ns() + SPIN_MIN_NS,
                        clock_now_ns() + CANCEL_NS, NULL) != 0)
        call_look_for(client, &bracket->begin);
}

/* Gives up a begin: cancels it, or gives the grant back. Under the client's lock, which it drops
 * meanwhile. */
static void
bracket_give_up(struct caid_bracket *bracket)
{
    bracket->given_up = true;
    if (bracket->begin.state != CALL_IDLE) {
        cancel(bracket);
    } else if (bracket->state == BRACKET_GRANTED) {
        send_undone(bracket);
        set_state(bracket, BRACKET_OVER);
    }
}

/* ---- the daemon's answer ---- */

/* Fences come in order, each of them once, so that the portions end. */
static bool
fences_are_new(const struct caid_bracket *bracket, const struct msg_fences_result *result)
{
    uint64_t page = bracket->last_page, slot = bracket->last_slot;

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
fences_reserve(struct caid_bracket *bracket, size_t n)
{
    size_t wanted = bracket->n_fences + n;

    if (wanted <= bracket->fences_capacity)
        return true;
    struct fence *fences = reallocarray(bracket->fences, 2 * wanted, sizeof(fences[0]));
    if (!fences)
        return false;
    bracket->fences = fences;
    bracket->fences_capacity = 2 * wanted;
    return true;
}

/* Under the client's lock. */
static int
add_fences(struct caid_bracket *bracket, const struct msg_fences_result *result,
           struct caid_error *error)
{
    size_t n = result->n_fences;

    if (!fences_are_new(bracket, result) || bracket->n_fences + n > FENCES_MAX)
        return -EPROTO;
    bracket->more = result->more;
    if (n == 0)
        return 0;
    if (!fences_reserve(bracket, n))
        return fail_errno(error, ENOMEM, "no memory for %zu fences", bracket->n_fences + n);
    int r = fences_take(bracket->client, result->fences, (uint32_t)n,
                        bracket->fences + bracket->n_fences);
    if (r < 0)
        return r;
    bracket->n_fences += n;
    bracket->last_page = result->fences[n - 1].page;
    bracket->last_slot = result->fences[n - 1].slot;
    return 0;
}

/* Takes the pages in any case: the daemon relies on the client having them. If that fails, the
 * connection ends, and the bracket may be freed. */
static int
take_grant(struct caid_client *client, struct call *call, const void *reply,
           struct call_fds *fds)
{
    struct caid_bracket *bracket = container_of(call, struct caid_bracket, begin);
    const struct msg_fences_result *result = reply;

    int r = pages_take(client, result->pages, result->n_pages, fds, false);
    if (r < 0)
        return r;
    bracket->granted = true;
    return bracket->given_up ? 0 : add_fences(bracket, result, &call->error);
}

/* The begin was answered, or the connection has ended. A grant that nobody waits for is given
 * back. */
static void
begin_over(struct caid_client *client, struct call *call)
{
    struct caid_bracket *bracket = container_of(call, struct caid_bracket, begin);

    spin_note(&client->brackets->spin, clock_now_ns() - bracket->asked_ns);
    if (call->r < 0)
        bracket->failed = call->error;
    if (bracket->granted && (call->r < 0 || bracket->given_up))
        send_undone(bracket);
    set_state(bracket, call->r < 0 || bracket->given_up ? BRACKET_OVER : BRACKET_GRANTED);
    bracket_unref(bracket);
}

/* ---- further portions ---- */

struct more_call {
    struct call call;
    struct caid_bracket *bracket;
};

/* The pages are kept in any case. If nobody waits for this answer, the bracket has not begun, and
 * its caller gives it back. */
static int
take_more(struct caid_client *client, struct call *call, const void *reply,
          struct call_fds *fds)
{
    const struct more_call *more = container_of(call, struct more_call, call);
    const struct msg_fences_result *result = reply;

    int r = pages_take(client, result->pages, result->n_pages, fds, false);
    return r < 0 || call->left ? r : add_fences(more->bracket, result, &call->error);
}

/* How long an answer may take within the bracket's deadline; UINT64_MAX: no limit. */
static uint64_t
time_left(const struct caid_bracket *bracket)
{
    uint64_t own_ns = bracket->deadline_ns, now_ns = clock_now_ns();

    if (own_ns == 0 || own_ns == UINT64_MAX)
        return UINT64_MAX;
    return (own_ns > now_ns ? own_ns - now_ns : 0) + GRACE_NS;
}

/* Asks for the fences after those that came. Not under the lock. */
static int
ask_for_more(struct caid_bracket *bracket, struct caid_error *error)
{
    struct msg_fences_params params = {
        .bracket = bracket->params.bracket,
        .page = bracket->last_page,
        .slot = bracket->last_slot,
    };
    struct more_call *more = call_new(sizeof(*more), MSG_FENCES, &params);

    if (!more)
        return fail_errno(error, ENOMEM, "no memory for a request");
    more->bracket = bracket;
    more->call.take = take_more;
    more->call.has_pages = true;
    more->call.timeout_ns = min_u64(time_left(bracket), bracket->client->call_timeout_ns);
    return call_make(bracket->client, &more->call, error);
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
    if (array->lost)
        return fail(error, CAID_ERR_LOST,
                    "array \"%s\" was lost when the daemon was started anew", label(array));
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
check_options(const struct caid_client *client, const struct caid_bracket_options *options,
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

/* Leases that it reads, then leases that it writes. */
static const struct caid_array *
array_at(const struct caid_bracket_options *options, size_t i)
{
    return i < options->n_reads ? options->reads[i] : options->writes[i - options->n_reads];
}

/* Adds as many names as fit, and how many more there are. */
static void
add_names(char *names, size_t size, const struct caid_bracket_options *options)
{
    size_t n = options->n_reads + options->n_writes, at = 0;

    for (size_t i = 0; i < n; i++) {
        const char *name = label(array_at(options, i));
        size_t room = size - at, wanted = strlen(name) + sizeof(", \"\" and 1000 more");
        if (i > 0 && wanted > room) {
            snprintf(names + at, room, " and %zu more", n - i);
            return;
        }
        int written = snprintf(names + at, room, "%s\"%s\"", i > 0 ? ", " : "", name);
        at += written < (int)room ? (size_t)written : room - 1;
    }
}

static void
add_leases(struct caid_bracket *bracket, const struct caid_bracket_options *options)
{
    uint64_t *leases = bracket->leases;
    size_t n_reads = options->n_reads, n_writes = options->n_writes;

    for (size_t i = 0; i < n_reads + n_writes; i++)
        leases[i] = array_at(options, i)->lease;
    bracket->written = leases + n_reads + n_writes;
    for (size_t i = 0; i < n_writes; i++)
        bracket->written[i] = options->writes[i]->id;
    bracket->params.read = (struct msg_u64s){n_reads ? leases : NULL, (uint32_t)n_reads};
    bracket->params.write =
        (struct msg_u64s){n_writes ? leases + n_reads : NULL, (uint32_t)n_writes};
}

static struct msg_u64s
put_ranges(uint64_t *to, const struct caid_range *ranges, size_t n)
{
    for (size_t i = 0; ranges && i < n; i++) {
        to[2 * i] = ranges[i].from;
        to[2 * i + 1] = ranges[i].end;
    }
    return ranges && n ? (struct msg_u64s){to, 2 * (uint32_t)n} : (struct msg_u64s){0};
}

static void
add_ranges(struct caid_bracket *bracket, const struct caid_bracket_options *options)
{
    uint64_t *ranges = bracket->written + options->n_writes;

    bracket->params.read_ranges = put_ranges(ranges, options->read_ranges, options->n_reads);
    bracket->params.write_ranges = put_ranges(ranges + bracket->params.read_ranges.n,
                                              options->write_ranges, options->n_writes);
}

static struct caid_bracket *
bracket_new(struct caid_client *client, const struct caid_bracket_options *options)
{
    size_t n = (options->read_ranges ? 3 : 1) * options->n_reads +
               (options->write_ranges ? 4 : 2) * options->n_writes;
    struct caid_bracket *bracket = calloc(1, sizeof(*bracket) + n * sizeof(bracket->leases[0]));
    uint64_t timeout_ns = options->timeout_ns == CAID_FOREVER ? 0 : options->timeout_ns;

    if (!bracket)
        return NULL;
    bracket->client = client_ref(client);
    bracket->refs = 1;
    bracket->deadline_ns =
        options->nowait ? 0 : deadline_of(timeout_ns ? timeout_ns : CAID_FOREVER);
    bracket->params.timeout_ns = timeout_ns;
    bracket->params.nowait = options->nowait;
    bracket->params.thread = (uint64_t)thread_id();
    add_leases(bracket, options);
    add_ranges(bracket, options);
    add_names(bracket->names, sizeof(bracket->names), options);
    bracket->begin = (struct call){
        .method = MSG_BEGIN,
        .params = &bracket->params,
        .take = take_grant,
        .has_pages = true,
        .over = begin_over,
    };
    return bracket;
}

static int
find_lane(struct caid_bracket *bracket, const struct caid_bracket_options *options,
          struct caid_error *error)
{
    const struct caid_array *first = array_at(options, 0);
    int32_t device = first->info.mapped_device >= 0 ? first->info.mapped_device
                                                    : first->info.device;

    if (options->stream == 0)
        return 0;
    int r = lane_get(bracket->client, options->stream, device, &bracket->lane, error);
    for (size_t i = 0; r == 0 && i < options->n_reads + options->n_writes; i++)
        r = lane_check_device(bracket->lane, array_at(options, i), error);
    return r;
}

static int
bracket_ask(struct caid_bracket *bracket, struct caid_error *error)
{
    struct caid_client *client = bracket->client;

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = client_check_awake(client, error);
    if (r < 0) {
        client_leave(client);
        return r;
    }
    bracket->params.bracket = ++client->brackets->last_id;
    bracket->asked_ns = clock_now_ns();
    uint64_t left_ns = time_left(bracket);
    bracket->begin.timeout_ns = left_ns == UINT64_MAX ? 0 : left_ns;
    r = call_start(client, &bracket->begin, error);
    if (r == 0) {
        bracket->refs++;
        LIST_INSERT_HEAD(&client->brackets->all, bracket, of_table);
    }
    client_leave(client);
    return r;
}

int
caid_bracket_start(struct caid_client *client, struct caid_bracket **ret,
                   const struct caid_bracket_options *options, struct caid_error *error)
{
    struct caid_bracket_options opts;

    int r = client_check_given(client, ret && options, ret ? "options" : "ret", error);
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_options(client, &opts, error);
    if (r < 0)
        return r;

    struct caid_bracket *bracket = bracket_new(client, &opts);
    if (!bracket)
        return fail_errno(error, ENOMEM, "no memory for a bracket");
    r = find_lane(bracket, &opts, error);
    if (r == 0)
        r = bracket_ask(bracket, error);
    if (r < 0)
        caid_bracket_free(bracket);
    else
        *ret = bracket;
    return r;
}

/* ---- after the grant ---- */

static int
fail_abandoned(const struct caid_bracket *bracket, struct caid_error *error)
{
    return fail(error, CAID_ERR_ABANDONED,
                "%s: a process died before the work was done that this waited for",
                bracket->names);
}

/* Makes the lane, or the host, wait for all fences. 0; 1: the deadline has come. If the daemon does
 * not send them all, the begin fails. */
static int
wait_for_fences(struct caid_bracket *bracket, uint64_t deadline_ns, struct caid_error *error)
{
    uint64_t until_ns = deadline_ns < bracket->deadline_ns ? deadline_ns : bracket->deadline_ns;
    struct caid_error why = {0};
    int r = 0;

    while (r == 0 && bracket->more)
        r = ask_for_more(bracket, error);
    if (r < 0)
        return r;
    r = lane_wait(bracket->client, bracket->lane, bracket->fences, bracket->n_fences, until_ns,
                  &why);
    if (r > 0)
        return fail_abandoned(bracket, error);
    if (r == 0 || why.code != CAID_ERR_TIMEOUT)
        return r < 0 ? fail_again(error, &why) : 0;
    if (clock_now_ns() < bracket->deadline_ns)
        return 1;
    return fail(error, CAID_ERR_TIMEOUT, "%s: the work before it was not done in time",
                bracket->names);
}

/* Forgets passed fences, so that their pages may go. */
static void
drop_passed(struct caid_bracket *bracket)
{
    enum fence_state state;
    size_t n = 0;

    for (size_t i = 0; i < bracket->n_fences; i++) {
        struct fence *fence = &bracket->fences[i];
        if (fence_look(fence, true, &state, NULL) == 0 && state == FENCE_PASSED)
            fence_drop(fence);
        else
            bracket->fences[n++] = *fence;
    }
    bracket->n_fences = n;
}

/* With the lock, which is dropped meanwhile. */
static int
enter(struct caid_bracket *bracket, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = bracket->client;

    set_state(bracket, BRACKET_BUSY);
    pthread_mutex_unlock(&client->lock);
    struct caid_error why = {0};
    int r = wait_for_fences(bracket, deadline_ns, &why);
    if (r == 0)
        drop_passed(bracket);
    block_addresses_hold(client); /* the program goes on when an exchange has ended */
    block_addresses_release(client);
    pthread_mutex_lock(&client->lock);
    if (r < 0) {
        bracket->failed = why;
        send_undone(bracket);
        fail_again(error, &why);
    }
    bracket->begun = r == 0;
    set_state(bracket, r < 0 ? BRACKET_OVER : r > 0 ? BRACKET_GRANTED : BRACKET_OPEN);
    return r;
}

/* Waits for the daemon's answer. 1: it has not come yet. */
static int
wait_for_answer(struct caid_bracket *bracket, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = bracket->client;
    uint64_t spin_until_ns =
        bracket->asked_ns + spin_for_ns(&client->brackets->spin, SPIN_MIN_NS);
    uint64_t limit_ns = bracket->begin.deadline_ns;
    struct caid_error unwanted;

    if (bracket->begin.state == CALL_IDLE)
        return 0;
    int r = call_wait_until(client, &bracket->begin, spin_until_ns,
                            deadline_ns < limit_ns ? deadline_ns : limit_ns,
                            error ? error : &unwanted);
    if (r <= 0 || clock_now_ns() < limit_ns)
        return r;
    return fail(error, CAID_ERR_TIMEOUT, "%s: the daemon did not answer the begin in time",
                bracket->names);
}

/* Under the lock. */
static int
wait_for_turn(struct caid_bracket *bracket, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = bracket->client;

    int r = wait_for_answer(bracket, deadline_ns, error);
    if (r != 0)
        return r;
    while (bracket->state == BRACKET_BUSY) /* another thread waits for it */
        if (wake_wait(&bracket->begin.wake, &client->lock,
                      interrupt_look_by(client, deadline_ns)) < 0) {
            if (clock_now_ns() >= deadline_ns)
                return 1;
            r = call_ask_interrupt(client, error);
            if (r < 0)
                return r;
        }
    if (bracket->state == BRACKET_GRANTED)
        return enter(bracket, deadline_ns, error);
    if (bracket->state == BRACKET_OPEN)
        return 0;
    return bracket->failed.code != 0
               ? fail_again(error, &bracket->failed)
               : fail(error, CAID_ERR_INVALID, "%s: the bracket has ended", bracket->names);
}

int
caid_bracket_wait(struct caid_bracket *bracket, uint64_t timeout_ns, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(bracket, error);
    if (r < 0)
        return r;
    uint64_t deadline_ns = deadline_of(timeout_ns);

    client_enter_anyway(bracket->client);
    r = wait_for_turn(bracket, deadline_ns, error);
    client_leave(bracket->client);
    return r;
}

int
caid_bracket_begin(struct caid_client *client, struct caid_bracket **ret,
                   const struct caid_bracket_options *options, struct caid_error *error)
{
    struct caid_bracket *bracket;

    if (!ret)
        return fail(error, CAID_ERR_INVALID, "ret is NULL");
    int r = caid_bracket_start(client, &bracket, options, error);
    if (r < 0)
        return r;
    r = caid_bracket_wait(bracket, CAID_FOREVER, error);
    if (r < 0)
        caid_bracket_free(bracket);
    else
        *ret = bracket;
    return r;
}

int
caid_array_begin(struct caid_array *array, struct caid_bracket **ret, uint32_t flags,
                 uint64_t stream, uint64_t timeout_ns, struct caid_error *error)
{
    struct caid_bracket_options options = CAID_INIT(struct caid_bracket_options);
    bool write = flags & CAID_BRACKET_WRITE;

    if (!array)
        return fail(error, CAID_ERR_INVALID, "array is NULL");
    if (flags & ~(uint32_t)CAID_BRACKET_WRITE)
        return fail(error, CAID_ERR_INVALID, "flags %#x: unknown here",
                    flags & ~(uint32_t)CAID_BRACKET_WRITE);
    options.reads = options.writes = &array;
    options.n_reads = !write;
    options.n_writes = write;
    options.stream = stream;
    options.timeout_ns = timeout_ns;
    options.nowait = timeout_ns == 0;
    return caid_bracket_begin(array->client, ret, &options, error);
}

/* ---- the end ---- */

static void
send_end(struct caid_bracket *bracket, const struct msg_end_params *end)
{
    struct caid_client *client = bracket->client;

    pthread_mutex_lock(&client->lock);
    queue_end(bracket, end);
    pthread_mutex_unlock(&client->lock);
}

/* Under the lane's lock, from the signal until the end is sent: the daemon takes no fence that goes
 * backwards. */
static int
signal_end(struct caid_bracket *bracket, bool abandon, struct caid_error *error)
{
    struct fence fence;

    pthread_mutex_lock(&bracket->lane->lock);
    int r = lane_signal(bracket->client, bracket->lane, &fence, error);
    if (r == 0) {
        const struct msg_end_params end = {
            .page = fence.page->id,
            .slot = fence.slot,
            .value = fence.value,
            .abandon = abandon,
        };
        send_end(bracket, &end);
        fence_drop(&fence);
    }
    pthread_mutex_unlock(&bracket->lane->lock);
    return r;
}

/* If no signal can be enqueued (for instance, there is no page for one more stream), the host waits
 * for the stream. If it cannot, nobody knows what was written. */
static int
finish(struct caid_bracket *bracket, bool abandon, struct caid_error *error)
{
    struct caid_error why = {0};

    if (!bracket->lane) {
        send_end(bracket, &(struct msg_end_params){.abandon = abandon});
        return 0;
    }
    if (signal_end(bracket, abandon, &why) == 0)
        return 0;
    bool drained = lane_drain(bracket->client, bracket->lane, &why);
    send_end(bracket, &(struct msg_end_params){.abandon = abandon || !drained});
    return drained ? 0 : fail_again(error, &why);
}

/* Takes it, so that no other thread ends it. Under the lock. */
static int
take_open(struct caid_bracket *bracket, struct caid_error *error)
{
    struct caid_client *client = bracket->client;

    if (client->lost.code != 0) { /* the connection has ended it */
        if (bracket->state == BRACKET_OPEN)
            set_state(bracket, BRACKET_OVER);
        return fail_again(error, &client->lost);
    }
    if (bracket->state != BRACKET_OPEN)
        return fail(error, CAID_ERR_INVALID, "%s: the bracket has %s", bracket->names,
                    bracket->begun ? "ended" : "not begun");
    set_state(bracket, BRACKET_BUSY);
    return 0;
}

/* Entered; drops the lock meanwhile. */
static int
end(struct caid_bracket *bracket, bool abandon, struct caid_error *error)
{
    struct caid_client *client = bracket->client;

    int r = take_open(bracket, error);
    if (r < 0)
        return r;
    pthread_mutex_unlock(&client->lock);
    r = finish(bracket, abandon, error);
    pthread_mutex_lock(&client->lock);
    set_state(bracket, BRACKET_OVER);
    return r == 0 && client->lost.code != 0 ? fail_again(error, &client->lost) : r;
}

static int
bracket_end(struct caid_bracket *bracket, bool abandon, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(bracket, error);
    if (r < 0)
        return r;
    client_enter_anyway(bracket->client);
    r = end(bracket, abandon, error);
    client_leave(bracket->client);
    return r;
}

int
caid_bracket_end(struct caid_bracket *bracket, struct caid_error *error)
{
    int r = bracket_end(bracket, false, error);
    return r < 0 ? r : caid_bracket_check(bracket, error);
}

int
caid_bracket_abandon(struct caid_bracket *bracket, struct caid_error *error)
{
    return bracket_end(bracket, true, error);
}

/* Ends an open bracket as abandoned, and gives up one that is asked for. Under the client's lock,
 * which it drops meanwhile. */
static void
abandon_bracket(struct caid_bracket *bracket)
{
    if (bracket->state == BRACKET_OPEN)
        end(bracket, true, NULL);
    bracket_give_up(bracket);
}

void
caid_bracket_free(struct caid_bracket *bracket)
{
    if (!bracket)
        return;
    struct caid_client *client = bracket->client;
    if (fork_guard_crossed(&client->guard)) {
        free(bracket->fences);
        free(bracket);
        client_unref(client);
        return;
    }
    client_enter_anyway(client);
    abandon_bracket(bracket);
    pthread_mutex_unlock(&client->lock);
    let_go(bracket);
    pthread_mutex_lock(&client->lock);
    bracket_unref(bracket);
    client_leave(client);
}

/* NULL: there is none to end here. A bracket that another thread has is left to that. */
static struct caid_bracket *
find_unfinished(struct caid_client *client)
{
    struct caid_bracket *bracket;

    LIST_FOREACH(bracket, &client->brackets->all, of_table)
        if (bracket->state != BRACKET_BUSY && !bracket->given_up)
            return bracket;
    return NULL;
}

void
bracket_close(struct caid_client *client)
{
    struct caid_bracket *bracket;

    while (client->lost.code == 0 && (bracket = find_unfinished(client))) {
        bracket->refs++;
        abandon_bracket(bracket);
        bracket_unref(bracket);
    }
}

static bool
uses(const struct caid_client *client, uint64_t lease)
{
    const struct caid_bracket *bracket;

    LIST_FOREACH(bracket, &client->brackets->all, of_table)
        for (uint32_t i = 0; i < bracket->params.read.n + bracket->params.write.n; i++)
            if (bracket->leases[i] == lease)
                return true;
    return false;
}

const struct feature bracket_feature = {
    .has_unsent = has_unsent,
    .flush = flush,
    .uses = uses,
    .take_inventory = brackets_inventory,
    .lost = lost,
};

/* ---- lost fences ---- */

/* 1: a fence of what it has read is lost. CAID_ERR_PROTOCOL: the fence cannot be. */
static int
look_for_loss(const struct caid_bracket *bracket, struct caid_error *error)
{
    enum fence_state state;

    for (size_t i = 0; i < bracket->n_fences; i++) {
        int r = fence_look(&bracket->fences[i], true, &state, error);
        if (r < 0)
            return r;
        if (state == FENCE_LOST && bracket->fences[i].data)
            return 1;
    }
    return 0;
}

int
caid_bracket_check(struct caid_bracket *bracket, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(bracket, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&bracket->client->lock);
    bool begun = bracket->begun; /* its fences do not change any more, even after its end */
    pthread_mutex_unlock(&bracket->client->lock);
    if (!begun)
        return fail(error, CAID_ERR_INVALID, "%s: the bracket has not begun", bracket->names);
    r = look_for_loss(bracket, error);
    return r > 0 ? fail_abandoned(bracket, error) : r;
}

/* ---- abandoned arrays ---- */

int
caid_array_discard(struct caid_array *array, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(array, error);
    if (r == 0)
        r = check_kind(array, true, error);
    if (r < 0)
        return r;
    struct msg_discard_params params = {.lease = array->lease};
    return call_ask(array->client, MSG_DISCARD, &params, error);
}
