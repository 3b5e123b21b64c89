/* SPDX-License-Identifier: Apache-2.0 */
#include "access.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "client.h"

/* Fences of one bracket, which come in portions. Far more than pages have slots; only a daemon
 * that is none has more. */
#define FENCES_MAX (1u << 20)
/* How long the answer to a cancellation is waited for. */
#define CANCEL_NS NSEC_PER_SEC

void
access_table_init(struct access_table *table)
{
    TAILQ_INIT(&table->unsent);
    LIST_INIT(&table->all);
}

/* ---- life ---- */

/* Never drops the client's last reference: who is here has entered it. */
void
access_unref(struct caid_access *access)
{
    if (--access->refs > 0)
        return;
    pthread_cond_destroy(&access->call.wake);
    client_unref(access->client);
    free(access);
}

void
access_set_state(struct caid_access *access, enum access_state state)
{
    if (state == ACCESS_OVER && access->state != ACCESS_OVER)
        LIST_REMOVE(access, of_table);
    access->state = state;
    pthread_cond_broadcast(&access->call.wake);
}

static void
drop_fences(struct caid_access *access)
{
    while (access->n_fences > 0)
        fence_drop(&access->fences[--access->n_fences]);
    free(access->fences);
    access->fences = NULL;
}

void
access_let_go(struct caid_access *access)
{
    if (access->lane)
        lane_put(access->lane);
    drop_fences(access);
}

/* ---- what is to be sent ---- */

static void
set_unsent(struct caid_access *access, bool unsent)
{
    struct access_list *list = &access->client->accesses.unsent;

    if (access->is_unsent == unsent)
        return;
    access->is_unsent = unsent;
    if (unsent) {
        access->refs++;
        TAILQ_INSERT_TAIL(list, access, unsent);
    } else {
        TAILQ_REMOVE(list, access, unsent);
        access_unref(access);
    }
}

static int
send_unsent(struct caid_access *access)
{
    struct msg_cancel_params cancel = {.request = (uint32_t)access->call.seq};

    if (access->standing)
        return call_notify(access->client, MSG_CANCEL, &cancel);
    return call_notify(access->client, MSG_END, &access->end);
}

int
access_flush(struct caid_client *client)
{
    struct caid_access *access;

    while (client->lost.code == 0 && (access = TAILQ_FIRST(&client->accesses.unsent))) {
        int r = send_unsent(access);
        if (r < 0)
            return r;
        set_unsent(access, false);
    }
    return 0;
}

bool
access_has_unsent(const struct caid_client *client)
{
    return !TAILQ_EMPTY(&client->accesses.unsent);
}

void
access_forget_unsent(struct caid_client *client)
{
    struct caid_access *access;

    while ((access = TAILQ_FIRST(&client->accesses.unsent)))
        set_unsent(access, false);
}

void
access_send_end(struct caid_access *access, const struct msg_end_params *end)
{
    struct caid_client *client = access->client;

    if (client->lost.code != 0)
        return;
    access->end = *end;
    access->end.bracket = access->params.bracket;
    set_unsent(access, true);
    call_flush(client); /* what does not fit goes later */
}

void
access_send_undone(struct caid_access *access)
{
    access_send_end(access, &(struct msg_end_params){.undone = true});
}

/* The daemon answers at once, and if it was a grant that crossed the cancellation, others wait
 * for it to be given back: so the answer is not left to whoever reads next, unless the daemon
 * does not answer. */
static void
cancel(struct caid_access *access)
{
    struct caid_client *client = access->client;

    set_unsent(access, true);
    call_flush(client);
    call_wait_until(client, &access->call, clock_now_ns() + SPIN_MIN_NS,
                    clock_now_ns() + CANCEL_NS);
}

void
access_give_up(struct caid_access *access)
{
    access->given_up = true;
    if (access->standing) {
        cancel(access);
    } else if (access->state == ACCESS_GRANTED) {
        access_send_undone(access);
        access_set_state(access, ACCESS_OVER);
    }
}

/* NULL: there is none that can be ended. What another thread has is that thread's. */
static struct caid_access *
find_unfinished(struct caid_client *client)
{
    struct caid_access *access;

    LIST_FOREACH(access, &client->accesses.all, of_table)
    if (access->state != ACCESS_BUSY && !access->given_up)
        return access;
    return NULL;
}

void
access_close(struct caid_client *client)
{
    struct caid_access *access;

    while (client->lost.code == 0 && (access = find_unfinished(client))) {
        access->refs++;
        access_abandon(access);
        access_unref(access);
    }
}

