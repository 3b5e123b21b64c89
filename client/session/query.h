/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the daemon's, by their names: what caidctl and the Python extension ask for. */
#pragma once

#include "answer.h"

struct query;

/* The list of that name: "pools". NULL: there is none. */
const struct query *query_find(const char *name);
/* What its records are. */
const struct answer *query_answer(const struct query *query);

/* Calls fn for each record, as caid_list() does. options may be NULL; what the list has no use for
 * is ignored. */
int query_run(const struct query *query, struct caid_client *client,
              const struct caid_list_options *options,
              int (*fn)(const void *record, void *userdata), void *userdata,
              struct caid_error *error);
/* The same of one name. */
int query_show(struct caid_client *client, const char *name, const char *pool,
               int (*fn)(const void *record, void *userdata), void *userdata,
               struct caid_error *error);
/* The keys of a set, which the lease is on. */
int query_set(struct caid_client *client, uint64_t lease,
              int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
              struct caid_error *error);
