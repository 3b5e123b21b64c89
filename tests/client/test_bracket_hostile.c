/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets at a daemon that breaks the protocol, or answers at a bad moment: fences that cannot
 * be, portions without end, grants that nobody waits for any more. (Pages that cannot be believed
 * are in test_timeline_hostile.c.)
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "fake.h"
#include "session/client.h"
#include "timeline.h"

#define PAGE 7

/* ---- what scripts say ---- */

struct grant {
    struct msg_fence fences[3];
    struct msg_page pages[2];
    struct msg_fences_result result;
    uint64_t submitted, done; /* of every slot */
    size_t n_fds;
};

/* One fence, which has passed, and its page. */
static void
grant_init(struct grant *g)
{
    *g = (struct grant){
        .fences = {{PAGE, 0, 1}, {PAGE, 1, 1}, {PAGE, 2, 1}},
        .pages = {{.page = PAGE, .size = TIMELINE_PAGE_BYTES}},
        .submitted = 1,
        .done = 1,
        .n_fds = 1,
    };
    g->result = (struct msg_fences_result){
        .fences = g->fences,
        .n_fences = 1,
        .pages = g->pages,
        .n_pages = 1,
    };
}

static int
make_page(const struct grant *g)
{
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct timeline_slot slots[TIMELINE_SLOTS] = {0};

    for (size_t i = 0; i < TIMELINE_SLOTS; i++) {
        atomic_store(&slots[i].done, g->done);
        atomic_store(&slots[i].submitted, g->submitted);
    }
    if (write(fd, slots, sizeof(slots)) != sizeof(slots) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        abort();
    return fd;
}

static void
send_grant(struct fake *fake, enum msg_method method, const struct grant *g)
{
    int fds[2];

    for (size_t i = 0; i < g->n_fds; i++)
        fds[i] = make_page(g);
    fake_result(fake, method, &g->result, fds, g->n_fds);
    for (size_t i = 0; i < g->n_fds; i++)
        close(fds[i]);
}

/* Without a page: it is there. */
static void
send_known(struct fake *fake, enum msg_method method, uint64_t slot, bool more)
{
    struct grant g;

    grant_init(&g);
    g.fences[0].slot = slot;
    g.result.n_pages = 0;
    g.result.more = more;
    g.n_fds = 0;
    send_grant(fake, method, &g);
}

/* ---- and tests ask ---- */

static struct fixture {
    struct fake fake;
    struct caid_client *client;
    struct caid_array *array;
} f;

static void
begin(void (*script)(struct fake *fake), const void *data)
{
    f.client = fake_start(&f.fake, script, data);
    assert_ok(caid_array_open(f.client, &f.array, "x", NULL, &error));
}

static void
end(void)
{
    caid_array_close(f.array);
    fake_stop(&f.fake);
}

static int
read_on_host(struct caid_bracket **ret)
{
    return caid_array_begin(f.array, ret, 0, 0, CAID_FOREVER, &error);
}

static struct caid_bracket *
start(void)
{
    struct caid_bracket *bracket;

    OPTIONS(caid_bracket_options, options, .reads = &f.array, .n_reads = 1);
    assert_ok(caid_bracket_start(f.client, &bracket, &options, &error));
    return bracket;
}

/* ---- grants, each with one thing wrong ---- */

#define SPOILERS(X)                                                        \
    X(unknown_page, g->fences[0].page = PAGE + 1)                          \
    X(page_zero, g->fences[0].page = 0)                                    \
    X(no_such_slot, g->fences[0].slot = TIMELINE_SLOTS)                    \
    X(huge_slot, g->fences[0].slot = UINT64_MAX)                           \
    X(value_zero, g->fences[0].value = 0)                                  \
    X(value_of_the_dead, g->fences[0].value = TIMELINE_DEAD)               \
    X(huge_value, g->fences[0].value = UINT64_MAX)                         \
    X(twice_the_same, g->result.n_fences = 2, g->fences[1] = g->fences[0]) \
    X(out_of_order, g->result.n_fences = 3, g->fences[2].slot = 0)         \
    X(another_page_before, g->result.n_fences = 2, g->fences[1].page = 3)  \
    X(more_of_nothing, g->result.n_fences = 0, g->result.more = true)      \
    X(no_fd, g->n_fds = 0)                                                 \
    X(fds_for_nothing, g->n_fds = 2)                                       \
    X(fd_index, g->pages[0].fd = 1)                                        \
    X(small_page, g->pages[0].size = TIMELINE_PAGE_BYTES / 2)

#define SPOILER(name, ...)            \
    static void name(struct grant *g) \
    {                                 \
        __VA_ARGS__;                  \
    }
SPOILERS(SPOILER)
#undef SPOILER

static const struct spoiler {
    const char *name;
    void (*spoil)(struct grant *g);
} spoilers[] = {

#define SPOILER(name, ...) {#name, name},
    SPOILERS(SPOILER)
#undef SPOILER
};

static void
script_spoiled(struct fake *fake)
{
    const struct spoiler *spoiler = fake->data;
    struct grant g;

    fake_open(fake);
    grant_init(&g);
    spoiler->spoil(&g);
    if (fake_request(fake) == MSG_BEGIN)
        send_grant(fake, MSG_BEGIN, &g);
    fake_drain(fake);
}

CAID_TEST(bracket_hostile, grants)
{
    for (size_t i = 0; i < ARRAY_SIZE(spoilers); i++) {
        struct caid_bracket *bracket = NULL;

        begin(script_spoiled, &spoilers[i]);
        int r = read_on_host(&bracket);
        cr_assert_eq(r, -EPROTO, "%s: %d", spoilers[i].name, r);
        cr_assert_eq(error.code, CAID_ERR_PROTOCOL, "%s: %s", spoilers[i].name, error.message);
        assert_failed(caid_client_ping(f.client, &error), CAID_ERR_PROTOCOL);
        cr_assert_null(bracket);
        end();
        cr_assert_eq(f.fake.n_ended, 0, "%s", spoilers[i].name);
    }
}

/* ---- what is right ---- */

/* Opens the array, and grants a begin with a first portion of its fences. */
static void
grant_with_more(struct fake *fake)
{
    struct grant g;

    fake_open(fake);
    grant_init(&g);
    g.result.more = true;
    if (fake_request(fake) == MSG_BEGIN)
        send_grant(fake, MSG_BEGIN, &g);
}

static void
script_portions(struct fake *fake)
{
    grant_with_more(fake);
    for (uint64_t slot = 1; slot < TIMELINE_SLOTS; slot++)
        if (fake_request(fake) == MSG_FENCES)
            send_known(fake, MSG_FENCES, slot, slot < TIMELINE_SLOTS - 1);
    fake_go_on(fake);
}

CAID_TEST(bracket_hostile, portions_come_to_an_end)
{
    struct caid_bracket *bracket;

    begin(script_portions, NULL);
    assert_ok(read_on_host(&bracket));
    assert_ok(caid_client_ping(f.client, &error));
    assert_ok(caid_bracket_end(bracket, &error));
    caid_bracket_free(bracket);
    end();
    cr_assert_eq(f.fake.n_ended, 1);
    cr_assert_eq(f.fake.ended[0].bracket, f.fake.begun);
    cr_assert(!f.fake.ended[0].undone && !f.fake.ended[0].abandon);
    cr_assert_eq(f.fake.ended[0].value, 0);
}

/* ---- portions that do not ---- */

static void
script_for_ever(struct fake *fake)
{
    grant_with_more(fake);
    for (uint64_t slot = 1; fake_request(fake) == MSG_FENCES; slot++)
        send_known(fake, MSG_FENCES, slot % TIMELINE_SLOTS, true);
}

CAID_TEST(bracket_hostile, portions_without_end_are_refused)
{
    struct caid_bracket *bracket = NULL;

    begin(script_for_ever, NULL);
    assert_failed(read_on_host(&bracket), CAID_ERR_PROTOCOL);
    cr_assert(strstr(error.message, "fences"), "%s", error.message);
    end();
}

static void
script_abandoned_portion(struct fake *fake)
{
    grant_with_more(fake);
    if (fake_request(fake) == MSG_FENCES)
        fake_error(fake, CAID_ERR_ABANDONED, "its writer died", 0);
    fake_go_on(fake);
}

/* The writer died between the grant and the second portion. */
CAID_TEST(bracket_hostile, a_portion_that_is_refused_ends_the_begin)
{
    struct caid_bracket *bracket = NULL;

    begin(script_abandoned_portion, NULL);
    assert_failed(read_on_host(&bracket), CAID_ERR_ABANDONED);
    cr_assert_null(bracket);
    assert_ok(caid_client_ping(f.client, &error));
    end();
    cr_assert_eq(f.fake.n_ended, 1);
    cr_assert(f.fake.ended[0].undone);
}

static void
script_silent_portion(struct fake *fake)
{
    const uint64_t *call_ns = fake->data;
    enum msg_method method;
    struct grant g;

    grant_init(&g);
    g.result.more = true;
    fake_open(fake);
    while ((method = fake_request(fake)) != MSG_UNKNOWN)
        if (method == MSG_BEGIN) {
            fake->client->call_timeout_ns = *call_ns; /* of calls after this one */
            send_grant(fake, MSG_BEGIN, &g);
            g.result.n_pages = g.n_fds = 0; /* it is there */
        }
}

/* Whichever time is over, the call's or the bracket's: nobody is given a bracket that has not
 * begun, nor told for ever to ask again. */
CAID_TEST(bracket_hostile, a_portion_that_does_not_come_ends_the_begin)
{
    static const struct {
        uint64_t call_ns, own_ns;
    } times[] = {{NSEC_PER_SEC, CAID_FOREVER},
                 {NSEC_PER_SEC, 3600 * NSEC_PER_SEC},
                 {3600 * NSEC_PER_SEC, NSEC_PER_MSEC}};

    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        OPTIONS(caid_bracket_options, options, .reads = &f.array, .n_reads = 1,
                .timeout_ns = times[i].own_ns);
        struct caid_bracket *bracket = NULL;

        begin(script_silent_portion, &times[i].call_ns);
        assert_failed(caid_bracket_begin(f.client, &bracket, &options, &error),
                      CAID_ERR_TIMEOUT);
        cr_assert(strstr(error.message, "fences request"), "%s", error.message);
        cr_assert_null(bracket);
        f.client->call_timeout_ns = CAID_FOREVER;
        assert_ok(caid_bracket_start(f.client, &bracket, &options, &error));
        assert_failed(caid_bracket_wait(bracket, CAID_FOREVER, &error), CAID_ERR_TIMEOUT);
        assert_failed(caid_bracket_wait(bracket, 0, &error), CAID_ERR_TIMEOUT);
        caid_bracket_free(bracket);
        end();
        cr_assert_eq(f.fake.n_ended, 2);
        cr_assert(f.fake.ended[0].undone && f.fake.ended[1].undone);
    }
}

