/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: who takes part, who produces, and what a producer leaves to the next one.
 */
#include "array.h"
#include "books.h"
#include "caid_test.h"
#include "participant.h"
#include "random.h"
#include "state.h"

#define SLOTS 8
#define TAIL  CHANNEL_TABLE_BYTES(SLOTS)

struct party { /* one that takes part, or would */
    uint64_t conn, lease, array, page;
    struct h_reply *reply; /* to what it asked last */
    bool writes;
};

static struct party
party(struct harness *h, const char *mode)
{
    struct party p = {.conn = h_connect_raw(h, 1000, 1000)};

    p.reply = h_hello(h, p.conn, 0);
    p.lease = h_open(h, p.conn, "cam", NULL, mode)->lease;
    p.array = p.reply->arrays[0].number;
    p.writes = strcmp(mode, "rw") == 0;
    p.page = h_page_new_with(h, p.conn, TAIL);
    return p;
}

static void
make_array(struct harness *h, int64_t slots)
{
    uint64_t conn = h_connect(h, 1000, 1000);

    cr_assert_eq(h_create_now(h, conn, "cam", NULL, slots)->error, 0);
    h_disconnect(h, conn);
}

static struct h_reply *
join_as(struct harness *h, const struct party *p, struct msg_join_params params)
{
    params.lease = p->lease;
    params.page = p->page;
    return h_request(h, p->conn, MSG_JOIN, &params);
}

static struct h_reply *
produce(struct harness *h, const struct party *p)
{
    return join_as(h, p, (struct msg_join_params){.produce = true});
}

/* Without a producer, at once. */
static struct h_reply *
read_in(struct harness *h, const struct party *p)
{
    return join_as(h, p, (struct msg_join_params){.depth = 1});
}

static struct h_reply *
wait_in(struct harness *h, const struct party *p)
{
    return join_as(h, p, (struct msg_join_params){.depth = 1, .wait = true});
}

static struct h_reply *
members(struct harness *h, const struct party *p, uint64_t seen)
{
    return h_request(h, p->conn, MSG_MEMBERS, &(struct msg_members_params){p->lease, seen});
}

static void
admit(struct harness *h, const struct party *p, uint64_t member, uint64_t sequence)
{
    h_notify(h, p->conn, MSG_ADMIT, &(struct msg_admit_params){p->lease, member, sequence});
}

static void
leave(struct harness *h, const struct party *p, uint64_t member)
{
    h_notify(h, p->conn, MSG_LEAVE, &(struct msg_leave_params){member});
}

/* What a producer's library does for a frame that lands, or not yet; is_void: it is given up. */
static void
put(struct harness *h, const struct party *p, uint32_t slot, uint64_t sequence, bool lands,
    bool is_void)
{
    struct timeline_slot *slots = h_slot(h, p->page, 0);
    struct channel_entry *entry = &channel_table_of(slots)->entries[slot];

    atomic_store(&entry->sequence, sequence);
    if (is_void)
        atomic_store(&entry->given_up, sequence);
    atomic_store(&entry->info[0], 1000 + sequence);
    atomic_store(&slots->submitted, sequence);
    if (lands)
        atomic_store(&slots->done, sequence);
}

/* A reader that comes first is in at once, and counts with no producer before that has let it in;
 * one that comes later waits for that. */
