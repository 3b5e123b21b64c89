/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal takes no more than is charged for it, whatever is recorded while it is renewed. And:
 * what is read of a damaged one.
 */
#include "journal.h"

#include <errno.h>

#include "array.h"
#include "block.h"
#include "books.h"
#include "caid_test.h"
#include "conn.h"
#include "expiry.h"
#include "random.h"
#include "set.h"
#include "state.h"

static char text[3000] = {[0 ... 2999] = 'x'};

/* Goes over to a new one, which has each record once. */
static size_t
renewed(struct harness *h)
{
    const struct journal *was = h->journal;

    while (h->journal == was) {
        saved_renew(h);
        h_tick(h, 0);
    }
    return h->journal->at;
}

/* ---- what is charged ---- */

#define TIMES 8

static uint64_t
some_array(struct harness *h, uint64_t conn, uint64_t i)
{
    const int64_t ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct msg_create_params p = {.typestr = MSG_STR("|V1"),
                                        .descr = {text, 1000},
                                        .shape = {ones, 8},
                                        .strides = {ones, 8},
                                        .name = {text, 100 + i},
                                        .metadata = {text, 1500}};

    h_request(h, conn, MSG_CREATE, &p);
    h_finish_all(h);
    return sizeof(struct array) + sizeof(struct range) + sizeof(struct lease);
}

static uint64_t
some_texts(struct harness *h, uint64_t conn, uint64_t i)
{
    const struct msg_publish_params p = {.lease = i,
                                         .name = {text, 200 + i},
                                         .metadata = {text, sizeof(text)},
                                         .ttl_ns = 1000000000};

    h_request(h, conn, MSG_PUBLISH, &p);
    return sizeof(struct expiry);
}

static uint64_t
some_set(struct harness *h, uint64_t conn, uint64_t i)
{
    const uint64_t set = h_create_now(h, conn, NULL, NULL, 0)->lease;
    const struct msg_str key = {text, 150};
    const char name[] = {'s', (char)('a' + i), '/'};

    h_request(h, conn, MSG_STAGE, &(struct msg_stage_params){set, {&key, 1}, {&i, 1}});
    h_request(h, conn, MSG_PUBLISH,
              &(struct msg_publish_params){.lease = set, .name = {name, sizeof(name)}});
    return sizeof(struct array) + sizeof(struct set) + sizeof(struct member);
}

static uint64_t
some_ticket(struct harness *h, uint64_t conn, uint64_t i)
{
    const uint64_t secret[] = {i, 1};

    h_request(h, conn, MSG_SEND, &(struct msg_send_params){.lease = i, .ticket = {secret, 2}});
    return sizeof(struct ticket);
}

static uint64_t
some_block(struct harness *h, uint64_t conn, uint64_t i)
{
    (void)i;
    h_made(h, conn, 1, exclusive);
    return sizeof(struct block) + sizeof(struct hold) + sizeof(struct array);
}

static uint64_t
some_timeline(struct harness *h, uint64_t conn, uint64_t i)
{
    char name[200] = {[0 ... 190] = 'x', (char)('a' + i)};

    h_timeline(h, conn, name, NULL, h_page_new(h, conn));
    return sizeof(struct page) + TIMELINE_PAGE_BYTES + sizeof(struct timeline);
}

/* One that comes back, with as much done as it may have under way. */
static uint64_t
some_client(struct harness *h, uint64_t conn, uint64_t i)
{
    const struct msg_str feature = MSG_STR("resume");
    char name[16];

    (void)i;
    conn = h_connect_raw(h, 1000, 1000);
    h_request(h, conn, MSG_HELLO, &(struct msg_hello_params){1, 1, .features = {&feature, 1}});
    for (int n = 0; n < DONE_MAX; n++) {
        snprintf(name, sizeof(name), "n%d", n % 2);
        h_create_now(h, conn, name, NULL, 0);
        h_unlink(h, conn, name, NULL);
    }
    return sizeof(struct conn);
}

