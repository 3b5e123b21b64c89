/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets in the model: who has an array, who waits for it in which order, what is left to wait
 * for, what is abandoned, worked out by looking at everything each time.
 */
#include <stdio.h>

#include "books.h"
#include "caid_test.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))

/* ---- fences and what they say ---- */

enum fence_state
model_fence_state(struct model *m, const struct m_fence *f)
{
    struct h_page *page = h_page(&m->h, f->page);

    return page ? timeline_state(&page->slots[f->slot], f->value) : FENCE_LOST;
}

bool
model_fence_is_going(struct model *m, const struct m_fence *f)
{
    struct h_page *page = h_page(&m->h, f->page);

    return !page || m->h.exited[page->conn];
}

bool
model_overlap(const struct m_range *a, const struct m_range *b)
{
    return a->from < b->end && b->from < a->end;
}

static bool
is_inside(const struct m_range *inner, const struct m_range *outer)
{
    return outer->from <= inner->from && inner->end <= outer->end;
}

void
model_tear(struct m_array *array, const struct m_range *range)
{
    if (range->end == UINT64_MAX) {
        array->abandoned = true;
        array->n_torn = 0;
    }
    for (int i = 0; i < array->n_torn; i++)
        if (is_inside(range, &array->torn[i]) && is_inside(&array->torn[i], range))
            return;
    if (array->abandoned)
        return;
    cr_assert_lt(array->n_torn, M_TORN);
    array->torn[array->n_torn++] = *range;
}

void
model_heal(struct m_array *array, const struct m_range *range)
{
    if (range->end == UINT64_MAX)
        array->abandoned = false;
    for (int i = array->n_torn; i-- > 0;)
        if (is_inside(&array->torn[i], range))
            array->torn[i] = array->torn[--array->n_torn];
}

void
model_drop_fences(struct model *m, const struct m_claim *claim)
{
    for (int i = m->n_fences; i-- > 0;)
        if (m->fences[i].array == claim->array && is_inside(&m->fences[i].range, &claim->range))
            m->fences[i] = m->fences[--m->n_fences];
}

/* Whether of what lies there, something is not whole. */
static bool
is_torn(struct model *m, int array, const struct m_range *range)
{
    const struct m_array *a = &m->arrays[array];
    bool torn = a->abandoned;

    for (int i = 0; i < a->n_torn; i++)
        torn |= model_overlap(&a->torn[i], range);
    for (int i = 0; i < m->n_fences && !torn; i++) {
        const struct m_fence *f = &m->fences[i];
        torn = f->array == array && f->write && model_overlap(&f->range, range) &&
               model_fence_state(m, f) == FENCE_LOST;
    }
    return torn;
}

bool
model_is_abandoned(struct model *m, int array)
{
    return is_torn(m, array, &(struct m_range){0, UINT64_MAX});
}

void
model_fence_add(struct model *m, const struct m_claim *claim, const struct msg_end_params *p)
{
    struct m_array *array = &m->arrays[claim->array];

    cr_assert_lt(m->n_fences, M_FENCES);
    m->fences[m->n_fences++] = (struct m_fence){.array = claim->array,
                                                .range = claim->range,
                                                .write = claim->write,
                                                .page = p->page,
                                                .slot = p->slot,
                                                .value = p->value};
    array->fenced = true;
}

/* Its owner has exited, or it had been given up. */
void
model_page_gone(struct harness *h, uint64_t page)
{
    struct model *m = h->userdata;

    model_member_gone(m, page);
    for (int i = m->n_fences; i-- > 0;) {
        struct m_fence *f = &m->fences[i];
        if (f->page != page)
            continue;
        if (f->write && model_fence_state(m, f) != FENCE_PASSED)
            model_tear(&m->arrays[f->array], &f->range);
        *f = m->fences[--m->n_fences];
    }
}

/* ---- whose turn it is ---- */

