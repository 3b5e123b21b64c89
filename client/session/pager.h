/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of the daemon's, which comes in packets: each one is asked for from where the last one
 * ended. The program's callback runs with nothing locked and may use the client. On the stack of
 * the call that lists.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "call.h"
#include "text.h"

/* Bytes of a name or a pool that a list goes on after, and the terminator. */
#define CURSOR_MAX 512

/* An entry's place in the order of a list; no such numbers: 0. */
struct pager_cursor {
    char pool[CURSOR_MAX], name[CURSOR_MAX];
    uint64_t generation, array;
};

struct pager {
    struct caid_client *client;
    enum msg_method method;
    const void *params; /* of the next packet */
    void *result;       /* that a packet is decoded into, with: */
    const uint32_t *n;  /* entries */
    const bool *more;   /* to be asked for */

    /* Gives one entry to the program, and has the next packet start after it: what the program's
     * callback says, or -EPROTO or -ENOMEM with `failed`. */
    int (*give)(struct pager *pager, uint32_t i);

    const struct reply *reply; /* the packet */
    struct pager_cursor at;    /* what was given last */
    bool failed;
};

/* What the caller of a list has given, which is checked. */
int pager_check(struct caid_client *client, bool has_fn,
                const struct caid_list_options *options, struct caid_list_options *ret,
                struct caid_error *error);

int pager_fail(struct pager *pager, int r);
/* Gives all of them: 0, what the callback said that was not 0, or an error. */
int pager_run(struct pager *pager, struct caid_error *error);

/* Has the list go on after that name, and, where ret_pool is not NULL, in that pool. False: it
 * is no name, or does not come after what was given last. */
bool pager_go_on(struct pager *pager, struct msg_str pool, struct msg_str name,
                 uint64_t generation, uint64_t array, struct msg_str *ret_pool,
                 struct msg_str *ret_after);
