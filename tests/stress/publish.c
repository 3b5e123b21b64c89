/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that publish parts of arrays, and use each part's place again when they are told that it
 * is gone, while others dispatch, poll and forget hooks on the same clients, and readers open what
 * has the names. A reader that finds two values in one part has been given a place that was used
 * again too early. Each part is told of once.
 */
#include <err.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/local.h"
#include "memory/part.h"
#include "stress.h"

#define CLIENTS    2
#define PUBLISHERS 4
#define READERS    3
#define SLOTS      8 /* per publisher */
#define EXTENT     4096
#define NAMES      3

struct slot {
    atomic_bool used;
    atomic_uint n_hooked, n_gone;
};

static struct caid_client *clients[CLIENTS];
static struct slot slots[PUBLISHERS][SLOTS];
static atomic_bool stop_polling, stop_reading;
static atomic_uint n_read;

static void
on_released(void *userdata)
{
    struct slot *slot = userdata;

    if (!slot->used)
        errx(1, "a hook of what is not published");
    slot->n_hooked++;
}

static void
on_gone(void *userdata)
{
    struct slot *slot = userdata;

    slot->n_gone++;
    if (!atomic_exchange(&slot->used, false))
        errx(1, "gone twice");
}

/* The value of a part is that of all its bytes. */
static void
publish(struct worker *w, struct caid_array *whole, size_t i)
{
    static const int64_t shape = EXTENT;
    struct slot *slot = &slots[w->index][i];
    uint8_t bytes[EXTENT];
    OPTIONS(caid_copy, copy, .dst = caid_array_get_info(whole)->ptr + i * EXTENT,
            .src = (uintptr_t)bytes, .src_on_host = true, .shape = &shape, .ndim = 1,
            .itemsize = 1);
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1,
            .stream = 1, .gone = on_gone, .userdata = slot);
    struct part_hook hook = {on_released, slot};
    char name[8];

    memset(bytes, (uint8_t)rnd(w, 256), sizeof(bytes));
    MUST(caid_copy(clients[w->index % CLIENTS], &copy, &error));
    snprintf(name, sizeof(name), "%u", rnd(w, NAMES));
    slot->used = true;
    MUST(part_publish(whole, i * EXTENT, name, &options, rnd(w, 4) ? &hook : NULL, NULL, NULL,
                      &error));
    if (rnd(w, 8) == 0)
        part_forget(clients[w->index % CLIENTS], slot);
}

static void
publish_all(struct worker *w)
{
    struct caid_client *client = clients[w->index % CLIENTS];
    struct caid_array *whole = program_make(client, NULL, NULL, SLOTS * EXTENT);

    for (unsigned n = 0; n < w->n;) {
        size_t i = rnd(w, SLOTS);
        if (slots[w->index][i].used) {
            part_poll(client);
            sched_yield();
            continue;
        }
        publish(w, whole, i);
        n++;
    }
    caid_array_close(whole); /* its parts stay */
}

static void
poll_all(struct worker *w)
{
    struct caid_client *client = clients[w->index];

    while (!stop_polling) {
        switch (rnd(w, 4)) {
        case 0: MUST(caid_client_dispatch(client, &error)); break;
        case 1: MUST(caid_client_dispatch_parts(client, &error)); break;
        case 2: part_poll(client); break;
        default: MUST(caid_client_ping(client, &error)); break;
        }
        sched_yield();
    }
}

static void
check(struct caid_array *array, const uint8_t *expected)
{
    uint8_t bytes[EXTENT];

    MUST(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    for (size_t i = 0; i < sizeof(bytes); i++)
        if (bytes[i] != (expected ? *expected : bytes[0]))
            errx(1, "byte %zu of a part is %d, the first one %d", i, bytes[i], bytes[0]);
    if (!expected)
        for (uint32_t i = bytes[0] % 8; i > 0; i--)
            sched_yield();
    if (!expected)
        check(array, bytes);
}

static void
read_all(struct worker *w)
{
    struct caid_client *client = program_connect(w->a->s->source.socket);
    struct caid_array *array;
    char name[8];

    while (!stop_reading) {
        snprintf(name, sizeof(name), "%u", rnd(w, NAMES));
        if (MUST_OR(-ENOENT, caid_array_open(client, &array, name, NULL, &error)) < 0)
            continue;
        check(array, NULL);
        caid_array_close(array);
        n_read++;
    }
    caid_client_close(client);
}

/* Whether all of the first client's parts have been told. */
static bool
all_gone(void)
{
    for (size_t i = 0; i < PUBLISHERS; i += CLIENTS)
        for (size_t k = 0; k < SLOTS; k++)
            if (slots[i][k].used)
                return false;
    return true;
}

static void
check_counts(unsigned n_published)
{
    for (size_t i = 0; i < PUBLISHERS; i++) {
        unsigned n_gone = 0, n_hooked = 0;
        for (size_t k = 0; k < SLOTS; k++) {
            n_gone += slots[i][k].n_gone;
            n_hooked += slots[i][k].n_hooked;
        }
        if (n_gone != n_published || n_hooked > n_gone)
            errx(1, "%u parts were published, %u told, %u released", n_published, n_gone,
                 n_hooked);
    }
    if (n_read == 0)
        errx(1, "nothing was read");
}

/* The parts of the first client are told before it closes; some of the last one's by that. The
 * driver stays loaded: client.c. */
static void
act(struct actor *a, unsigned n)
{
    struct worker publishers[PUBLISHERS], pollers[CLIENTS], readers[READERS];

    MUST(cuda_driver_open(&a->client, "soft", &error));
    for (size_t i = 0; i < CLIENTS; i++)
        clients[i] = program_connect(a->s->source.socket);
    workers_start(pollers, CLIENTS, a, poll_all, 0);
    workers_start(readers, READERS, a, read_all, 0);
    workers_start(publishers, PUBLISHERS, a, publish_all, n);
    workers_join(publishers, PUBLISHERS);
    stop_reading = true;
    workers_join(readers, READERS);
    ledger_unlink_all(&a->s->source);
    while (!all_gone())
        usleep(1000);
    stop_polling = true;
    workers_join(pollers, CLIENTS);
    for (size_t i = 0; i < CLIENTS; i++)
        caid_client_close(clients[i]);
    check_counts(n);
    caid_client_close(a->client);
}

const struct scenario scenario_publish = {.name = "publish",
                                          .amount = 300,
                                          .warm = 30,
                                          .actor = act};
