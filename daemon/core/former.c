/* SPDX-License-Identifier: Apache-2.0 */
#include "former.h"

#include <assert.h>

#include "array.h"
#include "linger.h"
#include "publish.h"
#include "reclaim.h"
#include "settle.h"
#include "state.h"

#define FORMER_NS UINT64_C(30000000000) /* that the client of a former one may be silent */
#define ITEM_NS   UINT64_C(100000)      /* more, for each array that a client may have */
#define LATE_NS   UINT64_C(1000000000)  /* between two looks for late clients */
#define LATE_MAX  16                    /* given up in one event */
#define PAGES_MAX 64                    /* looked at in one event: each has its slots */

int
formers_begin(struct core *core, const struct restore_array *arrays, size_t n)
{
    core->former_arrays = array_index_new(arrays, n);
    core->formers_end_ns = UINT64_MAX;
    return core->former_arrays ? 0 : -ENOMEM;
}

void
formers_wait(struct core *core, size_t n)
{
    struct conn *conn;
    struct user *user;

    if (!core->n_formers)
        free(TAKE_PTR(core->former_arrays));
    core->formers_end_ns = core->now_ns + 2 * FORMER_NS + n * ITEM_NS;
    RB_FOREACH(user, users, &core->users)
        TAILQ_FOREACH(conn, &user->formers, of_former)
            former_goes_on(core, conn);
}

/* ---- which there are ---- */

void
former_new(struct core *core, struct conn *conn)
{
    conn->former = true;
    conn->late_ns = core->now_ns + FORMER_NS;
    TAILQ_INSERT_TAIL(&conn->user->formers, conn, of_former);
    core->n_formers++;
    core->formers_at_ns = core->now_ns + LATE_NS;
    linger_later(core, LATE_NS);
}

/* A uid has no former connection left, or none that is landing: doubts of pools may have ended. */
static void
know_pools(struct core *core)
{
    struct pool *pool;

    RB_FOREACH(pool, pools, &core->pools)
        if (!pool->unit)
            doubts_know(&core->known, &pool->doubts);
}

/* The client has resumed, or is not waited for any more. */
static void
end_resume(struct core *core, struct conn *conn)
{
    conn->former = conn->resuming = false;
    TAILQ_REMOVE(&conn->user->formers, conn, of_former);
    if (--core->n_formers == 0 && !core->units)
        free(TAKE_PTR(core->former_arrays));
    if (TAILQ_EMPTY(&conn->user->formers))
        know_pools(core);
}

static void
begin_landing(struct core *core, struct conn *conn)
{
    struct hold *hold;

    conn->landing = true;
    TAILQ_INSERT_TAIL(&core->landing, conn, of_former);
    conn->user->n_landing++;
    RB_FOREACH(hold, holds, &conn->holds)
        if (hold->unresumed)
            block_know_use(core, hold);
}

static void
end_landing(struct core *core, struct conn *conn)
{
    conn->landing = false;
    TAILQ_REMOVE(&core->landing, conn, of_former);
    if (--conn->user->n_landing == 0)
        know_pools(core);
}

/* goes: what has not been stored is lost, too. */
static void
note_loss(struct conn *conn, bool goes)
{
    const struct page *page;
    uint32_t n = 0;

    LIST_FOREACH(page, &conn->pages, of_conn) {
        if (n++ == PAGES_MAX) {
            block_lose_writes(conn);
            return;
        }
        page_note_loss(page, goes);
    }
}

void
former_forgets(struct conn *conn)
{
    if (conn->former || conn->landing)
        note_loss(conn, false);
}

void
former_exit(struct conn *conn)
{
    if (conn->former)
        block_lose_writes(conn);
    note_loss(conn, true);
}

void
former_end(struct core *core, struct conn *conn)
{
    struct hold *hold;

    if (conn->former)
        end_resume(core, conn);
    else if (conn->landing)
        end_landing(core, conn);
    else
        return;
    RB_FOREACH(hold, holds, &conn->holds)
        block_know_hold(core, hold, conn->leaves);
}

/* Compares both words in constant time. */
static bool
is_token(const uint64_t of[static 2], const uint64_t token[static 2])
{
    return ((of[0] ^ token[0]) | (of[1] ^ token[1])) == 0 && (of[0] | of[1]) != 0;
}

