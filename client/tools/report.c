/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "format.h"

static void
add_bytes(const struct ctl *ctl, struct table *table, uint64_t bytes)
{
    _cleanup_free_ char *text = format_bytes(bytes, ctl->bytes);
    table_add(table, "%s", text);
}

static void
add_u64(struct table *table, uint64_t value)
{
    table_add(table, "%" PRIu64, value);
}

static void
add_user(struct table *table, uint32_t uid)
{
    _cleanup_free_ char *user = format_user(uid);
    table_add(table, "%s", user);
}

/* ---- devices ---- */

static const struct column device_columns[] = {
    {"DEVICE", true}, {"NAME", false},       {"TOTAL", true},    {"FREE", true},
    {"CAID", true},   {"ALLOCATED", true},   {"PENDING", true},  {"RESERVE", true},
    {"PINNED", true}, {"QUARANTINED", true}, {"CONTEXT", false}, {"BLOCKS", true},
    {"ARRAYS", true}, {"UUID", false},
};

static void
device_json(struct ctl *ctl, const struct caid_device *device, int32_t index,
            const struct caid_memory_info *m)
{
    struct json *out = &ctl->out;

    json_object(out, NULL);
    json_i64(out, "index", index);
    json_str(out, "uuid", device->uuid);
    json_str(out, "name", device->name);
    json_u64(out, "total", m->total);
    json_u64(out, "free", m->free);
    json_u64(out, "used", m->used);
    json_u64(out, "blocks", m->blocks);
    json_u64(out, "arrays", m->arrays);
    json_u64(out, "allocated", m->allocated);
    json_u64(out, "reserve", m->reserve);
    json_u64(out, "available", m->available);
    json_u64(out, "pending", m->pending);
    json_u64(out, "pending_bytes", m->pending_bytes);
    json_u64(out, "pinned", m->pinned);
    json_u64(out, "flushes", m->flushes);
    json_u64(out, "releases", m->releases);
    json_u64(out, "quarantined", m->quarantined);
    json_u64(out, "quarantined_bytes", m->quarantined_bytes);
    json_bool(out, "context", m->context);
    json_object_end(out);
}

static void
device_row(struct ctl *ctl, struct table *table, const struct caid_device *device,
           int32_t index, const struct caid_memory_info *m)
{
    table_add(table, "%" PRId32, index);
    table_add(table, "%s", device->name);
    add_bytes(ctl, table, m->total);
    add_bytes(ctl, table, m->free);
    add_bytes(ctl, table, m->used);
    add_bytes(ctl, table, m->allocated);
    add_bytes(ctl, table, m->pending_bytes);
    add_bytes(ctl, table, m->reserve);
    add_bytes(ctl, table, m->pinned);
    add_bytes(ctl, table, m->quarantined_bytes);
    table_add(table, "%s", m->context ? "yes" : "no");
    add_u64(table, m->blocks);
    add_u64(table, m->arrays);
    table_add(table, "%s", device->uuid);
}

int
report_devices(struct ctl *ctl, const char *key, int32_t device, struct table *ret)
{
    const struct caid_device *devices;
    int32_t n = caid_client_devices(ctl->client, &devices);
    int32_t first = device < 0 ? 0 : device, end = device < 0 ? n : device + 1;

    table_init(ret, device_columns, ARRAY_SIZE(device_columns));
    json_list(&ctl->out, key);
    for (int32_t i = first; i < end; i++) {
        struct caid_memory_info info = CAID_INIT(info);
        if (caid_memory_info(ctl->client, i, &info, &ctl->error) < 0)
            return ctl_failed(ctl, devices[i].uuid);
        if (ctl->json)
            device_json(ctl, &devices[i], i, &info);
        else
            device_row(ctl, ret, &devices[i], i, &info);
    }
    json_list_end(&ctl->out);
    return CTL_OK;
}

/* What the callbacks of the library's lists get. */
struct rows {
    struct ctl *ctl;
    struct table *table;
};

/* ---- pools ---- */

