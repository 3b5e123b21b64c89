/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists that more than one verb prints. Each function asks the daemon and writes what came into
 * ctl->out with --json, under key, else as rows into a table that it sets up; the verb prints
 * that when all has come. They return the exit status.
 */
#pragma once

#include "ctl.h"
#include "record.h"

/* A list of the daemon's by its name, as the command line says: record_fields(). */
int report_query(struct ctl *ctl, const char *query, const char *headings, struct table *ret);

/* Memory by device; device -1: all. */
int report_devices(struct ctl *ctl, const char *key, int32_t device, struct table *ret);

/* Forms of the table. */
enum report_pools {
    POOLS_BY_ACCESS, /* whose they are */
    POOLS_BY_MEMORY, /* what they have */
};

int report_pools(struct ctl *ctl, const char *key, enum report_pools form, struct table *ret);

/* What users are charged. */
int report_users(struct ctl *ctl, struct table *ret);

/* Named arrays that the command line says. */
int report_entries(struct ctl *ctl, struct table *ret);

/* Arrays without a name and the processes that keep them; pool NULL: of all that may be read. */
int report_unnamed(struct ctl *ctl, const char *key, const char *pool, struct table *ret);

/* What lies in blocks, with --json alone. */
int report_ranges(struct ctl *ctl, const char *key, const struct caid_list_options *options);

/* The end of a verb whose result is one list: closes the object, or prints the table. Returns
 * status. */
int report_end(struct ctl *ctl, int status, const struct table *table);

/* ---- pieces ---- */

/* What the command line says of a list. */
struct caid_list_options report_options(const struct ctl *ctl);

/* An array that is on a device which the daemon did not name in HELLO has none here: NULL. */
const char *report_uuid(const struct ctl *ctl, int32_t device);

/* How a pool's free bytes are scattered: 0 where they lie together, towards 1 where they do not. */
double report_fragmentation(const struct caid_pool *pool);

/* Who uses an array, by brackets: "2 read, 1 wait", "abandoned", "-". A new string. */
char *report_use(const struct caid_entry *e);

/* The members of what is known of an array, into an object that is open. */
void report_details(struct ctl *ctl, const struct caid_details *d);

/* Which buffer of a storage is modified, in words; NULL: the array is no storage. */
const char *storage_state(struct caid_client *client, const struct caid_details *d);

/* "pid 12 of ann, rw, trainer, brackets: 1 write". A new string. */
char *report_holder(const struct caid_holder *holder);

/* One pool as an object. */
void report_pool(struct ctl *ctl, const struct caid_pool *p);