/* The old token is valid, too: the earlier core may have died before its client got the new one. */
static bool
has_token(const uint64_t of[static 2], const uint64_t old[static 2], struct msg_u64s token)
{
    return token.n == 2 && is_token(of, token.v) + is_token(old, token.v) > 0;
}

bool
former_keeps_place(const struct core *core, const struct user *user, pid_t pid)
{
    uint64_t n = user_limit(core, RES_CONNECTIONS);
    const struct conn *former;
    bool is_one = false;

    TAILQ_FOREACH(former, &user->formers, of_former) {
        n += former_may_resume(former);
        is_one |= former_may_resume(former) && former->pid == pid;
    }
    return is_one && user->used[RES_CONNECTIONS] < n;
}

struct conn *
former_find(const struct conn *conn, struct msg_u64s token)
{
    struct conn *former;

    TAILQ_FOREACH(former, &conn->user->formers, of_former)
        if (former_may_resume(former) && former->pid == conn->pid &&
            has_token(former->token, former->old_token, token))
            return former;
    return NULL;
}

void
refuse_kicked(struct refusal *r, uid_t by)
{
    refusal_fill(r, PROTO_ERR_KICKED, "uid %u has ended this connection (kick)", (unsigned)by);
}

bool
former_was_kicked(const struct core *core, struct msg_u64s token, struct refusal *r)
{
    for (size_t i = 0; i < KICKED_MAX; i++)
        if (has_token(core->kicked[i].token, core->kicked[i].old_token, token)) {
            refuse_kicked(r, core->kicked[i].by);
            return true;
        }
    return false;
}

void
former_goes_on(const struct core *core, struct conn *conn)
{
    conn->late_ns = min_u64(core->now_ns + FORMER_NS, core->formers_end_ns);
}

void
former_resume(struct core *core, struct conn *conn, const uint64_t token[static 2])
{
    conn->resuming = true;
    former_goes_on(core, conn);
    memcpy(conn->old_token, token, sizeof(conn->old_token));
    persist_process(core, conn);
}

/* ---- what a client says that it has ---- */

/* No memory but in blocks that the process has a hold on: it had them mapped, and may still. */
static bool
may_have(struct conn *conn, struct array *array, bool readonly)
{
    const struct block *block = array_block(array);

    return (!block || hold_find(&conn->holds, block->id)) &&
           pool_may(array->pool, conn, readonly ? MAY_READ : MAY_WRITE);
}

#define GONE 2 /* not an error: the lease is gone */

/* Its memory here is charged whatever the limit, as for all that is restored; but the limit of
 * leases holds. */
static int
resume_lease(struct core *core, struct conn *conn, uint64_t id, struct array *array,
             bool readonly, struct refusal *r)
{
    if (!lease_is_free(conn, id))
        return refuse(r, PROTO_ERR_INVALID, "lease %llu is none, or there already",
                      (unsigned long long)id);
    if (!array || !may_have(conn, array, readonly))
        return GONE;
    if (user_check(conn->user, RES_LEASES, 1, r))
        return GONE;
    return lease_restore(core, conn, id, array, readonly, NULL);
}

int
former_resume_leases(struct core *core, struct conn *conn, struct msg_u64s pairs, bool readonly,
                     uint64_t *lost, uint32_t *n_lost, struct refusal *r)
{
    for (uint32_t i = 0; i + 1 < pairs.n; i += 2) {
        int rc = resume_lease(core, conn, pairs.v[i],
                              array_index_find(core->former_arrays, pairs.v[i + 1]), readonly,
                              r);
        if (rc == GONE) {
            lost[(*n_lost)++] = pairs.v[i];
            block_lose_writes(conn);
        } else if (rc) {
            return rc;
        }
    }
    return 0;
}

static bool
is_writer(const struct use *use, const struct conn *conn)
{
    return use->writer && use->writer == conn->number;
}

static bool
is_one_of_several(const struct use *use, const struct conn *conn)
{
    return use->writers & former_bit(conn->number);
}

bool
former_resume_write(struct conn *conn, struct array *array)
{
    struct use *use = array->use;

    if (!use || !conn->resuming || !(is_one_of_several(use, conn) || is_writer(use, conn)))
        return false;
    use->writer = 0;
    use->was_written = true;
    return true;
}

