/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of requests, by method. A handler answers by send_result(), or returns REFUSED with the
 * refusal filled in, or -errno, which ends the connection: -EPROTO for a violation, -ENOMEM.
 */
#pragma once

#include "conn.h"
#include "reply.h"
#include "state.h"

#define HANDLER(name)                                                               \
    int name(struct core *core, struct conn *conn, uint32_t id, const void *params, \
             struct refusal *r)

/* request_array.c */
/* request_array.c */
HANDLER(on_create);
HANDLER(on_open);
HANDLER(on_close);

/* request_name.c */
/* request_name.c */
HANDLER(on_unlink);
HANDLER(on_list);
HANDLER(on_show);
HANDLER(on_unnamed);

/* request_memory.c */
/* request_memory.c */
HANDLER(on_memory_info);
HANDLER(on_flush);
HANDLER(on_defer);
HANDLER(on_pools);
HANDLER(on_users);
void reply_memory(struct core *core, struct conn *conn, const struct job *job,
                  const struct core_memory_result *results, size_t n);

/* request_publish.c */
/* request_publish.c */
HANDLER(on_publish);
HANDLER(on_watch);
HANDLER(on_cancel);

/* request_part.c */
/* request_part.c */
HANDLER(on_publish_part);
HANDLER(on_parts);

/* request_access.c */
/* request_access.c */
HANDLER(on_page);
HANDLER(on_drop_pages);
HANDLER(on_begin);
HANDLER(on_fences);
HANDLER(on_end);
HANDLER(on_discard);

/* request_timeline.c */
/* request_timeline.c */
HANDLER(on_timeline);
HANDLER(on_open_timeline);
HANDLER(on_timelines);

/* request.c */
/* request.c */
void request_handle(struct core *core, struct conn *conn, const void *packet, size_t n);
