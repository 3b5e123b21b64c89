/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include "array.h"
#include "flush.h"
#include "former.h"
#include "monitor.h"
#include "participant.h"
#include "reclaim.h"
#include "state.h"
#include "waiter.h"

RB_GENERATE_BY(conns, conn, node, id)

struct conn *
conn_find(struct conns *conns, uint64_t id)
{
    struct conn key = {.id = id};

    return RB_FIND(conns, conns, &key);
}

/* ---- start ---- */

static void
conn_free(struct conn *conn)
{
    free(conn->groups);
    entry_free(conn->let_go);
    free(conn);
}

static struct conn *
conn_alloc(uint64_t id, const struct core_peer *peer)
{
    struct conn *conn = calloc(1, sizeof(*conn));

    if (!conn)
        return NULL;
    if (peer->n_groups) {
        conn->groups = malloc(peer->n_groups * sizeof(*conn->groups));
        if (!conn->groups) {
            free(conn);
            return NULL;
        }
        memcpy(conn->groups, peer->groups, peer->n_groups * sizeof(*conn->groups));
        conn->n_groups = peer->n_groups;
    }
    conn->let_go = entry_new(CORE_LET_GO, 0);
    if (!conn->let_go) {
        conn_free(conn);
        return NULL;
    }
    conn->id = id;
    conn->gid = peer->gid;
    conn->pid = peer->pid;
    memcpy(conn->token, peer->token, sizeof(conn->token));
    published_init(&conn->published); /* calloc() has initialised the rest */
    return conn;
}

int
conn_open(struct core *core, uint64_t id, const struct core_peer *peer, struct user *user,
          struct refusal *r, struct conn **ret)
{
    struct charge charge;
    struct conn *conn;

    if (user_check(user, RES_CONNECTIONS, 1, r))
        return -EDQUOT;
    charge_init(&charge, user, RES_CONNECTIONS, 1, CONN_HOST + peer->n_groups * sizeof(gid_t),
                NULL); /* no limit: a user at its limit must be able to give something up */
    conn = conn_alloc(id, peer);
    if (!conn) {
        charge_deinit(&charge);
        return -ENOMEM;
    }
    conn->charge = charge;
    if (charge_init(&conn->fds, user, RES_FDS, CONN_FDS, 0, r)) {
        charge_deinit(&conn->charge);
        conn_free(conn);
        return -EMFILE;
    }
    conn->user = user;
    conn->deadline_ns = core->now_ns + core->config.hello_timeout_ns;
    TAILQ_INSERT_TAIL(&core->waiting, conn, waiting);
    RB_INSERT(conns, &core->conns, conn);
    core->n_conns++;
    *ret = conn;
    return 0;
}

void
conn_take_over(struct core *core, struct conn *former, struct conn *conn)
{
    struct entry *forget = TAKE_PTR(conn->let_go);
    struct charge charge = former->charge;
    gid_t *groups = former->groups;

    forget->action = (struct core_action){.type = CORE_FORGET, .conn = former->id};
    entry_push(core, forget);
    RB_REMOVE(conns, &core->departed, former);
    RB_REMOVE(conns, &core->conns, conn);
    core->n_departed--;
    former->id = conn->id;
    former->gid = conn->gid;
    former->groups = conn->groups;
    former->n_groups = conn->n_groups;
    former->charge = conn->charge;
    memcpy(former->token, conn->token, sizeof(conn->token));
    memcpy(former->client, conn->client, sizeof(conn->client));
    former->greeted = former->resumed = true;
    former->is_told = conn->is_told;
    former->reported = former->closing = former->departed = former->is_held_back = false;
    former->stage = 0;
    RB_INSERT(conns, &core->conns, former);
    conn->groups = groups;
    charge_deinit(&charge);
    charge_deinit(&conn->fds);
    conn_free(conn);
}

/* ---- end, piece by piece ---- */

/* A step of the end. It may take back one thing; false: there is nothing (more) of its kind. */
typedef bool stage_fn(struct core *core, struct conn *conn);

/* A driver call that has begun goes on; its result is dropped. */
static void
drop_job(struct core *core, struct job *job)
{
    if (job_drop(core, job))
        free(job);
    else
        job_orphan(job);
}