CORE_TEST(channel, readers_are_let_in, NULL)
{
    make_array(h, SLOTS);
    struct party r = party(h, "r"), w = party(h, "rw"), s = party(h, "r");
    cr_assert_eq(read_in(h, &r)->error, 0);
    cr_assert(r.reply->seen && r.reply->member && !r.reply->producer);
    cr_assert(!wait_in(h, &r)->seen);
    cr_assert_eq(produce(h, &w)->error, 0);
    cr_assert(w.reply->seen && w.reply->n_entries == 0 && w.reply->sequence == 0);
    cr_assert(!r.reply->seen);

    const struct h_reply *list = members(h, &w, 0);
    uint64_t version = list->producer, first = list->in_channel[0].member;
    cr_assert(list->n_entries == 1 && list->n_pages == 1 && !list->in_channel[0].admitted);
    cr_assert_eq(list->in_channel[0].page, r.page);
    cr_assert_eq(list->in_channel[0].depth, 1);
    admit(h, &w, first, 7);
    cr_assert(r.reply->seen && r.reply->producer == w.page && r.reply->sequence == 7);
    cr_assert_eq(r.reply->n_pages, 1);

    cr_assert(!members(h, &w, version)->seen, "nothing has changed");
    cr_assert(!read_in(h, &s)->seen, "there is a producer");
    cr_assert(w.reply->seen && w.reply->n_entries == 2 && w.reply->n_pages == 1);
    cr_assert(w.reply->in_channel[0].admitted && w.reply->in_channel[0].sequence == 7);
    admit(h, &w, w.reply->in_channel[1].member, 9);
    cr_assert(s.reply->seen && s.reply->sequence == 9);
    cr_assert_eq(read_in(h, &s)->sequence, 9, "a rejoin says the same");

    members(h, &w, w.reply->producer);
    cr_assert_neq(w.reply->producer, version);
    leave(h, &r, first);
    cr_assert(w.reply->seen && w.reply->n_entries == 1);
    admit(h, &w, first, 11);
    cr_assert_eq(read_in(h, &r)->seen, false, "the same page is another member");
}

static void
assert_refused(const struct h_reply *reply, enum proto_error error)
{
    cr_assert(reply->seen);
    cr_assert_eq(reply->error, error, "%u: %s", reply->error, reply->text);
}

CORE_TEST(channel, refuses_what_does_not_fit, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r");
    struct party other = r;
    assert_refused(produce(h, &r), PROTO_ERR_INVALID);
    assert_refused(join_as(h, &r, (struct msg_join_params){.depth = 0}), PROTO_ERR_INVALID);
    assert_refused(join_as(h, &r, (struct msg_join_params){.depth = CHANNEL_DEPTH_MAX + 1}),
                   PROTO_ERR_INVALID);
    other.page = h_page_new(h, r.conn);
    assert_refused(read_in(h, &other), PROTO_ERR_INVALID);
    other.page = w.page;
    assert_refused(read_in(h, &other), PROTO_ERR_INVALID);
    other = w;
    other.page = h_page_new_with(h, w.conn, TAIL - 1);
    assert_refused(produce(h, &other), PROTO_ERR_INVALID);
    other.lease = h_create_now(h, w.conn, NULL, NULL, 100)->lease;
    assert_refused(produce(h, &other), PROTO_ERR_INVALID);
    assert_refused(members(h, &w, 0), PROTO_ERR_INVALID);
    cr_assert_eq(h_request(h, w.conn, MSG_PAGE,
                           &(struct msg_page_params){.tail = PROTO_TAIL_MAX + 1})
                     ->error,
                 PROTO_ERR_INVALID);

    cr_assert_eq(join_as(h, &w, (struct msg_join_params){.produce = true, .latest = true})
                     ->error,
                 0);
    assert_refused(read_in(h, &r), PROTO_ERR_INVALID);
    assert_refused(join_as(h, &r, (struct msg_join_params){.depth = 6, .latest = true}),
                   PROTO_ERR_LIMIT);
    cr_assert(!join_as(h, &r, (struct msg_join_params){.depth = 5, .latest = true})->seen);
    assert_refused(join_as(h, &r, (struct msg_join_params){.depth = 5, .latest = true}),
                   PROTO_ERR_INVALID);
    other = party(h, "r");
    assert_refused(join_as(h, &other, (struct msg_join_params){.depth = 1, .latest = true}),
                   PROTO_ERR_LIMIT);
    other = party(h, "rw");
    assert_refused(join_as(h, &other, (struct msg_join_params){.produce = true}),
                   PROTO_ERR_INVALID);
    assert_refused(join_as(h, &other,
                           (struct msg_join_params){.produce = true, .latest = true}),
                   PROTO_ERR_BUSY);
    char pid[32];
    snprintf(pid, sizeof(pid), "pid %d", (int)h->pids[w.conn]);
    cr_assert(strstr(other.reply->text, pid));
}

