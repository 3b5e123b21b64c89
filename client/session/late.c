/* SPDX-License-Identifier: Apache-2.0 */
#include "late.h"

#include <stdlib.h>

#include "base/clock.h"
#include "client.h"
#include "feature.h"

/* How often the client's thread looks for their replies. */
#define LATE_TICK_NS (100 * NSEC_PER_MSEC)

static void
end(struct caid_client *client UNUSED, struct call *call)
{
    free(call);
}

struct call *
late_new(int (*take)(struct caid_client *client, struct call *call, const void *result,
                     struct call_fds *fds))
{
    struct call *late = calloc(1, sizeof(*late));

    if (late) {
        late->take = take;
        late->end = end;
    }
    return late;
}

void
late_look_for(struct caid_client *client, struct call *call)
{
    call->late = true;
    if (client->n_late++ == 0)
        client->late_due = clock_now_ns() + LATE_TICK_NS;
}

bool
late_ask(struct caid_client *client, struct standing *standing)
{
    if (!standing_ask(client, standing))
        return false;
    late_look_for(client, &standing->call);
    return true;
}

/* The request is the same; what it counts for, too. */
static void
replace(struct caid_client *client, struct call *call, struct call *late)
{
    late->method = call->method;
    late->has_blocks = call->has_blocks;
    late->has_pages = call->has_pages;
    late->seq = call->seq;
    late->given_up = true;
    late->repeats = call->repeats;
    TAILQ_REMOVE(&client->calls, call, entry);
    TAILQ_INSERT_TAIL(&client->standing, late, entry);
    late_look_for(client, late);
    if (client->barrier)
        reaper_wake(client);
}

void
late_give_up(struct caid_client *client, struct call *call, const struct caid_error *why)
{
    struct call *late = call->adopt ? call->adopt(client, call) : late_new(NULL);

    if (!late) {
        client_lose(client, CAID_ERR_DISCONNECTED,
                    "%s: no memory to give up a request: hung up", client->socket);
        return; /* it was ended with the others */
    }
    replace(client, call, late);
    call->given_up = call->done = true;
    call->r = fail_again(&call->error, why);
}

static uint64_t
due(const struct caid_client *client)
{
    return client->n_late > 0 ? client->late_due : UINT64_MAX;
}

static void
tidy(struct caid_client *client, bool all UNUSED)
{
    if (client->n_late == 0 || client->late_due > clock_now_ns())
        return;
    client->late_due = clock_now_ns() + LATE_TICK_NS;
    call_dispatch(client);
}

/* In a forked child no reply comes. */
static void
abandon(struct caid_client *client)
{
    struct call *call, *next;

    for (call = TAILQ_FIRST(&client->standing); call; call = next) {
        next = TAILQ_NEXT(call, entry);
        if (!call->given_up)
            continue;
        TAILQ_REMOVE(&client->standing, call, entry);
        call->end(client, call);
    }
}

const struct feature late_feature = {
    .due = due,
    .tidy = tidy,
    .abandon = abandon,
};
