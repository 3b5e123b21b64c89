/* SPDX-License-Identifier: Apache-2.0 */
#include "part.h"

#include "array.h"
#include "linger.h"
#include "set.h"
#include "state.h"

/* Numbers in one reply; the others come with the next request. */
#define TELL_MAX 4096

RB_GENERATE_BY(wholes, whole, node, array->id)

/* ---- wholes ---- */

static struct whole *
whole_find(const struct core *core, const struct array *array)
{
    struct whole key = {.array = (struct array *)(uintptr_t)array};

    return array->is_whole ? RB_FIND(wholes, &((struct core *)(uintptr_t)core)->wholes, &key)
                           : NULL;
}

struct whole *
whole_of(const struct core *core, const struct array *array)
{
    if (array->is_part)
        return array->part ? array->part->whole : NULL;
    return array->is_set ? array->set->whole : whole_find(core, array);
}

void
whole_touch(struct core *core, const struct array *array)
{
    const struct whole *whole = whole_of(core, array);
    struct vacancy *set;

    if (!whole)
        return;
    LIST_FOREACH(set, &whole->vacancies, of_whole)
        vacate_put(set->vacate, &core->vacates.due);
    if (whole->droppable)
        set_list(core, whole->droppable);
}

uint32_t
part_count(const struct core *core, const struct array *array)
{
    const struct whole *whole = whole_find(core, array);

    return whole ? whole->n : 0;
}

/* A whole is charged with each of its parts (PART_HOST), to the same user. */
static struct whole *
whole_get(struct core *core, struct array *array)
{
    struct whole *whole = whole_find(core, array);

    if (whole)
        return whole;
    whole = calloc(1, sizeof(*whole));
    if (!whole)
        return NULL;
    whole->array = array;
    TAILQ_INIT(&whole->uses);
    RB_INSERT(wholes, &core->wholes, whole);
    array->is_whole = true;
    persist_array(array);
    return whole;
}

static void
whole_settle(struct core *core, struct whole *whole)
{
    struct vacancy *set;

    if (whole->n)
        return;
    while ((set = LIST_FIRST(&whole->vacancies))) {
        vacancy_leave_whole(set);
        vacate_put(set->vacate, &core->vacates.due);
    }
    RB_REMOVE(wholes, &core->wholes, whole);
    if (whole->dropped)
        linger_drop(core, whole->array, false);
    whole->array->is_whole = false;
    persist_array(whole->array);
    free(whole);
}

/* ---- parts ---- */

static void
part_free(struct part *part)
{
    charge_deinit(&part->charge);
    free(part);
}

void
published_add(struct conn *conn, struct part *part)
{
    part->conn = conn;
    TAILQ_INSERT_TAIL(&conn->published.there, part, of_conn);
}

int
published_add_gone(struct conn *conn, uint64_t id, struct refusal *r)
{
    struct part *part = calloc(1, sizeof(*part));

    if (!part)
        return -ENOMEM;
    if (charge_init(&part->charge, conn->user, RES_HOST, 0, PART_HOST, r)) {
        free(part);
        return REFUSED;
    }
    part->id = id;
    part->conn = conn;
    TAILQ_INSERT_TAIL(&conn->published.gone, part, of_conn);
    return 0;
}

static struct part *
part_alloc(struct core *core, struct conn *conn, struct array *array, uint64_t offset,
           const struct charge *charge)
{
    _cleanup_free_ struct part *part = calloc(1, sizeof(*part));
    struct whole *whole = part ? whole_get(core, array) : NULL;

    if (!whole)
        return NULL;
    part->offset = offset;
    part->charge = *charge;
    part->whole = whole;
    if (conn)
        published_add(conn, part);
    LIST_INSERT_HEAD(&whole->parts, part, of_whole);
    whole->n++;
    return TAKE_PTR(part);
}

/* Takes the part out of its whole. Returns the array that it was a part of. */
static struct array *
part_leave(struct core *core, struct part *part)
{
    struct array *array = part->whole->array;

    LIST_REMOVE(part, of_whole);
    part->whole->n--;
    whole_settle(core, part->whole);
    part->whole = NULL;
    part->array = NULL;
    return array;
}

