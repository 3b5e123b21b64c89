/* SPDX-License-Identifier: Apache-2.0 */
#include "vacate.h"

#include <stdarg.h>
#include <stdio.h>

#include "array.h"
#include "linger.h"
#include "reply.h"
#include "set.h"
#include "state.h"

#define USES_MAX 1024 /* looked at in one event: a tenth of a millisecond */
#define TOLD_MAX 8    /* processes that a refusal names */
#define WALK_MAX 4096 /* parts and leases that are looked at for these, of anybody's making */

static int
end_compare(const struct vacate *a, const struct vacate *b)
{
    if (a->end_ns != b->end_ns)
        return CMP(a->end_ns, b->end_ns);
    return a->conn != b->conn ? CMP(a->conn->id, b->conn->id) : CMP(a->lease, b->lease);
}

RB_GENERATE_STATIC(vacates_by_end, vacate, node, end_compare)

void
vacates_init(struct vacates *vacates)
{
    RB_INIT(&vacates->by_end);
    TAILQ_INIT(&vacates->due);
    TAILQ_INIT(&vacates->looking);
}

void
vacate_free(struct core *core, struct vacate *vacate)
{
    vacate_put(vacate, NULL);
    vacate_leave_whole(vacate);
    RB_REMOVE(vacates_by_end, &core->vacates.by_end, vacate);
    LIST_REMOVE(vacate, of_conn);
    charge_deinit(&vacate->charge);
    core->n_watches--; /* it is charged as one */
    free(vacate);
}

static void
vacate_refuse(struct core *core, struct vacate *vacate, const struct refusal *r)
{
    if (!vacate->conn->closing)
        send_refusal(core, vacate->conn, vacate->request, MSG_VACATE, r);
    vacate_free(core, vacate);
}

/* ---- whether it is vacant ---- */

static uint64_t
leases_on(const struct array *array)
{
    return (uint64_t)array->n_leases + array->n_departed;
}

static uint64_t
own_leases(const struct vacate *vacate)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < vacate->n_own; i++)
        n += lease_find(vacate->conn, vacate->own[i]) != NULL;
    return n;
}

/* Whether an array of that memory can be reached without a lease. */
static bool
is_public(const struct whole *whole, const struct array *set)
{
    const struct array *array = whole->array;

    return array->named || array->is_companion || array->n_sets || whole->n_named ||
           whole->n_members != set->set->n;
}

/* Whether clients of an earlier core may come back with leases there, or use it after a hang-up. */
static bool
is_in_doubt(struct core *core, const struct whole *whole, const struct array *set)
{
    const struct block *block = array_block(whole->array);

    return pool_may_resume(core, set->pool) || (block && block->n_before);
}

/* Looks at up to `budget` uses of parts, and goes on with the others next time. */
static bool
has_fences(struct vacate *vacate, uint32_t *budget)
{
    struct whole *whole = vacate->whole;
    struct use *use = whole->array->use;

    if (use && use_is_pending(use))
        return true;
    while (vacate->n_seen < whole->n_uses) {
        uint32_t n = whole->n_uses;
        if (*budget == 0)
            return true;
        --*budget;
        use = TAILQ_FIRST(&whole->uses);
        TAILQ_REMOVE(&whole->uses, use, of_whole); /* those that stay come last */
        TAILQ_INSERT_TAIL(&whole->uses, use, of_whole);
        if (use_is_pending(use)) {
            vacate->n_seen = 0;
            return true;
        }
        vacate->n_seen += whole->n_uses == n;
    }
    return false;
}

enum state {
    VACANT,
    HELD,     /* until an event says otherwise */
    UNSETTLED /* nothing says when it is not any more */
};

static enum state
decide(struct core *core, struct vacate *vacate, const struct array *set, uint32_t *budget)
{
    struct whole *whole = vacate->whole;

    if (leases_on(set) + leases_on(whole->array) + whole->n_leases > own_leases(vacate) ||
        is_public(whole, set)) {
        vacate->n_seen = 0;
        return HELD;
    }
    return is_in_doubt(core, whole, set) || has_fences(vacate, budget) ? UNSETTLED : VACANT;
}

