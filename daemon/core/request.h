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
HANDLER(on_pools);

/* request.c */
/* All devices as records, to be freed; NULL: out of memory. */
struct msg_device *device_records(const struct core *core);
/* Index of a device by its UUID; an absent one is the first device. */
int device_find(const struct core *core, struct msg_str uuid, uint32_t *ret, struct refusal *r);
/* Whether a further driver call may be started for conn. */
int job_admit(const struct core *core, const struct conn *conn, struct refusal *r);

/*
 * How much room a reply has left. Replies that are lists take records until the next one might
 * not fit. (PROTO_ITEMS_MAX needs no count of its own: no object is reckoned at under 4 bytes.)
 */
struct room {
    size_t bytes, fds;
};

#define ROOM_INIT                                             \
    {                                                         \
        .bytes = PROTO_PACKET_MAX - 256, .fds = PROTO_FDS_MAX \
    }

bool room_take(struct room *room, size_t bytes, size_t fds);
