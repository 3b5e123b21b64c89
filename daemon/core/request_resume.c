/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RESUME: the client of a former connection says what it has.
 */
#include "former.h"
#include "request.h"

static int
check(const struct conn *conn, const struct msg_resume_params *p, struct refusal *r)
{
    if (!conn->resuming)
        return refuse(r, PROTO_ERR_INVALID, "resume: the connection is no earlier one's");
    if (p->read.n % 2 || p->write.n % 2 || p->ended.n % 5)
        return refuse(r, PROTO_ERR_INVALID, "resume: a list ends early");
    if ((uint64_t)p->read.n / 2 + p->write.n / 2 + p->blocks.n + p->pages.n + p->parts.n +
            p->ended.n / 5 + p->repeats.n + p->undo.n >
        PROTO_RESUME_MAX)
        return refuse(r, PROTO_ERR_INVALID, "resume takes at most %d of all at a time",
                      PROTO_RESUME_MAX);
    return 0;
}

HANDLER(on_resume)
{
    const struct msg_resume_params *p = params;
    uint64_t lost[PROTO_RESUME_MAX];
    uint32_t n_lost = 0;
    int rc = check(conn, p, r);

    if (rc == 0)
        rc = former_resume_leases(core, conn, p->read, true, lost, &n_lost, r);
    if (rc == 0)
        rc = former_resume_leases(core, conn, p->write, false, lost, &n_lost, r);
    if (rc == 0)
        rc = former_resume_rest(core, conn, p, r);
    if (rc)
        return rc;
    former_goes_on(core, conn);
    if (p->done)
        former_done(core, conn, p->leaves);
    struct msg_resume_result result = {.lost = {.v = n_lost ? lost : NULL, .n = n_lost}};
    send_result(core, conn, id, MSG_RESUME, &result, NULL, 0);
    return 0;
}
