/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a history that use arrays: brackets, pages, named timelines.
 */
#include <stdio.h>

#include "books.h"
#include "caid_test.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))

#define NO_LEASE (UINT64_C(1) << 40)

/* ---- brackets ---- */

static bool
has_claim(const struct m_bracket *b, int array, const struct m_range *range)
{
    for (int i = 0; i < b->n_claims; i++)
        if (b->claims[i].array == array && model_overlap(&b->claims[i].range, range))
            return true;
    return false;
}

/* All of it, or some of its quarters. */
static struct m_range
choose_range(struct model *m, const struct m_array *array)
{
    uint64_t quarter = array->nbytes / 4;
    uint32_t from = model_random(m, 4), end = from + 1 + model_random(m, 4 - from);

    if (!quarter || model_random(m, 2) || (from == 0 && end == 4))
        return (struct m_range){0, UINT64_MAX};
    return (struct m_range){from * quarter, end * quarter};
}

/* Some of the client's leases; now and then what is wrong. */
static void
choose_claims(struct model *m, struct m_bracket *b, struct m_request *r)
{
    const struct m_slot *slot = &m->slots[b->slot];
    uint32_t max = 1 + model_random(m, M_CLAIMS), writes = model_random(m, 3);

    for (uint32_t i = 0; i < max; i++) {
        const struct m_lease *lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
        bool write = writes == 0 || (writes == 1 && model_random(m, 2));
        struct m_range range = choose_range(m, &m->arrays[lease->array]);
        if (has_claim(b, lease->array, &range) && model_random(m, 20))
            continue;
        if (write && lease->readonly && model_random(m, 20))
            write = false;
        if (has_claim(b, lease->array, &range))
            r->may_fail |= ERR(INVALID);
        if (write && lease->readonly)
            r->may_fail |= ERR(PERMISSION);
        b->claims[b->n_claims++] = (struct m_claim){.array = lease->array,
                                                    .lease = lease->lease,
                                                    .range = range,
                                                    .write = write};
    }
    r->must_fail = r->may_fail != 0;
}

static bool
is_used(const struct model *m, int slot, uint64_t id)
{
    for (int i = 0; i < m->n_brackets; i++)
        if (m->brackets[i].slot == slot && m->brackets[i].id == id)
            return true;
    return false;
}

/* What comes of it at once, or M_NONE: it waits. */
static void
expect_begin(struct model *m, const struct m_bracket *b, struct m_request *r, bool nowait)
{
    bool waits = !r->must_fail && !model_all_ready(m, b, false);

    r->may_fail |= ERR_LIMITS;
    if (!waits)
        return;
    if (model_is_uncertain(m))
        r->may_fail |= ERR(DEADLOCK);
    if (model_is_deadlock(m, b)) {
        r->may_fail |= ERR(DEADLOCK);
        r->must_fail = !model_is_uncertain(m);
    }
    model_refuse(r, nowait, ERR(TIMEOUT));
}

static bool
has_lease(const struct m_slot *slot, uint64_t lease)
{
    for (int i = 0; i < slot->n_leases; i++)
        if (slot->leases[i].lease == lease)
            return true;
    return false;
}

static bool
has_range(const struct m_bracket *b, bool write)
{
    for (int i = 0; i < b->n_claims; i++)
        if (b->claims[i].write == write && b->claims[i].range.end != UINT64_MAX)
            return true;
    return false;
}

void
model_send_begin(struct model *m, const struct m_bracket *b, struct msg_begin_params params)
{
    uint64_t reads[M_CLAIMS], writes[M_CLAIMS], ranges[2][2 * M_CLAIMS];
    struct msg_u64s *of[] = {&params.read_ranges, &params.write_ranges};

    params.bracket = b->id;
    params.thread = b->thread;
    params.read.v = reads;
    params.write.v = writes;
    for (int i = 0; i < 2; i++)
        *of[i] = (struct msg_u64s){.v = ranges[i]};
    for (int i = 0; i < b->n_claims; i++) {
        const struct m_claim *claim = &b->claims[i];
        /* another one has the number now */
        bool is_reused = claim->gone && has_lease(&m->slots[b->slot], claim->lease);
        ranges[claim->write][of[claim->write]->n++] = claim->range.from;
        ranges[claim->write][of[claim->write]->n++] =
            claim->range.end == UINT64_MAX ? 0 : claim->range.end;
        if (claim->write)
            writes[params.write.n++] = is_reused ? NO_LEASE : claim->lease;
        else
            reads[params.read.n++] = is_reused ? NO_LEASE : claim->lease;
    }
    for (int i = 0; i < 2; i++)
        of[i]->n = has_range(b, i) ? of[i]->n : 0;
    if (params.again) /* in the books it has not ended */
        h_request(&m->h, m->slots[b->slot].conn, MSG_BEGIN, &params);
    else
        h_begin_as(&m->h, m->slots[b->slot].conn, params);
}

