/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket waits at each of its arrays (use.c) until it is its turn at all of them; then it is
 * open, and its reply says what its stream has to wait for.
 *
 * A bracket is charged for itself and for its claims, each with the fence that its end may need, so
 * that an end needs no memory and cannot be refused. It is answered at the end of the event in
 * which its turn comes, never in the midst of one that changes whose turn it is.
 */
#include "bracket.h"

#include <assert.h>

#include "array.h"
#include "fences.h"
#include "former.h"
#include "state.h"

#define TICK_MAX 64 /* refused in one event; the others at the next tick, at once */
#define SWEEP_NS UINT64_C(100000000) /* between two sweeps of a connection's fences */

static int
deadline_compare(const struct bracket *a, const struct bracket *b)
{
    if (a->deadline_ns != b->deadline_ns)
        return CMP(a->deadline_ns, b->deadline_ns);
    return a->conn != b->conn ? CMP(a->conn->id, b->conn->id) : CMP(a->id, b->id);
}

static int
by_request_compare(const struct bracket *a, const struct bracket *b)
{
    return a->request != b->request ? CMP(a->request, b->request) : CMP(b->id, a->id);
}

RB_GENERATE_BY(brackets, bracket, node, id)
RB_GENERATE(deadlines, bracket, deadline, deadline_compare)
RB_GENERATE(by_request, bracket, of_conn, by_request_compare)
RB_GENERATE_BY(threads, thread, node, id)

struct bracket *
bracket_find(struct conn *conn, uint64_t id)
{
    struct bracket key = {.id = id};

    return RB_FIND(brackets, &conn->brackets, &key);
}

/* Requests' numbers go round: the newest of that number. */
static struct bracket *
find_request(struct by_request *brackets, uint32_t request)
{
    struct bracket key = {.request = request, .id = UINT64_MAX};
    struct bracket *bracket = RB_NFIND(by_request, brackets, &key);

    return bracket && bracket->request == request ? bracket : NULL;
}

/* ---- threads ---- */

static int
thread_get(struct conn *conn, uint64_t id, struct thread **ret)
{
    struct thread key = {.id = id};
    struct thread *thread = RB_FIND(threads, &conn->threads, &key);

    if (!thread) {
        thread = calloc(1, sizeof(*thread));
        if (!thread)
            return -ENOMEM;
        thread->id = id;
        RB_INSERT(threads, &conn->threads, thread);
    }
    thread->n_brackets++;
    *ret = thread;
    return 0;
}

static void
thread_put(struct conn *conn, struct thread *thread)
{
    if (!thread || --thread->n_brackets > 0) /* NULL: the bracket was not made */
        return;
    RB_REMOVE(threads, &conn->threads, thread);
    free(thread);
}

/* ---- the end ---- */

static void
drop_deadline(struct core *core, struct bracket *bracket)
{
    if (bracket->deadline_ns != UINT64_MAX)
        RB_REMOVE(deadlines, &core->deadlines, bracket);
    bracket->deadline_ns = UINT64_MAX;
}

static void
stop_waiting(struct core *core, struct bracket *bracket)
{
    if (bracket->n_unready == 0)
        TAILQ_REMOVE(&bracket->conn->user->ready, bracket, ready);
    drop_deadline(core, bracket);
    RB_REMOVE(by_request, &bracket->conn->asking, bracket);
    LIST_REMOVE(bracket, of_thread);
    core->turns_given.n_waiting--;
}

/* Frees a bracket whose claims have left their uses. A fence that was used has its own share of the
 * charge, to the owner of the page, who is the same user. */
static void
bracket_destroy(struct core *core, struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++) {
        assert(!bracket->claims[i].use);
        free(bracket->claims[i].fence);
    }
    RB_REMOVE(brackets, &bracket->conn->brackets, bracket);
    if (!bracket->waiting)
        RB_REMOVE(by_request, &bracket->conn->open, bracket);
    thread_put(bracket->conn, bracket->thread);
    charge_deinit(&bracket->charge);
    core->n_brackets--;
    free(bracket);
}

