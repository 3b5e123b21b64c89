/* SPDX-License-Identifier: Apache-2.0 */
/* The generic decoder, internal to the codec. */
#pragma once

#include "record.h"

/* Fills ret, a struct msg_<record>, from a map that the validator has passed. Lists are allocated
 * in zone, strings point into the packet. On failure ret is partly filled. -EPROTO, -ENOMEM. */
int decode_record(msgpack_zone *zone, const struct record *record, const msgpack_object *o,
                  void *ret);