static void
many_pages(struct core_config *config)
{
    config->limits.pages = 2 * CHANNEL_READERS_MAX;
}

CORE_TEST(channel, has_at_most_so_many_readers, many_pages)
{
    make_array(h, SLOTS);
    struct party r = party(h, "r");

    for (int i = 0; i < CHANNEL_READERS_MAX; i++) {
        cr_assert_eq(read_in(h, &r)->error, 0, "%s", r.reply->text);
        r.page = h_page_new_with(h, r.conn, TAIL);
    }
    assert_refused(read_in(h, &r), PROTO_ERR_LIMIT);
    struct party w = party(h, "rw");
    cr_assert_eq(produce(h, &w)->error, 0);
    cr_assert_eq(members(h, &w, 0)->n_pages, CHANNEL_READERS_MAX);
}

/* Readers do not decide what a channel is. */
CORE_TEST(channel, has_the_mode_of_its_first_producer, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r"), s = party(h, "r");
    read_in(h, &r);
    join_as(h, &s, (struct msg_join_params){.depth = 4, .latest = true, .wait = true});
    cr_assert(!s.reply->seen);
    cr_assert_eq(produce(h, &w)->error, 0);
    assert_refused(s.reply, PROTO_ERR_INVALID);
    cr_assert_eq(members(h, &w, 0)->n_entries, 1);
}

/* The next producer goes on above all that was submitted, and has the frames that are whole. */
static void
assert_taken_over(struct harness *h, const struct party *next)
{
    const struct h_reply *reply = next->reply;

    cr_assert(reply->seen && reply->error == 0, "%s", reply->text);
    cr_assert_eq(reply->sequence, 5);
    cr_assert_eq(reply->n_entries, 2);
    cr_assert(reply->kept[0].slot == 2 && reply->kept[0].sequence == 2 &&
              reply->kept[0].info == 1002);
    cr_assert(reply->kept[1].slot == 4 && reply->kept[1].sequence == 4);
    cr_assert_eq(members(h, next, 0)->in_channel[0].admitted, false);
}

static void
fill(struct harness *h, const struct party *w)
{
    put(h, w, 2, 2, true, false);
    put(h, w, 3, 3, true, true); /* void */
    put(h, w, 4, 4, true, false);
    put(h, w, 5, 5, false, false);
}

/* What no producer could go on with is left out. */
CORE_TEST(channel, impossible_sequences_are_not_kept, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), next = party(h, "rw");
    produce(h, &w);
    put(h, &w, 0, CHANNEL_SEQUENCE_MAX + 1, true, false);
    put(h, &w, 2, 2, false, false);
    h_disconnect(h, w.conn);
    cr_assert_eq(produce(h, &next)->error, 0);
    cr_assert_eq(next.reply->n_entries, 1);
    cr_assert(next.reply->kept[0].slot == 2 && next.reply->sequence == 2);
}

/* A reader that finds the former's page alive may still take what that says for the newest. */
static void
assert_dead(struct harness *h, uint64_t conn, const struct h_reply *reply)
{
    const uint64_t *of = h->userdata; /* a connection, and the page that is to be dead */

    cr_assert(conn != of[0] || reply->error || !h_page(h, of[1]) || h_page(h, of[1])->killed);
}

CORE_TEST(channel, is_taken_over_after_the_exit, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), next = party(h, "rw"), r = party(h, "r");
    read_in(h, &r);
    produce(h, &w);
    admit(h, &w, members(h, &w, 0)->in_channel[0].member, 1);
    fill(h, &w);
    timeline_kill(h_slot(h, w.page, 0)); /* as its library does when the context has died */
    members(h, &w, w.reply->producer);
    h_hangup(h, w.conn);
    struct party late = party(h, "rw");
    cr_assert(!produce(h, &next)->seen, "its streams may still write");
    cr_assert(!produce(h, &late)->seen);
    cr_assert(wait_in(h, &r)->producer == w.page, "it is let in by this one");
    uint64_t of[] = {next.conn, w.page};
    h->userdata = of;
    h->on_reply = assert_dead;
    h_exit(h, w.conn);
    h->on_reply = NULL;
    assert_taken_over(h, &next);
    assert_refused(late.reply, PROTO_ERR_BUSY);
    cr_assert(!wait_in(h, &r)->seen, "the next one lets it in anew");

    /* One that dies before it has what was kept takes nothing away. */
    h_disconnect(h, next.conn);
    cr_assert(!r.reply->seen);
    cr_assert_eq(produce(h, &late)->error, 0);
    assert_taken_over(h, &late);
    /* And one that has gone on from there, its own. */
    atomic_store(&h_slot(h, late.page, 0)->done, 5);
    put(h, &late, 6, 6, true, false);
    h_disconnect(h, late.conn);
    struct party last = party(h, "rw");
    cr_assert_eq(produce(h, &last)->sequence, 6);
    cr_assert_eq(last.reply->n_entries, 1);
}

