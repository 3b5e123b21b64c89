/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core by property: lifetime, permission, limits, order of actions, protocol violations.
 */
#include "harness.h"

#include <errno.h>

#include "books.h"
#include "caid_test.h"
#include "refusal.h"
#include "state.h"

/* ---- lifetime ---- */

/* I9: what a reply promises is recorded before it. */
CORE_TEST(core, record_comes_before_the_promise, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h->n_records = 0;
    h_create_now(h, a, "w", NULL, 100);
    cr_assert_eq(h->n_records, 3);
    cr_assert_str_eq(h->records[0], "block 1");
    cr_assert_str_eq(h->records[1], "name uid:1000:w");
    cr_assert_str_eq(h->records[2], "send");

    h->n_records = 0;
    h_unlink(h, a, "w", NULL);
    cr_assert_str_eq(h->records[0], "name gone uid:1000:w");
    cr_assert_str_eq(h->records[1], "send");
    h->n_records = 0;
    h_close(h, a, 1);
    cr_assert_str_eq(h->records[0], "block gone 1");
    cr_assert_eq(h->jobs[0].type, CORE_RELEASE);
}

CORE_TEST(core, configured_pool_modes, NULL)
{
    uint64_t owner = h_connect(h, 1, 1), group = h_connect(h, 2, 10),
             other = h_connect(h, 3, 3);
    h_create_now(h, owner, "w", "shared", 100);
    cr_assert_eq(h_open(h, group, "w", "shared", "r")->error, 0);
    cr_assert_eq(h_open(h, group, "w", "shared", "rw")->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(h_create(h, group, "v", "shared", 1)->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(h_unlink(h, group, "w", "shared")->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(h_open(h, other, "w", "shared", "r")->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_open(h, other, "w", "shared", "rw")->error, PROTO_ERR_NOT_FOUND);
    h_create_now(h, other, "w", "open", 1);
    cr_assert_eq(h->replies[other].error, 0);
}

/* ---- limits ---- */

CORE_TEST(core, quota_of_a_pool, NULL)
{
    uint64_t a = h_connect(h, 1, 1);
    h_create_now(h, a, "big", "shared", 12 << 20);
    cr_assert_eq(h_create(h, a, "more", "shared", 6 << 20)->error, PROTO_ERR_QUOTA);
    cr_assert(strstr(h->replies[a].text, "16 MiB exceeded by 2 MiB"), "%s", h->replies[a].text);
    cr_assert_eq(h_counts(h).names, 1, "a refused create leaves no name");
    h_create_now(h, a, "fits", "shared", 4 << 20);
    cr_assert_eq(h->replies[a].error, 0);
}

static void
tight(struct core_config *config)
{
    config->limits = (struct core_limits){.connections = 2,
                                          .arrays = 3,
                                          .names = 2,
                                          .leases = 3,
                                          .watches = 1,
                                          .jobs = 2,
                                          .bytes = 10 << 20,
                                          .fds = 100};
}

CORE_TEST(core, limits_of_a_uid, tight)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    cr_assert_eq(h_connect_raw(h, 1000, 1000), 0, "a third connection");
    cr_assert_neq(h_connect_raw(h, 1001, 1001), 0, "another uid is not concerned");

    h_create(h, a, "1", NULL, 1);
    h_create(h, a, "2", NULL, 1);
    cr_assert_eq(h_create(h, a, NULL, NULL, 1)->error, PROTO_ERR_LIMIT, "a third job");
    cr_assert_eq(h_create(h, b, "3", NULL, 1)->error, PROTO_ERR_LIMIT, "a third name");
    h_finish_all(h);
    h_create_now(h, b, NULL, NULL, 1);
    cr_assert_eq(h_open(h, b, "1", NULL, "r")->error, PROTO_ERR_LIMIT, "a fourth lease");
    cr_assert_eq(h_create(h, b, NULL, NULL, 1)->error, PROTO_ERR_LIMIT, "a fourth array");
    cr_assert(strstr(h->replies[b].text, "3 arrays"), "%s", h->replies[b].text);
    h_close(h, a, 1);
    cr_assert_eq(h_open(h, b, "1", NULL, "r")->error, 0);
    h_unlink(h, b, "2", NULL);
    h_close(h, a, 2);
    h_finish_all(h);
    cr_assert_eq(h_create(h, b, NULL, NULL, 20 << 20)->error, PROTO_ERR_QUOTA, "bytes");
    cr_assert_eq(h_create(h, b, NULL, NULL, 65 << 20)->error, PROTO_ERR_NO_MEMORY, "device");
}

/* ---- what an administrator is told ---- */

static void
check_audit(struct harness *h, enum core_audit_kind kind, uid_t uid, const char *creator)
{
    cr_assert_eq(h->n_audits, 1);
    cr_assert_eq(h->audit.kind, kind);
    cr_assert_eq(h->audit.uid, uid);
    cr_assert_str_eq(h->audit.creator, creator);
    h->n_audits = 0;
}

CORE_TEST(core, audit_of_names_and_tickets_of_others, NULL)
{
    const uint64_t secret[] = {1, 2};

    uint64_t owner = h_connect(h, 1000, 1000), other = h_connect(h, 1001, 1001);
    h_create_now(h, owner, "own", "open", 100);
    h_unlink(h, owner, "own", "open");
    cr_assert_eq(h->n_audits, 0);
    h_create_now(h, owner, "w", "open", 100);
    uint64_t lease = h_open(h, other, "w", "open", "rw")->lease;
    h_request(h, other, MSG_SEND,
              &(struct msg_send_params){.lease = lease, .ticket = {secret, 2}});
    cr_assert_eq(h->replies[other].error, 0);
    h_disconnect(h, other);
    h_tick(h, H_AGE_NS);
    check_audit(h, AUDIT_TICKET, 1001, "1000");
    h_unlink(h, h_connect(h, 1001, 1001), "w", "open");
    check_audit(h, AUDIT_REMOVE, 1001, "1000");
}

CORE_TEST(core, audit_of_limits, tight)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_create(h, a, "1", NULL, 1);
    h_create(h, a, "2", NULL, 1);
    cr_assert_eq(h_create(h, a, NULL, NULL, 1)->error, PROTO_ERR_LIMIT);
    check_audit(h, AUDIT_LIMIT, 1000, "");
    h_finish_all(h);
    cr_assert_eq(h_create(h, a, NULL, NULL, 20 << 20)->error, PROTO_ERR_QUOTA);
    check_audit(h, AUDIT_LIMIT, 1000, "");
    cr_assert_eq(h_unlink(h, a, "3", NULL)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h->n_audits, 0);
}

CORE_TEST(core, pool_twice_in_a_configuration, NULL)
{
    struct core_config config = h->config;
    struct core_pool_config pools[] = {h->pools[0], h->pools[0]};

    config.pools = pools;
    cr_assert_eq(h_reconfigure(h, &config), -EINVAL);
}

CAID_TEST(core, refusals_say_sizes_and_nothing_old)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {
        {0, "0 bytes"},       {1023, "1023 bytes"},   {1024, "1 KiB"},
        {3 << 19, "1.5 MiB"}, {150 << 20, "150 MiB"}, {UINT64_MAX, "16 EiB"},
    };
    struct refusal r;

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        cr_assert_str_eq(SIZE_TEXT(sizes[i].bytes), sizes[i].text);
    memset(&r, 'x', sizeof(r));
    cr_assert_eq(refuse(&r, PROTO_ERR_LIMIT, "%d", 1), REFUSED);
    cr_assert(r.code == PROTO_ERR_LIMIT && !r.cuda && !r.left && !r.limit && !*r.pool);
    cr_assert_str_eq(r.text, "1");
}

