/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets that nobody has taken: show --tickets, and the verb withdraw. */
#include <inttypes.h>
#include <stdio.h>

#include "report.h"

int
show_tickets(struct ctl *ctl)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    return report_end(
        ctl,
        report_query(
            ctl, "tickets",
            "number= array= readonly= pid uid=USER gone age_ns=AGE ttl_ns=LEFT many pool "
            "name=LAST_NAME nbytes=SIZE *",
            &table),
        &table);
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
