/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an administrator may want to know of later: CORE_AUDIT. Nothing depends on it: one that
 * there is no memory for is counted, and that is told with the next.
 */
#pragma once

#include "core.h"
#include "refusal.h"

struct array;
struct conn;
struct ticket;

/* conn is about to do that to the array's name, which is of no concern where it has created the
 * array. verb: "unlinks". */
void audit_name(struct core *core, const struct conn *conn, enum core_audit_kind kind,
                const char *verb, const struct array *array);
/* It has run out. */
void audit_ticket(struct core *core, const struct ticket *ticket);
/* Of no concern but where it is for a quota or a limit. */
void audit_refusal(struct core *core, const struct conn *conn, const struct refusal *r);
