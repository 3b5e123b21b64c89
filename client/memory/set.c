/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caid_publish_many(): makes a set, fills it and publishes it; nobody else sees it before that.
 * caid_set_create(): makes a set of parts of one array, which its maker publishes, and
 * caid_set_vacate() waits until he may write one of several again, or caid_set_cancel() ends that.
 */
#include "set.h"

#include <errno.h>
#include <string.h>

#include "array.h"
#include "block.h"
#include "drain.h"
#include "session/client.h"
#include "session/spin.h"

#define LEASE_BYTES    9   /* the most bytes of a lease in a stage request */
#define STAGE_OVERHEAD 512 /* bytes of a request beside its members */

int
set_check_number(const struct caid_client *client, size_t n, struct caid_error *error)
{
    return n > 0 && n <= client->set_max
               ? 0
               : fail(error, CAID_ERR_INVALID,
                      "a set of this daemon's has 1 to %u arrays, not %zu", client->set_max, n);
}

static int
check_many(struct caid_client *client, const char *name, const char *const *keys,
           struct caid_array *const *arrays, size_t n,
           const struct caid_publish_options *options, struct caid_error *error)
{
    int r = client_check_given(client, keys && arrays, keys ? "arrays" : "keys", error);
    if (r == 0)
        r = check_name(name, error);
    if (r == 0 && name[strlen(name) - 1] != '/')
        r = fail(
            error, CAID_ERR_INVALID_NAME,
            "the name of a set ends in \"/\": \"%s/\" has the names that begin so, \"%s\" would "
            "have all that begin with it",
            name, name);
    if (r == 0)
        r = set_check_number(client, n, error);
    if (r == 0 && options->companion)
        r = fail(error, CAID_ERR_INVALID, "a set is published without a companion");
    return r;
}

/* Waits for the work that writes the arrays. Arrays of one device have the same contexts. */
static int
settle_all(const struct caid_client *client, struct caid_array *const *arrays, size_t n,
           uint64_t stream, struct caid_error *error)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        if (!arrays[i] || arrays[i]->client != client)
            return fail(error, CAID_ERR_INVALID, "array %zu is none of this client's", i);
        if (arrays[i]->managed)
            return fail(error, CAID_ERR_UNSUPPORTED,
                        "managed memory is of this process alone: it cannot be published");
        if (i == 0 || !arrays[i - 1]->block || arrays[i]->place != arrays[i - 1]->place)
            r = drain_writes(arrays[i], stream, error);
    }
    return r;
}

static int
make_empty(struct caid_client *client, const char *pool, int32_t device,
           struct caid_array **ret, struct caid_error *error)
{
    struct caid_create_options options = CAID_INIT(struct caid_create_options);

    options.pool = pool;
    options.device = device;
    options.typestr = "|u1";
    options.shape = (const int64_t[]){0};
    options.ndim = 1;
    return caid_array_create(client, ret, &options, error);
}

static int
stage_all(struct caid_array *set, const char *const *keys, struct caid_array *const *arrays,
          size_t n, struct caid_error *error)
{
    _cleanup_free_ struct msg_str *texts = calloc(n, sizeof(*texts));
    _cleanup_free_ uint64_t *leases = calloc(n, sizeof(*leases));
    uint32_t n_more;

    if (!texts || !leases)
        return fail_errno(error, ENOMEM, "no memory for %zu names", n);
    int r = names_collect(texts, keys, n, error);
    for (size_t i = 0; i < n; i++)
        leases[i] = arrays[i]->lease;
    for (size_t i = 0; r == 0 && i < n; i += n_more) {
        n_more = names_that_fit(set->client, texts + i, n - i, LEASE_BYTES);
        struct msg_stage_params params = {
            .lease = set->lease,
            .keys = {texts + i, n_more},
            .leases = {.v = leases + i, .n = n_more},
        };
        r = call_ask(set->client, MSG_STAGE, &params, error);
    }
    return r;
}

int
caid_publish_many(struct caid_client *client, const char *name, const char *const *keys,
                  struct caid_array *const *arrays, size_t n,
                  const struct caid_publish_options *options, uint64_t *ret_generation,
                  struct caid_error *error)
{
    struct caid_publish_options opts;
    struct caid_array *set;

    int r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_many(client, name, keys, arrays, n, &opts, error);
    if (r == 0)
        r = settle_all(client, arrays, n, opts.stream, error);
    if (r == 0)
        r = make_empty(client, caid_array_get_info(arrays[0])->pool, 0, &set, error);
    if (r < 0)
        return r;
    opts.struct_size = sizeof(opts); /* 0 where options was NULL */
    r = stage_all(set, keys, arrays, n, error);
    if (r == 0)
        r = caid_array_publish(set, name, &opts, ret_generation, error);
    array_close_now(set);
    return r;
}

