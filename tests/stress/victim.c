/* SPDX-License-Identifier: Apache-2.0 */
#include "victim.h"

#include <err.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/macros.h"
#include "base/packet.h"
#include "program.h"

#define N_HELD 24
#define N_MANY 64
#define N_LIVE 4 /* names that are published again and again */

struct victim {
    const char *socket;
    struct caid_client *client;
    uint32_t random;
    int ready_fd;
};

static void
say_ready(const struct victim *v)
{
    if (write(v->ready_fd, "", 1) != 1)
        err(1, "victim: write");
}

_Noreturn static void
wait_for_the_end(const struct victim *v)
{
    say_ready(v);
    for (;;)
        pause();
}

static const char *
base_name(char room[16], uint32_t i)
{
    snprintf(room, 16, VICTIM_BASE_FORMAT, i % 1000);
    return room;
}

/* ---- the states ---- */

_Noreturn static void
run_before_hello(struct victim *v)
{
    int fd, r = packet_connect(v->socket, &fd);

    if (r < 0)
        errx(1, "victim: connect: %d", r);
    wait_for_the_end(v);
}

_Noreturn static void
run_after_hello(struct victim *v)
{
    v->client = program_connect(v->socket);
    wait_for_the_end(v);
}

/* Sizes for which no empty block of the pool is likely to do. */
_Noreturn static void
run_creating(struct victim *v)
{
    int64_t n;
    OPTIONS(caid_create_options, options, .typestr = "|u1", .shape = &n, .ndim = 1,
            .flags = CAID_ARRAY_EXCLUSIVE);
    struct caid_array *array;

    v->client = program_connect(v->socket);
    say_ready(v);
    for (;;) {
        n = (int64_t)(1 + rnd(v, 40)) << 20;
        MUST(caid_array_create(v->client, &array, &options, &error));
        caid_array_close(array);
    }
}

_Noreturn static void
run_reading(struct victim *v)
{
    struct caid_array *array;
    char room[16];

    v->client = program_connect(v->socket);
    for (int i = 0; i < N_HELD; i++)
        MUST(caid_array_open(v->client, &array, base_name(room, rnd(v, N_VICTIM_BASE)), NULL,
                             &error));
    wait_for_the_end(v);
}

_Noreturn static void
run_writing(struct victim *v)
{
    static const char *const kinds[] = {"device", "legacy", "pinned", "mapped"};
    OPTIONS(caid_open_options, options, .mode = "rw");
    struct caid_array *array;
    char room[32];

    v->client = program_connect(v->socket);
    program_take_context(v->client);
    for (uint32_t i = 0; i < N_HELD; i++)
        program_make(v->client, NULL, kinds[i % ARRAY_SIZE(kinds)], 1 + rnd(v, 100000));
    snprintf(room, sizeof(room), "own/%d", (int)getpid());
    program_make(v->client, room, NULL, 1 + rnd(v, 100000));
    MUST(caid_array_open(v->client, &array, base_name(room, rnd(v, N_VICTIM_BASE)), &options,
                         &error));
    wait_for_the_end(v);
}

static void
publish_one(struct victim *v)
{
    struct caid_array *array = program_make(v->client, NULL, NULL, 1 + rnd(v, 10000));
    char name[16];

    snprintf(name, sizeof(name), "live/%u", rnd(v, N_LIVE));
    MUST(caid_array_publish(array, name, NULL, NULL, &error));
    caid_array_close(array);
}

_Noreturn static void
run_publishing(struct victim *v)
{
    v->client = program_connect(v->socket);
    if (rnd(v, 2))
        program_take_context(v->client);
    publish_one(v);
    say_ready(v);
    for (;;)
        publish_one(v);
}

/* Watches names that others publish, and brings news of its own now and then. */
_Noreturn static void
run_watching(struct victim *v)
{
    struct caid_watch *watches[N_LIVE];
    struct caid_change change;
    char name[16];

    v->client = program_connect(v->socket);
    for (uint32_t i = 0; i < N_LIVE; i++) {
        snprintf(name, sizeof(name), "live/%u", i);
        MUST(caid_watch_new(v->client, &watches[i], name, NULL, NULL, NULL, &error));
    }
    say_ready(v);
    for (;;) {
        MUST_OR(-ETIMEDOUT, caid_watch_next(watches[rnd(v, N_LIVE)], 1000000, &change, &error));
        if (rnd(v, 4) == 0)
            publish_one(v);
    }
}

