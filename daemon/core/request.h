/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of requests, by method, and what they share. Only files in core/ include this.
 */
#pragma once

#include "state.h"

#define HANDLER(name)                                                               \
    int name(struct core *core, struct conn *conn, uint32_t id, const void *params, \
             struct refusal *r)

/* request_array.c */
HANDLER(on_create);
HANDLER(on_open);
HANDLER(on_close);

/* request_name.c */
HANDLER(on_unlink);
HANDLER(on_list);
HANDLER(on_show);
HANDLER(on_unnamed);

/* request_memory.c */
HANDLER(on_memory_info);
HANDLER(on_flush);
HANDLER(on_defer);
HANDLER(on_pools);
HANDLER(on_users);

/* request_publish.c */
HANDLER(on_publish);
HANDLER(on_watch);
HANDLER(on_cancel);

/* request_part.c */
HANDLER(on_publish_part);
HANDLER(on_parts);

/* request_access.c */
HANDLER(on_page);
HANDLER(on_drop_pages);
HANDLER(on_begin);
HANDLER(on_fences);
HANDLER(on_end);
HANDLER(on_discard);

/* request_timeline.c */
HANDLER(on_timeline);
HANDLER(on_open_timeline);
HANDLER(on_timelines);

/* request.c */
/* Index of a device by its UUID; an absent one is the first device. */
int device_find(const struct core *core, struct msg_str uuid, uint32_t *ret, struct refusal *r);
/* The pool that a request names, in which conn may make things. */
int pool_find_writable(struct core *core, const struct conn *conn, struct msg_str name,
                       struct pool **ret, struct refusal *r);
/* Whether a further driver call may be started for conn. */
int job_admit(const struct core *core, const struct conn *conn, struct refusal *r);
int metadata_check(struct msg_str metadata, struct refusal *r);
/* What an array of that name (p NULL: unnamed) is to look like. */
int geometry_check(struct msg_str name, struct msg_str typestr, struct msg_i64s shape,
                   struct msg_i64s strides, struct msg_str descr, struct geometry *ret,
                   struct refusal *r);

#define PAGE_MAX 512 /* records in one page */

/*
 * How much room a reply has left. Replies that are lists take records until the next one might
 * not fit. What a record takes is its msg_*_size(), which sees to PROTO_ITEMS_MAX as well.
 */
struct room {
    size_t bytes, fds;
};

#define ROOM_INIT                                             \
    {                                                         \
        .bytes = PROTO_PACKET_MAX - 256, .fds = PROTO_FDS_MAX \
    }

bool room_take(struct room *room, size_t bytes, size_t fds);