/* Twice what is recorded, and what it takes beside. */
CORE_TEST(journal, is_charged_twice, h_sharing)
{
    static uint64_t (*const kinds[])(struct harness *, uint64_t,
                                     uint64_t) = {some_array,  some_texts, some_set,
                                                  some_ticket, some_block, some_timeline,
                                                  some_client};
    uint64_t conn = h_connect(h, 1000, 1000);

    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        uint64_t heap = 0, was = h->core->used[RES_HOST];
        size_t at = renewed(h);
        for (uint64_t i = 1; i <= TIMES; i++) {
            heap += kinds[k](h, conn, i);
            cr_assert_eq(h->replies[conn].error, 0, "%zu: %s", k, h->replies[conn].text);
        }
        at = renewed(h) - at;
        cr_assert_gt(at, TIMES * 64);
        cr_assert_geq(h->core->used[RES_HOST] - was, heap + 2 * at, "kind %zu", k);
    }
}

/* ---- what it takes ---- */

#define MANY 2000

static void
room_for_many(struct core_config *config)
{
    h_sharing(config);
    config->limits.arrays = config->limits.names = config->limits.leases = 2 * MANY;
}

/* While it is renewed, whoever records as much as he can adds a part of it. */
CORE_TEST(journal, is_bounded_while_it_is_renewed, room_for_many)
{
    uint64_t conn = h_connect(h, 1000, 1000);
    const struct msg_publish_params p = {.lease = 1,
                                         .name = MSG_STR("n"),
                                         .metadata = {text, sizeof(text)}};

    for (int i = 0; i < MANY; i++)
        h_create_now(h, conn, NULL, NULL, 0);
    h_request(h, conn, MSG_PUBLISH, &p);
    size_t live = renewed(h), from = h->journal->at;
    h->by_hand = true;
    saved_renew(h);
    while (!core_journal_is_renewed(h->core))
        h_request(h, conn, MSG_PUBLISH, &p);
    h->by_hand = false;
    cr_assert_gt(h->journal->at, from + 3 * sizeof(text));
    cr_assert_lt(h->journal->at, from + live / 4 + 2 * sizeof(text));
}

/* What has gone is not paid for any more. */
CORE_TEST(journal, is_large_when_little_of_it_counts, room_for_many)
{
    uint64_t conn = h_connect(h, 1000, 1000);

    for (uint64_t i = 1; i <= MANY; i++)
        h_create_now(h, conn, NULL, NULL, 0);
    cr_assert_not(core_journal_is_large(h->core));
    for (uint64_t i = 1; i <= MANY; i++)
        h_close(h, conn, i);
    cr_assert(core_journal_is_large(h->core));
    renewed(h);
    cr_assert_not(core_journal_is_large(h->core));
}

/* The old one is whole, until the shell gives both up. */
CORE_TEST(journal, is_right_where_the_next_one_is_full, h_sharing)
{
    uint64_t conn = h_connect(h, 1000, 1000);
    uint64_t x = h_create_now(h, conn, "x", NULL, 100)->lease;

    h->by_hand = true;
    saved_renew(h);
    h->core->persist.next->size = h->core->persist.next->at;
    h_begun(h, conn, x, true); /* before the next one has it, and after */
    h_tick(h, 0);
    h->by_hand = false;
    uint64_t y = h_create_now(h, conn, "y", NULL, 100)->lease;
    saved_check(h);
    h_begun(h, conn, y, true);
    cr_assert(h->core->persist.next->full && !core_journal_is_renewed(h->core));
    saved_check(h);
}

/* ---- slices ---- */

#define BLOCKS 200

static void
room_for_blocks(struct core_config *config)
{
    h_sharing(config);
    config->blocks = config->limits.leases = BLOCKS;
}