/* ---- monitors ---- */

/* Without an answer at once, where nothing is kept. */
static struct h_reply *
ask_monitor(struct harness *h, uint64_t conn)
{
    return h_request(h, conn, MSG_MONITOR, &(struct msg_monitor_params){0});
}

CORE_TEST(core, monitor_asks_for_one_thing_at_a_time, NULL)
{
    const uint64_t uids[] = {1000, 1000};
    struct msg_monitor_params two = {.uid = {uids, 2}};

    uint64_t conns[6];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(conns); i++)
        conns[i] = h_connect(h, 1000, 1000);
    cr_assert_eq(h_request(h, conns[0], MSG_MONITOR, &two)->error, PROTO_ERR_INVALID);
    for (; n < 4; n++) {
        cr_assert_not(ask_monitor(h, conns[n])->seen);
        cr_assert_eq(ask_monitor(h, conns[n])->error, PROTO_ERR_INVALID, "it waits already");
    }
    cr_assert_eq(ask_monitor(h, conns[4])->error, PROTO_ERR_LIMIT, "a fifth");
    while (n > 0)
        h_disconnect(h, conns[--n]);
    h_request(h, conns[5], MSG_USERS, &(struct msg_users_params){0});
    cr_assert_eq(h->replies[conns[5]].users[0].watches, 0);
}

