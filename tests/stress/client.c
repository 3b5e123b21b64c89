/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on few clients, for ThreadSanitizer: a plain main, since Criterion aborts under it.
 * Threads create, open, read, write, close, list and unlink arrays with colliding names, in
 * brackets or without; every answer must be one that the interface allows.
 */
#include <err.h>
#include <errno.h>
#include <stdio.h>

#include "cuda/local.h"
#include "stress.h"

#define CLIENTS 3
#define THREADS 12
#define NAMES   5
#define EXTENT  1024

static struct caid_client *clients[CLIENTS];

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
use_in_bracket(struct worker *w, struct caid_array *array, uint64_t stream)
{
    bool write = !caid_array_get_info(array)->readonly && rnd(w, 2);
    OPTIONS(caid_bracket_options, options, .reads = &array, .n_reads = !write, .writes = &array,
            .n_writes = write, .stream = rnd(w, 3) ? stream : 0, .nowait = rnd(w, 4) == 0);
    struct caid_bracket *bracket;
    int r = -ECANCELED;

    options.timeout_ns = rnd(w, 4) ? 0 : rnd(w, 1000) * 1000;
    MUST(caid_bracket_start(clients[w->index % CLIENTS], &bracket, &options, &error));
    if (rnd(w, 8)) /* else it is given up */
        while ((r = caid_bracket_wait(bracket, rnd(w, 2) ? 200000 : CAID_FOREVER, &error)) > 0)
            ;
    if (r == 0)
        use_and_end(w, array, bracket);
    else if (r != -ECANCELED && r != -EOWNERDEAD)
        MUST_OR(-ETIMEDOUT, r);
    caid_bracket_free(bracket);
}

static void
step(struct worker *w, struct caid_client *client, uint64_t stream)
{
    OPTIONS(caid_open_options, open);
    OPTIONS(caid_memory_info, memory);
    struct caid_array *array = NULL;
    char name[8];

    snprintf(name, sizeof(name), "%u", rnd(w, NAMES));
    switch (rnd(w, 8)) {
    case 0:
    case 1: array = program_make(client, rnd(w, 3) ? name : NULL, NULL, EXTENT); break;
    case 2: MUST_OR(-ENOENT, caid_unlink(client, name, NULL, &error)); break;
    case 3: MUST(caid_memory_info(client, 0, &memory, &error)); break;
    default:
        open.mode = rnd(w, 2) ? "r" : "rw";
        MUST_OR(-ENOENT, caid_array_open(client, &array, name, &open, &error));
        break;
    }
    if (array && rnd(w, 2))
        use_in_bracket(w, array, stream);
    else if (array)
        use(w, array);
    caid_array_close(array);
}

static void
work(struct worker *w)
{
    struct caid_client *client = clients[w->index % CLIENTS];
    uint64_t stream;

    MUST(caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error));
    for (unsigned i = 0; i < w->n; i++)
        step(w, client, stream);
    MUST(caid_stream_synchronize(client, stream, 0, &error));
    MUST(caid_stream_destroy(client, stream, &error));
}

/* The driver's library stays loaded: ThreadSanitizer does not see the lock of the dynamic loader
 * and would report what loading wrote in one thread and another reads. */
static void
act(struct actor *a, unsigned n)
{
    struct worker workers[THREADS];

    MUST(cuda_driver_open(&a->client, "soft", &error));
    for (size_t i = 0; i < CLIENTS; i++)
        clients[i] = program_connect(a->s->source.socket);
    workers_start(workers, THREADS, a, work, n);
    workers_join(workers, THREADS);
    for (size_t i = 0; i < CLIENTS; i++)
        caid_client_close(clients[i]);
    caid_client_close(a->client);
}

const struct scenario scenario_client = {.name = "client",
                                         .amount = 500,
                                         .warm = 10,
                                         .actor = act};