/* Requests that wait are dropped: nobody would read the answer. */
static bool
drop_request(struct core *core, struct conn *conn)
{
    if (!LIST_EMPTY(&conn->jobs))
        drop_job(core, LIST_FIRST(&conn->jobs));
    else if (!LIST_EMPTY(&conn->waiters))
        waiter_drop(core, LIST_FIRST(&conn->waiters));
    else if (!LIST_EMPTY(&conn->flushes))
        flush_drop(core, LIST_FIRST(&conn->flushes));
    else if (!RB_EMPTY(&conn->watches))
        watch_free(core, RB_ROOT(&conn->watches));
    else if (!LIST_EMPTY(&conn->vacates))
        vacate_free(core, LIST_FIRST(&conn->vacates));
    else if (!LIST_EMPTY(&conn->standing))
        channel_drop_request(core, conn);
    else if (!LIST_EMPTY(&conn->making))
        page_free(core, LIST_FIRST(&conn->making));
    else if (conn->monitor)
        monitor_free(core, conn->monitor);
    else if (!RB_EMPTY(&conn->asking))
        bracket_free(core, RB_MIN(by_request, &conn->asking));
    else
        return published_orphan(&conn->published);
    return true;
}

static bool
drop_page_hold(struct core *core, struct conn *conn)
{
    struct hold *hold = RB_MIN(holds, &conn->page_holds);

    if (hold)
        page_unhold(core, hold);
    return hold != NULL;
}

static bool
drop_timeline(struct core *core, struct conn *conn)
{
    struct timeline *timeline = former_may_resume(conn) ? NULL : LIST_FIRST(&conn->timelines);

    if (timeline)
        timeline_free(core, timeline);
    return timeline != NULL;
}

/* Messages that it has sent outlive it. */
static bool
leave_ticket(struct core *core, struct conn *conn)
{
    struct ticket *ticket = former_may_resume(conn) ? NULL : LIST_FIRST(&conn->tickets);

    if (ticket)
        ticket_leave(core, ticket);
    return ticket != NULL;
}

/* The GPU may still write to arrays with memory: their leases stay. A connection that may resume
 * has not said which leases it has: what it said so far is dropped, and only its holds stay. */
static bool
depart_lease(struct core *core, struct conn *conn)
{
    struct lease key = {.id = conn->looked_at + 1};
    struct lease *lease = RB_NFIND(leases, &conn->leases, &key);

    if (!lease)
        return false;
    conn->looked_at = lease->id;
    if (lease->hold && !former_may_resume(conn)) {
        lease_depart(core, lease);
    } else {
        bracket_drop_lease(core, lease);
        lease_free(core, lease);
    }
    return true;
}

/* What was said of the bracket by a client that has not finished resuming does not count. */
static bool
unresume_bracket(struct core *core, struct conn *conn)
{
    struct bracket *bracket = former_may_resume(conn) ? RB_MIN(brackets, &conn->brackets)
                                                      : NULL;

    if (bracket)
        bracket_unresume(core, bracket);
    return bracket != NULL;
}

/* Open brackets stay until the process exits. */
static bool
depart_bracket(struct core *core, struct conn *conn)
{
    struct bracket key = {.id = conn->looked_at + 1};
    struct bracket *bracket = RB_NFIND(brackets, &conn->brackets, &key);

    if (!bracket)
        return false;
    conn->looked_at = bracket->id;
    bracket_depart(core, bracket);
    return true;
}

/* Holds stay on what must not be freed while the process may have it open. If the process has
 * pages, its streams may have signals on the way: then holds stay too, since after a restart
 * nothing else tells what they write to. */
static bool
depart_hold(struct core *core, struct conn *conn)
{
    struct hold key = {.id = conn->looked_at + 1};
    struct hold *hold = RB_NFIND(holds, &conn->holds, &key);

    if (!hold)
        return false;
    conn->looked_at = hold->id;
    if (!hold->n_leases && !hold->before && hold->block->kind == KIND_DEVICE &&
        LIST_EMPTY(&conn->pages))
        block_unhold(core, hold);
    return true;
}

/* The process has exited: ends its brackets, and lets all go who wait for its pages. */
static bool
exit_bracket(struct core *core, struct conn *conn)
{
    struct bracket *bracket = RB_MIN(brackets, &conn->brackets);

    if (bracket)
        bracket_exit(core, bracket);
    return bracket != NULL;
}

static bool
exit_page(struct core *core, struct conn *conn)
{
    struct page *page = LIST_FIRST(&conn->pages);

    if (page && !page_drop_one(core, page))
        page_free(core, page);
    return page != NULL;
}

static bool
exit_lease(struct core *core, struct conn *conn)
{
    struct lease *lease = RB_MIN(leases, &conn->leases);

    if (lease)
        lease_free(core, lease);
    return lease != NULL;
}

