/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of parts of one array, made by `stage_parts`: what they keep, what they are charged, their
 * layout.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "books.h"
#include "caid_test.h"

static struct msg_member
member_at(const char *key, uint64_t offset, const int64_t *bytes)
{
    return (struct msg_member){.key = MSG_STR(key),
                               .offset = offset,
                               .typestr = MSG_STR("|u1"),
                               .shape = {bytes, 1}};
}

static const int64_t bytes[] = {100, 200};

#define TWO                                                          \
    {                                                                \
        member_at("a", 0, &bytes[0]), member_at("b", 300, &bytes[1]) \
    }

/* A whole of 1,000 bytes and an empty set: their leases. */
static void
make(struct harness *h, uint64_t conn, uint64_t *ret_whole, uint64_t *ret_set)
{
    *ret_whole = h_small(h, conn, 1000).lease;
    *ret_set = h_small(h, conn, 0).lease;
}

static uint64_t
layout_of(struct harness *h, uint64_t conn, const struct msg_member *members, uint32_t n)
{
    uint64_t whole, set;

    make(h, conn, &whole, &set);
    const struct h_reply *reply = h_stage_parts(h, conn, set, whole, members, n, false);
    cr_assert_eq(reply->error, 0, "%s", reply->text);
    uint64_t layout = reply->layout;
    h_close(h, conn, set);
    h_close(h, conn, whole);
    return layout;
}

static struct msg_user
charged(struct harness *h)
{
    uint64_t root = h_connect(h, 0, 0);
    const struct h_reply *reply =
        h_request(h, root, MSG_USERS, &(struct msg_users_params){.from = 1000});
    struct msg_user user = reply->users[0];

    cr_assert_eq(user.uid, 1000);
    h_disconnect(h, root);
    return user;
}

/* ---- what is made ---- */

CORE_TEST(set_parts, are_there_as_members_alone, h_sharing)
{
    const struct msg_member two[] = TWO;
    uint64_t whole, set;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    make(h, a, &whole, &set);
    struct h_reply made = *h_stage_parts(h, a, set, whole, two, 2, false);
    cr_assert_eq(made.error, 0, "%s", made.text);
    cr_assert_neq(made.layout, 0);
    cr_assert_eq(h_open(h, b, "s/", NULL, "r")->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_publish(h, a, set, "s/")->error, 0);
    const struct h_reply *reply = h_open(h, b, "s/", NULL, "r");
    cr_assert_eq(reply->members, 2);
    cr_assert_eq(reply->layout, made.layout);
    uint64_t opened = reply->lease;
    reply = h_open(h, b, "s/b", NULL, "r");
    cr_assert_eq(reply->arrays[0].nbytes, 200);
    cr_assert_eq(reply->arrays[0].number, made.array + 1,
                 "the second one's number is the next");
    cr_assert_eq(reply->layout, 0, "it is no set");
    uint64_t offset = reply->offset, second = reply->lease;
    cr_assert_eq(h_open(h, b, "s/a", NULL, "r")->offset, offset - 300);
    uint64_t first = h->replies[b].lease;

    /* the set keeps the members, and these the whole */
    h_close(h, a, whole);
    uint64_t held = charged(h).bytes;
    cr_assert_gt(held, 0);
    h_close(h, a, set);
    h_unlink(h, b, "s/", NULL);
    cr_assert_eq(charged(h).bytes, held);
    h_close(h, b, opened);
    h_close(h, b, first);
    cr_assert_eq(charged(h).bytes, held);
    h_close(h, b, second);
    cr_assert_eq(charged(h).bytes, 0);
    cr_assert_not(h_parts(h, a)->seen, "it is not to be told of them");
}

CORE_TEST(set_parts, are_told_of_where_that_is_asked_for, h_sharing)
{
    const struct msg_member two[] = TWO;
    uint64_t whole, set;

    uint64_t a = h_connect(h, 1000, 1000);
    make(h, a, &whole, &set);
    uint64_t first = h_stage_parts(h, a, set, whole, two, 2, true)->array;
    h_close(h, a, set);
    const struct h_reply *reply = h_parts(h, a);
    cr_assert(reply->seen);
    cr_assert_eq(reply->n_parts, 2);
    cr_assert_eq(reply->parts[0] + reply->parts[1], 2 * first + 1);
}