static int
part_make(struct core *core, struct conn *conn, struct user *user, struct array *whole,
          uint64_t offset, struct array_request *req, struct array **ret, struct refusal *r)
{
    struct charge charge;
    struct part *part;

    req->pool = whole->pool;
    req->device = whole->device;
    req->kind = whole->kind;
    req->mapped = whole->mapped;
    if (charge_init(&charge, user, RES_HOST, 0, PART_HOST, r))
        return REFUSED;
    part = part_alloc(core, conn, whole, offset, &charge);
    if (!part) {
        charge_deinit(&charge);
        return -ENOMEM;
    }
    int rc = array_new_part(core, part, req, ret, r);
    if (rc)
        part_undo(core, part);
    return rc;
}

int
part_new(struct core *core, struct conn *conn, struct array *whole, uint64_t offset, bool told,
         struct array_request *req, struct array **ret, struct refusal *r)
{
    return part_make(core, told ? conn : NULL, conn->user, whole, offset, req, ret, r);
}

int
part_restore(struct core *core, struct user *user, struct array *whole, uint64_t offset,
             struct array_request *req, struct array **ret)
{
    int rc = part_make(core, NULL, user, whole, offset, req, ret, NULL);

    if (rc == 0)
        (*ret)->is_old_part = true;
    return rc;
}

void
part_undo(struct core *core, struct part *part)
{
    if (part->conn)
        TAILQ_REMOVE(&part->conn->published.there, part, of_conn);
    part_leave(core, part);
    part_free(part);
}

/* ---- answers ---- */

void
published_tell(struct core *core, struct conn *conn)
{
    struct published *published = &conn->published;
    uint64_t ids[TELL_MAX];
    uint32_t n = 0;
    struct part *part;

    if (!published->asked || TAILQ_EMPTY(&published->gone))
        return;
    while (n < TELL_MAX && (part = TAILQ_FIRST(&published->gone))) {
        TAILQ_REMOVE(&published->gone, part, of_conn);
        ids[n++] = part->id;
        part_free(part);
    }
    published->asked = false;
    send_result(core, conn, published->request, MSG_PARTS,
                &(struct msg_parts_result){.parts = {.v = ids, .n = n}}, NULL, 0);
}

struct array *
part_end(struct core *core, struct part *part)
{
    struct conn *conn = part->conn;
    struct array *whole = part_leave(core, part);

    if (!conn) {
        part_free(part);
        return whole;
    }
    TAILQ_REMOVE(&conn->published.there, part, of_conn);
    TAILQ_INSERT_TAIL(&conn->published.gone, part, of_conn);
    published_tell(core, conn);
    return whole;
}

void
published_init(struct published *published)
{
    TAILQ_INIT(&published->there);
    TAILQ_INIT(&published->gone);
}

int
published_ask(struct core *core, struct conn *conn, uint32_t request, struct refusal *r)
{
    struct published *published = &conn->published;

    if (published->asked)
        return refuse(r, PROTO_ERR_INVALID, "request %u asks for parts already",
                      published->request);
    published->asked = true;
    published->request = request;
    published_tell(core, conn);
    return 0;
}

bool
published_cancel(struct conn *conn, uint32_t request)
{
    struct published *published = &conn->published;

    if (!published->asked || published->request != request)
        return false;
    published->asked = false;
    return true;
}

bool
published_orphan(struct published *published)
{
    struct part *part;

    published->asked = false;
    if ((part = TAILQ_FIRST(&published->gone))) {
        TAILQ_REMOVE(&published->gone, part, of_conn);
        part_free(part);
    } else if ((part = TAILQ_FIRST(&published->there))) {
        TAILQ_REMOVE(&published->there, part, of_conn);
        part->conn = NULL;
    }
    return part != NULL;
}

void
parts_forget(struct core *core)
{
    struct whole *whole;
    struct part *part;

    while ((whole = RB_MIN(wholes, &core->wholes))) {
        RB_REMOVE(wholes, &core->wholes, whole);
        while (!TAILQ_EMPTY(&whole->uses))
            use_forget(TAILQ_FIRST(&whole->uses)->array);
        while ((part = LIST_FIRST(&whole->parts))) {
            LIST_REMOVE(part, of_whole);
            free(part);
        }
        free(whole);
    }
}
