/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: limits, what lists tell, and whom a producer waits for after a restart. Who takes part,
 * who produces, and what he leaves to the next one: model_channel.c.
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
members(struct harness *h, const struct party *p, uint64_t seen)
{
    return h_request(h, p->conn, MSG_MEMBERS, &(struct msg_members_params){p->lease, seen});
}

static void
admit(struct harness *h, const struct party *p, uint64_t member, uint64_t sequence)
{
    h_notify(h, p->conn, MSG_ADMIT, &(struct msg_admit_params){p->lease, member, sequence});
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

static void
assert_refused(const struct h_reply *reply, enum proto_error error)
{
    cr_assert(reply->seen);
    cr_assert_eq(reply->error, error, "%u: %s", reply->error, reply->text);
}

/* The rest of what is refused: model_channel.c. */
CORE_TEST(channel, refuses_what_does_not_fit, NULL)
{
    make_array(h, SLOTS);
    struct party w = party(h, "rw"), r = party(h, "r");
    struct party other = r;
    other.page = w.page;
    assert_refused(read_in(h, &other), PROTO_ERR_INVALID);
    other = w;
    other.page = h_page_new_with(h, w.conn, TAIL - 1);
    assert_refused(produce(h, &other), PROTO_ERR_INVALID);
    cr_assert_eq(h_request(h, w.conn, MSG_PAGE,
                           &(struct msg_page_params){.tail = PROTO_TAIL_MAX + 1})
                     ->error,
                 PROTO_ERR_INVALID);
    cr_assert_eq(produce(h, &w)->error, 0);
    other = party(h, "rw");
    assert_refused(produce(h, &other), PROTO_ERR_BUSY);
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

static void
figures(void *userdata, struct core_figures *ret)
{
    ret->dying = *(const bool *)userdata;
}

/* The keeper kills a page of before a restart, and is waited for, also by a reader: it might take
 * what that page says for the newest. */
CORE_TEST(channel, begins_after_the_kill, NULL)
{
    bool dying = true;

    make_array(h, SLOTS);
    for (int i = 0; i < 2; i++) {
        struct party w = party(h, "rw");
        produce(h, &w);
        saved_restart(h);
        h_exit(h, w.conn);
        struct party next = party(h, "rw");
        core_set_figures(h->core, figures, &dying);
        cr_assert(!produce(h, &next)->seen);
        h_tick(h, 10000000);
        cr_assert(!next.reply->seen);
        dying = false;
        h_tick(h, 10000000);
        cr_assert(next.reply->seen && !next.reply->error);
        core_set_figures(h->core, NULL, NULL);
        h_disconnect(h, next.conn);
        dying = true;
    }
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