/* Published again and again, it is the same set. */
CORE_TEST(set_parts, are_published_again, h_sharing)
{
    const struct msg_member two[] = TWO;
    uint64_t wholes[2], sets[2], numbers[2], generation = 0;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    for (int i = 0; i < 2; i++) {
        make(h, a, &wholes[i], &sets[i]);
        h_stage_parts(h, a, sets[i], wholes[i], two, 2, false);
    }
    for (int i = 0; i < 6; i++) {
        struct h_reply published = *h_publish(h, a, sets[i % 2], "s/");
        cr_assert_eq(published.error, 0, "%s", published.text);
        cr_assert_gt(published.generation, generation);
        generation = published.generation;
        struct h_reply reply = *h_open(h, b, "s/", NULL, "r");
        cr_assert_eq(reply.generation, generation);
        if (i >= 2)
            cr_assert_eq(reply.arrays[0].number, numbers[i % 2]);
        numbers[i % 2] = reply.arrays[0].number;
        h_close(h, b, reply.lease);
    }
    h_unlink(h, a, "s/", NULL);
}

/* ---- the layout ---- */

CORE_TEST(set_parts, have_one_layout_in_whatever_order, h_sharing)
{
    static const int64_t columns[] = {10, 10}, steps[] = {10, 1}, wide[] = {20, 1};
    const struct msg_member two[] = TWO;
    const struct msg_member turned[] = {two[1], two[0]};

    uint64_t a = h_connect(h, 1000, 1000), layout = layout_of(h, a, two, 2);
    cr_assert_neq(layout, 0);
    cr_assert_eq(layout_of(h, a, two, 2), layout);
    cr_assert_eq(layout_of(h, a, turned, 2), layout);

    struct msg_member others[8];
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        others[i] = two[0];
    others[1].key = MSG_STR("c");
    others[2].offset = 1;
    others[3].typestr = MSG_STR("|i1");
    others[4].shape = (struct msg_i64s){columns, 2};
    others[5].shape = (struct msg_i64s){columns, 2};
    others[5].strides = (struct msg_i64s){wide, 2};
    others[6].typestr = MSG_STR("|V1");
    others[7].typestr = MSG_STR("|V1");
    others[7].descr = MSG_STR("[[\"x\", \"|u1\"]]");
    uint64_t layouts[ARRAY_SIZE(others)];
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        layouts[i] = layout_of(h, a, &others[i], 1);
        for (size_t k = 0; k < i; k++)
            cr_assert_neq(layouts[i], layouts[k], "%zu and %zu", i, k);
    }
    others[4].strides = (struct msg_i64s){steps, 2};
    cr_assert_eq(layout_of(h, a, &others[4], 1), layouts[4], "C order, whether said or not");
}

CORE_TEST(set_parts, have_no_layout_beside_others, h_sharing)
{
    const struct msg_member two[] = TWO;
    const struct msg_str key = MSG_STR("c");
    uint64_t whole, other, set, second;

    uint64_t a = h_connect(h, 1000, 1000);
    make(h, a, &whole, &set);
    make(h, a, &other, &second);
    cr_assert_neq(h_stage_parts(h, a, set, whole, two, 1, false)->layout, 0);
    cr_assert_eq(h_stage_parts(h, a, set, other, two + 1, 1, false)->layout, 0);
    cr_assert_neq(h_stage_parts(h, a, second, whole, two, 2, false)->layout, 0);
    h_request(h, a, MSG_STAGE, &(struct msg_stage_params){second, {&key, 1}, {&whole, 1}});
    cr_assert_eq(h->replies[a].error, 0, "%s", h->replies[a].text);
    cr_assert_eq(h_publish(h, a, second, "t/")->error, 0);
    cr_assert_eq(h_open(h, a, "t/", NULL, "r")->layout, 0, "the whole is no part");
    h_unlink(h, a, "t/", NULL);
}

/* What was refused leaves no trace in it. */
CORE_TEST(set_parts, have_the_layout_of_what_was_staged, h_sharing)
{
    const struct msg_member two[] = TWO, again[] = {two[1], two[0]};
    uint64_t whole, set;

    uint64_t a = h_connect(h, 1000, 1000), layout = layout_of(h, a, two, 2);
    make(h, a, &whole, &set);
    h_stage_parts(h, a, set, whole, two, 1, false);
    cr_assert_eq(h_stage_parts(h, a, set, whole, again, 2, false)->error, PROTO_ERR_EXISTS);
    cr_assert_eq(h_stage_parts(h, a, set, whole, two + 1, 1, false)->layout, layout);
}

/* ---- refusals, charges ---- */

