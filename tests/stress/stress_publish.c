/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_publish SOCKET [STEPS]: threads that publish parts of arrays, and use each part's place
 * again when they are told that it is gone, while others dispatch, poll and forget hooks on the
 * same clients, and readers open what has the names. A reader that finds two values in one part has
 * been given a place that was used again too early. Each part is told of once; in the end nothing
 * is left.
 */
#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/local.h"

#include "base/macros.h"
#include "memory/part.h"
#include "program.h"

#define CLIENTS    2
#define PUBLISHERS 2 /* per client */
#define READERS    3
#define SLOTS      8 /* per publisher */
#define EXTENT     4096
#define NAMES      3

struct slot {
    atomic_bool used;
    atomic_uint n_hooked, n_gone;
};

struct publisher {
    pthread_t thread;
    struct caid_client *client;
    struct caid_array *whole;
    struct slot slots[SLOTS];
    uint32_t random;
    int steps;
    unsigned n_published;
};

struct other { /* a poller, or a reader */
    pthread_t thread;
    struct caid_client *client;
    uint32_t random;
    atomic_bool *stop;
    unsigned n;
};

/* ---- publishing ---- */

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

static void
write_slot(struct publisher *p, size_t i, uint8_t value)
{
    static const int64_t shape = EXTENT;
    uint8_t bytes[EXTENT];
    OPTIONS(caid_copy, copy, .dst = caid_array_get_info(p->whole)->ptr + i * EXTENT,
            .src = (uintptr_t)bytes, .src_on_host = true, .shape = &shape, .ndim = 1,
            .itemsize = 1);

    memset(bytes, value, sizeof(bytes));
    MUST(caid_copy(p->client, &copy, &error));
}

static void
publish(struct publisher *p, size_t i)
{
    static const int64_t shape = EXTENT;
    struct slot *slot = &p->slots[i];
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1,
            .stream = 1, .gone = on_gone, .userdata = slot);
    struct part_hook hook = {on_released, slot};
    char name[8];

    snprintf(name, sizeof(name), "%u", rnd(p, NAMES));
    slot->used = true;
    MUST(part_publish(p->whole, i * EXTENT, name, &options, rnd(p, 4) ? &hook : NULL, NULL,
                      NULL, &error));
    p->n_published++;
    if (rnd(p, 8) == 0)
        part_forget(p->client, slot);
}

static size_t
take_slot(struct publisher *p)
{
    for (;;) {
        size_t i = rnd(p, SLOTS);
        if (!p->slots[i].used)
            return i;
        part_poll(p->client);
        sched_yield();
    }
}

static void *
publish_on(void *arg)
{
    struct publisher *p = arg;

    p->whole = program_make(p->client, NULL, NULL, SLOTS * EXTENT);
    for (int n = 0; n < p->steps; n++) {
        size_t i = take_slot(p);
        write_slot(p, i, (uint8_t)rnd(p, 256));
        publish(p, i);
    }
    caid_array_close(p->whole); /* its parts stay */
    return NULL;
}

/* ---- the others ---- */

static void *
poll_on(void *arg)
{
    struct other *o = arg;

    while (!*o->stop) {
        switch (rnd(o, 4)) {
        case 0: MUST(caid_client_dispatch(o->client, &error)); break;
        case 1: MUST(caid_client_dispatch_parts(o->client, &error)); break;
        case 2: part_poll(o->client); break;
        default: MUST(caid_client_ping(o->client, &error)); break;
        }
        sched_yield();
    }
    return NULL;
}

/* Returns the one value that it is full of. */
static uint8_t
look(struct caid_array *array)
{
    uint8_t bytes[EXTENT];

    MUST(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    for (size_t i = 1; i < sizeof(bytes); i++)
        if (bytes[i] != bytes[0])
            errx(1, "byte %zu of a part is %d, the first one %d", i, bytes[i], bytes[0]);
    return bytes[0];
}

static void *
read_on(void *arg)
{
    struct other *o = arg;
    struct caid_array *array;
    char name[8];

    while (!*o->stop) {
        snprintf(name, sizeof(name), "%u", rnd(o, NAMES));
        if (MUST_OR(-ENOENT, caid_array_open(o->client, &array, name, NULL, &error)) < 0)
            continue;
        uint8_t first = look(array);
        for (uint32_t i = rnd(o, 8); i > 0; i--)
            sched_yield();
        uint8_t last = look(array);
        if (last != first)
            errx(1, "a part of %d has become one of %d", first, last);
        caid_array_close(array);
        o->n++;
    }
    return NULL;
}

/* ---- the whole ---- */

static void
unlink_all(struct caid_client *client)
{
    char name[8];

    for (unsigned i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "%u", i);
        MUST_OR(-ENOENT, caid_unlink(client, name, NULL, &error));
    }
}

