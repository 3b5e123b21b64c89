/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on connections: connections, kick. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format.h"
#include "report.h"

int
verb_connections(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table = {0};

    json_object(&ctl->out, NULL);
    return report_end(ctl,
                      report_query(ctl, "connections",
                                   "conn pid uid=USER client hung_up former *", &table),
                      &table);
}

/* ---- kick ---- */

struct kick {
    const char *client; /* as on the command line */
    unsigned long pid;  /* 0: it is a name */
    uint64_t of_pid;    /* of the first one that was found */
    bool is_many;       /* more than one process calls itself so */
    uint64_t *conns;
    size_t n;
};

static int
find_client(const struct caid_connection *c, void *userdata)
{
    struct kick *kick = userdata;
    bool is_it = kick->pid ? c->pid == kick->pid
                           : c->client && strcmp(c->client, kick->client) == 0;

    if (!is_it || c->pid == (uint64_t)getpid() || (c->hung_up && !c->former))
        return 0;
    kick->is_many |= kick->n > 0 && c->pid != kick->of_pid;
    kick->of_pid = c->pid;
    kick->conns = reallocarray(kick->conns, kick->n + 1, sizeof(kick->conns[0]));
    if (!kick->conns)
        out_of_memory();
    kick->conns[kick->n++] = c->conn;
    return 0;
}

/* One that has gone meanwhile is no failure. */
static int
kick_all(struct ctl *ctl, const struct kick *kick)
{
    int status = CTL_OK;
    size_t n = 0;

    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "kicked");
    for (size_t i = 0; i < kick->n && status == CTL_OK; i++) {
        int r = caid_kick(ctl->client, kick->conns[i], &ctl->error);
        if (r == 0) {
            json_u64(&ctl->out, NULL, kick->conns[i]);
            n++;
        } else if (ctl->error.code != CAID_ERR_NOT_FOUND) {
            status = ctl_failed(ctl, kick->client);
        }
    }
    json_list_end(&ctl->out);
    json_object_end(&ctl->out);
    if (!ctl->json)
        printf("%zu connection%s ended\n", n, n == 1 ? "" : "s");
    return status;
}

int
verb_kick(struct ctl *ctl, int argc UNUSED, char **argv)
{
    struct kick kick = {.client = argv[0]};
    int status = CTL_LOCAL;

    if (!ctl_number(argv[0], INT32_MAX, &kick.pid))
        kick.pid = 0;
    if (caid_connections(ctl->client, find_client, &kick, &ctl->error) < 0)
        status = ctl_failed(ctl, argv[0]);
    else if (kick.n == 0)
        ctl_complain(argv[0], "no client with that pid or name: see caidctl connections");
    else if (kick.is_many)
        ctl_complain(argv[0], "several processes call themselves so: say which by its pid");
    else
        status = kick_all(ctl, &kick);
    free(kick.conns);
    return status;
}
