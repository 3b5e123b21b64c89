/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on names and pools: list, show, pools, unlink. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "format.h"
#include "table.h"

static const struct column facts[] = {{"", false}, {"", false}};

/* An array that is on a device which the daemon did not name in HELLO has none here. */
static const char *
device_uuid(const struct ctl *ctl, int32_t device)
{
    const struct caid_device *devices;
    int n = caid_client_devices(ctl->client, &devices);
    return device >= 0 && device < n ? devices[device].uuid : NULL;
}

static void
json_i64s(struct json *out, const char *key, const int64_t *values, uint32_t n)
{
    json_list(out, key);
    for (uint32_t i = 0; i < n; i++)
        json_i64(out, NULL, values[i]);
    json_list_end(out);
}

/* The members of an entry, into an object that is open. */
static void
entry_json(struct ctl *ctl, const struct caid_entry *e)
{
    struct json *out = &ctl->out;

    json_str(out, "pool", e->pool);
    json_str(out, "name", e->name);
    json_u64(out, "generation", e->generation);
    if (e->device >= 0)
        json_i64(out, "device", e->device);
    else
        json_null(out, "device");
    json_str(out, "device_uuid", device_uuid(ctl, e->device));
    json_str(out, "typestr", e->typestr);
    json_i64s(out, "shape", e->shape, e->ndim);
    json_u64(out, "nbytes", e->nbytes);
    json_u64(out, "uid", e->uid);
    json_u64(out, "leases", e->leases);
}

/* ---- list ---- */