/* How many are kept of many large messages and of a few small ones after them. */
static uint64_t
keep(struct harness *h, uint64_t other, uint64_t looker, const char *name, uint64_t n_small)
{
    const uint64_t n_large = 1000;
    uint64_t n = 0;

    for (uint64_t i = 0; i < n_large; i++)
        h_unlink(h, other, name, NULL);
    for (uint64_t i = 0; i < n_small; i++)
        h_request(h, other, MSG_PING, NULL);
    do
        n += ask_monitor(h, looker)->n_entries;
    while (!h->replies[looker].n_lost);
    cr_assert_eq(n + h->replies[looker].n_lost, 2 * (n_large + n_small));
    return n;
}

/* What comes after a message that is lost is lost as well, however small it is. */
CORE_TEST(core, monitor_that_is_too_slow, NULL)
{
    char name[100] = {[0 ... 98] = 'n'};

    uint64_t other = h_connect(h, 1000, 1000), looker = h_connect(h, 1000, 1000);
    cr_assert_not(ask_monitor(h, looker)->seen);
    h_request(h, other, MSG_PING, NULL);
    cr_assert_eq(h->replies[looker].n_entries, 1);
    cr_assert_eq(ask_monitor(h, looker)->n_entries, 1, "and the answer");
    for (size_t n_name = 99; n_name > 50; n_name -= 4) { /* so that more or less is left over */
        name[n_name] = '\0';
        cr_assert_eq(keep(h, other, looker, name, 0), keep(h, other, looker, name, 100));
    }
    cr_assert_not(ask_monitor(h, looker)->seen, "a loss is told once");
}

/* Of everybody, unless it is uid 1000's. */
static struct h_reply *
look(struct harness *h, uint64_t looker, uid_t uid)
{
    return h_request(h, looker, MSG_MONITOR, &(struct msg_monitor_params){.all = uid != 1000});
}

/* Every monitor is told of names in the pools that it may read, whoever used them. */
CORE_TEST(core, monitor_names, NULL)
{
    static const struct {
        uid_t uid;
        const char *names;
    } lookers[] = {
        {0, "a;b;s;s;a,b;no;b;t/;t/k;t/;t/;n,n,n,n,n,n,n,n+2;b,b,b,b,b,b,b,b+1;b,b;"},
        {900, "b;b;no;b;t/;t/k;t/;t/;n,n,n,n,n,n,n,n+2;b,b,b,b,b,b,b,b+1;b,b;"},
        {1000, "a;b;a,b;no;b;t/;t/k;t/;t/;n,n,n,n,n,n,n,n+2;b,b,b,b,b,b,b,b+1;b,b;"},
    };
    const struct msg_str key = MSG_STR("k"), n = MSG_STR("n");
    struct msg_str many[10];
    uint64_t conns[ARRAY_SIZE(lookers)];

    uint64_t owner = h_connect(h, 1, 10), other = h_connect(h, 1000, 1000);
    h_create_now(h, owner, "s", "shared", 100);
    uint64_t member = h_connect(h, 1000, 10);
    for (size_t i = 0; i < ARRAY_SIZE(lookers); i++) {
        conns[i] = h_connect(h, lookers[i].uid, lookers[i].uid);
        cr_assert_not(look(h, conns[i], lookers[i].uid)->seen);
    }
    h_request(h, other, MSG_PING, NULL);

    uint64_t a = h_create_now(h, other, "a", NULL, 100)->lease;
    uint64_t b = h_create_now(h, other, "b", "open", 100)->lease;
    uint64_t s = h_open(h, member, "s", "shared", "r")->lease;
    h_request(h, member, MSG_OPEN_COMPANION, &(struct msg_open_companion_params){.lease = s});
    h_request(h, other, MSG_BEGIN,
              &(struct msg_begin_params){.bracket = 1, .read = {&a, 1}, .write = {&b, 1}});
    cr_assert_eq(h_open(h, other, "no", "open", "r")->error, PROTO_ERR_NOT_FOUND);
    h_open(h, other, "no", "nowhere", "r");
    h_request(h, other, MSG_LIST, &(struct msg_list_params){.prefix = n, .after = n});
    h_request(h, other, MSG_UNNAMED, &(struct msg_unnamed_params){.name = n, .array = 1});

    uint64_t set = h_create_now(h, other, NULL, "open", 0)->lease;
    h_request(h, other, MSG_STAGE, &(struct msg_stage_params){set, {&key, 1}, {&b, 1}});
    h_publish(h, other, set, "t/");
    cr_assert_eq(h_open(h, other, "t/k", "open", "r")->error, 0);
    h_request(h, other, MSG_OPEN,
              &(struct msg_open_params){.names = {&key, 1}, .of = set, .mode = MSG_STR("r")});
    cr_assert_eq(h->replies[other].error, 0);
    h_close(h, other, set);

    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = n;
    h_request(h, other, MSG_OPEN,
              &(struct msg_open_params){.names = {many, 10},
                                        .pool = MSG_STR("open"),
                                        .mode = MSG_STR("r")});
    uint64_t leases[10] = {[0 ... 8] = b};
    h_request(h, other, MSG_STAGE, &(struct msg_stage_params){b, {&key, 1}, {leases, 8}});
    leases[1] = a + 1000;
    h_request(h, other, MSG_STAGE, &(struct msg_stage_params){b, {&key, 1}, {leases, 2}});

    for (size_t i = 0; i < ARRAY_SIZE(lookers); i++)
        cr_assert_str_eq(look(h, conns[i], lookers[i].uid)->text, lookers[i].names);
}

