/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of a record in a packet, by the descriptors of record.h. It is computed without encoding
 * the record, since every open needs it.
 */
#include "record.h"

/* The share of one MessagePack object in a packet, in bytes: a packet has at most PROTO_ITEMS_MAX.
 * */
#define ITEM_SHARE (PROTO_PACKET_MAX / PROTO_ITEMS_MAX)

struct size {
    size_t bytes, items;
};

/* An object of n bytes. */
static void
size_add_object(struct size *size, size_t n)
{
    size->bytes += n;
    size->items++;
}

static size_t
u64_bytes(uint64_t value)
{
    if (value < 0x80)
        return 1;
    if (value <= UINT8_MAX)
        return 2;
    if (value <= UINT16_MAX)
        return 3;
    return value <= UINT32_MAX ? 5 : 9;
}

static size_t
i64_bytes(int64_t value)
{
    if (value >= 0)
        return u64_bytes((uint64_t)value);
    if (value >= -32)
        return 1;
    if (value >= INT8_MIN)
        return 2;
    if (value >= INT16_MIN)
        return 3;
    return value >= INT32_MIN ? 5 : 9;
}

static size_t
str_bytes(size_t n)
{
    if (n < 32)
        return 1 + n;
    if (n <= UINT8_MAX)
        return 2 + n;
    return (n <= UINT16_MAX ? 3 : 5) + n;
}

/* The head of a list or a map of n. */
static size_t
head_bytes(size_t n)
{
    if (n < 16)
        return 1;
    return n <= UINT16_MAX ? 3 : 5;
}

static void add_record(struct size *size, const struct record *record, const void *value);

static void
add_value(struct size *size, const struct field *f, enum field_type type, const void *value)
{
    switch (type) {
    case FIELD_BOOL: size_add_object(size, 1); break;
    case FIELD_U64: size_add_object(size, u64_bytes(*(const uint64_t *)value)); break;
    case FIELD_I64: size_add_object(size, i64_bytes(*(const int64_t *)value)); break;
    case FIELD_RECORD: add_record(size, f->of, value); break;
    default: size_add_object(size, str_bytes(((const struct msg_str *)value)->n)); break;
    }
}

static void
add_list(struct size *size, const struct field *f, const void *record)
{
    size_t step = field_element_size(f);
    uint32_t n;
    const char *element = field_list(f, record, &n);

    size_add_object(size, head_bytes(n));
    for (uint32_t i = 0; i < n; i++, element += step)
        add_value(size, f, field_element(f), element);
}

static void
add_field(struct size *size, const struct field *f, const void *record)
{
    size_add_object(size, str_bytes(f->n_key));
    if (field_is_list(f))
        add_list(size, f, record);
    else
        add_value(size, f, f->type, (const char *)record + f->offset);
}

static void
add_record(struct size *size, const struct record *record, const void *value)
{
    const struct field *end = record->fields + record->n_fields;
    size_t n = 0;

    for (const struct field *f = record->fields; f < end; f++) {
        if (!field_is_written(f, value))
            continue;
        add_field(size, f, value);
        n++;
    }
    size_add_object(size, head_bytes(n));
}

static size_t
room(enum record_id id, const void *value)
{
    struct size size = {0};

    add_record(&size, &proto_records[id], value);
    return size.bytes > size.items * ITEM_SHARE ? size.bytes : size.items * ITEM_SHARE;
}

/* The record with an array's lease at its widest. */
static size_t
widest(enum record_id id, const void *value)
{
    struct msg_array array;

    if (id != RECORD_ID_array)
        return room(id, value);
    array = *(const struct msg_array *)value;
    array.lease = UINT64_MAX;
    return room(id, &array);
}

#define RECORD(r)                                       \
    size_t msg_##r##_size(const struct msg_##r *record) \
    {                                                   \
        return widest(RECORD_ID_##r, record);           \
    }
#include "messages.def"