/* Whatever one connection, or all, have: no event has more to write than another. */
CORE_TEST(journal, is_renewed_in_slices, room_for_blocks)
{
    const size_t slice = 5 * 1024;
    uint64_t conn = h_connect(h, 1000, 1000);
    struct msg_create_params pinned = exclusive;
    size_t at = 0;

    pinned.memory = MSG_STR("pinned");
    for (int i = 0; i < BLOCKS; i++)
        h_made(h, conn, 1, pinned);
    core_set_pieces(h->core, 8);
    h->by_hand = true;
    saved_renew(h);
    const struct journal *next = h->core->persist.next;
    for (; !core_journal_is_renewed(h->core); h_tick(h, 0)) {
        cr_assert_lt(next->at - at, slice);
        at = next->at;
    }
    h->by_hand = false;
    cr_assert_gt(at, 5 * slice);
}

/* ---- reading what is damaged ---- */

static uint64_t
append(struct journal *journal, uint8_t type)
{
    memset(journal_begin(journal, type, 12), type, 12);
    return journal_end(journal, 0);
}

/* Where reading it ends; 0: journal_open() returned another error than that. */
static uint64_t
read_end(uint8_t *bytes, size_t size, int error)
{
    struct journal journal = {.bytes = bytes, .size = size};
    struct journal_record record;
    uint64_t place = JOURNAL_START;

    if (journal_open(&journal) != error)
        return 0;
    while (!error && journal_next(&journal, &place, &record))
        ;
    return place;
}

CAID_TEST(journal, is_cut_off_where_it_is_damaged)
{
    static _Alignas(8) uint8_t bytes[1024];
    struct journal journal = {.bytes = bytes, .size = sizeof(bytes)};

    cr_assert_eq(journal_init(&journal), 0);
    append(&journal, 1);
    uint64_t last = append(&journal, 2);
    journal_commit(&journal);
    cr_assert_eq(read_end(bytes, sizeof(bytes), 0), journal.at);
    for (size_t i = 0; i < JOURNAL_HEAD + 12; i++) {
        if (i >= 7 && i < JOURNAL_HEAD)
            continue; /* a mark changes, and is in no checksum */
        bytes[last + i] ^= 4;
        cr_assert_eq(read_end(bytes, sizeof(bytes), 0), last, "byte %zu", i);
        bytes[last + i] ^= 4;
    }
    cr_assert_neq(read_end(bytes, journal.at - 8, -EPROTO), 0, "shorter than it says");
    bytes[8]++;
    cr_assert_neq(read_end(bytes, sizeof(bytes), -ENOTSUP), 0, "a newer version");
}

/* ---- what has been done ---- */

#define DOERS 300 /* connections: more than are replaced in place */

/* In any order, and so often that those which another replaces are dropped meanwhile. */
CAID_TEST(journal, last_done_of_each_place)
{
    static uint32_t last[DOERS][DONE_MAX];
    const size_t size = 20 << 20;
    _cleanup_free_ uint8_t *bytes = calloc(1, size);
    struct journal journal = {.bytes = bytes, .size = size};
    struct restore restore;
    uint64_t state = 1;

    cr_assert_eq(journal_init(&journal), 0);
    for (uint32_t i = 1; i < 300000; i++) {
        uint32_t conn = random_below(&state, 2) ? 7 : random_below(&state, DOERS);
        uint32_t place = random_below(&state, DONE_MAX);
        struct record_done *done = journal_begin(&journal, RECORD_DONE, sizeof(*done));
        done->key = (struct record_key){conn, place};
        done->done.request = last[conn][place] = i;
        journal_end(&journal, 0);
    }
    cr_assert_eq(restore_read(&restore, &journal), 0);
    cr_assert_eq(restore.n_dones, DOERS * DONE_MAX);
    for (size_t i = 0; i < restore.n_dones; i++) {
        const struct record_done *done = restore.dones[i];
        cr_assert_eq(done->done.request, last[done->key.id][done->key.of]);
    }
    restore_deinit(&restore);
}
