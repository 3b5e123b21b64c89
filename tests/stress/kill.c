/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL of clients in every state that a connection can be in, eight at a time. An actor brings
 * its connection into one state, says so, and stays there, or does the same thing again and again.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/packet.h"
#include "stress.h"

#define N_BASE 200 /* names that are there before */
#define N_HELD 24
#define N_MANY 64
#define N_LIVE 4 /* names that are published again and again */

static const char *const kinds[] = {"device", "legacy", "pinned", "mapped"};

static struct caid_array *
make(struct actor *a, const char *memory, uint32_t below)
{
    return program_make(a->client, NULL, memory, 1 + rnd(a, below));
}

static const char *
name_of(char room[16], const char *folder, uint32_t i)
{
    snprintf(room, 16, "%s/%03u", folder, i % 1000);
    return room;
}

static void
connect(struct actor *a)
{
    a->client = program_connect(a->s->source.socket);
}

static void
connect_bare(struct actor *a)
{
    int fd;

    MUST(packet_connect(a->s->source.socket, &fd));
}

/* Sizes for which no empty block of the pool is likely to do; with a name now and then. */
static void
create(struct actor *a)
{
    int64_t n = (int64_t)(1 + rnd(a, 40)) << 20;
    char room[16];
    OPTIONS(caid_create_options, options, .typestr = "|u1", .shape = &n, .ndim = 1,
            .flags = CAID_ARRAY_EXCLUSIVE,
            .memory = rnd(a, 3) ? NULL : kinds[rnd(a, ARRAY_SIZE(kinds))],
            .name = rnd(a, 4) ? NULL : name_of(room, "new", rnd(a, 4)));
    struct caid_array *array = NULL;

    MUST_OR(-EEXIST, caid_array_create(a->client, &array, &options, &error));
    caid_array_close(array);
    if (options.name)
        MUST_OR(-ENOENT, caid_unlink(a->client, options.name, NULL, &error));
}

static void
hold_to_read(struct actor *a)
{
    struct caid_array *array;
    char room[16];

    connect(a);
    for (int i = 0; i < N_HELD; i++)
        MUST(caid_array_open(a->client, &array, name_of(room, "base", rnd(a, N_BASE)), NULL,
                             &error));
}

static void
hold_to_write(struct actor *a)
{
    OPTIONS(caid_open_options, options, .mode = "rw");
    struct caid_array *array;
    char room[32];

    connect(a);
    program_take_context(a->client);
    for (uint32_t i = 0; i < N_HELD; i++)
        make(a, kinds[i % ARRAY_SIZE(kinds)], 100000);
    snprintf(room, sizeof(room), "own/%d", (int)getpid());
    program_make(a->client, room, NULL, 1 + rnd(a, 100000));
    MUST(caid_array_open(a->client, &array, name_of(room, "base", rnd(a, N_BASE)), &options,
                         &error));
}

static void
publish(struct actor *a)
{
    struct caid_array *array = make(a, NULL, 10000);
    char room[16];

    MUST(caid_array_publish(array, name_of(room, "live", rnd(a, N_LIVE)), NULL, NULL, &error));
    caid_array_close(array);
}

static void
begin_to_publish(struct actor *a)
{
    connect(a);
    if (rnd(a, 2))
        program_take_context(a->client);
    publish(a);
}

static struct caid_watch *watches[N_LIVE];

static void
begin_to_watch(struct actor *a)
{
    char room[16];

    connect(a);
    for (uint32_t i = 0; i < N_LIVE; i++)
        MUST(caid_watch_new(a->client, &watches[i], name_of(room, "live", i), NULL, NULL, NULL,
                            &error));
}

/* Names that others publish, with news of its own now and then. */
static void
watch(struct actor *a)
{
    struct caid_change change;

    MUST_OR(-ETIMEDOUT, caid_watch_next(watches[rnd(a, N_LIVE)], 1000000, &change, &error));
    if (rnd(a, 4) == 0)
        publish(a);
}

static void
begin_to_defer(struct actor *a)
{
    connect(a);
    for (uint32_t i = 0; i <= rnd(a, 4); i++)
        MUST(caid_defer_begin(a->client, &error));
    for (int i = 0; i < N_HELD; i++)
        caid_array_close(make(a, NULL, 100000));
}

static void
defer(struct actor *a)
{
    caid_array_close(make(a, NULL, 1000000));
    MUST(caid_defer_begin(a->client, &error));
    caid_array_close(make(a, NULL, 1000000));
    MUST(caid_defer_end(a->client, &error));
}