/* ---- why it is not ---- */

struct culprits {
    char *text;
    size_t n, size;
    pid_t pids[TOLD_MAX];
    uint32_t n_pids, n_more;
    uint32_t n_walked; /* parts and leases looked at */
};

static void add_text(struct culprits *c, const char *fmt, ...) PRINTF(2, 3);

static void
add_text(struct culprits *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(c->text + c->n, c->size - c->n, fmt, args);
    va_end(args);
    c->n = min_u64(c->n + (n > 0 ? (size_t)n : 0), c->size - 1);
}

/* Processes are named once. */
static void
add_culprit(struct culprits *c, const struct lease *lease)
{
    bool is_ticket = !lease->conn;
    pid_t pid = is_ticket
                    ? container_of((struct lease *)(uintptr_t)lease, struct ticket, lease)->pid
                    : lease->conn->pid;

    for (uint32_t i = 0; i < c->n_pids; i++)
        if (c->pids[i] == pid)
            return;
    if (c->n_pids == TOLD_MAX) {
        c->n_more = 1;
        return;
    }
    c->pids[c->n_pids++] = pid;
    add_text(c, "%s%spid %d", c->n_pids > 1 ? ", " : "", is_ticket ? "a ticket of " : "", pid);
    if (!is_ticket && lease->conn->client[0])
        add_text(c, " (%s)", lease->conn->client);
    if (lease->departed)
        add_text(c, ", which has hung up");
}

static int
compare_u64(const void *a, const void *b)
{
    return CMP(*(const uint64_t *)a, *(const uint64_t *)b);
}

static bool
is_own(const struct vacate *vacate, const struct lease *lease)
{
    return lease->conn == vacate->conn &&
           (lease->id == vacate->lease ||
            bsearch(&lease->id, vacate->own, vacate->n_own, sizeof(uint64_t), compare_u64));
}

/* Counts one step of the walk. */
static bool
is_enough(struct culprits *c)
{
    if (c->n_walked++ >= WALK_MAX)
        c->n_more = 1;
    return c->n_more;
}

static void
add_culprits(struct culprits *c, const struct vacate *vacate, const struct array *array)
{
    const struct lease *lease;

    LIST_FOREACH(lease, &array->leases, of_array) {
        if (is_enough(c))
            return;
        if (!is_own(vacate, lease))
            add_culprit(c, lease);
    }
}

static void
refuse_in_use(struct core *core, const struct vacate *vacate, const struct array *set,
              struct refusal *r)
{
    const struct whole *whole = vacate->whole;
    char text[320] = "";
    struct culprits c = {.text = text, .size = sizeof(text)};
    const struct part *part = whole->n_leases ? LIST_FIRST(&whole->parts) : NULL;

    add_culprits(&c, vacate, set);
    add_culprits(&c, vacate, whole->array);
    for (; part && !is_enough(&c); part = LIST_NEXT(part, of_whole))
        add_culprits(&c, vacate, part->array);
    if (c.n_more)
        add_text(&c, c.n_pids ? " and others" : "many leases");
    refusal_fill(r, PROTO_ERR_TIMEOUT,
                 "set \"%s\" of generation %" PRIu64 " is still in use: %s%s", array_label(set),
                 set->generation,
                 c.n ? "by "
                 : is_public(whole, set)
                     ? "an array in its memory has a name, or is in another set"
                 : is_in_doubt(core, whole, set)
                     ? "clients of before the daemon's restart may still have it"
                     : "GPU work on it has not ended",
                 text);
}

/* ---- answers ---- */

/* What was published before is not found by its generation any more. */
static void
withdraw(struct array *array)
{
    if (array->named || !array->generation)
        return;
    array_unlist(array);
    array->generation = 0;
    array_list(array);
    persist_array(array);
}

