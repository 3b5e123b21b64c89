/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarts in histories. The core is killed, and another one takes its place. Clients that can
 * resume are away then, until they come back with what they have, exit, or are not waited for any
 * more; others go on meanwhile. As long as a client's uses are not known, the core may make
 * brackets wait, or call an array abandoned, later or earlier than the model, which knows all uses.
 * What the core must never do is checked all the time. In the end core and model agree again.
 */
#include "books.h"
#include "caid_test.h"
#include "done.h"
#include "model.h"
#include "records.h"
#include "restore.h"

#define GIVEN_UP_NS UINT64_C(31000000000)

enum {
    READ,
    WRITE,
    BLOCKS,
    PAGES,
    PARTS,
    ENDED,
    N_LISTS
};

struct lists { /* of a resume request */
    uint64_t v[N_LISTS][2 * M_LEASES + H_PAGES];
    uint32_t n[N_LISTS];
};

static void
add(struct lists *lists, int list, uint64_t value)
{
    cr_assert_lt(lists->n[list], ARRAY_SIZE(lists->v[0]));
    lists->v[list][lists->n[list]++] = value;
}

/* ---- the end of a core ---- */

/* It is not waited for: nobody knows what it does with its memory, which is nobody else's as long
 * as its process lives. */
static void
leave_behind(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (!slot->gone) {
        if (slot->offended && slot->resumes) {
            model_tickets_stay(m, s);
            model_timelines_stay(m, slot->conn);
        }
        model_hung_up(m, s);
        books_hung_up(&m->h, slot->conn);
    }
    model_brackets_exit(m, s);
    while (slot->n_leases)
        model_lease_gone(m, slot, 0);
    for (int i = m->n_fences; i-- > 0;)
        if (!m->fences[i].write && h_page(&m->h, m->fences[i].page)->conn == slot->conn)
            m->fences[i] = m->fences[--m->n_fences];
    slot->away = false;
    slot->deferring = 0;
}

/* What was under way is as if nobody had asked for it. */
static void
forget_asked(struct model *m, int s)
{
    model_drop_requests(m, s);
    for (int i = m->n_brackets; i-- > 0;) {
        struct m_bracket *b = &m->brackets[i];
        if (b->slot != s || !b->waiting)
            continue;
        books_refused(&m->h, m->slots[s].conn, b->request);
        model_bracket_gone(m, b);
    }
}

bool
model_fence_has_block(struct model *m, const struct m_fence *f)
{
    uint64_t conn = h_page(&m->h, f->page)->conn, block = m->arrays[f->array].block;

    for (size_t i = 0; i < m->h.n_holds; i++)
        if (m->h.holds[i].conn == conn && m->h.holds[i].block == block)
            return true;
    return !block;
}

/* It is done with what it wrote there, as far as the core knows, unless its context has died. */
void
model_forget(struct model *m, const struct m_slot *slot, uint64_t block)
{
    books_forgotten(&m->h, slot->conn, block);
    for (int i = m->n_fences; i-- > 0;) {
        struct m_fence *f = &m->fences[i];
        struct m_array *array = &m->arrays[f->array];
        bool is_lost = f->write && model_fence_state(m, f) == FENCE_LOST;
        if (array->block != block || h_page(&m->h, f->page)->conn != slot->conn)
            continue;
        if (is_lost)
            model_tear(array, &f->range);
        if (is_lost || f->is_doubt)
            *f = m->fences[--m->n_fences];
    }
}

static const struct m_range all = {0, UINT64_MAX};

static bool
is_away(const struct model *m, uint64_t conn)
{
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].conn == conn)
            return m->slots[s].away;
    return false;
}

static bool
is_written(const struct model *m, int array)
{
    for (int i = 0; i < m->n_brackets; i++)
        for (int c = 0; c < m->brackets[i].n_claims; c++)
            if (m->brackets[i].claims[c].array == array && m->brackets[i].claims[c].write &&
                !m->brackets[i].claims[c].gone)
                return true;
    return false;
}

/* The next core knows of each write that is on its way, and waits for all that its writer had
 * submitted; an array of which another one is open it takes for abandoned until that has ended,
 * and the core after it knows of the first write no more than of a read. Of reads it does not
 * know: it waits for those who have the memory, and come back. What lingered it has forgotten. */