CORE_TEST(set_parts, all_or_none, h_sharing)
{
    const struct msg_member two[] = TWO;

    const struct {
        struct msg_member second;
        enum proto_error error;
    } wrong[] = {
        {member_at("a", 0, &bytes[0]), PROTO_ERR_EXISTS},
        {member_at("", 0, &bytes[0]), PROTO_ERR_INVALID_NAME},
        {member_at("b", 901, &bytes[0]), PROTO_ERR_INVALID},
        {member_at("b", UINT64_MAX, &bytes[0]), PROTO_ERR_INVALID},
        {member_at("b", 1001, &(int64_t){0}), PROTO_ERR_INVALID},
        {member_at("b", 0, &(int64_t){-1}), PROTO_ERR_INVALID},
    };

    uint64_t whole, set;

    uint64_t a = h_connect(h, 1000, 1000);
    make(h, a, &whole, &set);
    struct msg_user was = charged(h);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        const struct msg_member both[] = {two[0], wrong[i].second};
        cr_assert_eq(h_stage_parts(h, a, set, whole, both, 2, i % 2)->error, wrong[i].error,
                     "%zu: %s", i, h->replies[a].text);
        struct msg_user is = charged(h);
        cr_assert(is.arrays == was.arrays && is.names == was.names && is.host == was.host);
    }
    cr_assert_eq(h_stage_parts(h, a, set, whole, two, 2, false)->error, 0);
    cr_assert_eq(charged(h).arrays, was.arrays + 2);
    cr_assert_eq(charged(h).names, was.names + 2);
    h_close(h, a, set);
    struct msg_user is = charged(h);
    cr_assert_eq(is.arrays, was.arrays - 1);
    cr_assert_eq(is.names, was.names);
    cr_assert_lt(is.host, was.host);
}

CORE_TEST(set_parts, whose_they_may_be, h_sharing)
{
    const struct msg_member two[] = TWO;
    uint64_t whole, set, whole_b, set_b;

    uint64_t a = h_connect(h, 1, 1), b = h_connect(h, 1001, 1001);
    make(h, a, &whole, &set);
    make(h, b, &whole_b, &set_b);
    cr_assert_eq(h_stage_parts(h, a, set, whole, two, 0, false)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_stage_parts(h, a, set, whole + 77, two, 2, false)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_stage_parts(h, a, set, set, two, 2, false)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_stage_parts(h, a, whole, whole, two, 2, false)->error, PROTO_ERR_INVALID);
    uint64_t open = h_create_now(h, a, "x", "open", 1000)->lease;
    cr_assert_eq(h_stage_parts(h, a, set, open, two, 2, false)->error, PROTO_ERR_INVALID,
                 "of another pool");
    uint64_t in_open = h_create_now(h, b, NULL, "open", 0)->lease;
    uint64_t others = h_open(h, b, "x", "open", "rw")->lease;
    cr_assert_eq(h_stage_parts(h, b, in_open, others, two, 2, false)->error,
                 PROTO_ERR_PERMISSION, "another one pays for the whole");
    cr_assert_eq(h_stage_parts(h, b, set_b, whole_b, two, 2, false)->error, 0);
    h_publish(h, b, set_b, "s/");
    cr_assert_eq(h_stage_parts(h, b, set_b, whole_b, two, 2, false)->error, PROTO_ERR_INVALID,
                 "it has had a name");
    h_unlink(h, b, "s/", NULL);
    h_unlink(h, a, "x", "open");
}

/* A set keeps its members, and a part its whole: none of them keeps itself. */
CORE_TEST(set_parts, keep_nothing_in_a_circle, h_sharing)
{
    const struct msg_member none[] = {member_at("a", 0, &(int64_t){0})};
    const struct msg_str key = MSG_STR("a");
    uint64_t a = h_connect(h, 1000, 1000), sets[2];

    for (int i = 0; i < 2; i++)
        sets[i] = h_small(h, a, 0).lease;
    uint64_t was = charged(h).arrays;
    cr_assert_eq(h_stage_parts(h, a, sets[0], sets[0], none, 1, false)->error,
                 PROTO_ERR_INVALID);
    cr_assert_eq(h_stage_parts(h, a, sets[1], sets[0], none, 1, false)->error, 0);
    cr_assert_eq(h_stage_parts(h, a, sets[0], sets[1], none, 1, false)->error,
                 PROTO_ERR_INVALID);
    uint64_t part = h_request(h, a, MSG_OPEN,
                              &(struct msg_open_params){.names = {&key, 1},
                                                        .of = sets[1],
                                                        .mode = MSG_STR("r")})
                        ->lease;
    h_request(h, a, MSG_STAGE, &(struct msg_stage_params){sets[0], {&key, 1}, {&part, 1}});
    cr_assert_eq(h->replies[a].error, PROTO_ERR_INVALID);
    h_close(h, a, part);
    h_close(h, a, sets[0]);
    h_close(h, a, sets[1]);
    cr_assert_eq(charged(h).arrays, was - 2);
}