/* Told that there is none any more, once the former has left or exited. */
CORE_TEST(channel, without_a_producer, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r");
    uint64_t member = produce(h, &w)->member;
    cr_assert(!read_in(h, &r)->seen);
    leave(h, &w, member);
    cr_assert(r.reply->seen && !r.reply->producer && r.reply->former == w.page);
    cr_assert(!wait_in(h, &r)->seen);
    cr_assert_eq(produce(h, &w)->error, 0, "the same page once more");
    cr_assert_neq(w.reply->member, member);
    admit(h, &w, members(h, &w, 0)->in_channel[0].member, 0);
    cr_assert(r.reply->seen && r.reply->producer == w.page);
    h_drop_page(h, w.conn, w.page);
    cr_assert_eq(read_in(h, &r)->former, w.page, "a page that is given up");
}

CORE_TEST(channel, requests_are_cancelled, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r"), next = party(h, "rw");
    uint32_t id = wait_in(h, &r)->id;

    id = h->next_id;
    h_cancel(h, r.conn, id);
    assert_refused(r.reply, PROTO_ERR_CANCELLED);
    produce(h, &w);
    cr_assert_eq(members(h, &w, 0)->n_entries, 0, "it was never in");
    cr_assert(!members(h, &w, w.reply->producer)->seen);
    id = h->next_id;
    h_cancel(h, w.conn, id);
    assert_refused(w.reply, PROTO_ERR_CANCELLED);
    h_hangup(h, w.conn);
    produce(h, &next);
    id = h->next_id;
    h_cancel(h, next.conn, id);
    assert_refused(next.reply, PROTO_ERR_CANCELLED);
    h_exit(h, w.conn);
    cr_assert_eq(produce(h, &next)->error, 0);

    /* A rejoin that is given up leaves the member where it is. */
    read_in(h, &r);
    admit(h, &next, members(h, &next, 0)->in_channel[0].member, 3);
    h_disconnect(h, next.conn);
    cr_assert(!wait_in(h, &r)->seen);
    id = h->next_id;
    h_cancel(h, r.conn, id);
    struct party last = party(h, "rw");
    produce(h, &last);
    cr_assert_eq(members(h, &last, 0)->n_entries, 1);
    /* It goes with its connection's process, not before. */
    h_hangup(h, r.conn);
    cr_assert(!members(h, &last, last.reply->producer)->seen);
    h_exit(h, r.conn);
    cr_assert(last.reply->seen && last.reply->n_entries == 0);
}