static void
restore_fences(struct model *m)
{
    for (int i = m->n_fences; i-- > 0;) {
        struct m_fence *f = &m->fences[i];
        uint64_t conn = h_page(&m->h, f->page)->conn;
        uint64_t submitted = timeline_submitted(h_slot(&m->h, f->page, f->slot));
        enum fence_state state = model_fence_state(m, f);
        bool has_passed = state == FENCE_PASSED;
        bool is_alive = m->arrays[f->array].alive;
        f->is_doubt = is_alive && f->write && (f->is_doubt || m->arrays[f->array].several);
        if (f->is_doubt) {
            f->value = submitted;
            if (has_passed)
                h_land(&m->h, f->page, f->slot, submitted);
            if (has_passed || !model_fence_has_block(m, f))
                *f = m->fences[--m->n_fences];
            continue;
        }
        bool begun = is_alive && f->write && is_written(m, f->array);
        bool known = is_alive && f->write && !begun && !f->is_forgotten;
        f->is_forgotten |= begun;
        if (begun && (state == FENCE_LOST || m->arrays[f->array].mark & MARK_ABANDONED))
            model_tear(&m->arrays[f->array], &all);
        bool is_over = has_passed && timeline_is_dead(h_slot(&m->h, f->page, f->slot));
        if (has_passed && !is_over) /* which the core may have seen, or not */
            h_land(&m->h, f->page, f->slot, submitted);
        if (known && is_over && m->arrays[f->array].mark & MARK_PENDING)
            model_tear(&m->arrays[f->array], &all);
        if (known && !is_over)
            f->value = submitted, f->range = all;
        else if (!is_alive || has_passed || !is_away(m, conn) || !model_fence_has_block(m, f))
            *f = m->fences[--m->n_fences];
    }
}

/* The journal has a word for each array: it says of all of it that it is abandoned. */
static void
restore_arrays(struct model *m)
{
    for (int i = 0; i < m->n_arrays; i++) {
        struct m_array *array = &m->arrays[i];
        if (array->n_torn)
            model_tear(array, &all);
    }
}

/* What the next core reads: one that is not whole yet knows more than it has recorded. Of who was
 * writing an array it says that there are several, if there are now: once these have come back it
 * says more again, and what it took for abandoned meanwhile stays so. */
static void
read_marks(struct model *m)
{
    struct restore r;

    cr_assert_eq(restore_read(&r, m->h.journal), 0);
    for (int i = 0; i < m->n_arrays; i++) {
        struct m_array *array = &m->arrays[i];
        const struct restore_array *a = restore_find(&r, RECORD_ARRAY, array->id);
        array->mark = a ? a->mark : 0;
        array->several |= array->alive && array->mark & MARK_SEVERAL;
        if (array->several && array->mark & MARK_ABANDONED)
            model_tear(array, &all);
        array->several = array->several && array->mark & MARK_SEVERAL;
    }
    restore_deinit(&r);
}

/* The core takes an array of several for abandoned that need not be. It must not do the reverse. */
static void
settle_several(struct model *m)
{
    for (int i = 0; i < m->n_arrays; i++) {
        struct m_array *array = &m->arrays[i];
        bool is_all = false, is_abandoned = array->several && array->alive &&
                                            core_is_abandoned(m->h.core, array->id, &is_all);
        EXPECT(m, !array->several || !array->alive || !model_is_abandoned(m, i) || is_abandoned,
               "array %d is not abandoned", i);
        if (is_all)
            model_tear(array, &all);
        array->several = false;
    }
}

/* One that the core had kept, in case that it is claimed, the next one may keep for others. */
static void
age_parts(struct model *m)
{
    for (int i = 0; i < m->n_arrays; i++) {
        struct m_array *array = &m->arrays[i];
        if (array->is_old && !array->alive && m->returning)
            array->fenced = m->arrays[array->whole].fenced = true;
        array->is_old = array->whole != M_NONE;
    }
}

