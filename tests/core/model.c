/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

#include "books.h"
#include "caid_test.h"

/* xorshift64*: seeds make histories repeatable */
uint32_t
model_random(struct model *m, uint32_t below)
{
    m->random ^= m->random >> 12;
    m->random ^= m->random << 25;
    m->random ^= m->random >> 27;
    return (uint32_t)((m->random * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % below;
}

const char *
model_pool_name(int pool)
{
    static const char *const names[M_POOLS] = {"uid:1000", "uid:1001", "open", "shared"};

    return names[pool];
}

const char *
model_name(int name)
{
    static const char *const names[M_NAMES] = {"a", "ab", "ü"};

    return names[name];
}

bool
model_may(const struct model *m, const struct m_slot *slot, int pool, int what)
{
    const struct core_pool_config *p = model_pool(m, pool);
    int class;

    if (pool < 2)
        return slot->uid == 0 || slot->uid == (uid_t)(1000 + pool);
    if (!p || slot->uid == 0)
        return p;
    class = slot->uid == p->uid ? 6 : slot->gid == p->gid ? 3 : 0;
    return (int)(p->mode >> class) & what;
}

bool
model_refuse_writer(const struct model *m, struct m_request *r, const struct m_slot *slot,
                    int pool, bool there)
{
    bool writes = model_may(m, slot, pool, 2);

    return model_refuse(r, !writes && model_may(m, slot, pool, 4), ERR(PERMISSION)) ||
           model_refuse(r, !writes || !there, ERR(NOT_FOUND));
}

struct m_array *
model_find(struct model *m, int pool, int name)
{
    int i = m->names[pool][name].array;

    return i == M_NONE ? NULL : &m->arrays[i];
}

bool
model_is_held_before(const struct model *m, const struct m_array *array)
{
    for (size_t i = 0; i < m->h.n_holds; i++)
        if (m->h.holds[i].block == array->block && m->h.holds[i].conn <= m->before)
            return true;
    return false;
}

/* A part that lingers keeps its whole, and an array its companion: those may be there as long. So
 * may what a client has that is not back yet, and a part as long as that lives. */
void
model_settle(struct model *m, struct m_array *array)
{
    bool was_alive = array->alive;

    array->alive = array->name != M_NONE || array->n_leases || array->n_departed ||
                   array->n_parts || array->keeper != M_NONE || array->n_sets;
    if (array->alive || !was_alive)
        return;
    model_channel_end(m, (int)(array - m->arrays));
    array->fenced |= array->is_old && model_is_held_before(m, array);
    if (array->whole != M_NONE) {
        struct m_array *whole = &m->arrays[array->whole];
        whole->n_parts--;
        whole->fenced |= array->fenced;
        model_settle(m, whole);
    }
    if (array->companion != M_NONE) {
        struct m_array *companion = &m->arrays[array->companion];
        companion->keeper = M_NONE;
        companion->fenced |= array->fenced;
        companion->was_kept |= array->fenced || m->returning;
        model_settle(m, companion);
    }
    for (int k = 0; k < M_KEYS && array->is_set; k++) {
        if (array->members[k] == M_NONE)
            continue;
        struct m_array *member = &m->arrays[array->members[k]];
        member->n_sets--;
        member->fenced |= array->fenced || m->returning; /* the core may keep the set */
        model_settle(m, member);
    }
}

void
model_name_gone(struct model *m, int pool, int name)
{
    struct m_array *array = model_find(m, pool, name);

    if (!array)
        return;
    m->names[pool][name].array = M_NONE;
    array->name = M_NONE;
    model_settle(m, array);
}

void
model_name_taken(struct model *m, int i, int name, uint64_t generation)
{
    struct m_array *array = &m->arrays[i];
    struct m_name *n = &m->names[array->pool][name];

    EXPECT(m, generation > n->highest, "generation %llu of \"%s\" in \"%s\" again",
           (unsigned long long)generation, model_name(name), model_pool_name(array->pool));
    n->highest = generation;
    n->array = i;
    n->creating = M_NONE;
    array->name = array->last_name = name;
    array->generation = generation;
    model_vacates_end(m, i);
}

void
model_lease_gone(struct model *m, struct m_slot *slot, int i)
{
    struct m_array *array = &m->arrays[slot->leases[i].array];

    model_brackets_lease_gone(m, (int)(slot - m->slots), slot->leases[i].lease);
    *(slot->gone ? &array->n_departed : &array->n_leases) -= 1;
    slot->leases[i] = slot->leases[--slot->n_leases];
    model_vacates_end(m, (int)(array - m->arrays));
    model_settle(m, array);
}

static void
lease_add(struct model *m, struct m_slot *slot, uint64_t lease, int array, bool readonly)
{
    cr_assert_lt(slot->n_leases, M_LEASES);
    slot->leases[slot->n_leases++] =
        (struct m_lease){.lease = lease, .array = array, .readonly = readonly};
    m->arrays[array].n_leases++;
}

/* ---- requests and their replies ---- */

struct m_request *
model_ask(struct model *m, int slot, enum msg_method method)
{
    cr_assert_lt(m->n_requests, M_REQUESTS);
    struct m_request *request = &m->requests[m->n_requests++];
    *request = (struct m_request){.id = m->h.next_id + 1,
                                  .slot = slot,
                                  .method = method,
                                  .pool = M_NONE,
                                  .name = M_NONE,
                                  .companion = M_NONE,
                                  .set = M_NONE};
    return request;
}

void
model_drop_requests(struct model *m, int slot)
{
    for (int i = m->n_requests; i-- > 0;) {
        struct m_request *r = &m->requests[i];
        if (r->slot != slot)
            continue;
        if (r->method == MSG_CREATE && r->name != M_NONE && !r->must_fail)
            m->names[r->pool][r->name].creating = M_GHOST;
        m->n_orphans += r->method == MSG_CREATE && r->name == M_NONE;
        model_member_asks_no_more(m, r);
        *r = m->requests[--m->n_requests];
    }
}

static int
array_add(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    cr_assert_lt(m->n_arrays, M_ARRAYS);
    m->arrays[m->n_arrays] = (struct m_array){.alive = true,
                                              .pool = r->pool,
                                              .name = M_NONE,
                                              .last_name = M_NONE,
                                              .label = r->label,
                                              .stamp = reply->stamp,
                                              .nbytes = r->nbytes,
                                              .span = r->span,
                                              .id = reply->arrays[0].number,
                                              .block = reply->block,
                                              .offset = reply->offset,
                                              .uid = m->slots[r->slot].uid,
                                              .extent = r->extent,
                                              .is_exclusive = r->is_exclusive,
                                              .is_device = r->is_device,
                                              .is_pinned = r->is_pinned,
                                              .companion = M_NONE,
                                              .keeper = M_NONE,
                                              .whole = M_NONE,
                                              .publisher = M_NONE,
                                              .members = {M_NONE, M_NONE}};
    return m->n_arrays++;
}

void
model_granted(struct model *m, const struct m_request *r, uint64_t lease, int array)
{
    m->slots[r->slot].granted = (__typeof__(m->slots[0].granted)){
        .request = r->id,
        .method = r->method,
        .secret = r->label,
        .lease = lease,
        .generation = m->arrays[array].generation,
        .array = array,
        .readonly = r->readonly,
    };
}

static void
created(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    int array = array_add(m, r, reply);

    EXPECT(m, reply->arrays[0].nbytes == r->nbytes, "another size");
    EXPECT(m, !reply->block == !r->nbytes, "no memory");
    lease_add(m, &m->slots[r->slot], reply->lease, array, false);
    if (r->name != M_NONE) {
        model_name_taken(m, array, r->name, reply->generation);
        model_granted(m, r, reply->lease, array);
    }
    m->arrays[array].expires_ns = r->expires_ns;
}

/* Which array it is: what the client reads there has to be what its creator wrote. */
static int
array_of(struct model *m, const struct m_request *r, const struct h_array *a)
{
    for (int i = 0; i < m->n_arrays; i++) {
        const struct m_array *array = &m->arrays[i];
        if (array->id != a->number)
            continue;
        EXPECT(m, array->label == strtoull(a->metadata, NULL, 10), "another one's metadata");
        cr_assert_eq(array->pool, r->pool, "an array of another pool (I1)");
        cr_assert_eq(array->nbytes, a->nbytes);
        cr_assert_eq(array->stamp, a->stamp, "what was written there is not there any more");
        cr_assert(array->block == a->block && array->offset == a->offset, "another place");
        return i;
    }
    EXPECT(m, false, "an array that nobody made");
    return M_NONE;
}

static void
opened(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    for (uint32_t i = 0; i < reply->n_arrays && i < ARRAY_SIZE(reply->arrays); i++) {
        int array = array_of(m, r, &reply->arrays[i]);
        if (array == M_NONE) /* blind: its creator was not told of it */
            continue;
        EXPECT(m, m->arrays[array].alive, "a dead array was opened");
        int says = r->set == M_NONE ? array : r->set;
        EXPECT(m, m->arrays[says].generation == reply->arrays[i].generation,
               "another generation");
        if (i == 0)
            model_check_layout(m, array, reply->layout);
        lease_add(m, &m->slots[r->slot], reply->arrays[i].lease, array, r->readonly);
        if (r->method == MSG_TAKE && !r->keeps)
            model_granted(m, r, reply->arrays[i].lease, array);
    }
}

static void
published(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    int array = (int)r->seen;
    struct m_array *a = &m->arrays[array], *old = model_find(m, r->pool, r->name);

    if (old)
        EXPECT(m, reply->generation == old->generation + 1 || a->is_set,
               "not the next generation");
    a->n_leases++; /* between its names nobody need hold it */
    if (a->name != M_NONE && a->name != r->name)
        model_name_gone(m, a->pool, a->name);
    if (old != a)
        model_name_gone(m, r->pool, r->name);
    if (r->label)
        a->label = r->label;
    if (r->companion != M_NONE) {
        a->companion = r->companion;
        m->arrays[r->companion].keeper = array;
    }
    model_name_taken(m, array, r->name, reply->generation);
    if (r->method == MSG_PUBLISH) /* a rename keeps it */
        a->expires_ns = r->expires_ns;
    a->n_leases--;
}

static void
told(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    EXPECT(m, reply->generation != r->seen, "no news");
    m->told[m->n_told].pool = r->pool;
    m->told[m->n_told].name = r->name;
    m->told[m->n_told].generation = reply->generation;
    m->told[m->n_told++].seen = r->seen;
}

static void
answered(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    if (r->method == MSG_CREATE && r->name != M_NONE && !r->must_fail)
        m->names[r->pool][r->name].creating = r->was_ghost && reply->error ? M_GHOST : M_NONE;
    if (r->method == MSG_BEGIN) {
        model_begin_answered(m, r, reply);
        return;
    }
    if (r->method == MSG_JOIN || r->method == MSG_MEMBERS) {
        model_channel_answered(m, r, reply);
        return;
    }
    uint32_t unsure = m->returning ? (1 << PROTO_ERR_ABANDONED) | (1 << PROTO_ERR_STALE) : 0;
    if (reply->error) {
        bool stopping = m->stopped && reply->error == PROTO_ERR_SHUTDOWN;
        EXPECT(m, stopping || (r->may_fail | unsure) & UINT32_C(1) << reply->error,
               "refused with %s: %s", proto_error_name(reply->error), reply->text);
        return;
    }
    EXPECT(m, !r->must_fail || r->may_fail & unsure, "%s was not refused",
           msg_method_name(r->method));
    switch (r->method) {
    case MSG_CREATE: created(m, r, reply); break;
    case MSG_OPEN:
    case MSG_OPEN_COMPANION: opened(m, r, reply); break;
    case MSG_VACATE: model_vacated(m, r, reply->lease); break;
    case MSG_EXPORT: books_exported(&m->h, m->arrays[r->seen].block); break;
    case MSG_STAGE: model_staged(m, r); break;
    case MSG_STAGE_PARTS: model_parts_staged(m, r, reply); break;
    case MSG_SEND: model_ticket_add(m, r, (int)r->seen, r->readonly); break;
    case MSG_WITHDRAW: model_withdrawn(m, r, reply->n_entries); break;
    case MSG_TAKE:
        opened(m, r, reply);
        model_taken(m, r);
        break;
    case MSG_PUBLISH:
    case MSG_RENAME: published(m, r, reply); break;
    case MSG_EXPIRE: m->arrays[r->seen].expires_ns = r->expires_ns; break;
    case MSG_PUBLISH_PART: model_part_published(m, r, reply); break;
    case MSG_PARTS: model_parts_told(m, r, reply); break;
    case MSG_UNLINK: model_name_gone(m, r->pool, r->name); break;
    case MSG_WATCH: told(m, r, reply); break;
    case MSG_DEFER: m->slots[r->slot].deferring += r->seen ? 1 : -1; break;
    default: break;
    }
}

static void
on_reply(struct harness *h, uint64_t conn, const struct h_reply *reply)
{
    struct model *m = h->userdata;

    for (int i = 0; i < m->n_requests; i++) {
        if (m->requests[i].id != reply->id)
            continue;
        struct m_request request = m->requests[i];
        cr_assert_eq(m->slots[request.slot].conn, conn, "somebody else's answer");
        m->requests[i] = m->requests[--m->n_requests];
        answered(m, &request, reply);
        return;
    }
    cr_assert_eq(conn, m->talks, "an answer to what is not asked, or answered already");
}

/* ---- after each step ---- */

/* Only those who broke the rules are closed (I6); where allocations fail, who was served then. */
static void
check_conns(struct model *m)
{
    for (int i = 0; i < M_SLOTS; i++) {
        struct m_slot *slot = &m->slots[i];
        if (!slot->conn || slot->gone || !m->h.closed[slot->conn] || slot->offended)
            continue;
        cr_assert(m->blind, "connection %llu was closed: %s", (unsigned long long)slot->conn,
                  m->h.reasons[slot->conn]);
        cr_assert_str_eq(m->h.reasons[slot->conn], "out of memory");
        m->n_out_of_memory++;
        slot->offended = true;
        model_drop_requests(m, i);
    }
}

static uint64_t
generation_now(struct model *m, int pool, int name)
{
    const struct m_array *array = model_find(m, pool, name);

    return array ? array->generation : 0;
}

static void
check_watches(struct model *m)
{
    for (int i = 0; i < m->n_told; i++)
        EXPECT(m, m->told[i].generation == generation_now(m, m->told[i].pool, m->told[i].name),
               "a watch tells of a generation that is not there");
    m->n_told = 0;
    for (int i = 0; i < m->n_requests; i++) {
        const struct m_request *r = &m->requests[i];
        if (r->method == MSG_WATCH)
            EXPECT(m, generation_now(m, r->pool, r->name) == r->seen, "a watch is not told");
    }
}

/* Somebody is, who has not hung up. */
static bool
is_being_closed(const struct model *m)
{
    for (int i = 0; i < M_SLOTS; i++)
        if (m->slots[i].offended && !m->slots[i].gone)
            return true;
    return false;
}

/* Creates of clients that have gone go with them. */
static void
check_ghosts(struct model *m)
{
    if (core_is_behind(m->h.core) || is_being_closed(m))
        return;
    m->n_orphans = 0;
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            if (m->names[p][n].creating == M_GHOST)
                m->names[p][n].creating = M_NONE;
}

static void
check_counts(struct model *m)
{
    struct core_counts counts = h_counts(&m->h);
    uint64_t arrays = 0, lingering = 0, names = 0, leases = 0, conns = 0, watches = 0;

    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++) {
            if (m->names[p][n].creating != M_NONE)
                return; /* is counted as well, or is not any more */
            names += m->names[p][n].array != M_NONE;
        }
    for (int i = 0; i < m->n_requests; i++) {
        if (m->requests[i].method == MSG_CREATE)
            return;
        watches += m->requests[i].method == MSG_WATCH ? 1 : (uint64_t)m->requests[i].n_vacates;
    }
    for (int i = 0; i < m->n_arrays; i++) {
        arrays += m->arrays[i].alive;
        lingering += !m->arrays[i].alive && m->arrays[i].fenced;
    }
    for (int i = 0; i < M_SLOTS; i++)
        if (m->slots[i].conn && !m->slots[i].gone) {
            conns++;
            leases += (uint64_t)m->slots[i].n_leases;
        }
    leases += (uint64_t)m->n_tickets;
    cr_assert_eq(counts.names, names);
    cr_assert_eq(counts.leases, leases);
    cr_assert_eq(counts.connections, conns);
    cr_assert_leq(arrays, counts.arrays);
    cr_assert_leq(counts.arrays, arrays + lingering + (uint64_t)m->n_orphans);
    if (!is_being_closed(m)) /* its watches are there until it hangs up */
        cr_assert_eq(counts.watches, watches);
}

/* What is recorded is what there is (I9). */
static void
check_records(struct model *m)
{
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            EXPECT(m,
                   saved_name(&m->h, model_pool_name(p), model_name(n)) ==
                       (m->names[p][n].array != M_NONE),
                   "\"%s\" in \"%s\" is recorded, or is there, but not both", model_name(n),
                   model_pool_name(p));
}

/* Whether there may be memory that is free when fences have passed. */
static bool
may_linger(const struct model *m)
{
    for (int i = 0; i < M_ARRAYS; i++)
        if (!m->arrays[i].alive && m->arrays[i].fenced)
            return true;
    return false;
}

/* When the driver has nothing to do, nothing waits for it, but creates for memory that lingers; and
 * those whose turn had not come when the core was stopped. */
static void
check_progress(struct model *m)
{
    bool lingering = may_linger(m);

    if (m->h.n_jobs || m->stopped || m->returning)
        return;
    for (int i = 0; i < m->n_requests; i++)
        cr_assert(m->requests[i].method == MSG_WATCH || m->requests[i].method == MSG_BEGIN ||
                      m->requests[i].method == MSG_PARTS ||
                      m->requests[i].method == MSG_VACATE ||
                      m->requests[i].method == MSG_JOIN ||
                      m->requests[i].method == MSG_MEMBERS ||
                      (m->requests[i].method == MSG_CREATE && lingering),
                  "%s waits for nothing", msg_method_name(m->requests[i].method));
}

static void
check(struct model *m)
{
    if (h_known)
        return;
    check_conns(m);
    check_watches(m);
    if (!core_is_whole(m->h.core))
        return; /* who asks waits: harness.c */
    check_records(m);
    model_check_brackets(m);
    model_check_parts(m);
    model_check_vacates(m);
    check_progress(m);
    model_check_channels(m, !core_is_behind(m->h.core) && !is_being_closed(m));
    check_ghosts(m);
    if (!m->blind && !m->returning)
        check_counts(m);
}

/* ---- a history ---- */

static struct model *tweaking;

static void
tweak(struct core_config *config)
{
    model_choose(tweaking, config);
    config->threads = 1 + model_random(tweaking, H_JOBS);
    config->n_devices = 1 + model_random(tweaking, 2);
}

static void
begin(struct model *m, uint64_t seed, bool blind)
{
    memset((char *)m + sizeof(m->h), 0, sizeof(*m) - sizeof(m->h)); /* h_init() does the rest */
    m->seed = seed;
    m->random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    tweaking = m;
    h_init(&m->h, tweak);
    if (seed % 3 == 0)
        core_set_pieces(m->h.core, 1);
    m->blind = blind;
    m->h.lenient = blind;
    m->h.on_reply = on_reply;
    m->h.userdata = m;
    m->h.on_page_gone = model_page_gone;
    m->running = true;
    m->crowded = model_random(m, 2);
    m->restarts = !blind && model_random(m, 2);
    for (int i = 0; i < H_DEVICES; i++)
        m->h.capacity[i] = (uint64_t[]){6 << 20, 12 << 20, H_MEMORY}[model_random(m, 3)];
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            m->names[p][n].array = m->names[p][n].creating = M_NONE;
}

/* All clients go; what they have created by name is there, and nothing else. */
static void
end(struct model *m)
{
    uint64_t names = 0;

    if (m->returning)
        model_return_all(m);
    for (int i = 0; i < M_SLOTS; i++)
        if (m->slots[i].conn)
            model_leave(m, i, true, true);
    h_finish_all(&m->h);
    check(m);
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            names += m->names[p][n].array != M_NONE;
    EXPECT(m, h_counts(&m->h).names == names, "%llu names are there, not %llu",
           (unsigned long long)h_counts(&m->h).names, (unsigned long long)names);
    m->h.on_reply = NULL;
    if (m->stopped) {
        core_free(m->h.core);
        saved_deinit(&m->h);
    } else {
        h_deinit(&m->h);
    }
    m->running = false;
}

void
model_run(struct model *m, uint64_t seed, bool blind)
{
    begin(m, seed, blind);
    if (m->crowded)
        model_crowd(m);
    int n = 20 + (int)model_random(m, M_STEPS - 20), stop = (int)model_random(m, 16 * n);
    while (m->n_steps < n) {
        if (m->n_steps >= stop && !m->stopped && !m->returning && core_is_whole(m->h.core)) {
            core_stop(m->h.core);
            m->stopped = true;
        }
        model_step(m);
        check(m);
        if (model_random(m, 8) == 0)
            saved_renew(&m->h);
        if (model_random(m, 8) == 0)
            saved_check(&m->h);
    }
    end(m);
}

void
model_report(const struct model *m)
{
    if (!m->running)
        return;
    fprintf(stderr, "history of seed %llu, run it by CAID_TEST_SEED=%llu:\n",
            (unsigned long long)m->seed, (unsigned long long)m->seed);
    for (int i = 0; i < m->n_steps; i++)
        fprintf(stderr, "  %2d %s\n", i, m->steps[i]);
}