/* The first place is that of a hello that was answered; nothing has the second one. */
CORE_TEST(core, metrics_from_a_place, NULL)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_request(h, a, MSG_METRICS, &(struct msg_metrics_params){0});
    uint32_t n = h_request(h, a, MSG_METRICS, &(struct msg_metrics_params){0})->n_entries;
    cr_assert_not(h->replies[a].more);
    h_request(h, a, MSG_METRICS, &(struct msg_metrics_params){.from = 1});
    cr_assert_eq(h->replies[a].n_entries, n - 1);
}

/* The driver's work for clients that have gone counts, or a loop of connecting, asking and
 * leaving would queue up without bound. */
CORE_TEST(core, jobs_of_clients_that_have_gone, tight)
{
    struct msg_memory_params params = {0};

    for (int i = 0; i < 2; i++) {
        uint64_t a = h_connect(h, 1000, 1000);
        cr_assert_not(h_request(h, a, MSG_MEMORY_INFO, &params)->seen);
        h_disconnect(h, a);
    }
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    cr_assert_eq(h_request(h, a, MSG_MEMORY_INFO, &params)->error, PROTO_ERR_LIMIT);
    cr_assert_not(h_request(h, b, MSG_MEMORY_INFO, &params)->seen, "another uid");
    h_finish_all(h);
    cr_assert_not(h_request(h, a, MSG_MEMORY_INFO, &params)->seen);
}

static void
one_thread(struct core_config *config)
{
    config->threads = 1;
}

/* Neither a uid's creates nor the memory that its end gives back go before all of another's. */
CORE_TEST(core, uids_take_turns, one_thread)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1001, 1001);
    for (int i = 0; i < 4; i++)
        h_create_now(h, a, NULL, NULL, 1);
    h_disconnect(h, a); /* four releases */
    a = h_connect(h, 1000, 1000);
    h_create(h, a, NULL, NULL, 4 << 20);
    cr_assert_not(h_create(h, b, NULL, NULL, 1)->seen);
    cr_assert_eq(h->n_jobs, 1, "one at a time");
    cr_assert_eq(h->jobs[0].type, CORE_RELEASE);
    h_finish(h, 0, 0);
    h_finish(h, 0, 0);
    cr_assert(h->replies[b].seen || (h_finish(h, 0, 0), h->replies[b].seen),
              "after two at most");
}

static void
little_memory(struct core_config *config)
{
    config->limits.host_bytes = 16 << 10;
}

/* An array of no bytes takes no device memory, but its name and field list live here. */
CORE_TEST(core, host_memory_of_a_uid, little_memory)
{
    static char descr[PROTO_DESCR_MAX];
    char name[16];
    int n = 0;

    uint64_t a = h_connect(h, 1000, 1000);
    do
        snprintf(name, sizeof(name), "%d", n++);
    while (h_create(h, a, name, NULL, 0)->error == 0);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_QUOTA);
    cr_assert(strstr(h->replies[a].text, "16 KiB of the daemon's memory"), "%s",
              h->replies[a].text);
    cr_assert(n > 5 && n < 20, "%d", n);
    for (int i = 0; i < n - 1; i++) {
        snprintf(name, sizeof(name), "%d", i);
        cr_assert_eq(h_unlink(h, a, name, NULL)->error, 0);
        h_close(h, a, (uint64_t)i + 1);
    }

    memset(descr, ' ', sizeof(descr));
    struct msg_create_params params = {.typestr = MSG_STR("|V8"),
                                       .descr = {descr, sizeof(descr)},
                                       .shape = {&(int64_t){0}, 1}};
    cr_assert_eq(h_request(h, a, MSG_CREATE, &params)->error, PROTO_ERR_QUOTA);
    params.descr.n = 100;
    cr_assert_eq(h_request(h, a, MSG_CREATE, &params)->error, 0);
}

