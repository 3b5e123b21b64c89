/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsed maps to structs, by the descriptors of record.h. Lists live in the zone of the
 * message; the validator's PROTO_ITEMS_MAX bounds them.
 */
#include "decode.h"

static int
decode_bool(const msgpack_object *o, bool *ret)
{
    if (o->type != MSGPACK_OBJECT_BOOLEAN)
        return -EPROTO;
    *ret = o->via.boolean;
    return 0;
}

static int
decode_u64(const msgpack_object *o, uint64_t *ret)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return -EPROTO;
    *ret = o->via.u64;
    return 0;
}

static int
decode_i64(const msgpack_object *o, int64_t *ret)
{
    if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        *ret = o->via.i64;
    else if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= INT64_MAX)
        *ret = (int64_t)o->via.u64;
    else
        return -EPROTO;
    return 0;
}

static int
decode_str(const msgpack_object *o, struct msg_str *ret)
{
    if (o->type != MSGPACK_OBJECT_STR)
        return -EPROTO;
    *ret = (struct msg_str){.p = o->via.str.size ? o->via.str.ptr : "", .n = o->via.str.size};
    return 0;
}

static int
decode_value(msgpack_zone *zone, const struct field *f, enum field_type type,
             const msgpack_object *o, void *ret)
{
    switch (type) {
    case FIELD_BOOL: return decode_bool(o, ret);
    case FIELD_U64: return decode_u64(o, ret);
    case FIELD_I64: return decode_i64(o, ret);
    case FIELD_RECORD: return decode_record(zone, f->of, o, ret);
    default: return decode_str(o, ret);
    }
}

static int
decode_list(msgpack_zone *zone, const struct field *f, const msgpack_object *o,
            void *ret_record)
{
    static const uint64_t empty; /* an empty list points here, and is not NULL */
    size_t size = field_element_size(f);

    if (o->type != MSGPACK_OBJECT_ARRAY)
        return -EPROTO;
    uint32_t n = o->via.array.size;
    if (n == 0) {
        field_set_list(f, ret_record, &empty, 0);
        return 0;
    }
    char *list = msgpack_zone_malloc(zone, n * size);
    if (!list)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        int r = decode_value(zone, f, field_element(f), &o->via.array.ptr[i], list + i * size);
        if (r < 0)
            return r;
    }
    field_set_list(f, ret_record, list, n);
    return 0;
}

static int
decode_field(msgpack_zone *zone, const struct field *f, const msgpack_object *o,
             void *ret_record)
{
    return field_is_list(f) ? decode_list(zone, f, o, ret_record)
                            : decode_value(zone, f, f->type, o, (char *)ret_record + f->offset);
}

/* The index of the field that key names, or n_fields. Keys mostly come in the table's order, so the
 * search starts at the field that is expected next. */
static uint32_t
find_field(const struct record *record, const msgpack_object *key, uint32_t expected)
{
    for (uint32_t i = 0; i < record->n_fields; i++) {
        uint32_t at = expected + i;
        if (at >= record->n_fields)
            at -= record->n_fields;
        const struct field *f = &record->fields[at];
        if (f->n_key == key->via.str.size && memcmp(f->key, key->via.str.ptr, f->n_key) == 0)
            return at;
    }
    return record->n_fields;
}

static int
check_required(const struct record *record, uint64_t seen)
{
    for (uint32_t i = 0; i < record->n_fields; i++) {
        if (record->fields[i].required && !(seen & UINT64_C(1) << i))
            return -EPROTO;
    }
    return 0;
}

int
decode_record(msgpack_zone *zone, const struct record *record, const msgpack_object *o,
              void *ret)
{
    uint64_t seen = 0; /* a bit for each field: PROTO_MAP_MAX bounds them */
    uint32_t expected = 0;

    if (o->type != MSGPACK_OBJECT_MAP)
        return -EPROTO;
    memset(ret, 0, record->size);
    for (uint32_t i = 0; i < o->via.map.size; i++) {
        const msgpack_object_kv *kv = &o->via.map.ptr[i];
        uint32_t at = find_field(record, &kv->key, expected);
        if (at == record->n_fields)
            continue; /* a field of a later version */
        int r = decode_field(zone, &record->fields[at], &kv->val, ret);
        if (r < 0)
            return r;
        seen |= UINT64_C(1) << at;
        expected = at + 1;
    }
    return check_required(record, seen);
}
