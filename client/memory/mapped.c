/* SPDX-License-Identifier: Apache-2.0 */
/* caid_unmap_many(), caid_map_many(): a process that sleeps, and wakes at the same addresses. */
#include <inttypes.h>

#include "array.h"
#include "block.h"
#include "drain.h"
#include "session/client.h"

static int
check_given(struct caid_array *const *arrays, size_t n, struct caid_error *error)
{
    if (n == 0 || !arrays || !arrays[0])
        return fail(error, CAID_ERR_INVALID, "there are no arrays");
    for (size_t i = 1; i < n; i++)
        if (!arrays[i] || arrays[i]->client != arrays[0]->client)
            return fail(error, CAID_ERR_INVALID, "array %zu is of another client", i);
    return CHECK_CLIENT_OF(arrays[0], error);
}

/* Whether the arrays include all that lie in their blocks. Closed arrays do not count. */
static int
check_whole(struct caid_client *client, struct caid_array *const *arrays, size_t n,
            struct caid_error *error)
{
    int r = client_enter(client, error);

    if (r < 0)
        return r;
    r = reaper_drain(client, false, error);
    for (size_t i = 0; i < n; i++) {
        arrays[i]->is_given = false;
        if (arrays[i]->block)
            arrays[i]->block->n_given = 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (arrays[i]->block && !arrays[i]->is_given)
            arrays[i]->block->n_given++;
        arrays[i]->is_given = true;
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        const struct block *block = arrays[i]->block;
        if (arrays[i]->managed || (block && block->kind != BLOCK_DEVICE))
            r = fail(error, CAID_ERR_UNSUPPORTED, "array %zu is not in memory of a device", i);
        else if (block && block->n_given != block->leases)
            r = fail(error, CAID_ERR_INVALID,
                     "block %" PRIu64 " has %" PRIu32
                     " arrays that are open here, of which %" PRIu32 " are given",
                     block->id, block->leases, block->n_given);
    }
    client_leave(client);
    return r;
}

int
caid_unmap_many(struct caid_array *const *arrays, size_t n, struct caid_error *error)
{
    int r = check_given(arrays, n, error);

    if (r == 0)
        r = check_whole(arrays[0]->client, arrays, n, error);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (i == 0 || arrays[i]->place != arrays[i - 1]->place)
            r = drain_writes(arrays[i], 0, error);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (arrays[i]->block)
            r = block_park(arrays[i]->client, arrays[i]->block, error);
    return r;
}

int
caid_map_many(struct caid_array *const *arrays, size_t n, struct caid_error *error)
{
    struct block_address unused;
    int r = check_given(arrays, n, error);

    for (size_t i = 0; r == 0 && i < n; i++)
        if (arrays[i]->block)
            r = block_map(arrays[i]->client, arrays[i]->block,
                          arrays[i]->info.readonly ? VMM_READ : VMM_READ_WRITE,
                          arrays[i]->place, &unused, error);
    return r;
}

bool
caid_array_is_mapped(const struct caid_array *array)
{
    return !array->block || !array->block->maps[!array->info.readonly].parked;
}
