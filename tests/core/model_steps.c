/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a history: who does what, and what may come of it.
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "books.h"
#include "caid_test.h"
#include "model.h"

/* What a uid's or a pool's limits, or memory, may refuse. */
#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))
#define ERR_DRIVER (ERR(NO_MEMORY) | ERR(DRIVER) | ERR(UNSUPPORTED))

void
model_note(struct model *m, const char *fmt, ...)
{
    va_list ap;

    if (m->n_steps == M_STEPS)
        return;
    va_start(ap, fmt);
    vsnprintf(m->steps[m->n_steps++], sizeof(m->steps[0]), fmt, ap);
    va_end(ap);
}

/* A client that may ask for something, or M_NONE. */
static int
some_client(struct model *m)
{
    uint32_t first = model_random(m, M_SLOTS);

    for (uint32_t i = 0; i < M_SLOTS; i++) {
        int s = (int)((first + i) % M_SLOTS);
        if (m->slots[s].conn && !m->slots[s].gone && !m->slots[s].offended && !m->slots[s].away)
            return s;
    }
    return M_NONE;
}

/* One that the client may use, mostly; for root, and now and then, any. */
static int
some_pool(struct model *m, const struct m_slot *slot)
{
    int own = slot->uid == 1000 ? 0 : slot->uid == 1001 ? 1 : slot->uid == 0 ? 2 : 3;

    if (m->crowded && model_random(m, 4))
        return 2;
    switch (model_random(m, 8)) {
    case 0: return (int)model_random(m, M_POOLS);
    case 1:
    case 2:
    case 3: return 2;
    default: return own;
    }
}

static int
some_name(struct model *m)
{
    return (int)model_random(m, M_NAMES);
}

static bool
is_creating(const struct model *m, int slot)
{
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].slot == slot && m->requests[i].method == MSG_CREATE)
            return true;
    return false;
}

/* ---- coming and going ---- */

void
model_step_connect(struct model *m)
{
    static const struct {
        uid_t uid;
        gid_t gid;
    } people[] = {{1000, 1000}, {1000, 1000}, {1001, 1001}, {1001, 1001},
                  {1, 1},       {2, 10},      {0, 0}};

    uint32_t who = model_random(m, ARRAY_SIZE(people));
    struct msg_str resume = MSG_STR("resume");
    bool resumes = model_random(m, 4) > 0;
    struct msg_hello_params hello = {.version_min = 1,
                                     .version_max = 1,
                                     .features = {&resume, resumes},
                                     .client = MSG_STR("model")};
    int s = 0;

    while (s < M_SLOTS && m->slots[s].conn)
        s++;
    if (s == M_SLOTS || m->h.next_conn + 2 >= H_CONNS)
        return;
    model_note(m, "slot %d: connect as uid %d", s, (int)people[who].uid);
    m->slots[s] =
        (struct m_slot){.uid = people[who].uid, .gid = people[who].gid, .resumes = resumes};
    m->slots[s].token = m->slots[s].conn =
        h_connect_raw(&m->h, people[who].uid, people[who].gid);
    if (!m->slots[s].conn)
        return;
    model_ask(m, s, MSG_HELLO);
    h_request(&m->h, m->slots[s].conn, MSG_HELLO, &hello);
}

void
model_hung_up(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    model_brackets_hangup(m, s);
    model_timelines_hangup(m, slot->conn);
    model_parts_hangup(m, s);
    model_tickets_hangup(m, s);
    model_take_given_up(m, slot);
    for (int i = slot->n_leases; i-- > 0;) {
        struct m_array *array = &m->arrays[slot->leases[i].array];
        if (!array->nbytes) {
            model_lease_gone(m, slot, i);
            continue;
        }
        array->n_leases--;
        array->n_departed++;
    }
    slot->gone = true;
}

void
model_leave(struct model *m, int s, bool hangup, bool exits)
{
    struct m_slot *slot = &m->slots[s];

    model_note(m, "slot %d:%s%s", s, hangup ? " hangs up" : "", exits ? " exits" : "");
    model_drop_requests(m, s);
    if (!slot->gone)
        model_hung_up(m, s);
    if ((hangup || model_uses(m, s)) && !m->h.gone[slot->conn])
        h_hangup(&m->h, slot->conn);
    if (!exits)
        return;
    if (m->n_tickets) /* whose time begins when all is back */
        saved_finish(&m->h);
    model_brackets_exit(m, s);
    model_tickets_hangup(m, M_SLOTS + s);
    while (slot->n_leases)
        model_lease_gone(m, slot, 0);
    h_exit(&m->h, slot->conn);
    *slot = (struct m_slot){0};
}