/* ---- a set of parts ---- */

struct staging {
    struct call call;
    struct part_list parts; /* which the daemon reports; empty: it reports none */
    uint64_t layout;
};

static void
staging_free(struct staging *staging)
{
    part_list_free(&staging->parts);
    free(staging);
}

static int
take_staged(struct caid_client *client, struct call *call, const void *reply,
            struct call_fds *fds UNUSED)
{
    struct staging *staging = container_of(call, struct staging, call);
    const struct msg_stage_parts_result *result = reply;

    staging->layout = result->layout;
    return result->part ? part_list_take(client, &staging->parts, result->part) : -EPROTO;
}

/* The call was left. */
static void
staged_over(struct caid_client *client UNUSED, struct call *call)
{
    staging_free(container_of(call, struct staging, call));
}

/* told: NULL, or of all parts; the request's begin with the first one. */
static struct staging *
staging_new(const struct msg_stage_parts_params *params, const struct set_told *told,
            size_t first)
{
    struct staging *staging = call_new(sizeof(*staging), MSG_STAGE_PARTS, params);

    if (!staging)
        return NULL;
    staging->call.take = take_staged;
    staging->call.over = staged_over;
    TAILQ_INIT(&staging->parts);
    for (uint32_t i = 0; told && i < params->n_parts; i++) {
        const struct part_hook hook = {told->released, told->of[first + i]};
        if (part_list_add(&staging->parts, &hook, told->gone, told->userdata) < 0) {
            staging_free(staging);
            return NULL;
        }
    }
    return staging;
}

static int
check_member(const struct caid_member *m, struct caid_error *error)
{
    int r = check_name(m->key, error);
    if (r == 0)
        r = check_type(m->typestr, m->descr, NULL, error);
    return r < 0 ? r : check_shape(m->ndim, m->shape, error);
}

static struct msg_member
member_record(const struct caid_member *m)
{
    static const int64_t none; /* an empty list is not NULL */

    return (struct msg_member){
        .key = MSG_STR(m->key),
        .offset = m->offset,
        .typestr = MSG_STR(m->typestr),
        .shape = {m->ndim ? m->shape : &none, m->ndim},
        .strides = {m->strides, m->strides ? m->ndim : 0},
        .descr = msg_str_opt(m->descr),
    };
}

/* Puts as many of the members as fit into one request, into its room for PROTO_OPEN_MAX. */
static int
fill_request(const struct caid_client *client, struct msg_member *room,
             const struct caid_member *members, size_t n, uint32_t *ret_n,
             struct caid_error *error)
{
    size_t bytes = STAGE_OVERHEAD;
    uint32_t i = 0;

    for (; i < n && i < client->open_max; i++) {
        int r = check_member(&members[i], error);
        if (r < 0)
            return r;
        room[i] = member_record(&members[i]);
        bytes += msg_member_size(&room[i]);
        if (i > 0 && bytes > client->packet_max)
            break;
    }
    *ret_n = i;
    return 0;
}

/* Takes over the staging. The client is entered. */
static int
staging_run(struct caid_array *set, struct staging *staging, uint32_t n,
            struct caid_error *error)
{
    struct caid_client *client = set->client;

    int r = call_run(client, &staging->call, error);
    if (r == 0) {
        set->info.layout = staging->layout;
        set->info.members += n;
        call_flush(client); /* what the socket does not take goes with the next call */
    } else if (staging->call.error.code == CAID_ERR_UNKNOWN_METHOD) {
        fail(error, CAID_ERR_UNKNOWN_METHOD,
             "%s: the daemon is too old to make parts that are members of a set",
             client->socket);
    }
    if (staging->call.left)
        part_list_disown(&staging->parts);
    else
        staging_free(staging);
    return r;
}

static int
ask_staged(struct caid_array *set, const struct msg_stage_parts_params *params,
           const struct set_told *told, size_t first, struct caid_error *error)
{
    struct staging *staging = staging_new(params, told, first);

    if (!staging)
        return fail_errno(error, ENOMEM, "no memory for a request");
    int r = client_enter(set->client, error);
    if (r < 0) {
        staging_free(staging);
        return r;
    }
    r = staging_run(set, staging, params->n_parts, error);
    client_leave(set->client);
    return r;
}

