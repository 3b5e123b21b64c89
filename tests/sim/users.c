/* SPDX-License-Identifier: Apache-2.0 */
#include "msg.h"
#include "sim.h"

#define EXIT_NS   (5 * NSEC_PER_MSEC)
#define RETURN_NS (10 * NSEC_PER_MSEC)
#define LEAVE_NS  (5 * NSEC_PER_SEC)
#define MAX_WAITS (1 << 16)
#define MAX_USERS (1 << 12)
#define N_NAMES   8
#define N_OPENED  32 /* at once */

enum op {
    OP_PING,
    OP_LIST,
    OP_OPEN,
    OP_CREATE,
    N_QUIET_OPS,
    OP_CREATE_OWN = N_QUIET_OPS, /* a block */
    OP_OPEN_ALL,
    N_OPS,
};

/* What a uid may ask for most. */
static const enum op favourites[] = {OP_OPEN_ALL, OP_CREATE_OWN, OP_CREATE, OP_LIST};

static const struct manners {
    uint32_t n_asked; /* without an answer */
    uint32_t percent_reading, percent_leaving;
    uint64_t think_ns;
} manners[] = {
    [QUIET] = {1, 100, 0, 0 /* as the population says */},
    [GREEDY] = {16, 100, 0, 10 * NSEC_PER_USEC},
    [STUCK] = {300, 2, 0, NSEC_PER_MSEC},
    [DEAD] = {1, 0, 0, 50 * NSEC_PER_MSEC},
    [CHURN] = {4, 100, 40, 50 * NSEC_PER_USEC},
};

/* Of each uid, and of the pool "shared"; again and again. */
static struct msg_str names[N_OPENED];

static struct population population;
static struct user *users;
static uint32_t n_users;
static bool leaving, ending;
static struct msg_buf buf;
static uint64_t settled_ns, waits_ns[MAX_WAITS];
static size_t n_waits;

/* ---- what is asked for ---- */

/* A request's number tells its method, too. false: the socket takes no more. */
static bool
request(struct remote *r, enum msg_method method, const void *params)
{
    uint32_t id = r->n_requests * MSG_N_METHODS + method;

    SIM_CHECK(msg_encode_request(&buf, id, method, params) == 0, "method %d", method);
    if (!remote_send(r, buf.data, buf.n))
        return false;
    if (r->n_requests > 0 && world_now_ns() >= settled_ns)
        r->asked_ns = world_now_ns();
    r->n_requests++;
    r->n_asked++;
    return true;
}

static void
close_lease(struct remote *r)
{
    const struct msg_close_params params = {.leases = {&r->lease, 1}};

    SIM_CHECK(msg_encode_notify(&buf, MSG_CLOSE, &params) == 0, "close");
    if (remote_send(r, buf.data, buf.n))
        r->lease = 0;
}

static enum op
some_op(const struct remote *r)
{
    if (population.only_open)
        return r->n_requests == 1 ? OP_CREATE : OP_OPEN;
    if (r->kind == QUIET)
        return (enum op)sim_random(N_QUIET_OPS);
    return sim_chance(60) ? r->user->favourite : (enum op)sim_random(N_OPS);
}

static bool
ask(struct remote *r)
{
    const enum op op = some_op(r);
    const bool is_own = op == OP_CREATE_OWN, is_shared = population.only_open || sim_chance(30);
    const struct msg_str pool = is_shared ? MSG_STR("shared") : (struct msg_str){0};
    const uint64_t name = sim_random(N_NAMES);
    const int64_t n = (int64_t)(1 + sim_random(is_own ? 4 << 20 : 4 << 10));

    if (r->lease)
        close_lease(r);
    switch (op) {
    case OP_PING: return request(r, MSG_PING, &(struct msg_none){});
    case OP_LIST: return request(r, MSG_LIST, &(struct msg_list_params){.all = true});
    case OP_OPEN:
    case OP_OPEN_ALL:
        return request(r, MSG_OPEN,
                       &(struct msg_open_params){
                           .names = {op == OP_OPEN ? &names[name] : names,
                                     op == OP_OPEN ? 1 : N_OPENED},
                           .pool = pool,
                           .mode = MSG_STR("r"),
                       });
    case OP_CREATE:
    case OP_CREATE_OWN:
        return request(r, MSG_CREATE,
                       &(struct msg_create_params){
                           .name = is_own && sim_chance(50) ? (struct msg_str){0} : names[name],
                           .pool = pool,
                           .typestr = MSG_STR("|u1"),
                           .shape = {&n, 1},
                           .exclusive = is_own,
                           .memory = is_own ? MSG_STR("pinned") : (struct msg_str){0},
                       });
    case N_OPS: break;
    }
    return false;
}

/* ---- what is answered ---- */

/* Who asks for little is refused for no other reason than what it has asked for. */
static void
take_reply(struct remote *r, struct msg *m)
{
    enum msg_method method = (enum msg_method)(m->id % MSG_N_METHODS);
    struct msg_arrays_result result;

    r->n_asked--;
    SIM_CHECK(m->error != PROTO_ERR_LIMIT || r->user->kind != QUIET, "uid %u is refused: %.*s",
              r->user->uid, (int)m->error_text.n, m->error_text.p);
    if (m->error || (method != MSG_CREATE && method != MSG_OPEN))
        return;
    SIM_CHECK(msg_decode_result(m, MSG_OPEN, &result) == 0, "a reply");
    r->lease = result.arrays[0].lease;
}