static void
step_hangup(struct model *m)
{
    int s = (int)model_random(m, M_SLOTS);

    if (!m->slots[s].conn)
        return;
    bool exits = m->slots[s].gone || m->slots[s].away || model_random(m, 3) == 0;
    model_leave(m, s, !exits || model_random(m, 2), exits);
}

/* ---- arrays ---- */

static int64_t
some_bytes(struct model *m)
{
    static const int64_t sizes[] = {0,       1,       512,     513,     100000,  1 << 20,
                                    2 << 20, 3 << 20, 5 << 20, 4 << 20, M_FRAMES};

    return sizes[model_random(m, ARRAY_SIZE(sizes))];
}

static const char *
some_memory(struct model *m)
{
    static const char *const kinds[] = {NULL,     NULL,     NULL,     NULL,
                                        "device", "legacy", "pinned", "mapped"};

    const char *kind = kinds[model_random(m, ARRAY_SIZE(kinds))];

    return m->restarts && kind && strcmp(kind, "legacy") == 0 ? NULL : kind;
}

/* What may come of a create of that name there. */
static void
expect_create(struct model *m, struct m_request *r, const struct m_slot *slot)
{
    const struct m_name *name = r->name == M_NONE ? NULL : &m->names[r->pool][r->name];

    r->may_fail = ERR_LIMITS | ERR_DRIVER;
    if (model_refuse_writer(m, r, slot, r->pool, true))
        return;
    if (slot->uid == 0 && r->pool < 2)
        r->may_fail |= ERR(NOT_FOUND); /* that uid is not there */
    if (name && !model_refuse(r, name->array != M_NONE || name->creating >= 0, ERR(EXISTS)))
        r->may_fail |= name->creating == M_GHOST ? ERR(EXISTS) : 0;
    if (name)
        model_expect_sets(m, r, NULL);
    r->was_ghost = name && name->creating == M_GHOST;
    if (name && !r->must_fail)
        m->names[r->pool][r->name].creating = r->slot;
}

uint64_t
model_boottime(const struct model *m)
{
    return m->h.now_ns + m->h.asleep_ns;
}

/* Mostly none; else so short that some of the history sees its end. */
static uint64_t
some_ttl(struct model *m, struct m_request *r)
{
    uint64_t ttl_ns = model_random(m, 3) ? 0 : 1 + model_random(m, 3 * (uint32_t)H_AGE_NS);

    r->expires_ns = ttl_ns ? model_boottime(m) + ttl_ns : 0;
    return ttl_ns;
}

/* Of bytes, of structs with a field list, or with a stride. */
static void
send_create(struct model *m, struct m_request *r, struct msg_create_params *params,
            int64_t bytes)
{
    bool structs = bytes % 8 == 0 && model_random(m, 8) == 0;
    int64_t item = structs ? 8 : 1, extent = bytes / item, stride = 2 * item;

    params->typestr = structs ? MSG_STR("|V8") : MSG_STR("|u1");
    params->descr = msg_str_opt(structs ? "[[\"x\", \"<f8\"]]" : NULL);
    params->shape = (struct msg_i64s){&extent, 1};
    r->extent = (uint64_t)extent;
    r->span = (uint64_t)bytes;
    if (model_random(m, 8) == 0) {
        params->strides = (struct msg_i64s){&stride, 1};
        r->span = extent ? (uint64_t)((extent - 1) * stride + item) : 0;
    }
    h_request(&m->h, m->slots[r->slot].conn, MSG_CREATE, params);
}

