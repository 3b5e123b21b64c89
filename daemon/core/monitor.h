/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A monitor: a connection that has asked for the messages which pass, until it hangs up. They are
 * kept for it, as text without secrets, in a buffer of fixed size, which its user is charged for.
 * The client asks again for more. Messages for which there is no room are counted, until all that
 * was kept has been sent.
 *
 * Messages of monitors are not shown to any monitor.
 */
#pragma once

#include "reply.h"
#include "user.h"

#define MONITOR_BYTES 262144
#define MONITORS_MAX  4 /* of one uid; and of all administrators */
#define SUBJECT_NAMES 8

/* What a request is about. */
struct subject {
    struct msg_str pool; /* that it names, directly or by a lease; or not set */

    struct subject_name {
        const struct pool *pool;
        struct msg_str name;
    } names[SUBJECT_NAMES]; /* that it gives, and of arrays that it has leases on */

    uint32_t n;
    uint64_t n_more; /* names and leases after these */
};

struct monitor {
    LIST_ENTRY(monitor) link; /* core->monitors, of administrators; or its user's */
    struct conn *conn;
    struct charge charge;
    bool asks; /* a request waits for messages */
    uint32_t request;
    bool all; /* everybody's messages; or this uid's */
    uid_t uid;
    uint64_t n_lost; /* messages that were dropped since there was no room */
    size_t start, end;
    _Alignas(uint64_t) char kept[MONITOR_BYTES];
};

/* Answers with what is kept, or as soon as there is something: from now on, of all uids or of one.
 * -ENOMEM or REFUSED. */
int monitor_ask(struct core *core, struct conn *conn, uint32_t request, bool all, uid_t uid,
                struct refusal *r);
void monitor_free(struct core *core, struct monitor *monitor);
/* value: params, a result or, for MSG_UNKNOWN, an error. subject: of a request or a notification;
 * each monitor is told of the names in pools that it may read. */
void monitor_see(struct core *core, struct conn *conn, enum msg_type type,
                 enum msg_method method, uint32_t id, const void *value,
                 struct subject subject);

/* For every message. A macro, so that the subject is only computed if there is a monitor. */
#define MONITOR(core, ...)                               \
    do {                                                 \
        if (__builtin_expect((core)->n_monitors > 0, 0)) \
            monitor_see((core), __VA_ARGS__);            \
    } while (0)
