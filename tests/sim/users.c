/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "msg.h"
#include "sim.h"

#define EXIT_NS   (5 * NSEC_PER_MSEC)
#define RETURN_NS (10 * NSEC_PER_MSEC)
#define NOTICE_NS (2 * NSEC_PER_MSEC) /* that the daemon has gone */
#define LEAVE_NS  (5 * NSEC_PER_SEC)
#define MAX_WAITS (1 << 16)
#define MAX_USERS (1 << 12)
#define N_NAMES   8
#define N_OPENED  32 /* at once */
#define N_PLACES  16 /* for a request's number to tell of */
#define HOARDED   (N_NAMES + 1)
#define LOOKED_UP (N_NAMES + 2) /* its last name so far, which comes back last */
#define VERSIONS  (N_NAMES + 3)
#define N_TAKEN   (2 * N_NAMES + 1) /* names that who leaves takes away */
#define ALL_NS    NSEC_PER_SEC /* that the quiet wait after a restart for what is about all */

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
static uint32_t last_hoarded; /* of the hoard's names */
static struct msg_buf buf;
static uint64_t settled_ns, served_ns, whole_ns, waits_ns[MAX_WAITS];
static size_t n_waits;
static uint32_t n_between;

/* ---- what is asked for ---- */

/* A request's number tells its method, too, and which own name it is about: that place and 1, or 0.
 * false: the socket takes no more. */
static bool
request_of(struct remote *r, uint32_t place, enum msg_method method, const void *params)
{
    uint32_t id = (r->n_requests * N_PLACES + place) * MSG_N_METHODS + method;

    SIM_CHECK(msg_encode_request(&buf, id, method, params) == 0, "method %d", method);
    if (!remote_send(r, buf.data, buf.n))
        return false;
    if ((method != MSG_HELLO || population.outlives) && world_now_ns() >= settled_ns)
        r->asked_ns = world_now_ns();
    r->asked_all = method == MSG_LIST || r->user->uid % 2;
    r->n_requests++;
    r->n_asked++;
    return true;
}

static bool
request(struct remote *r, enum msg_method method, const void *params)
{
    return request_of(r, 0, method, params);
}