static void
step_create(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    const char *memory = some_memory(m);
    int64_t bytes = some_bytes(m);
    char label[24];

    if (slot->n_leases + 8 > M_LEASES || m->n_arrays + 8 > M_ARRAYS)
        return;
    struct m_request *r = model_ask(m, s, MSG_CREATE);
    r->pool = some_pool(m, slot);
    r->name = model_random(m, 3) ? some_name(m) : M_NONE;
    r->label = m->h.next_id + 1;
    r->nbytes = (uint64_t)bytes;
    expect_create(m, r, slot);
    snprintf(label, sizeof(label), "%llu", (unsigned long long)r->label);
    uint64_t ttl_ns = r->name == M_NONE ? 0 : some_ttl(m, r);
    model_note(m, "slot %d: create %s in %s, %lld bytes of %s, for %llu ns", s,
               r->name == M_NONE ? "-" : model_name(r->name), model_pool_name(r->pool),
               (long long)bytes, memory ? memory : "-", (unsigned long long)ttl_ns);
    struct msg_create_params params = {
        .pool = MSG_STR(model_pool_name(r->pool)),
        .name = msg_str_opt(r->name == M_NONE ? NULL : model_name(r->name)),
        .memory = msg_str_opt(memory),
        .metadata = MSG_STR(label),
        .exclusive = model_random(m, 8) == 0,
        .alignment = model_random(m, 4) ? 0 : UINT64_C(1) << model_random(m, 22),
        .ttl_ns = ttl_ns,
    };
    if (m->h.n_devices > 1 && model_random(m, 3) == 0)
        params.device = MSG_STR("GPU-00000000-0000-0000-0000-000000000002");
    r->is_exclusive = params.exclusive;
    r->is_device = !memory || strcmp(memory, "device") == 0;
    r->is_pinned = !r->is_device && strcmp(memory, "legacy") != 0;
    send_create(m, r, &params, bytes);
}

static void
step_open(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct msg_str names[4];
    uint32_t n = 1 + model_random(m, model_random(m, 3) ? 1 : ARRAY_SIZE(names));
    bool readonly = model_random(m, 2);

    if (slot->n_leases + 8 > M_LEASES)
        return;
    struct m_request *r = model_ask(m, s, MSG_OPEN);
    r->pool = some_pool(m, slot);
    r->may_fail = ERR_LIMITS;
    r->readonly = readonly;
    for (uint32_t i = 0; i < n; i++) {
        int name = some_name(m);
        names[i] = MSG_STR(model_name(name));
        r->must_fail |= !model_find(m, r->pool, name);
    }
    r->must_fail |= !model_may(m, slot, r->pool, 4);
    if (r->must_fail)
        r->may_fail |= ERR(NOT_FOUND);
    model_refuse(r,
                 !readonly && model_may(m, slot, r->pool, 4) && !model_may(m, slot, r->pool, 2),
                 ERR(PERMISSION));
    model_note(m, "slot %d: open %u of %s, first %s", s, n, model_pool_name(r->pool),
               names[0].p);
    struct msg_open_params params = {.names = {names, n},
                                     .pool = MSG_STR(model_pool_name(r->pool)),
                                     .mode = MSG_STR(readonly ? "r" : "rw")};
    h_request(&m->h, slot->conn, MSG_OPEN, &params);
}

/* Whether a generation of the name is to be had: the current one, or one that a client holds. */
static bool
is_held(const struct model *m, int pool, int name, uint64_t generation)
{
    for (int i = 0; i < m->n_arrays; i++) {
        const struct m_array *a = &m->arrays[i];
        if (a->pool == pool && a->last_name == name && a->generation == generation &&
            (a->name == name || (a->name == M_NONE && a->n_leases)))
            return true;
    }
    return false;
}

void
model_open_generation(struct model *m, int s, int pool, int name)
{
    const struct m_slot *slot = &m->slots[s];
    uint64_t highest = m->names[pool][name].highest;
    uint64_t generation = 1 + model_random(m, (uint32_t)highest + 2);

    if (slot->n_leases + 8 > M_LEASES)
        return;
    struct m_request *r = model_ask(m, s, MSG_OPEN);
    r->pool = pool;
    r->may_fail = ERR_LIMITS;
    r->readonly = true;
    if (!model_refuse(r, !model_may(m, slot, pool, 4), ERR(NOT_FOUND)))
        model_refuse(r, !is_held(m, pool, name, generation),
                     ERR(STALE) | (slot->uid == 0 && pool < 2 ? ERR(NOT_FOUND) : 0));
    model_note(m, "slot %d: open %s of %s, generation %llu", s, model_name(name),
               model_pool_name(pool), (unsigned long long)generation);
    h_open_generation(&m->h, slot->conn, model_name(name), model_pool_name(pool), generation);
}

