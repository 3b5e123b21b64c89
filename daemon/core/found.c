/* SPDX-License-Identifier: Apache-2.0 */
#include "found.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS (sizeof(struct record_key)) /* bytes of a key */
#define FEW    32                          /* that are sorted by comparing them */

static int
enlarge(struct founds *founds)
{
    size_t room = founds->room ? 2 * founds->room : 64;
    struct found *v = reallocarray(founds->v, room, sizeof(*v));

    if (!v)
        return -ENOMEM;
    founds->v = v;
    founds->room = room;
    return 0;
}

int
founds_add(struct founds *to, struct record_key key, uint64_t place)
{
    if (to->n == to->room && enlarge(to) < 0)
        return -ENOMEM;
    to->v[to->n++] = (struct found){.key = key, .place = place};
    return 0;
}

void
founds_deinit(struct founds *founds)
{
    free(founds->v);
    *founds = (struct founds){0};
}

/* ---- sorting: from the highest digit down, so that most of it is done within a processor's cache.
 * Clients choose the keys of tickets: the time is bounded by digits, whatever these are. ---- */

/* The least one comes first: `of`, then `id`. */
static uint8_t
digit(const struct found *f, size_t i)
{
    return (uint8_t)(i < 8 ? f->key.of >> (8 * i) : f->key.id >> (8 * (i - 8)));
}

static bool
is_before(const struct found *a, const struct found *b)
{
    return a->key.id != b->key.id ? a->key.id < b->key.id : a->key.of < b->key.of;
}

static bool
is_sorted(const struct found *v, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (is_before(&v[i], &v[i - 1]))
            return false;
    return true;
}

static void
insert_each(struct found *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct found f = v[i];
        size_t k = i;
        for (; k > 0 && is_before(&f, &v[k - 1]); k--)
            v[k] = v[k - 1];
        v[k] = f;
    }
}

/* The highest one in which they differ. */
static size_t
find_digit(const struct found *v, size_t n)
{
    struct found differ = {0};
    size_t i = DIGITS - 1;

    for (size_t k = 1; k < n; k++) {
        differ.key.id |= v[k].key.id ^ v[0].key.id;
        differ.key.of |= v[k].key.of ^ v[0].key.of;
    }
    while (i > 0 && !digit(&differ, i))
        i--;
    return i;
}

/* starts: where those with each value begin, and the end. false: all have the same value. */
static bool
part_by(struct found *v, size_t n, size_t i, struct found *room, size_t starts[static 257])
{
    size_t at[256], sum = 0;

    memset(at, 0, sizeof(at));
    for (size_t k = 0; k < n; k++)
        at[digit(&v[k], i)]++;
    if (at[digit(v, i)] == n)
        return false;
    for (size_t value = 0; value < 256; value++) {
        starts[value] = sum;
        sum += at[value];
        at[value] = starts[value];
    }
    starts[256] = n;
    for (size_t k = 0; k < n; k++)
        room[at[digit(&v[k], i)]++] = v[k];
    memcpy(v, room, n * sizeof(*v));
    return true;
}

/* By the digits up to that one; the others are the same in all. room: for as many. */
static void
sort(struct found *v, size_t n, size_t i, struct found *room)
{
    size_t starts[257];

    if (is_sorted(v, n))
        return;
    if (n <= FEW) {
        insert_each(v, n);
        return;
    }
    while (!part_by(v, n, i, room, starts))
        i--;
    for (size_t k = 0; k < 256; k++)
        sort(v + starts[k], starts[k + 1] - starts[k], i - 1, room);
}

int
founds_sort(struct founds *founds)
{
    _cleanup_free_ struct found *room = NULL;

    if (is_sorted(founds->v, founds->n))
        return 0;
    room = reallocarray(NULL, founds->n, sizeof(*room));
    if (!room)
        return -ENOMEM;
    sort(founds->v, founds->n, find_digit(founds->v, founds->n), room);
    return 0;
}

int
founds_compact(struct founds *founds)
{
    int r = founds_sort(founds);
    size_t n = 0;

    if (r < 0)
        return r;
    for (size_t i = 0; i < founds->n; i++) {
        if (n > 0 &&
            memcmp(&founds->v[n - 1].key, &founds->v[i].key, sizeof(struct record_key)) == 0)
            n--;
        founds->v[n++] = founds->v[i];
    }
    founds->n = n;
    return n > founds->room / 2 ? enlarge(founds) : 0; /* or the next one would come soon */
}
