/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table messages.def as data: one constant descriptor for each record and field, which the
 * encoder, the decoder and the tests walk. Internal to the codec.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "msg.h"

enum field_type {
    FIELD_BOOL,
    FIELD_U64,
    FIELD_I64,
    FIELD_STR,
    FIELD_RECORD, /* only as the element of a list */
    FIELD_U64S,   /* from here on: lists, in the order of their elements' types */
    FIELD_I64S,
    FIELD_STRS,
    FIELD_RECORDS,
};

struct record;

struct field {
    const char *key;
    uint8_t n_key;
    bool required; /* a packet without it cannot be decoded */
    bool always;   /* it is written whatever its value is */
    bool secret;
    enum field_type type;
    uint16_t offset;         /* in the record's struct: of the value, or of a list's pointer */
    uint16_t n_offset;       /* lists: of the count */
    const struct record *of; /* FIELD_RECORDS: the elements */
};

struct record {
    const char *name;
    uint32_t size; /* of struct msg_<name> */
    uint32_t n_fields;
    const struct field *fields;
};

struct method {
    const char *name;
    uint32_t n_name;
    const struct record *params;
    const struct record *result; /* NULL: a notification */
};

enum record_id {
#define RECORD(r) RECORD_ID_##r,
#include "messages.def"
    N_RECORD_IDS,
};

extern const struct record proto_records[N_RECORD_IDS];
extern const struct method proto_methods[MSG_N_METHODS];

/* A list's pointer and count. The pointer is copied, not cast, since its type differs. */
static inline const void *
field_list(const struct field *f, const void *record, uint32_t *ret_n)
{
    const void *list;
    memcpy(&list, (const char *)record + f->offset, sizeof(list));
    memcpy(ret_n, (const char *)record + f->n_offset, sizeof(*ret_n));
    return list;
}

static inline void
field_set_list(const struct field *f, void *record, const void *list, uint32_t n)
{
    memcpy((char *)record + f->offset, &list, sizeof(list));
    memcpy((char *)record + f->n_offset, &n, sizeof(n));
}

static inline bool
field_is_list(const struct field *f)
{
    return f->type >= FIELD_U64S;
}

/* The type of a list's elements. */
static inline enum field_type
field_element(const struct field *f)
{
    return f->type - FIELD_U64S + FIELD_U64;
}

/* Size of one element of a list, as the struct holds it. */
size_t field_element_size(const struct field *f);

/* Whether a field goes into the packet: an optional one when it is set. */
bool field_is_written(const struct field *f, const void *record);
