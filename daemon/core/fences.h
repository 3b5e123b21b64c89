/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fences that a bracket's stream has to wait for, as a reply.
 */
#pragma once

#include "refusal.h"

struct bracket;
struct core;

/* Replies to BEGIN, or to FENCES, with the fences of the bracket's arrays after that place, as many
 * as fit. -ENOMEM or REFUSED: nothing was sent. */
int fences_reply(struct core *core, struct bracket *bracket, uint32_t request,
                 enum msg_method method, uint64_t after_page, uint64_t after_slot,
                 struct refusal *r);
