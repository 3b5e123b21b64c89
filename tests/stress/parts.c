/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of who publishes parts of its memory, of who reads them, or of both, at each step, one
 * case after the other. What was acknowledged as published can be opened by others and is whole,
 * before and after its name is gone; who publishes is told of all parts that are gone, also where a
 * dead process held them; and once all names are gone and everybody has left, the daemon's ledger
 * is what it was before, after each case.
 *
 * A publisher puts parts of an array, or of an arena's memory, under a few names; a reader opens
 * them. What is left of them after a kill goes on, and then ends. A part is PARTS_WORDS words of
 * one value, which its metadata tells, too. A value is published once.
 */
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stress.h"

/* MOMENT(name, when the process is killed) */
#define PUBLISHER_MOMENTS(MOMENT)                                              \
    MOMENT(leased, "publisher killed before it publishes anything")            \
    MOMENT(writing, "publisher killed while its publish waits for the GPU")    \
    MOMENT(unsent, "publisher killed before its publish is sent")              \
    MOMENT(sent, "publisher killed with the answer to its publish unread")     \
    MOMENT(published, "publisher killed published")                            \
    MOMENT(closed, "publisher killed published, and the whole closed")         \
    MOMENT(told, "publisher killed told of a part that is gone, and not read") \
    MOMENT(looping, "publisher killed at any time, publishing and unlinking")

#define READER_MOMENTS(MOMENT)                                 \
    MOMENT(unsent, "reader killed before its open is sent")    \
    MOMENT(sent, "reader killed with the answer to it unread") \
    MOMENT(holding, "reader killed holding parts")             \
    MOMENT(working, "reader killed closed, its work not done") \
    MOMENT(looping, "reader killed at any time, opening parts")

#define MOMENT(name, when) PUBLISHER_##name,

enum publisher_moment {
    PUBLISHER_MOMENTS(MOMENT) N_PUBLISHER_MOMENTS
};

#undef MOMENT

#define MOMENT(name, when) READER_##name,

enum reader_moment {
    READER_MOMENTS(MOMENT) N_READER_MOMENTS
};

#undef MOMENT

enum parts_role {
    PUBLISHER,
    READER,
    WITNESS,
};

struct parts_case {
    bool killed[2]; /* PUBLISHER, READER */
    enum publisher_moment publisher;
    enum reader_moment reader;
    bool arena; /* or an array of slots */
};

#define PARTS_WORDS 1024
#define PARTS_BYTES (PARTS_WORDS * sizeof(uint32_t))
#define PARTS_NAMES 3 /* of which nobody opens the last */

struct parts_shared {
    struct parts_case now;
    /* What each name shows (0: nothing): before and after the change that is under way. The
     * first is what the daemon has acknowledged. */
    _Atomic uint32_t acked[PARTS_NAMES], asked[PARTS_NAMES];
    _Atomic uint64_t generations[PARTS_NAMES]; /* the last ones, of all cases */
    _Atomic unsigned n_published, n_opened;    /* ever */
};

static const char *
parts_name(char room[16], uint32_t i)
{
    snprintf(room, 16, "parts/%u", i);
    return room;
}

/* More than all that anyone can hold at a time: three names, three of a reader that loops, one
 * of each that is on its way to be gone. */
#define N_SLOTS 12

struct publisher {
    struct actor *a;
    struct parts_shared *shared;
    struct caid_array *array; /* of slots */
    struct caid_arena *arena;
    bool in_use[N_SLOTS];
    uint32_t value, n_left; /* parts that are not gone */
};

/* One part: what its `gone` gets. */
struct ticket {
    struct publisher *publisher;
    bool *in_use; /* the slot's; NULL: of an arena */
};

/* ---- parts that are gone ---- */

static void
gone(void *userdata)
{
    struct ticket *ticket = userdata;

    if (ticket->publisher->n_left-- == 0)
        errx(1, "more parts are gone than there were");
    if (ticket->in_use)
        *ticket->in_use = false;
    free(ticket);
}

static void
wait_for_news(struct publisher *u)
{
    struct pollfd fd = {.fd = caid_client_get_fd(u->a->client), .events = POLLIN};

    if (poll(&fd, 1, 20000) != 1)
        errx(1, "the publisher is not told that parts are gone: %u are left", u->n_left);
}