static void
open_many(struct actor *a)
{
    static char rooms[N_BASE][16];
    struct caid_array *arrays[N_BASE];
    const char *names[N_BASE];

    for (uint32_t i = 0; i < N_BASE; i++)
        names[i] = name_of(rooms[i], "base", i);
    MUST(caid_array_open_many(a->client, arrays, names, N_BASE, NULL, &error));
    for (uint32_t i = 0; i < N_BASE; i++)
        caid_array_close(arrays[i]);
}

/* Arrays of what is shared by fd, and now and then of what is not; with a driver, its work is still
 * to write some of them. */
static void
close_many(struct actor *a)
{
    static const char *const most[] = {"device", "device", "device", "pinned", "legacy"};
    struct caid_array *arrays[N_MANY];

    for (uint32_t i = 0; i < N_MANY; i++)
        arrays[i] = make(a, most[rnd(a, ARRAY_SIZE(most))], 20000);
    for (uint32_t i = 0; a->drv && i < N_MANY; i += 8)
        MUST_CUDA(a->drv->cu.cuMemsetD8Async(caid_array_get_info(arrays[i])->ptr, 1, 1, NULL));
    for (uint32_t i = 0; i < N_MANY; i++)
        caid_array_close(arrays[i]);
}

static void
flush(struct actor *a)
{
    caid_array_close(program_make(a->client, NULL, NULL, (int64_t)(1 + rnd(a, 8)) << 20));
    MUST(caid_flush(a->client, -1, NULL, &error));
}

static int
count_entry(const struct caid_entry *entry UNUSED, void *userdata)
{
    ++*(size_t *)userdata;
    return 0;
}

static void
name(struct actor *a)
{
    OPTIONS(caid_list_options, all);
    size_t n_names = 0;
    char room[16];

    caid_array_close(
        program_make(a->client, name_of(room, "some", rnd(a, 16)), NULL, 1 + rnd(a, 100000)));
    if (rnd(a, 4) == 0)
        MUST(caid_list(a->client, &all, count_entry, &n_names, &error));
    MUST_OR(-ENOENT, caid_unlink(a->client, name_of(room, "some", rnd(a, 16)), NULL, &error));
}

static const struct state {
    const char *what;
    void (*begin)(struct actor *);
    void (*step)(struct actor *); /* again and again; NULL: it stays */
} states[] = {
    {"killed before hello", connect_bare, NULL},
    {"killed between hello and the first request", connect, NULL},
    {"killed while a create waits for the driver", connect, create},
    {"killed holding r leases", hold_to_read, NULL},
    {"killed holding rw leases of all kinds, named and not", hold_to_write, NULL},
    {"killed publishing", begin_to_publish, publish},
    {"killed watching, and being answered", begin_to_watch, watch},
    {"killed deferring, with arrays in the queue", begin_to_defer, defer},
    {"killed inside open_many", connect, open_many},
    {"killed inside close, the GPU's work not done", actor_open, close_many},
    {"killed inside close, in a process without context", connect, close_many},
    {"killed inside flush", connect, flush},
    {"killed creating, listing and unlinking names", connect, name},
};

static _Noreturn void
act(struct actor *a, unsigned n)
{
    states[n].begin(a);
    if (!states[n].step)
        actor_stay(a);
    actor_reached(a);
    for (;;)
        states[n].step(a);
}

/* What has its names when the victims come. */
static void
make_base(struct actor *a, unsigned n UNUSED)
{
    char room[16];

    connect(a);
    for (unsigned i = 0; i < N_BASE; i++)
        caid_array_close(program_make(a->client, name_of(room, "base", i), NULL, 1024));
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        caid_array_close(make(a, kinds[i], 1));
    caid_client_close(a->client);
}

static void
run_batch(struct stress *s, unsigned first, unsigned n)
{
    unsigned left[N_ROLES];

    for (unsigned i = 0; i < n; i++) {
        unsigned state = (first + i) % ARRAY_SIZE(states);
        stress_count(s, states[state].what);
        role_start(s, i, act, state);
        left[i] = i;
    }
    for (unsigned i = 0; i < n; i++)
        role_await(s, i);
    if (stress_look(s).jobs > 0)
        stress_count(s, "batches of eight, with a driver call under way");
    for (; n > 0; n--) {
        unsigned i = rnd(s, n);
        role_kill(s, left[i]);
        left[i] = left[n - 1];
    }
}

static void
run(struct stress *s, unsigned first, unsigned n)
{
    role_start(s, 0, make_base, 0);
    role_join(s, 0);
    for (unsigned done = 0; done < n; done += N_ROLES)
        run_batch(s, first + done, n - done < N_ROLES ? n - done : N_ROLES);
}

const struct scenario scenario_kill = {.name = "kill",
                                       .variable = "CAID_STRESS_KILLS",
                                       .amount = 100,
                                       .least = 4,
                                       .run = run};