static bool
conflicts(const struct m_claim *a, const struct m_claim *b)
{
    return !a->gone && !b->gone && a->array == b->array && (a->write || b->write) &&
           model_overlap(&a->range, &b->range);
}

/* Whether what a writer that has hung up has open is known to be abandoned. */
static bool
was_torn(const struct m_array *array, const struct m_range *range)
{
    for (int i = 0; i < array->n_torn; i++)
        if (is_inside(range, &array->torn[i]) && is_inside(&array->torn[i], range))
            return true;
    return array->abandoned;
}

/* Whether a bracket that is open keeps the claim waiting. Who reads does not wait for the exit of a
 * writer that has hung up: he is refused. */
static bool
keeps(struct model *m, const struct m_bracket *open, const struct m_claim *claim)
{
    bool told = !claim->write && m->slots[open->slot].gone;

    for (int i = 0; i < open->n_claims && !open->waiting; i++)
        if (conflicts(&open->claims[i], claim) &&
            !(told && was_torn(&m->arrays[claim->array], &open->claims[i].range)))
            return true;
    return false;
}

/* Whether one that waits has come before it. */
static bool
precedes(const struct m_bracket *other, const struct m_bracket *b, const struct m_claim *claim)
{
    for (int i = 0; i < other->n_claims && other->waiting; i++)
        if (other->order < b->order && conflicts(&other->claims[i], claim) && !claim->nested)
            return true;
    return false;
}

static bool
is_kept(struct model *m, const struct m_claim *claim)
{
    for (int i = 0; i < m->n_brackets; i++)
        if (keeps(m, &m->brackets[i], claim))
            return true;
    return false;
}

/* lenient: one that is being closed is out of the way at its turn, of which nobody is told. */
static bool
is_ready(struct model *m, const struct m_bracket *b, const struct m_claim *claim, bool lenient)
{
    for (int i = 0; i < m->n_brackets; i++) {
        const struct m_bracket *other = &m->brackets[i];
        bool counts = !lenient || !m->slots[other->slot].offended;
        if (other != b && counts && precedes(other, b, claim))
            return false;
    }
    return !is_kept(m, claim);
}

bool
model_all_ready(struct model *m, const struct m_bracket *b, bool lenient)
{
    for (int i = 0; i < b->n_claims; i++)
        if (!is_ready(m, b, &b->claims[i], lenient))
            return false;
    return true;
}

static bool
reads_abandoned(struct model *m, const struct m_bracket *b)
{
    for (int i = 0; i < b->n_claims; i++)
        if (!b->claims[i].write && is_torn(m, b->claims[i].array, &b->claims[i].range))
            return true;
    return false;
}

/* The process that was to write it has exited, and the core may have found that out. */
static bool
may_read_abandoned(struct model *m, const struct m_bracket *b)
{
    for (int i = 0; i < b->n_claims; i++)
        for (int j = 0; j < m->n_fences; j++) {
            const struct m_fence *f = &m->fences[j];
            if (!b->claims[i].write && f->write && f->array == b->claims[i].array &&
                model_overlap(&f->range, &b->claims[i].range) && model_fence_is_going(m, f) &&
                model_fence_state(m, f) != FENCE_PASSED)
                return true;
        }
    return reads_abandoned(m, b);
}

/* Whether its thread has begun to read what the writer waits for, before that came. */
static bool
is_excused(const struct model *m, const struct m_bracket *b, const struct m_bracket *waits,
           const struct m_claim *writer)
{
    for (int i = 0; i < m->n_brackets; i++) {
        const struct m_bracket *other = &m->brackets[i];
        if (other->waiting || other->slot != b->slot || other->thread != b->thread ||
            other->order > waits->order)
            continue;
        for (int j = 0; j < other->n_claims; j++)
            if (!other->claims[j].write && conflicts(&other->claims[j], writer))
                return true;
    }
    return false;
}

