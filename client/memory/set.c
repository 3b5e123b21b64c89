/* SPDX-License-Identifier: Apache-2.0 */
/* caid_publish_many(): makes a set, fills it and publishes it; nobody else sees it before that. */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "drain.h"
#include "session/client.h"

#define LEASE_BYTES 9 /* the most bytes of a lease in a stage request */

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
    if (r == 0 && (n == 0 || n > client->set_max))
        r = fail(error, CAID_ERR_INVALID, "a set of this daemon's has 1 to %u arrays, not %zu",
                 client->set_max, n);
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
make_empty(struct caid_client *client, const char *pool, struct caid_array **ret,
           struct caid_error *error)
{
    struct caid_create_options options = CAID_INIT(struct caid_create_options);

    options.pool = pool;
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
        r = make_empty(client, caid_array_get_info(arrays[0])->pool, &set, error);
    if (r < 0)
        return r;
    opts.struct_size = sizeof(opts); /* 0 where options was NULL */
    r = stage_all(set, keys, arrays, n, error);
    if (r == 0)
        r = caid_array_publish(set, name, &opts, ret_generation, error);
    array_close_now(set);
    return r;
}