/* Others read what a creator writes: it is bounded, and does nothing to a terminal. */
CORE_TEST(core, descr, NULL)
{
    static const struct msg_str bad[] = {{"[\n]", 3},
                                         {"\x1b[2J", 4},
                                         {"\x7f", 1},
                                         {"\xc2\x9b", 2},
                                         {"[\0]", 3}};
    static char longest[PROTO_DESCR_MAX + 1];
    struct msg_create_params params = {.typestr = MSG_STR("|V8"), .shape = {&(int64_t){0}, 1}};

    uint64_t a = h_connect(h, 1000, 1000);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        params.descr = bad[i];
        cr_assert_eq(h_request(h, a, MSG_CREATE, &params)->error, PROTO_ERR_INVALID, "%zu", i);
    }
    memset(longest, 'd', sizeof(longest));
    params.descr = (struct msg_str){longest, sizeof(longest)};
    cr_assert_eq(h_request(h, a, MSG_CREATE, &params)->error, PROTO_ERR_INVALID);
    params.descr.n--;
    cr_assert_eq(h_request(h, a, MSG_CREATE, &params)->error, 0);
    params.descr = MSG_STR("[[\"\xc3\xa9\", \"<f8\"]]");
    cr_assert_eq(h_request(h, a, MSG_CREATE, &params)->error, 0);
}

CORE_TEST(core, names, NULL)
{
    char longest[257];

    uint64_t a = h_connect(h, 1000, 1000);
    memset(longest, 'n', 256);
    longest[256] = '\0';
    cr_assert_eq(h_create(h, a, longest, NULL, 0)->error, PROTO_ERR_INVALID_NAME);
    longest[255] = '\0';
    cr_assert_eq(h_create(h, a, longest, NULL, 0)->error, 0);
    cr_assert_eq(h_create(h, a, "", NULL, 0)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_create(h, a, "a\nb", NULL, 0)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_create(h, a, "a\x7f", NULL, 0)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_create(h, a, "a\xc2\x85", NULL, 0)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_create(h, a, "grüße/1", NULL, 0)->error, 0);
    cr_assert_eq(h_create(h, a, "grüße/1", NULL, 0)->error, PROTO_ERR_EXISTS);
    cr_assert_eq(h_unlink(h, a, "absent", NULL)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_unlink(h, a, "a\nb", NULL)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_open(h, a, "a\nb", NULL, "r")->error, PROTO_ERR_INVALID_NAME);
}

/* ---- many ---- */

static void
many(struct core_config *config)
{
    config->limits.arrays = config->limits.names = config->limits.leases = 5000;
}

CORE_TEST(core, open_gives_the_first_that_fit, many)
{
    struct msg_str names[PROTO_OPEN_MAX];
    static char text[PROTO_OPEN_MAX][8];
    struct msg_open_params params = {.mode = MSG_STR("r")};

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    for (uint32_t i = 0; i < PROTO_OPEN_MAX; i++) {
        snprintf(text[i], sizeof(text[i]), "%u", i);
        names[i] = MSG_STR(text[i]);
        h_create(h, a, text[i], NULL, 0);
    }
    params.names = (struct msg_strs){names, PROTO_OPEN_MAX};
    uint32_t done = 0, messages = 0;
    while (done < PROTO_OPEN_MAX) {
        params.names = (struct msg_strs){names + done, PROTO_OPEN_MAX - done};
        struct h_reply *reply = h_request(h, b, MSG_OPEN, &params);
        cr_assert_eq(reply->error, 0);
        cr_assert_gt(reply->n_arrays, 0);
        done += reply->n_arrays;
        messages++;
    }
    cr_assert_eq(done, PROTO_OPEN_MAX);
    cr_assert_lt(messages, 10);
}

