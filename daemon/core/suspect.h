/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspects: requests that a daemon may have died of. The journal has the request that is being
 * handled (journal_take()), and not those that wait. The next daemon finds it there and suspects
 * it. The client resumes and repeats the request. Once it has been handled it is not suspected any
 * more; if a second daemon dies of it, the next one refuses it. Suspects are recorded, so that
 * several such requests all come to an end, in whatever order they are repeated.
 *
 * A client is known by the token of its last connection, which it gives in HELLO (former.h), even
 * if nothing of it is recorded.
 */
#pragma once

#include "core.h"

#define SUSPECTS_MAX       64 /* beyond, the oldest is forgotten */
#define SUSPECT_DEATHS_MAX 2

struct conn;
struct msg;
struct refusal;

struct suspect {
    uint64_t tokens[2]; /* the client's last two, by which it may come back */
    uint32_t request;
    uint16_t method;
    uint16_t deaths; /* 0: the entry is free */
};

struct suspects {
    struct suspect v[SUSPECTS_MAX];
    uint32_t n; /* entries that are not free: mostly 0, so that no request is looked for */
    uint32_t next;
};

/* A daemon has died while it handled that: journal->in_hand. */
void suspects_add(struct suspects *suspects, const uint64_t in_hand[static 2]);
/* The method, for the log. */
const char *suspect_name(const uint64_t in_hand[static 2]);
/* A client has come back by `token`, and gets `next`. */
void suspects_follow(struct core *core, struct msg_u64s token, uint64_t next);

/* Notes that the request is being handled. REFUSED: it is not handled again. */
int suspect_take(struct core *core, const struct conn *conn, const struct msg *m,
                 struct refusal *r);
/* The request has been handled. */
void suspect_put(struct core *core, uint64_t token, const struct msg *m);