void
model_step_kill(struct model *m)
{
    for (size_t i = 0; i < m->h.n_memory; i++)
        if (m->h.memory[i].kind == KIND_LEGACY) /* it ends with its core: saved_check() */
            return;
    if (m->stopped || m->blind || m->h.next_conn + M_SLOTS + 2 >= H_CONNS)
        return;
    model_note(m, "the core is killed");
    model_pass(m,
               1000); /* versions of channels are times: a restart takes longer than changes */
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].conn)
            forget_asked(m, s);
    for (int p = 0; p < M_POOLS; p++)
        for (int n = 0; n < M_NAMES; n++)
            m->names[p][n].creating = M_NONE;
    m->n_orphans = 0;
    model_channels_kill(m);
    m->before = m->h.next_conn;
    age_parts(m);
    for (int s = 0; s < M_SLOTS; s++) {
        struct m_slot *slot = &m->slots[s];
        if (!slot->conn)
            continue;
        m->left_behind |= slot->offended && !slot->gone;
        slot->away = !slot->gone && !slot->offended && slot->resumes;
        slot->told = false;
    }
    read_marks(m);
    restore_fences(m);
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].conn && !m->slots[s].away)
            leave_behind(m, s);
    restore_arrays(m);
    saved_begin_restart(&m->h);
    m->returning = true;
}

/* ---- coming back ---- */

/* It says nothing of what it had open, and may have written with others. The core cannot know. */
static void
believe(struct model *m, const struct m_bracket *b)
{
    for (int i = 0; i < b->n_claims; i++)
        if (b->claims[i].write && b->claims[i].gone && m->arrays[b->claims[i].array].several)
            model_heal(&m->arrays[b->claims[i].array], &all);
}

static void
end_bracket(struct model *m, struct m_bracket *b, struct lists *lists)
{
    struct msg_end_params p = {.bracket = b->id,
                               .undone = model_random(m, 4) == 0,
                               .abandon = model_random(m, 4) == 0,
                               .page = model_some_page(m, m->slots[b->slot].conn, false)};

    if (p.page)
        p.value = h_submit(&m->h, p.page, 0);
    for (int i = 0; i < b->n_claims; i++) {
        if (!b->claims[i].write || b->claims[i].gone)
            continue;
        const uint64_t end[] = {m->arrays[b->claims[i].array].id, p.page, 0, p.value,
                                p.undone ? MSG_ENDED_UNDONE : p.abandon};
        for (size_t j = 0; j < ARRAY_SIZE(end); j++)
            add(lists, ENDED, end[j]);
    }
    books_ended(&m->h, m->slots[b->slot].conn, &p);
    believe(m, b);
    model_ended(m, b, &p);
    for (int i = 0; i < m->n_fences; i++)
        if (p.page && m->fences[i].page == p.page && m->fences[i].slot == p.slot &&
            m->fences[i].value == p.value)
            m->fences[i].is_doubt = m->arrays[m->fences[i].array].several;
    model_bracket_gone(m, b);
}

/* Ends that the core may not have heard of; those alone that wrote are told. */
static void
end_brackets(struct model *m, int s, struct lists *lists)
{
    for (int i = m->n_brackets; i-- > 0;) {
        struct m_bracket *b = &m->brackets[i];
        bool reads = false;
        for (int c = 0; c < b->n_claims; c++)
            reads |= !b->claims[c].write;
        if (b->slot == s && !reads && m->n_fences + M_CLAIMS < M_FENCES && model_random(m, 2))
            end_bracket(m, b, lists);
    }
}

static void
list_all(struct model *m, int s, struct lists *lists)
{
    const struct m_slot *slot = &m->slots[s];
    const struct harness *h = &m->h;

    for (int i = 0; i < slot->n_leases; i++) {
        add(lists, slot->leases[i].readonly ? READ : WRITE, slot->leases[i].lease);
        add(lists, slot->leases[i].readonly ? READ : WRITE,
            m->arrays[slot->leases[i].array].id);
    }
    for (size_t i = 0; i < h->n_holds; i++)
        if (h->holds[i].conn == slot->conn)
            add(lists, BLOCKS, h->holds[i].block);
    for (size_t i = 0; i < h->n_pages; i++)
        if (h->pages[i].conn == slot->conn && !model_is_dropped(m, h->pages[i].id))
            add(lists, PAGES, h->pages[i].id);
    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].publisher == s)
            add(lists, PARTS, m->arrays[i].id);
    end_brackets(m, s, lists);
}

