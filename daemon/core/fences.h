/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a bracket's stream has to wait for: the fences of its arrays, as a reply.
 */
#pragma once

#include "refusal.h"

struct bracket;
struct core;

/* The reply to a begin, or to what asks for more fences: those of the bracket's arrays after a
 * place, as many as fit. -ENOMEM or REFUSED: nothing was sent. */
int fences_reply(struct core *core, struct bracket *bracket, uint32_t request,
                 enum msg_method method, uint64_t after_page, uint64_t after_slot,
                 struct refusal *r);