void
former_unresume_write(const struct conn *conn, struct array *array)
{
    bool is_doubted = array->use->doubt == DOUBT_HOLDERS;

    if (is_one_of_several(array->use, conn))
        return;
    if (!is_doubted)
        use_tear(&array->use->whole);
    array->use->writer = is_doubted ? conn->number : 0;
    array->use->was_written = false;
}

/* What it wrote is whole when all has landed that its connection had submitted. */
static int
resume_one_of_several(struct array *array, struct page *page, const uint64_t end[static 5])
{
    if (page && page->before[end[2]] < end[3])
        page->before[end[2]] = end[3];
    if (end[4])
        use_tear(&array->use->whole);
    use_settle(array->use);
    return 0;
}

/* A bracket that the client has ended; the earlier core may not have received the END. */
static int
resume_end(struct core *core, struct conn *conn, const uint64_t end[static 5],
           struct refusal *r)
{
    struct array *array = array_index_find(core->former_arrays, end[0]);
    struct page *page = end[3] ? page_find_own(core, conn, end[1]) : NULL;

    if (end[3] && (!page || !page->before || end[2] >= TIMELINE_SLOTS ||
                   end[3] > timeline_submitted(&page->slots[end[2]])))
        return refuse(r, PROTO_ERR_INVALID, "value %llu was not submitted",
                      (unsigned long long)end[3]);
    if (!array || !former_resume_write(conn, array))
        return 0;
    persist_mark(array);
    if (end[4] == MSG_ENDED_UNDONE)
        return 0;
    if (is_one_of_several(array->use, conn))
        return resume_one_of_several(array, page, end);
    array->abandoned = end[4];
    return use_restore_write(array, page, (uint32_t)end[2], end[3]);
}

/* The client repeats a TAKE since it did not get the answer. The array is sent to it once more, by
 * the same ticket. */
static int
resume_repeat(struct core *core, struct conn *conn, uint64_t request)
{
    const struct done *done = done_find(conn, (uint32_t)request, MSG_TAKE);
    struct array *array = done ? array_index_find(core->former_arrays, done->array) : NULL;

    if (!array || !may_have(conn, array, true) || ticket_find(core, done->ticket))
        return 0;
    return ticket_new(core, conn, array, done->readonly, done->ticket, TICKET_OWN, NULL);
}

/* The client's caller was told that the CREATE has failed: the name goes, unless it is another
 * array's by now. */
static void
resume_undo(struct core *core, const struct conn *conn, uint64_t request)
{
    const struct done *done = done_find(conn, (uint32_t)request, MSG_CREATE);
    struct array *array = done ? array_index_find(core->former_arrays, done->part) : NULL;

    if (array && array->named && array->generation == done->generation &&
        pool_may(array->pool, conn, MAY_WRITE))
        array_unlink(core, array);
}

/* The publisher hears when nobody can reach the part any more: later, or now. */
static int
resume_part(struct core *core, struct conn *conn, uint64_t id, struct refusal *r)
{
    struct array *array = array_index_find(core->former_arrays, id);
    struct part *part = array && array->is_part ? array->part : NULL;

    if (!part)
        return published_add_gone(conn, id, r);
    if (part->conn || part->whole->array->charge.user != conn->user)
        return refuse(r, PROTO_ERR_INVALID, "part %llu is another one's",
                      (unsigned long long)id);
    published_add(conn, part);
    return 0;
}

int
former_resume_rest(struct core *core, struct conn *conn, const struct msg_resume_params *p,
                   struct refusal *r)
{
    int rc = 0;

    for (uint32_t i = 0; i < p->blocks.n; i++) {
        struct hold *hold = hold_find(&conn->holds, p->blocks.v[i]);
        if (hold)
            hold->resumed = true;
    }
    for (uint32_t i = 0; i < p->pages.n; i++) {
        struct page *page = page_find_own(core, conn, p->pages.v[i]);
        if (page)
            page->resumed = true;
    }
    for (uint32_t i = 0; rc == 0 && i < p->parts.n; i++)
        rc = resume_part(core, conn, p->parts.v[i], r);
    for (uint32_t i = 0; rc == 0 && i + 4 < p->ended.n; i += 5)
        rc = resume_end(core, conn, p->ended.v + i, r);
    for (uint32_t i = 0; rc == 0 && i < p->undo.n; i++)
        resume_undo(core, conn, p->undo.v[i]);
    while (rc == 0 && conn->deferring < p->deferring && conn->deferring < DEFER_DEPTH_MAX)
        reclaim_defer(core, conn);
    for (uint32_t i = 0; rc == 0 && i < p->repeats.n; i++)
        rc = resume_repeat(core, conn, p->repeats.v[i]);
    return rc;
}

