/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of actions; core_next() takes them out in the order in which they were pushed. An entry
 * that carries bytes (packets, names) is allocated with them, and freed after it has been taken
 * out. Other entries are embedded in the object that they are about, so that giving memory back and
 * ending a connection cannot fail.
 */
#pragma once

#include "base/tree.h"
#include "core.h"

struct entry {
    TAILQ_ENTRY(entry) link;
    struct core_action action;
    bool owned; /* allocated by the queue: freed after it has been taken out */
    bool queued;
};

TAILQ_HEAD(entries, entry);

void entry_push(struct core *core, struct entry *e);
void entry_remove(struct core *core, struct entry *e);
/* An entry with room for n bytes after it, to be pushed later. NULL: out of memory. */
struct entry *entry_new(enum core_action_type type, size_t n);
void entry_free(struct entry *e);
/* Drops the packets that were to be sent to a connection which has ended. */
void entry_drop_sends(struct core *core, uint64_t conn);
void entry_drop_all(struct core *core);