/* Of many dimensions, too: the reply stays within bytes and objects of a packet. */
CORE_TEST(core, open_of_many_dimensions, many)
{
    static const int64_t shape[PROTO_NDIM_MAX]; /* no bytes */
    struct msg_create_params create = {.name = MSG_STR("n"),
                                       .typestr = MSG_STR("|u1"),
                                       .shape = {shape, PROTO_NDIM_MAX}};
    struct msg_str names[PROTO_OPEN_MAX];
    struct msg_open_params params = {.names = {names, PROTO_OPEN_MAX}, .mode = MSG_STR("r")};

    uint64_t a = h_connect(h, 1000, 1000);
    cr_assert_eq(h_request(h, a, MSG_CREATE, &create)->error, 0);
    for (uint32_t i = 0; i < PROTO_OPEN_MAX; i++)
        names[i] = create.name;
    cr_assert_eq(h_request(h, a, MSG_OPEN, &params)->error, 0);
    cr_assert_gt(h->replies[a].n_arrays, 50);
    cr_assert_lt(h->replies[a].n_arrays, PROTO_OPEN_MAX);
    cr_assert_not(h->closed[a]);
}

CORE_TEST(core, open_of_several_is_all_or_none, NULL)
{
    struct msg_str names[] = {MSG_STR("1"), MSG_STR("missing")};
    struct msg_open_params params = {.names = {names, 2}, .mode = MSG_STR("r")};

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    h_create_now(h, a, "1", NULL, 10);
    cr_assert_eq(h_request(h, b, MSG_OPEN, &params)->error, PROTO_ERR_NOT_FOUND);
    cr_assert(strstr(h->replies[b].text, "missing"));
    cr_assert_eq(h_counts(h).leases, 1, "only the creator's");
    params.names.n = 0;
    cr_assert_eq(h_request(h, b, MSG_OPEN, &params)->error, PROTO_ERR_INVALID);
    params.names.n = 1;
    params.mode = MSG_STR("w");
    cr_assert_eq(h_request(h, b, MSG_OPEN, &params)->error, PROTO_ERR_INVALID);
}

CORE_TEST(core, list_by_pages, many)
{
    struct msg_list_params params = {0};
    char name[16], last[32] = "";
    uint32_t n = 0, pages = 0;

    uint64_t a = h_connect(h, 1000, 1000);
    for (int i = 0; i < 1500; i++) {
        snprintf(name, sizeof(name), "n%04d", i);
        h_create(h, a, name, NULL, 0);
    }
    do {
        struct h_reply *reply;
        params.after = MSG_STR(last);
        reply = h_request(h, a, MSG_LIST, &params);
        cr_assert_eq(reply->error, 0);
        cr_assert_str_eq(reply->names[0], (snprintf(name, sizeof(name), "n%04u", n), name));
        n += reply->n_entries;
        pages++;
        snprintf(last, sizeof(last), "n%04u", n - 1);
    } while (h->replies[a].more);
    cr_assert_eq(n, 1500);
    cr_assert_gt(pages, 2);

    params = (struct msg_list_params){.prefix = MSG_STR("n149")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->n_entries, 10);
    params = (struct msg_list_params){.all = true, .prefix = MSG_STR("n000")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->n_entries, 10);
    params = (struct msg_list_params){.prefix = MSG_STR("n149"), .after = MSG_STR("n1497")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->n_entries, 2);
    params = (struct msg_list_params){.prefix = MSG_STR("n0007"), .after = MSG_STR("n0006")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->n_entries, 1);
    params = (struct msg_list_params){.prefix = MSG_STR("n0007"), .after = MSG_STR("n0007")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->n_entries, 0);
    params = (struct msg_list_params){.prefix = MSG_STR("m"), .after = MSG_STR("n")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->n_entries, 0);
    params = (struct msg_list_params){.pool = MSG_STR("shared")};
    cr_assert_eq(h_request(h, a, MSG_LIST, &params)->error, PROTO_ERR_NOT_FOUND);
}

