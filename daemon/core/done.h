/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a connection has had done that cannot be done twice: the last DONE_MAX requests that gave,
 * took or moved a name, or made a ticket, with what they were answered. They are recorded with what
 * they did; so a client that comes back (former.h) and asks again, since it has not had the answer,
 * has it now. Requests that nobody would notice twice are not among them.
 */
#pragma once

#include "core.h"

#define DONE_MAX 32 /* that a client may have under way at a time */

struct array;
struct conn;
struct refusal;

struct done {
    union {
        struct {
            uint64_t generation, part; /* of the answer, where there is one; CREATE: the array;
                       * STAGE_PARTS: the layout, and the first part */
        };

        uint64_t ticket[2]; /* TAKE */
    };

    uint64_t array;   /* TAKE: which was granted */
    uint32_t request; /* its number */
    uint16_t method;  /* 0: nothing was done */
    uint16_t readonly;
};

/* Before the answer. */
void done_put(struct core *core, struct conn *conn, const struct done *done);
void done_note(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
               uint64_t generation, uint64_t part);
/* What an earlier core has done by that request of conn's client, or NULL. */
const struct done *done_find(const struct conn *conn, uint32_t request, enum msg_method method);
/* Answers it. Not what grants an array: false. */
bool done_answer(struct core *core, struct conn *conn, const struct done *done);