_Noreturn static void
run_deferring(struct victim *v)
{
    v->client = program_connect(v->socket);
    for (uint32_t i = 0; i <= rnd(v, 4); i++)
        MUST(caid_defer_begin(v->client, &error));
    for (int i = 0; i < N_HELD; i++)
        caid_array_close(program_make(v->client, NULL, NULL, 1 + rnd(v, 100000)));
    say_ready(v);
    for (;;) {
        caid_array_close(program_make(v->client, NULL, NULL, 1 + rnd(v, 1000000)));
        MUST(caid_defer_begin(v->client, &error));
        caid_array_close(program_make(v->client, NULL, NULL, 1 + rnd(v, 1000000)));
        MUST(caid_defer_end(v->client, &error));
    }
}

_Noreturn static void
run_opening(struct victim *v)
{
    static char rooms[N_VICTIM_BASE][16];
    struct caid_array *arrays[N_VICTIM_BASE];
    const char *names[N_VICTIM_BASE];

    for (uint32_t i = 0; i < N_VICTIM_BASE; i++)
        names[i] = base_name(rooms[i], i);
    v->client = program_connect(v->socket);
    say_ready(v);
    for (;;) {
        MUST(caid_array_open_many(v->client, arrays, names, N_VICTIM_BASE, NULL, &error));
        for (uint32_t i = 0; i < N_VICTIM_BASE; i++)
            caid_array_close(arrays[i]);
    }
}

/* Arrays of what is shared by fd, and now and then of what is not. on: the driver whose work is
 * still to write the arrays when they are closed, or NULL. */
_Noreturn static void
close_for_ever(struct victim *v, const struct drv *on)
{
    static const char *const kinds[] = {"device", "device", "device", "pinned", "legacy"};
    struct caid_array *arrays[N_MANY];

    say_ready(v);
    for (;;) {
        for (uint32_t i = 0; i < N_MANY; i++)
            arrays[i] = program_make(v->client, NULL, kinds[rnd(v, ARRAY_SIZE(kinds))],
                                     1 + rnd(v, 20000));
        for (uint32_t i = 0; on && i < N_MANY; i += 8)
            MUST_CUDA(on->cu.cuMemsetD8Async(caid_array_get_info(arrays[i])->ptr, 1, 1, NULL));
        for (uint32_t i = 0; i < N_MANY; i++)
            caid_array_close(arrays[i]);
    }
}

_Noreturn static void
run_closing(struct victim *v)
{
    struct drv *drv = program_driver("soft");

    v->client = program_connect(v->socket);
    close_for_ever(v, drv);
}

_Noreturn static void
run_closing_bare(struct victim *v)
{
    v->client = program_connect(v->socket);
    close_for_ever(v, NULL);
}

_Noreturn static void
run_flushing(struct victim *v)
{
    v->client = program_connect(v->socket);
    say_ready(v);
    for (;;) {
        caid_array_close(program_make(v->client, NULL, NULL, (int64_t)(1 + rnd(v, 8)) << 20));
        MUST(caid_flush(v->client, -1, NULL, &error));
    }
}

static int
count_entry(const struct caid_entry *entry UNUSED, void *userdata)
{
    ++*(size_t *)userdata;
    return 0;
}

_Noreturn static void
run_naming(struct victim *v)
{
    OPTIONS(caid_list_options, all);
    size_t n_names = 0;
    char name[16];

    v->client = program_connect(v->socket);
    say_ready(v);
    for (;;) {
        snprintf(name, sizeof(name), "some/%u", rnd(v, 16));
        caid_array_close(program_make(v->client, name, NULL, 1 + rnd(v, 100000)));
        if (rnd(v, 4) == 0)
            MUST(caid_list(v->client, &all, count_entry, &n_names, &error));
        snprintf(name, sizeof(name), "some/%u", rnd(v, 16));
        MUST_OR(-ENOENT, caid_unlink(v->client, name, NULL, &error));
    }
}

const char *
victim_describe(enum victim_state state)
{
    static const char *const texts[] = {
#define VICTIM(name, what) what,
        VICTIMS(VICTIM)
#undef VICTIM
    };
    return texts[state];
}

_Noreturn void
victim_run(enum victim_state state, const char *socket, uint32_t seed, int ready_fd)
{
    struct victim v = {.socket = socket, .random = seed, .ready_fd = ready_fd};

    switch (state) {
#define VICTIM(name, what) \
    case VICTIM_##name: run_##name(&v); break;
        VICTIMS(VICTIM)
#undef VICTIM
    case N_VICTIM_STATES: break;
    }
    errx(1, "victim: no such state");
}
