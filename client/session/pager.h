/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of the daemon's, which comes in packets: each one is asked for from where the last one ended. The
 * program's callback runs with nothing locked and may use the client. On the stack of the call that lists.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "call.h"

/* Bytes of a name or a pool that a list goes on after, and the terminator. */
#define CURSOR_MAX 512

struct pager {
    struct caid_client *client;
    enum msg_method method;
    const void *params; /* of the next packet */
    void *result;       /* that a packet is decoded into, with: */
    const uint32_t *n;  /* entries */
    const bool *more;   /* to be asked for */

    /* Gives one entry to the program: what its callback says, or -EPROTO or -ENOMEM with `failed`. */
    int (*give)(struct pager *pager, uint32_t i);
    /* Has the next packet start after the last entry of this one: -EPROTO. NULL: give() has. */
    int (*advance)(struct pager *pager);

    char *scratch; /* for the C strings of an entry: they fit, whatever the packet says */
    bool failed;
};

/* Of a struct that has `params` and `result`, the latter with such entries. */
#define PAGER(of_client, of_method, list, entries, give_one, advance_all)         \
    {                                                                             \
        .client = (of_client), .method = (of_method), .params = &(list).params,   \
        .result = &(list).result, .n = &(list).result.n_##entries,                \
        .more = &(list).result.more, .give = (give_one), .advance = (advance_all) \
    }

int pager_fail(struct pager *pager, int r);
/* Gives all of them: 0, what the callback said that was not 0, or an error. */
int pager_run(struct pager *pager, struct caid_error *error);

/* What a callback's strings need at most: in place of its head in the packet each has a terminator. NULL:
 * no memory. */
char *pager_scratch(const struct reply *reply);

/* A copy of a name that a list goes on after. -EPROTO: it is no name. */
int pager_cursor(char cursor[CURSOR_MAX], struct msg_str name, struct msg_str *ret);
