/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who looks on: a connection that has asked for the messages that pass, from then until it hangs
 * up. What passes is kept for it, as text without secrets, in a buffer of one size, which its user
 * is charged for; it has some when it asks again. What there is no room for is counted, until all
 * that was kept has been told.
 *
 * The messages of those who look on themselves are not seen by anybody.
 */
#pragma once

#include "reply.h"
#include "user.h"

#define MONITOR_BYTES 262144
#define MONITORS_MAX  4 /* of one uid; of administrators together */

struct monitor {
    LIST_ENTRY(monitor) link; /* core->monitors, of administrators; or its user's */
    struct conn *conn;
    struct charge charge;
    bool asks; /* by this request */
    uint32_t request;
    bool all; /* everybody's messages; or this uid's */
    uid_t uid;
    uint64_t n_lost; /* since there was no room */
    size_t start, end;
    _Alignas(uint64_t) char kept[MONITOR_BYTES];
};

/* Tells what is kept, or does as soon as there is something: of all, or of the uid, from now on.
 * -ENOMEM or REFUSED. */
int monitor_ask(struct core *core, struct conn *conn, uint32_t request, bool all, uid_t uid,
                struct refusal *r);
void monitor_free(struct core *core, struct monitor *monitor);
/* value: params or a result; or, of MSG_UNKNOWN, an error. pool: that a request is about. */
void monitor_see(struct core *core, struct conn *conn, enum msg_type type,
                 enum msg_method method, uint32_t id, const void *value, struct msg_str pool);

/* Where a message passes. A macro, as its value need not be made where nobody looks on. */
#define MONITOR(core, ...)                               \
    do {                                                 \
        if (__builtin_expect((core)->n_monitors > 0, 0)) \
            monitor_see((core), __VA_ARGS__);            \
    } while (0)
