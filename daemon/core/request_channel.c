/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: join, members, admit, leave.
 */
#include "array.h"
#include "participant.h"
#include "request.h"

HANDLER(on_join)
{
    const struct msg_join_params *p = params;
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r))
        return REFUSED;
    if (p->produce && lease->readonly)
        return refuse(r, PROTO_ERR_INVALID, "the array was opened \"r\"");
    return channel_join(core, conn, id, lease->array, p, r);
}

HANDLER(on_members)
{
    const struct msg_members_params *p = params;
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r))
        return REFUSED;
    return channel_ask(core, conn, id, lease->array, p->seen, r);
}

/* Who was to be let in, or the channel, may have gone meanwhile. */
HANDLER(on_admit)
{
    const struct msg_admit_params *p = params;
    const struct lease *lease = lease_find(conn, p->lease);

    if (p->sequence > CHANNEL_SEQUENCE_MAX)
        return refuse(r, PROTO_ERR_INVALID, "no frame has sequence %" PRIu64, p->sequence);
    if (lease)
        channel_admit(core, conn, lease->array, p->member, p->sequence);
    return 0;
}

HANDLER(on_leave)
{
    const struct msg_leave_params *p = params;

    channel_leave(core, conn, p->member);
    return 0;
}
