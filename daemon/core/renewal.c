/* SPDX-License-Identifier: Apache-2.0 */
#include "renewal.h"

#include "array.h"
#include "journal.h"
#include "lost.h"
#include "set.h"
#include "state.h"

#define SOME   4  /* objects in one piece of work: at least, */
#define MOST   32 /* at most, */
#define FACTOR 4  /* and bytes: so many times what the event has added to both journals */
#define SLACK \
    ((size_t)256 << 10) /* bytes that a journal may take beyond what is charged for it */

/* Records go into the new journal alone, until the end of this piece. */
static struct journal *
turn_to_next(struct persist *p)
{
    struct journal *journal = p->journal;

    p->journal = TAKE_PTR(p->next);
    return journal;
}

static void
turn_back(struct persist *p, struct journal *journal)
{
    p->next = p->journal;
    p->journal = journal;
}

/* ---- one of each ---- */

/* The first connection from that number on, connected or departed. */
static struct conn *
next_conn(struct core *core, uint64_t id)
{
    struct conn key = {.id = id};
    struct conn *here = RB_NFIND(conns, &core->conns, &key);
    struct conn *departed = RB_NFIND(conns, &core->departed, &key);

    return here && (!departed || here->id < departed->id) ? here : departed;
}

static bool
conn_anew(struct core *core)
{
    struct conn *conn = next_conn(core, core->renewal.id + 1);

    if (!conn)
        return false;
    persist_conn_anew(core, conn);
    core->renewal.id = conn->id;
    return true;
}

/* The connection's next one. A connection that got another number meanwhile comes again under
 * that. */
static bool
hold_anew(struct core *core)
{
    struct renewal *at = &core->renewal;
    struct conn *conn = next_conn(core, at->id);

    if (!conn)
        return false;
    struct hold key = {.id = conn->id == at->id ? at->hold + 1 : 0};
    struct hold *hold = conn->number ? RB_NFIND(holds, &conn->holds, &key) : NULL;
    if (hold)
        persist_hold(core, hold);
    at->id = conn->id + !hold;
    at->hold = hold ? hold->id : 0;
    return true;
}

static bool
page_anew(struct core *core)
{
    struct page key = {.id = core->renewal.id + 1};
    struct page *page = RB_NFIND(pages, &core->pages, &key);

    if (!page)
        return false;
    if (page->made)
        persist_page(core, page);
    core->renewal.id = page->id;
    return true;
}

static bool
channel_anew(struct core *core)
{
    const struct array at = {.id = core->renewal.id + 1};
    struct channel key = {.array = (struct array *)(uintptr_t)&at};
    struct channel *channel = RB_NFIND(channels, &core->channels, &key);

    if (!channel)
        return false;
    persist_channel(core, channel);
    core->renewal.id = channel->array->id;
    return true;
}

static struct msg_str
name_of(const struct renewal *at)
{
    return (struct msg_str){at->name, at->n_name};
}

static void
set_name(struct renewal *at, const char *name, uint8_t n)
{
    memcpy(at->name, name, n);
    at->n_name = n;
}

static bool
ticket_anew(struct core *core)
{
    const struct ticket *ticket = ticket_find_next(core, name_of(&core->renewal));

    if (!ticket)
        return false;
    persist_ticket(core, ticket);
    set_name(&core->renewal, (const char *)ticket->secret, sizeof(ticket->secret));
    return true;
}

/* The next member of the first set that is not in the new journal: such sets are first in the
 * list. */
static bool
member_anew(struct core *core)
{
    struct renewal *at = &core->renewal;
    struct set *set = TAILQ_FIRST(&core->sets);
    const struct member *member;

    if (!set || set->record_turn != core->persist.turn)
        return false;
    if (at->id != set->array->id)
        at->n_name = 0;
    member = set_next(set->array, name_of(at), (struct msg_str){0});
    if (!member) {
        set->record_turn = !core->persist.turn;
        TAILQ_REMOVE(&core->sets, set, of_core);
        TAILQ_INSERT_TAIL(&core->sets, set, of_core);
        return true;
    }
    persist_member_anew(core, set->array, member);
    at->id = set->array->id;
    set_name(at, member->key, member->n_key);
    return true;
}

static bool
array_anew(struct renewal *at, struct array *array)
{
    if (!array)
        return false;
    set_name(at, array->name, array->n_name);
    at->generation = array->generation;
    at->id = array->id;
    persist_array_anew(array);
    return true;
}

static bool
lost_anew(struct core *core, const struct lost *lost)
{
    if (!lost)
        return false;
    set_name(&core->renewal, lost->name, lost->n_name);
    persist_lost(core, lost);
    return true;
}

