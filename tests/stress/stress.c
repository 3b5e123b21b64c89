/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on few clients against one daemon, for ThreadSanitizer: a plain main, since
 * Criterion aborts under it. Threads create, open, read, write, close, list and unlink arrays
 * with colliding names, in brackets or without; every answer must be one that the interface
 * allows. Ends after a fixed number of steps. At the end nothing may be left.
 *      usage: stress SOCKET [STEPS]
 */
#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "cuda/local.h"

#define CLIENTS 3
#define THREADS 4 /* for each client */
#define NAMES   5
#define EXTENT  1024

struct worker {
    pthread_t thread;
    struct caid_client *client;
    uint64_t stream;
    uint32_t random;
    int steps;
};

static uint32_t
rnd(struct worker *w, uint32_t below)
{
    w->random = w->random * 1664525 + 1013904223;
    return (w->random >> 16) % below;
}

static void
expect(int r, const struct caid_error *error, const char *what, int a, int b)
{
    if (r < 0 && r != a && r != b)
        errx(1, "%s: %d %s", what, r, error->message);
}

static void
use(struct worker *w, struct caid_array *array)
{
    static const uint8_t pattern[EXTENT] = {[EXTENT - 1] = 1};
    const struct caid_array_info *info = caid_array_get_info(array);
    struct caid_error error;
    uint8_t bytes[EXTENT];

    if (info->nbytes != EXTENT || !info->ptr)
        errx(1, "an array of the wrong size");
    if (!info->readonly && rnd(w, 2))
        expect(caid_array_copy_from_host(array, pattern, EXTENT, &error), &error, "write", 0,
               0);
    expect(caid_array_copy_to_host(array, bytes, EXTENT, &error), &error, "read", 0, 0);
}

/* One that begins is ended, abandoned, or only freed, which abandons it, too. */
static void
use_and_end(struct worker *w, struct caid_array *array, struct caid_bracket *bracket)
{
    struct caid_error error;

    use(w, array);
    switch (rnd(w, 8)) {
    case 0: expect(caid_bracket_abandon(bracket, &error), &error, "abandon", 0, 0); break;
    case 1: break;
    default: expect(caid_bracket_end(bracket, &error), &error, "end", 0, 0); break;
    }
}

static void
use_in_bracket(struct worker *w, struct caid_array *array)
{
    struct caid_bracket_options options = CAID_INIT(struct caid_bracket_options);
    bool write = !caid_array_get_info(array)->readonly && rnd(w, 2);
    struct caid_bracket *bracket;
    struct caid_error error;
    int r;

    options.reads = options.writes = &array;
    options.n_reads = !write;
    options.n_writes = write;
    options.stream = rnd(w, 3) ? w->stream : 0;
    options.nowait = rnd(w, 4) == 0;
    options.timeout_ns = rnd(w, 4) ? 0 : rnd(w, 1000) * 1000;
    r = caid_bracket_start(w->client, &bracket, &options, &error);
    expect(r, &error, "start", 0, 0);
    if (rnd(w, 8)) /* else it is given up */
        while ((r = caid_bracket_wait(bracket, rnd(w, 2) ? 200000 : CAID_FOREVER, &error)) > 0)
            ;
    else
        r = -ECANCELED;
    if (r == 0)
        use_and_end(w, array, bracket);
    else if (r != -ECANCELED)
        expect(r, &error, "begin", -EOWNERDEAD, -ETIMEDOUT);
    caid_bracket_free(bracket);
}

