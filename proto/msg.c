/* SPDX-License-Identifier: Apache-2.0 */
/* The envelope: [0, id, method, params], [1, id, error, result], [2, method, params]. */
#include "msg.h"

#include "base/packet.h"
#include "decode.h"
#include "validate.h"

_Static_assert(PROTO_PACKET_MAX == PACKET_MAX && PROTO_FDS_MAX == PACKET_FDS_MAX, "one limit");

/* Room for any record: a failed decode leaves the caller's struct alone. */
union any_record {
    char none;
#define RECORD(r) struct msg_##r r##_;
#include "messages.def"
};

bool
msg_str_eq(struct msg_str s, const char *t)
{
    return s.p && strlen(t) == s.n && memcmp(s.p, t, s.n) == 0;
}

const char *
msg_method_name(enum msg_method method)
{
    return method < MSG_N_METHODS ? proto_methods[method].name : NULL;
}

bool
msg_method_is_request(enum msg_method method)
{
    return method < MSG_N_METHODS && proto_methods[method].result;
}

static enum msg_method
find_method(struct msg_str name)
{
    for (uint32_t i = 0; i < MSG_N_METHODS; i++) {
        const struct method *method = &proto_methods[i];
        if (name.n == method->n_name && memcmp(name.p, method->name, name.n) == 0)
            return (enum msg_method)i;
    }
    return MSG_UNKNOWN;
}

static int
parse_id(struct msg *m, const msgpack_object *o)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > UINT32_MAX)
        return -EPROTO;
    m->id = (uint32_t)o->via.u64;
    return 0;
}

/* parts: method, params */
static int
parse_call(struct msg *m, const msgpack_object *parts)
{
    if (parts[0].type != MSGPACK_OBJECT_STR || parts[1].type != MSGPACK_OBJECT_MAP)
        return -EPROTO;
    m->method_name = (struct msg_str){parts[0].via.str.ptr, parts[0].via.str.size};
    m->method = find_method(m->method_name);
    m->body = &parts[1];
    return 0;
}

static int
parse_error(struct msg *m, const msgpack_object *o)
{
    struct msg_error error;
    int r = decode_record(m->zone, &proto_records[RECORD_ID_error], o, &error);
    if (r < 0)
        return r;
    if (error.code == PROTO_OK || error.code > UINT32_MAX || error.cuda < INT32_MIN ||
        error.cuda > INT32_MAX)
        return -EPROTO;
    m->error = (uint32_t)error.code;
    m->error_text = error.text;
    m->error_cuda = (int32_t)error.cuda;
    m->error_left = error.left;
    return 0;
}

/* parts: error, result; one of them is nil */
static int
parse_outcome(struct msg *m, const msgpack_object *parts)
{
    m->method = MSG_UNKNOWN; /* only the caller knows what it has asked */
    if (parts[0].type != MSGPACK_OBJECT_NIL)
        return parts[1].type == MSGPACK_OBJECT_NIL ? parse_error(m, &parts[0]) : -EPROTO;
    if (parts[1].type != MSGPACK_OBJECT_MAP)
        return -EPROTO;
    m->body = &parts[1];
    return 0;
}

static int
parse_envelope(struct msg *m)
{
    const msgpack_object *root = &m->root;
    if (root->type != MSGPACK_OBJECT_ARRAY || root->via.array.size < 3)
        return -EPROTO;
    const msgpack_object *parts = root->via.array.ptr;
    if (parts[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER || parts[0].via.u64 > MSG_NOTIFY)
        return -EPROTO;

    m->type = (enum msg_type)parts[0].via.u64;
    if (root->via.array.size != (m->type == MSG_NOTIFY ? 3 : 4))
        return -EPROTO;
    if (m->type == MSG_NOTIFY)
        return parse_call(m, parts + 1);
    int r = parse_id(m, &parts[1]);
    if (r < 0)
        return r;
    return m->type == MSG_REQUEST ? parse_call(m, parts + 2) : parse_outcome(m, parts + 2);
}

/* msgpack_unpack_next() would make a zone of 8 KiB for each packet, which costs more than all other
 * work for a small packet. The first chunk of this zone comes from malloc's per-thread cache. */
#define ZONE_CHUNK_SIZE 960

static int
unpack(struct msg *m, const void *packet, size_t n)
{
    size_t n_read = 0;

    m->zone = msgpack_zone_new(ZONE_CHUNK_SIZE);
    if (!m->zone)
        return -ENOMEM;
    switch (msgpack_unpack(packet, n, &n_read, m->zone, &m->root)) {
    case MSGPACK_UNPACK_SUCCESS: return n_read == n ? 0 : -EPROTO;
    case MSGPACK_UNPACK_NOMEM_ERROR: return -ENOMEM;
    default: return -EPROTO;
    }
}

int
msg_parse(struct msg *ret, const void *packet, size_t n)
{
    _cleanup_(msg_deinit) struct msg m = {0};

    int r = proto_validate(packet, n);
    if (r < 0)
        return r;
    r = unpack(&m, packet, n);
    if (r < 0)
        return r;
    r = parse_envelope(&m);
    if (r < 0)
        return r;
    *ret = m;
    m.zone = NULL; /* moved */
    return 0;
}

void
msg_deinit(struct msg *m)
{
    if (m->zone)
        msgpack_zone_free(m->zone);
    m->zone = NULL;
    m->body = NULL;
}

static int
decode_body(struct msg *m, const struct record *record, void *ret)
{
    union any_record value;

    int r = decode_record(m->zone, record, m->body, &value);
    if (r < 0)
        return r;
    memcpy(ret, &value, record->size);
    return 0;
}

int
msg_decode_params(struct msg *m, void *ret_params)
{
    if (m->type == MSG_RESPONSE || m->method >= MSG_N_METHODS)
        return -EPROTO;
    return decode_body(m, proto_methods[m->method].params, ret_params);
}

int
msg_decode_result(struct msg *m, enum msg_method method, void *ret_result)
{
    if (m->type != MSG_RESPONSE || !m->body || !msg_method_is_request(method))
        return -EPROTO;
    return decode_body(m, proto_methods[method].result, ret_result);
}