static void
step_begin(struct model *m, int s)
{
    static const uint64_t timeouts[] = {0, 0, 0, H_AGE_NS / 2, H_AGE_NS * 3};
    uint64_t timeout_ns = timeouts[model_random(m, ARRAY_SIZE(timeouts))];
    bool nowait = model_random(m, 6) == 0;

    if (!m->slots[s].n_leases || m->n_brackets == M_BRACKETS)
        return;
    struct m_request *r = model_ask(m, s, MSG_BEGIN);
    struct m_bracket b = {.slot = s,
                          .id = r->id,
                          .request = r->id,
                          .thread = model_random(m, 3),
                          .waiting = true,
                          .order = ++m->n_begun,
                          .deadline_ns = timeout_ns ? m->h.now_ns + timeout_ns : UINT64_MAX};
    choose_claims(m, &b, r);
    if (m->n_brackets && model_random(m, 30) == 0)
        b.id = m->brackets[0].id;
    model_refuse(r, is_used(m, s, b.id), ERR(INVALID));
    for (int i = 0; i < b.n_claims; i++)
        b.claims[i].nested = !b.claims[i].write && model_is_nested(m, &b, &b.claims[i]);
    model_note(m, "slot %d: begin %llu, %d arrays, first %d for %s%s", s,
               (unsigned long long)b.id, b.n_claims, b.claims[0].array,
               b.claims[0].write ? "writing" : "reading", nowait ? ", no wait" : "");
    m->brackets[m->n_brackets++] = b;
    expect_begin(m, &m->brackets[m->n_brackets - 1], r, nowait);
    model_send_begin(m, &b,
                     (struct msg_begin_params){.timeout_ns = timeout_ns, .nowait = nowait});
}

bool
model_is_dropped(const struct model *m, uint64_t page)
{
    for (int i = 0; i < m->n_dropped; i++)
        if (m->dropped[i] == page)
            return true;
    return false;
}

uint64_t
model_some_page(struct model *m, uint64_t conn, bool has_tail)
{
    uint32_t first = m->h.n_pages ? model_random(m, (uint32_t)m->h.n_pages) : 0;

    for (size_t i = 0; i < m->h.n_pages; i++) {
        const struct h_page *page = &m->h.pages[(first + i) % m->h.n_pages];
        if (page->conn == conn && !timeline_is_dead(page->slots) &&
            has_tail == (page->size > TIMELINE_PAGE_BYTES) && !model_is_dropped(m, page->id))
            return page->id;
    }
    return 0;
}

void
model_ended(struct model *m, const struct m_bracket *b, const struct msg_end_params *p)
{
    for (int i = 0; i < b->n_claims && !p->undone; i++) {
        const struct m_claim *claim = &b->claims[i];
        if (claim->gone)
            continue;
        if (claim->write) {
            model_drop_fences(m, claim);
            if (p->abandon)
                model_tear(&m->arrays[claim->array], &claim->range);
            else
                model_heal(&m->arrays[claim->array], &claim->range);
        }
        if (p->value)
            model_fence_add(m, claim, p);
    }
}

