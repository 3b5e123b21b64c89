/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the daemon by their names, for caidctl and the Python extension. */
#pragma once

#include "answer.h"

struct query;

/* The list of that name: "pools". NULL: there is none. */
const struct query *query_find(const char *name);
/* The descriptor of its records. */
const struct answer *query_answer(const struct query *query);

/* Calls fn for each record, as caid_list() does. options may be NULL; options that the list does
 * not use are ignored. */
int query_run(const struct query *query, struct caid_client *client,
              const struct caid_list_options *options,
              int (*fn)(const void *record, void *userdata), void *userdata,
              struct caid_error *error);
/* The same for the arrays of one name. */
int query_show(struct caid_client *client, const char *name, const char *pool,
               int (*fn)(const void *record, void *userdata), void *userdata,
               struct caid_error *error);
/* The keys of the set on which the lease is. */
int query_set(struct caid_client *client, uint64_t lease,
              int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
              struct caid_error *error);
