/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec: MessagePack-RPC packets to and from the structs that messages.def describes.
 *
 * A struct msg is one parsed packet. It borrows the packet's bytes, so the packet must outlive it.
 * It owns the storage of lists that msg_decode_*() fills in, which ends with msg_deinit().
 * msg_parse() runs the validator first, so that no packet can make msgpack-c reserve much more
 * memory than the packet's own size.
 *
 * Errors: -EPROTO for anything malformed, missing, of the wrong type or out of range; -ENOMEM.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <msgpack.h>

#include "base/macros.h"
#include "proto_limits.h"

/* Bytes of a packet: not terminated; p is NULL when the field is absent. */
struct msg_str {
    const char *p;
    uint32_t n;
};

struct msg_i64s {
    const int64_t *v; /* NULL when absent, not NULL when present and empty */
    uint32_t n;
};

struct msg_u64s {
    const uint64_t *v;
    uint32_t n;
};

struct msg_strs {
    const struct msg_str *v;
    uint32_t n;
};

#define MSG_STR(s) ((struct msg_str){(s), (uint32_t)strlen(s)})

/* A C string or, for NULL, a string that is not set. */
static inline struct msg_str
msg_str_opt(const char *s)
{
    return s ? MSG_STR(s) : (struct msg_str){0};
}

/* Whether s is the same bytes as the C string t. */
bool msg_str_eq(struct msg_str s, const char *t);

#define MSG_TYPE_BOOL bool
#define MSG_TYPE_U64  uint64_t
#define MSG_TYPE_I64  int64_t
#define MSG_TYPE_STR  struct msg_str
#define MSG_TYPE_I64S struct msg_i64s
#define MSG_TYPE_U64S struct msg_u64s
#define MSG_TYPE_STRS struct msg_strs

#define RECORD(r)                    struct msg_##r {
#define FIELD(r, type, name, p, ...) MSG_TYPE_##type name;
#define NESTED(r, of, name, ...) \
    const struct msg_##of *name; \
    uint32_t n_##name;
#define END_RECORD(r) \
    }                 \
    ;
#include "messages.def"

enum msg_method {
#define REQUEST(NAME, name, params, result) MSG_##NAME,
#define NOTIFY(NAME, name, params)          MSG_##NAME,
#include "messages.def"
    MSG_N_METHODS,
    MSG_UNKNOWN = MSG_N_METHODS,
};

/* Errors of the wire: the numbers of errors.def. */
enum proto_error {
    PROTO_OK = 0,
#define ERROR(name, number, err, text) PROTO_ERR_##name = number,
#include "errors.def"
#undef ERROR
};

/* The name ("NOT_FOUND"), text and errno of a number of errors.def; NULL or EIO for other numbers.
 * */
const char *proto_error_name(uint32_t code);
const char *proto_error_text(uint32_t code);
int proto_error_errno(uint32_t code);

/* In place of `abandon` in an end of resume_params.ended: the bracket has written nothing. */
#define MSG_ENDED_UNDONE 2

enum msg_type {
    MSG_REQUEST = 0,
    MSG_RESPONSE = 1,
    MSG_NOTIFY = 2
};

struct msg {
    enum msg_type type;
    uint32_t id;                /* requests and responses */
    enum msg_method method;     /* requests and notifications; MSG_UNKNOWN: not in the table */
    struct msg_str method_name; /* as in the packet */
    uint32_t error;             /* responses: 0 or a number of errors.def */
    struct msg_str error_text;
    int32_t error_cuda;  /* responses: the CUresult behind the error, or 0 */
    uint64_t error_left; /* responses: the part that is not restored yet, in millionths, or 0 */

    msgpack_zone *zone; /* storage of root, and of the lists that msg_decode_*() makes */
    msgpack_object root;
    const msgpack_object *body; /* params, or result of a response without error */
};

const char *msg_method_name(enum msg_method method);
bool msg_method_is_request(enum msg_method method);

/* packet must not change until msg_deinit(). */
int msg_parse(struct msg *ret, const void *packet, size_t n);
void msg_deinit(struct msg *m);

/* Fills the params struct (request, notification) or the result struct (response, by the method
 * that was asked) from the body. Strings and lists live as long as m. */
int msg_decode_params(struct msg *m, void *ret_params);
int msg_decode_result(struct msg *m, enum msg_method method, void *ret_result);

/*
 * A packet being written: a buffer of PROTO_PACKET_MAX bytes at most, grown as needed.
 * The encoders replace its content. -EMSGSIZE when the packet would have more than
 * PROTO_PACKET_MAX bytes or PROTO_ITEMS_MAX objects; -EINVAL for a method of the other kind.
 */
struct msg_buf {
    uint8_t *data;
    size_t n, capacity;
};

void msg_buf_deinit(struct msg_buf *b);
int msg_encode_request(struct msg_buf *b, uint32_t id, enum msg_method method,
                       const void *params);
int msg_encode_notify(struct msg_buf *b, enum msg_method method, const void *params);
int msg_encode_result(struct msg_buf *b, uint32_t id, enum msg_method method,
                      const void *result);
/* The error's text is cut at a character's end to fit 1,024 bytes. */
int msg_encode_error(struct msg_buf *b, uint32_t id, const struct msg_error *error);

/*
 * The room that one record takes in a packet: its exact bytes or, if that is more, its share of
 * PROTO_ITEMS_MAX in bytes. As long as the rooms of all records in a packet sum up to less than
 * PROTO_PACKET_MAX, neither limit is exceeded; so a server fills packets by it. msg_array_size()
 * takes the lease at its widest, since the lease is made after the room was computed.
 */
#define RECORD(r) size_t msg_##r##_size(const struct msg_##r *record);
#include "messages.def"

/*
 * Prints the params or the result of a method, or the error of MSG_UNKNOWN, as JSON on one line:
 * secrets are blanked, control characters escaped, long strings and lists cut. If it does not fit
 * even so, it says that. Returns the number of bytes, without a terminator.
 */
size_t msg_print(char *out, size_t max, enum msg_type type, enum msg_method method,
                 const void *value);
/* The value of a field of the params; NULL: there is no field of that name. */
const void *msg_param(enum msg_method method, const void *params, const char *key);
