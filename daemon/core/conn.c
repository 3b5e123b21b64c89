/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include "array.h"
#include "flush.h"
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

/* ---- birth ---- */

static void
conn_free(struct conn *conn)
{
    free(conn->groups);
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
    conn->id = id;
    conn->gid = peer->gid;
    conn->pid = peer->pid;
    published_init(&conn->published); /* what else it has is empty as it is, all zero */
    return conn;
}

int
conn_open(struct core *core, uint64_t id, const struct core_peer *peer, struct user *user,
          struct conn **ret)
{
    struct refusal r;
    struct charge charge;
    struct conn *conn;

    if (charge_init(&charge, user, RES_CONNECTIONS, 1, 0, &r))
        return -EDQUOT;
    conn = conn_alloc(id, peer);
    if (!conn) {
        charge_deinit(&charge);
        return -ENOMEM;
    }
    conn->charge = charge;
    conn->user = user;
    conn->deadline_ns = core->now_ns + core->config.hello_timeout_ns;
    TAILQ_INSERT_TAIL(&core->waiting, conn, waiting);
    RB_INSERT(conns, &core->conns, conn);
    core->n_conns++;
    *ret = conn;
    return 0;
}

/* ---- hanging up ---- */

/* Nothing is answered or carried out for it any more. */
static void
conn_drop_requests(struct core *core, struct conn *conn)
{
    struct waiter *waiter;
    struct flush *flush;
    struct watch *watch;
    struct job *job;

    while ((job = LIST_FIRST(&conn->jobs)))
        job_orphan(job); /* its result is given up when it comes */
    while ((waiter = LIST_FIRST(&conn->waiters)))
        waiter_orphan(waiter);
    while ((flush = LIST_FIRST(&conn->flushes)))
        flush_orphan(flush);
    while ((watch = LIST_FIRST(&conn->watches)))
        watch_free(core, watch);
    published_orphan(conn);
    brackets_orphan(core, conn);
    while (conn->deferring)
        reclaim_undefer(core, conn);
    if (!conn->greeted)
        TAILQ_REMOVE(&core->waiting, conn, waiting);
    entry_remove(core, &conn->close);
    entry_drop_sends(core, conn->id);
}

/* Ends every use; keeps what the GPU may still write to for the process, and what it may have
 * open that must not be freed under it. */
static void
conn_depart(struct core *core, struct conn *conn)
{
    struct lease *lease, *next;
    struct hold *hold, *after;
    struct page *page;

    while ((hold = RB_MIN(holds, &conn->page_holds)))
        page_unhold(core, hold);
    LIST_FOREACH(page, &conn->pages, of_conn)
        if (page->timeline)
            timeline_free(core, page->timeline);
    for (lease = RB_MIN(leases, &conn->leases); lease; lease = next) {
        next = RB_NEXT(leases, &conn->leases, lease);
        if (lease->hold)
            continue;
        bracket_drop_lease(core, lease);
        lease_free(core, lease);
    }
    for (hold = RB_MIN(holds, &conn->holds); hold; hold = after) {
        after = RB_NEXT(holds, &conn->holds, hold);
        if (!hold->n_leases && hold->block->kind == KIND_DEVICE)
            block_unhold(core, hold);
    }
    conn->departed = true;
    brackets_depart(core, conn);
    RB_FOREACH(lease, leases, &conn->leases)
        lease_depart(core, lease);
}

/* ---- the end ---- */

/* What its brackets keep, and what others wait for in its pages: they are let go. */
static void
conn_drop_uses(struct core *core, struct conn *conn)
{
    struct page *page;

    brackets_free(core, conn);
    while ((page = LIST_FIRST(&conn->pages)))
        page_free(core, page);
}

static void
conn_destroy(struct core *core, struct conn *conn)
{
    struct lease *lease;
    struct hold *hold;

    conn_drop_uses(core, conn);
    while ((lease = RB_MIN(leases, &conn->leases)))
        lease_free(core, lease);
    while ((hold = RB_MIN(holds, &conn->holds)))
        block_unhold(core, hold);
    charge_deinit(&conn->charge);
    conn_free(conn);
}

/* Whether the exit of its process matters. */
static bool
conn_has_uses(const struct conn *conn)
{
    return !RB_EMPTY(&conn->leases) || !RB_EMPTY(&conn->holds) || !LIST_EMPTY(&conn->pages) ||
           !RB_EMPTY(&conn->brackets);
}

bool
conn_hangup(struct core *core, struct conn *conn)
{
    conn_drop_requests(core, conn);
    RB_REMOVE(conns, &core->conns, conn);
    core->n_conns--;
    conn_depart(core, conn);
    if (!conn_has_uses(conn)) {
        conn_destroy(core, conn);
        return false;
    }
    RB_INSERT(conns, &core->departed, conn);
    core->n_departed++;
    return true;
}

void
conn_exit(struct core *core, struct conn *conn)
{
    RB_REMOVE(conns, &core->departed, conn);
    core->n_departed--;
    conn_destroy(core, conn);
}

void
conns_run(struct core *core)
{
    struct conn *conn;
    struct entry *forget;

    while ((conn = TAILQ_FIRST(&core->touched_conns))) {
        TAILQ_REMOVE(&core->touched_conns, conn, waiting);
        conn->touched = false;
        /* Where there is no memory to say so, it stays until the exit. */
        forget = conn_has_uses(conn) ? NULL : entry_new(CORE_FORGET, 0);
        if (!forget)
            continue;
        forget->action.conn = conn->id;
        entry_push(core, forget);
        conn_exit(core, conn);
    }
}

void
conns_forget_departed(struct core *core)
{
    struct conn *conn;
    struct lease *lease;
    struct hold *hold;

    while ((conn = RB_MIN(conns, &core->departed))) {
        RB_REMOVE(conns, &core->departed, conn);
        conn_drop_uses(core, conn);
        while ((lease = RB_MIN(leases, &conn->leases))) {
            RB_REMOVE(leases, &conn->leases, lease);
            free(lease);
        }
        while ((hold = RB_MIN(holds, &conn->holds))) {
            RB_REMOVE(holds, &conn->holds, hold);
            free(hold);
        }
        conn_free(conn);
    }
}