bool
model_is_nested(const struct model *m, const struct m_bracket *b, const struct m_claim *claim)
{
    for (int i = 0; i < m->n_brackets; i++)
        for (int j = 0; j < m->brackets[i].n_claims && m->brackets[i].waiting; j++)
            if (conflicts(&m->brackets[i].claims[j], claim) &&
                !is_excused(m, b, &m->brackets[i], &m->brackets[i].claims[j]))
                return false;
    return true;
}

/* One that was ready at an array and is not any more: the core finds that out at its turn. */
static bool
was_ready(struct model *m, const struct m_bracket *b)
{
    for (int i = 0; i < b->n_claims && b->waiting; i++)
        if (b->claims[i].was_ready && !is_ready(m, b, &b->claims[i], false))
            return true;
    return false;
}

bool
model_is_uncertain(struct model *m)
{
    for (int i = 0; i < m->n_brackets; i++) {
        const struct m_bracket *b = &m->brackets[i];
        if ((b->waiting && m->slots[b->slot].offended) || was_ready(m, b))
            return true;
    }
    return false;
}

/* ---- deadlocks ---- */

/* What b waits for: those that wait before it, and what the threads of those that keep it wait for.
 * Returns whether one of these threads is that of `start`. */
static bool
spread(struct model *m, const struct m_bracket *start, const struct m_bracket *b, bool *reached)
{
    bool found = false;

    for (int c = 0; c < b->n_claims; c++)
        for (int i = 0; i < m->n_brackets; i++) {
            const struct m_bracket *o = &m->brackets[i];
            if (o != b && precedes(o, b, &b->claims[c]))
                reached[i] = true;
            if (!keeps(m, o, &b->claims[c]))
                continue;
            found = found || (o->slot == start->slot && o->thread == start->thread);
            for (int j = 0; j < m->n_brackets; j++)
                if (m->brackets[j].waiting && m->brackets[j].slot == o->slot &&
                    m->brackets[j].thread == o->thread)
                    reached[j] = true;
        }
    return found;
}

bool
model_is_deadlock(struct model *m, const struct m_bracket *start)
{
    bool reached[M_BRACKETS] = {false}, done[M_BRACKETS] = {false}, found = false, more = true;

    reached[start - m->brackets] = true;
    while (more && !found) {
        more = false;
        for (int i = 0; i < m->n_brackets && !found; i++)
            if (reached[i] && !done[i]) {
                done[i] = more = true;
                found = spread(m, start, &m->brackets[i], reached);
            }
    }
    return found;
}

/* ---- replies ---- */

static struct m_bracket *
find_request(struct model *m, int slot, uint32_t request)
{
    for (int i = 0; i < m->n_brackets; i++)
        if (m->brackets[i].slot == slot && m->brackets[i].request == request)
            return &m->brackets[i];
    return NULL;
}

void
model_bracket_gone(struct model *m, struct m_bracket *b)
{
    *b = m->brackets[--m->n_brackets];
}

/* A write that is lost is told, and so is found out by who looks at its slot. */
static bool
is_due(struct model *m, const struct m_bracket *b, const struct m_fence *f)
{
    enum fence_state state = model_fence_state(m, f);
    bool is_left = state == FENCE_PENDING || (f->write && state == FENCE_LOST);

    for (int i = 0; i < b->n_claims; i++)
        if (b->claims[i].array == f->array && (f->write || b->claims[i].write) && is_left &&
            model_overlap(&f->range, &b->claims[i].range))
            return true;
    return false;
}

/* The highest value of the slot that the bracket has to wait for. */
static uint64_t
highest_due(struct model *m, const struct m_bracket *b, uint64_t page, uint64_t slot)
{
    uint64_t highest = 0;

    for (int i = 0; i < m->n_fences; i++) {
        const struct m_fence *f = &m->fences[i];
        if (f->page == page && f->slot == slot && f->value > highest && is_due(m, b, f))
            highest = f->value;
    }
    return highest;
}