/* ---- all has been said ---- */

/* Ends holds and pages of which the client said nothing. Blocks that it has mapped stay set
 * aside. */
static void
give_back(struct core *core, struct conn *conn)
{
    struct hold *hold, *next_hold;
    struct page *page, *next_page;

    former_forgets(conn);
    for (hold = RB_MIN(holds, &conn->holds); hold; hold = next_hold) {
        next_hold = RB_NEXT(holds, &conn->holds, hold);
        if (!hold->resumed && hold->before && !hold->n_leases)
            block_unhold(core, hold);
    }
    for (page = LIST_FIRST(&conn->pages); page; page = next_page) {
        next_page = LIST_NEXT(page, of_conn);
        if (!page->resumed && page->before)
            page_drop(core, page);
    }
}

static bool
has_landed(const struct page *page)
{
    for (size_t i = 0; i < TIMELINE_SLOTS; i++)
        if (timeline_state(&page->slots[i], page->before[i]) == FENCE_PENDING)
            return false;
    return true;
}

/* Once all has landed that was submitted before the restart, the connection is like any other. */
static void
look_at(struct core *core, struct conn *conn, uint32_t *budget)
{
    struct page *page;

    LIST_FOREACH(page, &conn->pages, of_conn) {
        if (!page->before)
            continue;
        if (*budget == 0 || (--*budget, !has_landed(page)))
            return;
        page_note_loss(page, true);
        free(TAKE_PTR(page->before));
    }
    former_end(core, conn);
}

void
former_done(struct core *core, struct conn *conn, bool leaves)
{
    uint32_t budget = PAGES_MAX;

    if (!leaves)
        give_back(core, conn);
    conn->leaves = leaves;
    if (leaves) { /* and nobody waits for it after a restart, be that before it has hung up */
        conn->resumes = false;
        persist_process(core, conn);
    }
    end_resume(core, conn);
    begin_landing(core, conn);
    look_at(core, conn, &budget);
    if (conn->landing)
        linger_later(core, LINGER_TURN_NS);
}

void
former_give_up(struct core *core, struct conn *conn)
{
    conn->resumes = false;
    conn->leaves = true;
    former_exit(conn);
    former_end(core, conn);
    persist_process(core, conn);
    if (!conn->departed)
        return;
    conn->stage = 0; /* from the first step again: names of timelines have stayed for it */
    conn_wake(conn);
}

void
former_kick(struct core *core, struct conn *conn, uid_t by)
{
    struct kicked *kicked = &core->kicked[core->n_kicked++ % KICKED_MAX];

    kicked->by = by;
    memcpy(kicked->token, conn->token, sizeof(kicked->token));
    memcpy(kicked->old_token, conn->old_token, sizeof(kicked->old_token));
    former_give_up(core, conn);
}

/* Returns whether more clients are late. */
static bool
give_up_late(struct core *core)
{
    struct conn *conn, *next;
    struct user *user;
    int n = 0;

    RB_FOREACH(user, users, &core->users)
        for (conn = TAILQ_FIRST(&user->formers); conn; conn = next) {
            next = TAILQ_NEXT(conn, of_former);
            if (core->now_ns < conn->late_ns)
                continue;
            if (n++ == LATE_MAX)
                return true;
            former_give_up(core, conn);
            if (!conn->departed)
                conn_end(core, conn, "it has come back, and not told in time what it has");
        }
    return false;
}

/* Connections that were not looked at for longest come first. */
static void
look_at_landing(struct core *core)
{
    const struct conn *last = TAILQ_LAST(&core->landing, conn_list);
    uint32_t budget = PAGES_MAX;
    struct conn *conn = NULL;

    while (conn != last && budget > 0) {
        conn = TAILQ_FIRST(&core->landing);
        TAILQ_REMOVE(&core->landing, conn, of_former);
        TAILQ_INSERT_TAIL(&core->landing, conn, of_former);
        look_at(core, conn, &budget);
    }
    if (!TAILQ_EMPTY(&core->landing))
        linger_later(core, budget > 0 ? LINGER_TURN_NS : LINGER_REST_NS);
}