/* Nor is a part that has no bytes a set, when the set that it was in has gone. */
CORE_TEST(set_parts, are_no_sets, h_sharing)
{
    const struct msg_member none[] = {member_at("a", 0, &(int64_t){0})};
    const struct msg_str key = MSG_STR("a");
    uint64_t a = h_connect(h, 1000, 1000), whole, set;

    make(h, a, &whole, &set);
    h_stage_parts(h, a, set, whole, none, 1, false);
    uint64_t part = h_request(h, a, MSG_OPEN,
                              &(struct msg_open_params){.names = {&key, 1},
                                                        .of = set,
                                                        .mode = MSG_STR("rw")})
                        ->lease;
    cr_assert_eq(h->replies[a].error, 0);
    h_close(h, a, set);
    h_request(h, a, MSG_STAGE, &(struct msg_stage_params){part, {&key, 1}, {&whole, 1}});
    cr_assert_eq(h->replies[a].error, PROTO_ERR_INVALID);
    cr_assert_eq(h_stage_parts(h, a, part, whole, none, 1, false)->error, PROTO_ERR_INVALID);
}

static uint64_t host_limit;

static void
little_host(struct core_config *config)
{
    h_sharing(config);
    config->limits.host_bytes = host_limit;
}

/* At every limit of the daemon's memory all of it is there, or nothing. */
CAID_TEST(set_parts, limit_of_host_memory)
{
    static struct harness h;
    const struct msg_member two[] = TWO;
    uint64_t whole, set, before, most, refused = 0;

    h_init(&h, h_sharing);
    uint64_t a = h_connect(&h, 1000, 1000);
    make(&h, a, &whole, &set);
    h_page_new(&h, a); /* as much as the create's waiter took */
    before = charged(&h).host;
    h_stage_parts(&h, a, set, whole, two, 2, true);
    most = charged(&h).host;
    h_deinit(&h);
    for (host_limit = before; host_limit <= most; host_limit += 8) {
        h_init(&h, little_host);
        a = h_connect(&h, 1000, 1000);
        make(&h, a, &whole, &set);
        h_page_new(&h, a);
        uint64_t was = charged(&h).host;
        const struct h_reply *reply = h_stage_parts(&h, a, set, whole, two, 2, true);
        cr_assert_eq(reply->error, host_limit < most ? PROTO_ERR_QUOTA : 0, "%s", reply->text);
        refused += reply->error != 0;
        cr_assert_eq(charged(&h).host, host_limit < most ? was : most);
        h_deinit(&h);
    }
    cr_assert_gt(refused, 10);
}

/* ---- over a restart ---- */

CORE_TEST(set_parts, come_back_with_their_layout, h_sharing)
{
    const struct msg_member three[] = {member_at("a", 0, &bytes[0]),
                                       member_at("b", 300, &bytes[1]),
                                       member_at("none", 1000, &(int64_t){0})};
    uint64_t whole, set;

    uint64_t a = h_connect(h, 1000, 1000);
    make(h, a, &whole, &set);
    uint64_t layout = h_stage_parts(h, a, set, whole, three, 3, false)->layout;
    h_publish(h, a, set, "s/");
    cr_assert_eq(h_open(h, a, "s/none", NULL, "r")->arrays[0].block, 0, "it has no bytes");
    uint64_t number = h_open(h, a, "s/b", NULL, "r")->arrays[0].number;
    uint64_t offset = h->replies[a].offset;
    h_disconnect(h, a);
    saved_restart(h);
    a = h_connect(h, 1000, 1000);
    const struct h_reply *reply = h_open(h, a, "s/", NULL, "r");
    cr_assert_eq(reply->layout, layout);
    cr_assert_eq(reply->members, 3);
    reply = h_open(h, a, "s/b", NULL, "r");
    cr_assert_eq(reply->arrays[0].number, number);
    cr_assert_eq(reply->offset, offset);
    reply = h_open(h, a, "s/none", NULL, "r");
    cr_assert(reply->arrays[0].block == 0 && reply->arrays[0].offset == 0);
    h_unlink(h, a, "s/", NULL);
}