bool
users_request(struct remote *r, int method, const void *params)
{
    bool is_sent = request_of(r, VERSIONS, (enum msg_method)method, params);

    if (method == MSG_VACATE)
        r->asked_ns = 0; /* it waits for others */
    return is_sent;
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

/* From 1 on. For one call of a function. */
static const char *
hoard_name(uint32_t number)
{
    static char name[16];

    snprintf(name, sizeof(name), "hoard%u", number);
    return name;
}

/* Every other uid does, and only while it is not back. From then on it waits for that, too. */
static bool
look_up(struct remote *r)
{
    const struct msg_str name = MSG_STR(hoard_name(last_hoarded));

    return request_of(r, LOOKED_UP, MSG_OPEN,
                      &(struct msg_open_params){
                          .names = {&name, 1},
                          .pool = MSG_STR("large"),
                          .mode = MSG_STR("r"),
                      });
}

/* One more name, with little behind it. */
static bool
hoard(struct remote *r)
{
    const int64_t n = 1;

    return request_of(r, HOARDED, MSG_CREATE,
                      &(struct msg_create_params){
                          .name = MSG_STR(hoard_name(r->n_requests)),
                          .pool = MSG_STR("large"),
                          .typestr = MSG_STR("|u1"),
                          .shape = {&n, 1},
                      });
}

static bool
ask(struct remote *r)
{
    const enum op op = some_op(r);
    const bool is_own = op == OP_CREATE_OWN, is_shared = population.only_open || sim_chance(30);
    const struct msg_str pool = is_shared ? MSG_STR("shared") : (struct msg_str){0};
    const uint64_t name = sim_random(N_NAMES);
    const int64_t n = (int64_t)(1 + sim_random(is_own ? 4 << 20 : 4 << 10));
    const bool has_name = !is_own || !sim_chance(50);
    const uint32_t place = pool.p || !has_name ? 0 : (uint32_t)name + 1;
    const bool is_known = op == OP_OPEN && place && r->user->arrays[place - 1];

    if (r->hoards)
        return hoard(r);
    if (r->versions)
        return versions_ask(r);
    if (r->lease && r->reads && sim_chance(80)) /* it works with the version */
        return request(r, MSG_PING, &(struct msg_none){});
    if (r->lease)
        close_lease(r);
    r->reads = false;
    if (population.publishes && r->kind == QUIET && sim_chance(30))
        return versions_open(r);
    if (last_hoarded && !loop_is_whole() && r->user->uid % 2 && sim_chance(50))
        return look_up(r);
    switch (op) {
    case OP_PING: return request(r, MSG_PING, &(struct msg_none){});
    case OP_LIST: return request(r, MSG_LIST, &(struct msg_list_params){.all = true});
    case OP_OPEN:
    case OP_OPEN_ALL:
        return request_of(r, is_known ? place : 0, MSG_OPEN,
                          &(struct msg_open_params){
                              .names = {op == OP_OPEN ? &names[name] : names,
                                        op == OP_OPEN ? 1 : N_OPENED},
                              .pool = pool,
                              .mode = MSG_STR("r"),
                          });
    case OP_CREATE:
    case OP_CREATE_OWN:
        return request_of(r, place, MSG_CREATE,
                          &(struct msg_create_params){
                              .name = has_name ? names[name] : (struct msg_str){0},
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

static void leave(struct remote *r);

static void
resume_versions(struct remote *r)
{
    uint64_t leases[8], blocks[2];
    uint32_t n = versions_leases(r, leases, blocks);

    request(r, MSG_RESUME,
            &(struct msg_resume_params){
                .write = {leases, n},
                .blocks = {blocks, 1 + (blocks[0] != blocks[1])},
                .done = true,
            });
}

/* All that it has is a lease, and the block of that. */
static void
resume(struct remote *r)
{
    if (r->versions) {
        resume_versions(r);
        return;
    }
    const uint64_t lease[] = {r->lease, r->array};
    const struct msg_u64s leases = {lease, r->lease ? 2 : 0}, none = {0};

    request(r, MSG_RESUME,
            &(struct msg_resume_params){
                .read = r->is_write ? none : leases,
                .write = r->is_write ? leases : none,
                .blocks = {&r->block, r->lease && r->block},
                .done = true,
            });
}

static void
take_hello(struct remote *r, struct msg *m)
{
    struct msg_hello_result result;

    if (m->error) {
        SIM_CHECK(r->user->kind != QUIET, "uid %u is not let in: %.*s", r->user->uid,
                  (int)m->error_text.n, m->error_text.p);
        if (r->comes_back)
            leave(r);
        return;
    }
    SIM_CHECK(msg_decode_result(m, MSG_HELLO, &result) == 0, "a reply");
    if (result.token.n == ARRAY_SIZE(r->token))
        memcpy(r->token, result.token.v, sizeof(r->token));
    if (!r->comes_back)
        return;
    SIM_CHECK(result.resumed || (!r->lease && !r->versions),
              "uid %u had a lease, and is not known", r->user->uid);
    if (result.resumed && !r->is_half)
        resume(r);
    r->comes_back = result.resumed;
}

static void
take_resume(struct remote *r, struct msg *m)
{
    struct msg_resume_result result;

    SIM_CHECK(!m->error && msg_decode_result(m, MSG_RESUME, &result) == 0 && !result.lost.n,
              "uid %u has lost a lease: %.*s", r->user->uid, (int)m->error_text.n,
              m->error_text.p);
    r->comes_back = false;
}

/* A name that is there stays, and is the same, until it is taken away. */
static void
check_name(struct user *user, uint32_t place, const struct msg *m, uint64_t array)
{
    SIM_CHECK(m->error != PROTO_ERR_NOT_FOUND || !user->arrays[place],
              "uid %u has lost the name \"%s\"", user->uid, names[place].p);
    if (!array)
        return;
    SIM_CHECK(!user->arrays[place] || user->arrays[place] == array, "another array");
    user->arrays[place] = array;
}

/* Who asks for little is refused for no other reason than what it has asked for. */
static void
take_reply(struct remote *r, struct msg *m)
{
    enum msg_method method = (enum msg_method)(m->id % MSG_N_METHODS);
    uint32_t place = m->id / MSG_N_METHODS % N_PLACES;
    struct msg_arrays_result result = {0};

    r->n_asked--;
    SIM_CHECK(m->error != PROTO_ERR_LIMIT || r->user->kind != QUIET, "uid %u is refused: %.*s",
              r->user->uid, (int)m->error_text.n, m->error_text.p);
    if (method == MSG_HELLO)
        take_hello(r, m);
    else if (method == MSG_RESUME)
        take_resume(r, m);
    if (r->versions && place == VERSIONS) {
        if (!versions_answered(r, m))
            leave(r);
        return;
    }
    if (!m->error && (method == MSG_CREATE || method == MSG_OPEN)) {
        SIM_CHECK(msg_decode_result(m, MSG_OPEN, &result) == 0, "a reply");
        r->lease = result.arrays[0].lease;
        r->array = result.arrays[0].array;
        r->block = result.arrays[0].block;
        r->is_write = method == MSG_CREATE;
    }
    if (place == VERSIONS) {
        r->reads = !m->error;
        versions_opened(r, m->error, m->error ? 0 : result.arrays[0].generation, r->array);
    } else if (place == LOOKED_UP) {
        SIM_CHECK(m->error != PROTO_ERR_NOT_FOUND, "the hoard is lost");
    } else if (place == HOARDED && !m->error) {
        if (method == MSG_CREATE)
            last_hoarded = m->id / MSG_N_METHODS / N_PLACES;
        r->user->n_hoarded += method == MSG_CREATE;
        r->user->n_unhoarded += method == MSG_UNLINK;
    } else if (place && place <= N_NAMES) {
        check_name(r->user, place - 1, m, result.n_arrays ? result.arrays[0].array : 0);
    }
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

/* For what is its own, while others' comes back; for what is about all, until it is back. */
static void
check_wait(const struct remote *r)
{
    uint64_t since_ns = r->asked_ns > served_ns ? r->asked_ns : served_ns,
             until_ns = r->asked_all || !whole_ns ? world_now_ns() : whole_ns,
             waited_ns = until_ns > since_ns ? until_ns - since_ns : 0;

    if (served_ns && r->asked_ns && population.outlives && r->kind == QUIET)
        SIM_CHECK(waited_ns <= (r->asked_all ? ALL_NS : population.wait_ns),
                  "uid %u has waited for %llu ns", r->user->uid, (unsigned long long)waited_ns);
}

/* Its process may live on for a while; another one comes. */
static void
leave(struct remote *r)
{
    remote_hangup(r, sim_chance(50) ? 0 : sim_random(EXIT_NS));
    if (leaving || ending)
        return;
    struct remote *next = remote_new(r->user, r->kind, on_act, sim_random(RETURN_NS));
    if (r->versions)
        versions_new(next);
}

/* Who asks for little always says hello. */
static void
arrive(struct remote *r)
{
    const struct msg_str feature = MSG_STR("resume");
    const struct msg_hello_params params = {
        .version_min = 1,
        .version_max = 1,
        .features = {population.outlives ? &feature : NULL, population.outlives},
        .token = {r->comes_back ? r->token : NULL, r->comes_back ? ARRAY_SIZE(r->token) : 0},
    };

    if (r->comes_back)
        remote_reconnect(r);
    else
        remote_connect(r);
    if (r->user->kind == QUIET || leaving || r->comes_back || r->hoards || sim_chance(70))
        request(r, MSG_HELLO, &params);
}

/* Or another process does, in its place. */
static void
come_back(struct remote *r)
{
    r->killed = false;
    if (!r->token[0] || (r->versions && !versions_are_made(r)) ||
        (!r->hoards && sim_chance(30))) {
        leave(r);
        return;
    }
    r->comes_back = true;
    r->is_half = r->kind != QUIET && sim_chance(30);
    arrive(r);
}

/* Its first request is hello. false: no name is left. */
static bool
unhoard(struct remote *r)
{
    const uint32_t number = r->n_requests - N_TAKEN;

    return number <= r->user->n_hoard &&
           request_of(r, HOARDED, MSG_UNLINK,
                      &(struct msg_name_params){.name = MSG_STR(hoard_name(number)),
                                                .pool = MSG_STR("large")});
}

/* Takes the names of its uid away, and goes. */
static void
act_leaving(struct remote *r)
{
    read_all(r);
    while (r->n_requests < 1 + N_TAKEN) {
        uint32_t place = r->n_requests % N_NAMES;
        struct msg_name_params params = {.name = names[place]};
        if (r->n_requests == N_TAKEN) {
            params.name = MSG_STR("v/");
            request(r, MSG_UNLINK, &params);
            break;
        }
        if (r->n_requests > N_NAMES)
            params.pool = MSG_STR("shared");
        request_of(r, params.pool.p ? 0 : place + 1, MSG_UNLINK, &params);
    }
    while (r->n_asked < manners[GREEDY].n_asked && unhoard(r))
        ;
    if (r->n_asked > 0)
        return;
    SIM_CHECK(r->user->n_unhoarded >= r->user->n_hoarded, "%u names of %u are lost",
              r->user->n_hoarded - r->user->n_unhoarded, r->user->n_hoarded);
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
    if (!r->connected) /* it was not let in */
        return;
    if (sim_chance(m->percent_leaving)) {
        leave(r);
        return;
    }
    while (!r->comes_back && r->n_asked < m->n_asked &&
           (!r->hoards || r->n_requests <= r->user->n_hoard) && ask(r))
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
    if (r->killed)
        come_back(r);
    else if (r->over) {
        SIM_CHECK(r->user->kind != QUIET || ending, "uid %u is disconnected", r->user->uid);
        leave(r);
    } else if (leaving && r->versions) {
        read_all(r);
        if (!r->n_asked)
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

    check_wait(r);
    n_between += r->kind == QUIET && r->asked_ns && r->sock >= 0 && !loop_is_whole();
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
    bool publishes = kind == QUIET && population.publishes;
    struct user *user = &users[n_users];

    *user = (struct user){.uid = USERS_UID + n_users++,
                          .kind = kind,
                          .favourite = favourites[sim_random(ARRAY_SIZE(favourites))],
                          .n_conns = n + n_idle + publishes,
                          .arrays = calloc(N_NAMES, sizeof(uint64_t)),
                          .n_hoard = kind == GREEDY ? population.n_hoard : 0};
    TAILQ_INIT(&user->ready);
    for (uint32_t i = 0; i < user->n_conns; i++) {
        struct remote *r = remote_new(user, i < n + publishes ? kind : DEAD, on_act,
                                      sim_random(RETURN_NS + population.settling_ns / 5 * 4));
        r->hoards = i == 0 && user->n_hoard > 0;
        if (i == 0 && publishes)
            versions_new(r);
    }
    population.n_hoard -= user->n_hoard; /* the first's alone */
}

/* The first of each kind, then the second ones: fair.c follows some of each. */
void
users_init(const struct population *p)
{
    users = calloc(MAX_USERS, sizeof(*users));
    n_users = 0;
    n_waits = 0;
    n_between = 0;
    served_ns = whole_ns = 0;
    leaving = ending = false;
    population = *p;
    last_hoarded = 0;
    settled_ns = world_now_ns() + p->settling_ns;
    for (uint32_t i = 0; i < MAX_USERS / N_KINDS_OF_USERS; i++)
        for (int kind = 0; kind < N_KINDS_OF_USERS; kind++)
            if (i < p->n_users[kind])
                add_user((enum kind)kind);
    for (int i = 0; i < N_OPENED; i++)
        names[i] = (struct msg_str){"abcdefgh" + i % N_NAMES, 1};
    fair_init(users, n_users);
}

/* A publisher that waits goes when its readers have gone. */
static bool
goes_later(const struct remote *r)
{
    return r->versions && versions_are_made(r) && r->connected && !r->over && !r->killed &&
           !r->comes_back && r->n_asked;
}

static void
leave_all(void)
{
    struct remote *r;

    leaving = true;
    LIST_FOREACH(r, &remotes.all, link)
        if (!r->exit.run && !goes_later(r)) {
            check_wait(r);
            leave(r);
        }
}

/* What has come before is read; what is asked for is not answered any more. */
void
users_bereave(void)
{
    struct remote *r;

    served_ns = whole_ns = 0;
    LIST_FOREACH(r, &remotes.all, link) {
        if (!r->over || r->exit.run)
            continue;
        read_all(r);
        if (!r->connected) /* it was not let in */
            continue;
        r->killed = true;
        r->comes_back = r->is_half = false;
        r->asked_ns = 0;
        event_in(&r->act, sim_random(NOTICE_NS));
    }
}

void
users_find_served(void)
{
    if (!served_ns)
        served_ns = world_now_ns();
    if (!whole_ns && loop_is_whole())
        whole_ns = world_now_ns();
}

bool
users_have_hoarded(void)
{
    for (uint32_t i = 0; i < n_users; i++)
        if (users[i].n_hoarded < users[i].n_hoard / 100 * 95) /* some fail with the driver */
            return false;
    return true;
}

uint32_t
users_answered_between(void)
{
    return n_between;
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
    for (uint32_t i = 0; i < n_users; i++)
        free(users[i].arrays);
    free(users);
}

void
users_expect_end(void)
{
    ending = true;
    fair_deinit();
}