static const struct column access_columns[] = {
    {"POOL", false}, {"USER", false}, {"GROUP", false}, {"MODE", false},
    {"USED", true},  {"QUOTA", true}, {"NAMES", true},  {"ARRAYS", true},
};
static const struct column memory_columns[] = {
    {"POOL", false},      {"USED", true},    {"QUOTA", true},  {"ALLOCATED", true},
    {"PENDING", true},    {"RESERVE", true}, {"HOLES", true},  {"LARGEST", true},
    {"FRAGMENTED", true}, {"PINNED", true},  {"BLOCKS", true}, {"NAMES", true},
    {"ARRAYS", true},
};

double
report_fragmentation(const struct caid_pool *pool)
{
    return pool->holes > 0 ? 1.0 - (double)pool->largest / (double)pool->holes : 0.0;
}

void
report_pool(struct ctl *ctl, const struct caid_pool *p)
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
    json_u64(out, "blocks", p->blocks);
    json_u64(out, "allocated", p->allocated);
    json_u64(out, "pending", p->pending);
    json_u64(out, "reserve", p->reserve);
    json_u64(out, "holes", p->holes);
    json_u64(out, "largest", p->largest);
    json_ratio(out, "fragmentation", report_fragmentation(p));
    json_u64(out, "pinned", p->pinned);
    json_object_end(out);
}

static void
add_quota(const struct ctl *ctl, struct table *table, uint64_t quota)
{
    if (quota > 0)
        add_bytes(ctl, table, quota);
    else
        table_add(table, "-");
}

static int
pool_by_access(const struct caid_pool *p, void *userdata)
{
    const struct rows *rows = userdata;
    _cleanup_free_ char *group = format_group(p->gid);
    char mode[10];

    if (rows->ctl->json) {
        report_pool(rows->ctl, p);
        return 0;
    }
    format_mode(p->mode, mode);
    table_add(rows->table, "%s", p->name);
    add_user(rows->table, p->uid);
    table_add(rows->table, "%s", group);
    table_add(rows->table, "%s", mode);
    add_bytes(rows->ctl, rows->table, p->used);
    add_quota(rows->ctl, rows->table, p->quota);
    add_u64(rows->table, p->names);
    add_u64(rows->table, p->arrays);
    return 0;
}

static int
pool_by_memory(const struct caid_pool *p, void *userdata)
{
    const struct rows *rows = userdata;

    if (rows->ctl->json) {
        report_pool(rows->ctl, p);
        return 0;
    }
    table_add(rows->table, "%s", p->name);
    add_bytes(rows->ctl, rows->table, p->used);
    add_quota(rows->ctl, rows->table, p->quota);
    add_bytes(rows->ctl, rows->table, p->allocated);
    add_bytes(rows->ctl, rows->table, p->pending);
    add_bytes(rows->ctl, rows->table, p->reserve);
    add_bytes(rows->ctl, rows->table, p->holes);
    add_bytes(rows->ctl, rows->table, p->largest);
    table_add(rows->table, "%.0f %%", 100.0 * report_fragmentation(p));
    add_bytes(rows->ctl, rows->table, p->pinned);
    add_u64(rows->table, p->blocks);
    add_u64(rows->table, p->names);
    add_u64(rows->table, p->arrays);
    return 0;
}

int
report_pools(struct ctl *ctl, const char *key, enum report_pools form, struct table *ret)
{
    struct rows rows = {.ctl = ctl, .table = ret};
    bool access = form == POOLS_BY_ACCESS;

    if (access)
        table_init(ret, access_columns, ARRAY_SIZE(access_columns));
    else
        table_init(ret, memory_columns, ARRAY_SIZE(memory_columns));
    json_list(&ctl->out, key);
    if (caid_pools(ctl->client, access ? pool_by_access : pool_by_memory, &rows, &ctl->error) <
        0)
        return ctl_failed(ctl, "pools");
    json_list_end(&ctl->out);
    return CTL_OK;
}

/* ---- users ---- */

static const struct column user_columns[] = {
    {"USER", false},   {"DEVICE", true},   {"PINNED", true},  {"HOST", true},
    {"ARRAYS", true},  {"NAMES", true},    {"LEASES", true},  {"BRACKETS", true},
    {"PAGES", true},   {"WATCHES", true},  {"CLIENTS", true}, {"CALLS", true},
    {"PENDING", true}, {"DEFERRED", true},
};

