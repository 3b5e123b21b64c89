/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on names and pools: list, pools, timelines, channels, watch, unlink. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format.h"
#include "report.h"

/* ---- list ---- */

int
verb_list(struct ctl *ctl, int argc, char **argv)
{
    _cleanup_table_ struct table table = {0};
    _cleanup_free_ char *prefix = argc > 0 ? strdup(argv[0]) : NULL;

    if (argc > 0 && !prefix)
        out_of_memory();
    if (prefix && prefix[strcspn(prefix, "*?[")]) {
        ctl->pattern = argv[0];
        prefix[strcspn(prefix, "*?[")] = '\0'; /* every name that matches begins so */
    }
    ctl->prefix = prefix;
    json_object(&ctl->out, NULL);
    return report_end(ctl,
                      ctl->lost ? report_query(ctl, "lost",
                                               "pool name generation uid=USER why dropped= "
                                               "metadata= priority= reload_ns= bytes= *",
                                               &table)
                                : report_entries(ctl, &table),
                      &table);
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
    return report_end(ctl, report_users(ctl, &table), &table);
}

/* ---- timelines ---- */

int
verb_timelines(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    return report_end(
        ctl,
        report_query(ctl, "timelines",
                     "pool name value submitted holders=OPEN pid uid=USER client *", &table),
        &table);
}

/* ---- channels ---- */

int
verb_channels(struct ctl *ctl, int argc, char **argv)
{
    _cleanup_table_ struct table table = {0};

    ctl->prefix = argc > 0 ? argv[0] : NULL;
    json_object(&ctl->out, NULL);
    return report_end(ctl,
                      report_query(ctl, "channels",
                                   "pool name mode slots producer pid uid=USER client depth "
                                   "sequence missed lag *",
                                   &table),
                      &table);
}

/* ---- watch ---- */

/* With --json each change is a document, on one line: the output has no end. */
static void
print_change(const struct ctl *ctl, const char *name, uint64_t generation)
{
    _cleanup_free_ char *plain = format_plain(name);
    struct json out;

    if (ctl->json) {
        json_init(&out, stdout);
        out.flat = true;
        json_object(&out, NULL);
        json_str(&out, "name", name);
        json_u64(&out, "generation", generation);
        json_object_end(&out);
    } else if (generation > 0) {
        printf("%s: generation %" PRIu64 "\n", plain, generation);
    } else {
        printf("%s: no array has the name now\n", plain);
    }
    fflush(stdout);
}

int
verb_watch(struct ctl *ctl, int argc UNUSED, char **argv)
{
    struct caid_watch *watch;
    struct caid_change change;
    const char *what = ctl->prefix ? ctl->prefix : argv[0];
    int r =
        ctl->prefix
            ? caid_watch_prefix(ctl->client, &watch, what, ctl->pool, NULL, NULL, &ctl->error)
            : caid_watch_new(ctl->client, &watch, what, ctl->pool, NULL, NULL, &ctl->error);

    if (r < 0)
        return ctl_failed(ctl, what);
    for (uint32_t n = 0; r == 0 && (n < ctl->count || ctl->count == 0) && !ferror(stdout);
         n++) {
        r = caid_watch_next(watch, UINT64_MAX, &change, &ctl->error);
        if (r == 0)
            print_change(ctl, change.name, change.generation);
    }
    int status = r < 0 ? ctl_failed(ctl, what) : CTL_OK;
    caid_watch_close(watch);
    return status;
}

/* ---- unlink ---- */

static int
unlink_one(struct ctl *ctl, const char *name, bool ignore_missing)
{
    int r = caid_unlink(ctl->client, name, ctl->pool, &ctl->error);

    if (r == 0) {
        json_str(&ctl->out, NULL, name);
        ctl->n_unlinked++;
    }
    return r < 0 && ignore_missing && ctl->error.code == CAID_ERR_NOT_FOUND ? 0 : r;
}

/* Others may have removed the name meanwhile. Names under a set go with the set's own. */
static int
unlink_listed(const struct caid_entry *e, void *userdata)
{
    return e->of_set ? 0 : unlink_one(userdata, e->name, true);
}

/* Ends at the first failure, since all other names would be refused for the same reason. */
static int
unlink_prefix(struct ctl *ctl)
{
    struct caid_list_options options = CAID_INIT(options);

    options.pool = ctl->pool;
    options.prefix = ctl->prefix;
    int r = caid_list(ctl->client, &options, unlink_listed, ctl, &ctl->error);
    if (!ctl->json && (r == 0 || ctl->n_unlinked > 0))
        printf("%" PRIu64 " names removed\n", ctl->n_unlinked);
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
