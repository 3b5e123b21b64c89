/* SPDX-License-Identifier: Apache-2.0 */
#include "actions.h"

#include <assert.h>

#include "journal.h"
#include "state.h"

void
entry_push(struct core *core, struct entry *e)
{
    assert(!e->queued);
    e->queued = true;
    TAILQ_INSERT_TAIL(&core->queue, e, link);
}

void
entry_remove(struct core *core, struct entry *e)
{
    if (e->queued)
        TAILQ_REMOVE(&core->queue, e, link);
    e->queued = false;
}

struct entry *
entry_new(enum core_action_type type, size_t n)
{
    struct entry *e = malloc(sizeof(*e) + n);

    if (e)
        *e = (struct entry){.action = {.type = type, .fd = -1}, .owned = true};
    return e;
}

void
entry_free(struct entry *e)
{
    if (e && e->owned)
        free(e);
}

void
entry_drop_sends(struct core *core, uint64_t conn)
{
    struct entry *e, *next;

    for (e = TAILQ_FIRST(&core->queue); e; e = next) {
        next = TAILQ_NEXT(e, link);
        if (e->action.type == CORE_SEND && e->action.conn == conn) {
            entry_remove(core, e);
            entry_free(e);
        }
    }
}

void
entry_drop_all(struct core *core)
{
    struct entry *e;

    while ((e = TAILQ_FIRST(&core->queue))) {
        entry_remove(core, e);
        entry_free(e);
    }
    free(core->taken);
    core->taken = NULL;
}

bool
core_next(struct core *core, struct core_action *ret)
{
    struct entry *e = TAILQ_FIRST(&core->queue);

    if (core->persist.journal)
        /* what the event has recorded counts from here on */
        journal_commit(core->persist.journal);
    if (core->persist.next)
        journal_commit(core->persist.next); /* the keeper may have the new journal already */
    free(core->taken);
    core->taken = NULL;
    if (!e)
        return false;
    entry_remove(core, e);
    if (e->owned)
        core->taken = e;
    *ret = e->action;
    return true;
}
