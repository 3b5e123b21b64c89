/* SPDX-License-Identifier: Apache-2.0 */
#include "pager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

static int
compare(const struct pager_cursor *a, const struct pager_cursor *b)
{
    int c = strcmp(a->pool, b->pool);

    if (c == 0)
        c = strcmp(a->name, b->name);
    if (c == 0)
        c = (a->generation > b->generation) - (a->generation < b->generation);
    return c ? c : (a->array > b->array) - (a->array < b->array);
}

/* All lists are in this order. One that does not get on could have no end. */
bool
pager_go_on(struct pager *pager, struct msg_str pool, struct msg_str name, uint64_t generation,
            uint64_t array, struct msg_str *ret_pool, struct msg_str *ret_after)
{
    struct pager_cursor at = {.generation = generation, .array = array};

    if (pool.n >= CURSOR_MAX || name.n >= CURSOR_MAX)
        return false;
    text_copy(at.pool, CURSOR_MAX, pool);
    text_copy(at.name, CURSOR_MAX, name);
    if (compare(&at, &pager->at) <= 0)
        return false;
    pager->at = at;
    if (ret_pool)
        *ret_pool = MSG_STR(pager->at.pool);
    *ret_after = MSG_STR(pager->at.name);
    return true;
}

int
pager_check(struct caid_client *client, bool has_fn, const struct caid_list_options *options,
            struct caid_list_options *ret, struct caid_error *error)
{
    int r = client_check_given(client, has_fn, "fn", error);
    if (r == 0)
        r = options_read(ret, sizeof(*ret), options, error);
    if (r == 0)
        r = check_pool(ret->pool, error);
    return r < 0 ? r : check_text("prefix", ret->prefix, false, error);
}

int
pager_fail(struct pager *pager, int r)
{
    pager->failed = true;
    return r;
}

/* A daemon that has more but gives nothing would have us ask for ever. */
static int
give_packet(struct pager *pager)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < *pager->n; i++)
        r = pager->give(pager, i);
    return r == 0 && *pager->more && *pager->n == 0 ? pager_fail(pager, -EPROTO) : r;
}

static int
next_packet(struct pager *pager, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};

    int r =
        reply_get(&reply, pager->client, pager->method, pager->params, pager->result, error);
    if (r < 0)
        return r;
    pager->reply = &reply;
    r = give_packet(pager);
    if (!pager->failed)
        return r;
    return r == -EPROTO ? client_violated(pager->client, msg_method_name(pager->method), error)
                        : fail_errno(error, -r, "no memory for a list");
}

int
pager_run(struct pager *pager, struct caid_error *error)
{
    int r;

    do
        r = next_packet(pager, error);
    while (r == 0 && *pager->more);
    return r;
}