static void
step_end(struct model *m, int s)
{
    uint32_t first = m->n_brackets ? model_random(m, (uint32_t)m->n_brackets) : 0;
    struct m_bracket *b = NULL;

    for (int i = 0; i < m->n_brackets && !b; i++) {
        struct m_bracket *next = &m->brackets[(first + (uint32_t)i) % (uint32_t)m->n_brackets];
        b = next->slot == s && !next->waiting ? next : NULL;
    }
    if (!b || m->n_fences + M_CLAIMS > M_FENCES)
        return;
    struct msg_end_params params = {.bracket = b->id,
                                    .undone = model_random(m, 8) == 0,
                                    .abandon = model_random(m, 8) == 0};
    params.page = model_random(m, 4) ? model_some_page(m, m->slots[s].conn, false) : 0;
    params.slot = model_random(m, 2);
    if (params.page)
        params.value = h_submit(&m->h, params.page, params.slot);
    model_note(m, "slot %d: end %llu at %llu of page %llu%s%s", s, (unsigned long long)b->id,
               (unsigned long long)params.value, (unsigned long long)params.page,
               params.undone ? ", undone" : "", params.abandon ? ", abandons" : "");
    model_ended(m, b, &params);
    model_bracket_gone(m, b);
    h_end_as(&m->h, m->slots[s].conn, params);
}

static void
step_discard(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases || m->returning)
        return;
    const struct m_lease *lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    struct m_request *r = model_ask(m, s, MSG_DISCARD);
    model_note(m, "slot %d: discard %d", s, lease->array);
    r->must_fail = lease->readonly;
    r->may_fail = lease->readonly ? ERR(PERMISSION) : 0;
    if (!lease->readonly) {
        for (int i = m->n_fences; i-- > 0;)
            if (m->fences[i].array == lease->array && m->fences[i].write &&
                model_fence_state(m, &m->fences[i]) == FENCE_LOST)
                m->fences[i] = m->fences[--m->n_fences];
        model_heal(&m->arrays[lease->array], &(struct m_range){0, UINT64_MAX});
    }
    h_discard(&m->h, slot->conn, lease->lease);
}

static void
step_cancel_begin(struct model *m, int s)
{
    for (int i = 0; i < m->n_brackets; i++) {
        struct m_request *r = m->brackets[i].waiting ? model_request_of(m, &m->brackets[i])
                                                     : NULL;
        if (!r || r->slot != s)
            continue;
        model_note(m, "slot %d: cancel begin %u", s, r->id);
        r->may_fail = ERR(CANCELLED);
        r->must_fail = true;
        h_cancel(&m->h, m->slots[s].conn, r->id);
        return;
    }
}

/* ---- pages ---- */

static void
timeline_gone(struct model *m, uint64_t page)
{
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            if (m->timelines[p][n] == page)
                m->timelines[p][n] = 0;
}

static void
step_page(struct model *m, int s)
{
    model_note(m, "slot %d: page", s);
    model_ask(m, s, MSG_PAGE)->may_fail = ERR_LIMITS;
    h_page_new(&m->h, m->slots[s].conn);
}

/* One of its own, or of others. */
static void
step_drop_page(struct model *m, int s)
{
    uint64_t conn = m->slots[s].conn,
             page = model_some_page(m, conn, m->joins && model_random(m, 2));

    if (model_random(m, 2))
        page = 0;
    for (size_t i = 0; i < m->h.n_page_holds && !page; i++)
        if (m->h.page_holds[i].conn == conn)
            page = m->h.page_holds[i].block;
    if (!page)
        return;
    model_note(m, "slot %d: drop page %llu", s, (unsigned long long)page);
    if (h_page(&m->h, page)->conn == conn) {
        m->dropped[m->n_dropped++] = page;
        timeline_gone(m, page);
    }
    h_drop_page(&m->h, conn, page);
}

/* Values land: the daemon is not told. */
static void
step_land(struct model *m)
{
    if (!m->h.n_pages)
        return;
    const struct h_page *page = &m->h.pages[model_random(m, (uint32_t)m->h.n_pages)];
    for (size_t i = 0; i < TIMELINE_SLOTS; i++) {
        struct timeline_slot *slot = &page->slots[i];
        uint64_t done = atomic_load(&slot->done), left = timeline_submitted(slot) - done;
        if (!timeline_is_dead(slot) && left)
            atomic_store(&slot->done, done + 1 + model_random(m, (uint32_t)left));
    }
    model_note(m, "values land in page %llu", (unsigned long long)page->id);
}

