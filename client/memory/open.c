/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_open() and caid_array_open_many(). */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "session/client.h"

/* Bytes of an open request beside its names. */
#define OPEN_OVERHEAD 512
/* Bytes of a name beside its text. */
#define NAME_OVERHEAD 3

struct opening {
    struct msg_str pool, mode;
    uint64_t generation;
    const char *device_uuid;
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
    if (r == 0)
        r = check_text("device", opts.device_uuid, false, error);
    if (r < 0)
        return r;
    const char *mode = opts.mode ? opts.mode : "r";
    if (strcmp(mode, "r") != 0 && strcmp(mode, "rw") != 0)
        return fail(error, CAID_ERR_INVALID, "mode is neither \"r\" nor \"rw\"");
    *ret = (struct opening){
        .pool = msg_str_opt(opts.pool),
        .mode = MSG_STR(mode),
        .generation = opts.generation,
        .device_uuid = opts.device_uuid,
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
        .generation = opening->generation,
    };
    struct array_call call = {
        .call = {.method = MSG_OPEN, .params = &params, .take = array_take, .has_blocks = true},
        .names = names,
        .arrays = arrays,
        .n_wanted = n_asked,
        .readonly = opening->readonly,
        .device_uuid = opening->device_uuid,
    };
    int r = array_call_run(client, &call, error);
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
            while (n_open-- > 0)
                array_close_now(arrays[n_open]);
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
    if (opening.generation != 0 && n > 1)
        return fail(error, CAID_ERR_INVALID, "a generation is of one name, not of %zu", n);

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