static void
step_open_generation(struct model *m, int s)
{
    int pool = some_pool(m, &m->slots[s]);

    model_open_generation(m, s, pool, some_name(m));
}

/* A block that the client has open and no lease in, or 0. */
static uint64_t
idle_block(const struct model *m, uint64_t conn)
{
    for (size_t i = 0; i < m->h.n_holds; i++) {
        uint64_t block = m->h.holds[i].block;
        bool used = m->h.holds[i].conn != conn;
        for (size_t j = 0; j < m->h.n_ranges && !used; j++)
            used = m->h.ranges[j].conn == conn && m->h.ranges[j].block == block;
        if (!used)
            return block;
    }
    return 0;
}

/* Some leases, and a block with them. It must not be forgotten while an answer with an array in
 * it may be on its way. */
void
model_step_close(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    uint64_t leases[4], block = 0;
    uint32_t n = 0, max = model_random(m, ARRAY_SIZE(leases) + 1);

    for (; n < max && slot->n_leases; n++) {
        int i = (int)model_random(m, (uint32_t)slot->n_leases);
        leases[n] = slot->leases[i].lease;
        books_closed(&m->h, slot->conn, leases[n]);
        model_lease_gone(m, slot, i);
    }
    if (!is_creating(m, s) && model_random(m, 2))
        block = idle_block(m, slot->conn);
    if (!n && !block)
        return;
    model_note(m, "slot %d: close %u, forget block %llu", s, n, (unsigned long long)block);
    struct msg_close_params params = {.leases = {leases, n}, .forget = {&block, block ? 1 : 0}};
    if (block)
        model_forget(m, slot, block);
    h_notify(&m->h, slot->conn, MSG_CLOSE, &params);
}

/* ---- names ---- */

/* With a companion, that another array of the slot is to be. */
static uint64_t
choose_companion(struct model *m, const struct m_slot *slot, struct m_request *r)
{
    const struct m_lease *lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    const struct m_array *a = &m->arrays[r->seen], *companion = &m->arrays[lease->array];

    bool other = lease->array != a->companion;
    model_refuse(r,
                 other && (companion->pool != a->pool || companion->uid != a->uid ||
                           lease->readonly || companion == a || companion->name != M_NONE ||
                           companion->keeper != M_NONE || companion->companion != M_NONE ||
                           companion->whole != M_NONE || companion->is_set ||
                           a->companion != M_NONE),
                 ERR(INVALID));
    model_refuse(r, other && model_is_abandoned(m, lease->array), ERR(ABANDONED));
    r->may_fail |= companion->was_kept ? ERR(INVALID) : 0;
    r->companion = lease->array;
    return lease->lease;
}

void
model_publish(struct model *m, int s, const struct m_lease *lease, int name)
{
    const struct m_slot *slot = &m->slots[s];
    struct m_request *r = model_ask(m, s, MSG_PUBLISH);
    char label[24];

    r->pool = m->arrays[lease->array].pool;
    r->name = name;
    r->seen = (uint64_t)lease->array;
    r->may_fail = ERR_LIMITS;
    r->label = model_random(m, 2) ? m->h.next_id + 1 : 0;
    int creating = m->names[r->pool][r->name].creating;
    if (!model_refuse(r, !model_may(m, slot, r->pool, 2), ERR(PERMISSION)) &&
        (!model_refuse(r, model_is_abandoned(m, lease->array), ERR(ABANDONED)) ||
         m->returning) && /* the core may not know of that yet */
        creating != M_NONE) {
        r->must_fail |= creating >= 0;
        r->may_fail |= ERR(EXISTS);
    }
    model_refuse(r, m->arrays[lease->array].keeper != M_NONE, ERR(INVALID));
    r->may_fail |= m->arrays[lease->array].was_kept ? ERR(INVALID) : 0;
    model_expect_sets(m, r, &m->arrays[lease->array]);
    snprintf(label, sizeof(label), "%llu", (unsigned long long)r->label);
    struct msg_publish_params params = {.lease = lease->lease,
                                        .name = MSG_STR(model_name(r->name)),
                                        .metadata = msg_str_opt(r->label ? label : NULL),
                                        .new = model_random(m, 4) == 0,
                                        .ttl_ns = some_ttl(m, r)};
    model_refuse(r, params.new && m->names[r->pool][r->name].array != M_NONE, ERR(EXISTS));
    if (model_random(m, 3) == 0)
        params.companion = choose_companion(m, slot, r);
    model_note(m, "slot %d: publish lease %llu as %s in %s%s, companion %llu, for %llu ns", s,
               (unsigned long long)lease->lease, model_name(r->name), model_pool_name(r->pool),
               params.new ? ", new" : "", (unsigned long long)params.companion,
               (unsigned long long)params.ttl_ns);
    h_request(&m->h, slot->conn, MSG_PUBLISH, &params);
}

