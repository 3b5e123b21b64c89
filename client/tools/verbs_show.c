/* SPDX-License-Identifier: Apache-2.0 */
/* The verb show: who holds what, of an array, a pool, or all. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "channels.h"
#include "format.h"
#include "report.h"

/* ---- an array ---- */

#define RATE_NS (250 * NSEC_PER_MSEC) /* between the looks at a channel that make its rates */

/* Who takes part in the array that is shown, if it is a channel: after two looks. */
static bool
add_channel(struct ctl *ctl, const struct caid_details *d, struct table *ret)
{
    static const char mark[] = "{\"caid.channel\":";
    struct caid_list_options options = CAID_INIT(options);
    struct channels channels = {0};
    size_t n = 0;

    if (!d->metadata || strncmp(d->metadata, mark, strlen(mark)) != 0)
        return false;
    options.pool = d->entry->pool;
    options.prefix = d->entry->name;
    if (channels_look(&channels, ctl, &options, d->entry->name, &n) == CTL_OK && n > 0) {
        clock_pause_ns(RATE_NS);
        channels_report(&channels, ctl, "channel", &options, d->entry->name, ret);
    }
    channels_deinit(&channels);
    return n > 0;
}

static void
details_json(struct ctl *ctl, const struct caid_details *d)
{
    _cleanup_table_ struct table unused = {0};

    json_object(&ctl->out, NULL);
    report_details(ctl, d);
    json_str(&ctl->out, "storage", storage_state(ctl->client, d));
    add_channel(ctl, d, &unused);
    json_object_end(&ctl->out);
}

static void
details_age(struct table *table, const char *what, uint64_t age_ns)
{
    _cleanup_free_ char *age = format_duration(age_ns);

    if (age_ns)
        table_fact(table, what, "%s ago", age);
}

static void
details_array(const struct ctl *ctl, struct table *table, const struct caid_details *d)
{
    const struct caid_entry *e = d->entry;
    const char *storage = storage_state(ctl->client, d);
    _cleanup_free_ char *shape = format_shape(e->shape, e->ndim);
    _cleanup_free_ char *size = format_bytes(e->nbytes, ctl->bytes);
    _cleanup_free_ char *user = format_user(e->uid);
    _cleanup_free_ char *use = report_use(e);

    table_fact(table, "name", "%s", e->name);
    table_fact(table, "pool", "%s", e->pool);
    table_fact(table, "type", "%s", e->typestr);
    if (d->descr)
        table_fact(table, "fields", "%s", d->descr);
    table_fact(table, "shape", "%s", shape);
    if (d->strides) {
        _cleanup_free_ char *strides = format_strides(d->strides, e->ndim);
        table_fact(table, "strides", "%s", strides);
    }
    table_fact(table, "size", "%s", size);
    if (d->metadata)
        table_fact(table, "metadata", "%s", d->metadata);
    if (storage)
        table_fact(table, "storage", "%s", storage);
    table_fact(table, "use", "%s", use);
    if (e->parts)
        table_fact(table, "parts", "%" PRIu64 " published of it", e->parts);
    if (e->ttl_ns) {
        _cleanup_free_ char *left = format_duration(e->ttl_ns);
        table_fact(table, "unlinked in", "%s", left);
    }
    if (e->members)
        table_fact(table, "set", "of %" PRIu64 " arrays, whose names begin with its own",
                   e->members);
    if (e->of_set)
        table_fact(table, "set", "it changes with the names of one");
    table_fact(table, "created by", "%s, generation %" PRIu64, user, e->generation);
    details_age(table, "created", e->age_ns);
    details_age(table, "published", e->published_ns);
    details_age(table, "opened", e->opened_ns);
}

static void
details_memory(const struct ctl *ctl, struct table *table, const struct caid_details *d)
{
    const char *uuid = report_uuid(ctl, d->entry->device);
    _cleanup_free_ char *size = format_bytes(d->block_size, ctl->bytes);
    _cleanup_free_ char *offset = format_bytes(d->offset, ctl->bytes);

    table_fact(table, "device", "%d, %s", d->entry->device, uuid ? uuid : "unknown");
    if (d->block == 0)
        table_fact(table, "memory", "%s, none", d->entry->memory);
    else
        table_fact(table, "memory", "%s, %s into block %" PRIu64 " of %s", d->entry->memory,
                   offset, d->block, size);
    if (d->exported)
        table_fact(table, "dma-buf", "exported: whoever has it keeps the memory, for good");
}

static void
details_holders(struct table *table, const struct caid_details *d)
{
    for (size_t i = 0; i < d->n_holders; i++) {
        _cleanup_free_ char *holder = report_holder(d->holders[i]);
        table_fact(table, "held by", "%s", holder);
    }
    if (d->n_holders < d->entry->leases)
        table_fact(table, "held by", "%" PRIu64 " more", d->entry->leases - d->n_holders);
}

