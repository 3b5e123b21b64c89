/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc + free by an arena, warm, against malloc + free of the same size in the same turns: one at
 * a time, and 100 allocations that are all freed, as a program's temporaries. With the limits that
 * an arena has by itself, so that every 11th free makes the rest reusable.
 *      usage: bench_arena SOCKET
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bench.h"
#include "floor.h"

#define ROUNDS  200
#define BATCH   100
#define GOAL_NS 500 /* of 1 MiB, one at a time */

struct bench {
    struct caid_arena *arena;
    uint64_t nbytes;
};

static uint64_t
arena_alloc(struct bench *b)
{
    uint64_t ptr;

    MUST(caid_arena_alloc(b->arena, b->nbytes, 0, &ptr, &error));
    return ptr;
}

static void
arena_free(struct bench *b, uint64_t ptr)
{
    MUST(caid_arena_free(b->arena, ptr, 0, &error));
}

static uint64_t
heap_alloc(struct bench *b)
{
    volatile char *p = malloc(b->nbytes);

    if (!p)
        errx(1, "malloc");
    p[0] = 1; /* else the compiler leaves both out */
    return (uint64_t)(uintptr_t)p;
}

static void
heap_free(struct bench *b UNUSED, uint64_t ptr)
{
    free((void *)(uintptr_t)ptr);
}

struct way {
    const char *name;
    uint64_t (*alloc)(struct bench *b);
    void (*free)(struct bench *b, uint64_t ptr);
};

static const struct way ways[] = {{"arena", arena_alloc, arena_free},
                                  {"malloc", heap_alloc, heap_free}};

/* So many at a time; nanoseconds for one of them. */
static uint64_t
measure(struct bench *b, const struct way *way, size_t n)
{
    uint64_t ptrs[BATCH], start = clock_now_ns();

    for (size_t done = 0; done < BATCH; done += n) {
        for (size_t i = 0; i < n; i++)
            ptrs[i] = way->alloc(b);
        for (size_t i = 0; i < n; i++)
            way->free(b, ptrs[i]);
    }
    return (clock_now_ns() - start) / BATCH;
}

static void
compare(struct bench *b, const char *size, size_t n)
{
    static uint64_t ns[ARRAY_SIZE(ways)][ROUNDS];
    uint64_t median[ARRAY_SIZE(ways)];

    for (size_t r = 0; r < ROUNDS; r++)
        for (size_t w = 0; w < ARRAY_SIZE(ways); w++)
            ns[w][r] = measure(b, &ways[w], n);
    for (size_t w = 0; w < ARRAY_SIZE(ways); w++)
        median[w] = median_ns(ns[w], ROUNDS);
    printf("arena alloc + free of %s, %zu at a time: median %llu ns, %.2f times malloc + free "
           "(%llu ns)",
           size, n, (unsigned long long)median[0], (double)median[0] / (double)median[1],
           (unsigned long long)median[1]);
    printf(n == 1 && b->nbytes == 1 << 20 ? "; goal: at most %d ns\n" : "\n", GOAL_NS);
    fflush(stdout);
}

static void
run(struct caid_client *client)
{
    static const struct {
        const char *name;
        uint64_t nbytes;
        size_t n_max;
    } sizes[] = {{"4 KiB", 4096, BATCH}, {"1 MiB", 1 << 20, BATCH}, {"64 MiB", 64 << 20, 5}};

    OPTIONS(caid_arena_info, info);
    struct bench b;

    MUST(caid_arena_new(client, &b.arena, NULL, &error));
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        b.nbytes = sizes[i].nbytes;
        compare(&b, sizes[i].name, 1);
        compare(&b, sizes[i].name, sizes[i].n_max);
    }
    MUST(caid_arena_info(b.arena, &info, &error));
    printf("%llu allocations of %llu blocks, %llu flushes\n", (unsigned long long)info.n_allocs,
           (unsigned long long)info.n_leased, (unsigned long long)info.n_flushes);
    caid_arena_close(b.arena);
}

int
main(int argc, char **argv)
{
    if (argc != 2)
        errx(1, "usage: bench_arena SOCKET");
    struct caid_client *client = program_connect(argv[1]);
    run(client);
    caid_client_close(client);
    return 0;
}
