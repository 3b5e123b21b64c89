/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One loop over the packet's objects with a fixed stack of open containers. Work is linear in
 * the packet, but for the keys of one map, which are compared in pairs: PROTO_MAP_MAX and
 * PROTO_ITEMS_MAX bound them.
 */
#include "validate.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "proto_limits.h"
#include "utf8.h"

enum kind {
    KIND_REFUSED,
    KIND_SCALAR,
    KIND_STR,
    KIND_ARRAY,
    KIND_MAP
};

/* The meaning of a MessagePack object's first byte. */
struct form {
    uint8_t kind;
    uint8_t mask;  /* of the bits of the first byte that hold the count */
    uint8_t width; /* bytes that follow it: the value of a scalar, the count of others */
};

/* Bytes without an entry are refused: 0xc1, which no encoder writes, bin, ext and float. */
static const struct form forms[256] = {
    [0x00 ... 0x7f] = {KIND_SCALAR, 0, 0},
    [0x80 ... 0x8f] = {KIND_MAP, 0x0f, 0},
    [0x90 ... 0x9f] = {KIND_ARRAY, 0x0f, 0},
    [0xa0 ... 0xbf] = {KIND_STR, 0x1f, 0},
    [0xc0] = {KIND_SCALAR, 0, 0}, /* nil */
    [0xc2] = {KIND_SCALAR, 0, 0}, /* false */
    [0xc3] = {KIND_SCALAR, 0, 0}, /* true */
    [0xcc] = {KIND_SCALAR, 0, 1}, /* uint 8 to 64 */
    [0xcd] = {KIND_SCALAR, 0, 2},
    [0xce] = {KIND_SCALAR, 0, 4},
    [0xcf] = {KIND_SCALAR, 0, 8},
    [0xd0] = {KIND_SCALAR, 0, 1}, /* int 8 to 64 */
    [0xd1] = {KIND_SCALAR, 0, 2},
    [0xd2] = {KIND_SCALAR, 0, 4},
    [0xd3] = {KIND_SCALAR, 0, 8},
    [0xd9] = {KIND_STR, 0, 1},
    [0xda] = {KIND_STR, 0, 2},
    [0xdb] = {KIND_STR, 0, 4},
    [0xdc] = {KIND_ARRAY, 0, 2},
    [0xdd] = {KIND_ARRAY, 0, 4},
    [0xde] = {KIND_MAP, 0, 2},
    [0xdf] = {KIND_MAP, 0, 4},
    [0xe0 ... 0xff] = {KIND_SCALAR, 0, 0},
};

struct key {
    uint16_t offset, n;
};

/* A container whose objects are being read. */
struct level {
    uint32_t n_left; /* objects still to come; a map's entry is two, the key first */
    bool map;
    uint8_t n_keys;
    struct key keys[PROTO_MAP_MAX];
};

struct validator {
    const uint8_t *start, *at, *end;
    uint32_t n_items;
    uint32_t depth;
    struct level levels[PROTO_DEPTH_MAX];
};

static uint32_t
read_count(const struct form *form, const uint8_t *head)
{
    switch (form->width) {
    case 0: return head[0] & form->mask;
    case 1: return head[1];
    case 2: return (uint32_t)head[1] << 8 | head[2];
    default:
        return (uint32_t)head[1] << 24 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 8 |
               head[4];
    }
}

static int
add_key(struct validator *v, struct level *level, const uint8_t *text, uint32_t n)
{
    for (uint32_t i = 0; i < level->n_keys; i++) {
        const struct key *key = &level->keys[i];
        if (key->n == n && memcmp(v->start + key->offset, text, n) == 0)
            return -EPROTO;
    }
    level->keys[level->n_keys++] = (struct key){(uint16_t)(text - v->start), (uint16_t)n};
    return 0;
}

/* key_of: the map that this string is a key of, or NULL. */
static int
take_str(struct validator *v, uint32_t n, struct level *key_of)
{
    const uint8_t *text = v->at;

    if (n > (size_t)(v->end - text) || utf8_prefix(text, n) != n)
        return -EPROTO;
    v->at += n;
    return key_of ? add_key(v, key_of, text, n) : 0;
}

static int
open_container(struct validator *v, uint32_t n, bool map)
{
    if (v->depth == PROTO_DEPTH_MAX || (map && n > PROTO_MAP_MAX))
        return -EPROTO;
    uint32_t n_objects = map ? 2 * n : n;
    if (n_objects > (size_t)(v->end - v->at))
        return -EPROTO;
    struct level *level = &v->levels[v->depth++];
    level->n_left = n_objects;
    level->map = map;
    level->n_keys = 0;
    return 0;
}

static int
take_object(struct validator *v, struct level *key_of)
{
    const uint8_t *head = v->at;

    if (head == v->end || ++v->n_items > PROTO_ITEMS_MAX)
        return -EPROTO;
    const struct form *form = &forms[*head];
    if (form->width >= v->end - head || (key_of && form->kind != KIND_STR))
        return -EPROTO;
    v->at += 1 + form->width;
    switch (form->kind) {
    case KIND_SCALAR: return 0;
    case KIND_STR: return take_str(v, read_count(form, head), key_of);
    case KIND_ARRAY: return open_container(v, read_count(form, head), false);
    case KIND_MAP: return open_container(v, read_count(form, head), true);
    default: return -EPROTO;
    }
}

/* Counts the next object of the innermost container. Returns the container if the object is a key
 * there, else NULL. */
static struct level *
next_key_of(struct validator *v)
{
    if (v->depth == 0)
        return NULL;
    struct level *level = &v->levels[v->depth - 1];
    return level->n_left-- % 2 == 0 && level->map ? level : NULL;
}

int
proto_validate(const void *packet, size_t n)
{
    struct validator v; /* not zeroed, which would cost 2 KiB: a level is set when it opens */

    if (n > PROTO_PACKET_MAX)
        return -EPROTO;
    v.start = v.at = packet;
    v.end = v.start + n;
    v.n_items = v.depth = 0;
    do {
        int r = take_object(&v, next_key_of(&v));
        if (r < 0)
            return r;
        while (v.depth > 0 && v.levels[v.depth - 1].n_left == 0)
            v.depth--;
    } while (v.depth > 0);
    return v.at == v.end ? 0 : -EPROTO;
}