static void
check_fences(struct model *m, const struct m_bracket *b, const struct h_reply *reply)
{
    for (uint32_t i = 0; i < reply->n_fences; i++)
        EXPECT(m,
               reply->fences[i].value ==
                   highest_due(m, b, reply->fences[i].page, reply->fences[i].slot),
               "a fence that there is no need to wait for");
    for (int i = 0; i < m->n_fences; i++) {
        /* the loss of a write may have been noticed, and the fence be gone */
        bool told = m->fences[i].is_doubt || !is_due(m, b, &m->fences[i]) ||
                    model_fence_is_going(m, &m->fences[i]) ||
                    model_fence_state(m, &m->fences[i]) == FENCE_LOST ||
                    (m->returning &&
                     !model_fence_has_block(m, &m->fences[i])); /* it is unmapped there */
        for (uint32_t j = 0; j < reply->n_fences; j++)
            told = told || (reply->fences[j].page == m->fences[i].page &&
                            reply->fences[j].slot == m->fences[i].slot);
        EXPECT(m, told, "nobody is told to wait for page %llu",
               (unsigned long long)m->fences[i].page);
    }
}

/* Those of connections that are being closed, before which its turn cannot have come: theirs
 * has, and they went silently. */
static void
pass_offenders(struct model *m, int slot, uint32_t request)
{
    for (int i = 0; i < m->n_brackets; i++) {
        const struct m_bracket *b = find_request(m, slot, request), *o = &m->brackets[i];
        bool ahead = false;
        for (int c = 0; c < b->n_claims && m->slots[o->slot].offended; c++)
            ahead |= precedes(o, b, &b->claims[c]);
        if (ahead) {
            model_bracket_gone(m, &m->brackets[i]);
            i = -1;
        }
    }
}

/* A bracket opens. The turn of those that it has overtaken may have come before that, or not. */
static void
note_overtaken(struct model *m)
{
    for (int i = 0; i < m->n_brackets; i++) {
        struct m_bracket *b = &m->brackets[i];
        b->may_go |= b->waiting && m->slots[b->slot].offended && model_all_ready(m, b, true);
    }
}

void
model_begin_answered(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    struct m_bracket *b = find_request(m, r->slot, r->id);
    uint32_t may_fail = r->may_fail;

    if (m->returning)
        may_fail |= ERR(ABANDONED) | ERR(TIMEOUT);
    if (m->restarts) /* one that was let go by the end of a doubt */
        may_fail |= ERR(DEADLOCK);

    cr_assert(b && b->waiting);
    may_fail |= may_read_abandoned(m, b) ? ERR(ABANDONED) : 0;
    may_fail |= b->deadline_ns <= m->h.now_ns ? ERR(TIMEOUT) : 0;
    may_fail |= model_is_deadlock(m, b) ? ERR(DEADLOCK)
                                        : 0; /* one that had its turn, and lost it */
    if (reply->error) {
        EXPECT(m, may_fail & UINT32_C(1) << reply->error, "begin is refused with %s: %s",
               proto_error_name(reply->error), reply->text);
        model_bracket_gone(m, b);
        return;
    }
    EXPECT(m, !r->must_fail || m->returning, "begin was not refused");
    EXPECT(m, model_all_ready(m, b, true), "a bracket is open before its turn");
    EXPECT(m, !reads_abandoned(m, b), "what is abandoned is read");
    check_fences(m, b, reply);
    pass_offenders(m, r->slot, r->id);
    note_overtaken(m);
    find_request(m, r->slot, r->id)->waiting = false;
}

/* ---- after each step ---- */

/* Those of a connection that is being closed go at their turn, silently. */
static void
drop_offenders(struct model *m)
{
    for (int i = 0; i < m->n_brackets; i++) {
        struct m_bracket *b = &m->brackets[i];
        if (!b->waiting || !m->slots[b->slot].offended)
            continue;
        bool has_gone = b->may_go &&
                        !core_has_bracket(m->h.core, m->slots[b->slot].conn, b->id);
        b->may_go = false;
        if (has_gone || b->deadline_ns <= m->h.now_ns || model_all_ready(m, b, false)) {
            model_bracket_gone(m, b);
            i = -1;
        }
    }
}

