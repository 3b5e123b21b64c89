/* SPDX-License-Identifier: Apache-2.0 */
#include "found.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS (sizeof(struct record_key)) /* bytes of a key */

int
founds_add(struct founds *to, struct record_key key, uint64_t place)
{
    if (to->n == to->room) {
        size_t room = to->n ? 2 * to->n : 64;
        struct found *v = reallocarray(to->v, room, sizeof(*v));
        if (!v)
            return -ENOMEM;
        to->v = v;
        to->room = room;
    }
    to->v[to->n++] = (struct found){.key = key, .place = place};
    return 0;
}

void
founds_deinit(struct founds *founds)
{
    free(founds->v);
    *founds = (struct founds){0};
}

/* The least digit comes first: `of`, then `id`. */
static uint8_t
digit(const struct found *f, size_t i)
{
    return (uint8_t)(i < 8 ? f->key.of >> (8 * i) : f->key.id >> (8 * (i - 8)));
}

static bool
is_sorted(const struct founds *founds)
{
    for (size_t i = 1; i < founds->n; i++) {
        const struct record_key *a = &founds->v[i - 1].key, *b = &founds->v[i].key;
        if (a->id > b->id || (a->id == b->id && a->of > b->of))
            return false;
    }
    return true;
}

/* Where those with each digit begin. false: all have the same one. */
static bool
count(const struct founds *founds, size_t i, size_t starts[static 256])
{
    size_t n = 0;

    memset(starts, 0, 256 * sizeof(*starts));
    for (size_t k = 0; k < founds->n; k++)
        starts[digit(&founds->v[k], i)]++;
    if (starts[digit(&founds->v[0], i)] == founds->n)
        return false;
    for (size_t d = 0; d < 256; d++) {
        size_t of_digit = starts[d];
        starts[d] = n;
        n += of_digit;
    }
    return true;
}

/* By one digit after the other, of which most are the same in all. */
static void
sort_from(struct founds *founds, size_t i, struct found **room)
{
    size_t starts[256];

    for (; i < DIGITS && !is_sorted(founds); i++) {
        struct found *from = founds->v, *to = *room;
        if (!count(founds, i, starts))
            continue;
        for (size_t k = 0; k < founds->n; k++)
            to[starts[digit(&from[k], i)]++] = from[k];
        founds->v = to;
        *room = from;
    }
}

int
founds_sort(struct founds *founds)
{
    struct found *room;

    if (is_sorted(founds))
        return 0;
    room = reallocarray(NULL, founds->room, sizeof(*room));
    if (!room)
        return -ENOMEM;
    sort_from(founds, DIGITS / 2, &room); /* where those that have one id are few, */
    sort_from(founds, 0, &room);          /* or not in order */
    free(room);
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
    return 0;
}