static size_t
take_slot(struct publisher *u)
{
    for (;;) {
        for (size_t i = 0; i < N_SLOTS; i++)
            if (!u->in_use[i]) {
                u->in_use[i] = true;
                return i;
            }
        wait_for_news(u);
        MUST(caid_client_dispatch(u->a->client, &error));
    }
}

/* ---- publishing ---- */

static void
make_source(struct publisher *u)
{
    if (u->shared->now.arena) {
        /* The least that there is; memory is used again as soon as it may be. */
        OPTIONS(caid_arena_options, options, .block_size = 1, .max_pending_ratio = -1);
        MUST(caid_arena_new(u->a->client, &u->arena, &options, &error));
        return;
    }
    const int64_t shape[] = {N_SLOTS, PARTS_WORDS};
    OPTIONS(caid_create_options, options, .typestr = "<u4", .shape = shape, .ndim = 2,
            .memory = rnd(u->a, 3) ? "device" : "pinned");
    MUST(caid_array_create(u->a->client, &u->array, &options, &error));
}

/* What an arena gave is freed at once: what the name shows stays. */
static uint64_t
publish_value(struct publisher *u, uint32_t i, struct caid_part_options *options,
              struct ticket *ticket)
{
    uint64_t at, generation, offset = 0;
    char room[16];

    if (u->arena) {
        MUST(caid_arena_alloc(u->arena, PARTS_BYTES, 0, &at, &error));
    } else {
        size_t slot = take_slot(u);
        ticket->in_use = &u->in_use[slot];
        offset = slot * PARTS_BYTES;
        at = caid_array_get_info(u->array)->ptr + offset;
    }
    MUST_CUDA(u->a->drv->cu.cuMemsetD32Async(at, u->value, PARTS_WORDS, u->a->stream));
    const char *name = parts_name(room, i);
    if (u->arena) {
        MUST(caid_arena_publish(u->arena, at, name, options, &generation, &error));
        MUST(caid_arena_free(u->arena, at, 0, &error));
    } else {
        MUST(caid_array_publish_part(u->array, offset, name, options, &generation, &error));
    }
    return generation;
}

/* Of a name that shows something the next one, of another one a higher one than it ever had. */
static void
check_generation(struct publisher *u, uint32_t i, uint64_t generation)
{
    uint64_t before = u->shared->generations[i];

    if (generation <= before || (u->shared->acked[i] && generation != before + 1))
        errx(1, "the generation of name %u is %u after %u", i, (unsigned)generation,
             (unsigned)before);
    u->shared->generations[i] = generation;
}

static void
publish(struct publisher *u, uint32_t i)
{
    struct ticket *ticket = calloc(1, sizeof(*ticket));
    const int64_t shape = PARTS_WORDS;
    char metadata[16];
    OPTIONS(caid_part_options, options, .typestr = "<u4", .shape = &shape, .ndim = 1,
            .metadata = metadata, .gone = gone, .userdata = ticket);

    if (!ticket)
        err(1, "calloc");
    ticket->publisher = u;
    snprintf(metadata, sizeof(metadata), "%u", ++u->value);
    options.stream = rnd(u->a, 2) ? STREAM(u->a->stream) : 0;
    u->shared->asked[i] = u->value;
    check_generation(u, i, publish_value(u, i, &options, ticket));
    u->shared->acked[i] = u->value;
    u->n_left++;
    u->shared->n_published++;
}

static void
unlink_name(struct publisher *u, uint32_t i)
{
    char room[16];

    u->shared->asked[i] = 0;
    MUST(caid_unlink(u->a->client, parts_name(room, i), NULL, &error));
    u->shared->acked[i] = 0;
}

/* ---- to the moment ---- */

static void
publisher_loop(struct publisher *u)
{
    actor_reached(u->a);
    while (!u->a->role->end) {
        uint32_t i = rnd(u->a, PARTS_NAMES);
        if (u->shared->acked[i] && rnd(u->a, 6) == 0)
            unlink_name(u, i);
        else
            publish(u, i);
        if (rnd(u->a, 3) == 0)
            MUST(caid_client_dispatch(u->a->client, &error));
    }
}

static void
close_source(struct publisher *u)
{
    caid_array_close(TAKE_PTR(u->array));
    caid_arena_close(TAKE_PTR(u->arena));
}

