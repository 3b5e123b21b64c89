/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that a daemon has died of. Which one is being handled is in the journal
 * (journal_take()); what merely waits is not. The next daemon finds it there and suspects it: its
 * client comes back and asks again. When it has been handled it is suspected no more; where a
 * second daemon dies of it, the next one refuses it. Suspects are recorded, so that many come to an
 * end, in whatever order they ask.
 *
 * A client is known by the token of its last connection, which it says in hello (former.h), also
 * where it has nothing that is recorded.
 */
#pragma once

#include "core.h"

#define SUSPECTS_MAX       64 /* then the oldest goes */
#define SUSPECT_DEATHS_MAX 2

struct conn;
struct msg;
struct refusal;

struct suspect {
    uint64_t tokens[2]; /* the client's, by which it may come back: the last two */
    uint32_t request;
    uint16_t method;
    uint16_t deaths; /* 0: there is none */
};

struct suspects {
    struct suspect v[SUSPECTS_MAX];
    uint32_t n, next;
};

/* A daemon has died with that in hand: journal->in_hand. */
void suspects_add(struct suspects *suspects, const uint64_t in_hand[static 2]);
/* The method, for the log. */
const char *suspect_name(const uint64_t in_hand[static 2]);
/* A client comes back by `token`, and is told another one. */
void suspects_follow(struct core *core, struct msg_u64s token, uint64_t next);

/* The request is in hand from here on. REFUSED: it is not handled again. */
int suspect_take(struct core *core, const struct conn *conn, const struct msg *m,
                 struct refusal *r);
/* It has been handled. */
void suspect_put(struct core *core, uint64_t token, const struct msg *m);