static void
read_all(struct remote *r)
{
    struct packet *p;
    struct msg m;

    while ((p = remote_receive(r))) {
        SIM_CHECK(msg_parse(&m, p->data, p->n) == 0, "the daemon sent a packet that is wrong");
        take_reply(r, &m);
        msg_deinit(&m);
        free(p);
    }
}

static int
compare(const void *a, const void *b)
{
    return CMP(*(const uint64_t *)a, *(const uint64_t *)b);
}

uint64_t
users_p99_ns(void)
{
    qsort(waits_ns, n_waits, sizeof(*waits_ns), compare);
    return n_waits ? waits_ns[n_waits - 1 - n_waits / 100] : 0;
}

/* ---- what they do ---- */

static void on_act(struct event *event);

/* Its process may live on for a while; another one comes. */
static void
leave(struct remote *r)
{
    remote_hangup(r, sim_chance(50) ? 0 : sim_random(EXIT_NS));
    if (!leaving && !ending)
        remote_new(r->user, r->kind, on_act, sim_random(RETURN_NS));
}

/* Who asks for little always says hello. */
static void
arrive(struct remote *r)
{
    const struct msg_hello_params params = {.version_min = 1, .version_max = 1};

    remote_connect(r);
    if (r->user->kind == QUIET || leaving || sim_chance(70))
        request(r, MSG_HELLO, &params);
}

/* Takes the names of its uid away, and goes. */
static void
act_leaving(struct remote *r)
{
    read_all(r);
    while (r->n_requests < 1 + 2 * N_NAMES) {
        struct msg_name_params params = {.name = names[r->n_requests % N_NAMES]};
        if (r->n_requests > N_NAMES)
            params.pool = MSG_STR("shared");
        request(r, MSG_UNLINK, &params);
    }
    if (r->n_asked == 0)
        leave(r);
}

static uint64_t
some_think_ns(const struct remote *r)
{
    return sim_random(2 * (r->kind == QUIET ? population.think_ns : manners[r->kind].think_ns));
}

static void
act(struct remote *r)
{
    const struct manners *m = &manners[r->kind];

    if (sim_chance(m->percent_reading))
        read_all(r);
    if (sim_chance(m->percent_leaving)) {
        leave(r);
        return;
    }
    while (r->n_asked < m->n_asked && ask(r))
        ;
    if (r->n_asked < m->n_asked || r->kind > GREEDY) /* else the answer wakes it */
        event_in(&r->act, some_think_ns(r));
}

static void
on_act(struct event *event)
{
    struct remote *r = container_of(event, struct remote, act);

    if (!r->connected)
        arrive(r);
    if (r->over) {
        SIM_CHECK(r->user->kind != QUIET || ending, "uid %u is disconnected", r->user->uid);
        leave(r);
    } else if (leaving) {
        act_leaving(r);
    } else {
        act(r);
    }
}

/* Who does not read does not know of it, either. */
void
users_wake(struct remote *r)
{
    uint64_t ns = leaving ? 0 : some_think_ns(r);

    if (r->asked_ns && n_waits < MAX_WAITS)
        waits_ns[n_waits++] = world_now_ns() - r->asked_ns;
    r->asked_ns = 0;
    if (!r->act.at_ns && (r->over || r->kind <= GREEDY || leaving))
        event_in(&r->act, ns);
}

/* ---- all of them ---- */

static void
add_user(enum kind kind)
{
    uint32_t n = population.n_conns[kind], n_idle = kind == QUIET ? population.n_idle : 0;
    struct user *user = &users[n_users];

    *user = (struct user){.uid = USERS_UID + n_users++,
                          .kind = kind,
                          .favourite = favourites[sim_random(ARRAY_SIZE(favourites))],
                          .n_conns = n + n_idle};
    TAILQ_INIT(&user->ready);
    for (uint32_t i = 0; i < user->n_conns; i++)
        remote_new(user, i < n ? kind : DEAD, on_act,
                   sim_random(RETURN_NS + population.settling_ns / 5 * 4));
}

/* The first of each kind, then the second ones: fair.c follows some of each. */
void
users_init(const struct population *p)
{
    users = calloc(MAX_USERS, sizeof(*users));
    n_users = 0;
    n_waits = 0;
    leaving = ending = false;
    population = *p;
    settled_ns = world_now_ns() + p->settling_ns;
    for (uint32_t i = 0; i < MAX_USERS / N_KINDS_OF_USERS; i++)
        for (int kind = 0; kind < N_KINDS_OF_USERS; kind++)
            if (i < p->n_users[kind])
                add_user((enum kind)kind);
    for (int i = 0; i < N_OPENED; i++)
        names[i] = (struct msg_str){"abcdefgh" + i % N_NAMES, 1};
    fair_init(users, n_users);
}

static void
leave_all(void)
{
    struct remote *r;

    leaving = true;
    LIST_FOREACH(r, &remotes.all, link)
        if (!r->exit.run)
            leave(r);
}

void
users_leave(void)
{
    leave_all();
    for (uint32_t i = 0; i < n_users; i++)
        remote_new(&users[i], QUIET, on_act, LEAVE_NS + sim_random(n_users * NSEC_PER_MSEC));
}

void
users_deinit(void)
{
    leave_all();
    world_sleep(world_now_ns() + EXIT_NS);
    fair_deinit();
    msg_buf_deinit(&buf);
    buf = (struct msg_buf){0};
    free(users);
}

void
users_expect_end(void)
{
    ending = true;
    fair_deinit();
}
