/* SPDX-License-Identifier: Apache-2.0 */
#include "pager.h"

#include <errno.h>
#include <stdlib.h>

#include "client.h"
#include "text.h"

char *
pager_scratch(const struct reply *reply)
{
    return malloc(reply->n);
}

int
pager_cursor(char cursor[CURSOR_MAX], struct msg_str name, struct msg_str *ret)
{
    if (name.n >= CURSOR_MAX)
        return -EPROTO;
    text_copy(cursor, CURSOR_MAX, name);
    *ret = MSG_STR(cursor);
    return 0;
}

int
pager_fail(struct pager *pager, int r)
{
    pager->failed = true;
    return r;
}

/* A daemon that has more but gives nothing would have us ask for ever. */
static int
give_packet(struct pager *pager, const struct reply *reply)
{
    _cleanup_free_ char *scratch = pager->scratch = pager_scratch(reply);
    int r = 0;

    if (!scratch)
        return pager_fail(pager, -ENOMEM);
    for (uint32_t i = 0; r == 0 && i < *pager->n; i++)
        r = pager->give(pager, i);
    if (r != 0 || !*pager->more)
        return r;
    if (*pager->n == 0)
        r = -EPROTO;
    else if (pager->advance)
        r = pager->advance(pager);
    return r < 0 ? pager_fail(pager, r) : 0;
}

static int
next_packet(struct pager *pager, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};

    int r =
        reply_get(&reply, pager->client, pager->method, pager->params, pager->result, error);
    if (r < 0)
        return r;
    r = give_packet(pager, &reply);
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
