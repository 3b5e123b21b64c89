/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on names and pools: list, pools, timelines, unlink. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "format.h"
#include "report.h"

/* ---- list ---- */

static const struct field lost_fields[] = {
    FIELD(TEXT, caid_lost_name, pool, "pool", "POOL"),
    FIELD(TEXT, caid_lost_name, name, "name", "NAME"),
    FIELD(COUNT, caid_lost_name, generation, "generation", "GENERATION"),
    FIELD(UID, caid_lost_name, uid, "uid", "USER"),
    FIELD(TEXT, caid_lost_name, why, "why", "WHY"),
    {0},
};

LISTING_ROW(lost_name)

static int
list_lost(struct ctl *ctl, const char *prefix, struct table *ret)
{
    struct listing listing = {ctl, lost_fields, 0, ret};
    struct caid_list_options options = CAID_INIT(options);

    options.pool = ctl->pool;
    options.all = ctl->all;
    options.prefix = prefix;
    listing_begin(&listing, "lost");
    int r = caid_list_lost(ctl->client, &options, lost_name_row, &listing, &ctl->error);
    return listing_end(&listing, r, "list");
}

int
verb_list(struct ctl *ctl, int argc, char **argv)
{
    _cleanup_table_ struct table table = {0};
    const char *prefix = argc > 0 ? argv[0] : NULL;

    json_object(&ctl->out, NULL);
    if (ctl->lost)
        return report_end(ctl, list_lost(ctl, prefix, &table), &table);
    return report_end(ctl, report_entries(ctl, "arrays", prefix, &table), &table);
}

/* ---- pools ---- */

int
verb_pools(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    return report_end(ctl, report_pools(ctl, "pools", POOLS_BY_ACCESS, &table), &table);
}

/* ---- users ---- */

int
verb_users(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    return report_end(ctl, report_users(ctl, "users", &table), &table);
}

/* ---- timelines ---- */

static const struct field timeline_fields[] = {
    FIELD(TEXT, caid_timeline_entry, pool, "pool", "POOL"),
    FIELD(TEXT, caid_timeline_entry, name, "name", "NAME"),
    FIELD(COUNT, caid_timeline_entry, value, "value", "VALUE"),
    FIELD(COUNT, caid_timeline_entry, submitted, "submitted", "SUBMITTED"),
    FIELD(COUNT, caid_timeline_entry, holders, "holders", "OPEN"),
    FIELD(COUNT, caid_timeline_entry, pid, "pid", "PID"),
    FIELD(UID, caid_timeline_entry, uid, "uid", "USER"),
    FIELD(TEXT, caid_timeline_entry, client, "client", "CLIENT"),
    {0},
};

LISTING_ROW(timeline_entry)

int
verb_timelines(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table = {0};
    struct listing listing = {ctl, timeline_fields, 0, &table};
    struct caid_list_options options = CAID_INIT(options);

    options.pool = ctl->pool;
    options.all = ctl->all;
    json_object(&ctl->out, NULL);
    listing_begin(&listing, "timelines");
    int r = caid_timelines(ctl->client, &options, timeline_entry_row, &listing, &ctl->error);
    return report_end(ctl, listing_end(&listing, r, "timelines"), &table);
}

/* ---- unlink ---- */

static int
unlink_one(struct ctl *ctl, const char *name, bool ignore_missing)
{
    int r = caid_unlink(ctl->client, name, ctl->pool, &ctl->error);

    if (r == 0)
        json_str(&ctl->out, NULL, name);
    return r < 0 && ignore_missing && ctl->error.code == CAID_ERR_NOT_FOUND ? 0 : r;
}

/* Others may have removed it meanwhile. A set's names go with it. */
static int
unlink_listed(const struct caid_entry *e, void *userdata)
{
    return e->of_set ? 0 : unlink_one(userdata, e->name, true);
}

/* Ends at a failure: what one name of the pool is refused for, all are. */
static int
unlink_prefix(struct ctl *ctl)
{
    struct caid_list_options options = CAID_INIT(options);

    options.pool = ctl->pool;
    options.prefix = ctl->prefix;
    int r = caid_list(ctl->client, &options, unlink_listed, ctl, &ctl->error);
    return r < 0 ? ctl_failed(ctl, ctl->prefix) : CTL_OK;
}

/* Goes on after a failure, as rm(1) does. */
int
verb_unlink(struct ctl *ctl, int argc, char **argv)
{
    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "unlinked");
    int status = ctl->prefix ? unlink_prefix(ctl) : CTL_OK;
    for (int i = 0; i < argc; i++)
        if (unlink_one(ctl, argv[i], ctl->ignore_missing) < 0)
            status = ctl_failed(ctl, argv[i]);
    json_list_end(&ctl->out);
    json_object_end(&ctl->out);
    return status;
}
