/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "session/client.h"
#include "session/feature.h"

static int
reserve(uint64_t **list, size_t *capacity, size_t n, const char *what, struct caid_error *error)
{
    if (n <= *capacity)
        return 0;
    uint64_t *larger = reallocarray(*list, 2 * n, sizeof(larger[0]));
    if (!larger)
        return fail_errno(error, ENOMEM, "no memory for %zu %s", n, what);
    *list = larger;
    *capacity = 2 * n;
    return 0;
}

int
lease_reserve(struct caid_client *client, size_t n, struct caid_error *error)
{
    struct lease_table *table = client->leases;
    size_t leases = table->n + n;

    int r = reserve(&table->closing, &table->closing_capacity, table->n_closing + leases,
                    "leases", error);
    if (r == 0)
        r = reserve(&table->forget, &table->forget_capacity,
                    table->n_forget + client->blocks->n + leases, "blocks", error);
    if (r == 0)
        table->n = leases;
    return r;
}

void
lease_unreserve(struct caid_client *client, size_t n)
{
    client->leases->n -= n;
}

/* ---- telling the daemon ---- */

void
lease_return(struct caid_client *client, uint64_t lease)
{
    struct lease_table *table = client->leases;

    if (client->lost.code == 0)
        table->closing[table->n_closing++] = lease;
}

void
lease_forget_block(struct caid_client *client, uint64_t block)
{
    struct lease_table *table = client->leases;

    if (client->lost.code == 0)
        table->forget[table->n_forget++] = block;
}

static uint32_t
at_most(size_t n, uint32_t max)
{
    return n < max ? (uint32_t)n : max;
}

static void
drop_first(uint64_t *list, size_t *n, size_t n_dropped)
{
    *n -= n_dropped;
    if (*n > 0)
        memmove(list, list + n_dropped, *n * sizeof(list[0]));
}

static bool
has_unsent(const struct caid_client *client)
{
    return client->leases->n_closing > 0 || client->leases->n_forget > 0;
}

static int
flush(struct caid_client *client)
{
    static const uint64_t none; /* an empty list is not NULL */
    struct lease_table *table = client->leases;

    while (client->lost.code == 0 && has_unsent(client)) {
        uint32_t n = at_most(table->n_closing, PROTO_CLOSE_MAX);
        uint32_t n_forget = n == table->n_closing ? at_most(table->n_forget, PROTO_CLOSE_MAX)
                                                  : 0;
        struct msg_close_params params = {
            .leases = {n > 0 ? table->closing : &none, n},
            .forget = {n_forget > 0 ? table->forget : NULL, n_forget},
        };
        int r = call_notify(client, MSG_CLOSE, &params);
        if (r < 0)
            return r;
        drop_first(table->closing, &table->n_closing, n);
        drop_first(table->forget, &table->n_forget, n_forget);
    }
    return 0;
}

static void
lost(struct caid_client *client)
{
    client->leases->n_closing = client->leases->n_forget = 0;
}

/* The inventory lacks leases that were closed before, so nothing is sent about them. */
static void
leases_inventory(struct caid_client *client, struct inventory *inventory UNUSED)
{
    lost(client);
}

/* A lease is lost whose array was closed while the inventory was sent: it is not returned. */
static void
lost_lease(struct caid_client *client, uint64_t lease)
{
    struct lease_table *table = client->leases;

    for (size_t i = 0; i < table->n_closing; i++)
        if (table->closing[i] == lease) {
            table->closing[i] = table->closing[--table->n_closing];
            return;
        }
}

static void
leases_deinit(struct caid_client *client)
{
    free(client->leases->closing);
    free(client->leases->forget);
}

const struct feature lease_feature = {
    .has_unsent = has_unsent,
    .flush = flush,
    .take_inventory = leases_inventory,
    .lost_lease = lost_lease,
    .lost = lost,
    .deinit = leases_deinit,
    .abandon = leases_deinit,
};