void
bracket_free(struct core *core, struct bracket *bracket)
{
    if (bracket->waiting)
        stop_waiting(core, bracket);
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        if (bracket->claims[i].use)
            use_leave(&bracket->claims[i]);
    bracket_destroy(core, bracket);
}

void
bracket_refuse(struct core *core, struct bracket *bracket, const struct refusal *r)
{
    assert(bracket->waiting);
    send_refusal(core, bracket->conn, bracket->request, MSG_BEGIN, r);
    bracket_free(core, bracket);
}

void
bracket_end(struct core *core, struct bracket *bracket, struct page *page, uint32_t slot,
            uint64_t value, bool undone, bool abandon)
{
    assert(!bracket->waiting);
    for (uint32_t i = 0; i < bracket->n_claims && !undone; i++) {
        struct claim *claim = &bracket->claims[i];
        if (!claim->use)
            continue;
        use_end(claim, page, slot, value);
        if (claim->write && abandon)
            use_tear(claim->section);
        else if (claim->write && !claim->widened)
            use_heal(claim->section);
    }
    metrics_count(bracket->conn->user, COUNT_BRACKETS_ENDED, 1);
    metrics_count(bracket->conn->user, COUNT_FENCES, page && !undone);
    bracket_free(core, bracket);
}

/* ---- the beginning ---- */

/* Which bytes the claim at that place is for; `end` UINT64_MAX: the whole array. */
static int
get_range(const struct array *array, struct msg_u64s ranges, uint32_t i, uint64_t *ret_from,
          uint64_t *ret_end, struct refusal *r)
{
    uint64_t from = ranges.n ? ranges.v[2 * i] : 0, end = ranges.n ? ranges.v[2 * i + 1] : 0;
    bool is_whole = from == 0 && (end == 0 || end == array->span);

    if (!is_whole && (from >= end || end > array->span))
        return refuse(r, PROTO_ERR_INVALID,
                      "array \"%s\" has %" PRIu64 " bytes: bytes %" PRIu64 " to %" PRIu64
                      " are no range of it",
                      array_label(array), array->span, from, end);
    *ret_from = from;
    *ret_end = is_whole ? UINT64_MAX : end;
    return 0;
}

static void
drop_claim(struct claim *claim)
{
    use_drop(claim);
    free(claim->fence);
}

static struct claim *
find_claim(struct bracket *bracket, const struct use *use)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        if (bracket->claims[i].use == use)
            return &bracket->claims[i];
    return NULL;
}

/* Claims for reading come first: the first of them is one, if any is. */
static void
join_claim(struct claim *claim, struct claim *other)
{
    if (other->write)
        claim->lease = other->lease;
    claim->write |= other->write;
    drop_claim(other);
}

/* For want of room the bracket has all of the array: one claim, the first, stands for those that it
 * has, and the new one. */
static void
widen(struct bracket *bracket, struct claim *first, struct claim *new_claim, uint64_t number)
{
    struct claim *claim;

    use_widen(first, number);
    join_claim(first, new_claim);
    for (claim = &bracket->claims[bracket->n_claims - 1]; claim > first; claim--)
        if (claim->use == first->use) {
            join_claim(first, claim);
            *claim = bracket->claims[--bracket->n_claims];
        }
}

