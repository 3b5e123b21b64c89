/* SPDX-License-Identifier: Apache-2.0 */
/* caid_array_open(), caid_array_open_many(), caid_set_open_many(), caid_array_open_companion() and
 * caid_array_take(). */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "session/client.h"

/* Bytes of an open request beside its names. */
#define OPEN_OVERHEAD 512
/* Bytes of a name beside its text. */
#define NAME_OVERHEAD 3

static bool
is_readonly(const struct caid_open_options *options)
{
    return strcmp(options->mode, "r") == 0;
}

static int
read_options(struct caid_open_options *ret, const struct caid_open_options *options,
             struct caid_error *error)
{
    int r = options_read(ret, sizeof(*ret), options, error);
    if (r == 0)
        r = check_pool(ret->pool, error);
    if (r == 0)
        r = check_text("device", ret->device_uuid, false, error);
    if (r < 0)
        return r;
    if (!ret->mode)
        ret->mode = "r";
    if (!is_readonly(ret) && strcmp(ret->mode, "rw") != 0)
        return fail(error, CAID_ERR_INVALID, "open: mode \"%s\" is neither \"r\" nor \"rw\"",
                    ret->mode);
    return 0;
}

uint32_t
names_that_fit(const struct caid_client *client, const struct msg_str *names, size_t n,
               size_t beside)
{
    size_t bytes = OPEN_OVERHEAD;
    uint32_t i = 0;

    while (i < n && i < client->open_max) {
        bytes += names[i].n + NAME_OVERHEAD + beside;
        if (i > 0 && bytes > client->packet_max)
            break;
        i++;
    }
    return i;
}

/* An open of many arrays. */
struct opening {
    struct caid_client *client;
    const struct caid_open_options *options;
    const struct msg_str *names; /* or keys of a set: */
    uint64_t of;                 /* the lease on a set, or 0 */
    const char *set;             /* its name, or NULL */
};

/* Opens up to n arrays from `from` on, as many as the daemon grants in one reply. */
static int
open_some(const struct opening *o, struct caid_array **arrays, size_t from, size_t n,
          size_t *ret_n, struct caid_error *error)
{
    const struct caid_open_options *options = o->options;
    uint32_t n_asked = names_that_fit(o->client, o->names + from, n, 0);
    struct msg_open_params params = {
        .names = {o->names + from, n_asked},
        .pool = msg_str_opt(options->pool),
        .mode = MSG_STR(options->mode),
        .generation = options->generation,
        .of = o->of,
    };
    struct array_request request = {
        .method = MSG_OPEN,
        .params = &params,
        .set = msg_str_opt(o->set),
        .names = o->names + from,
        .arrays = arrays + from,
        .n_wanted = n_asked,
        .readonly = is_readonly(options),
        .device_uuid = options->device_uuid,
        .host_only = options->host_only && !options->device_uuid,
    };
    int r = array_request_run(o->client, &request, error);
    if (r == 0)
        *ret_n = request.n_got;
    return r;
}

static int
open_all(const struct opening *o, struct caid_array **arrays, size_t n,
         struct caid_error *error)
{
    size_t n_open = 0, n_more = 0;