/* ---- vacate ---- */

/* A set of two parts that was published as "s/", and whose name has gone to another set. */
struct slot {
    uint64_t conn, whole, set, generation;
};

static struct slot
displaced_of(struct harness *h, uint64_t conn)
{
    const struct msg_member two[] = TWO;
    struct slot slot = {.conn = conn};
    uint64_t other_whole, other;

    make(h, slot.conn, &slot.whole, &slot.set);
    h_stage_parts(h, slot.conn, slot.set, slot.whole, two, 2, false);
    slot.generation = h_publish(h, slot.conn, slot.set, "s/")->generation;
    make(h, slot.conn, &other_whole, &other);
    h_stage_parts(h, slot.conn, other, other_whole, two, 2, false);
    cr_assert_eq(h_publish(h, slot.conn, other, "s/")->error, 0);
    h_close(h, slot.conn, other);
    h_close(h, slot.conn, other_whole);
    return slot;
}

static struct slot
displaced(struct harness *h)
{
    return displaced_of(h, h_connect(h, 1000, 1000));
}

/* The end of a test. */
static void
unname(struct harness *h, const struct slot *slot)
{
    h_unlink(h, slot->conn, "s/", NULL);
}

static uint64_t
open_old(struct harness *h, uint64_t conn, const struct slot *slot, const char *name)
{
    const struct h_reply *reply = h_open_generation(h, conn, name, NULL, slot->generation);

    cr_assert_eq(reply->error, 0, "%s", reply->text);
    return reply->lease;
}

static bool
is_vacant(const struct harness *h, const struct slot *slot)
{
    const struct h_reply *reply = &h->replies[slot->conn];

    cr_assert(!reply->seen || !reply->error, "%s", reply->text);
    return reply->seen;
}

CORE_TEST(set_parts, are_vacant_at_once, h_sharing)
{
    struct slot slot = displaced(h);

    h_vacate(h, slot.conn, slot.set, slot.whole, 0);
    cr_assert(is_vacant(h, &slot));
    cr_assert_eq(h_open_generation(h, slot.conn, "s/", NULL, slot.generation)->error,
                 PROTO_ERR_STALE, "nobody gets what is being written");
    cr_assert_eq(h_open_generation(h, slot.conn, "s/a", NULL, slot.generation)->error,
                 PROTO_ERR_STALE);
    cr_assert_eq(h_publish(h, slot.conn, slot.set, "s/")->error, 0);
    cr_assert_gt(h->replies[slot.conn].generation, slot.generation + 1);
    unname(h, &slot);
}

/* Each lease on the set or a member keeps it, until the last one has ended. */
CORE_TEST(set_parts, are_vacant_when_readers_have_closed, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000), c = h_connect(h, 1000, 1000);

    uint64_t set = open_old(h, b, &slot, "s/"), a = open_old(h, b, &slot, "s/a");
    uint64_t other = open_old(h, c, &slot, "s/b");
    h_vacate(h, slot.conn, slot.set, slot.whole, 0);
    cr_assert_not(is_vacant(h, &slot));
    h_close(h, b, set);
    h_close(h, b, a);
    cr_assert_not(is_vacant(h, &slot));
    h_hangup(h, c);
    cr_assert_not(is_vacant(h, &slot), "its process lives, and its streams");
    h_exit(h, c);
    cr_assert(is_vacant(h, &slot));
    (void)other;
    unname(h, &slot);
}

CORE_TEST(set_parts, are_kept_by_leases_that_are_not_said_to_be_own, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000);

    h_vacate(h, slot.conn, slot.set, 0, 0);
    cr_assert_not(is_vacant(h, &slot), "the whole is open");
    h_cancel(h, slot.conn, h->next_id);
    cr_assert_eq(h->replies[slot.conn].error, PROTO_ERR_CANCELLED);
    uint64_t member = open_old(h, slot.conn, &slot, "s/a");
    h_vacate(h, slot.conn, slot.set, slot.whole, 0);
    cr_assert_not(is_vacant(h, &slot));
    h_close(h, slot.conn, member);
    cr_assert(is_vacant(h, &slot));
    (void)b;
    unname(h, &slot);
}

static const uint64_t secret[] = {1, 2};