static void
step_publish(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];

    if (slot->n_leases)
        model_publish(m, s, &slot->leases[model_random(m, (uint32_t)slot->n_leases)],
                      some_name(m));
}

static void
step_open_companion(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases || slot->n_leases + 8 > M_LEASES)
        return;
    const struct m_lease *lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    struct m_request *r = model_ask(m, s, MSG_OPEN_COMPANION);
    r->pool = m->arrays[lease->array].pool;
    r->readonly = lease->readonly;
    r->may_fail = ERR_LIMITS;
    model_refuse(r, m->arrays[lease->array].companion == M_NONE, ERR(NOT_FOUND));
    model_note(m, "slot %d: open the companion of lease %llu", s,
               (unsigned long long)lease->lease);
    h_request(&m->h, slot->conn, MSG_OPEN_COMPANION,
              &(struct msg_open_companion_params){.lease = lease->lease});
}

static void
step_unlink(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct m_request *r = model_ask(m, s, MSG_UNLINK);

    r->pool = some_pool(m, slot);
    r->name = some_name(m);
    model_refuse_writer(m, r, slot, r->pool, model_find(m, r->pool, r->name));
    model_note(m, "slot %d: unlink %s in %s", s, model_name(r->name), model_pool_name(r->pool));
    h_unlink(&m->h, slot->conn, model_name(r->name), model_pool_name(r->pool));
}

static void
step_rename(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct m_request *r = model_ask(m, s, MSG_RENAME);

    r->pool = some_pool(m, slot);
    r->name = some_name(m);
    int from = some_name(m), creating = m->names[r->pool][r->name].creating;
    const struct m_array *array = model_find(m, r->pool, from);
    struct msg_rename_params params = {.name = MSG_STR(model_name(from)),
                                       .pool = MSG_STR(model_pool_name(r->pool)),
                                       .to = MSG_STR(model_name(r->name)),
                                       .replace = model_random(m, 2)};
    bool taken = !params.replace && m->names[r->pool][r->name].array != M_NONE;
    r->seen = array ? (uint64_t)(array - m->arrays) : 0;
    r->may_fail = ERR_LIMITS;
    if (!model_refuse_writer(m, r, slot, r->pool, array) && (creating != M_NONE || taken)) {
        r->must_fail = creating >= 0 || taken;
        r->may_fail |= ERR(EXISTS);
    }
    if (array)
        model_expect_sets(m, r, array);
    model_note(m, "slot %d: rename %s in %s to %s%s", s, model_name(from),
               model_pool_name(r->pool), model_name(r->name),
               params.replace ? ", replace" : "");
    h_request(&m->h, slot->conn, MSG_RENAME, &params);
}

/* Whoever may unlink it, and of the generation that is there. */
static void
step_expire(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct m_request *r = model_ask(m, s, MSG_EXPIRE);

    r->pool = some_pool(m, slot);
    r->name = some_name(m);
    const struct m_array *array = model_find(m, r->pool, r->name);
    struct msg_expire_params params = {.name = MSG_STR(model_name(r->name)),
                                       .pool = MSG_STR(model_pool_name(r->pool)),
                                       .generation = model_random(m, 3),
                                       .ttl_ns = some_ttl(m, r)};
    r->seen = array ? (uint64_t)(array - m->arrays) : 0;
    r->may_fail = params.ttl_ns ? ERR_LIMITS : 0;
    if (!model_refuse_writer(m, r, slot, r->pool, array))
        model_refuse(r, params.generation && params.generation != array->generation,
                     ERR(STALE));
    model_note(m, "slot %d: %s in %s of generation %llu expires in %llu ns", s,
               model_name(r->name), model_pool_name(r->pool),
               (unsigned long long)params.generation, (unsigned long long)params.ttl_ns);
    h_request(&m->h, slot->conn, MSG_EXPIRE, &params);
}