/* `number` identifies a search: a section that carries it is in the list already. */
static int
add_claim(struct bracket *bracket, struct msg_u64s leases, struct msg_u64s ranges, uint32_t i,
          bool write, bool again, uint64_t number, struct refusal *r)
{
    struct claim *claim = &bracket->claims[bracket->n_claims], *first;
    uint64_t id = leases.v[i], from, end;
    struct lease *lease;

    if (lease_get(bracket->conn, id, &lease, r))
        return REFUSED;
    if (write && lease->readonly)
        return refuse(r, PROTO_ERR_PERMISSION, "lease %" PRIu64 " is for reading", id);
    if (get_range(lease->array, ranges, i, &from, &end, r))
        return REFUSED;
    claim->fence = calloc(1, sizeof(*claim->fence));
    if (!claim->fence || use_claim(claim, lease->array, from, end, again) < 0) {
        free(claim->fence);
        return -ENOMEM;
    }
    claim->bracket = bracket;
    claim->lease = lease;
    claim->write = write;
    claim->read = !write;
    claim->widened = end != UINT64_MAX && claim->section == &claim->use->whole;
    if (!use_is_claimed(claim, number)) {
        bracket->n_claims++;
        return 0;
    }
    first = find_claim(bracket, claim->use);
    if (!first->widened && (!claim->widened || first->section == claim->section)) {
        drop_claim(claim);
        return refuse(r, PROTO_ERR_INVALID,
                      "an array is in the list twice, or ranges of it that overlap");
    }
    widen(bracket, first, claim, number);
    return 0;
}

/* again: leases that have ended since are left out. */
static int
add_claims_of(struct bracket *bracket, struct msg_u64s leases, struct msg_u64s ranges,
              bool write, bool again, uint64_t number, struct refusal *r)
{
    int rc = 0;

    for (uint32_t i = 0; i < leases.n && rc == 0; i++)
        if (!again || lease_find(bracket->conn, leases.v[i]))
            rc = add_claim(bracket, leases, ranges, i, write, again, number, r);
        else if (write)
            block_lose_writes(bracket->conn);
    return rc;
}

static int
add_claims(struct bracket *bracket, const struct bracket_request *req, uint64_t number,
           struct refusal *r)
{
    int rc = add_claims_of(bracket, req->read, req->read_ranges, false, req->again, number, r);

    return rc ? rc
              : add_claims_of(bracket, req->write, req->write_ranges, true, req->again, number,
                              r);
}

/* Frees a bracket that is in no list yet. */
static void
bracket_discard(struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        drop_claim(&bracket->claims[i]);
    thread_put(bracket->conn, bracket->thread);
    charge_deinit(&bracket->charge);
    free(bracket);
}

/* Passed fences of arrays that nobody has used since stay, and stay charged. When the limit is
 * reached, this sweeps as many as the largest bracket needs. If there are fewer, it does not try
 * again at once. */
static int
bracket_charge(struct core *core, struct bracket *bracket, uint32_t n, struct refusal *r)
{
    struct conn *conn = bracket->conn;
    size_t host = BRACKET_HOST + n * CLAIM_HOST;
    int rc;

    if (conn->resuming) /* as in former_resume_leases() */
        return user_check(conn->user, RES_BRACKETS, n, r)
                   ? REFUSED
                   : charge_init(&bracket->charge, conn->user, RES_BRACKETS, n, host, NULL);
    rc = charge_init(&bracket->charge, conn->user, RES_BRACKETS, n, host, r);
    if (rc == 0 || (conn->swept_ns && core->now_ns - conn->swept_ns < SWEEP_NS))
        return rc;
    conn->swept_ns = fences_sweep(conn, PROTO_BEGIN_MAX) ? 0 : core->now_ns;
    return charge_init(&bracket->charge, conn->user, RES_BRACKETS, n, host, r);
}

static int
check_request(struct conn *conn, const struct bracket_request *req, struct refusal *r)
{
    uint64_t n = (uint64_t)req->read.n + req->write.n;

    if (req->id == 0 || bracket_find(conn, req->id))
        return refuse(r, PROTO_ERR_INVALID, "bracket %llu is none, or has begun already",
                      (unsigned long long)req->id);
    if (n == 0 || n > PROTO_BEGIN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "a bracket has 1 to %d arrays, this has %llu",
                      PROTO_BEGIN_MAX, (unsigned long long)n);
    if ((req->read_ranges.n && req->read_ranges.n != 2 * (uint64_t)req->read.n) ||
        (req->write_ranges.n && req->write_ranges.n != 2 * (uint64_t)req->write.n))
        return refuse(r, PROTO_ERR_INVALID, "each array has two numbers in a list of ranges");
    return 0;
}