static void
user_json(struct json *out, const struct caid_user *u)
{
    json_object(out, NULL);
    json_u64(out, "uid", u->uid);
    json_u64(out, "connections", u->connections);
    json_u64(out, "arrays", u->arrays);
    json_u64(out, "names", u->names);
    json_u64(out, "leases", u->leases);
    json_u64(out, "watches", u->watches);
    json_u64(out, "jobs", u->jobs);
    json_u64(out, "bytes", u->bytes);
    json_u64(out, "pinned", u->pinned);
    json_u64(out, "host", u->host);
    json_u64(out, "pending", u->pending);
    json_u64(out, "deferred", u->deferred);
    json_u64(out, "brackets", u->brackets);
    json_u64(out, "pages", u->pages);
    json_object_end(out);
}

static int
user_row(const struct caid_user *u, void *userdata)
{
    const struct rows *rows = userdata;
    struct table *table = rows->table;

    if (rows->ctl->json) {
        user_json(&rows->ctl->out, u);
        return 0;
    }
    add_user(table, u->uid);
    add_bytes(rows->ctl, table, u->bytes);
    add_bytes(rows->ctl, table, u->pinned);
    add_bytes(rows->ctl, table, u->host);
    add_u64(table, u->arrays);
    add_u64(table, u->names);
    add_u64(table, u->leases);
    add_u64(table, u->brackets);
    add_u64(table, u->pages);
    add_u64(table, u->watches);
    add_u64(table, u->connections);
    add_u64(table, u->jobs);
    add_u64(table, u->pending);
    add_u64(table, u->deferred);
    return 0;
}

int
report_users(struct ctl *ctl, const char *key, struct table *ret)
{
    struct rows rows = {.ctl = ctl, .table = ret};

    table_init(ret, user_columns, ARRAY_SIZE(user_columns));
    json_list(&ctl->out, key);
    if (caid_users(ctl->client, user_row, &rows, &ctl->error) < 0)
        return ctl_failed(ctl, "users");
    json_list_end(&ctl->out);
    return CTL_OK;
}

/* ---- arrays ---- */

const char *
report_uuid(const struct ctl *ctl, int32_t device)
{
    const struct caid_device *devices;
    int n = caid_client_devices(ctl->client, &devices);
    return device >= 0 && device < n ? devices[device].uuid : NULL;
}

void
report_i64s(struct json *out, const char *key, const int64_t *values, uint32_t n)
{
    json_list(out, key);
    for (uint32_t i = 0; i < n; i++)
        json_i64(out, NULL, values[i]);
    json_list_end(out);
}

void
report_entry(struct ctl *ctl, const struct caid_entry *e)
{
    struct json *out = &ctl->out;

    json_str(out, "pool", e->pool);
    json_str(out, "name", e->name[0] ? e->name : NULL);
    json_u64(out, "generation", e->generation);
    if (e->device >= 0)
        json_i64(out, "device", e->device);
    else
        json_null(out, "device");
    json_str(out, "device_uuid", report_uuid(ctl, e->device));
    json_str(out, "memory", e->memory);
    json_str(out, "typestr", e->typestr);
    report_i64s(out, "shape", e->shape, e->ndim);
    json_u64(out, "nbytes", e->nbytes);
    json_u64(out, "uid", e->uid);
    json_u64(out, "leases", e->leases);
    json_u64(out, "readers", e->readers);
    json_u64(out, "writers", e->writers);
    json_u64(out, "waiting", e->waiting);
    json_bool(out, "abandoned", e->abandoned);
    json_u64(out, "parts", e->parts);
}

char *
report_use(const struct caid_entry *e)
{
    const struct {
        uint64_t n;
        const char *verb;
    } uses[] = {{e->readers, "read"}, {e->writers, "write"}, {e->waiting, "wait"}};

    char *text = NULL;
    size_t size;
    const char *between = "";

    FILE *out = open_memstream(&text, &size);
    if (!out)
        out_of_memory();
    for (size_t i = 0; i < ARRAY_SIZE(uses); i++) {
        if (uses[i].n == 0)
            continue;
        fprintf(out, "%s%" PRIu64 " %s", between, uses[i].n, uses[i].verb);
        between = ", ";
    }
    if (e->abandoned)
        fprintf(out, "%sabandoned", between);
    else if (!*between)
        fputs("-", out);
    if (fclose(out) != 0)
        out_of_memory();
    return text;
}

