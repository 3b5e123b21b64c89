/* SPDX-License-Identifier: Apache-2.0 */
#include "standing.h"

#include <errno.h>

#include "client.h"
#include "feature.h"

static void
set_state(struct caid_client *client, struct standing *standing, enum standing_state state)
{
    if (standing->state == STANDING_UNSENT || standing->state == STANDING_CANCELLING)
        TAILQ_REMOVE(&client->unsent, standing, unsent);
    standing->state = state;
    if (state == STANDING_UNSENT || state == STANDING_CANCELLING)
        TAILQ_INSERT_TAIL(&client->unsent, standing, unsent);
}

/* The call's `end`. */
static void
end(struct caid_client *client, struct call *call)
{
    struct standing *standing = container_of(call, struct standing, call);

    set_state(client, standing, STANDING_IDLE); /* nor is there anything to cancel any more */
    standing->over(client, standing);
}

void
standing_init(struct standing *standing,
              void (*over)(struct caid_client *client, struct standing *standing))
{
    standing->call.end = end;
    standing->over = over;
}

bool
standing_ask(struct caid_client *client, struct standing *standing)
{
    if (standing->state != STANDING_IDLE || client->lost.code != 0)
        return false;
    set_state(client, standing, STANDING_UNSENT);
    return true;
}

int
standing_start(struct caid_client *client, struct standing *standing, struct caid_error *error)
{
    int r = call_start(client, &standing->call, error);
    if (r == 0)
        set_state(client, standing, STANDING_SENT);
    return r;
}

void
standing_cancel(struct caid_client *client, struct standing *standing)
{
    if (standing->state == STANDING_UNSENT)
        end(client, &standing->call);
    else if (standing->state == STANDING_SENT)
        set_state(client, standing, STANDING_CANCELLING);
}

/* ---- sending ---- */

static int
send_cancel(struct caid_client *client, struct standing *standing)
{
    struct msg_cancel_params params = {.request = (uint32_t)standing->call.seq};

    int r = call_notify(client, MSG_CANCEL, &params);
    if (r == 0)
        set_state(client, standing, STANDING_SENT);
    return r;
}

/* One that cannot be sent at all is over. */
static int
send_request(struct caid_client *client, struct standing *standing)
{
    struct call *call = &standing->call;

    int r = call_post(client, call, &call->error);
    if (client->lost.code != 0 || r == -ENOMEM)
        return r;
    if (r > 0)
        return -EAGAIN;
    call->r = r;
    if (r == 0)
        set_state(client, standing, STANDING_SENT);
    else
        end(client, call);
    return 0;
}

static bool
has_unsent(const struct caid_client *client)
{
    return !TAILQ_EMPTY(&client->unsent);
}

static int
flush(struct caid_client *client)
{
    struct standing *standing;
    int r = 0;

    while (r == 0 && client->lost.code == 0 && (standing = TAILQ_FIRST(&client->unsent)))
        r = standing->state == STANDING_UNSENT ? send_request(client, standing)
                                               : send_cancel(client, standing);
    return r;
}

/* Those in flight are ended with the other calls. */
static void
lost(struct caid_client *client)
{
    struct standing *standing, *next;

    for (standing = TAILQ_FIRST(&client->unsent); standing; standing = next) {
        next = TAILQ_NEXT(standing, unsent);
        if (standing->state != STANDING_UNSENT)
            continue;
        standing->call.r = fail_again(&standing->call.error, &client->lost);
        end(client, &standing->call);
    }
}

const struct feature standing_feature = {
    .has_unsent = has_unsent,
    .flush = flush,
    .lost = lost,
};
