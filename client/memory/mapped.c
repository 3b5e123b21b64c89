/* SPDX-License-Identifier: Apache-2.0 */
/* caid_unmap_many(), caid_map_many(): a process that sleeps, and wakes at the same addresses.
 * caid_exchange(): a process that goes on, with other memory at the same addresses. */
#include <inttypes.h>

#include "array.h"
#include "block.h"
#include "drain.h"
#include "session/client.h"
#include "session/feature.h"

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

/* Whether the arrays include all that lie in their blocks. Under the client's lock. */
static int
check_whole(struct caid_array *const *arrays, size_t n, struct caid_error *error)
{
    int r = 0;

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
    return r;
}

/* Closed arrays do not count: their end is waited for. */
static int
drain_and_check_whole(struct caid_client *client, struct caid_array *const *arrays, size_t n,
                      struct caid_error *error)
{
    int r = client_enter(client, error);

    if (r < 0)
        return r;
    r = reaper_drain(client, false, error);
    if (r == 0)
        r = check_whole(arrays, n, error);
    client_leave(client);
    return r;
}

int
caid_unmap_many(struct caid_array *const *arrays, size_t n, struct caid_error *error)
{
    int r = check_given(arrays, n, error);

    if (r == 0)
        r = drain_and_check_whole(arrays[0]->client, arrays, n, error);
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

/* ---- exchanging addresses ---- */

/* The arrays of one side, and the block that they lie in. */
struct side {
    struct caid_array *const *arrays;
    size_t n;
    struct block *block;
    bool modes[2]; /* of the arrays: "r", "rw" */
};

static int
side_init(struct side *side, struct caid_client *client, struct caid_array *const *arrays,
          size_t n, struct caid_error *error)
{
    int r = check_given(arrays, n, error);

    if (r == 0 && arrays[0]->client != client)
        r = fail(error, CAID_ERR_INVALID, "the arrays are another client's");
    if (r < 0)
        return r;
    *side = (struct side){.arrays = arrays, .n = n};
    for (size_t i = 0; i < n; i++) {
        struct block *block = arrays[i]->block;
        if (!block && !arrays[i]->managed)
            continue; /* it has no bytes */
        if (!block || block->kind != BLOCK_DEVICE)
            return fail(error, CAID_ERR_UNSUPPORTED, "array %zu is not in memory of a device",
                        i);
        if (side->block && side->block != block)
            return fail(error, CAID_ERR_INVALID, "the arrays lie in several blocks");
        side->block = block;
        side->modes[!arrays[i]->info.readonly] = true;
    }
    return side->block ? 0 : fail(error, CAID_ERR_INVALID, "the arrays have no bytes");
}

static int
check_sides(const struct side *old, const struct side *new, struct caid_error *error)
{
    if (old->block == new->block)
        return fail(error, CAID_ERR_INVALID, "all arrays lie in one block");
    if (old->block->size != new->block->size)
        return fail(error, CAID_ERR_INVALID,
                    "block %" PRIu64 " has %zu bytes, block %" PRIu64 " has %zu",
                    old->block->id, old->block->size, new->block->id, new->block->size);
    return 0;
}

static int
check_unused(const struct caid_client *client, const struct side *side,
             struct caid_error *error)
{
    for (const struct feature *const *feature = client->features; *feature; feature++)
        for (size_t i = 0; (*feature)->uses && i < side->n; i++)
            if ((*feature)->uses(client, side->arrays[i]->lease))
                return fail(error, CAID_ERR_INVALID, "array %zu is in a bracket", i);
    return 0;
}

/* Nobody of this client maps the blocks, or enqueues work, until the exchange ends. */
static int
check_still(struct caid_client *client, const struct side *old, const struct side *new,
            struct caid_error *error)
{
    pthread_mutex_lock(&client->lock);
    int r = check_whole(old->arrays, old->n, error);
    if (r == 0)
        r = check_whole(new->arrays, new->n, error);
    if (r == 0)
        r = check_unused(client, old, error);
    if (r == 0)
        r = check_unused(client, new, error);
    pthread_mutex_unlock(&client->lock);
    return r;
}

/* The arrays are where their block is now. */
static void
side_move(struct caid_client *client, const struct side *side)
{
    pthread_mutex_lock(&client->lock);
    for (size_t i = 0; i < side->n; i++)
        if (side->arrays[i]->block)
            array_move(side->arrays[i],
                       side->block->maps[!side->arrays[i]->info.readonly].vmm.ptr);
    pthread_mutex_unlock(&client->lock);
}

static int
exchange(struct caid_client *client, const struct side *old, const struct side *new,
         const uint64_t *streams, size_t n_streams, struct caid_error *error)
{
    const bool modes[] = {old->modes[0] || new->modes[0], old->modes[1] || new->modes[1]};
    uint64_t places;

    int r = check_still(client, old, new, error);
    if (r == 0)
        r = block_exchange_check(old->block, new->block, modes, &places, error);
    if (r == 0)
        r = drain_contexts(client, places, streams, n_streams, error);
    if (r < 0)
        return r;
    r = block_exchange(client, old->block, new->block, modes, error);
    side_move(client, old);
    side_move(client, new);
    return r;
}

int
caid_exchange(struct caid_client *client, struct caid_array *const *old, size_t n_old,
              struct caid_array *const *new, size_t n_new, const uint64_t *streams,
              size_t n_streams, struct caid_error *error)
{
    struct side from, to;

    int r = client_check_given(client, streams || n_streams == 0, "streams", error);
    if (r == 0)
        r = side_init(&from, client, old, n_old, error);
    if (r == 0)
        r = side_init(&to, client, new, n_new, error);
    if (r == 0)
        r = check_sides(&from, &to, error);
    if (r == 0)
        r = client_enter(client, error);
    if (r < 0)
        return r;
    r = reaper_drain(client, false, error); /* what is closed does not count */
    pthread_mutex_unlock(&client->lock);
    if (r == 0) {
        block_exchange_begin(client, from.block, to.block);
        r = exchange(client, &from, &to, streams, n_streams, error);
        block_exchange_end(client, from.block, to.block);
    }
    pthread_mutex_lock(&client->lock);
    client_leave(client);
    return r;
}
