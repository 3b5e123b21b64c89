/* SPDX-License-Identifier: Apache-2.0 */
#include "conns.h"

#include <string.h>

#include "base/clock.h"
#include "base/macros.h"

#define MAX_QUEUED_BYTES (64 * 1024 * 1024)
#define RETRY_MS         10
#define SHARED_MS        1000 /* the loop counts as shared so long after it has changed uids */
#define CREDIT_PART      10   /* a uid may use this part of the time for replies of any size */
#define CREDIT_MAX_NS    5000000
#define RETRY_NS         100000 /* the time of one run of on_retry() */
/* How long a client may leave fds unread while others of its uid are held up by them. */
#define CULPRIT_MS 5000

RB_GENERATE_STATIC_BY(conn_owners, conn_owner, node, uid)

static struct conn_owner *
owner_new(struct conns *set, uid_t uid)
{
    struct conn_owner *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    o->uid = uid;
    o->credit_ns = CREDIT_MAX_NS;
    turns_user_init(&set->turns, &o->turns);
    flight_user_init(&o->flight);
    RB_INSERT(conn_owners, &set->owners, o);
    return o;
}

struct conn_owner *
conns_join(struct conns *set, uid_t uid)
{
    struct conn_owner key = {.uid = uid}, *o = RB_FIND(conn_owners, &set->owners, &key);

    if (!o)
        o = owner_new(set, uid);
    if (o)
        o->n_conns++;
    return o;
}

void
conns_leave(struct conns *set, struct conn_owner *o)
{
    if (--o->n_conns > 0)
        return;
    if (set->running == o)
        conns_charge(set, NULL);
    RB_REMOVE(conn_owners, &set->owners, o);
    free(o);
}

int
conns_init(struct conns *set, uv_loop_t *loop, uint32_t max_fds, const struct conns_ops *ops,
           void *userdata)
{
    set->loop = loop;
    set->ops = ops;
    set->userdata = userdata;
    set->by_sock = NULL;
    set->n_by_sock = 0;
    set->last_serial = 0;
    turns_init(&set->turns);
    set->admits_all = true;
    LIST_INIT(&set->stalled);
    set->heard_ns = 0;
    set->heard = (uid_t)-1; /* no uid */
    set->running = NULL;
    set->changed_ms = set->now_ns = 0;
    set->laps = (struct laps){0};
    flight_init(&set->flight, max_fds);
    set->n_queued_bytes = 0;
    set->n_queued_fds = 0;
    set->max_queued_fds = max_fds;
    RB_INIT(&set->owners);
    SLIST_INIT(&set->closed);
    LIST_INIT(&set->lingering);
    TAILQ_INIT(&set->queued);
    TAILQ_INIT(&set->waiting);
    LIST_INIT(&set->departed);
    uv_timer_init(loop, &set->retry);
    set->retry.data = set;
    return pollset_init(&set->pollset);
}

static void
free_closed(struct conns *set)
{
    struct conn *c;

    while ((c = SLIST_FIRST(&set->closed))) {
        SLIST_REMOVE_HEAD(&set->closed, closed);
        free(c);
    }
}

void
conns_deinit(struct conns *set)
{
    while (!LIST_EMPTY(&set->lingering))
        conn_free(LIST_FIRST(&set->lingering));
    free_closed(set);
    while (!LIST_EMPTY(&set->departed)) /* where the start has failed */
        process_free(LIST_FIRST(&set->departed));
    pollset_deinit(&set->pollset);
    free(set->by_sock);
    set->by_sock = NULL;
    set->n_by_sock = 0;
}

/* The low half of an id is the socket's number, the connection's index in by_sock. */
uint64_t
conns_next_id(struct conns *set, int sock)
{
    if (++set->last_serial == 0)
        set->last_serial = 1;
    return (uint64_t)set->last_serial << 32 | (uint32_t)sock;
}

struct conn *
conns_find(const struct conns *set, uint64_t id)
{
    size_t sock = (uint32_t)id;
    struct conn *c = sock < set->n_by_sock ? set->by_sock[sock] : NULL;

    return c && c->id == id ? c : NULL;
}

int
conns_add(struct conns *set, struct conn *c)
{
    size_t n = (size_t)c->sock + 1;

    if (n > set->n_by_sock) {
        struct conn **by_sock;

        n = ALIGN_UP(n + n / 2, 64);
        by_sock = reallocarray(set->by_sock, n, sizeof(struct conn *));
        if (!by_sock)
            return -ENOMEM;
        memset(by_sock + set->n_by_sock, 0, (n - set->n_by_sock) * sizeof(struct conn *));
        set->by_sock = by_sock;
        set->n_by_sock = n;
    }
    c->owner = conns_join(set, c->uid);
    if (!c->owner)
        return -ENOMEM;
    c->turn.user = &c->owner->turns;
    flight_share_init(&c->flight, &c->owner->flight, c->sock);
    set->by_sock[c->sock] = c;
    return 0;
}

