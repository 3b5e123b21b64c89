/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors of every record and method, made from messages.def. */
#include "record.h"

#define REQUIRED_REQ true
#define REQUIRED_OPT false
#define REQUIRED_ALL false
#define ALWAYS_REQ   true
#define ALWAYS_OPT   false
#define ALWAYS_ALL   true

#define N_OFFSET_BOOL 0
#define N_OFFSET_U64  0
#define N_OFFSET_I64  0
#define N_OFFSET_STR  0
#define N_OFFSET_I64S offsetof(struct msg_i64s, n)
#define N_OFFSET_U64S offsetof(struct msg_u64s, n)
#define N_OFFSET_STRS offsetof(struct msg_strs, n)

#define RECORD(r)   static const struct field fields_##r[] = {
#define FIELD(...)  DESCRIBE(false, __VA_ARGS__)
#define SECRET(...) DESCRIBE(true, __VA_ARGS__)
#define DESCRIBE(is_secret, r, field_type, field_name, presence, ...) \
    {.key = #field_name,                                              \
     .n_key = sizeof(#field_name) - 1,                                \
     .required = REQUIRED_##presence,                                 \
     .always = ALWAYS_##presence,                                     \
     .secret = is_secret,                                             \
     .type = FIELD_##field_type,                                      \
     .offset = offsetof(struct msg_##r, field_name),                  \
     .n_offset = offsetof(struct msg_##r, field_name) + N_OFFSET_##field_type},
#define NESTED(r, element, field_name, ...)                \
    {.key = #field_name,                                   \
     .n_key = sizeof(#field_name) - 1,                     \
     .type = FIELD_RECORDS,                                \
     .offset = offsetof(struct msg_##r, field_name),       \
     .n_offset = offsetof(struct msg_##r, n_##field_name), \
     .of = &proto_records[RECORD_ID_##element]},
#define END_RECORD(r) \
    }                 \
    ;                 \
    _Static_assert(ARRAY_SIZE(fields_##r) <= PROTO_MAP_MAX, "more fields than a map may have");
#include "messages.def"

const struct record proto_records[N_RECORD_IDS] = {
#define RECORD(r)                                          \
    [RECORD_ID_##r] = {.name = #r,                         \
                       .size = sizeof(struct msg_##r),     \
                       .n_fields = ARRAY_SIZE(fields_##r), \
                       .fields = fields_##r},
#include "messages.def"
};

const struct method proto_methods[MSG_N_METHODS] = {
#define REQUEST(NAME, method_name, params_record, result_record)         \
    [MSG_##NAME] = {.name = #method_name,                                \
                    .n_name = sizeof(#method_name) - 1,                  \
                    .params = &proto_records[RECORD_ID_##params_record], \
                    .result = &proto_records[RECORD_ID_##result_record]},
#define NOTIFY(NAME, method_name, params_record)        \
    [MSG_##NAME] = {.name = #method_name,               \
                    .n_name = sizeof(#method_name) - 1, \
                    .params = &proto_records[RECORD_ID_##params_record]},
#include "messages.def"
};

size_t
field_element_size(const struct field *f)
{
    switch (f->type) {
    case FIELD_I64S: return sizeof(int64_t);
    case FIELD_U64S: return sizeof(uint64_t);
    case FIELD_STRS: return sizeof(struct msg_str);
    case FIELD_RECORDS: return f->of->size;
    default: return 0; /* not a list */
    }
}

bool
field_is_written(const struct field *f, const void *record)
{
    const void *value = (const char *)record + f->offset;
    uint32_t n;

    if (f->always)
        return true;
    switch (f->type) {
    case FIELD_BOOL: return *(const bool *)value;
    case FIELD_U64: return *(const uint64_t *)value != 0;
    case FIELD_I64: return *(const int64_t *)value != 0;
    case FIELD_STR: return ((const struct msg_str *)value)->p != NULL;
    default: return field_list(f, record, &n) != NULL;
    }
}
