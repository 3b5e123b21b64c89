/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor for benchmarks that are not written in C: reads a number from each line of standard
 * input, does that many round trips, writes their median in nanoseconds.
 */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>

#include "floor.h"

#define MAX 100000

int
main(void)
{
    static uint64_t ns[MAX];
    struct floor f;
    size_t n;

    if (floor_init(&f) < 0)
        errx(1, "cannot set up the floor");
    while (scanf("%zu", &n) == 1 && n <= MAX) {
        for (size_t i = 0; i < n; i++)
            ns[i] = floor_round_trip(&f);
        printf("%" PRIu64 "\n", median_ns(ns, n));
        fflush(stdout);
    }
    floor_deinit(&f);
    return 0;
}