CORE_TEST(channel, is_listed, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r");
    uint64_t other = h_connect(h, 1001, 1001);
    struct msg_channels_params params = {.all = true};
    produce(h, &w);
    read_in(h, &r);
    put(h, &w, 5, 5, false, false);
    struct channel_reader *reader = channel_reader_of(h_slot(h, r.page, 0));
    atomic_store(&reader->got, 3);
    atomic_store(&reader->missed, 1);
    const struct h_reply *reply = h_request(h, r.conn, MSG_CHANNELS, &params);
    const struct msg_channel_entry *of = reply->channels;
    cr_assert(reply->n_entries == 2 && of[0].producer && of[0].sequence == 5 && !of[0].lag);
    cr_assert(of[0].slots == SLOTS && of[0].pid == (uint64_t)h->pids[w.conn]);
    cr_assert(!of[1].producer && of[1].sequence == 3 && of[1].missed == 1 && of[1].lag == 2);
    atomic_store(&reader->got, UINT64_MAX);
    atomic_store(&reader->missed, UINT64_MAX);
    of = h_request(h, r.conn, MSG_CHANNELS, &params)->channels;
    cr_assert(of[1].sequence == CHANNEL_SEQUENCE_MAX && of[1].missed == CHANNEL_SEQUENCE_MAX);
    cr_assert_eq(of[1].lag, 0);
    params.after = of[0].member;
    cr_assert_eq(h_request(h, r.conn, MSG_CHANNELS, &params)->n_entries, 1);
    params.after = of[0].member;
    cr_assert_eq(h_request(h, r.conn, MSG_CHANNELS, &params)->n_entries, 0);
    params.after = 0;
    cr_assert_eq(h_request(h, other, MSG_CHANNELS, &params)->n_entries, 0, "of another pool");
    timeline_kill(h_slot(h, w.page, 0));
    params.all = false;
    cr_assert_eq(h_request(h, r.conn, MSG_CHANNELS, &params)->channels[0].sequence, 0);
}

/* Who cannot be sent the producer's page takes no part. */
CORE_TEST(channel, has_no_reader_over_a_limit, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r");
    struct core_config config = h->config;
    produce(h, &w);
    cr_assert(!read_in(h, &r)->seen);
    uint64_t member = members(h, &w, 0)->in_channel[0].member;
    config.limits.host_bytes = 1;
    cr_assert_eq(h_reconfigure(h, &config), 0);
    cr_assert(!members(h, &w, w.reply->producer)->seen);
    admit(h, &w, member, 1);
    assert_refused(r.reply, PROTO_ERR_QUOTA);
    cr_assert(w.reply->seen && w.reply->n_entries == 0);
}

/* The array has no name and no lease any more: who takes part does not keep it. */
CORE_TEST(channel, ends_with_its_array, NULL)
{
    make_array(h, SLOTS);
    struct party r = party(h, "r");
    wait_in(h, &r);
    h_unlink(h, r.conn, "cam", NULL);
    r.reply->seen = false;
    h_close(h, r.conn, r.lease);
    assert_refused(r.reply, PROTO_ERR_CANCELLED);
    cr_assert(RB_EMPTY(&h->core->channels) && RB_EMPTY(&h->core->participants));
}

static void
resume(struct harness *h, struct party *p, bool writes)
{
    uint64_t conn = h_connect_as(h, 1000, 1000, h->pids[p->conn]);
    const uint64_t lease[] = {p->lease, p->array};
    struct msg_resume_params params = {.done = true, .pages = {&p->page, 1}};

    *(writes ? &params.write : &params.read) = (struct msg_u64s){lease, 2};
    cr_assert(h_hello(h, conn, p->conn)->resumed);
    cr_assert_eq(h_request(h, conn, MSG_RESUME, &params)->error, 0);
    p->conn = conn;
    p->reply = &h->replies[conn];
}

static void
figures(void *userdata, struct core_figures *ret)
{
    ret->dying = *(const bool *)userdata;
}

/* The keeper kills a page of before a restart, and is waited for. */
static void
assert_begins_after_the_kill(struct harness *h, const struct party *next)
{
    bool dying = true;

    core_set_figures(h->core, figures, &dying);
    cr_assert(!produce(h, next)->seen);
    h_tick(h, 10000000);
    cr_assert(!next->reply->seen);
    dying = false;
    h_tick(h, 10000000);
    assert_taken_over(h, next);
    core_set_figures(h->core, NULL, NULL);
}