static int
bracket_make(struct core *core, struct conn *conn, const struct bracket_request *req,
             struct bracket **ret, struct refusal *r)
{
    uint32_t n = req->read.n + req->write.n;
    struct bracket *bracket;
    struct charge left_out;
    int rc;

    if (check_request(conn, req, r))
        return REFUSED;
    bracket = calloc(1, sizeof(*bracket) + n * sizeof(bracket->claims[0]));
    if (!bracket)
        return -ENOMEM;
    bracket->id = req->id;
    bracket->conn = conn;
    /* first, since its sweep may free the uses that the claims are on */
    rc = bracket_charge(core, bracket, n, r);
    if (rc == 0)
        rc = thread_get(conn, req->thread, &bracket->thread);
    if (rc == 0)
        rc = add_claims(bracket, req, ++core->n_searches, r);
    if (rc) {
        bracket_discard(bracket);
        return rc;
    }
    n -= bracket->n_claims;
    charge_split(&bracket->charge, &left_out, n, n * CLAIM_HOST);
    charge_deinit(&left_out);
    *ret = bracket;
    return 0;
}

static void
bracket_insert(struct core *core, struct bracket *bracket)
{
    bracket->deadline_ns = UINT64_MAX;
    bracket->arrival = ++core->n_arrivals;
    RB_INSERT(brackets, &bracket->conn->brackets, bracket);
    core->n_brackets++;
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        LIST_INSERT_HEAD(&bracket->claims[i].lease->claims, &bracket->claims[i], of_lease);
}

/* A bracket that was open before the restart: arrays that others have meanwhile are left out.
 * Arrays that it was writing are its own, as long as it has not ended that. */
static void
resume_claim(struct conn *conn, struct claim *claim)
{
    bool is_ours = !claim->write || former_resume_write(conn, claim->use->array);

    if (is_ours && use_resume(claim))
        return;
    if (is_ours && claim->write)
        block_lose_writes(conn);
    LIST_REMOVE(claim, of_lease);
    use_drop(claim);
}

int
bracket_resume(struct core *core, struct conn *conn, uint32_t request,
               const struct bracket_request *req, struct refusal *r)
{
    struct bracket *bracket;
    int rc = bracket_make(core, conn, req, &bracket, r);

    if (rc)
        return rc;
    bracket->request = request;
    bracket_insert(core, bracket);
    RB_INSERT(by_request, &conn->open, bracket);
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        resume_claim(conn, &bracket->claims[i]);
    metrics_count(conn->user, COUNT_BRACKETS_BEGUN, 1);
    former_goes_on(core, conn);
    send_result(core, conn, request, MSG_BEGIN, &(struct msg_fences_result){}, NULL, 0);
    return 0;
}

void
bracket_unresume(struct core *core, struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        if (bracket->claims[i].use && bracket->claims[i].write)
            former_unresume_write(bracket->conn, bracket->claims[i].use->array);
    bracket_free(core, bracket);
}

/* Enters the queues of all its arrays. */
static void
bracket_queue(struct core *core, struct bracket *bracket)
{
    bracket_insert(core, bracket);
    bracket->waiting = true;
    bracket->n_unready = bracket->n_claims;
    bracket->since_ns = core->now_ns;
    core->turns_given.n_waiting++;
    RB_INSERT(by_request, &bracket->conn->asking, bracket);
    LIST_INSERT_HEAD(&bracket->thread->waiting, bracket, of_thread);
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        use_queue(&bracket->claims[i]);
}