/* ---- fences that were never signalled ---- */

static void
script_not_submitted(struct fake *fake)
{
    struct grant g;

    fake_open(fake);
    grant_init(&g);
    g.submitted = g.done = 0;
    if (fake_request(fake) == MSG_BEGIN)
        send_grant(fake, MSG_BEGIN, &g);
    fake_go_on(fake);
}

/* Whoever wrote the page, it is nothing to wait for (I7); the bracket is given back. */
CAID_TEST(bracket_hostile, what_was_not_submitted_is_not_waited_for)
{
    struct caid_bracket *bracket = NULL;

    begin(script_not_submitted, NULL);
    assert_failed(read_on_host(&bracket), CAID_ERR_PROTOCOL);
    cr_assert(strstr(error.message, "page 7 "), "%s", error.message);
    assert_ok(caid_client_ping(f.client, &error));
    end();
    cr_assert_eq(f.fake.n_ended, 1);
    cr_assert(f.fake.ended[0].undone);
}

/* ---- grants that nobody waits for ---- */

static void
script_crossing(struct fake *fake)
{
    struct grant g;

    fake_open(fake);
    grant_init(&g);
    fake_request(fake); /* begin */
    if (fake_request(fake) == MSG_CANCEL && fake->cancelled.request == fake->id)
        send_grant(fake, MSG_BEGIN, &g);
    if (fake_request(fake) == MSG_END && fake_request(fake) == MSG_BEGIN)
        send_known(fake, MSG_BEGIN, 0, false); /* the client has the page */
    fake_go_on(fake);
}

