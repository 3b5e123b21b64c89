/* SPDX-License-Identifier: Apache-2.0 */
#include "victim.h"

#include <err.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/macros.h"
#include "base/packet.h"
#include "caid/caid.h"
#include "drv.h"

#define N_HELD 24
#define N_MANY 64
#define N_LIVE 4 /* names that are published again and again */

struct victim {
    const char *socket;
    struct caid_client *client;
    uint32_t random;
    int ready_fd;
};

static uint32_t
rnd(struct victim *v, uint32_t below)
{
    v->random = v->random * 1664525 + 1013904223;
    return (v->random >> 16) % below;
}

static void
check(int r, const struct caid_error *error, const char *what)
{
    if (r < 0)
        errx(1, "victim: %s: %d %s", what, r, error->message);
}

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

static void
connect_client(struct victim *v)
{
    struct caid_connect_options options = CAID_INIT(struct caid_connect_options);
    struct caid_error error;

    options.socket = v->socket;
    check(caid_connect(&v->client, &options, &error), &error, "connect");
}

/* An array of n bytes. name may be NULL; one that is taken gives NULL. */
static struct caid_array *
make(struct victim *v, const char *name, const char *memory, int64_t n, uint32_t flags)
{
    struct caid_create_options options = CAID_INIT(struct caid_create_options);
    struct caid_array *array;
    struct caid_error error;

    options.name = name;
    options.memory = memory;
    options.flags = flags;
    options.typestr = "|u1";
    options.shape = &n;
    options.ndim = 1;
    int r = caid_array_create(v->client, &array, &options, &error);
    if (r == -EEXIST)
        return NULL;
    check(r, &error, "create");
    return array;
}

/* Copying a byte gives this process the device's primary context: its closes wait for the GPU from
 * here on. */
static void
get_context(struct victim *v)
{
    struct caid_array *array = make(v, NULL, NULL, 1, 0);
    struct caid_error error;
    char byte = 0;

    check(caid_array_copy_from_host(array, &byte, 1, &error), &error, "copy");
    caid_array_close(array);
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
    connect_client(v);
    wait_for_the_end(v);
}

/* Sizes for which no empty block of the pool is likely to do. */
_Noreturn static void
run_creating(struct victim *v)
{
    connect_client(v);
    say_ready(v);
    for (;;)
        caid_array_close(
            make(v, NULL, NULL, (int64_t)(1 + rnd(v, 40)) << 20, CAID_ARRAY_EXCLUSIVE));
}

_Noreturn static void
run_reading(struct victim *v)
{
    struct caid_array *array;
    struct caid_error error;
    char room[16];

    connect_client(v);
    for (int i = 0; i < N_HELD; i++)
        check(caid_array_open(v->client, &array, base_name(room, rnd(v, N_VICTIM_BASE)), NULL,
                              &error),
              &error, "open");
    wait_for_the_end(v);
}

_Noreturn static void
run_writing(struct victim *v)
{
    static const char *const kinds[] = {"device", "legacy", "pinned", "mapped"};
    struct caid_open_options options = CAID_INIT(struct caid_open_options);
    struct caid_array *array;
    struct caid_error error;
    char room[32];

    options.mode = "rw";
    connect_client(v);
    get_context(v);
    for (uint32_t i = 0; i < N_HELD; i++)
        make(v, NULL, kinds[i % ARRAY_SIZE(kinds)], 1 + rnd(v, 100000), 0);
    snprintf(room, sizeof(room), "own/%d", (int)getpid());
    make(v, room, NULL, 1 + rnd(v, 100000), 0);
    check(caid_array_open(v->client, &array, base_name(room, rnd(v, N_VICTIM_BASE)), &options,
                          &error),
          &error, "open");
    wait_for_the_end(v);
}

static void
publish_one(struct victim *v)
{
    struct caid_array *array = make(v, NULL, NULL, 1 + rnd(v, 10000), 0);
    struct caid_error error;
    char name[16];

    snprintf(name, sizeof(name), "live/%u", rnd(v, N_LIVE));
    check(caid_array_publish(array, name, NULL, NULL, &error), &error, "publish");
    caid_array_close(array);
}