void
model_check_brackets(struct model *m)
{
    drop_offenders(m);
    for (int i = 0; i < m->n_brackets; i++) {
        struct m_bracket *b = &m->brackets[i];
        if (!b->waiting)
            continue;
        EXPECT(m, m->returning || !model_all_ready(m, b, false),
               "a bracket of slot %d waits for nothing", b->slot);
        EXPECT(m, b->deadline_ns > m->h.now_ns, "a bracket waits for too long");
        for (int c = 0; c < b->n_claims; c++)
            b->claims[c].was_ready |= is_ready(m, b, &b->claims[c], false);
    }
    EXPECT(m, m->returning || h_counts(&m->h).brackets == (uint64_t)m->n_brackets,
           "%llu brackets, not %d", (unsigned long long)h_counts(&m->h).brackets,
           m->n_brackets);
    EXPECT(m, h_counts(&m->h).pages == m->h.n_pages, "pages are not what was made");
}

void
model_check_entry(struct model *m, int array, const struct msg_entry *entry)
{
    uint64_t readers = 0, writers = 0, waiting = 0;

    for (int i = 0; i < m->n_brackets; i++) {
        const struct m_bracket *b = &m->brackets[i];
        for (int c = 0; c < b->n_claims; c++)
            if (b->claims[c].array == array && !b->claims[c].gone)
                *(b->waiting ? &waiting : b->claims[c].write ? &writers : &readers) += 1;
    }
    cr_assert_eq(entry->readers, readers);
    cr_assert_eq(entry->writers, writers);
    cr_assert_eq(entry->waiting, waiting);
    cr_assert_eq(entry->abandoned, model_is_abandoned(m, array));
    model_check_part_count(m, array, entry);
}

/* ---- what ends otherwise ---- */

/* What was written by it is not whole. */
static void
abandon(struct model *m, const struct m_claim *claim)
{
    if (claim->write && !claim->gone)
        model_tear(&m->arrays[claim->array], &claim->range);
}

void
model_brackets_hangup(struct model *m, int slot)
{
    for (int i = m->n_brackets; i-- > 0;) {
        struct m_bracket *b = &m->brackets[i];
        bool left = false;
        if (b->slot != slot)
            continue;
        for (int c = 0; c < b->n_claims && !b->waiting; c++) {
            abandon(m, &b->claims[c]);
            b->claims[c].gone |= !m->arrays[b->claims[c].array].nbytes; /* its lease goes */
            left |= !b->claims[c].gone;
        }
        if (!left)
            model_bracket_gone(m, b);
    }
}

void
model_brackets_exit(struct model *m, int slot)
{
    for (int i = m->n_brackets; i-- > 0;) {
        struct m_bracket *b = &m->brackets[i];
        for (int c = 0; c < b->n_claims && b->slot == slot; c++)
            abandon(m, &b->claims[c]);
        if (b->slot == slot)
            model_bracket_gone(m, b);
    }
}

struct m_request *
model_request_of(struct model *m, const struct m_bracket *b)
{
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].slot == b->slot && m->requests[i].id == b->request)
            return &m->requests[i];
    return NULL;
}

void
model_brackets_lease_gone(struct model *m, int slot, uint64_t lease)
{
    for (int i = 0; i < m->n_brackets; i++) {
        struct m_bracket *b = &m->brackets[i];
        for (int c = 0; c < b->n_claims; c++) {
            if (b->slot != slot || b->claims[c].lease != lease || b->claims[c].gone)
                continue;
            struct m_request *r = b->waiting ? model_request_of(m, b) : NULL;
            if (r)
                model_refuse(r, true, ERR(INVALID));
            else
                abandon(m, &b->claims[c]);
            b->claims[c].gone = true;
        }
    }
}