static bool
all_gone(const struct publisher *p)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (p->slots[i].used)
            return false;
    return true;
}

static void
check_counts(const struct publisher *p)
{
    unsigned n_gone = 0, n_hooked = 0;

    for (size_t i = 0; i < SLOTS; i++) {
        n_gone += p->slots[i].n_gone;
        n_hooked += p->slots[i].n_hooked;
    }
    if (n_gone != p->n_published || n_hooked > n_gone)
        errx(1, "%u parts were published, %u told, %u released", p->n_published, n_gone,
             n_hooked);
}

static void
wait_until_empty(struct caid_client *client)
{
    OPTIONS(caid_status, status);

    for (int i = 0; i < 1000; i++) {
        MUST(caid_flush(client, -1, NULL, &error));
        MUST(caid_client_status(client, &status, &error));
        if (!status.arrays && !status.blocks && !status.leases)
            return;
        usleep(10000);
    }
    errx(1, "left behind: %llu arrays, %llu blocks, %llu leases",
         (unsigned long long)status.arrays, (unsigned long long)status.blocks,
         (unsigned long long)status.leases);
}

static void
start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    if (pthread_create(thread, NULL, fn, arg))
        errx(1, "pthread_create");
}

static struct publisher publishers[CLIENTS * PUBLISHERS];
static struct other pollers[CLIENTS], readers[READERS];
static struct caid_client *clients[CLIENTS];
static atomic_bool stop_polling, stop_reading;

static void
start_all(const char *socket, int steps)
{
    for (size_t i = 0; i < CLIENTS; i++) {
        clients[i] = program_connect(socket);
        pollers[i] = (struct other){.client = clients[i],
                                    .random = (uint32_t)i + 100,
                                    .stop = &stop_polling};
        start(&pollers[i].thread, poll_on, &pollers[i]);
    }
    for (size_t i = 0; i < READERS; i++) {
        readers[i] = (struct other){.client = program_connect(socket),
                                    .random = (uint32_t)i + 200,
                                    .stop = &stop_reading};
        start(&readers[i].thread, read_on, &readers[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(publishers); i++) {
        publishers[i].client = clients[i % CLIENTS];
        publishers[i].random = (uint32_t)i + 1;
        publishers[i].steps = steps;
        start(&publishers[i].thread, publish_on, &publishers[i]);
    }
}

/* Returns how many parts have been read. */
static unsigned
end_reading(void)
{
    unsigned n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(publishers); i++)
        pthread_join(publishers[i].thread, NULL);
    stop_reading = true;
    for (size_t i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        caid_client_close(readers[i].client);
        n += readers[i].n;
    }
    return n;
}

/* All of the first client's parts are told before it closes; some of the last one's by that. */
static void
end_telling(struct caid_client *witness)
{
    unlink_all(witness);
    for (size_t i = 0; i < ARRAY_SIZE(publishers); i++)
        while (publishers[i].client == clients[0] && !all_gone(&publishers[i]))
            usleep(1000);
    stop_polling = true;
    for (size_t i = 0; i < CLIENTS; i++) {
        pthread_join(pollers[i].thread, NULL);
        caid_client_close(clients[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(publishers); i++)
        check_counts(&publishers[i]);
}

int
main(int argc, char **argv)
{
    int steps = argc > 2 ? atoi(argv[2]) : 300;
    struct caid_client *witness, *driver;

    if (argc < 2)
        errx(1, "usage: stress_publish SOCKET [STEPS]");
    MUST(cuda_driver_open(&driver, "soft", &error)); /* stays loaded: stress.c */
    witness = program_connect(argv[1]);
    start_all(argv[1], steps);
    unsigned n_read = end_reading();
    end_telling(witness);
    wait_until_empty(witness);
    caid_client_close(witness);
    caid_client_close(driver);
    if (n_read == 0)
        errx(1, "nothing was read");
    printf("%zu threads published %d parts each, %u were read: nothing left\n",
           ARRAY_SIZE(publishers), steps, n_read);
    return 0;
}