static void
publisher_go(struct publisher *u, enum publisher_moment moment)
{
    switch (moment) {
    case PUBLISHER_looping: publisher_loop(u); return;
    case PUBLISHER_leased: actor_stay(u->a);
    case PUBLISHER_writing:
        actor_slow(u->a);
        actor_reached(u->a);
        break;
    case PUBLISHER_unsent: actor_stop_before_send(u->a); break;
    case PUBLISHER_sent: actor_stop_after_send(u->a); break;
    default: break;
    }
    publish(u, 0);
    if (moment < PUBLISHER_published)
        errx(1, "a publish has ended that could not");
    if (moment == PUBLISHER_closed)
        close_source(u);
    if (moment == PUBLISHER_told) {
        unlink_name(u, PARTS_NAMES - 1);
        wait_for_news(u);
    }
    MUST(caid_client_ping(u->a->client, &error));
    actor_reached(u->a);
}

/* All that was freed has come back: no block is left. */
static void
check_arena(struct caid_arena *arena)
{
    OPTIONS(caid_arena_info, info);

    MUST(caid_arena_trim(arena, &error));
    MUST(caid_arena_info(arena, &info, &error));
    if (info.published || info.allocations || info.pending || info.draining || info.blocks)
        errx(1,
             "an arena has %d parts, %d allocations, %d pending, %d draining, %d blocks left",
             (int)info.published, (int)info.allocations, (int)info.pending, (int)info.draining,
             (int)info.blocks);
}

/* Publishes each name: reached. Goes on to its moment: reached. One that survives: stops, reached;
 * once told that all of its parts are gone, it ends. */
static void
run_publisher(struct actor *a, unsigned unused UNUSED)
{
    struct publisher u = {.a = a, .shared = a->shared, .value = a->s->number * 100000};
    enum publisher_moment moment = u.shared->now.publisher;

    actor_open(a);
    make_source(&u);
    for (uint32_t i = 0; i < PARTS_NAMES && moment != PUBLISHER_leased; i++)
        publish(&u, i);
    actor_reached(a);
    actor_wait(a);
    publisher_go(&u, moment);
    actor_wait(a);
    actor_reached(a);
    actor_wait(a);
    while (u.n_left > 0) {
        MUST(caid_client_dispatch(a->client, &error));
        if (u.n_left > 0)
            wait_for_news(&u);
    }
    if (u.arena)
        check_arena(u.arena);
    close_source(&u);
    caid_client_close(a->client);
}

#define N_HELD 3

/* A part that was opened, and the value that it has to have for as long as it is. */
struct held {
    struct caid_array *array; /* NULL: there was none of that name */
    uint32_t value;
};

struct reader {
    struct actor *a;
    struct held held[N_HELD];
    CUdeviceptr copy;
};

/* ---- what a part shows ---- */

static void
check_words(const char *what, const uint32_t words[PARTS_WORDS], uint32_t value)
{
    for (size_t i = 0; i < PARTS_WORDS; i++)
        if (words[i] != value)
            errx(1, "%s: word %zu is %u, not %u", what, i, words[i], value);
}

static void
check_contents(const struct held *held, const char *when)
{
    const struct caid_array_info *info = caid_array_get_info(held->array);
    uint32_t words[PARTS_WORDS];
    char what[64];

    snprintf(what, sizeof(what), "%s, %s", info->name, when);
    MUST(caid_array_copy_to_host(held->array, words, PARTS_BYTES, &error));
    check_words(what, words, held->value);
}

/* NULL where there is none of that name. */
static struct held
open_part(struct actor *a, uint32_t i)
{
    struct parts_shared *shared = a->shared;
    struct caid_array *array;
    char room[16];

    if (MUST_OR(-ENOENT,
                caid_array_open(a->client, &array, parts_name(room, i), NULL, &error)) < 0)
        return (struct held){0};
    const struct caid_array_info *info = caid_array_get_info(array);
    if (info->ndim != 1 || info->shape[0] != PARTS_WORDS || info->nbytes != PARTS_BYTES ||
        strcmp(info->typestr, "<u4") != 0 || !info->readonly || !info->metadata)
        errx(1, "%s is not what was published", room);
    struct held held = {array, (uint32_t)strtoul(info->metadata, NULL, 10)};
    check_contents(&held, "opened");
    shared->n_opened++;
    return held;
}

