/* SPDX-License-Identifier: Apache-2.0 */
/* Structs to packets, by the descriptors of record.h. */
#include <assert.h>

#include "record.h"
#include "utf8.h"

#define ERROR_TEXT_MAX 1024
#define BUF_FIRST_SIZE 512
#define FIXSTR         0xa0 /* MessagePack's strings of at most FIXSTR_MAX bytes */
#define FIXSTR_MAX     31

/* An encoder's output. The first error stays, and later writes are dropped. */
struct writer {
    struct msg_buf *buf;
    msgpack_packer packer;
    size_t n_bytes;
    size_t n_items;
    int error;
};

/* Makes room for n_bytes more. A packet has at most PROTO_PACKET_MAX bytes. */
static int
make_room(struct msg_buf *b, size_t n_bytes, size_t n)
{
    size_t capacity = b->capacity ? b->capacity : BUF_FIRST_SIZE;

    if (n > PROTO_PACKET_MAX - n_bytes)
        return -EMSGSIZE;
    while (capacity < n_bytes + n)
        capacity *= 2;
    capacity = capacity < PROTO_PACKET_MAX ? capacity : PROTO_PACKET_MAX;
    uint8_t *data = realloc(b->data, capacity);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->capacity = capacity;
    return 0;
}

static int
on_write(void *user, const char *data, size_t n)
{
    struct writer *w = user;

    if (w->error == 0 && n > w->buf->capacity - w->n_bytes)
        w->error = make_room(w->buf, w->n_bytes, n);
    if (w->error < 0 || n == 0)
        return w->error;
    memcpy(w->buf->data + w->n_bytes, data, n);
    w->n_bytes += n;
    return 0;
}

static void
writer_init(struct writer *w, struct msg_buf *buf)
{
    *w = (struct writer){.buf = buf};
    msgpack_packer_init(&w->packer, w, on_write);
}

static int
writer_finish(struct writer *w)
{
    if (w->error == 0 && w->n_items > PROTO_ITEMS_MAX)
        w->error = -EMSGSIZE;
    w->buf->n = w->error ? 0 : w->n_bytes;
    return w->error;
}

/* Writes one object by msgpack-c's function for `what`. */
#define PUT(w, what, ...) \
    ((void)((w)->n_items++, msgpack_pack_##what(&(w)->packer, ##__VA_ARGS__)))

static void
put_str(struct writer *w, const char *text, size_t n)
{
    PUT(w, str_with_body, text, n);
}

/* Keys are short, and about half of all output: head and text are written in one piece. */
static void
put_key(struct writer *w, const struct field *f)
{
    char text[1 + FIXSTR_MAX];

    assert(f->n_key <= FIXSTR_MAX);
    text[0] = (char)(FIXSTR | f->n_key);
    memcpy(text + 1, f->key, f->n_key);
    w->n_items++;
    on_write(w, text, 1 + (size_t)f->n_key);
}

static void put_record(struct writer *w, const struct record *record, const void *value);

static void
put_value(struct writer *w, const struct field *f, enum field_type type, const void *value)
{
    const struct msg_str *str = value;

    switch (type) {
    case FIELD_BOOL: *(const bool *)value ? PUT(w, true) : PUT(w, false); break;
    case FIELD_U64: PUT(w, uint64, *(const uint64_t *)value); break;
    case FIELD_I64: PUT(w, int64, *(const int64_t *)value); break;
    case FIELD_RECORD: put_record(w, f->of, value); break;
    default: put_str(w, str->p, str->n); break;
    }
}

static void
put_list(struct writer *w, const struct field *f, const void *record)
{
    size_t size = field_element_size(f);
    uint32_t n;
    const char *element = field_list(f, record, &n);

    PUT(w, array, n);
    for (uint32_t i = 0; i < n && w->error == 0; i++, element += size)
        put_value(w, f, field_element(f), element);
}

static void
put_field(struct writer *w, const struct field *f, const void *record)
{
    put_key(w, f);
    if (field_is_list(f))
        put_list(w, f, record);
    else
        put_value(w, f, f->type, (const char *)record + f->offset);
}

static void
put_record(struct writer *w, const struct record *record, const void *value)
{
    uint64_t written = 0; /* a bit for each field: PROTO_MAP_MAX bounds them */

    for (uint32_t i = 0; i < record->n_fields; i++)
        written |= (uint64_t)field_is_written(&record->fields[i], value) << i;
    PUT(w, map, (size_t)__builtin_popcountll(written));
    for (; written; written &= written - 1)
        put_field(w, &record->fields[__builtin_ctzll(written)], value);
}

static void
put_method(struct writer *w, const struct method *method, const void *params)
{
    put_str(w, method->name, method->n_name);
    put_record(w, method->params, params);
}

int
msg_encode_request(struct msg_buf *b, uint32_t id, enum msg_method method, const void *params)
{
    struct writer w;

    if (!msg_method_is_request(method))
        return -EINVAL;
    writer_init(&w, b);
    PUT(&w, array, 4);
    PUT(&w, uint64, MSG_REQUEST);
    PUT(&w, uint64, id);
    put_method(&w, &proto_methods[method], params);
    return writer_finish(&w);
}

int
msg_encode_notify(struct msg_buf *b, enum msg_method method, const void *params)
{
    struct writer w;

    if (method >= MSG_N_METHODS || msg_method_is_request(method))
        return -EINVAL;
    writer_init(&w, b);
    PUT(&w, array, 3);
    PUT(&w, uint64, MSG_NOTIFY);
    put_method(&w, &proto_methods[method], params);
    return writer_finish(&w);
}

static void
begin_response(struct writer *w, struct msg_buf *b, uint32_t id)
{
    writer_init(w, b);
    PUT(w, array, 4);
    PUT(w, uint64, MSG_RESPONSE);
    PUT(w, uint64, id);
}

int
msg_encode_result(struct msg_buf *b, uint32_t id, enum msg_method method, const void *result)
{
    struct writer w;

    if (!msg_method_is_request(method))
        return -EINVAL;
    begin_response(&w, b, id);
    PUT(&w, nil);
    put_record(&w, proto_methods[method].result, result);
    return writer_finish(&w);
}

int
msg_encode_error(struct msg_buf *b, uint32_t id, const struct msg_error *error)
{
    struct writer w;
    /* The text is cut at a character's end, also if it was cut inside one before: else the other
     * side's validator would refuse the packet. */
    struct msg_error cut = *error;

    cut.text.n = (uint32_t)utf8_prefix(error->text.p, error->text.n < ERROR_TEXT_MAX
                                                          ? error->text.n
                                                          : ERROR_TEXT_MAX);
    begin_response(&w, b, id);
    put_record(&w, &proto_records[RECORD_ID_error], &cut);
    PUT(&w, nil);
    return writer_finish(&w);
}

void
msg_buf_deinit(struct msg_buf *b)
{
    free(b->data);
    *b = (struct msg_buf){0};
}