static bool
block_anew(struct core *core, struct pool *pool)
{
    struct block key = {.id = core->renewal.id + 1};
    struct block *block = RB_NFIND(blocks, &pool->blocks, &key);

    if (!block)
        return false;
    if (block->promised && block->state == BLOCK_LIVE)
        persist_block(core, block);
    core->renewal.id = block->id;
    return true;
}

static bool
of_pool_anew(struct core *core, struct pool *pool)
{
    struct renewal *at = &core->renewal;
    struct msg_str name = name_of(at), any = {0};

    if (at->stage == RENEWAL_POOLS && pool->number)
        persist_pool(core, pool);
    if (at->stage == RENEWAL_POOLS)
        return false;
    if (at->stage == RENEWAL_BLOCKS)
        return block_anew(core, pool);
    if (at->stage == RENEWAL_NAMES)
        return array_anew(at, pool_find_next(pool, name, any));
    if (at->stage == RENEWAL_NAMELESS)
        return array_anew(at, pool_find_nameless(pool, name, at->generation, at->id + 1));
    return lost_anew(core, lost_find_next(pool, name, any));
}

static void
enter_pool(struct renewal *at, const struct pool *pool)
{
    *at = (struct renewal){.stage = at->stage};
    memcpy(at->pool, pool->name, sizeof(at->pool));
}

/* What belongs to a pool. A pool that has gone is skipped. */
static bool
any_anew(struct core *core)
{
    struct renewal *at = &core->renewal;
    struct pool *pool = pool_find_from(core, MSG_STR(at->pool));

    if (pool && strcmp(pool->name, at->pool) != 0)
        enter_pool(at, pool);
    if (!pool || of_pool_anew(core, pool))
        return pool;
    pool = RB_NEXT(pools, &core->pools, pool);
    if (pool)
        enter_pool(at, pool);
    return pool;
}

/* ---- all of them ---- */

static void
one_anew(struct core *core)
{
    struct renewal *at = &core->renewal;

    if (!(at->stage == RENEWAL_CONNS      ? conn_anew(core)
          : at->stage == RENEWAL_HOLDS    ? hold_anew(core)
          : at->stage == RENEWAL_PAGES    ? page_anew(core)
          : at->stage == RENEWAL_CHANNELS ? channel_anew(core)
          : at->stage == RENEWAL_TICKETS  ? ticket_anew(core)
          : at->stage == RENEWAL_SETS     ? member_anew(core)
                                          : any_anew(core)))
        *at = (struct renewal){.stage = at->stage + 1};
}

/* Bytes to write: FACTOR times those that events have added since the last time. */
static void
count_due(struct persist *p)
{
    if (!p->journal) /* `next` is the first journal */
        return;
    p->due += FACTOR * (p->journal->at - p->seen);
    p->seen = p->journal->at;
}

/* What is recorded meanwhile goes into both journals. The more that is, the more an event renews:
 * so the renewal ends, at whatever rate records come. */
void
renewal_run(struct core *core)
{
    struct persist *p = &core->persist;
    const struct journal *next = p->next;
    uint32_t n = 0;

    if (!renewal_is_behind(core))
        return;
    count_due(p);
    size_t from = next->at;
    struct journal *journal = turn_to_next(p);
    while (core->renewal.stage < RENEWAL_ALL &&
           (n < SOME * core->pieces || (n < MOST * core->pieces && next->at - from < p->due))) {
        one_anew(core);
        n++;
    }
    turn_back(p, journal);
    p->due -= min_u64(p->due, next->at - from);
}

bool
renewal_is_behind(const struct core *core)
{
    return core->persist.next && core->renewal.stage < RENEWAL_ALL;
}

/* ---- for the shell ---- */

void
core_set_journal(struct core *core, struct journal *journal)
{
    core_renew_journal(core, journal);
    while (renewal_is_behind(core))
        renewal_run(core);
    core_switch_journal(core);
}

void
core_renew_journal(struct core *core, struct journal *next)
{
    struct persist *p = &core->persist;
    struct journal *journal;

    p->next = next;
    p->due = 0;
    p->seen = p->journal ? p->journal->at : 0;
    core->renewal = (struct renewal){0};
    journal = turn_to_next(p);
    persist_numbers(core);
    persist_suspects(core);
    turn_back(p, journal);
}

/* Half of what is charged is no less than all records that are charged for take (records.h). SLACK
 * is for the others. */
bool
core_journal_is_large(const struct core *core)
{
    return core->persist.journal->at > core->used[RES_HOST] / 2 + SLACK;
}

bool
core_journal_is_renewed(const struct core *core)
{
    return core->persist.next && !core->persist.next->full && !renewal_is_behind(core);
}

void
core_switch_journal(struct core *core)
{
    struct persist *p = &core->persist;

    p->journal = TAKE_PTR(p->next);
    p->turn = !p->turn;
    journal_commit(p->journal);
}

void
core_drop_journal(struct core *core)
{
    core->persist.journal = core->persist.next = NULL;
}
