/* SPDX-License-Identifier: Apache-2.0 */
/* The verb drain: refuses new arrays, and waits for the end of the present ones. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "format.h"
#include "report.h"

#define LOOK_NS (200 * NSEC_PER_MSEC)

struct remains { /* the arrays that are left, and their creators */
    struct ctl *ctl;
    uint64_t arrays, bytes;
    FILE *who;
    char *text; /* what was written to `who` */
    size_t n_text;
};

static int
remains_add(const struct caid_user *user, void *userdata)
{
    struct remains *rest = userdata;
    uint64_t bytes = user->bytes + user->pinned;
    _cleanup_free_ char *size = format_bytes(bytes, rest->ctl->bytes);
    _cleanup_free_ char *name = format_user(user->uid);

    if (user->arrays > 0)
        fprintf(rest->who, "%s %s %" PRIu64 " of %s", rest->arrays > 0 ? "," : "", name,
                user->arrays, size);
    rest->arrays += user->arrays;
    rest->bytes += bytes;
    return 0;
}

/* The text is the caller's to free. */
static int
look(struct ctl *ctl, struct remains *ret)
{
    *ret = (struct remains){.ctl = ctl};
    ret->who = open_memstream(&ret->text, &ret->n_text);
    if (!ret->who)
        out_of_memory();
    int r = caid_users(ctl->client, remains_add, ret, &ctl->error);
    if (fclose(ret->who) != 0)
        out_of_memory();
    return r;
}

static void
drain_print(const struct remains *rest)
{
    fprintf(stderr, "caidctl: drain: arrays are left:%s\n", rest->text);
}

/* Waits until the last array has gone. A daemon that is started meanwhile is drained as well. */
static int
wait_for_all(struct ctl *ctl)
{
    _cleanup_free_ char *printed = NULL;
    struct remains rest;
    int r;

    while ((r = look(ctl, &rest)) == 0 && rest.arrays > 0) {
        if (!ctl->json && (!printed || strcmp(printed, rest.text) != 0))
            drain_print(&rest);
        free(printed);
        printed = rest.text;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        r = caid_drain(ctl->client, true, &ctl->error);
        if (r < 0)
            return r;
    }
    free(rest.text);
    return r;
}

/* Another process may have removed the name meanwhile. A name that the caller may not remove stays,
 * with a complaint. */
static int
unlink_listed(const struct caid_entry *e, void *userdata)
{
    struct ctl *ctl = userdata;
    int r = e->of_set ? 0 : caid_unlink(ctl->client, e->name, e->pool, &ctl->error);
    bool goes_on = ctl->error.code == CAID_ERR_NOT_FOUND ||
                   ctl->error.code == CAID_ERR_PERMISSION;

    return r < 0 && goes_on ? 0 : r;
}

static int
unlink_all(struct ctl *ctl)
{
    struct caid_list_options options = CAID_INIT(options);

    options.all = true;
    return caid_list(ctl->client, &options, unlink_listed, ctl, &ctl->error);
}

/* Reports the arrays that are left, and who keeps them. */
static int
report(struct ctl *ctl, const struct remains *rest)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    json_bool(&ctl->out, "drained", rest->arrays == 0);
    json_u64(&ctl->out, "arrays", rest->arrays);
    json_u64(&ctl->out, "bytes", rest->bytes);
    int status = report_unnamed(ctl, "unnamed", NULL, &table);
    if (status != CTL_OK)
        return status;
    json_object_end(&ctl->out);
    if (rest->arrays == 0) {
        if (!ctl->json)
            puts("no array is left");
        return CTL_OK;
    }
    if (!ctl->json)
        table_print(&table, true);
    drain_print(rest);
    return CTL_REFUSED;
}

static int
undo(struct ctl *ctl)
{
    if (caid_drain(ctl->client, false, &ctl->error) < 0)
        return ctl_failed(ctl, "drain");
    json_object(&ctl->out, NULL);
    json_bool(&ctl->out, "drained", false);
    json_object_end(&ctl->out);
    return CTL_OK;
}

int
verb_drain(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    struct remains rest = {0};
    int r;

    if (ctl->undo)
        return undo(ctl);
    r = caid_drain(ctl->client, true, &ctl->error);
    if (r == 0)
        r = ctl->force ? unlink_all(ctl) : wait_for_all(ctl);
    if (r == 0)
        r = caid_flush(ctl->client, -1, NULL, &ctl->error);
    if (r == 0)
        r = look(ctl, &rest);
    int status = r < 0 ? ctl_failed(ctl, "drain") : report(ctl, &rest);
    free(rest.text);
    return status;
}
