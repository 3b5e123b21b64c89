/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that the daemon answers when something happens, if ever, and for which nobody has to
 * wait. It lives in its owner: a watch, a bracket, the table of parts.
 *
 *   IDLE --ask--> UNSENT --room--> SENT --answered, or the connection is lost--> IDLE
 *                    |              |  ^
 *                  cancel         cancel \--room-- CANCELLING, which may be answered, too
 *                    v              v
 *                   IDLE        CANCELLING
 *
 * From the asking until over() has been called, once, the owner has to stay. What the socket does
 * not take goes with a later call_flush(). All of it under the client's lock.
 */
#pragma once

#include <stdbool.h>
#include <sys/queue.h>

#include "call.h"

enum standing_state {
    STANDING_IDLE,
    STANDING_UNSENT,
    STANDING_SENT,
    STANDING_CANCELLING,
};

struct standing {
    struct call call; /* its `take` is the owner's; its r and error tell over() how it went */
    enum standing_state state;
    TAILQ_ENTRY(standing) unsent; /* UNSENT, CANCELLING */
    /* IDLE by now: it can be asked again. */
    void (*over)(struct caid_client *client, struct standing *standing);
};

TAILQ_HEAD(standing_list, standing);

extern const struct feature standing_feature;

/* The method, params and take are set. */
void standing_init(struct standing *standing,
                   void (*over)(struct caid_client *client, struct standing *standing));

/* Has it be sent by the next call_flush(). False: it is not IDLE, or the connection has ended. */
bool standing_ask(struct caid_client *client, struct standing *standing);
/* The same at once, and waits for room, for which it drops the lock. */
int standing_start(struct caid_client *client, struct standing *standing,
                   struct caid_error *error);

/* One that is UNSENT is over at once, one that is SENT when the daemon has answered. */
void standing_cancel(struct caid_client *client, struct standing *standing);
