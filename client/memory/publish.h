/* SPDX-License-Identifier: Apache-2.0 */
/* What caid_array_publish() and caid_array_publish_behind() (behind.h) have in common. */
#pragma once

#include "caid/caid.h"

#include "array.h"

/* Reads the options of a publication, and checks it. */
int publish_check(const struct caid_array *array, const char *name,
                  const struct caid_publish_options *options, struct caid_publish_options *ret,
                  struct caid_error *error);

/* The request; it borrows the texts. */
struct msg_publish_params publish_params(const struct caid_array *array, const char *name,
                                         const struct caid_publish_options *options);

/* The description of the array after the reply, with room for both texts. NULL: out of memory. */
struct array_text *publish_text_new(const struct msg_publish_params *params);
/* The array is published under them. Under the client's lock. */
void publish_apply(struct caid_array *array, struct array_text *text, uint64_t generation);
