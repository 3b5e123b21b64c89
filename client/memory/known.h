/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names with a prefix that a watch knows of, and those of them that have changed since the
 * program was told. They are looked through, packet by packet, whenever the daemon says that some
 * have changed: what is listed with another generation has changed, and what is listed no more has
 * gone. A name that changes several times before the program is told is told once.
 *
 * Belongs to one watch (watch.h), and is used under the client's lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"
#include "msg.h"

struct known_name {
    RB_ENTRY(known_name) node;
    TAILQ_ENTRY(known_name) changed; /* in known.changes, if it has changed */
    bool has_changed;
    uint64_t generation; /* 0: it has gone, which is to be told */
    uint64_t look;       /* the last look that found it */
    size_t n;
    char name[]; /* terminated */
};

RB_HEAD(known_names, known_name);

struct known {
    struct msg_str prefix; /* the watch's */
    struct known_names names;
    TAILQ_HEAD(, known_name) changes;
    struct known_name *last; /* the last one that this look has found, or NULL */
    uint64_t look;
};

void known_init(struct known *known, struct msg_str prefix);
void known_deinit(struct known *known);
/* A look begins: known_take() of all packets, then known_end(). */
void known_begin(struct known *known);
/* -EPROTO: no such list, or one that does not advance. -ENOMEM. */
int known_take(struct known *known, const struct msg_list_result *list);
/* What the next packet begins after. */
struct msg_str known_after(const struct known *known);
void known_end(struct known *known);
bool known_has_changes(const struct known *known);
/* Takes the next name that has changed. Returns its generation, 0 if it has gone. */
uint64_t known_next(struct known *known, char ret_name[static PROTO_NAME_MAX + 1]);
