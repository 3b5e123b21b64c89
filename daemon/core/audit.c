/* SPDX-License-Identifier: Apache-2.0 */
#include "audit.h"

#include <stdio.h>

#include "array.h"
#include "state.h"

/* A line that is yet to be filled in. NULL: out of memory. */
static struct core_audit *
audit_new(struct core *core, enum core_audit_kind kind, pid_t pid, const struct user *user)
{
    struct entry *e = entry_new(CORE_AUDIT, sizeof(struct core_audit));
    struct core_audit *audit = (struct core_audit *)(e + 1);

    if (!e) {
        core->n_lost_audits++;
        return NULL;
    }
    *audit = (struct core_audit){.kind = kind,
                                 .n_lost = core->n_lost_audits,
                                 .pid = pid,
                                 .uid = user->uid};
    core->n_lost_audits = 0;
    e->action.audit = audit;
    entry_push(core, e);
    return audit;
}

static void
fill_array(struct core_audit *audit, const struct array *array)
{
    snprintf(audit->creator, sizeof(audit->creator), "%u", (unsigned)array->charge.user->uid);
    snprintf(audit->pool, sizeof(audit->pool), "%s", array->pool->name);
    snprintf(audit->name, sizeof(audit->name), "%s", array->name);
}

void
audit_name(struct core *core, const struct conn *conn, enum core_audit_kind kind,
           const char *verb, const struct array *array)
{
    const struct user *creator = array->charge.user;
    struct core_audit *audit =
        creator == conn->user ? NULL : audit_new(core, kind, conn->pid, conn->user);

    if (!audit)
        return;
    fill_array(audit, array);
    snprintf(audit->text, sizeof(audit->text), "%s what uid %s created in pool \"%s\": %s",
             verb, audit->creator, audit->pool, audit->name);
}

void
audit_drop(struct core *core, const struct conn *conn, const struct array *set, uint64_t bytes)
{
    struct core_audit *audit = audit_new(core, AUDIT_DROP, conn->pid, conn->user);

    if (!audit)
        return;
    fill_array(audit, set);
    snprintf(audit->text, sizeof(audit->text),
             "needs memory: %s of uid %s are dropped from pool \"%s\": %s", SIZE_TEXT(bytes),
             audit->creator, audit->pool, audit->name);
}

void
audit_ticket(struct core *core, const struct ticket *ticket)
{
    const struct array *array = ticket->lease.array;
    struct core_audit *audit =
        audit_new(core, AUDIT_TICKET, ticket->pid, ticket->lease.charge.user);

    if (!audit)
        return;
    fill_array(audit, array);
    snprintf(audit->text, sizeof(audit->text),
             "sent an array of %s in pool \"%s\" that nobody took in time: %s",
             SIZE_TEXT(array->nbytes), audit->pool, *audit->name ? audit->name : "(no name)");
}

void
audit_refusal(struct core *core, const struct conn *conn, const struct refusal *r)
{
    bool is_limit = r->code == PROTO_ERR_QUOTA || r->code == PROTO_ERR_LIMIT;
    struct core_audit *audit = is_limit ? audit_new(core, AUDIT_LIMIT, conn->pid, conn->user)
                                        : NULL;

    if (!audit)
        return;
    snprintf(audit->pool, sizeof(audit->pool), "%s", r->pool);
    snprintf(audit->text, sizeof(audit->text), "is refused: %s", r->text);
}
