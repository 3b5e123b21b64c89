/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate before msgpack-c: one pass, no allocation. A packet passes when it is exactly one
 * MessagePack object that is nested at most PROTO_DEPTH_MAX deep, holds at most PROTO_ITEMS_MAX
 * objects, whose every count and length is no more than the bytes that are left, whose map keys
 * are strings without repeats in one map, whose maps have at most PROTO_MAP_MAX entries, whose
 * strings are UTF-8, and which has no bin, ext or float. (Six bytes can make msgpack-c reserve
 * gigabytes: an array32 of 2^32-1.)
 */
#pragma once

#include <stddef.h>

/* 0 or -EPROTO */
int proto_validate(const void *packet, size_t n);
