/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that move from one array to another, or away.
 */
#pragma once

#include "refusal.h"

struct array;
struct conn;
struct core;

/* Takes the array's name away and tells watchers. The array may be gone afterwards. */
void array_unlink(struct core *core, struct array *array);
/* Unlinks some of the names whose time to live is over: the next ones in the next event. */
void names_expire(struct core *core);

struct publish_request {
    struct msg_str name, metadata; /* metadata.p NULL: keeps its own */
    struct array *companion;       /* it has no name and no companion; NULL: keeps its own */
    bool new;                      /* REFUSED where the name is taken */
    uint64_t ttl_ns;               /* of the name, from now on; 0: without end */
    bool keeps_ttl;                /* or what the array's name has left */
};

/* Puts the array, which somebody holds or which has a name, under a name of its pool, in place of
 * what has it now; its old name goes. The bytes of texts are charged to conn's user. -ENOMEM or
 * REFUSED: nothing has changed. */
int array_publish(struct core *core, struct array *array, const struct conn *conn,
                  const struct publish_request *req, struct refusal *r);