bool
model_is_lost(const struct m_slot *slot, enum msg_method method)
{
    return slot->granted.is_lost && slot->granted.method == method;
}

static void
undo_create(struct model *m, struct m_slot *slot)
{
    const struct m_array *array = &m->arrays[slot->granted.array];

    if (!model_is_lost(slot, MSG_CREATE))
        return;
    slot->granted.is_lost = false;
    if (array->name != M_NONE && array->generation == slot->granted.generation)
        model_name_gone(m, array->pool, array->name);
}

static void
resume(struct model *m, int s, struct lists *l, bool done)
{
    struct m_slot *slot = &m->slots[s];
    const uint64_t request = slot->granted.request;
    const struct msg_resume_params p = {.read = {l->v[READ], l->n[READ]},
                                        .write = {l->v[WRITE], l->n[WRITE]},
                                        .blocks = {l->v[BLOCKS], l->n[BLOCKS]},
                                        .pages = {l->v[PAGES], l->n[PAGES]},
                                        .parts = {l->v[PARTS], l->n[PARTS]},
                                        .ended = {l->v[ENDED], l->n[ENDED]},
                                        .repeats = {&request,
                                                    done && model_is_lost(slot, MSG_TAKE)},
                                        .undo = {&request,
                                                 done && model_is_lost(slot, MSG_CREATE)},
                                        .deferring = done ? (uint64_t)slot->deferring : 0,
                                        .done = done};
    m->talks = slot->conn;
    const struct h_reply *reply = h_request(&m->h, slot->conn, MSG_RESUME, &p);

    cr_assert(reply->seen && !reply->error, "slot %d may not come back: %s", s, reply->text);
    cr_assert_eq(reply->n_parts, 0, "slot %d has lost a lease", s);
    if (done)
        undo_create(m, slot);
}

static void
begin_again(struct model *m, int s)
{
    uint64_t conn = m->slots[s].conn;

    for (int i = m->n_brackets; i-- > 0;) {
        bool left = false;
        for (int c = 0; c < m->brackets[i].n_claims; c++)
            left |= !m->brackets[i].claims[c].gone;
        if (m->brackets[i].slot != s)
            continue;
        if (!left) {
            believe(m, &m->brackets[i]);
            model_bracket_gone(m, &m->brackets[i]);
            continue;
        }
        model_send_begin(m, &m->brackets[i], (struct msg_begin_params){.again = true});
        cr_assert(m->h.replies[conn].seen && !m->h.replies[conn].error, "%s",
                  m->h.replies[conn].text);
    }
}

/* Whether it was known. */
static bool
hello(struct model *m, uint64_t conn, uint64_t token)
{
    m->talks = conn;
    const struct h_reply *reply = h_hello(&m->h, conn, token);

    cr_assert(reply->seen && !reply->error);
    return reply->resumed;
}

/* The core knows nothing of it: it had no memory. */
static void
is_new(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    for (int i = 0; i < slot->n_leases; i++)
        EXPECT(m, !m->arrays[slot->leases[i].array].nbytes, "slot %d is not known", s);
    leave_behind(m, s);
    slot->gone = false;
}

/* Closes some of what it has before it says what that is. */
static void
close_some(struct model *m, struct m_slot *slot)
{
    for (int i = slot->n_leases; i-- > 0;)
        if (model_random(m, 8) == 0) {
            books_closed(&m->h, slot->conn, slot->leases[i].lease);
            model_lease_gone(m, slot, i);
        }
}

static bool
has_room(const struct model *m)
{
    return m->h.next_conn + M_SLOTS + 2 < H_CONNS;
}

/* It has not waited for the answer, or has heard it and is cut off then. */
static void
hang_up_at_once(struct model *m, struct m_slot *slot)
{
    uint64_t conn;

    if (!has_room(m) || model_random(m, 4))
        return;
    conn = h_connect_as(&m->h, slot->uid, slot->gid, m->h.pids[slot->conn]);
    if (hello(m, conn, slot->token) && model_random(m, 2))
        slot->token = conn;
    h_hangup(&m->h, conn);
}