CORE_TEST(set_parts, are_kept_by_tickets, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000), member = open_old(h, b, &slot, "s/a");

    h_request(h, b, MSG_SEND,
              &(struct msg_send_params){.lease = member, .ticket = {secret, 2}});
    h_close(h, b, member);
    h_vacate(h, slot.conn, slot.set, slot.whole, 0);
    cr_assert_not(is_vacant(h, &slot));
    h_request(h, b, MSG_TAKE,
              &(struct msg_take_params){.ticket = {secret, 2}, .mode = MSG_STR("r")});
    cr_assert_not(is_vacant(h, &slot));
    h_close(h, b, h->replies[b].lease);
    cr_assert(is_vacant(h, &slot));
    unname(h, &slot);
}

/* By names of members, other sets, other parts of the same memory. */
CORE_TEST(set_parts, are_kept_by_what_can_be_opened, h_sharing)
{
    const struct msg_str key = MSG_STR("x");
    struct slot slot = displaced(h);
    uint64_t a = slot.conn, member = open_old(h, a, &slot, "s/a");

    cr_assert_eq(h_publish(h, a, member, "name")->error, 0);
    uint64_t set = h_small(h, a, 0).lease;
    h_request(h, a, MSG_STAGE, &(struct msg_stage_params){set, {&key, 1}, {&member, 1}});
    h_close(h, a, member);
    cr_assert_eq(h_part(h, a, slot.whole, 900, 50, "part")->error, 0);
    uint64_t generation = h_publish(h, a, slot.whole, "whole")->generation;
    h_vacate(h, a, slot.set, slot.whole, 0);
    uint64_t b = h_connect(h, 1000, 1000);
    h_unlink(h, b, "whole", NULL);
    cr_assert_not(is_vacant(h, &slot));
    h->replies[a].seen = false;
    h_close(h, a, set);
    cr_assert_not(is_vacant(h, &slot));
    h_unlink(h, b, "name", NULL);
    cr_assert_not(is_vacant(h, &slot));
    h_unlink(h, b, "part", NULL);
    cr_assert(is_vacant(h, &slot));
    cr_assert_eq(h_open_generation(h, b, "whole", NULL, generation)->error, PROTO_ERR_STALE);
    unname(h, &slot);
}

CORE_TEST(set_parts, are_kept_by_work_that_has_not_ended, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000), page = h_page_new(h, b);
    uint64_t member = open_old(h, b, &slot, "s/b");

    h_end_at(h, b, h_begun(h, b, member, false), page, 0);
    h_close(h, b, member);
    h_vacate(h, slot.conn, slot.set, slot.whole, 0);
    cr_assert_not(is_vacant(h, &slot));
    h_tick(h, NSEC_PER_SEC);
    cr_assert_not(is_vacant(h, &slot));
    h_land(h, page, 0, 1);
    h_tick(h, NSEC_PER_SEC);
    cr_assert(is_vacant(h, &slot));
    unname(h, &slot);
}

CORE_TEST(set_parts, are_waited_for_in_time, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000), member = open_old(h, b, &slot, "s/b");
    char pid[32];

    h_vacate(h, slot.conn, slot.set, slot.whole, NSEC_PER_SEC);
    h_tick(h, NSEC_PER_SEC - 1);
    cr_assert_not(is_vacant(h, &slot));
    cr_assert_eq(core_deadline_ns(h->core), h->now_ns + 1);
    h_tick(h, 1);
    const struct h_reply *reply = &h->replies[slot.conn];
    cr_assert_eq(reply->error, PROTO_ERR_TIMEOUT);
    snprintf(pid, sizeof(pid), "by pid %d", (int)h->pids[b]);
    cr_assert(strstr(reply->text, pid), "%s", reply->text);
    h_request(h, slot.conn, MSG_VACATE,
              &(struct msg_vacate_params){.leases = {&slot.set, 1},
                                          .own = {&slot.whole, 1},
                                          .nowait = true});
    cr_assert_eq(reply->error, PROTO_ERR_TIMEOUT);
    cr_assert(strstr(reply->text, pid), "%s", reply->text);
    h_close(h, b, member);
    h_request(h, slot.conn, MSG_VACATE,
              &(struct msg_vacate_params){.leases = {&slot.set, 1},
                                          .own = {&slot.whole, 1},
                                          .nowait = true});
    cr_assert(is_vacant(h, &slot));
    unname(h, &slot);
}

static void
many_leases(struct core_config *config)
{
    h_sharing(config);
    config->limits.leases = 10000;
}