/* As many holders as fit beside the longest texts. */
CORE_TEST(core, show_of_many_holders, many)
{
    static char text[PROTO_METADATA_MAX];
    static const int64_t shape[PROTO_NDIM_MAX];
    static int64_t strides[PROTO_NDIM_MAX];
    static char longest[PROTO_NAME_MAX + 1], client[PROTO_CLIENT_MAX + 1];
    struct msg_hello_params hello = {.version_min = 1, .version_max = 1};
    struct msg_create_params create = {
        .typestr = MSG_STR("|V8"),
        .descr = {text, PROTO_DESCR_MAX},
        .metadata = {text, PROTO_METADATA_MAX},
        .shape = {shape, PROTO_NDIM_MAX},
        .strides = {strides, PROTO_NDIM_MAX},
    };

    memset(text, 'm', sizeof(text));
    memset(longest, 'n', PROTO_NAME_MAX);
    memset(client, 'c', PROTO_CLIENT_MAX);
    for (size_t i = 0; i < PROTO_NDIM_MAX; i++)
        strides[i] = INT64_MAX / 2;
    uint64_t a = h_connect_raw(h, 1000, 1000);
    hello.client = MSG_STR(client);
    h_request(h, a, MSG_HELLO, &hello);
    create.name = MSG_STR(longest);
    cr_assert_eq(h_request(h, a, MSG_CREATE, &create)->error, 0, "%s", h->replies[a].text);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(h_open(h, a, longest, NULL, "r")->error, 0);
    cr_assert_eq(h_show(h, a, longest, NULL)->error, 0);
    cr_assert_eq(h->replies[a].n_leases[0], 1001);
    cr_assert_gt(h->replies[a].n_entries, 300);
    h_unlink(h, a, longest, NULL);
    cr_assert_eq(h_request(h, a, MSG_UNNAMED, &(struct msg_unnamed_params){0})->n_entries, 1);
    cr_assert_not(h->closed[a]);
}

/* ---- protocol ---- */

CORE_TEST(core, hello_first_and_once, NULL)
{
    struct msg_hello_params hello = {.version_min = 1, .version_max = 9};
    struct msg_none none = {};

    uint64_t a = h_connect_raw(h, 1000, 1000);
    h_request(h, a, MSG_PING, &none);
    cr_assert(h->closed[a]);

    uint64_t b = h_connect_raw(h, 1000, 1000);
    cr_assert_eq(h_request(h, b, MSG_HELLO, &hello)->error, 0);
    cr_assert_eq(h_request(h, b, MSG_PING, &none)->error, 0);
    h_request(h, b, MSG_HELLO, &hello);
    cr_assert(h->closed[b]);
    cr_assert_not(h->replies[b].seen);

    uint64_t c = h_connect_raw(h, 1000, 1000);
    hello.version_min = 2;
    cr_assert_eq(h_request(h, c, MSG_HELLO, &hello)->error, PROTO_ERR_VERSION);
    cr_assert(h->closed[c]);

    uint64_t d = h_connect_raw(h, 1000, 1000), e = h_connect(h, 1000, 1000);
    cr_assert_eq(core_deadline_ns(h->core), 2000);
    core_tick(h->core, 1999);
    h_disconnect(h, a); /* only to have the actions carried out */
    cr_assert_not(h->closed[d]);
    core_tick(h->core, 2000);
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
    h_disconnect(h, b);
    cr_assert(h->closed[d]);
    cr_assert_not(h->closed[e]);
}

CORE_TEST(core, violations_end_only_their_connection, NULL)
{
    struct msg_buf buf = {0};
    struct msg_none none = {};
    static const uint8_t bomb[] = {0x94, 0, 1, 0xdd, 0xff, 0xff, 0xff, 0xff};
    /* [2, "ping", {}]: a request as notification */
    static const uint8_t notified_ping[] = "\x93\x02\xa4"
                                           "ping\x80";
    /* [0, 7, "frobnicate", {}] */
    static const uint8_t unknown[] = "\x94\x00\x07\xaa"
                                     "frobnicate\x80";

    uint64_t good = h_connect(h, 1000, 1000), a = h_connect(h, 1000, 1000);
    h_packet(h, a, bomb, sizeof(bomb));
    cr_assert(h->closed[a]);

    a = h_connect(h, 1000, 1000);
    h_packet(h, a, unknown, sizeof(unknown) - 1);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_UNKNOWN_METHOD);
    cr_assert_eq(h->replies[a].id, 7);
    cr_assert_not(h->closed[a]);

    h_packet(h, a, notified_ping, sizeof(notified_ping) - 1);
    cr_assert(h->closed[a]);

    a = h_connect(h, 1000, 1000);
    cr_assert_eq(msg_encode_result(&buf, 1, MSG_PING, &none), 0); /* a response */
    h_packet(h, a, buf.data, buf.n);
    cr_assert(h->closed[a]);

    a = h_connect(h, 1000, 1000);
    h_close(h, a, 4711); /* a lease that it has not */
    cr_assert(h->closed[a]);

    cr_assert_eq(h_request(h, good, MSG_PING, &none)->error, 0);
    msg_buf_deinit(&buf);
}

