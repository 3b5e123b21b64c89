/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lost.
 */
#include "lost.h"
#include "request.h"

static struct msg_lost
lost_record(const struct lost *lost)
{
    return (struct msg_lost){
        .pool = MSG_STR(lost->pool->name),
        .name = {lost->name, lost->n_name},
        .generation = lost->generation,
        .uid = lost->charge.user->uid,
        .why = MSG_STR(lost_reason(lost->why)),
        .dropped = lost->why == LOST_DROPPED,
        .metadata = lost->metadata,
        .priority = lost->more.priority,
        .reload_ns = lost->more.reload_ns,
        .bytes = lost->more.bytes,
    };
}

static void
lost_pool(const struct core *core UNUSED, struct portion *portion, struct pool *pool,
          const void *params, bool resumed)
{
    const struct msg_lost_params *p = params;
    struct msg_str after = resumed ? p->after : (struct msg_str){0};
    const struct lost *lost = lost_find_next(pool, after, p->prefix);

    for (; lost; lost = RB_NEXT(losts, &pool->losts, (struct lost *)(uintptr_t)lost)) {
        struct msg_lost record = lost_record(lost);
        if (lost->n_name < p->prefix.n ||
            (p->prefix.n && memcmp(lost->name, p->prefix.p, p->prefix.n) != 0) ||
            !portion_add(portion, &record, msg_lost_size(&record)))
            return;
    }
}

HANDLER(on_lost)
{
    const struct msg_lost_params *p = params;
    _cleanup_free_ struct msg_lost *names = calloc(PORTION_MAX, sizeof(*names));
    struct portion portion = PORTION(core, names, PORTION_MAX);

    if (!names)
        return -ENOMEM;
    if (pools_list(core, conn, &portion, p->all, p->pool, lost_pool, p, r))
        return REFUSED;
    SEND_PORTION(core, conn, id, LOST, lost_result, names, portion);
    return 0;
}