static void
step(struct worker *w)
{
    struct caid_create_options create = CAID_INIT(struct caid_create_options);
    struct caid_open_options open = CAID_INIT(struct caid_open_options);
    struct caid_memory_info memory = CAID_INIT(struct caid_memory_info);
    const int64_t shape[] = {EXTENT};
    struct caid_array *array = NULL;
    struct caid_error error;
    char name[8];
    int r;

    snprintf(name, sizeof(name), "%u", rnd(w, NAMES));
    switch (rnd(w, 8)) {
    case 0:
    case 1:
        create.name = rnd(w, 3) ? name : NULL;
        create.typestr = "|u1";
        create.shape = shape;
        create.ndim = 1;
        r = caid_array_create(w->client, &array, &create, &error);
        expect(r, &error, "create", -EEXIST, 0);
        break;
    case 2:
        expect(caid_unlink(w->client, name, NULL, &error), &error, "unlink", -ENOENT, 0);
        break;
    case 3:
        r = caid_memory_info(w->client, 0, &memory, &error);
        expect(r, &error, "memory_info", 0, 0);
        break;
    default:
        open.mode = rnd(w, 2) ? "r" : "rw";
        r = caid_array_open(w->client, &array, name, &open, &error);
        expect(r, &error, "open", -ENOENT, 0);
        break;
    }
    if (array && rnd(w, 2))
        use_in_bracket(w, array);
    else if (array)
        use(w, array);
    caid_array_close(array);
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    struct caid_error error;

    expect(caid_stream_create(w->client, 0, CAID_STREAM_NON_BLOCKING, &w->stream, &error),
           &error, "stream", 0, 0);
    for (int i = 0; i < w->steps; i++)
        step(w);
    expect(caid_stream_synchronize(w->client, w->stream, 0, &error), &error, "synchronize", 0,
           0);
    expect(caid_stream_destroy(w->client, w->stream, &error), &error, "stream", 0, 0);
    return NULL;
}

static struct caid_client *
client_new(const char *socket)
{
    struct caid_connect_options options = CAID_INIT(struct caid_connect_options);
    struct caid_client *client;
    struct caid_error error;

    options.socket = socket;
    if (caid_connect(&client, &options, &error) < 0)
        errx(1, "connect: %s", error.message);
    return client;
}

/* Keeps the driver's library loaded: ThreadSanitizer does not see the lock of the dynamic loader
 * and would report what loading wrote in one thread and another reads. */
static struct caid_client *
driver_hold(void)
{
    struct caid_client *client;
    struct caid_error error;

    if (cuda_driver_open(&client, "soft", &error) < 0)
        errx(1, "driver: %s", error.message);
    return client;
}

/* One more client sees that the names can go, and that all is given back. */
static void
clean_up(const char *socket)
{
    struct caid_client *client = client_new(socket);
    struct caid_status status = CAID_INIT(struct caid_status);
    struct caid_error error;
    char name[8];

    for (unsigned i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "%u", i);
        expect(caid_unlink(client, name, NULL, &error), &error, "unlink", -ENOENT, 0);
    }
    for (int i = 0; i < 1000; i++) {
        expect(caid_client_status(client, &status, &error), &error, "status", 0, 0);
        if (!status.blocks && !status.arrays && !status.leases && !status.brackets &&
            status.connections == 1)
            break;
        usleep(10000);
    }
    if (status.blocks || status.arrays || status.leases || status.brackets ||
        status.release_errors)
        errx(1, "left behind: %llu blocks, %llu arrays, %llu leases, %llu brackets",
             (unsigned long long)status.blocks, (unsigned long long)status.arrays,
             (unsigned long long)status.leases, (unsigned long long)status.brackets);
    caid_client_close(client);
}

int
main(int argc, char **argv)
{
    struct worker workers[CLIENTS * THREADS];
    struct caid_client *clients[CLIENTS];
    int steps = argc > 2 ? atoi(argv[2]) : 500;

    if (argc < 2)
        errx(1, "usage: stress SOCKET [STEPS]");
    struct caid_client *driver = driver_hold();
    for (size_t i = 0; i < CLIENTS; i++)
        clients[i] = client_new(argv[1]);
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++) {
        workers[i] = (struct worker){.client = clients[i % CLIENTS],
                                     .random = (uint32_t)i + 1,
                                     .steps = steps};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            errx(1, "pthread_create");
    }
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++)
        pthread_join(workers[i].thread, NULL);
    for (size_t i = 0; i < CLIENTS; i++)
        caid_client_close(clients[i]);
    clean_up(argv[1]);
    caid_client_close(driver);
    printf("%zu threads on %d clients, %d steps each: nothing left\n", ARRAY_SIZE(workers),
           CLIENTS, steps);
    return 0;
}
