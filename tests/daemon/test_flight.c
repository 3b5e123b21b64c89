/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/socket.h>
#include <unistd.h>

#include "base/packet.h"
#include "caid_test.h"
#include "flight.h"
#include "proto_limits.h"

#define MAX 600 /* in flight to all */

struct pair {
    int ours, theirs;
    struct flight_share share;
};

static void
pair_init(struct pair *p, struct flight_user *user)
{
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    p->ours = fds[0];
    p->theirs = fds[1];
    flight_share_init(&p->share, user, p->ours);
}

static void
pair_deinit(struct flight *f, struct pair *p)
{
    flight_share_deinit(f, &p->share);
    close(p->ours);
    close(p->theirs);
}

/* One packet; that it carries n fds is only said, which is all that flight.c knows. */
static void
say_sent(struct flight *f, struct pair *p, size_t n, uint64_t now_ms)
{
    cr_assert_eq(packet_send(p->ours, "x", 1, NULL, 0, 0), 0);
    flight_sent(f, &p->share, n, now_ms);
}

static void
read_one(struct pair *p)
{
    char c;

    cr_assert_eq(read(p->theirs, &c, 1), 1);
}

CAID_TEST(flight, a_share_is_bounded_until_its_socket_is_empty)
{
    struct flight f;
    struct flight_user user;
    struct pair p;

    flight_init(&f, 100000);
    flight_user_init(&user);
    pair_init(&p, &user);
    cr_assert(flight_admits(&f, &p.share, FLIGHT_SHARE_MAX, 0));
    say_sent(&f, &p, 253, 0);
    say_sent(&f, &p, FLIGHT_SHARE_MAX - 253, 0);
    cr_assert_not(flight_admits(&f, &p.share, 1, 0));
    read_one(&p);
    cr_assert_not(flight_admits(&f, &p.share, 1, 0), "one packet is unread");
    read_one(&p);
    cr_assert(flight_admits(&f, &p.share, 253, 0));
    cr_assert_eq(f.n, 0);
    pair_deinit(&f, &p);
}

CAID_TEST(flight, a_user_leaves_to_the_next_one_as_much_as_it_has)
{
    struct flight f;
    struct flight_user users[2];
    struct pair a, b, c;

    flight_init(&f, MAX);
    flight_user_init(&users[0]);
    flight_user_init(&users[1]);
    pair_init(&a, &users[0]);
    pair_init(&b, &users[0]);
    pair_init(&c, &users[1]);
    say_sent(&f, &a, 200, 0);
    cr_assert(flight_admits(&f, &b.share, 100, 1));
    cr_assert_not(flight_admits(&f, &b.share, 101, 1));
    say_sent(&f, &b, 100, 0);
    cr_assert(flight_admits(&f, &c.share, 150, 1));
    cr_assert_not(flight_admits(&f, &c.share, 151, 1));
    say_sent(&f, &c, 150, 0);
    cr_assert_not(flight_admits(&f, &b.share, 1, 2));
    read_one(&a);
    cr_assert_not(flight_admits(&f, &b.share, 1, 2), "looked at in this millisecond");
    cr_assert(flight_admits(&f, &b.share, 100, 3));
    cr_assert_eq(f.n, 250);
    pair_deinit(&f, &c);
    cr_assert_eq(f.n, 100, "what was in flight went with its socket");
    pair_deinit(&f, &a);
    pair_deinit(&f, &b);
}

CAID_TEST(flight, the_culprit_has_not_read)
{
    struct flight f;
    struct flight_user user;
    struct pair a, b;

    flight_init(&f, MAX);
    flight_user_init(&user);
    pair_init(&a, &user);
    pair_init(&b, &user);
    cr_assert_null(flight_culprit(&f, &user, 0, 99999));
    say_sent(&f, &a, 10, 1000);
    say_sent(&f, &b, 20, 2000);
    say_sent(&f, &a, 0, 3000);
    cr_assert_null(flight_culprit(&f, &user, 5000, 5999), "not yet");
    cr_assert_eq(flight_culprit(&f, &user, 5000, 6000), &a.share);
    read_one(&a);
    read_one(&a);
    cr_assert_null(flight_culprit(&f, &user, 5000, 6999), "a has read, b is younger");
    cr_assert_eq(user.n, 20);
    cr_assert_eq(flight_culprit(&f, &user, 5000, 7000), &b.share);
    read_one(&b);
    cr_assert_null(flight_culprit(&f, &user, 0, 7000));
    pair_deinit(&f, &a);
    pair_deinit(&f, &b);
}
