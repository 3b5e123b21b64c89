/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which requests wait while not all is restored.
 */
#include "array.h"
#include "request.h"
#include "restore.h"
#include "units.h"

#define HELLO_WAIT_NS UINT64_C(4000000000) /* a client waits 5 s for an answer */
#define HOST_ROOM     (UINT64_C(4) << 20)  /* more than any request is charged, bytes */
#define FDS_ROOM      64

/* Requests that tell of all pools, or change something in all. */
static const bool needs_all[MSG_N_METHODS] = {
    [MSG_STATUS] = true,
    [MSG_MEMORY_INFO] = true,
    [MSG_POOLS] = true,
    [MSG_FLUSH] = true,
    [MSG_USERS] = true,
    [MSG_DRAIN] = true,
    [MSG_METRICS] = true,
    [MSG_TICKETS] = true,
    [MSG_WITHDRAW] = true,
    [MSG_CONNECTIONS] = true,
    [MSG_KICK] = true,
    [MSG_JOIN] = true, /* pages of those who have exited are killed by then */
};

/* How much of a shared limit is left is not known exactly, before all is restored. */
static bool
is_near_share(const struct user *user, enum resource res, uint64_t room)
{
    uint64_t share = user_share(user, res), doubt = user->core->due[res] / 16 + room;
    uint64_t least = share > doubt ? share - doubt : 0;

    return least < user->used[res] && least < user_limit(user->core, res);
}

static bool
lacks_arrays(struct units *units, struct msg_u64s ids, uint32_t first, uint32_t step)
{
    bool lacks = false;

    for (uint32_t i = first; i < ids.n; i += step)
        lacks |= units_lack_array(units, ids.v[i]);
    return lacks;
}

/* Whether arrays that these requests of before were about are not restored. */
static bool
lacks_done(struct units *units, const struct conn *conn, struct msg_u64s requests)
{
    bool lacks = false;

    for (uint32_t i = 0; i < requests.n; i++) {
        const struct done *done = &conn->done[requests.v[i] % DONE_MAX];
        lacks |= units_lack_array(units, done->array) | units_lack_array(units, done->part);
    }
    return lacks;
}

static bool
lacks_resumed(struct units *units, const struct conn *conn, const struct msg_resume_params *p)
{
    return lacks_arrays(units, p->read, 1, 2) | lacks_arrays(units, p->write, 1, 2) |
           lacks_arrays(units, p->parts, 0, 1) | lacks_arrays(units, p->ended, 0, 5) |
           lacks_done(units, conn, p->repeats) | lacks_done(units, conn, p->undo);
}

/* Whether the ticket is there but has run out. It runs out only after all that come before it are
 * restored. */
static bool
has_run_out(struct core *core, const uint64_t secret[static TICKET_WORDS])
{
    const struct ticket *ticket = ticket_find(core, secret);

    return ticket && ticket->ends_ns && ticket->ends_ns <= core->boot_ns;
}

static bool
is_of_timelines(enum msg_method method)
{
    return method == MSG_TIMELINE || method == MSG_OPEN_TIMELINE || method == MSG_TIMELINES;
}

static bool
lacks_something(struct core *core, const struct conn *conn, enum msg_method method,
                const union params *params)
{
    const struct msg_str *name = msg_param(method, params, "pool");
    const struct msg_u64s *ticket = msg_param(method, params, "ticket");
    const bool *all = msg_param(method, params, "all");
    struct pool *pool = name ? pool_find(core, conn, *name) : NULL;

    if (method == MSG_RESUME) /* its leases are charged whatever the share */
        return lacks_resumed(core->units, conn, &params->resume);
    if (needs_all[method] || (all && *all) || is_near_share(conn->user, RES_HOST, HOST_ROOM) ||
        is_near_share(conn->user, RES_FDS, FDS_ROOM))
        return true;
    if (is_of_timelines(method) && core->units->has_exits)
        return true;
    if (ticket && ticket->n == TICKET_WORDS)
        return has_run_out(core, ticket->v) ||
               units_lack_ticket(core->units, (struct record_key){ticket->v[0], ticket->v[1]});
    return pool && units_lack(core->units, pool->unit);
}

/* A HELLO does not wait for ever: its client gives up. */
static bool
hello_waits(const struct core *core, const struct conn *conn)
{
    return core->now_ns < core->units->since_ns + HELLO_WAIT_NS &&
           units_lack_user(core->units, conn->user->uid);
}

bool
core_admits(struct core *core, uint64_t id, const void *packet, size_t n)
{
    struct conn *conn = core->units ? conn_find(&core->conns, id) : NULL;
    union params params;
    struct msg m;
    bool waits = false;

    if (!conn || conn->closing || msg_parse(&m, packet, n) < 0)
        return true;
    if (m.method == MSG_HELLO)
        waits = hello_waits(core, conn);
    else if (m.method != MSG_UNKNOWN && conn->greeted && msg_decode_params(&m, &params) == 0)
        waits = lacks_something(core, conn, m.method, &params);
    msg_deinit(&m);
    return !waits;
}

bool
core_admits_more(struct core *core)
{
    struct units *u = core->units;

    if (u && !u->has_refused_hello && core->now_ns >= u->since_ns + HELLO_WAIT_NS)
        u->has_refused_hello = u->has_news = true;
    if (!u || !u->has_news)
        return false;
    u->has_news = false;
    return true;
}

int
hello_check(struct core *core, const struct conn *conn, struct refusal *r)
{
    if (!units_lack_user(core->units, conn->user->uid))
        return 0;
    refusal_fill(r, PROTO_ERR_NOT_READY,
                 "caid has restarted, and not all is back yet: try again");
    r->left = units_left(core->units);
    return REFUSED;
}
