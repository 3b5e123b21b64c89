/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of requests, by method. A handler answers by send_result(), or returns REFUSED with
 * the refusal filled in, or -errno, which ends the connection: -EPROTO for a violation, -ENOMEM.
 */
#pragma once

#include "conn.h"
#include "monitor.h"
#include "reply.h"
#include "set.h"
#include "state.h"

#define HANDLER(name)                                                  \
    int name(struct core *core, struct conn *conn, uint32_t id UNUSED, \
             const void *params UNUSED, struct refusal *r UNUSED)

#define REQUEST(NAME, name, params, result) HANDLER(on_##name);
#define NOTIFY(NAME, name, params)          HANDLER(on_##name);
#include "messages.def"

union params {
#define REQUEST(NAME, name, params, result) struct msg_##params name;
#define NOTIFY(NAME, name, params)          struct msg_##params name;
#include "messages.def"
};

/* request_memory.c: answers a memory_info with these figures. */
void reply_memory(struct core *core, struct conn *conn, const struct job *job,
                  const struct core_memory_result *results, size_t n);
struct msg_pool pool_record(const struct core *core, struct pool *pool);
struct msg_user user_record(const struct user *user);

/* request_monitor.c: what params are about. */
struct subject request_subject(struct core *core, struct conn *conn, enum msg_method method,
                               const void *params);

/* request_name.c: the array under a name that conn may do `what` to (MAY_READ, MAY_WRITE); the same
 * refusal for one that is absent and one that is forbidden. */
int name_find(struct core *core, struct conn *conn, const struct msg_name_params *p, int what,
              struct named *ret, struct refusal *r);

/* request_publish.c: the array that n members may be put into, by who has that lease. REFUSED. */
int set_check(struct conn *conn, uint64_t lease, uint32_t n, struct array **ret,
              struct refusal *r);

/* request_wait.c: refuses a HELLO that has waited too long for something to be restored. */
int hello_check(struct core *core, const struct conn *conn, struct refusal *r);

/* request.c */
void request_handle(struct core *core, struct conn *conn, const void *packet, size_t n);