/* The client's context has died: it says so in its pages. */
static void
step_kill(struct model *m, int s)
{
    if (model_random(m, 4) || !model_some_page(m, m->slots[s].conn, m->joins))
        return;
    model_note(m, "slot %d: its context dies", s);
    for (size_t i = 0; i < m->h.n_pages; i++)
        for (size_t j = 0; j < TIMELINE_SLOTS && m->h.pages[i].conn == m->slots[s].conn; j++)
            timeline_kill(&m->h.pages[i].slots[j]);
}

/* ---- named timelines ---- */

void
model_timelines_hangup(struct model *m, uint64_t conn)
{
    for (size_t i = 0; i < m->h.n_pages; i++)
        if (m->h.pages[i].conn == conn)
            timeline_gone(m, m->h.pages[i].id);
}

void
model_timelines_stay(struct model *m, uint64_t conn)
{
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            if (m->timelines[p][n] && h_page(&m->h, m->timelines[p][n])->conn == conn)
                m->left_timelines[p][n] = true;
}

static bool
has_name(const struct model *m, uint64_t page)
{
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            if (m->timelines[p][n] == page)
                return true;
    return false;
}

static void
step_timeline(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];
    int pool = (int)model_random(m, M_POOLS), name = (int)model_random(m, M_NAMES);
    uint64_t page = model_some_page(m, slot->conn, false);

    if (!page || m->left_timelines[pool][name])
        return;
    struct m_request *r = model_ask(m, s, MSG_TIMELINE);
    model_note(m, "slot %d: timeline %s in %s", s, model_name(name), model_pool_name(pool));
    r->may_fail = ERR_LIMITS | (slot->uid == 0 && pool < 2 ? ERR(NOT_FOUND) : 0);
    if (!model_refuse_writer(m, r, slot, pool, true))
        model_refuse(r, m->timelines[pool][name] || has_name(m, page),
                     ERR(EXISTS) | ERR(INVALID));
    const struct h_reply *reply =
        h_timeline(&m->h, slot->conn, model_name(name), model_pool_name(pool), page);
    if (reply->seen && !reply->error)
        m->timelines[pool][name] = page;
}

static void
step_open_timeline(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];
    int pool = (int)model_random(m, M_POOLS), name = (int)model_random(m, M_NAMES);

    if (m->left_timelines[pool][name])
        return;
    struct m_request *r = model_ask(m, s, MSG_OPEN_TIMELINE);
    model_note(m, "slot %d: open timeline %s of %s", s, model_name(name),
               model_pool_name(pool));
    r->must_fail = !model_may(m, slot, pool, 4) || !m->timelines[pool][name];
    r->may_fail = ERR_LIMITS | (r->must_fail ? ERR(NOT_FOUND) : 0);
    const struct h_reply *reply =
        h_open_timeline(&m->h, slot->conn, model_name(name), model_pool_name(pool));
    if (reply->seen && !reply->error)
        EXPECT(m, reply->page == m->timelines[pool][name], "another timeline");
}

/* ---- all of it ---- */

static void
crowd_open(struct model *m, int s, int name, bool readonly)
{
    struct m_request *r = model_ask(m, s, MSG_OPEN);

    model_note(m, "slot %d: open %s of open", s, model_name(name));
    r->pool = 2;
    r->readonly = readonly;
    r->may_fail = ERR_LIMITS;
    h_open(&m->h, m->slots[s].conn, model_name(name), "open", readonly ? "r" : "rw");
}

/* An array of the first client's, in the pool that everybody may use. */
static void
crowd_create(struct model *m, int name, int64_t bytes)
{
    char label[24];
    struct m_request *r = model_ask(m, 0, MSG_CREATE);

    model_note(m, "slot 0: create %s in open", name == M_NONE ? "-" : model_name(name));
    r->pool = 2;
    r->name = name;
    r->label = r->id;
    r->nbytes = r->span = (uint64_t)bytes;
    r->extent = (uint64_t)bytes;
    r->is_device = true;
    r->may_fail = ERR_LIMITS | ERR(NO_MEMORY);
    if (name != M_NONE)
        m->names[2][name].creating = 0;
    snprintf(label, sizeof(label), "%u", r->id);
    h_create_as(&m->h, m->slots[0].conn, bytes,
                (struct msg_create_params){.name = msg_str_opt(
                                               name == M_NONE ? NULL : model_name(name)),
                                           .pool = MSG_STR("open"),
                                           .metadata = MSG_STR(label)});
    h_finish_all(&m->h);
}