int
set_stage(struct caid_array *set, const struct caid_array *whole,
          const struct caid_member *members, size_t n, const struct set_told *told,
          struct caid_error *error)
{
    _cleanup_free_ struct msg_member *room = calloc(PROTO_OPEN_MAX, sizeof(*room));
    struct msg_stage_parts_params params = {.lease = set->lease,
                                            .whole = whole->lease,
                                            .parts = room,
                                            .told = told != NULL};
    int r = 0;

    if (!room)
        return fail_errno(error, ENOMEM, "no memory for %zu members", n);
    for (size_t i = 0; r == 0 && i < n; i += params.n_parts) {
        r = fill_request(set->client, room, members + i, n - i, &params.n_parts, error);
        if (r == 0)
            r = ask_staged(set, &params, told, i, error);
    }
    return r;
}

int
set_new(struct caid_array *whole, struct caid_array **ret, struct caid_error *error)
{
    struct caid_array *set;

    int r = make_empty(whole->client, whole->info.pool, whole->info.device, &set, error);
    if (r < 0)
        return r;
    set->of_parts = true;
    set->on_host = whole->block && whole->block->kind == BLOCK_PINNED;
    set->place = whole->place;
    *ret = set;
    return 0;
}

static int
check_whole(const struct caid_array *whole, struct caid_error *error)
{
    if (whole->managed)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "managed memory is of this process alone: it has no parts");
    if (whole->info.readonly)
        return fail(error, CAID_ERR_READ_ONLY,
                    "the array is open with mode \"r\": who makes parts of it writes it");
    return 0;
}

int
caid_set_create(struct caid_client *client, struct caid_array **ret, struct caid_array *whole,
                const struct caid_member *members, size_t n, struct caid_error *error)
{
    struct caid_array *set = NULL;

    int r = client_check_given(client, ret && members, ret ? "members" : "ret", error);
    if (r == 0 && (!whole || whole->client != client))
        r = fail(error, CAID_ERR_INVALID, "the whole is no array of this client's");
    if (r == 0)
        r = check_whole(whole, error);
    if (r == 0)
        r = set_check_number(client, n, error);
    if (r == 0)
        r = set_new(whole, &set, error);
    if (r < 0)
        return r;
    r = set_stage(set, whole, members, n, NULL, error);
    if (r < 0) {
        array_close_now(set);
        return r;
    }
    *ret = set;
    return 0;
}

/* ---- vacate ---- */

struct vacating {
    struct call call;
    uint64_t lease; /* of the set that may be written; 0: none */
};

static int
take_vacant(struct caid_client *client UNUSED, struct call *call, const void *reply,
            struct call_fds *fds UNUSED)
{
    const struct msg_vacate_result *result = reply;

    container_of(call, struct vacating, call)->lease = result->lease;
    return result->lease ? 0 : -EPROTO;
}

static int
check_arrays(const struct caid_client *client, struct caid_array *const *arrays, size_t n,
             struct caid_error *error)
{
    for (size_t i = 0; i < n; i++)
        if (!arrays[i] || arrays[i]->client != client || arrays[i]->managed)
            return fail(error, CAID_ERR_INVALID, "array %zu is none of this client's", i);
    return 0;
}

static int
check_vacate(const struct caid_client *client, struct caid_array *const *sets, size_t n_sets,
             struct caid_array *const *own, size_t n_own, struct caid_error *error)
{
    int r = client_check_given(client, sets && n_sets, "sets", error);
    if (r == 0)
        r = client_check_given(client, own || !n_own, "own", error);
    if (r == 0 && (n_own > PROTO_BEGIN_MAX || n_sets > PROTO_BEGIN_MAX))
        r = fail(error, CAID_ERR_INVALID, "more than %d arrays", PROTO_BEGIN_MAX);
    if (r == 0)
        r = check_arrays(client, sets, n_sets, error);
    return r < 0 ? r : check_arrays(client, own, n_own, error);
}

/* Under the client's lock. */
static int
check_cancelled(const struct caid_client *client, struct caid_array *const *sets, size_t n_sets,
                struct caid_error *error)
{
    bool cancelled = client->waits_cancelled;

    for (size_t i = 0; i < n_sets; i++)
        cancelled |= sets[i]->wait_cancelled;
    return cancelled ? fail(error, CAID_ERR_CANCELLED, "the wait for a set was cancelled") : 0;
}

/* A wait that is left is cancelled, or the next one for its sets would be refused. */
static void
leave(struct caid_client *client, struct call *call)
{
    call->left = true;
    call->params = NULL;
    call_look_for(client, call);
    call_cancel(client, call);
    call_flush(client);
}