static const struct column list_columns[] = {
    {"NAME", false}, {"TYPE", false}, {"SHAPE", false}, {"SIZE", true}, {"LEASES", true},
};
static const struct column list_all_columns[] = {
    {"POOL", false},  {"NAME", false}, {"TYPE", false},
    {"SHAPE", false}, {"SIZE", true},  {"LEASES", true},
};
static const struct column list_long_columns[] = {
    {"POOL", false},  {"NAME", false},  {"TYPE", false},      {"SHAPE", false}, {"SIZE", true},
    {"LEASES", true}, {"DEVICE", true}, {"GENERATION", true}, {"USER", false},
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
        entry_json(ctl, e);
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

/* ---- show an array ---- */

static void
holders_json(struct json *out, const struct caid_details *d)
{
    json_list(out, "holders");
    for (size_t i = 0; i < d->n_holders; i++) {
        json_object(out, NULL);
        json_u64(out, "pid", d->holders[i].pid);
        json_u64(out, "uid", d->holders[i].uid);
        json_str(out, "client", d->holders[i].client);
        json_bool(out, "readonly", d->holders[i].readonly);
        json_object_end(out);
    }
    json_list_end(out);
}

static void
details_json(struct ctl *ctl, const struct caid_details *d)
{
    struct json *out = &ctl->out;

    json_object(out, NULL);
    entry_json(ctl, &d->entry);
    if (d->strides)
        json_i64s(out, "strides", d->strides, d->entry.ndim);
    else
        json_null(out, "strides");
    json_str(out, "descr", d->descr);
    json_u64(out, "array", d->array);
    json_u64(out, "block", d->block);
    json_u64(out, "block_size", d->block_size);
    json_u64(out, "offset", d->offset);
    holders_json(out, d);
    json_object_end(out);
}

static void
details_array(const struct ctl *ctl, struct table *table, const struct caid_details *d)
{
    const struct caid_entry *e = &d->entry;
    _cleanup_free_ char *shape = format_shape(e->shape, e->ndim);
    _cleanup_free_ char *size = format_bytes(e->nbytes, ctl->bytes);
    _cleanup_free_ char *user = format_user(e->uid);

    table_add(table, "name");
    table_add(table, "%s", e->name);
    table_add(table, "pool");
    table_add(table, "%s", e->pool);
    table_add(table, "type");
    table_add(table, "%s", e->typestr);
    if (d->descr) {
        table_add(table, "fields");
        table_add(table, "%s", d->descr);
    }
    table_add(table, "shape");
    table_add(table, "%s", shape);
    if (d->strides) {
        _cleanup_free_ char *strides = format_strides(d->strides, e->ndim);
        table_add(table, "strides");
        table_add(table, "%s", strides);
    }
    table_add(table, "size");
    table_add(table, "%s", size);
    table_add(table, "created by");
    table_add(table, "%s, generation %" PRIu64, user, e->generation);
}

static void
details_memory(const struct ctl *ctl, struct table *table, const struct caid_details *d)
{
    const char *uuid = device_uuid(ctl, d->entry.device);
    _cleanup_free_ char *size = format_bytes(d->block_size, ctl->bytes);
    _cleanup_free_ char *offset = format_bytes(d->offset, ctl->bytes);

    table_add(table, "device");
    table_add(table, "%d, %s", d->entry.device, uuid ? uuid : "unknown");
    table_add(table, "memory");
    if (d->block == 0)
        table_add(table, "none");
    else
        table_add(table, "%s into block %" PRIu64 " of %s", offset, d->block, size);
}

static void
details_holders(struct table *table, const struct caid_details *d)
{
    for (size_t i = 0; i < d->n_holders; i++) {
        const struct caid_holder *holder = &d->holders[i];
        _cleanup_free_ char *user = format_user(holder->uid);
        table_add(table, "held by");
        table_add(table, "pid %" PRIu64 " of %s, %s%s%s", holder->pid, user,
                  holder->readonly ? "r" : "rw", holder->client ? ", " : "",
                  holder->client ? holder->client : "");
    }
    if (d->n_holders < d->entry.leases) {
        table_add(table, "held by");
        table_add(table, "%" PRIu64 " more", d->entry.leases - d->n_holders);
    }
}

static int
show_details(const struct caid_details *d, void *userdata)
{
    struct ctl *ctl = userdata;
    _cleanup_table_ struct table table;

    table_init(&table, facts, ARRAY_SIZE(facts));
    if (ctl->json) {
        details_json(ctl, d);
        return 0;
    }
    details_array(ctl, &table, d);
    details_memory(ctl, &table, d);
    details_holders(&table, d);
    table_print(&table, false);
    return 0;
}

/* ---- pools ---- */

static void
pool_json(struct ctl *ctl, const struct caid_pool *p)
{
    struct json *out = &ctl->out;

    json_object(out, NULL);
    json_str(out, "name", p->name);
    json_u64(out, "uid", p->uid);
    json_u64(out, "gid", p->gid);
    json_u64(out, "mode", p->mode);
    json_u64(out, "quota", p->quota);
    json_u64(out, "used", p->used);
    json_u64(out, "names", p->names);
    json_u64(out, "arrays", p->arrays);
    json_object_end(out);
}

static void
pool_table(const struct ctl *ctl, const struct caid_pool *p)
{
    _cleanup_table_ struct table table;
    _cleanup_free_ char *user = format_user(p->uid);
    _cleanup_free_ char *group = format_group(p->gid);
    _cleanup_free_ char *used = format_bytes(p->used, ctl->bytes);
    _cleanup_free_ char *quota = format_bytes(p->quota, ctl->bytes);
    char mode[10];

    format_mode(p->mode, mode);
    table_init(&table, facts, ARRAY_SIZE(facts));
    table_add(&table, "pool");
    table_add(&table, "%s", p->name);
    table_add(&table, "owner");
    table_add(&table, "%s, group %s, %s", user, group, mode);
    table_add(&table, "memory");
    table_add(&table, "%s of %s", used, p->quota > 0 ? quota : "what the device has");
    table_add(&table, "holds");
    table_add(&table, "%" PRIu64 " names, %" PRIu64 " arrays", p->names, p->arrays);
    table_print(&table, false);
}

#define FOUND 1

static int
show_pool_if(const struct caid_pool *p, void *userdata)
{
    struct ctl *ctl = userdata;

    if (strcmp(p->name, ctl->pool) != 0)
        return 0;
    if (ctl->json)
        pool_json(ctl, p);
    else
        pool_table(ctl, p);
    return FOUND;
}

static int
show_pool(struct ctl *ctl)
{
    int r = caid_pools(ctl->client, show_pool_if, ctl, &ctl->error);

    if (r < 0)
        return ctl_failed(ctl, ctl->pool);
    if (r == FOUND)
        return CTL_OK;
    ctl_complain(ctl->pool, "no such pool, or none that you may read; see caidctl pools");
    return CTL_REFUSED;
}

int
verb_show(struct ctl *ctl, int argc, char **argv)
{
    if (argc == 0)
        return show_pool(ctl);
    if (caid_show(ctl->client, argv[0], ctl->pool, show_details, ctl, &ctl->error) < 0)
        return ctl_failed(ctl, argv[0]);
    return CTL_OK;
}

static const struct column pool_columns[] = {
    {"POOL", false}, {"USER", false}, {"GROUP", false}, {"MODE", false},
    {"USED", true},  {"QUOTA", true}, {"NAMES", true},  {"ARRAYS", true},
};

static void
pool_row(struct listing *listing, const struct caid_pool *p)
{
    struct table *table = &listing->table;
    _cleanup_free_ char *user = format_user(p->uid);
    _cleanup_free_ char *group = format_group(p->gid);
    _cleanup_free_ char *used = format_bytes(p->used, listing->ctl->bytes);
    _cleanup_free_ char *quota = format_bytes(p->quota, listing->ctl->bytes);
    char mode[10];

    format_mode(p->mode, mode);
    table_add(table, "%s", p->name);
    table_add(table, "%s", user);
    table_add(table, "%s", group);
    table_add(table, "%s", mode);
    table_add(table, "%s", used);
    table_add(table, "%s", p->quota > 0 ? quota : "-");
    table_add(table, "%" PRIu64, p->names);
    table_add(table, "%" PRIu64, p->arrays);
}

static int
list_pool(const struct caid_pool *p, void *userdata)
{
    struct listing *listing = userdata;

    if (listing->ctl->json)
        pool_json(listing->ctl, p);
    else
        pool_row(listing, p);
    return 0;
}

int
verb_pools(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_(listing_deinit) struct listing listing = {.ctl = ctl};

    table_init(&listing.table, pool_columns, ARRAY_SIZE(pool_columns));
    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "pools");
    if (caid_pools(ctl->client, list_pool, &listing, &ctl->error) < 0)
        return ctl_failed(ctl, "pools");
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