static bool
exit_hold(struct core *core, struct conn *conn)
{
    struct hold *hold = RB_MIN(holds, &conn->holds);

    if (hold)
        block_unhold(core, hold);
    return hold != NULL;
}

/* NULL: here the connection waits for the exit of its process, or to be resumed. */
static stage_fn *const stages[] = {
    drop_request, drop_page_hold, drop_timeline, leave_ticket, unresume_bracket,
    depart_lease, depart_bracket, depart_hold,   NULL,         leave_ticket,
    exit_bracket, exit_page,      exit_lease,    exit_hold,
};

static bool
conn_has_uses(const struct conn *conn)
{
    return !RB_EMPTY(&conn->leases) || !RB_EMPTY(&conn->holds) || !LIST_EMPTY(&conn->pages) ||
           !RB_EMPTY(&conn->brackets);
}

/* Tells the keeper to drop the pidfd, after the connection's record has ended. */
static void
let_go(struct core *core, struct conn *conn)
{
    if (!conn->kept)
        return;
    conn->let_go->action.kept = conn->kept;
    entry_push(core, TAKE_PTR(conn->let_go));
}

/* Frees the connection. Without memory for the message that its process does not matter any more,
 * it stays until the exit. */
static void
conn_go(struct core *core, struct conn *conn)
{
    bool tells = conn->reported && !conn->exited;
    struct entry *forget = tells ? entry_new(CORE_FORGET, 0) : NULL;

    if (tells && !forget)
        return;
    if (forget) {
        forget->action.conn = conn->id;
        entry_push(core, forget);
    }
    former_end(core, conn);
    persist_conn_gone(core, conn);
    let_go(core, conn);
    RB_REMOVE(conns, &core->departed, conn);
    core->n_departed--;
    charge_deinit(&conn->charge);
    charge_deinit(&conn->fds);
    conn_free(conn);
}

/* Takes back one thing. false: the connection is freed, or waits for the exit of its process. */
static bool
conn_end_one(struct core *core, struct conn *conn)
{
    stage_fn *stage;

    if (conn->stage == ARRAY_SIZE(stages)) {
        conn_go(core, conn);
        return false;
    }
    stage = stages[conn->stage];
    if (!stage && !conn->exited && LIST_EMPTY(&conn->pages) && depart_hold(core, conn))
        return true;
    if (!stage && !conn->exited && (conn_has_uses(conn) || former_may_resume(conn)))
        return false;
    if (!stage)
        metrics_count(conn->user, COUNT_DEATHS, conn->exited && conn_has_uses(conn));
    if (!stage || !stage(core, conn)) {
        conn->stage++;
        conn->looked_at = 0;
    }
    return true;
}

void
conn_end_some(struct core *core, struct conn *conn)
{
    TAILQ_REMOVE(&conn->user->ending, conn, waiting);
    conn->ending = false;
    for (uint32_t i = 0; i < core->pieces; i++)
        if (!conn_end_one(core, conn))
            return;
    conn_wake(conn);
}

void
conn_hangup(struct core *core, struct conn *conn)
{
    if (!conn->greeted)
        TAILQ_REMOVE(&core->waiting, conn, waiting);
    entry_remove(core, &conn->close);
    entry_remove(core, &conn->keep);
    entry_drop_sends(core, conn->id);
    if (conn->deferring) {
        conn->deferring = 1;
        reclaim_undefer(core, conn);
    }
    RB_REMOVE(conns, &core->conns, conn);
    RB_INSERT(conns, &core->departed, conn);
    core->n_conns--;
    core->n_departed++;
    conn->closing = conn->departed = true;
    former_hangup(conn);
    if (conn->resumes)
        persist_process(core, conn);
    conn_wake(conn);
}

/* Drops leases and holds, whose arrays and blocks are dropped next. */
static void
forget_uses(struct conn *conn)
{
    struct lease *lease;
    struct hold *hold;

    while ((lease = RB_MIN(leases, &conn->leases))) {
        RB_REMOVE(leases, &conn->leases, lease);
        free(lease);
    }
    while ((hold = RB_MIN(holds, &conn->holds))) {
        RB_REMOVE(holds, &conn->holds, hold);
        free(hold);
    }
}

void
conns_forget_departed(struct core *core)
{
    stage_fn *const needed[] = {drop_request, drop_page_hold, exit_bracket, exit_page};
    struct conn *conn;

    while ((conn = RB_MIN(conns, &core->departed))) {
        for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
            while (needed[i](core, conn))
                ;
        forget_uses(conn);
        RB_REMOVE(conns, &core->departed, conn);
        conn_free(conn);
    }
}