static int
show_details(const struct caid_details *d, void *userdata)
{
    struct ctl *ctl = userdata;
    _cleanup_table_ struct table table, channel = {0};

    table_init_facts(&table);
    if (ctl->json) {
        details_json(ctl, d);
        return 0;
    }
    details_array(ctl, &table, d);
    details_memory(ctl, &table, d);
    details_holders(&table, d);
    table_print(&table, false);
    if (add_channel(ctl, d, &channel)) {
        putchar('\n');
        table_print(&channel, true);
    }
    return 0;
}

/* ---- a pool ---- */

static void
pool_space(const struct ctl *ctl, struct table *table, const struct caid_pool *p)
{
    _cleanup_free_ char *allocated = format_bytes(p->allocated, ctl->bytes);
    _cleanup_free_ char *pending = format_bytes(p->pending, ctl->bytes);
    _cleanup_free_ char *reserve = format_bytes(p->reserve, ctl->bytes);
    _cleanup_free_ char *holes = format_bytes(p->holes, ctl->bytes);
    _cleanup_free_ char *largest = format_bytes(p->largest, ctl->bytes);

    table_fact(table, "allocated", "%s", allocated);
    table_fact(table, "pending", "%s", pending);
    table_fact(table, "reserve", "%s", reserve);
    table_fact(table, "holes", "%s, the largest %s: %.0f %% fragmented", holes, largest,
               100.0 * report_fragmentation(p));
}

static void
pool_table(const struct ctl *ctl, const struct caid_pool *p)
{
    _cleanup_table_ struct table table;
    _cleanup_free_ char *user = format_user(p->uid);
    _cleanup_free_ char *group = format_group(p->gid);
    _cleanup_free_ char *used = format_bytes(p->used, ctl->bytes);
    _cleanup_free_ char *quota = format_bytes(p->quota, ctl->bytes);
    _cleanup_free_ char *pinned = format_bytes(p->pinned, ctl->bytes);
    char mode[10];

    format_mode(p->mode, mode);
    table_init_facts(&table);
    table_fact(&table, "pool", "%s", p->name);
    table_fact(&table, "owner", "%s, group %s, %s", user, group, mode);
    table_fact(&table, "legacy", "%s", p->legacy ? "yes" : "no");
    if (p->drops > 0)
        table_fact(&table, "dropped", "%" PRIu64 " sets, to make room", p->drops);
    table_fact(&table, "memory", "%s of %s, in %" PRIu64 " blocks", used,
               p->quota > 0 ? quota : "what the device has", p->blocks);
    pool_space(ctl, &table, p);
    table_fact(&table, "pinned", "%s", pinned);
    table_fact(&table, "holds", "%" PRIu64 " names, %" PRIu64 " arrays", p->names, p->arrays);
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
        report_pool(ctl, p);
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

/* ---- arrays without a name ---- */

static int
show_unnamed(struct ctl *ctl)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    return report_end(ctl, report_unnamed(ctl, "unnamed", ctl->pool, &table), &table);
}

/* ---- all ---- */

struct overview {
    struct table devices, pools, users, unnamed;
};

static void
overview_deinit(struct overview *o)
{
    table_deinit(&o->devices);
    table_deinit(&o->pools);
    table_deinit(&o->users);
    table_deinit(&o->unnamed);
}

static int
overview_fill(struct ctl *ctl, struct overview *o)
{
    int status = report_devices(ctl, "devices", -1, &o->devices);

    if (status == CTL_OK)
        status = report_pools(ctl, "pools", POOLS_BY_MEMORY, &o->pools);
    if (status == CTL_OK)
        status = report_users(ctl, &o->users);
    if (status == CTL_OK)
        status = report_unnamed(ctl, "unnamed", NULL, &o->unnamed);
    return status;
}

static void
overview_print(const struct overview *o)
{
    table_print(&o->devices, true);
    putchar('\n');
    table_print(&o->pools, true);
    putchar('\n');
    table_print(&o->users, true);
    if (o->unnamed.n_cells == 0)
        return;
    fputs("\nMemory without a name, and who keeps it:\n", stdout);
    table_print(&o->unnamed, true);
}

static int
show_all(struct ctl *ctl)
{
    _cleanup_(overview_deinit) struct overview overview = {0};

    json_object(&ctl->out, NULL);
    int status = overview_fill(ctl, &overview);
    if (status != CTL_OK)
        return status;
    json_object_end(&ctl->out);
    if (!ctl->json)
        overview_print(&overview);
    return CTL_OK;
}

int
verb_show(struct ctl *ctl, int argc, char **argv)
{
    if (ctl->unnamed)
        return show_unnamed(ctl);
    if (ctl->tickets)
        return show_tickets(ctl);
    if (argc == 0)
        return ctl->pool ? show_pool(ctl) : show_all(ctl);
    if (caid_show(ctl->client, argv[0], ctl->pool, show_details, ctl, &ctl->error) < 0)
        return ctl_failed(ctl, argv[0]);
    return CTL_OK;
}