void
conns_stall(struct conns *set, struct conn *c)
{
    if (!c->stalled)
        LIST_INSERT_HEAD(&set->stalled, c, of_stalled);
    c->stalled = true;
}

static void
unstall(struct conn *c)
{
    if (c->stalled)
        LIST_REMOVE(c, of_stalled);
    c->stalled = false;
}

void
conns_unstall(struct conns *set)
{
    struct conn *c;

    while ((c = LIST_FIRST(&set->stalled))) {
        unstall(c);
        turns_add(&set->turns, &c->turn);
    }
}

void
conns_remove(struct conns *set, struct conn *c)
{
    if (conns_find(set, c->id) == c)
        set->by_sock[c->sock] = NULL;
    unstall(c);
    turns_remove(&set->turns, &c->turn);
}

void
conns_bury(struct conns *set, struct conn *c)
{
    turns_remove(&set->turns, &c->turn);
    if (c->owner) {
        flight_share_deinit(&set->flight, &c->flight);
        conns_leave(set, TAKE_PTR(c->owner));
    }
    SLIST_INSERT_HEAD(&set->closed, c, closed);
}

void
conns_lose_all(struct conns *set, const char *reason)
{
    for (size_t i = 0; i < set->n_by_sock; i++)
        if (set->by_sock[i])
            conn_lose(set->by_sock[i], reason);
}

void
conns_drop_departed(struct conns *set, struct process *p)
{
    uint64_t conn_id = p->conn_id;

    process_free(p);
    set->ops->departed(set->userdata, conn_id);
}

void
conns_lose_exited(struct conns *set)
{
    struct process_list exited = LIST_HEAD_INITIALIZER(exited);
    struct process *p, *next;

    for (size_t i = 0; i < set->n_by_sock; i++) {
        struct conn *c = set->by_sock[i];
        if (!c || !c->process || !process_has_exited(c->process))
            continue;
        c->exited = true;
        conn_lose(c, "process exited");
    }
    for (p = LIST_FIRST(&set->departed); p; p = next) {
        next = LIST_NEXT(p, link);
        if (!process_has_exited(p))
            continue;
        LIST_REMOVE(p, link);
        LIST_INSERT_HEAD(&exited, p, link);
    }
    while ((p = LIST_FIRST(&exited))) /* departed() may drop other processes */
        conns_drop_departed(set, p);
}

void
conns_forget(struct conns *set, uint64_t conn_id)
{
    struct process *p = LIST_FIRST(&set->departed);

    while (p && p->conn_id != conn_id)
        p = LIST_NEXT(p, link);
    process_free(p);
}

void
conns_drop_all_departed(struct conns *set)
{
    struct process *p;

    while ((p = LIST_FIRST(&set->departed)))
        conns_drop_departed(set, p);
}

/* ---- turns ---- */

uint64_t
conns_charge(struct conns *set, struct conn_owner *o)
{
    uint64_t now_ns = clock_now_ns(), ns = now_ns - set->now_ns;

    laps_event(&set->laps, now_ns);
    if (set->running) {
        turns_spent(&set->turns, &set->running->turns, ns);
        set->running->credit_ns -= (int64_t)ns;
        set->ops->spent(set->userdata, set->running->uid, ns);
    }
    set->running = o;
    set->now_ns = now_ns;
    return now_ns;
}

/* Charges the time of each turn to its uid. */
static void
hear_some(struct conns *set)
{
    uint64_t began_ns = conns_charge(set, NULL);
    struct turn *entry;

    set->until_ns = began_ns + TURNS_SLICE_NS;
    while (set->now_ns < set->until_ns && (entry = turns_next(&set->turns))) {
        set->running = container_of(entry->user, struct conn_owner, turns);
        entry->serve(entry);
        conns_charge(set, NULL);
    }
    set->heard_ns = set->now_ns - began_ns;
}

void
conns_turn(struct conns *set, int timeout_ms)
{
    bool is_busy = turns_is_busy(&set->turns);

    laps_end(&set->laps, conns_charge(set, NULL));
    free_closed(set);
    if (!is_busy)
        turns_forget(&set->turns);
    pollset_wait(&set->pollset, is_busy ? 0 : timeout_ms);
    uv_update_time(set->loop);
    hear_some(set);
}

static int64_t
clamp(int64_t n, int64_t most)
{
    return n > most ? most : n < -most ? -most : n;
}