void
report_holders(struct json *out, const struct caid_details *d)
{
    json_list(out, "holders");
    for (size_t i = 0; i < d->n_holders; i++) {
        json_object(out, NULL);
        json_u64(out, "pid", d->holders[i].pid);
        json_u64(out, "uid", d->holders[i].uid);
        json_str(out, "client", d->holders[i].client);
        json_bool(out, "readonly", d->holders[i].readonly);
        json_bool(out, "hung_up", d->holders[i].hung_up);
        json_u64(out, "reading", d->holders[i].reading);
        json_u64(out, "writing", d->holders[i].writing);
        json_u64(out, "waiting", d->holders[i].waiting);
        json_object_end(out);
    }
    json_list_end(out);
}

/* ---- unnamed arrays ---- */

/* A row for each process: that is what one looks for. */
static const struct column unnamed_columns[] = {
    {"PID", true},        {"USER", false},   {"CLIENT", false},
    {"MODE", false},      {"POOL", false},   {"LAST NAME", false},
    {"GENERATION", true}, {"MEMORY", false}, {"SIZE", true},
};

static void
unnamed_json(struct ctl *ctl, const struct caid_details *d)
{
    json_object(&ctl->out, NULL);
    report_entry(ctl, &d->entry);
    json_u64(&ctl->out, "array", d->array);
    json_u64(&ctl->out, "block", d->block);
    report_holders(&ctl->out, d);
    json_object_end(&ctl->out);
}

static void
unnamed_array(const struct rows *rows, const struct caid_entry *e)
{
    table_add(rows->table, "%s", e->pool);
    table_add(rows->table, "%s", e->name[0] ? e->name : "-");
    add_u64(rows->table, e->generation);
    table_add(rows->table, "%s", e->memory);
    add_bytes(rows->ctl, rows->table, e->nbytes);
}

static void
unnamed_holder(const struct rows *rows, const struct caid_holder *holder)
{
    add_u64(rows->table, holder->pid);
    add_user(rows->table, holder->uid);
    table_add(rows->table, "%s", holder->client ? holder->client : "-");
    table_add(rows->table, "%s", holder->hung_up ? "gone" : holder->readonly ? "r" : "rw");
}

/* What keeps it beside those holders: others that a packet had no room for, and its parts, which only
 * its creator can publish. */
static void
unnamed_rest(const struct rows *rows, const struct caid_details *d)
{
    const struct caid_entry *e = &d->entry;

    if (d->n_holders < e->leases) {
        table_add(rows->table, "-");
        table_add(rows->table, "-");
        table_add(rows->table, "%" PRIu64 " more", e->leases - d->n_holders);
        table_add(rows->table, "-");
        unnamed_array(rows, e);
    }
    if (e->parts) {
        table_add(rows->table, "-");
        add_user(rows->table, e->uid);
        table_add(rows->table, "%" PRIu64 " part%s", e->parts, e->parts > 1 ? "s" : "");
        table_add(rows->table, "-");
        unnamed_array(rows, e);
    }
}

static int
unnamed_row(const struct caid_details *d, void *userdata)
{
    const struct rows *rows = userdata;

    if (rows->ctl->json) {
        unnamed_json(rows->ctl, d);
        return 0;
    }
    for (size_t i = 0; i < d->n_holders; i++) {
        unnamed_holder(rows, &d->holders[i]);
        unnamed_array(rows, &d->entry);
    }
    unnamed_rest(rows, d);
    return 0;
}

int
report_unnamed(struct ctl *ctl, const char *key, const char *pool, struct table *ret)
{
    struct rows rows = {.ctl = ctl, .table = ret};
    struct caid_list_options options = CAID_INIT(options);

    options.pool = pool;
    options.all = !pool;
    table_init(ret, unnamed_columns, ARRAY_SIZE(unnamed_columns));
    json_list(&ctl->out, key);
    if (caid_unnamed(ctl->client, &options, unnamed_row, &rows, &ctl->error) < 0)
        return ctl_failed(ctl, pool ? pool : "unnamed");
    json_list_end(&ctl->out);
    return CTL_OK;
}