static void
answer(struct core *core, struct vacate *vacate)
{
    const struct lease *lease;

    withdraw(lease_find(vacate->conn, vacate->lease)->array);
    for (uint32_t i = 0; i < vacate->n_own; i++)
        if ((lease = lease_find(vacate->conn, vacate->own[i])))
            withdraw(lease->array);
    if (!vacate->conn->closing)
        send_result(core, vacate->conn, vacate->request, MSG_VACATE, &(struct msg_none){}, NULL,
                    0);
}

/* The set, or NULL: the wait has no sense any more, and is refused. */
static const struct array *
set_of(const struct vacate *vacate, struct refusal *r)
{
    const struct lease *lease = vacate->whole ? lease_find(vacate->conn, vacate->lease) : NULL;

    if (!lease)
        refusal_fill(r, PROTO_ERR_INVALID, "the set was closed meanwhile");
    else if (lease->array->named)
        refusal_fill(r, PROTO_ERR_INVALID, "set \"%s\" has its name: it is the current version",
                     lease->array->name);
    else
        return lease->array;
    return NULL;
}

static void
vacate_run(struct core *core, struct vacate *vacate, uint32_t *budget)
{
    const struct array *set;
    struct refusal r;

    vacate_put(vacate, NULL);
    set = set_of(vacate, &r);
    if (!set) {
        vacate_refuse(core, vacate, &r);
        return;
    }
    switch (decide(core, vacate, set, budget)) {
    case HELD: break;
    case UNSETTLED:
        vacate_put(vacate, &core->vacates.looking);
        linger_later(core, *budget ? LINGER_TURN_NS : LINGER_REST_NS);
        break;
    case VACANT: answer(core, vacate); vacate_free(core, vacate);
    }
}

bool
vacates_run(struct core *core)
{
    struct vacate_list *due = &core->vacates.due;
    uint32_t budget = USES_MAX;

    for (uint32_t i = 0; i < core->pieces && !TAILQ_EMPTY(due); i++)
        vacate_run(core, TAILQ_FIRST(due), &budget);
    return !TAILQ_EMPTY(due);
}

void
vacates_look(struct core *core)
{
    struct vacate *vacate;

    while ((vacate = TAILQ_FIRST(&core->vacates.looking)))
        vacate_put(vacate, &core->vacates.due);
}

uint64_t
vacates_end_ns(const struct core *core)
{
    const struct vacate *first =
        RB_MIN(vacates_by_end, (struct vacates_by_end *)(uintptr_t)&core->vacates.by_end);

    return first ? first->end_ns : UINT64_MAX;
}

/* One in an event, since it may look at many parts. */
void
vacates_tick(struct core *core)
{
    struct vacate *vacate = RB_MIN(vacates_by_end, &core->vacates.by_end);
    const struct array *set;
    struct refusal r;

    if (!vacate || vacate->end_ns > core->now_ns)
        return;
    set = set_of(vacate, &r);
    if (set)
        refuse_in_use(core, vacate, set, &r);
    vacate_refuse(core, vacate, &r);
}

/* ---- the request ---- */

void
vacate_cancel(struct core *core, struct conn *conn, uint32_t request)
{
    struct vacate *vacate;
    struct refusal r;

    LIST_FOREACH(vacate, &conn->vacates, of_conn)
        if (vacate->request == request) {
            refusal_fill(&r, PROTO_ERR_CANCELLED, "the wait for a set's memory was cancelled");
            vacate_refuse(core, vacate, &r);
            return;
        }
}

static int
check_conn(const struct conn *conn, uint64_t id, struct refusal *r)
{
    const struct vacate *vacate;
    int n = 0;

    LIST_FOREACH(vacate, &conn->vacates, of_conn) {
        n++;
        if (vacate->lease == id)
            return refuse(r, PROTO_ERR_INVALID, "request %u waits for that set already",
                          vacate->request);
    }
    return n < VACATES_MAX ? 0
                           : refuse(r, PROTO_ERR_LIMIT,
                                    "a connection waits for at most %d sets", VACATES_MAX);
}