bool
conns_is_greedy(const struct conns *set, struct conn_owner *o)
{
    uint64_t earned_ns = (set->now_ns - o->credited_ns) / CREDIT_PART;

    o->credit_ns =
        clamp(clamp(o->credit_ns, CREDIT_MAX_NS) + (int64_t)earned_ns, CREDIT_MAX_NS);
    o->credited_ns = set->now_ns;
    return o->credit_ns <= 0 && uv_now(set->loop) - set->changed_ms < SHARED_MS;
}

void
conns_hear(struct conns *set, const struct conn *c)
{
    if (set->heard != c->uid && set->heard != (uid_t)-1)
        set->changed_ms = uv_now(set->loop);
    set->heard = c->uid;
}

/* ---- fds in flight ---- */

/* c waits for the budget of fds in flight. Of the uid that has most of them in flight, the
 * connection is lost that has not read for longest; where that uid is c's own, only after
 * CULPRIT_MS. */
static void
lose_culprit(struct conns *set, const struct conn *c)
{
    uint32_t slack = set->flight.max / 4 < PROTO_FDS_MAX ? set->flight.max / 4 : PROTO_FDS_MAX;
    struct conn_owner *o, *most = c->owner;
    struct flight_share *s;

    if (c->owner->flight.n + PROTO_FDS_MAX <= flight_room(&set->flight, &c->owner->flight))
        return;
    RB_FOREACH(o, conn_owners, &set->owners)
        if (o->flight.n > most->flight.n + slack)
            most = o;
    s = flight_culprit(&set->flight, &most->flight, most == c->owner ? CULPRIT_MS : 0,
                       uv_now(set->loop));
    if (s)
        conn_lose(container_of(s, struct conn, flight), "left too many fds unread");
}

static void
on_retry(uv_timer_t *timer)
{
    struct conns *set = timer->data;
    struct conn *c, *last = TAILQ_LAST(&set->waiting, conn_list);
    uint64_t until_ns = conns_charge(set, NULL) + RETRY_NS;

    /* A flush may end connections, so no pointer into the list is followed after it; `last` is only
     * compared. */
    while ((c = TAILQ_FIRST(&set->waiting)) && conns_charge(set, c->owner) < until_ns) {
        TAILQ_REMOVE(&set->waiting, c, wait_link);
        TAILQ_INSERT_TAIL(&set->waiting, c, wait_link);
        lose_culprit(set, c);
        conn_flush(c);
        if (c == last)
            break;
    }
    conns_charge(set, NULL);
}

void
conns_queued(struct conns *set, struct conn *c, size_t n, size_t n_fds)
{
    if (!c->queued)
        TAILQ_INSERT_TAIL(&set->queued, c, queue_link);
    c->queued = true;
    set->n_queued_bytes += n;
    set->n_queued_fds += (uint32_t)n_fds;
    c->owner->n_queued_bytes += n;
    c->owner->n_queued_fds += (uint32_t)n_fds;
}

void
conns_dequeued(struct conns *set, struct conn *c, size_t n, size_t n_fds)
{
    set->n_queued_bytes -= n;
    set->n_queued_fds -= (uint32_t)n_fds;
    c->owner->n_queued_bytes -= n;
    c->owner->n_queued_fds -= (uint32_t)n_fds;
    if (outq_first(&c->outq) || !c->queued)
        return;
    TAILQ_REMOVE(&set->queued, c, queue_link);
    c->queued = false;
}

/* The uid that has most bytes, or most fds, queued. */
static const struct conn_owner *
heaviest(struct conns *set, bool by_bytes)
{
    struct conn_owner *o, *most = NULL;

    RB_FOREACH(o, conn_owners, &set->owners)
        if (!most || (by_bytes ? o->n_queued_bytes > most->n_queued_bytes
                               : o->n_queued_fds > most->n_queued_fds))
            most = o;
    return most;
}

void
conns_make_room(struct conns *set)
{
    while (set->n_queued_bytes > MAX_QUEUED_BYTES || set->n_queued_fds > set->max_queued_fds) {
        const struct conn_owner *o = heaviest(set, set->n_queued_bytes > MAX_QUEUED_BYTES);
        struct conn *c = TAILQ_FIRST(&set->queued);

        while (c->owner != o)
            c = TAILQ_NEXT(c, queue_link);
        conn_lose(c, "left too much unread");
    }
}

void
conns_wait(struct conns *set, struct conn *c)
{
    if (TAILQ_EMPTY(&set->waiting))
        uv_timer_start(&set->retry, on_retry, RETRY_MS, RETRY_MS);
    TAILQ_INSERT_TAIL(&set->waiting, c, wait_link);
    c->waiting = true;
}

void
conns_unwait(struct conns *set, struct conn *c)
{
    TAILQ_REMOVE(&set->waiting, c, wait_link);
    c->waiting = false;
    if (TAILQ_EMPTY(&set->waiting))
        uv_timer_stop(&set->retry);
}