    while (n_open < n) {
        int r = open_some(o, arrays, n_open, n - n_open, &n_more, error);
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
names_collect(struct msg_str *ret, const char *const *names, size_t n, struct caid_error *error)
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
caid_array_open(struct caid_client *client, struct caid_array **ret, const char *name,
                const struct caid_open_options *options, struct caid_error *error)
{
    struct caid_open_options opts;
    struct caid_array *array;
    struct msg_str text;

    int r = client_check_given(client, ret, "ret", error);
    if (r == 0)
        r = read_options(&opts, options, error);
    if (r == 0)
        r = names_collect(&text, &name, 1, error);
    if (r == 0)
        r = open_all(&(struct opening){client, &opts, &text, 0, NULL}, &array, 1, error);
    if (r == 0)
        *ret = array;
    return r;
}

static int
open_named(struct opening *o, struct caid_array **ret_arrays, const char *const *names,
           size_t n, struct caid_error *error)
{
    _cleanup_free_ struct msg_str *texts = calloc(n, sizeof(*texts));
    _cleanup_free_ struct caid_array **arrays = calloc(n, sizeof(*arrays));

    if (!texts || !arrays)
        return fail_errno(error, ENOMEM, "no memory for %zu arrays", n);
    int r = names_collect(texts, names, n, error);
    o->names = texts;
    if (r == 0)
        r = open_all(o, arrays, n, error);
    if (r == 0)
        memcpy(ret_arrays, arrays, n * sizeof(*arrays));
    return r;
}

/* set: NULL, or a set of which the names are keys. */
static int
open_many(struct caid_client *client, const struct caid_array *set,
          struct caid_array **ret_arrays, const char *const *names, size_t n,
          const struct caid_open_options *options, struct caid_error *error)
{
    struct caid_open_options opts;

    int r = read_options(&opts, options, error);
    if (r == 0 && set && (set->managed || opts.pool || opts.generation))
        r = fail(error, CAID_ERR_INVALID, "a set says which arrays: no pool, no generation");
    if (r < 0 || n == 0)
        return r;
    if (!ret_arrays || !names)
        return fail(error, CAID_ERR_INVALID, "%s is NULL", names ? "ret_arrays" : "names");
    if (opts.generation != 0 && n > 1)
        return fail(error, CAID_ERR_INVALID, "a generation is of one name, not of %zu", n);
    struct opening opening = {.client = client, .options = &opts};
    if (set) {
        opening.of = set->lease;
        opening.set = caid_array_get_info(set)->name;
    }
    return open_named(&opening, ret_arrays, names, n, error);
}

int
caid_array_open_many(struct caid_client *client, struct caid_array **ret_arrays,
                     const char *const *names, size_t n,
                     const struct caid_open_options *options, struct caid_error *error)
{
    int r = client_check(client, error);

    return r < 0 ? r : open_many(client, NULL, ret_arrays, names, n, options, error);
}

int
caid_set_open_many(struct caid_array *set, struct caid_array **ret_arrays,
                   const char *const *keys, size_t n, const struct caid_open_options *options,
                   struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(set, error);

    return r < 0 ? r : open_many(set->client, set, ret_arrays, keys, n, options, error);
}

/* Opens an array whose name is not known here. */
static int
open_unnamed(struct caid_client *client, enum msg_method method, const void *params,
             bool readonly, const char *device_uuid, struct caid_array **ret,
             struct caid_error *error)
{
    const struct msg_str unnamed = {0};
    struct caid_array *array = NULL;
    struct array_request request = {
        .method = method,
        .params = params,
        .names = &unnamed,
        .arrays = &array,
        .n_wanted = 1,
        .readonly = readonly,
        .device_uuid = device_uuid,
    };
    int r = array_request_run(client, &request, error);
    if (r == 0)
        *ret = array;
    return r;
}

int
caid_array_open_companion(struct caid_array *array, struct caid_array **ret,
                          struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(array, ret, error);
    if (r < 0)
        return r;
    if (array->managed)
        return fail(error, CAID_ERR_NOT_FOUND, "managed memory has no companion");
    struct msg_open_companion_params params = {.lease = array->lease};
    return open_unnamed(array->client, MSG_OPEN_COMPANION, &params, array->info.readonly, NULL,
                        ret, error);
}

int
caid_array_take(struct caid_client *client, struct caid_array **ret,
                const uint8_t ticket[CAID_TICKET_SIZE], const struct caid_open_options *options,
                struct caid_error *error)
{
    struct caid_open_options opts;
    uint64_t words[TICKET_WORDS];

    int r = client_check_given(client, ret && ticket, ret ? "ticket" : "ret", error);
    if (r == 0)
        r = read_options(&opts, options, error);
    if (r == 0 && (opts.pool || opts.generation))
        r = fail(error, CAID_ERR_INVALID, "a ticket says which array: no pool, no generation");
    if (r < 0)
        return r;
    memcpy(words, ticket, sizeof(words));
    struct msg_take_params params = {.ticket = {.v = words, .n = ARRAY_SIZE(words)},
                                     .mode = MSG_STR(opts.mode),
                                     .keep = opts.keep};
    return open_unnamed(client, MSG_TAKE, &params, is_readonly(&opts), opts.device_uuid, ret,
                        error);
}
