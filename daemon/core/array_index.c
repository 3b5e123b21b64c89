/* SPDX-License-Identifier: Apache-2.0 */
#include "array_index.h"

#include <stdlib.h>

struct array_index {
    size_t n;

    struct entry {
        uint64_t id;
        struct array *array; /* NULL: it is gone, or not back yet */
    } entries[];             /* by id, as records are */
};

struct array_index *
array_index_new(const struct restore_array *arrays, size_t n)
{
    struct array_index *index = malloc(sizeof(*index) + n * sizeof(index->entries[0]));

    if (!index)
        return NULL;
    index->n = n;
    for (size_t i = 0; i < n; i++)
        index->entries[i] = (struct entry){.id = arrays[i].record->key.id};
    return index;
}

static int
compare(const void *key, const void *entry)
{
    uint64_t a = *(const uint64_t *)key, b = ((const struct entry *)entry)->id;

    return (a > b) - (a < b);
}

static struct entry *
find(const struct array_index *index, uint64_t id)
{
    return index ? bsearch(&id, index->entries, index->n, sizeof(struct entry), compare) : NULL;
}

struct array *
array_index_find(const struct array_index *index, uint64_t id)
{
    const struct entry *entry = find(index, id);

    return entry ? entry->array : NULL;
}

void
array_index_set(struct array_index *index, size_t place, struct array *array)
{
    index->entries[place].array = array;
}

void
array_index_forget(struct array_index *index, uint64_t id)
{
    struct entry *entry = find(index, id);

    if (entry)
        entry->array = NULL;
}