static int
check_set(struct core *core, struct conn *conn, uint64_t id, struct whole **ret,
          struct refusal *r)
{
    struct lease *lease;

    if (lease_get_set(conn, id, &lease, r) || pool_check_writable(lease->array->pool, conn, r))
        return REFUSED;
    if (lease->readonly)
        return refuse(r, PROTO_ERR_INVALID, "the set was opened \"r\"");
    if (lease->array->named)
        return refuse(r, PROTO_ERR_INVALID,
                      "set \"%s\" has its name: it is the current version", lease->array->name);
    if (!set_layout(lease->array))
        return refuse(r, PROTO_ERR_INVALID, "the set's members are not all parts of one array");
    *ret = whole_of(core, lease->array);
    return 0;
}

static int
check_own(struct core *core, const struct vacate *vacate, struct refusal *r)
{
    for (uint32_t i = 0; i < vacate->n_own; i++) {
        struct lease *lease;
        if (lease_get(vacate->conn, vacate->own[i], &lease, r))
            return REFUSED;
        if (whole_of(core, lease->array) != vacate->whole || lease->array->is_set ||
            (i > 0 && vacate->own[i - 1] == vacate->own[i]))
            return refuse(r, PROTO_ERR_INVALID,
                          "lease %" PRIu64 " is in the list twice, or on another array",
                          vacate->own[i]);
    }
    return 0;
}

static struct vacate *
vacate_alloc(struct core *core, struct conn *conn, uint32_t request,
             const struct vacate_request *req)
{
    struct vacate *vacate = calloc(1, sizeof(*vacate) + req->own.n * sizeof(uint64_t));
    uint64_t left = UINT64_MAX - 1 - core->now_ns;

    if (!vacate)
        return NULL;
    vacate->conn = conn;
    vacate->request = request;
    vacate->lease = req->lease;
    vacate->n_own = req->own.n;
    if (req->own.n)
        memcpy(vacate->own, req->own.v, req->own.n * sizeof(uint64_t));
    qsort(vacate->own, vacate->n_own, sizeof(uint64_t), compare_u64);
    vacate->end_ns = req->timeout_ns ? core->now_ns + min_u64(req->timeout_ns, left)
                                     : UINT64_MAX;
    return vacate;
}

static int
decide_now(struct core *core, struct vacate *vacate, struct refusal *r)
{
    const struct array *set = set_of(vacate, r);
    uint32_t budget = USES_MAX;

    if (decide(core, vacate, set, &budget) != VACANT) {
        refuse_in_use(core, vacate, set, r);
        return REFUSED;
    }
    answer(core, vacate);
    return 0;
}

int
vacate_new(struct core *core, struct conn *conn, uint32_t request,
           const struct vacate_request *req, struct refusal *r)
{
    _cleanup_free_ struct vacate *vacate = NULL;
    struct whole *whole;

    if (req->own.n > PROTO_BEGIN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "vacate takes at most %d leases", PROTO_BEGIN_MAX);
    if (check_conn(conn, req->lease, r) || check_set(core, conn, req->lease, &whole, r))
        return REFUSED;
    vacate = vacate_alloc(core, conn, request, req);
    if (!vacate)
        return -ENOMEM;
    vacate->whole = whole;
    if (check_own(core, vacate, r))
        return REFUSED;
    if (req->nowait)
        return decide_now(core, vacate, r);
    if (charge_init(&vacate->charge, conn->user, RES_WATCHES, 1,
                    sizeof(*vacate) + req->own.n * sizeof(uint64_t), r))
        return REFUSED;
    core->n_watches++;
    LIST_INSERT_HEAD(&whole->vacates, vacate, of_whole);
    LIST_INSERT_HEAD(&conn->vacates, vacate, of_conn);
    RB_INSERT(vacates_by_end, &core->vacates.by_end, vacate);
    vacate_put(TAKE_PTR(vacate), &core->vacates.due);
    return 0;
}