/* ---- a take that was not answered ---- */

/* Who has used it has heard of it. */
static bool
has_used(const struct model *m, const struct m_slot *slot, uint64_t lease)
{
    for (size_t i = 0; i < m->h.n_uses; i++)
        if (m->h.uses[i].conn == slot->conn && m->h.uses[i].lease == lease)
            return true;
    return false;
}

/* It knows the block only if it has another array there. */
static void
forget_block(struct model *m, const struct m_slot *slot, uint64_t block)
{
    for (int i = 0; i < slot->n_leases; i++)
        if (m->arrays[slot->leases[i].array].block == block)
            return;
    if (block)
        model_forget(m, slot, block);
}

/* What it was granted last it may not have heard of: it takes that again, and has what it made
 * undone. */
static void
lose_answer(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (slot->granted.is_lost || !slot->granted.request ||
        m->h.next_id - slot->granted.request >= DONE_MAX || model_random(m, 2) ||
        has_used(m, slot, slot->granted.lease))
        return;
    for (int i = 0; i < slot->n_leases; i++) {
        if (slot->leases[i].lease != slot->granted.lease ||
            slot->leases[i].array != slot->granted.array)
            continue;
        model_note(m, "slot %d has not heard of %s", s, msg_method_name(slot->granted.method));
        slot->granted.is_lost = true;
        books_closed(&m->h, slot->conn, slot->granted.lease);
        m->arrays[slot->granted.array].n_leases += slot->granted.method == MSG_TAKE;
        model_lease_gone(m, slot, i);
        forget_block(m, slot, m->arrays[slot->granted.array].block);
        return;
    }
}

void
model_take_given_up(struct model *m, struct m_slot *slot)
{
    struct m_array *array = &m->arrays[slot->granted.array];

    if (!model_is_lost(slot, MSG_TAKE))
        return;
    slot->granted.is_lost = false;
    array->n_leases--;
    model_settle(m, array);
}

static const struct h_reply *
repeat_take(struct model *m, const struct m_slot *slot)
{
    const uint64_t words[] = {slot->granted.secret, 1};
    const struct msg_take_params params = {.ticket = {words, 2},
                                           .mode =
                                               MSG_STR(slot->granted.readonly ? "r" : "rw")};
    struct msg_buf buf = {0};

    cr_assert_eq(msg_encode_request(&buf, slot->granted.request, MSG_TAKE, &params), 0);
    h_packet(&m->h, slot->conn, buf.data, buf.n);
    msg_buf_deinit(&buf);
    return &m->h.replies[slot->conn];
}

/* It asks again, and has it now, once. */
static void
take_again(struct model *m, struct m_slot *slot)
{
    struct m_array *array = &m->arrays[slot->granted.array];
    const struct h_reply *reply;

    if (!model_is_lost(slot, MSG_TAKE))
        return;
    reply = repeat_take(m, slot);
    if (reply->error) {
        cr_assert_not(model_may(m, slot, array->pool, slot->granted.readonly ? 4 : 6), "%s",
                      reply->text);
        model_take_given_up(m, slot);
        return;
    }
    cr_assert_eq(reply->arrays[0].stamp, array->stamp);
    slot->leases[slot->n_leases++] = (struct m_lease){.lease = reply->lease,
                                                      .array = slot->granted.array,
                                                      .readonly = slot->granted.readonly};
    slot->granted.is_lost = false;
    cr_assert(repeat_take(m, slot)->error, "it is taken twice");
}

/* Whether it is known: all that it has is told. `ended` stays from time to time. */
static bool
tell(struct model *m, int s, uint64_t was, struct lists *lists)
{
    struct m_slot *slot = &m->slots[s];

    slot->conn = h_connect_as(&m->h, slot->uid, slot->gid, m->h.pids[was]);
    books_moved(&m->h, was, slot->conn);
    close_some(m, slot);
    if (!hello(m, slot->conn, slot->token))
        return false;
    for (int i = 0; i < N_LISTS; i++)
        lists->n[i] = i == ENDED ? lists->n[i] : 0;
    lose_answer(m, s);
    list_all(m, s, lists);
    resume(m, s, lists, false);
    begin_again(m, s);
    return true;
}

