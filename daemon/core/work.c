/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include "settle.h"
#include "state.h"
#include "waiter.h"

static bool
has_work(const struct user *user)
{
    return !TAILQ_EMPTY(&user->ready) || !TAILQ_EMPTY(&user->due) ||
           !TAILQ_EMPTY(&user->done) || !TAILQ_EMPTY(&user->ending) ||
           !TAILQ_EMPTY(&user->ended);
}

/* Does a piece of each kind. Returns how many. A search for a deadlock, and a piece of a
 * connection's end, count as all that one event does. */
static uint32_t
work_for(struct core *core, struct user *user)
{
    struct bracket *bracket = TAILQ_FIRST(&user->ready);
    uint64_t n_searches = core->n_searches;
    struct waiter *waiter;
    struct watch *watch;
    struct conn *conn;
    struct set *set;

    if (bracket)
        bracket_turn(core, bracket);
    watch = TAILQ_FIRST(&user->due);
    if (watch)
        watch_end(core, watch);
    waiter = TAILQ_FIRST(&user->done);
    if (waiter)
        waiter_answer(core, waiter);
    set = TAILQ_FIRST(&user->ended);
    if (set)
        set_settle_one(core, set);
    conn = TAILQ_FIRST(&user->ending);
    if (conn)
        conn_end_some(core, conn);
    if (conn || core->n_searches != n_searches)
        return core->pieces;
    return (bracket != NULL) + (watch != NULL) + (waiter != NULL) + (set != NULL);
}

void
work_run(struct core *core, bool briefly)
{
    const struct user *last = TAILQ_LAST(&core->busy, user_list);
    bool is_last = false;
    struct user *user;
    uint32_t n = 0;

    while (n < core->pieces && !is_last && (user = TAILQ_FIRST(&core->busy))) {
        TAILQ_REMOVE(&core->busy, user, of_busy);
        user->busy = false;
        is_last = briefly && user == last;
        n += work_for(core, user);
        if (has_work(user))
            user_wake(user);
    }
}