static void
bracket_set_deadline(struct core *core, struct bracket *bracket, uint64_t timeout_ns)
{
    uint64_t left = UINT64_MAX - 1 - core->now_ns;

    if (timeout_ns == 0)
        return;
    bracket->deadline_ns = core->now_ns + (timeout_ns < left ? timeout_ns : left);
    RB_INSERT(deadlines, &core->deadlines, bracket);
}

/* An array that keeps the bracket waiting. */
static const struct array *
kept_by(const struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        if (!bracket->claims[i].ready)
            return bracket->claims[i].use->array;
    return bracket->claims[0].use->array;
}

static int
refuse_deadlock(const struct bracket *bracket, struct refusal *r)
{
    return refuse(r, PROTO_ERR_DEADLOCK,
                  "array \"%s\" is used by brackets that wait for this thread, or are its own",
                  array_label(kept_by(bracket)));
}

static int
bracket_wait(struct core *core, struct bracket *bracket, const struct bracket_request *req,
             struct refusal *r)
{
    if (use_is_deadlock(core, bracket))
        return refuse_deadlock(bracket, r);
    if (req->nowait)
        return refuse(r, PROTO_ERR_TIMEOUT, "array \"%s\" is in use (caidctl show)",
                      array_label(kept_by(bracket)));
    bracket->had_to_wait = true;
    core->turns_given.since_ns = core->now_ns;
    bracket_set_deadline(core, bracket, req->timeout_ns);
    return 0;
}

int
bracket_new(struct core *core, struct conn *conn, uint32_t request,
            const struct bracket_request *req, struct refusal *r)
{
    struct bracket *bracket;
    int rc = bracket_make(core, conn, req, &bracket, r);

    if (rc)
        return rc;
    bracket->request = request;
    bracket_queue(core, bracket);
    if (bracket->n_unready == 0)
        return 0; /* work_run() answers it */
    rc = bracket_wait(core, bracket, req, r);
    if (rc)
        bracket_free(core, bracket);
    return rc;
}

/* ---- turns ---- */

const struct array *
bracket_find_abandoned(const struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++) {
        const struct claim *claim = &bracket->claims[i];
        if (claim->use && claim->read && use_is_torn(claim))
            return claim->use->array;
    }
    return NULL;
}

/* Whether the bracket has to wait after all. A discard may follow a death that had let a reader in.
 * Or a thread was let in because it was reading the array, and has ended that reading meanwhile. */
static bool
wait_on(struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        use_unready(&bracket->claims[i]);
    if (bracket->n_unready > 0)
        TAILQ_REMOVE(&bracket->conn->user->ready, bracket, ready);
    return bracket->n_unready > 0;
}

static void
bracket_open(struct core *core, struct bracket *bracket)
{
    struct conn *conn = bracket->conn;
    struct refusal r;
    int rc;

    stop_waiting(core, bracket);
    if (bracket->had_to_wait) {
        core->turns_given.last_ns = core->now_ns - bracket->since_ns;
        metrics_count(conn->user, COUNT_WAITS, 1);
        metrics_count(conn->user, COUNT_WAIT_NS, core->turns_given.last_ns);
    }
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        use_hold(&bracket->claims[i]);
    bracket->waiting = false;
    RB_INSERT(by_request, &conn->open, bracket);
    rc = fences_reply(core, bracket, bracket->request, MSG_BEGIN, 0, 0, &r);
    metrics_count(conn->user, COUNT_BRACKETS_BEGUN, rc == 0);
    if (rc == 0)
        return;
    if (rc == REFUSED)
        send_refusal(core, conn, bracket->request, MSG_BEGIN, &r);
    else
        conn_end(core, conn, "out of memory");
    bracket_free(core, bracket);
}

