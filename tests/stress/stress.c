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
#include "program.h"

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

static void
use(struct worker *w, struct caid_array *array)
{
    static const uint8_t pattern[EXTENT] = {[EXTENT - 1] = 1};
    const struct caid_array_info *info = caid_array_get_info(array);
    uint8_t bytes[EXTENT];

    if (info->nbytes != EXTENT || !info->ptr)
        errx(1, "an array of the wrong size");
    if (!info->readonly && rnd(w, 2))
        MUST(caid_array_copy_from_host(array, pattern, EXTENT, &error));
    MUST(caid_array_copy_to_host(array, bytes, EXTENT, &error));
}

/* One that begins is ended, abandoned, or only freed, which abandons it, too. */
static void
use_and_end(struct worker *w, struct caid_array *array, struct caid_bracket *bracket)
{
    use(w, array);
    switch (rnd(w, 8)) {
    case 0: MUST(caid_bracket_abandon(bracket, &error)); break;
    case 1: break;
    default: MUST(caid_bracket_end(bracket, &error)); break;
    }
}

static void
use_in_bracket(struct worker *w, struct caid_array *array)
{
    bool write = !caid_array_get_info(array)->readonly && rnd(w, 2);
    OPTIONS(caid_bracket_options, options, .reads = &array, .n_reads = !write, .writes = &array,
            .n_writes = write, .stream = rnd(w, 3) ? w->stream : 0);
    struct caid_bracket *bracket;
    int r;

    options.nowait = rnd(w, 4) == 0;
    options.timeout_ns = rnd(w, 4) ? 0 : rnd(w, 1000) * 1000;
    MUST(caid_bracket_start(w->client, &bracket, &options, &error));
    if (rnd(w, 8)) /* else it is given up */
        while ((r = caid_bracket_wait(bracket, rnd(w, 2) ? 200000 : CAID_FOREVER, &error)) > 0)
            ;
    else
        r = -ECANCELED;
    if (r == 0)
        use_and_end(w, array, bracket);
    else if (r != -ECANCELED && r != -EOWNERDEAD)
        MUST_OR(-ETIMEDOUT, r);
    caid_bracket_free(bracket);
}

static void
step(struct worker *w)
{
    OPTIONS(caid_open_options, open);
    OPTIONS(caid_memory_info, memory);
    struct caid_array *array = NULL;
    char name[8];

    snprintf(name, sizeof(name), "%u", rnd(w, NAMES));
    switch (rnd(w, 8)) {
    case 0:
    case 1: array = program_make(w->client, rnd(w, 3) ? name : NULL, NULL, EXTENT); break;
    case 2: MUST_OR(-ENOENT, caid_unlink(w->client, name, NULL, &error)); break;
    case 3: MUST(caid_memory_info(w->client, 0, &memory, &error)); break;
    default:
        open.mode = rnd(w, 2) ? "r" : "rw";
        MUST_OR(-ENOENT, caid_array_open(w->client, &array, name, &open, &error));
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

    MUST(caid_stream_create(w->client, 0, CAID_STREAM_NON_BLOCKING, &w->stream, &error));
    for (int i = 0; i < w->steps; i++)
        step(w);
    MUST(caid_stream_synchronize(w->client, w->stream, 0, &error));
    MUST(caid_stream_destroy(w->client, w->stream, &error));
    return NULL;
}

/* Keeps the driver's library loaded: ThreadSanitizer does not see the lock of the dynamic loader
 * and would report what loading wrote in one thread and another reads. */
static struct caid_client *
driver_hold(void)
{
    struct caid_client *client;

    MUST(cuda_driver_open(&client, "soft", &error));
    return client;
}

/* One more client sees that the names can go, and that all is given back. */
static void
clean_up(const char *socket)
{
    struct caid_client *client = program_connect(socket);
    OPTIONS(caid_status, status);
    char name[8];

    for (unsigned i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "%u", i);
        MUST_OR(-ENOENT, caid_unlink(client, name, NULL, &error));
    }
    for (int i = 0; i < 1000; i++) {
        MUST(caid_client_status(client, &status, &error));
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
        clients[i] = program_connect(argv[1]);
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
