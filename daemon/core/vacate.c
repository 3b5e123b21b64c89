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
    return a->conn != b->conn ? CMP(a->conn->id, b->conn->id) : CMP(a->request, b->request);
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
    for (uint32_t i = 0; i < vacate->n_sets; i++)
        vacancy_leave_whole(&vacate->sets[i]);
    RB_REMOVE(vacates_by_end, &core->vacates.by_end, vacate);
    LIST_REMOVE(vacate, of_conn);
    charge_deinit(&vacate->charge);
    core->n_watches -= vacate->n_sets; /* each is charged as one */
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

/* Leases may have been closed since the last time. */
static void
count_own_leases(struct vacate *vacate)
{
    for (uint32_t i = 0; i < vacate->n_sets; i++)
        vacate->sets[i].n_own = 1;
    for (uint32_t i = 0; i < vacate->n_own; i++)
        if (lease_find(vacate->conn, vacate->own[i].id))
            vacate->sets[vacate->own[i].of].n_own++;
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
has_fences(struct vacancy *vacancy, uint32_t *budget)
{
    struct whole *whole = vacancy->whole;
    struct use *use = whole->array->use;

    if (use && use_is_pending(use))
        return true;
    while (vacancy->n_seen < whole->n_uses) {
        uint32_t n = whole->n_uses;
        if (*budget == 0)
            return true;
        --*budget;
        use = TAILQ_FIRST(&whole->uses);
        TAILQ_REMOVE(&whole->uses, use, of_whole); /* those that stay come last */
        TAILQ_INSERT_TAIL(&whole->uses, use, of_whole);
        if (use_is_pending(use)) {
            vacancy->n_seen = 0;
            return true;
        }
        vacancy->n_seen += whole->n_uses == n;
    }
    return false;
}

enum state {
    VACANT,
    HELD,      /* until an event says otherwise */
    UNSETTLED, /* nothing says when it is not any more */
    ENDED      /* the wait has no sense any more */
};

static enum state
decide(struct core *core, struct vacancy *vacancy, const struct array *set, uint32_t *budget)
{
    struct whole *whole = vacancy->whole;

    if (leases_on(set) + leases_on(whole->array) + whole->n_leases > vacancy->n_own ||
        is_public(whole, set)) {
        vacancy->n_seen = 0;
        return HELD;
    }
    return is_in_doubt(core, whole, set) || has_fences(vacancy, budget) ? UNSETTLED : VACANT;
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
own_compare(const void *a, const void *b)
{
    return CMP(((const struct own_lease *)a)->id, ((const struct own_lease *)b)->id);
}

static bool
is_own(const struct vacate *vacate, const struct lease *lease)
{
    const struct own_lease key = {.id = lease->id};

    if (lease->conn != vacate->conn)
        return false;
    for (uint32_t i = 0; i < vacate->n_sets; i++)
        if (vacate->sets[i].lease == lease->id)
            return true;
    return bsearch(&key, vacate->own, vacate->n_own, sizeof(key), own_compare);
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

/* The set, or NULL: the wait has no sense any more, and is refused. */
static const struct array *
set_of(const struct vacancy *vacancy, struct refusal *r)
{
    const struct lease *lease =
        vacancy->whole ? lease_find(vacancy->vacate->conn, vacancy->lease) : NULL;

    if (!lease)
        refusal_fill(r, PROTO_ERR_INVALID, "the set was closed meanwhile");
    else if (lease->array->named)
        refusal_fill(r, PROTO_ERR_INVALID, "set \"%s\" has its name: it is the current version",
                     lease->array->name);
    else
        return lease->array;
    return NULL;
}

/* false: it is none any more, as the refusal says. */
static bool
add_culprits_of_set(struct culprits *c, const struct vacancy *vacancy, struct refusal *r)
{
    const struct array *set = set_of(vacancy, r);
    const struct whole *whole = vacancy->whole;
    const struct part *part;

    if (!set)
        return false;
    add_culprits(c, vacancy->vacate, set);
    add_culprits(c, vacancy->vacate, whole->array);
    part = whole->n_leases ? LIST_FIRST(&whole->parts) : NULL;
    for (; part && !is_enough(c); part = LIST_NEXT(part, of_whole))
        add_culprits(c, vacancy->vacate, part->array);
    return true;
}

static const char *
reason_without_leases(struct core *core, const struct whole *whole, const struct array *set)
{
    return is_public(whole, set) ? "an array in its memory has a name, or is in another set"
           : is_in_doubt(core, whole, set)
               ? "clients of before the daemon's restart may still have it"
               : "GPU work on it has not ended";
}

static void
refuse_in_use(struct core *core, const struct vacate *vacate, struct refusal *r)
{
    const struct vacancy *first = vacate->sets;
    char text[320] = "", others[48] = "";
    struct culprits c = {.text = text, .size = sizeof(text)};
    const struct array *set;

    for (uint32_t i = 0; i < vacate->n_sets; i++)
        if (!add_culprits_of_set(&c, &vacate->sets[i], r))
            return;
    set = set_of(first, r);
    if (c.n_more)
        add_text(&c, c.n_pids ? " and others" : "many leases");
    if (vacate->n_sets > 1)
        snprintf(others, sizeof(others), ", as %u more,", vacate->n_sets - 1);
    refusal_fill(r, PROTO_ERR_TIMEOUT,
                 "set \"%s\" of generation %" PRIu64 "%s is still in use: %s%s",
                 array_label(set), set->generation, others, c.n ? "by " : "",
                 c.n ? text : reason_without_leases(core, first->whole, set));
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
answer(struct core *core, const struct vacate *vacate, uint32_t which)
{
    const struct msg_vacate_result result = {vacate->sets[which].lease};
    const struct lease *lease;

    withdraw(lease_find(vacate->conn, result.lease)->array);
    for (uint32_t i = 0; i < vacate->n_own; i++)
        if (vacate->own[i].of == which && (lease = lease_find(vacate->conn, vacate->own[i].id)))
            withdraw(lease->array);
    if (!vacate->conn->closing)
        send_result(core, vacate->conn, vacate->request, MSG_VACATE, &result, NULL, 0);
}

/* Answers where one of the sets is vacant. ENDED: the refusal says what one of them is. */
static enum state
vacate_try(struct core *core, struct vacate *vacate, uint32_t *budget, struct refusal *r)
{
    enum state all = HELD;

    count_own_leases(vacate);
    for (uint32_t i = 0; i < vacate->n_sets; i++) {
        const struct array *set = set_of(&vacate->sets[i], r);
        if (!set)
            return ENDED;
        enum state state = decide(core, &vacate->sets[i], set, budget);
        if (state == VACANT) {
            answer(core, vacate, i);
            return VACANT;
        }
        if (state == UNSETTLED)
            all = UNSETTLED;
    }
    return all;
}

static void
vacate_run(struct core *core, struct vacate *vacate, uint32_t *budget)
{
    struct refusal r;

    vacate_put(vacate, NULL);
    switch (vacate_try(core, vacate, budget, &r)) {
    case HELD: break;
    case UNSETTLED:
        vacate_put(vacate, &core->vacates.looking);
        linger_later(core, *budget ? LINGER_TURN_NS : LINGER_REST_NS);
        break;
    case VACANT: vacate_free(core, vacate); break;
    case ENDED: vacate_refuse(core, vacate, &r);
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
    struct refusal r;

    if (!vacate || vacate->end_ns > core->now_ns)
        return;
    refuse_in_use(core, vacate, &r);
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
check_conn(const struct conn *conn, const struct msg_u64s *leases, struct refusal *r)
{
    const struct vacate *vacate;
    uint32_t n = leases->n;

    LIST_FOREACH(vacate, &conn->vacates, of_conn)
        n += vacate->n_sets;
    if (leases->n == 0)
        return refuse(r, PROTO_ERR_INVALID, "vacate takes one set or more");
    return n <= VACATES_MAX ? 0
                            : refuse(r, PROTO_ERR_LIMIT,
                                     "a connection waits for at most %d sets", VACATES_MAX);
}

/* A lease is waited for once. */
static int
check_other(const struct vacate *vacate, uint32_t n_sets, uint64_t id, struct refusal *r)
{
    for (uint32_t i = 0; i < n_sets; i++)
        if (vacate->sets[i].lease == id)
            return refuse(r, PROTO_ERR_INVALID, "request %u waits for that set already",
                          vacate->request);
    return 0;
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
add_set(struct core *core, struct vacate *vacate, uint64_t id, struct refusal *r)
{
    struct vacancy *set = &vacate->sets[vacate->n_sets];
    const struct vacate *other;

    LIST_FOREACH(other, &vacate->conn->vacates, of_conn)
        if (check_other(other, other->n_sets, id, r))
            return REFUSED;
    if (check_other(vacate, vacate->n_sets, id, r) ||
        check_set(core, vacate->conn, id, &set->whole, r))
        return REFUSED;
    set->vacate = vacate;
    set->lease = id;
    vacate->n_sets++;
    return 0;
}

static int
add_own(struct core *core, struct vacate *vacate, uint64_t id, struct refusal *r)
{
    struct lease *lease;
    uint32_t i = 0;

    if (lease_get(vacate->conn, id, &lease, r))
        return REFUSED;
    while (i < vacate->n_sets && whole_of(core, lease->array) != vacate->sets[i].whole)
        i++;
    if (i == vacate->n_sets || lease->array->is_set)
        return refuse(r, PROTO_ERR_INVALID, "lease %" PRIu64 " is on another array", id);
    vacate->own[vacate->n_own++] = (struct own_lease){id, i};
    return 0;
}

static int
sort_own(struct vacate *vacate, struct refusal *r)
{
    qsort(vacate->own, vacate->n_own, sizeof(vacate->own[0]), own_compare);
    for (uint32_t i = 1; i < vacate->n_own; i++)
        if (vacate->own[i - 1].id == vacate->own[i].id)
            return refuse(r, PROTO_ERR_INVALID, "lease %" PRIu64 " is in the list twice",
                          vacate->own[i].id);
    return 0;
}

static size_t
vacate_size(const struct vacate_request *req)
{
    return sizeof(struct vacate) + req->leases.n * sizeof(struct vacancy) +
           req->own.n * sizeof(struct own_lease);
}

static struct vacate *
vacate_alloc(struct core *core, struct conn *conn, uint32_t request,
             const struct vacate_request *req)
{
    struct vacate *vacate = calloc(1, vacate_size(req));
    uint64_t left = UINT64_MAX - 1 - core->now_ns;

    if (!vacate)
        return NULL;
    vacate->conn = conn;
    vacate->request = request;
    vacate->own = (struct own_lease *)(vacate->sets + req->leases.n);
    vacate->end_ns = req->timeout_ns ? core->now_ns + min_u64(req->timeout_ns, left)
                                     : UINT64_MAX;
    return vacate;
}

static int
vacate_fill(struct core *core, struct vacate *vacate, const struct vacate_request *req,
            struct refusal *r)
{
    for (uint32_t i = 0; i < req->leases.n; i++)
        if (add_set(core, vacate, req->leases.v[i], r))
            return REFUSED;
    for (uint32_t i = 0; i < req->own.n; i++)
        if (add_own(core, vacate, req->own.v[i], r))
            return REFUSED;
    return sort_own(vacate, r);
}

static int
decide_now(struct core *core, struct vacate *vacate, struct refusal *r)
{
    uint32_t budget = USES_MAX;
    enum state state = vacate_try(core, vacate, &budget, r);

    if (state == VACANT)
        return 0;
    if (state != ENDED)
        refuse_in_use(core, vacate, r);
    return REFUSED;
}

static void
vacate_wait(struct core *core, struct vacate *vacate)
{
    core->n_watches += vacate->n_sets;
    for (uint32_t i = 0; i < vacate->n_sets; i++)
        LIST_INSERT_HEAD(&vacate->sets[i].whole->vacancies, &vacate->sets[i], of_whole);
    LIST_INSERT_HEAD(&vacate->conn->vacates, vacate, of_conn);
    RB_INSERT(vacates_by_end, &core->vacates.by_end, vacate);
    vacate_put(vacate, &core->vacates.due);
}

int
vacate_new(struct core *core, struct conn *conn, uint32_t request,
           const struct vacate_request *req, struct refusal *r)
{
    _cleanup_free_ struct vacate *vacate = NULL;

    if (req->own.n > PROTO_BEGIN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "vacate takes at most %d leases", PROTO_BEGIN_MAX);
    if (check_conn(conn, &req->leases, r))
        return REFUSED;
    vacate = vacate_alloc(core, conn, request, req);
    if (!vacate)
        return -ENOMEM;
    if (vacate_fill(core, vacate, req, r))
        return REFUSED;
    if (req->nowait)
        return decide_now(core, vacate, r);
    if (charge_init(&vacate->charge, conn->user, RES_WATCHES, vacate->n_sets, vacate_size(req),
                    r))
        return REFUSED;
    vacate_wait(core, TAKE_PTR(vacate));
    return 0;
}