/* call_run(), but for what is cancelled before it is sent. Frees the call, or leaves it. */
static int
run_vacating(struct caid_client *client, struct vacating *vacating,
             struct caid_array *const *sets, uint64_t wait_ns, uint64_t *ret_lease,
             struct caid_error *error)
{
    struct call *call = &vacating->call;
    const struct msg_vacate_params *params = call->params;
    uint64_t answer_ns = client->call_timeout_ns;
    struct caid_error why;

    int r = call_start(client, call, error);
    if (r < 0) {
        free(vacating);
        return r;
    }
    r = check_cancelled(client, sets, params->leases.n, &why);
    if (r == 0)
        r = call_wait_until(client, call, clock_now_ns() + SPIN_MIN_NS,
                            deadline_of(answer_ns < CAID_FOREVER - wait_ns ? answer_ns + wait_ns
                                                                           : CAID_FOREVER),
                            &why);
    if (r > 0)
        fail(&why, CAID_ERR_TIMEOUT, "%s: the daemon did not answer: is it stopped?",
             client->socket);
    if (!call->done) {
        leave(client, call);
        return fail_again(error, &why);
    }
    r = call->r < 0 ? fail_again(error, &call->error) : 0;
    if (r < 0 && call->error.code == CAID_ERR_UNKNOWN_METHOD)
        fail(error, CAID_ERR_UNKNOWN_METHOD,
             "%s: the daemon is too old to say when nobody has a set any more", client->socket);
    *ret_lease = vacating->lease;
    free(vacating);
    return r;
}

static int
wait_vacant(struct caid_client *client, struct caid_array *const *sets,
            const struct msg_vacate_params *params, uint64_t wait_ns, uint64_t *ret_lease,
            struct caid_error *error)
{
    struct vacating *vacating = call_new(sizeof(*vacating), MSG_VACATE, params);

    if (!vacating)
        return fail_errno(error, ENOMEM, "no memory for a request");
    vacating->call.take = take_vacant;
    int r = client_enter(client, error);
    if (r < 0) {
        free(vacating);
        return r;
    }
    r = run_vacating(client, vacating, sets, wait_ns, ret_lease, error);
    client_leave(client);
    return r;
}

static uint64_t *
leases_of(struct caid_array *const *arrays, size_t n)
{
    uint64_t *leases = calloc(n + 1, sizeof(*leases));

    for (size_t i = 0; leases && i < n; i++)
        leases[i] = arrays[i]->lease;
    return leases;
}

int
caid_set_vacate(struct caid_client *client, struct caid_array *const *sets, size_t n_sets,
                struct caid_array *const *own, size_t n_own, uint64_t timeout_ns,
                size_t *ret_which, struct caid_error *error)
{
    uint64_t vacant = 0;
    size_t which = 0;

    int r = check_vacate(client, sets, n_sets, own, n_own, error);
    if (r < 0)
        return r;
    _cleanup_free_ uint64_t *leases = leases_of(sets, n_sets), *mine = leases_of(own, n_own);
    if (!leases || !mine)
        return fail_errno(error, ENOMEM, "no memory for %zu leases", n_sets + n_own);
    const struct msg_vacate_params params = {
        .leases = {leases, (uint32_t)n_sets},
        .own = {mine, (uint32_t)n_own},
        .timeout_ns = timeout_ns == CAID_FOREVER ? 0 : timeout_ns,
        .nowait = timeout_ns == 0,
    };
    r = wait_vacant(client, sets, &params, timeout_ns, &vacant, error);
    if (r < 0)
        return r;
    while (which < n_sets && leases[which] != vacant)
        which++;
    if (which == n_sets)
        return client_violated(client, "vacate", error);
    if (ret_which)
        *ret_which = which;
    return 0;
}

static bool
waits_for(const struct call *call, const struct caid_array *set)
{
    const struct msg_vacate_params *params = call->params;
    bool found = false;

    if (call->method != MSG_VACATE || !params) /* another one, or one that was left */
        return false;
    for (uint32_t i = 0; set && i < params->leases.n; i++)
        found |= params->leases.v[i] == set->lease;
    return found || !set;
}

void
caid_set_cancel(struct caid_client *client, struct caid_array *set)
{
    struct caid_error error;
    struct call *call;

    if (client_check(client, &error) < 0)
        return;
    client_enter_anyway(client);
    if (set)
        set->wait_cancelled = true;
    else
        client->waits_cancelled = true;
    TAILQ_FOREACH(call, &client->calls, entry)
        if (waits_for(call, set))
            call_cancel(client, call);
    call_flush(client);
    client_leave(client);
}
