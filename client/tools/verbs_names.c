/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on names and pools: list, pools, unlink. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "format.h"
#include "report.h"

/* ---- list ---- */

static const struct column list_columns[] = {
    {"NAME", false}, {"TYPE", false},   {"SHAPE", false},
    {"SIZE", true},  {"MEMORY", false}, {"LEASES", true},
};
static const struct column list_all_columns[] = {
    {"POOL", false}, {"NAME", false},   {"TYPE", false},  {"SHAPE", false},
    {"SIZE", true},  {"MEMORY", false}, {"LEASES", true},
};
static const struct column list_long_columns[] = {
    {"POOL", false},      {"NAME", false},   {"TYPE", false},  {"SHAPE", false},
    {"SIZE", true},       {"MEMORY", false}, {"LEASES", true}, {"DEVICE", true},
    {"GENERATION", true}, {"USER", false},
};

struct listing {
    struct ctl *ctl;
    struct table table;
};

static void
listing_deinit(struct listing *listing)
{
    table_deinit(&listing->table);
}

static void
listing_init(struct listing *ret, struct ctl *ctl)
{
    ret->ctl = ctl;
    if (ctl->long_)
        table_init(&ret->table, list_long_columns, ARRAY_SIZE(list_long_columns));
    else if (ctl->all)
        table_init(&ret->table, list_all_columns, ARRAY_SIZE(list_all_columns));
    else
        table_init(&ret->table, list_columns, ARRAY_SIZE(list_columns));
}

static void
list_row(struct listing *listing, const struct caid_entry *e)
{
    const struct ctl *ctl = listing->ctl;
    _cleanup_free_ char *shape = format_shape(e->shape, e->ndim);
    _cleanup_free_ char *size = format_bytes(e->nbytes, ctl->bytes);

    if (ctl->all || ctl->long_)
        table_add(&listing->table, "%s", e->pool);
    table_add(&listing->table, "%s", e->name);
    table_add(&listing->table, "%s", e->typestr);
    table_add(&listing->table, "%s", shape);
    table_add(&listing->table, "%s", size);
    table_add(&listing->table, "%s", e->memory);
    table_add(&listing->table, "%" PRIu64, e->leases);
    if (ctl->long_) {
        _cleanup_free_ char *user = format_user(e->uid);
        table_add(&listing->table, "%d", e->device);
        table_add(&listing->table, "%" PRIu64, e->generation);
        table_add(&listing->table, "%s", user);
    }
}

static int
list_entry(const struct caid_entry *e, void *userdata)
{
    struct listing *listing = userdata;
    struct ctl *ctl = listing->ctl;

    if (ctl->json) {
        json_object(&ctl->out, NULL);
        report_entry(ctl, e);
        json_object_end(&ctl->out);
    } else {
        list_row(listing, e);
    }
    return 0;
}

int
verb_list(struct ctl *ctl, int argc, char **argv)
{
    _cleanup_(listing_deinit) struct listing listing;
    struct caid_list_options options = CAID_INIT(options);

    options.pool = ctl->pool;
    options.all = ctl->all;
    options.prefix = argc > 0 ? argv[0] : NULL;
    listing_init(&listing, ctl);
    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "arrays");
    if (caid_list(ctl->client, &options, list_entry, &listing, &ctl->error) < 0)
        return ctl_failed(ctl, "list");
    json_list_end(&ctl->out);
    json_object_end(&ctl->out);
    if (!ctl->json)
        table_print(&listing.table, true);
    return CTL_OK;
}

/* ---- pools ---- */

int
verb_pools(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    int status = report_pools(ctl, "pools", POOLS_BY_ACCESS, &table);
    if (status != CTL_OK)
        return status;
    json_object_end(&ctl->out);
    if (!ctl->json)
        table_print(&table, true);
    return CTL_OK;
}

/* ---- unlink ---- */

/* Goes on after a failure, as rm(1) does. */
int
verb_unlink(struct ctl *ctl, int argc, char **argv)
{
    int status = CTL_OK;

    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "unlinked");
    for (int i = 0; i < argc; i++) {
        if (caid_unlink(ctl->client, argv[i], ctl->pool, &ctl->error) < 0)
            status = ctl_failed(ctl, argv[i]);
        else
            json_str(&ctl->out, NULL, argv[i]);
    }
    json_list_end(&ctl->out);
    json_object_end(&ctl->out);
    return status;
}
