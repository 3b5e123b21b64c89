/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of names and sets; the client keeps no state for them. Lists of them: session/query.c. */
#include <errno.h>

#include "array.h"
#include "session/client.h"
#include "session/query.h"

int
caid_unlink(struct caid_client *client, const char *name, const char *pool,
            struct caid_error *error)
{
    int r = client_check_name(client, name, pool, error);
    if (r < 0)
        return r;
    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};
    return call_ask(client, MSG_UNLINK, &params, error);
}

/* ---- rename, expire ---- */

struct naming {
    struct call call;
    uint64_t *ret_generation; /* or NULL */
};

static int
take_generation(struct caid_client *client UNUSED, struct call *call, const void *reply,
                struct call_fds *fds UNUSED)
{
    const struct msg_publish_result *result = reply;

    uint64_t *ret = container_of(call, struct naming, call)->ret_generation;

    if (ret && !call->left)
        *ret = result->generation;
    return result->generation ? 0 : -EPROTO;
}

static int
ask_generation(struct caid_client *client, enum msg_method method, const void *params,
               uint64_t *ret_generation, struct caid_error *error)
{
    struct naming *naming = call_new(sizeof(*naming), method, params);
    struct call *call = naming ? &naming->call : NULL;

    if (naming) {
        naming->ret_generation = ret_generation;
        call->take = take_generation;
    }
    return call_make(client, call, error);
}

int
caid_rename(struct caid_client *client, const char *name, const char *to, const char *pool,
            bool replace, uint64_t *ret_generation, struct caid_error *error)
{
    int r = client_check_name(client, name, pool, error);
    if (r == 0)
        r = check_name(to, error);
    if (r < 0)
        return r;
    struct msg_rename_params params = {.name = MSG_STR(name),
                                       .pool = msg_str_opt(pool),
                                       .to = MSG_STR(to),
                                       .replace = replace};
    return ask_generation(client, MSG_RENAME, &params, ret_generation, error);
}

int
caid_expire(struct caid_client *client, const char *name, const char *pool, uint64_t generation,
            uint64_t ttl_ns, uint64_t *ret_generation, struct caid_error *error)
{
    int r = client_check_name(client, name, pool, error);
    if (r < 0)
        return r;
    struct msg_expire_params params = {.name = MSG_STR(name),
                                       .pool = msg_str_opt(pool),
                                       .generation = generation,
                                       .ttl_ns = ttl_ns};
    return ask_generation(client, MSG_EXPIRE, &params, ret_generation, error);
}

/* ---- sets ---- */

int
caid_set_list(struct caid_array *set, int (*fn)(const struct caid_entry *entry, void *userdata),
              void *userdata, struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(set, fn, error);
    if (r == 0 && set->managed)
        r = fail(error, CAID_ERR_INVALID, "managed memory is no set");
    return r < 0 ? r : query_set(set->client, set->lease, fn, userdata, error);
}
