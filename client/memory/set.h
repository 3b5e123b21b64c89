/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of parts in the making: it has no name, so nobody but this client reaches its parts.
 */
#pragma once

#include <stddef.h>

#include "part.h"

struct caid_array;
struct caid_client;
struct caid_member;

/* How the owner of the memory is told of the parts: hooks of part.h, of each its own userdata, and
 * a `gone`. */
struct set_told {
    void (*released)(void *userdata);
    void *const *of; /* the hooks' userdata, one for each part */
    void (*gone)(void *userdata);
    void *userdata;
};

int set_check_number(const struct caid_client *client, size_t n, struct caid_error *error);

/* A set without parts, for parts of `whole` and of arrays like it. */
int set_new(struct caid_array *whole, struct caid_array **ret, struct caid_error *error);
/* Makes parts of `whole`, and puts them into the set, in few requests. told: NULL, or the daemon
 * reports them. On failure the first ones may be there: set->info.members counts them. Of the
 * others nobody is told, and the daemon ends them with the set. Waits for the daemon; no lock is
 * held. */
int set_stage(struct caid_array *set, const struct caid_array *whole,
              const struct caid_member *members, size_t n, const struct set_told *told,
              struct caid_error *error);
