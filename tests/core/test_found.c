/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records are sorted by their keys as by a stable sort, whatever the keys are, and the last one of
 * each key is found.
 */
#include "found.h"

#include <stdlib.h>

#include "base/tree.h"
#include "caid_test.h"
#include "random.h"

#define N 40000

/* Numbers in order, a few at random, some objects of few owners, and whole words. */
static struct record_key
key_of(uint32_t how, uint64_t i, uint64_t *state)
{
    switch (how) {
    case 0: return (struct record_key){.id = i};
    case 1: return (struct record_key){.id = random_next(state) % 100};
    case 2: return (struct record_key){random_next(state) % 2000, random_next(state) % 16};
    case 3: return (struct record_key){random_next(state) % 20, random_next(state)};
    default: return (struct record_key){random_next(state), random_next(state)};
    }
}

static int
compare(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->key.id != y->key.id)
        return CMP(x->key.id, y->key.id);
    return x->key.of != y->key.of ? CMP(x->key.of, y->key.of) : CMP(x->place, y->place);
}

static bool
is_last(const struct found *v, size_t i, size_t n)
{
    return i + 1 == n || v[i].key.id != v[i + 1].key.id || v[i].key.of != v[i + 1].key.of;
}

CAID_TEST(found, sorted_and_the_last_of_each)
{
    uint64_t state = 1;

    for (uint32_t how = 0; how < 5; how++) {
        _cleanup_(founds_deinit) struct founds founds = {0};
        _cleanup_free_ struct found *model = calloc(N, sizeof(*model));
        size_t n = 0;

        for (uint64_t i = 0; i < N; i++) {
            model[i] = (struct found){key_of(how, i, &state), i};
            cr_assert_eq(founds_add(&founds, model[i].key, i), 0);
        }
        qsort(model, N, sizeof(*model), compare);
        cr_assert_eq(founds_sort(&founds), 0);
        cr_assert_eq(founds.n, N);
        cr_assert_arr_eq(founds.v, model, N * sizeof(*model), "keys %u", how);

        for (size_t i = 0; i < N; i++)
            if (is_last(model, i, N))
                model[n++] = model[i];
        cr_assert_eq(founds_compact(&founds), 0);
        cr_assert_eq(founds.n, n);
        cr_assert_arr_eq(founds.v, model, n * sizeof(*model), "the last of keys %u", how);
        cr_assert_geq(founds.room, 2 * n);
    }
}