/* Whoever may open an array may have many leases on it: a refusal looks at some. */
CORE_TEST(set_parts, are_refused_in_bounded_time, many_leases)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000), c = h_connect(h, 1000, 1000);

    open_old(h, b, &slot, "s/b");
    for (int i = 0; i < 5000; i++)
        open_old(h, c, &slot, "s/b");
    h_vacate(h, slot.conn, slot.set, slot.whole, NSEC_PER_SEC);
    h_tick(h, NSEC_PER_SEC);
    const struct h_reply *reply = &h->replies[slot.conn];
    cr_assert_eq(reply->error, PROTO_ERR_TIMEOUT);
    cr_assert(strstr(reply->text, " and others"), "%s", reply->text);
    unname(h, &slot);
}

CORE_TEST(set_parts, are_not_vacated, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t a = slot.conn, other = h_small(h, a, 100).lease;

    cr_assert_eq(h_vacate(h, a, slot.set + 77, 0, 0)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_vacate(h, a, slot.whole, 0, 0)->error, PROTO_ERR_INVALID, "no set");
    cr_assert_eq(h_vacate(h, a, slot.set, other, 0)->error, PROTO_ERR_INVALID, "elsewhere");
    cr_assert_eq(h_vacate(h, a, slot.set, slot.set, 0)->error, PROTO_ERR_INVALID, "twice");
    const uint64_t twice[] = {slot.whole, slot.whole};
    cr_assert_eq(h_request(h, a, MSG_VACATE,
                           &(struct msg_vacate_params){.leases = {&slot.set, 1},
                                                       .own = {twice, 2}})
                     ->error,
                 PROTO_ERR_INVALID);
    uint64_t readonly = h_open_generation(h, a, "s/", NULL, slot.generation)->lease;
    cr_assert_eq(h_vacate(h, a, readonly, 0, 0)->error, PROTO_ERR_INVALID, "open \"r\"");

    /* one wait at a time; it ends where the set is published, or closed */
    h_vacate(h, a, slot.set, slot.whole, 0);
    cr_assert_not(is_vacant(h, &slot));
    cr_assert_eq(h_vacate(h, a, slot.set, slot.whole, 0)->error, PROTO_ERR_INVALID);
    h->replies[a] = (struct h_reply){0};
    h->on_reply = NULL;
    h_publish(h, a, slot.set, "s/");
    cr_assert_eq(h->replies[a].error, PROTO_ERR_INVALID, "%s", h->replies[a].text);
    cr_assert_eq(h_vacate(h, a, slot.set, slot.whole, 0)->error, PROTO_ERR_INVALID, "current");
    unname(h, &slot);
    h_vacate(h, a, slot.set, slot.whole, 0);
    cr_assert_not(is_vacant(h, &slot), "it is open once more");
    h_close(h, a, slot.set);
    cr_assert_eq(h->replies[a].error, PROTO_ERR_INVALID, "%s", h->replies[a].text);
    h_close(h, a, readonly);
}

CORE_TEST(set_parts, are_waited_for_until_the_hang_up, h_sharing)
{
    struct slot slot = displaced(h);
    uint64_t b = h_connect(h, 1000, 1000), set = open_old(h, b, &slot, "s/");

    h_vacate(h, slot.conn, slot.set, slot.whole, NSEC_PER_SEC);
    cr_assert_gt(charged(h).watches, 0);
    h_disconnect(h, slot.conn);
    cr_assert_eq(charged(h).watches, 0);
    cr_assert_eq(core_deadline_ns(h->core), UINT64_MAX);
    h_close(h, b, set);
    h_unlink(h, b, "s/", NULL);
}

/* ---- one of several ---- */

static struct h_reply *
vacate_either(struct harness *h, const struct slot *x, const struct slot *y, uint64_t own)
{
    const uint64_t sets[] = {x->set, y->set}, owned[] = {x->whole, own};

    return h_request(h, x->conn, MSG_VACATE,
                     &(struct msg_vacate_params){.leases = {sets, 2},
                                                 .own = {owned, 2},
                                                 .timeout_ns = NSEC_PER_SEC});
}