/* ---- the reader ---- */

/* Work on what is held that goes on when it is closed. */
static void
close_at_work(struct reader *d, struct held *held)
{
    CUdeviceptr at = caid_array_get_info(held->array)->ptr;

    MUST_CUDA(d->a->drv->cu.cuMemcpyDtoDAsync(d->copy, at, PARTS_BYTES, d->a->stream));
    caid_array_close(TAKE_PTR(held->array));
}

/* The work reads what it would have read before. */
static void
let_go(struct reader *d, struct held *held)
{
    uint32_t words[PARTS_WORDS];

    if (!held->array)
        return;
    check_contents(held, "held for a while");
    if (rnd(d->a, 2)) {
        caid_array_close(TAKE_PTR(held->array));
        return;
    }
    close_at_work(d, held);
    MUST_CUDA(d->a->drv->cu.cuStreamSynchronize(d->a->stream));
    MUST_CUDA(d->a->drv->cu.cuMemcpyDtoH(words, d->copy, PARTS_BYTES));
    check_words("closed with work under way", words, held->value);
}

static void
reader_loop(struct reader *d)
{
    actor_fast(d->a);
    actor_reached(d->a);
    while (!d->a->role->end) {
        struct held *held = &d->held[rnd(d->a, N_HELD)];
        let_go(d, held);
        *held = open_part(d->a, rnd(d->a, PARTS_NAMES - 1));
    }
}

static void
reader_go(struct reader *d, enum reader_moment moment)
{
    if (moment == READER_looping) {
        reader_loop(d);
        return;
    }
    if (moment == READER_unsent)
        actor_stop_before_send(d->a);
    if (moment == READER_sent)
        actor_stop_after_send(d->a);
    for (uint32_t i = 0; i < PARTS_NAMES - 1; i++)
        d->held[i] = open_part(d->a, i);
    if (moment == READER_working) {
        actor_slow(d->a); /* never done */
        for (size_t i = 0; i < N_HELD; i++)
            if (d->held[i].array)
                close_at_work(d, &d->held[i]);
    }
    MUST(caid_client_ping(d->a->client, &error));
    actor_reached(d->a);
}

/* Goes to its moment: reached. One that survives: looks at what it holds again, and ends. */
static void
run_reader(struct actor *a, unsigned unused UNUSED)
{
    const struct parts_shared *shared = a->shared;
    struct reader d = {.a = a};

    actor_open(a);
    MUST_CUDA(a->drv->cu.cuMemAlloc(&d.copy, PARTS_BYTES));
    reader_go(&d, shared->now.reader);
    actor_wait(a);
    for (size_t i = 0; i < N_HELD; i++)
        let_go(&d, &d.held[i]);
    caid_client_close(a->client);
}

/* ---- the witness ---- */

/* Whether the change that was under way may have been made: the daemon may have been asked, and
 * nobody knows. */
static bool
may_be_changed(const struct parts_case *c)
{
    return c->killed[PUBLISHER] &&
           (c->publisher == PUBLISHER_sent || c->publisher == PUBLISHER_looping);
}

/* Sees that each name shows what it has to show, and removes it. */
static void
run_witness(struct actor *a, unsigned unused UNUSED)
{
    const struct parts_shared *shared = a->shared;
    char room[16];

    actor_open(a);
    for (uint32_t i = 0; i < PARTS_NAMES; i++) {
        uint32_t acked = shared->acked[i], asked = shared->asked[i];
        struct held held = open_part(a, i); /* none has the value 0 */
        if (held.value != acked && !(may_be_changed(&shared->now) && held.value == asked))
            errx(1, "%s shows %u, not %u; %u was asked for", parts_name(room, i), held.value,
                 acked, asked);
        if (!held.array)
            continue;
        MUST(caid_unlink(a->client, parts_name(room, i), NULL, &error));
        check_contents(&held, "without its name");
        caid_array_close(held.array);
    }
    caid_client_close(a->client);
}

/* ---- the cases ---- */

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
    role_start(s, PUBLISHER, run_publisher, 0);
    role_await(s, PUBLISHER);
    role_start(s, READER, run_reader, 0);
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
    role_start(s, WITNESS, run_witness, 0);
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