CAID_TEST(bracket_hostile, a_grant_that_crosses_is_given_back)
{
    struct caid_bracket *bracket;

    begin(script_crossing, NULL);
    caid_bracket_free(start());
    assert_ok(read_on_host(&bracket));
    assert_ok(caid_bracket_end(bracket, &error));
    caid_bracket_free(bracket);
    assert_ok(caid_client_ping(f.client, &error));
    end();
    cr_assert_eq(f.fake.n_ended, 2);
    cr_assert(f.fake.ended[0].undone);
    cr_assert_eq(f.fake.ended[0].bracket + 1, f.fake.ended[1].bracket);
}

static void
script_late(struct fake *fake)
{
    struct grant g;

    fake_open(fake);
    grant_init(&g);
    fake_request(fake); /* begin */
    uint32_t id = fake->id;
    fake_request(fake); /* cancel */
    if (fake_request(fake) == MSG_PING) {
        uint32_t ping = fake->id;
        fake->id = id;
        send_grant(fake, MSG_BEGIN, &g);
        fake->id = ping;
        fake_pong(fake);
    }
    fake_go_on(fake);
}

/* Nobody waits for long for a daemon that does not answer; what it answers later is given back. */
CAID_TEST(bracket_hostile, a_cancellation_that_is_not_answered)
{
    begin(script_late, NULL);
    uint64_t since = clock_now_ns();
    caid_bracket_free(start());
    cr_assert_lt(clock_now_ns() - since, 5 * NSEC_PER_SEC);
    assert_ok(caid_client_ping(f.client, &error));
    end();
    cr_assert_eq(f.fake.n_ended, 1);
    cr_assert(f.fake.ended[0].undone);
}

static void
script_hang_up(struct fake *fake)
{
    fake_open(fake);
    fake_request(fake); /* begin */
}

CAID_TEST(bracket_hostile, a_daemon_that_hangs_up)
{
    struct caid_bracket *bracket = NULL;

    begin(script_hang_up, NULL);
    assert_failed(read_on_host(&bracket), CAID_ERR_DISCONNECTED);
    cr_assert_null(bracket);
    end();
}