/* Which all have open. */
static void
crowd_array(struct model *m, int name)
{
    crowd_create(m, name, m->joins && name == 0 ? M_FRAMES : 1000);
    for (int s = 1; s < M_SLOTS; s++)
        if (m->slots[s].conn && !m->slots[s].offended && model_find(m, 2, name))
            crowd_open(m, s, name, model_random(m, 4) == 0);
}

/* A part of the first one, which all have open, too. */
static void
crowd_part(struct model *m)
{
    struct m_slot *slot = &m->slots[0];

    for (int i = 0; i < slot->n_leases; i++)
        if (m->arrays[slot->leases[i].array].name == 0) {
            model_publish_part(m, 0, &slot->leases[i], 2);
            break;
        }
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].conn && !m->slots[s].offended && model_find(m, 2, 2))
            crowd_open(m, s, 2, model_random(m, 4) == 0);
}

/* Who has made versions publishes one once more, or waits until it may write one; or a client opens
 * the one that is there. */
void
model_step_turn(struct model *m, int s)
{
    uint32_t what = model_random(m, 9), first = model_random(m, M_SLOTS);
    const struct m_lease *version = NULL;
    int publisher = s;

    for (uint32_t i = 0; i < M_SLOTS && !version; i++) {
        publisher = (int)((first + i) % M_SLOTS);
        version = model_some_version(m, publisher);
    }
    if (version && what == 0)
        model_publish(m, publisher, version, 2);
    else if (version && what < 3)
        model_step_vacate(m, publisher);
    else if (what == 3)
        model_step_close(m, s);
    else if (what == 4)
        model_open_generation(m, s, 2, 2);
    else if (what < 7)
        model_step_open_of(m, s);
    else if (model_find(m, 2, 2) && model_may(m, &m->slots[s], 2, 4) &&
             m->slots[s].n_leases + 8 <= M_LEASES)
        crowd_open(m, s, 2, true);
}

/* Two sets of parts, made once, as a publisher has them. */
static void
crowd_sets(struct model *m)
{
    struct m_slot *slot = &m->slots[0];

    for (int i = 0; i < 2; i++) {
        int n = slot->n_leases;
        crowd_create(m, M_NONE, 1000);
        crowd_create(m, M_NONE, 0);
        if (slot->n_leases == n + 2)
            model_stage_parts(m, 0, &slot->leases[n + 1], &slot->leases[n]);
    }
}

void
model_crowd(struct model *m)
{
    for (int i = 0; i < 4; i++)
        model_step_connect(m);
    m->joins = model_random(m, 3) == 0;
    for (int name = 0; name < 2; name++)
        if (m->slots[0].conn && !m->slots[0].offended)
            crowd_array(m, name);
    m->turning = !m->joins && model_random(m, 2);
    if (m->slots[0].conn && !m->slots[0].offended)
        (m->turning ? crowd_sets : crowd_part)(m);
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].conn && !m->slots[s].offended)
            (m->joins ? model_step_tail : step_page)(m, s);
}

bool
model_uses(const struct model *m, int slot)
{
    bool uses = false;

    for (int i = 0; i < m->n_brackets; i++)
        uses |= m->brackets[i].slot == slot;
    for (size_t i = 0; i < m->h.n_pages; i++)
        uses |= m->h.pages[i].conn == m->slots[slot].conn;
    return uses;
}

void
model_step_use(struct model *m, int s)
{
    static void (*const steps[])(struct model *, int) = {
        step_begin,        step_begin, step_begin,    step_begin,         step_begin,
        step_begin,        step_begin, step_begin,    step_end,           step_end,
        step_end,          step_end,   step_page,     step_drop_page,     step_discard,
        step_cancel_begin, step_kill,  step_timeline, step_open_timeline,
    };
    uint32_t what = model_random(m, ARRAY_SIZE(steps) + 4);

    if (what < ARRAY_SIZE(steps))
        steps[what](m, s);
    else if (what < ARRAY_SIZE(steps) + 2)
        model_step_part(m, s);
    else
        step_land(m);
}