/* It is cut off before it has said that this is all, and tells it once more. */
static bool
is_cut_off(struct model *m, struct m_slot *slot, uint64_t was)
{
    if (!has_room(m) || model_random(m, 6))
        return false;
    model_note(m, "connection %llu is cut off", (unsigned long long)slot->conn);
    if (model_random(m, 2))
        slot->token = slot->conn;
    books_moved(&m->h, slot->conn, was);
    h_hangup(&m->h, slot->conn);
    slot->conn = was;
    return true;
}

/* Whether it is known; it is cut off before it has said that this is all, and tells it once more,
 * now and then. */
static bool
tell_all(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct lists lists = {0};
    bool is_known;

    model_note(m, "slot %d comes back", s);
    slot->was = slot->conn;
    hang_up_at_once(m, slot);
    do
        is_known = tell(m, s, slot->was, &lists);
    while (is_known && is_cut_off(m, slot, slot->was));
    return is_known;
}

static void
come_back(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];
    struct lists none = {0};
    bool is_half = slot->told, is_known = is_half || tell_all(m, s);

    if (is_half) /* a step that nobody notes is no step of its own, after which all is checked */
        model_note(m, "slot %d says that this is all", s);
    slot->told = is_known && !is_half && model_random(m, 4) == 0;
    if (slot->told) {
        model_note(m, "slot %d says no more", s);
        slot->token = slot->conn;
        return;
    }
    if (!is_known) {
        is_new(m, s);
    } else if (model_random(m, 8) == 0 && has_room(m)) {
        if (model_random(m, 2)) /* else it has not heard of the new one */
            slot->token = slot->conn;
        model_step_kill(m);
        return;
    } else {
        resume(m, s, &none, true);
        if (model_random(m, 8) == 0 && has_room(m)) {
            slot->token = slot->conn;
            slot->away = false;
            model_step_kill(m);
            return;
        }
        h_repeat(&m->h, slot->was, slot->conn);
        take_again(m, slot);
    }
    slot->token = slot->conn;
    slot->away = false;
}

/* ---- until all is known ---- */

/* Who has not said by now that this is all: what it has told it keeps until its exit, as whoever
 * hangs up. */
static void
end_late(struct model *m)
{
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].told) {
            cr_assert(m->h.closed[m->slots[s].conn], "slot %d is waited for without end", s);
            m->slots[s].told = m->slots[s].away = false;
            m->slots[s].deferring = 0;
            model_leave(m, s, true, false);
        }
}

void
model_return_all(struct model *m)
{
    saved_finish(&m->h);
    for (int s = 0; s < M_SLOTS; s++)
        if (m->slots[s].away) {
            m->left_behind = true;
            if (!m->slots[s].told)
                leave_behind(m, s);
        }
    for (size_t i = 0; i < m->h.n_pages; i++)
        for (size_t j = 0; j < TIMELINE_SLOTS; j++) {
            struct timeline_slot *slot = &m->h.pages[i].slots[j];
            if (!timeline_is_dead(slot))
                atomic_store(&slot->done, timeline_submitted(slot));
        }
    for (int i = 0; i < 2; i++) {
        model_pass(m, m->left_behind ? GIVEN_UP_NS : 10000000);
        end_late(m);
        for (int s = 0; s < M_SLOTS; s++)
            model_tickets_hangup(m, M_SLOTS + s);
    }
    settle_several(m);
    m->returning = m->left_behind = false;
    memset(m->left_timelines, 0, sizeof(m->left_timelines));
    cr_assert_eq(h_reconfigure(&m->h, &m->h.config), 0);
}

void
model_step_return(struct model *m)
{
    uint32_t first = model_random(m, M_SLOTS);

    saved_settle_exits(&m->h);
    for (uint32_t i = 0; i < M_SLOTS; i++)
        if (m->slots[(first + i) % M_SLOTS].away) {
            come_back(m, (int)((first + i) % M_SLOTS));
            return;
        }
    model_note(m, "all are back");
    model_return_all(m);
}
