/* SPDX-License-Identifier: Apache-2.0 */
/* What was sent and nobody has taken: show --tickets, and the verb withdraw. */
#include <inttypes.h>
#include <stdio.h>

#include "report.h"

static const struct field ticket_fields[] = {
    FIELD(COUNT, caid_ticket, pid, "pid", "PID"),
    FIELD(UID, caid_ticket, uid, "uid", "USER"),
    FIELD(FLAG, caid_ticket, gone, "gone", "GONE"),
    FIELD(NS, caid_ticket, age_ns, "age_ns", "AGE"),
    FIELD(NS, caid_ticket, ttl_ns, "ttl_ns", "LEFT"),
    FIELD(FLAG, caid_ticket, many, "many", "MANY"),
    FIELD(TEXT, caid_ticket, pool, "pool", "POOL"),
    FIELD(NAME, caid_ticket, name, "name", "LAST_NAME"),
    FIELD(COUNT, caid_ticket, array, "array", NULL),
    FIELD(FLAG, caid_ticket, readonly, "readonly", NULL),
    FIELD(BYTES, caid_ticket, nbytes, "nbytes", "SIZE"),
    {0},
};

LISTING_ROW(ticket)

int
show_tickets(struct ctl *ctl)
{
    _cleanup_table_ struct table table = {0};
    struct listing listing = {ctl, ticket_fields, 0, &table};

    json_object(&ctl->out, NULL);
    listing_begin(&listing, "tickets");
    int r = caid_tickets(ctl->client, ticket_row, &listing, &ctl->error);
    return report_end(ctl, listing_end(&listing, r, "tickets"), &table);
}

int
verb_withdraw(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    struct caid_withdraw_options options = CAID_INIT(options);
    unsigned long pid = 0;
    uint64_t n;

    if (ctl->pid && (!ctl_number(ctl->pid, INT32_MAX, &pid) || pid == 0)) {
        ctl_complain(ctl->pid, "not a process");
        return CTL_LOCAL;
    }
    options.pid = pid;
    options.gone = ctl->gone;
    if (caid_withdraw(ctl->client, &options, &n, &ctl->error) < 0)
        return ctl_failed(ctl, "withdraw");
    json_object(&ctl->out, NULL);
    json_u64(&ctl->out, "withdrawn", n);
    json_object_end(&ctl->out);
    if (!ctl->json)
        printf("%" PRIu64 " withdrawn\n", n);
    return CTL_OK;
}