static void
step_watch(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct m_request *r = model_ask(m, s, MSG_WATCH);

    r->pool = some_pool(m, slot);
    r->name = some_name(m);
    const struct m_array *array = model_find(m, r->pool, r->name);
    r->seen = array ? array->generation : 0;
    if (model_random(m, 4) == 0)
        r->seen += model_random(m, 3);
    r->may_fail = ERR(LIMIT);
    if (!model_refuse(r, !model_may(m, slot, r->pool, 4), ERR(NOT_FOUND)))
        r->may_fail |= slot->uid == 0 && r->pool < 2 ? ERR(NOT_FOUND) : 0;
    model_note(m, "slot %d: watch %s in %s, seen %llu", s, model_name(r->name),
               model_pool_name(r->pool), (unsigned long long)r->seen);
    h_watch(&m->h, slot->conn, model_name(r->name), model_pool_name(r->pool), r->seen);
}

static void
step_cancel(struct model *m, int s)
{
    struct msg_cancel_params params = {.request = m->h.next_id + 7};
    bool found = false;

    for (int i = 0; i < m->n_requests && !found; i++) {
        struct m_request *r = &m->requests[i];
        if (r->slot != s || r->method != MSG_WATCH)
            continue;
        found = true;
        params.request = r->id;
        r->may_fail = ERR(CANCELLED);
        r->must_fail = true;
    }
    model_note(m, "slot %d: cancel %llu", s, (unsigned long long)params.request);
    int before = m->n_requests;
    h_notify(&m->h, m->slots[s].conn, MSG_CANCEL, &params);
    EXPECT(m, m->n_requests == before - found, "a cancelled watch is not answered");
}

/* The pool's list is the model's. */
static void
step_list(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    int pool = some_pool(m, slot);
    struct msg_list_params params = {.pool = MSG_STR(model_pool_name(pool))};
    struct m_request *r = model_ask(m, s, MSG_LIST);
    uint32_t n = 0;

    model_note(m, "slot %d: list %s", s, model_pool_name(pool));
    r->must_fail = !model_may(m, slot, pool, 4);
    if (r->must_fail || (slot->uid == 0 && pool < 2))
        r->may_fail = ERR(NOT_FOUND);
    const struct h_reply *reply = h_request(&m->h, slot->conn, MSG_LIST, &params);
    if (m->blind || m->returning || reply->error)
        return;
    for (int name = 0; name < M_NAMES; name++) {
        const struct m_array *array = model_find(m, pool, name);
        if (!array)
            continue;
        cr_assert_lt(n, reply->n_entries, "\"%s\" is missing", model_name(name));
        cr_assert_str_eq(reply->names[n], model_name(name));
        model_check_entry(m, (int)(array - m->arrays), &reply->entries[n]);
        cr_assert_eq(reply->entries[n].ttl_ns,
                     array->expires_ns ? array->expires_ns - model_boottime(m) : 0);
        cr_assert_eq(reply->n_leases[n++], (uint64_t)(array->n_leases + array->n_departed));
        n += model_check_members(m, array, reply, n);
    }
    cr_assert_eq(reply->n_entries, n, "a name too many");
}

/* Who keeps memory that has no name: all of it, and nothing else. */
static void
step_unnamed(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    int pool = some_pool(m, slot);
    struct msg_unnamed_params params = {.pool = MSG_STR(model_pool_name(pool))};
    struct m_request *r = model_ask(m, s, MSG_UNNAMED);
    uint32_t n = 0, lingering = 0;

    model_note(m, "slot %d: unnamed in %s", s, model_pool_name(pool));
    r->must_fail = !model_may(m, slot, pool, 4);
    if (r->must_fail || (slot->uid == 0 && pool < 2))
        r->may_fail = ERR(NOT_FOUND);
    const struct h_reply *reply = h_request(&m->h, slot->conn, MSG_UNNAMED, &params);
    if (m->blind || m->returning || reply->error)
        return;
    for (int i = 0; i < m->n_arrays; i++) {
        const struct m_array *array = &m->arrays[i];
        n += array->alive && array->pool == pool && array->name == M_NONE;
        lingering += !array->alive && array->pool == pool && array->fenced;
    }
    cr_assert_geq(reply->n_entries, n);
    cr_assert_leq(reply->n_entries, n + lingering);
}

