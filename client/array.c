/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include <errno.h>
#include <string.h>

#include "client.h"
#include "text.h"

/* Bytes of an open request beside its names. */
#define OPEN_OVERHEAD 512
/* Bytes of a name beside its text. */
#define NAME_OVERHEAD 3

/* ---- leases ---- */

/* Room to give n more leases back (client.h). Under the client's lock. */
static int
lease_reserve(struct caid_client *client, size_t n, struct caid_error *error)
{
    size_t needed = client->n_closing + client->n_leases + n;

    if (needed > client->closing_capacity) {
        size_t capacity = 2 * needed;
        uint64_t *closing = reallocarray(client->closing, capacity, sizeof(closing[0]));
        if (!closing)
            return fail_errno(error, ENOMEM, "no memory for %zu leases", needed);
        client->closing = closing;
        client->closing_capacity = capacity;
    }
    client->n_leases += n;
    return 0;
}

static int
array_call_run(struct caid_client *client, struct array_call *call, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = lease_reserve(client, call->n_wanted, error);
    if (r == 0) {
        r = call_run(client, &call->call, error);
        client->n_leases -= call->n_wanted - call->n_got;
    }
    client_leave(client);
    return r;
}

/* Gives an array its address. */
static int
array_map(struct caid_array *array, struct caid_error *error)
{
    enum vmm_access access = array->info.readonly ? VMM_READ : VMM_READ_WRITE;
    CUdeviceptr base;

    if (!array->block)
        return 0;
    int r = block_map(array->client, array->block, access, &base, error);
    if (r == 0)
        array->info.ptr = base + array->info.offset;
    return r;
}

static void
arrays_close(struct caid_array **arrays, size_t n)
{
    for (size_t i = 0; i < n; i++)
        caid_array_close(arrays[i]);
}

/* Runs the call and maps what it got; on failure nothing is left of it. */
static int
arrays_get(struct caid_client *client, struct array_call *call, struct caid_error *error)
{
    int r = array_call_run(client, call, error);
    for (size_t i = 0; r == 0 && i < call->n_got; i++)
        r = array_map(call->arrays[i], error);
    if (r < 0)
        arrays_close(call->arrays, call->n_got);
    return r;
}

void
caid_array_close(struct caid_array *array)
{
    if (!array)
        return;

    struct caid_client *client = array->client;
    if (!fork_guard_crossed(&client->guard)) {
        client_enter_anyway(client);
        if (array->block)
            block_unlease(client, array->block);
        client->n_leases--;
        if (client->lost.code == 0)
            client->closing[client->n_closing++] = array->lease;
        call_flush_closing(client); /* what does not fit goes with the next call */
        client_leave(client);
    }
    free(array);
    client_unref(client);
}

const struct caid_array_info *
caid_array_get_info(const struct caid_array *array)
{
    return array ? &array->info : NULL;
}

/* ---- create ---- */

static int
check_create(const struct caid_create_options *o, struct caid_error *error)
{
    int r = o->name ? check_name(o->name, error) : 0;
    if (r == 0)
        r = check_pool(o->pool, error);
    if (r == 0)
        r = check_text("typestr", o->typestr, true, error);
    if (r == 0)
        r = check_text("descr", o->descr, false, error);
    if (r < 0)
        return r;
    if (o->ndim > PROTO_NDIM_MAX)
        return fail(error, CAID_ERR_INVALID, "ndim %u: at most %d", o->ndim, PROTO_NDIM_MAX);
    if (o->ndim > 0 && !o->shape)
        return fail(error, CAID_ERR_INVALID, "shape is NULL, ndim is %u", o->ndim);
    if (o->flags & ~(uint32_t)CAID_ARRAY_EXCLUSIVE)
        return fail(error, CAID_ERR_INVALID, "unknown flags %#x",
                    o->flags & ~(uint32_t)CAID_ARRAY_EXCLUSIVE);
    return 0;
}

static void
create_params(struct msg_create_params *ret, const struct caid_create_options *o,
              const char *uuid)
{
    static const int64_t none; /* a list of no elements is there, and not NULL */

    *ret = (struct msg_create_params){
        .name = msg_str_opt(o->name),
        .pool = msg_str_opt(o->pool),
        .device = MSG_STR(uuid),
        .typestr = MSG_STR(o->typestr),
        .shape = {o->ndim ? o->shape : &none, o->ndim},
        .strides = {o->strides, o->strides ? o->ndim : 0},
        .descr = msg_str_opt(o->descr),
        .exclusive = o->flags & CAID_ARRAY_EXCLUSIVE,
    };
}