void
bracket_turn(struct core *core, struct bracket *bracket)
{
    const struct array *abandoned = bracket_find_abandoned(bracket);
    struct refusal r;

    if (bracket->closed) {
        refusal_fill(&r, PROTO_ERR_INVALID, "an array of the bracket was closed meanwhile");
        bracket_refuse(core, bracket, &r);
    } else if (abandoned) {
        refusal_fill(
            &r, PROTO_ERR_ABANDONED,
            "array \"%s\": a writer died before its work was done; write or discard it",
            array_label(abandoned));
        bracket_refuse(core, bracket, &r);
    } else if (wait_on(bracket)) {
        if (!use_is_deadlock(core, bracket))
            return;
        refuse_deadlock(bracket, &r);
        bracket_refuse(core, bracket, &r);
    } else if (bracket->conn->closing) {
        bracket_free(core, bracket); /* its client gets no answer any more */
    } else {
        bracket_open(core, bracket);
    }
}

void
bracket_tick(struct core *core)
{
    struct bracket *bracket;
    struct refusal r;

    for (int i = 0; i < TICK_MAX && (bracket = RB_MIN(deadlines, &core->deadlines)) &&
                    bracket->deadline_ns <= core->now_ns;
         i++) {
        refusal_fill(&r, PROTO_ERR_TIMEOUT, "array \"%s\" is still in use (caidctl show)",
                     array_label(kept_by(bracket)));
        bracket_refuse(core, bracket, &r);
    }
}

void
core_get_turns(const struct core *core, struct core_turns *ret)
{
    *ret = core->turns_given;
}

uint64_t
bracket_deadline_ns(const struct core *core)
{
    const struct bracket *bracket =
        RB_MIN(deadlines, (struct deadlines *)(uintptr_t)&core->deadlines);

    return bracket ? bracket->deadline_ns : UINT64_MAX;
}

void
bracket_cancel(struct core *core, struct conn *conn, uint32_t request)
{
    struct bracket *bracket = find_request(&conn->asking, request);
    struct refusal r;

    if (bracket) {
        refusal_fill(&r, PROTO_ERR_CANCELLED, "the wait for an array was cancelled");
        bracket_refuse(core, bracket, &r);
    } else if ((bracket = find_request(&conn->open, request))) {
        bracket->cancelled = true;
    }
}

/* ---- leases and connections that end ---- */

static void
bracket_abandon(const struct claim *claim)
{
    if (!claim->write || claim->bracket->cancelled)
        return;
    use_tear(claim->section);
    use_settle(claim->use);
}

/* A waiting bracket waits no longer: when its turn comes it is refused. */
static void
bracket_close(struct core *core, struct bracket *bracket)
{
    bracket->closed = true;
    if (bracket->n_unready > 0)
        TAILQ_INSERT_TAIL(&bracket->conn->user->ready, bracket, ready);
    bracket->n_unready = 0;
    drop_deadline(core, bracket);
    user_wake(bracket->conn->user);
}

void
bracket_drop_lease(struct core *core, struct lease *lease)
{
    struct claim *claim;

    while ((claim = LIST_FIRST(&lease->claims))) {
        if (claim->bracket->waiting)
            bracket_close(core, claim->bracket);
        else
            bracket_abandon(claim);
        use_leave(claim);
    }
}

void
bracket_depart(struct core *core, struct bracket *bracket)
{
    bool keeps = false;

    if (bracket->cancelled) {
        bracket_free(core, bracket);
        return;
    }
    for (uint32_t i = 0; i < bracket->n_claims; i++) {
        struct claim *claim = &bracket->claims[i];
        if (!claim->use)
            continue;
        keeps = true;
        bracket_abandon(claim);
        if (claim->write)
            use_scan(claim->use); /* readers need not wait for a writer that has hung up */
    }
    if (!keeps)
        bracket_free(core, bracket);
}

void
bracket_exit(struct core *core, struct bracket *bracket)
{
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        if (bracket->claims[i].use)
            /* again: a discard may have come meanwhile */
            bracket_abandon(&bracket->claims[i]);
    bracket_free(core, bracket);
}