/* ---- memory ---- */

/* All of a block, to where nobody is asked again. */
static void
step_export(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases)
        return;
    const struct m_lease *lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    const struct m_array *array = &m->arrays[lease->array];
    struct m_request *r = model_ask(m, s, MSG_EXPORT);
    r->seen = (uint64_t)lease->array;
    model_refuse(r, lease->readonly, ERR(PERMISSION));
    model_refuse(r, !array->nbytes || array->whole != M_NONE || !array->is_device,
                 ERR(INVALID));
    r->may_fail |= array->is_exclusive ? 0 : ERR(INVALID); /* others may be in its block */
    model_note(m, "slot %d: export lease %llu", s, (unsigned long long)lease->lease);
    h_request(&m->h, slot->conn, MSG_EXPORT, &(struct msg_export_params){lease->lease});
}

static bool
has_request(const struct model *m, int slot, enum msg_method method)
{
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].slot == slot && m->requests[i].method == method)
            return true;
    return false;
}

static void
step_flush(struct model *m, int s)
{
    if (has_request(m, s, MSG_FLUSH))
        return;
    model_note(m, "slot %d: flush", s);
    model_ask(m, s, MSG_FLUSH)->may_fail = ERR(DRIVER) | ERR(SHUTDOWN) | ERR_LIMITS;
    h_flush(&m->h, m->slots[s].conn);
}

static void
step_defer(struct model *m, int s)
{
    bool begin = model_random(m, 2);
    struct m_request *r = model_ask(m, s, MSG_DEFER);

    model_note(m, "slot %d: defer %s", s, begin ? "begin" : "end");
    r->seen = begin;
    r->must_fail = !begin && !m->slots[s].deferring;
    r->may_fail = r->must_fail ? ERR(INVALID) : 0;
    h_defer(&m->h, m->slots[s].conn, begin);
}

static void
step_memory_info(struct model *m, int s)
{
    model_note(m, "slot %d: memory_info", s);
    model_ask(m, s, MSG_MEMORY_INFO)->may_fail = ERR(LIMIT) | ERR(DRIVER);
    h_request(&m->h, m->slots[s].conn, MSG_MEMORY_INFO, &(struct msg_memory_params){0});
}

/* What changes nothing, and what the model does not look into. */
static void
step_ask(struct model *m, int s)
{
    int pool = some_pool(m, &m->slots[s]);
    const char *text = model_name(some_name(m));
    struct msg_name_params name = {.name = MSG_STR(text),
                                   .pool = MSG_STR(model_pool_name(pool))};
    struct msg_list_params list = {.all = true};
    struct msg_unnamed_params unnamed = {.all = true};
    struct msg_pools_params pools = {0};
    struct msg_users_params users = {0};

    const struct question {
        enum msg_method method;
        const void *params;
    } questions[] = {
        {MSG_PING, &pools},     {MSG_STATUS, &pools}, {MSG_POOLS, &pools},
        {MSG_USERS, &users},    {MSG_SHOW, &name},    {MSG_UNNAMED, &unnamed},
        {MSG_RANGES, &unnamed}, {MSG_LIST, &list},
    };
    const struct question *q = &questions[model_random(m, ARRAY_SIZE(questions))];

    model_note(m, "slot %d: %s", s, msg_method_name(q->method));
    model_ask(m, s, q->method)->may_fail = ERR(NOT_FOUND);
    h_request(&m->h, m->slots[s].conn, q->method, q->params);
}

/* ---- the world ---- */

static int
some_failure(struct model *m, enum core_action_type type)
{
    static const int failures[] = {-ENOMEM, -ENOMEM, -EIO, -ENOTSUP};

    if (model_random(m, 8))
        return 0;
    return type == CORE_ALLOC ? failures[model_random(m, ARRAY_SIZE(failures))] : -EIO;
}

static void
step_finish(struct model *m)
{
    if (!m->h.n_jobs)
        return;
    size_t i = model_random(m, (uint32_t)m->h.n_jobs);
    int error = some_failure(m, m->h.jobs[i].type);
    model_note(m, "driver: job %llu of type %d ends with %d",
               (unsigned long long)m->h.jobs[i].id, (int)m->h.jobs[i].type, error);
    h_finish(&m->h, i, error);
}