int
caid_array_create(struct caid_client *client, struct caid_array **ret,
                  const struct caid_create_options *options, struct caid_error *error)
{
    struct caid_create_options opts;
    struct msg_create_params params;
    struct caid_array *array;
    const char *uuid;

    int r = client_check(client, error);
    if (r < 0)
        return r;
    if (!ret || !options)
        return fail(error, CAID_ERR_INVALID, "%s is NULL", ret ? "options" : "ret");
    r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_create(&opts, error);
    if (r == 0)
        r = client_device_uuid(client, opts.device, &uuid, error);
    if (r < 0)
        return r;

    create_params(&params, &opts, uuid);
    struct array_call call = {
        .call = {.method = MSG_CREATE,
                 .params = &params,
                 .take = array_take,
                 .has_blocks = true},
        .arrays = &array,
        .n_wanted = 1,
    };
    r = arrays_get(client, &call, error);
    if (r == 0)
        *ret = array;
    return r;
}

/* ---- open ---- */

struct opening {
    struct msg_str pool, mode;
    bool readonly;
};

static int
opening_init(struct opening *ret, const struct caid_open_options *options,
             struct caid_error *error)
{
    struct caid_open_options opts;

    int r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_pool(opts.pool, error);
    if (r < 0)
        return r;
    const char *mode = opts.mode ? opts.mode : "r";
    if (strcmp(mode, "r") != 0 && strcmp(mode, "rw") != 0)
        return fail(error, CAID_ERR_INVALID, "mode is neither \"r\" nor \"rw\"");
    *ret = (struct opening){
        .pool = msg_str_opt(opts.pool),
        .mode = MSG_STR(mode),
        .readonly = strcmp(mode, "r") == 0,
    };
    return 0;
}

/* How many of the names one request can hold; at least one. */
static uint32_t
names_that_fit(const struct caid_client *client, const struct msg_str *names, size_t n)
{
    size_t bytes = OPEN_OVERHEAD;
    uint32_t i = 0;

    while (i < n && i < client->open_max) {
        bytes += names[i].n + NAME_OVERHEAD;
        if (i > 0 && bytes > client->packet_max)
            break;
        i++;
    }
    return i;
}

/* Opens the first of the names, as many as the daemon grants at once. */
static int
open_some(struct caid_client *client, const struct opening *opening, struct caid_array **arrays,
          const struct msg_str *names, size_t n, size_t *ret_n, struct caid_error *error)
{
    uint32_t n_asked = names_that_fit(client, names, n);
    struct msg_open_params params = {
        .names = {names, n_asked},
        .pool = opening->pool,
        .mode = opening->mode,
    };
    struct array_call call = {
        .call = {.method = MSG_OPEN, .params = &params, .take = array_take, .has_blocks = true},
        .arrays = arrays,
        .n_wanted = n_asked,
        .readonly = opening->readonly,
    };
    int r = arrays_get(client, &call, error);
    if (r == 0)
        *ret_n = call.n_got;
    return r;
}

static int
open_all(struct caid_client *client, const struct opening *opening, struct caid_array **arrays,
         const struct msg_str *names, size_t n, struct caid_error *error)
{
    size_t n_open = 0, n_more;

    while (n_open < n) {
        int r = open_some(client, opening, arrays + n_open, names + n_open, n - n_open, &n_more,
                          error);
        if (r < 0) {
            arrays_close(arrays, n_open);
            return r;
        }
        n_open += n_more;
    }
    return 0;
}

int
caid_array_open(struct caid_client *client, struct caid_array **ret, const char *name,
                const struct caid_open_options *options, struct caid_error *error)
{
    struct opening opening;
    struct caid_array *array;

    int r = client_check(client, error);
    if (r < 0)
        return r;
    if (!ret)
        return fail(error, CAID_ERR_INVALID, "ret is NULL");
    r = opening_init(&opening, options, error);
    if (r == 0)
        r = check_name(name, error);
    if (r < 0)
        return r;

    struct msg_str text = MSG_STR(name);
    r = open_all(client, &opening, &array, &text, 1, error);
    if (r == 0)
        *ret = array;
    return r;
}

static int
collect_names(struct msg_str *ret, const char *const *names, size_t n, struct caid_error *error)
{
    for (size_t i = 0; i < n; i++) {
        int r = check_name(names[i], error);
        if (r < 0)
            return r;
        ret[i] = MSG_STR(names[i]);
    }
    return 0;
}

int
caid_array_open_many(struct caid_client *client, struct caid_array **ret_arrays,
                     const char *const *names, size_t n,
                     const struct caid_open_options *options, struct caid_error *error)
{
    struct opening opening;

    int r = client_check(client, error);
    if (r == 0)
        r = opening_init(&opening, options, error);
    if (r < 0 || n == 0)
        return r;
    if (!ret_arrays || !names)
        return fail(error, CAID_ERR_INVALID, "%s is NULL", names ? "ret_arrays" : "names");

    _cleanup_free_ struct msg_str *texts = calloc(n, sizeof(*texts));
    _cleanup_free_ struct caid_array **arrays = calloc(n, sizeof(*arrays));
    if (!texts || !arrays)
        return fail_errno(error, ENOMEM, "no memory for %zu arrays", n);
    r = collect_names(texts, names, n, error);
    if (r == 0)
        r = open_all(client, &opening, arrays, texts, n, error);
    if (r == 0)
        memcpy(ret_arrays, arrays, n * sizeof(*arrays));
    return r;
}
