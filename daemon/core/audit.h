/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines for an administrator's log: CORE_AUDIT. Nothing depends on them. A line for which there is
 * no memory is counted, and the next line says how many are missing.
 */
#pragma once

#include "core.h"
#include "refusal.h"

struct array;
struct conn;
struct ticket;

/* conn is about to do that (verb: "unlinks") to the array's name. Nothing is logged if conn's user
 * has created the array. */
void audit_name(struct core *core, const struct conn *conn, enum core_audit_kind kind,
                const char *verb, const struct array *array);
/* conn needs memory, and the set, of so many bytes, is about to be dropped for it. */
void audit_drop(struct core *core, const struct conn *conn, const struct array *set,
                uint64_t bytes);
/* The ticket has run out. */
void audit_ticket(struct core *core, const struct ticket *ticket);
/* Logs the refusal if it is one by a quota or a limit. */
void audit_refusal(struct core *core, const struct conn *conn, const struct refusal *r);