/* All that was answered is as it was; what was not is asked once more. */
CORE_TEST(channel, outlives_the_daemon, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r"), next = party(h, "rw");
    read_in(h, &r);
    produce(h, &w);
    admit(h, &w, members(h, &w, 0)->in_channel[0].member, 1);
    uint64_t version = w.reply->producer;
    fill(h, &w);
    h_tick(h, 1000); /* it takes longer than what has changed */
    saved_restart(h);
    resume(h, &next, true);
    cr_assert(!produce(h, &next)->seen, "the producer may come back");
    resume(h, &r, false);
    cr_assert(read_in(h, &r)->producer == w.page && r.reply->sequence == 1);
    resume(h, &w, true);
    members(h, &w, version);
    cr_assert(w.reply->seen && w.reply->in_channel[0].admitted, "another version");
    assert_refused(next.reply, PROTO_ERR_BUSY);
    saved_restart(h);
    h_exit(h, w.conn);
    resume(h, &next, true);
    assert_begins_after_the_kill(h, &next);
    saved_restart(h);
    h_exit(h, next.conn);
    struct party last = party(h, "rw");
    assert_begins_after_the_kill(h, &last);
}

/* The daemon has died with a page whose owner had it, and before it sealed another one, which takes
 * part. */
CORE_TEST(channel, pages_are_sealed_by_the_next_daemon, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r");
    produce(h, &w);
    h_page(h, w.page)->sealed = false;
    saved_restart(h);
    resume(h, &w, true);
    resume(h, &r, false);
    cr_assert_not(h_page(h, w.page)->sealed || h_page(h, r.page)->sealed);
    read_in(h, &r);
    admit(h, &w, members(h, &w, 0)->in_channel[0].member, 1);
    cr_assert_eq(r.reply->producer, w.page);
    cr_assert(h_page(h, w.page)->sealed && h_page(h, r.page)->sealed);
}

/* ---- anything, in any order ---- */

/* What must hold is what check.c and the books say after each event: who is answered what and when,
 * each page once, all that is charged. The channel is for one that comes last as for the first. */
static void
step(struct harness *h, struct party *p, uint64_t *random)
{
    uint64_t member = h->core->next_page - random_below(random, 8);
    struct msg_join_params params = {
        .produce = random_below(random, 2) && p->writes,
        .latest = random_below(random, 8) == 0,
        .depth = random_below(random, 3),
        .wait = random_below(random, 2),
    };

    switch (random_below(random, 8)) {
    case 0:
        put(h, p, random_below(random, SLOTS), random_below(random, 50), true, false);
        break;
    case 1: members(h, p, p->reply->producer); break;
    case 2: leave(h, p, member); break;
    case 3: h_cancel(h, p->conn, h->next_id - random_below(random, 4)); break;
    case 4: admit(h, p, member, random_below(random, 50)); break;
    default: join_as(h, p, params);
    }
}

static void
many_of_all(struct core_config *config)
{
    config->limits.pages = config->limits.connections = 64;
}

CORE_TEST(channel, in_any_order, many_of_all)
{
    const char *seed = getenv("CAID_TEST_SEED");
    uint64_t random = seed ? strtoull(seed, NULL, 10) : 1;
    struct party parties[5];
    bool ended[ARRAY_SIZE(parties)] = {0};

    printf("CAID_TEST_SEED=%llu\n", (unsigned long long)random);
    make_array(h, SLOTS);
    for (size_t i = 0; i < ARRAY_SIZE(parties); i++)
        parties[i] = party(h, i % 2 ? "r" : "rw");
    for (int i = 0; i < 2000 && h->next_conn < H_CONNS - 4; i++) {
        uint32_t who = random_below(&random, ARRAY_SIZE(parties));
        struct party *p = &parties[who];
        if (ended[who] || random_below(&random, 40) == 0) {
            if (!ended[who])
                h_hangup(h, p->conn);
            else
                h_exit(h, p->conn);
            if (ended[who])
                *p = party(h, who % 2 ? "r" : "rw");
            ended[who] = !ended[who];
        } else {
            step(h, p, &random);
        }
    }
    for (size_t i = 0; i < ARRAY_SIZE(parties); i++)
        h_disconnect(h, parties[i].conn);
    struct party last = party(h, "rw");
    cr_assert(
        join_as(h, &last,
                (struct msg_join_params){.produce = true,
                                         .latest =
                                             RB_MIN(channels, &h->core->channels)->latest})
            ->error == 0);
    cr_assert(last.reply->seen && members(h, &last, 0)->n_entries == 0);
}
