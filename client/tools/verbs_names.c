/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on names and pools: list, pools, timelines, unlink. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "format.h"
#include "report.h"

/* ---- list ---- */

static const struct column list_columns[] = {
    {"NAME", false},   {"TYPE", false},  {"SHAPE", false}, {"SIZE", true},
    {"MEMORY", false}, {"LEASES", true}, {"USE", false},
};
static const struct column list_all_columns[] = {
    {"POOL", false}, {"NAME", false},   {"TYPE", false},  {"SHAPE", false},
    {"SIZE", true},  {"MEMORY", false}, {"LEASES", true}, {"USE", false},
};
static const struct column list_long_columns[] = {
    {"POOL", false},   {"NAME", false},      {"TYPE", false},  {"SHAPE", false},
    {"SIZE", true},    {"MEMORY", false},    {"LEASES", true}, {"READERS", true},
    {"WRITERS", true}, {"WAITING", true},    {"STATE", false}, {"PARTS", true},
    {"DEVICE", true},  {"GENERATION", true}, {"USER", false},
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
list_long(struct listing *listing, const struct caid_entry *e)
{
    _cleanup_free_ char *user = format_user(e->uid);

    table_add(&listing->table, "%" PRIu64, e->readers);
    table_add(&listing->table, "%" PRIu64, e->writers);
    table_add(&listing->table, "%" PRIu64, e->waiting);
    table_add(&listing->table, "%s", e->abandoned ? "abandoned" : "-");
    table_add(&listing->table, "%" PRIu64, e->parts);
    table_add(&listing->table, "%d", e->device);
    table_add(&listing->table, "%" PRIu64, e->generation);
    table_add(&listing->table, "%s", user);
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
        list_long(listing, e);
    } else {
        _cleanup_free_ char *use = report_use(e);
        table_add(&listing->table, "%s", use);
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

/* ---- timelines ---- */

static const struct column timeline_columns[] = {
    {"POOL", false}, {"NAME", false}, {"VALUE", true}, {"SUBMITTED", true},
    {"OPEN", true},  {"PID", true},   {"USER", false}, {"CLIENT", false},
};

static void
timeline_json(struct json *out, const struct caid_timeline_entry *e)
{
    json_object(out, NULL);
    json_str(out, "pool", e->pool);
    json_str(out, "name", e->name);
    json_u64(out, "value", e->value);
    json_u64(out, "submitted", e->submitted);
    json_u64(out, "holders", e->holders);
    json_u64(out, "pid", e->pid);
    json_u64(out, "uid", e->uid);
    json_str(out, "client", e->client);
    json_object_end(out);
}

static int
timeline_row(const struct caid_timeline_entry *e, void *userdata)
{
    struct listing *listing = userdata;
    struct table *table = &listing->table;
    _cleanup_free_ char *user = format_user(e->uid);

    if (listing->ctl->json) {
        timeline_json(&listing->ctl->out, e);
        return 0;
    }
    table_add(table, "%s", e->pool);
    table_add(table, "%s", e->name);
    table_add(table, "%" PRIu64, e->value);
    table_add(table, "%" PRIu64, e->submitted);
    table_add(table, "%" PRIu64, e->holders);
    table_add(table, "%" PRIu64, e->pid);
    table_add(table, "%s", user);
    table_add(table, "%s", e->client ? e->client : "-");
    return 0;
}

int
verb_timelines(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_(listing_deinit) struct listing listing = {.ctl = ctl};
    struct caid_list_options options = CAID_INIT(options);

    options.pool = ctl->pool;
    options.all = ctl->all;
    table_init(&listing.table, timeline_columns, ARRAY_SIZE(timeline_columns));
    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "timelines");
    if (caid_timelines(ctl->client, &options, timeline_row, &listing, &ctl->error) < 0)
        return ctl_failed(ctl, "timelines");
    json_list_end(&ctl->out);
    json_object_end(&ctl->out);
    if (!ctl->json)
        table_print(&listing.table, true);
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