_Noreturn static void
run_publishing(struct victim *v)
{
    connect_client(v);
    if (rnd(v, 2))
        get_context(v);
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
    struct caid_error error;
    char name[16];

    connect_client(v);
    for (uint32_t i = 0; i < N_LIVE; i++) {
        snprintf(name, sizeof(name), "live/%u", i);
        check(caid_watch_new(v->client, &watches[i], name, NULL, NULL, NULL, &error), &error,
              "watch");
    }
    say_ready(v);
    for (;;) {
        int r = caid_watch_next(watches[rnd(v, N_LIVE)], 1000000, &change, &error);
        if (r != -ETIMEDOUT)
            check(r, &error, "watch_next");
        if (rnd(v, 4) == 0)
            publish_one(v);
    }
}

_Noreturn static void
run_deferring(struct victim *v)
{
    struct caid_error error;

    connect_client(v);
    for (uint32_t i = 0; i <= rnd(v, 4); i++)
        check(caid_defer_begin(v->client, &error), &error, "defer_begin");
    for (int i = 0; i < N_HELD; i++)
        caid_array_close(make(v, NULL, NULL, 1 + rnd(v, 100000), 0));
    say_ready(v);
    for (;;) {
        caid_array_close(make(v, NULL, NULL, 1 + rnd(v, 1000000), 0));
        check(caid_defer_begin(v->client, &error), &error, "defer_begin");
        caid_array_close(make(v, NULL, NULL, 1 + rnd(v, 1000000), 0));
        check(caid_defer_end(v->client, &error), &error, "defer_end");
    }
}

_Noreturn static void
run_opening(struct victim *v)
{
    static char rooms[N_VICTIM_BASE][16];
    struct caid_array *arrays[N_VICTIM_BASE];
    const char *names[N_VICTIM_BASE];
    struct caid_error error;

    for (uint32_t i = 0; i < N_VICTIM_BASE; i++)
        names[i] = base_name(rooms[i], i);
    connect_client(v);
    say_ready(v);
    for (;;) {
        check(caid_array_open_many(v->client, arrays, names, N_VICTIM_BASE, NULL, &error),
              &error, "open_many");
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
            arrays[i] = make(v, NULL, kinds[rnd(v, ARRAY_SIZE(kinds))], 1 + rnd(v, 20000), 0);
        for (uint32_t i = 0; on && i < N_MANY; i += 8)
            if (on->cu.cuMemsetD8Async(caid_array_get_info(arrays[i])->ptr, 1, 1, NULL))
                errx(1, "victim: cuMemsetD8Async");
        for (uint32_t i = 0; i < N_MANY; i++)
            caid_array_close(arrays[i]);
    }
}

_Noreturn static void
run_closing(struct victim *v)
{
    struct drv_error error;
    CUcontext context;
    struct drv *drv;

    if (drv_open(&drv, "soft", &error) < 0)
        errx(1, "victim: %s", error.message);
    if (drv->cu.cuDevicePrimaryCtxRetain(&context, 0) || drv->cu.cuCtxSetCurrent(context))
        errx(1, "victim: no context");
    connect_client(v);
    close_for_ever(v, drv);
}

_Noreturn static void
run_closing_bare(struct victim *v)
{
    connect_client(v);
    close_for_ever(v, NULL);
}

_Noreturn static void
run_flushing(struct victim *v)
{
    struct caid_error error;

    connect_client(v);
    say_ready(v);
    for (;;) {
        caid_array_close(make(v, NULL, NULL, (int64_t)(1 + rnd(v, 8)) << 20, 0));
        check(caid_flush(v->client, -1, NULL, &error), &error, "flush");
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
    struct caid_list_options all = CAID_INIT(struct caid_list_options);
    struct caid_error error;
    size_t n_names = 0;
    char name[16];

    connect_client(v);
    say_ready(v);
    for (;;) {
        snprintf(name, sizeof(name), "some/%u", rnd(v, 16));
        caid_array_close(make(v, name, NULL, 1 + rnd(v, 100000), 0));
        if (rnd(v, 4) == 0)
            check(caid_list(v->client, &all, count_entry, &n_names, &error), &error, "list");
        snprintf(name, sizeof(name), "some/%u", rnd(v, 16));
        int r = caid_unlink(v->client, name, NULL, &error);
        if (r != -ENOENT)
            check(r, &error, "unlink");
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