/* The model lets names go first, since others hear of it as it happens. What is being created is
 * looked at again a second later. */
void
model_pass(struct model *m, uint64_t ns)
{
    m->h.asleep_ns += model_random(m, 4) ? 0 : H_AGE_NS;
    uint64_t now_ns = model_boottime(m) + ns;

    for (int i = 0; i < m->n_requests; i++) {
        struct m_request *r = &m->requests[i];
        if (r->method == MSG_CREATE && r->expires_ns && r->expires_ns <= now_ns)
            r->expires_ns = now_ns + NSEC_PER_SEC;
    }
    for (int i = 0; i < m->n_arrays; i++) {
        const struct m_array *a = &m->arrays[i];
        if (a->name != M_NONE && a->expires_ns && a->expires_ns <= now_ns)
            model_name_gone(m, a->pool, a->name);
    }
    model_tickets_pass(m, now_ns);
    model_vacates_pass(m, ns);
    model_channels_pass(m, ns);
    h_tick(&m->h, ns);
}

static void
step_tick(struct model *m)
{
    uint64_t ns = model_random(m, m->turning ? 4 : 20) == 0 ? NSEC_PER_SEC
                  : model_random(m, 2)                      ? H_AGE_NS
                                                            : H_AGE_NS / 4;

    model_note(m, "%llu ns pass", (unsigned long long)ns);
    model_pass(m, ns);
}

/* Breaks the rules: it is closed, and nobody else. */
static void
step_offend(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    static const uint8_t bomb[] = {0x94, 0, 1, 0xdd, 0xff, 0xff, 0xff, 0xff};

    if (model_random(m, 4))
        return;
    model_note(m, "slot %d: breaks the rules", s);
    slot->offended = true;
    if (slot->n_leases && model_random(m, 2) && m->h.n_ranges) {
        h_close(&m->h, slot->conn, UINT64_MAX);
    } else {
        h_packet(&m->h, slot->conn, bomb, sizeof(bomb));
    }
    cr_assert(m->h.closed[slot->conn]);
    model_drop_requests(m, s);
}

static const struct {
    void (*take)(struct model *, int);
    uint32_t weight;
} client_steps[] = {
    {step_create, 6},      {step_open, 4},
    {model_step_close, 4}, {step_open_generation, 2},
    {step_publish, 4},     {step_unlink, 2},
    {step_rename, 2},      {step_expire, 2},
    {step_watch, 3},       {step_cancel, 1},
    {step_list, 2},        {step_unnamed, 1},
    {step_flush, 2},       {step_defer, 2},
    {step_memory_info, 1}, {step_ask, 1},
    {step_offend, 1},      {step_open_companion, 2},
    {step_export, 3},      {model_step_ticket, 3},
    {model_step_set, 4},
};

#define ALL_WEIGHTS 52

static void
take_client_step(struct model *m, int s)
{
    uint32_t at = model_random(m, ALL_WEIGHTS), i = 0;

    for (; at >= client_steps[i].weight; i++)
        at -= client_steps[i].weight;
    client_steps[i].take(m, s);
}

static void
try_step(struct model *m)
{
    uint32_t what = model_random(m, 20);
    int s = some_client(m);

    if (m->restarts && model_random(m, m->turning ? 20 : 40) == 0) {
        saved_settle_exits(&m->h);
        model_step_kill(m);
    } else if (m->returning && model_random(m, 4) == 0)
        model_step_return(m);
    else if (!m->restarts && model_random(m, 40) == 0)
        model_step_reconfigure(m);
    else if (what < 3 || s == M_NONE)
        model_step_connect(m);
    else if (what == 3)
        step_hangup(m);
    else if (what < 9)
        step_finish(m);
    else if (what == 9)
        step_tick(m);
    else if (m->turning && model_random(m, 2))
        model_step_turn(m, s);
    else if (m->joins && model_random(m, 4))
        model_step_channel(m, s);
    else if (m->crowded && model_random(m, 4))
        model_step_use(m, s);
    else if (model_random(m, 8) == 0)
        model_step_part(m, s);
    else
        take_client_step(m, s);
}

void
model_step(struct model *m)
{
    int before = m->n_steps;

    m->has_rested = false;
    for (int i = 0; i < 100 && m->n_steps == before; i++)
        try_step(m);
    if (m->n_steps == before)
        model_note(m, "nothing");
}