CORE_TEST(set_parts, are_vacant_whichever_is_first, h_sharing)
{
    struct slot x = displaced(h), y = displaced_of(h, x.conn);
    uint64_t b = h_connect(h, 1000, 1000), c = h_connect(h, 1000, 1000);
    uint64_t of_x = open_old(h, b, &x, "s/a"), of_y = open_old(h, c, &y, "s/b");

    vacate_either(h, &x, &y, y.whole);
    cr_assert_eq(charged(h).watches, 2);
    cr_assert_not(is_vacant(h, &x));
    h_close(h, c, of_y);
    cr_assert(is_vacant(h, &x));
    cr_assert_eq(h->replies[x.conn].lease, y.set);
    cr_assert_eq(charged(h).watches, 0);
    cr_assert_eq(h_open_generation(h, c, "s/b", NULL, y.generation)->error, PROTO_ERR_STALE);
    cr_assert_eq(h_open_generation(h, c, "s/b", NULL, x.generation)->error, 0);
    h_close(h, c, h->replies[c].lease);

    /* where all are, the first of the list */
    h_close(h, b, of_x);
    cr_assert_eq(vacate_either(h, &x, &y, y.whole)->lease, x.set);
    cr_assert_eq(vacate_either(h, &y, &x, x.whole)->lease, y.set);
    unname(h, &x);
}

/* What is one's own of one set does not make up for others' leases on another one. */
CORE_TEST(set_parts, are_each_kept_by_their_own_leases, h_sharing)
{
    struct slot x = displaced(h), y = displaced_of(h, x.conn);
    uint64_t b = h_connect(h, 1000, 1000), c = h_connect(h, 1000, 1000);
    uint64_t of_x = open_old(h, b, &x, "s/"), more = open_old(h, c, &x, "s/a");
    uint64_t mine = open_old(h, x.conn, &x, "s/b");

    vacate_either(h, &x, &y, mine);
    cr_assert_not(is_vacant(h, &x), "the whole of y is open");
    h_tick(h, NSEC_PER_SEC);
    const struct h_reply *reply = &h->replies[x.conn];
    cr_assert_eq(reply->error, PROTO_ERR_TIMEOUT);
    const uint64_t culprits[] = {b, c, x.conn};
    for (size_t i = 0; i < ARRAY_SIZE(culprits); i++) {
        char pid[32];
        snprintf(pid, sizeof(pid), "pid %d", (int)h->pids[culprits[i]]);
        cr_assert(strstr(reply->text, pid), "%s", reply->text);
    }
    cr_assert(strstr(reply->text, ", as 1 more, is still in use"), "%s", reply->text);
    h_close(h, b, of_x);
    h_close(h, c, more);
    unname(h, &x);
}

CORE_TEST(set_parts, are_not_vacated_with_others, h_sharing)
{
    struct slot x = displaced(h), y = displaced_of(h, x.conn);
    uint64_t b = h_connect(h, 1000, 1000), of_x = open_old(h, b, &x, "s/a");
    uint64_t of_y = open_old(h, b, &y, "s/a");
    const struct h_reply *reply = &h->replies[x.conn];

    cr_assert_eq(vacate_either(h, &x, &x, y.whole)->error, PROTO_ERR_INVALID, "twice");
    cr_assert_eq(vacate_either(h, &x, &(struct slot){.set = 77}, x.whole)->error,
                 PROTO_ERR_INVALID);
    cr_assert_eq(h_request(h, x.conn, MSG_VACATE, &(struct msg_vacate_params){0})->error,
                 PROTO_ERR_INVALID, "none");
    vacate_either(h, &x, &y, y.whole);
    cr_assert_not(is_vacant(h, &x));
    cr_assert_eq(h_vacate(h, x.conn, y.set, y.whole, 0)->error, PROTO_ERR_INVALID,
                 "it is waited for already");
    h_cancel(h, x.conn, h->next_id - 1);
    cr_assert_eq(reply->error, PROTO_ERR_CANCELLED);
    cr_assert_eq(charged(h).watches, 0);

    /* it ends with each of them */
    vacate_either(h, &x, &y, y.whole);
    h->on_reply = NULL;
    h_publish(h, x.conn, y.set, "s/");
    cr_assert_eq(reply->error, PROTO_ERR_INVALID, "%s", reply->text);
    cr_assert_eq(vacate_either(h, &x, &y, y.whole)->error, PROTO_ERR_INVALID, "current");
    unname(h, &x);
    vacate_either(h, &x, &y, y.whole);
    h_close(h, x.conn, y.set);
    cr_assert_eq(reply->error, PROTO_ERR_INVALID, "%s", reply->text);
    cr_assert_eq(charged(h).watches, 0);
    h_close(h, b, of_x);
    h_close(h, b, of_y);
}
