/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on names and pools: list, pools, timelines, unlink. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "format.h"
#include "report.h"

/* ---- list ---- */

int
verb_list(struct ctl *ctl, int argc, char **argv)
{
    _cleanup_table_ struct table table = {0};
    const char *prefix = argc > 0 ? argv[0] : NULL;

    json_object(&ctl->out, NULL);
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
    FIELD(STR, caid_timeline_entry, pool, "pool", "POOL"),
    FIELD(STR, caid_timeline_entry, name, "name", "NAME"),
    FIELD(U64, caid_timeline_entry, value, "value", "VALUE"),
    FIELD(U64, caid_timeline_entry, submitted, "submitted", "SUBMITTED"),
    FIELD(U64, caid_timeline_entry, holders, "holders", "OPEN"),
    FIELD(U64, caid_timeline_entry, pid, "pid", "PID"),
    FIELD(USER, caid_timeline_entry, uid, "uid", "USER"),
    FIELD(STR, caid_timeline_entry, client, "client", "CLIENT"),
    {0},
};

static int
timeline_row(const struct caid_timeline_entry *e, void *userdata)
{
    return listing_add(userdata, e);
}

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
    int r = caid_timelines(ctl->client, &options, timeline_row, &listing, &ctl->error);
    return report_end(ctl, listing_end(&listing, r, "timelines"), &table);
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
