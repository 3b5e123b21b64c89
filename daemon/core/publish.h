/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: given to an array, moved to another one, taken away.
 */
#pragma once

#include "refusal.h"

struct array;
struct conn;
struct core;

/* Takes the array's name away and answers watches. The array may be gone afterwards. */
void array_unlink(struct core *core, struct array *array);
/* Unlinks some of the names whose time is over; the others in the next event. */
void names_expire(struct core *core);

struct publish_request {
    struct msg_str name, metadata; /* metadata.p NULL: keeps its own */
    struct array *companion;       /* kept by the array from now on; NULL: keeps its own */
    bool new;                      /* REFUSED if the name is taken */
    uint64_t ttl_ns;               /* the name's time to live; 0: without end */
    bool keeps_ttl; /* renamed: its time to live, and whether it is droppable, stay */
    bool droppable; /* drop.h */
    uint64_t priority, reload_ns;
    uint64_t after; /* REFUSED unless the name is lost, and had this generation; 0: any */
};

/* Gives the array a name of its pool, in place of any array that has it now; its own old name goes.
 * The array has a lease or a name. Texts are charged to conn's user. -ENOMEM or REFUSED: nothing
 * has changed. */
int array_publish(struct core *core, struct array *array, const struct conn *conn,
                  const struct publish_request *req, struct refusal *r);
