/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists that more than one verb prints. Each function asks the daemon, and writes the answer: with
 * --json into ctl->out, under key, else as rows into a table that it sets up. The verb prints the
 * table at the end. Each returns the exit status.
 */
#pragma once

#include "ctl.h"
#include "record.h"

/* A list of the daemon by its name, with the options of the command line. headings: of
 * record_fields(). */
int report_query(struct ctl *ctl, const char *query, const char *headings, struct table *ret);

/* Memory by device; device -1: all. */
int report_devices(struct ctl *ctl, const char *key, int32_t device, struct table *ret);

/* Which columns the table has. */
enum report_pools {
    POOLS_BY_ACCESS, /* whose they are */
    POOLS_BY_MEMORY, /* what they have */
};

int report_pools(struct ctl *ctl, const char *key, enum report_pools form, struct table *ret);

/* What users are charged. */
int report_users(struct ctl *ctl, struct table *ret);

/* The named arrays that the command line asks for. */
int report_entries(struct ctl *ctl, struct table *ret);

/* Arrays without a name and the processes that keep them; pool NULL: of all that may be read. */
int report_unnamed(struct ctl *ctl, const char *key, const char *pool, struct table *ret);

/* The ranges of blocks, only with --json. */
int report_ranges(struct ctl *ctl, const char *key, const struct caid_list_options *options);

/* The end of a verb whose result is one list: closes the object, or prints the table. Returns
 * status. */
int report_end(struct ctl *ctl, int status, const struct table *table);

/* ---- pieces ---- */

/* Whether arrays can be sorted by that: "size", "age", ...; by who holds them, too. */
bool report_can_sort(const char *by, bool has_holders);

/* The list options that the command line asks for. */
struct caid_list_options report_options(const struct ctl *ctl);

/* The UUID of a device; NULL: the daemon did not name the device in HELLO. */
const char *report_uuid(const struct ctl *ctl, int32_t device);

/* How scattered a pool's free bytes are: from 0, all together, towards 1. */
double report_fragmentation(const struct caid_pool *pool);

/* Who uses an array, by brackets: "2 read, 1 wait", "abandoned", "-". A new string. */
char *report_use(const struct caid_entry *e);

/* Writes an array's details as members of the open object. */
void report_details(struct ctl *ctl, const struct caid_details *d);

/* Which buffer of a storage is modified, in words; NULL: the array is not a storage. */
const char *storage_state(struct caid_client *client, const struct caid_details *d);

/* "pid 12 of ann, rw, trainer, brackets: 1 write". A new string. */
char *report_holder(const struct caid_holder *holder);

/* One pool as an object. */
void report_pool(struct ctl *ctl, const struct caid_pool *p);
