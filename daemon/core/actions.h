/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of actions, which core_next() takes out in the order in which they were pushed. Entries
 * that carry bytes of their own (packets, names) are allocated with them and freed after they were
 * taken out; the others are embedded in the object that they are about, so that what gives memory
 * back or ends a connection cannot fail.
 */
#pragma once

#include "base/tree.h"
#include "core.h"

struct entry {
    TAILQ_ENTRY(entry) link;
    struct core_action action;
    bool owned; /* by the queue: freed after it was taken out */
    bool queued;
};

TAILQ_HEAD(entries, entry);

void entry_push(struct core *core, struct entry *e);
void entry_remove(struct core *core, struct entry *e);
/* One to be pushed later, with n bytes after it. NULL: out of memory. */
struct entry *entry_new(enum core_action_type type, size_t n);
void entry_free(struct entry *e);
/* What was to be sent to a connection that has ended. */
void entry_drop_sends(struct core *core, uint64_t conn);
void entry_drop_all(struct core *core);