void
former_hangup(struct conn *conn)
{
    struct hold *hold;
    struct page *page;

    if (!conn->resuming)
        return;
    conn->resuming = conn->resumed = false;
    RB_FOREACH(hold, holds, &conn->holds)
        hold->resumed = false;
    LIST_FOREACH(page, &conn->pages, of_conn)
        page->resumed = false;
}

void
formers_look(struct core *core)
{
    if (!TAILQ_EMPTY(&core->landing))
        look_at_landing(core);
    if (core->n_formers && core->now_ns >= core->formers_at_ns)
        core->formers_at_ns =
            core->now_ns + (!core->units && give_up_late(core) ? LINGER_REST_NS : LATE_NS);
    if (core->n_formers)
        linger_later(core, core->formers_at_ns - core->now_ns);
}

/* ---- what is in doubt ---- */

int
former_doubt(struct array *array, uint64_t writer)
{
    struct use *use;

    if (use_get(array, &use) < 0)
        return -ENOMEM;
    array->abandoned |= writer && use->doubt != DOUBT_HOLDERS;
    if (use->doubt == DOUBT_HOLDERS && writer)
        use->writer = writer;
    else if (use->doubt == DOUBT_HOLDERS)
        use->kept = true;
    use_settle(use);
    return 0;
}

static bool
has_lost(const struct array *array, uint64_t writers)
{
    const struct block *block = array_block(array);

    return block && writers & block->lost_writers;
}

int
former_doubt_several(struct array *array, uint64_t writers)
{
    struct use *use;

    if (use_get(array, &use) < 0)
        return -ENOMEM;
    if (use->doubt == DOUBT_HOLDERS)
        use->writers = writers;
    array->abandoned |= !use->writers || has_lost(array, writers);
    use_settle(use);
    return 0;
}

static void
settle_doubt(struct core *core, struct use *use, enum doubt left)
{
    struct array *array = use->array;
    bool is_torn = use->writer || has_lost(array, use->writers);
    bool was_kept = use->kept || use->writer || use->writers;

    use_doubt(use, left);
    use->kept = false;
    use->was_written &= left == DOUBT_STREAMS;
    use->writer = 0;
    if (use->writers && (is_torn || left < DOUBT_STREAMS)) {
        use->writers = 0;
        persist_mark(array);
    }
    if (is_torn)
        use_abandon(&use->whole);
    else
        use_scan(use);
    use_settle(use);
    if (was_kept)
        array_settle(core, array);
}

/* The first use whose doubt has ended. All doubts of a kind end together; a use may have gone
 * without this. */
static struct use *
first_settled(struct core *core, enum doubt *left)
{
    struct doubts *doubts;

    while ((doubts = LIST_FIRST(&core->known))) {
        for (int kind = DOUBT_NONE + 1; kind < N_DOUBTS; kind++) {
            struct use *use = LIST_FIRST(&doubts->of[kind]);
            *left = use ? doubt_of(use->array) : DOUBT_NONE;
            if (use && (int)*left < kind)
                return use;
        }
        doubts_leave(doubts);
    }
    return NULL;
}

bool
doubts_settle(struct core *core)
{
    enum doubt left;
    struct use *use;

    for (uint32_t i = 0; i < core->pieces && (use = first_settled(core, &left)); i++)
        settle_doubt(core, use, left);
    return first_settled(core, &left);
}

static void
forget_doubts(struct doubts *doubts)
{
    struct use *use;

    for (int kind = DOUBT_NONE + 1; kind < N_DOUBTS; kind++)
        while ((use = LIST_FIRST(&doubts->of[kind]))) {
            use_doubt(use, DOUBT_NONE);
            use->kept = use->was_written = false;
            use->writer = use->writers = 0;
            use_settle(use);
        }
}

void
formers_forget(struct core *core)
{
    struct block *block;
    struct pool *pool;

    RB_FOREACH(pool, pools, &core->pools)
        forget_doubts(&pool->doubts);
    LIST_FOREACH(block, &core->blocks, of_core)
        forget_doubts(&block->doubts);
    free(TAKE_PTR(core->former_arrays));
}