CORE_TEST(core, nothing_is_sent_to_a_connection_that_has_gone, NULL)
{
    struct msg_buf buf = {0};
    struct core_action action;

    uint64_t gone = h_connect(h, 1000, 1000), stays = h_connect(h, 1000, 1000);
    cr_assert_eq(msg_encode_request(&buf, 1, MSG_PING, &(struct msg_none){}), 0);
    core_receive(h->core, gone, buf.data, buf.n, 0);
    core_receive(h->core, stays, buf.data, buf.n, 0);
    core_hangup(h->core, gone);
    cr_assert(core_next(h->core, &action));
    cr_assert_eq(action.conn, stays);
    cr_assert_not(core_next(h->core, &action));
    msg_buf_deinit(&buf);
}

/* The process ends while clients' processes live on: nothing is waited for. */
CAID_TEST(core, end_with_all_kinds_of_things_left)
{
    struct harness h;

    h_init(&h, h_sharing);
    uint64_t a = h_connect(&h, 1000, 1000), b = h_connect(&h, 1001, 1001);
    h_create_now(&h, a, "named", NULL, 100);
    h_create_now(&h, a, "none", NULL, 0);
    h_create_now(&h, a, NULL, NULL, 100);
    h_create_now(&h, b, NULL, "open", 5 << 20);
    h_create_now(&h, b, NULL, "open", 100);
    h_close(&h, b, h.replies[b].lease);
    cr_assert_eq(h_counts(&h).pending, 1);
    core_stop(h.core);
    cr_assert(h_hangup(&h, a));
    cr_assert(h_hangup(&h, b));
    core_free(h.core);
}

CORE_TEST(core, stopping, NULL)
{
    struct msg_memory_params memory = {0};

    uint64_t a = h_connect(h, 1000, 1000);
    h_request(h, a, MSG_MEMORY_INFO, &memory);
    h_finish_all(h);
    cr_assert_eq(h->replies[a].n_entries, 1);
    core_stop(h->core);
    cr_assert_eq(h_create(h, a, NULL, NULL, 1)->error, PROTO_ERR_SHUTDOWN);
    cr_assert_eq(h_request(h, a, MSG_MEMORY_INFO, &memory)->error, PROTO_ERR_SHUTDOWN);
}

/* ---- ages ---- */

#define SECOND UINT64_C(1000000000)

/* To within a stamp, and never 0. */
static bool
is_age(uint64_t ns, uint64_t seconds)
{
    return ns > 0 && ns >= seconds * SECOND && ns < seconds * SECOND + (1 << STAMP_SHIFT);
}

/* Time that the machine sleeps counts. */
CORE_TEST(core, ages, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    struct h_reply array = *h_create_now(h, a, "x", NULL, 100);
    const struct h_reply *shown = h_show(h, b, "x", NULL);

    cr_assert(is_age(shown->entries[0].age_ns, 0) && is_age(shown->entries[0].opened_ns, 0));
    h_tick(h, 10 * SECOND);
    h_open(h, b, "x", NULL, "r");
    h->asleep_ns += 5 * SECOND;
    shown = h_show(h, b, "x", NULL);
    cr_assert(is_age(shown->entries[0].age_ns, 15) &&
              is_age(shown->entries[0].published_ns, 15));
    cr_assert(is_age(shown->entries[0].opened_ns, 5));
    cr_assert(is_age(shown->holders[0].age_ns, 5) && is_age(shown->holders[1].age_ns, 15));
    cr_assert_eq(h_publish(h, a, array.lease, "x")->error, 0, "anew");
    h_tick(h, SECOND);
    shown = h_show(h, b, "x", NULL);
    cr_assert(is_age(shown->entries[0].published_ns, 1) &&
              is_age(shown->entries[0].age_ns, 16));
    h_publish(h, a, array.lease, "y");
    shown = h_show(h, b, "y", NULL);
    cr_assert(is_age(shown->entries[0].published_ns, 0));
    h_unlink(h, a, "y", NULL);
    shown = h_request(h, b, MSG_UNNAMED, &(struct msg_unnamed_params){0});
    cr_assert_eq(shown->n_entries, 1);
    cr_assert_eq(shown->entries[0].published_ns, 0, "it has no name");
    cr_assert(is_age(shown->entries[0].age_ns, 16));
}

/* They are not recorded. */
CORE_TEST(core, ages_begin_anew, NULL)
{
    h_create_now(h, h_connect(h, 1000, 1000), "x", NULL, 100);
    h_tick(h, 10 * SECOND);
    saved_restart(h);
    const struct h_reply *shown = h_show(h, h_connect(h, 1000, 1000), "x", NULL);
    cr_assert(is_age(shown->entries[0].age_ns, 0) && is_age(shown->entries[0].published_ns, 0));
    cr_assert_eq(shown->entries[0].opened_ns, 0);
}