/* ---- the daemon's answer ---- */

/* They come in order, each of them once: so portions come to an end. */
static bool
fences_are_new(const struct caid_access *access, const struct msg_fences_result *result)
{
    uint64_t page = access->last_page, slot = access->last_slot;

    for (uint32_t i = 0; i < result->n_fences; i++) {
        const struct msg_fence *fence = &result->fences[i];
        if (fence->page < page || (fence->page == page && fence->slot <= slot))
            return false;
        page = fence->page;
        slot = fence->slot;
    }
    return !result->more || result->n_fences > 0;
}

static bool
fences_reserve(struct caid_access *access, size_t n)
{
    size_t wanted = access->n_fences + n;

    if (wanted <= access->fences_capacity)
        return true;
    struct fence *fences = reallocarray(access->fences, 2 * wanted, sizeof(fences[0]));
    if (!fences)
        return false;
    access->fences = fences;
    access->fences_capacity = 2 * wanted;
    return true;
}

/* Under the client's lock. */
static int
add_fences(struct caid_access *access, const struct msg_fences_result *result,
           struct caid_error *error)
{
    size_t n = result->n_fences;

    if (!fences_are_new(access, result) || access->n_fences + n > FENCES_MAX)
        return -EPROTO;
    access->more = result->more;
    if (n == 0)
        return 0;
    if (!fences_reserve(access, n))
        return fail_errno(error, ENOMEM, "no memory for %zu fences", access->n_fences + n);
    int r = fences_take(access->client, result->fences, (uint32_t)n,
                        access->fences + access->n_fences);
    if (r < 0)
        return r;
    access->n_fences += n;
    access->last_page = result->fences[n - 1].page;
    access->last_slot = result->fences[n - 1].slot;
    return 0;
}

/* Takes the pages in any case: the daemon counts on them being here. When that fails, the
 * connection ends, and the access may have gone with it. */
static int
take_pages(struct caid_client *client, const struct call *call, struct msg *reply,
           struct call_fds *fds, struct msg_fences_result *ret)
{
    if (msg_decode_result(reply, call->method, ret) < 0)
        return -EPROTO;
    return pages_take(client, ret->pages, ret->n_pages, fds, false);
}

static int
take_grant(struct caid_client *client, struct call *call, struct msg *reply,
           struct call_fds *fds)
{
    struct caid_access *access = container_of(call, struct caid_access, call);
    struct msg_fences_result result;

    int r = take_pages(client, call, reply, fds, &result);
    if (r < 0)
        return r;
    access->granted = true;
    return access->given_up ? 0 : add_fences(access, &result, &call->error);
}

/* The begin is answered, or the connection has ended. A grant that nobody wants is given back. */
static void
request_end(struct caid_client *client, struct call *call)
{
    struct caid_access *access = container_of(call, struct caid_access, call);

    spin_note(&client->accesses.spin, clock_now_ns() - access->asked_ns);
    access->standing = false;
    set_unsent(access, false); /* there is nothing to cancel any more */
    if (call->r < 0)
        access->failed = call->error;
    if (access->granted && (call->r < 0 || access->given_up))
        access_send_undone(access);
    access_set_state(access, call->r < 0 || access->given_up ? ACCESS_OVER : ACCESS_GRANTED);
    access_unref(access);
}

void
access_prepare(struct caid_access *access)
{
    access->call = (struct call){
        .method = MSG_BEGIN,
        .params = &access->params,
        .take = take_grant,
        .end = request_end,
        .has_pages = true,
    };
    cond_init(&access->call.wake);
}

/* ---- what did not fit its answer ---- */

struct more_call {
    struct call call;
    struct caid_access *access;
};

static int
take_more(struct caid_client *client, struct call *call, struct msg *reply,
          struct call_fds *fds)
{
    struct caid_access *access = container_of(call, struct more_call, call)->access;
    struct msg_fences_result result;

    int r = take_pages(client, call, reply, fds, &result);
    return r < 0 ? r : add_fences(access, &result, &call->error);
}

int
access_ask_for_more(struct caid_access *access, struct caid_error *error)
{
    struct msg_fences_params params = {
        .bracket = access->params.bracket,
        .page = access->last_page,
        .slot = access->last_slot,
    };
    struct more_call more = {
        .call = {.method = MSG_FENCES, .params = &params, .take = take_more, .has_pages = true},
        .access = access,
    };

    int r = client_enter(access->client, error);
    if (r < 0)
        return r;
    r = call_run(access->client, &more.call, error);
    client_leave(access->client);
    return r;
}
