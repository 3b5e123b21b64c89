/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of who publishes parts of its memory, of who reads them, or of both, at each step, one
 * case after the other. What was acknowledged as published can be opened by others and is whole,
 * before and after its name is gone; who publishes is told of all parts that are gone, also where a
 * dead process held them; and once all names are gone and everybody has left, the daemon's ledger
 * is what it was before, after each case.
 */
#include "parts.h"

#include <stdio.h>

#define MOMENT(name, when) when,
static const char *const publisher_whens[] = {PUBLISHER_MOMENTS(MOMENT)};
static const char *const reader_whens[] = {READER_MOMENTS(MOMENT)};
#undef MOMENT

/* In a round each kill of one process comes once with each way of the other, which survives, and of
 * the source; the rest are kills of both, by chance. */
static struct parts_case
make_case(struct stress *s, unsigned i)
{
    enum {
        PUBLISHERS = N_PUBLISHER_MOMENTS * 4,
        BOTH = PUBLISHERS + N_READER_MOMENTS * 4,
        ROUND = 100
    };

    unsigned at = i % ROUND;
    struct parts_case c = {.arena = i % 2,
                           .killed = {at < PUBLISHERS || at >= BOTH, at >= PUBLISHERS}};

    if (at >= BOTH) {
        c.publisher = (enum publisher_moment)rnd(s, N_PUBLISHER_MOMENTS);
        c.reader = (enum reader_moment)rnd(s, N_READER_MOMENTS);
    } else if (c.killed[PUBLISHER]) {
        c.publisher = (enum publisher_moment)(at / 4);
        c.reader = i / 2 % 2 ? READER_looping : READER_holding;
    } else {
        c.reader = (enum reader_moment)((at - PUBLISHERS) / 4);
        c.publisher = i / 2 % 2 ? PUBLISHER_looping : PUBLISHER_published;
    }
    return c;
}

static void
begin_case(struct stress *s, const struct parts_case *c)
{
    struct parts_shared *shared = s->shared;

    shared->now = *c;
    s->number++;
    for (size_t i = 0; i < PARTS_NAMES; i++)
        shared->acked[i] = shared->asked[i] = 0;
    snprintf(s->what, sizeof(s->what), "%s; %s%s; %s%s", c->arena ? "an arena" : "an array",
             c->killed[PUBLISHER] ? "" : "not: ", publisher_whens[c->publisher],
             c->killed[READER] ? "" : "not: ", reader_whens[c->reader]);
    if (c->killed[PUBLISHER] && c->killed[READER])
        stress_count(s, "both killed");
    if (c->killed[PUBLISHER])
        stress_count(s, publisher_whens[c->publisher]);
    if (c->killed[READER])
        stress_count(s, reader_whens[c->reader]);
}

/* The reader comes to what was published first, and may hold it when the publisher goes on. */
static void
run_case(struct stress *s, const struct parts_case *c)
{
    begin_case(s, c);
    role_start(s, PUBLISHER, parts_publisher, 0);
    role_await(s, PUBLISHER);
    role_start(s, READER, parts_reader, 0);
    role_await(s, READER);
    role_go(s, PUBLISHER);
    role_await(s, PUBLISHER);
    stress_look(s);
    for (unsigned i = 0, first = rnd(s, 2); i < 2; i++)
        if (c->killed[(first + i) % 2])
            role_kill(s, (first + i) % 2);
    if (!c->killed[PUBLISHER]) {
        s->roles[PUBLISHER].end = true;
        role_go(s, PUBLISHER);
        role_await(s, PUBLISHER);
    }
    role_start(s, WITNESS, parts_witness, 0);
    role_join(s, WITNESS);
    s->roles[READER].end = true;
    for (unsigned i = READER + 1; i-- > PUBLISHER;)
        if (!c->killed[i]) {
            role_go(s, i);
            role_join(s, i);
        }
}

/* What is left after a case is left by it: the ledger shows what. */
static void
run(struct stress *s, unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) {
        struct parts_case c = make_case(s, i);
        run_case(s, &c);
        if (s->number <= 2) /* what a first array, arena and part cost the daemon for good */
            continue;
        s->ledgers.half = s->ledgers.end = ledger_settle(&s->source, &s->ledgers.start);
        if (!ledger_is_same(&s->ledgers.end, &s->ledgers.start)) {
            ledgers_check(&s->ledgers);
            stress_fail(s, "not all was given back");
        }
    }
}

static void
report(const struct stress *s)
{
    const struct parts_shared *shared = s->shared;

    printf("%u parts published, %u opened\n", shared->n_published, shared->n_opened);
}

const struct scenario scenario_parts = {.name = "parts",
                                        .variable = "CAID_STRESS_KILLS",
                                        .amount = 100,
                                        .least = 4,
                                        .warm = 2,
                                        .shared_size = sizeof(struct parts_shared),
                                        .run = run,
                                        .report = report};
