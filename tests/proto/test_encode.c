/* SPDX-License-Identifier: Apache-2.0 */
/* What the encoders write, leave out and refuse; the table of errors. */
#include "caid_test.h"

#include "msg.h"

static void
check_error_text(const char *text, const char *expected)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    struct msg m;

    cr_assert_eq(msg_encode_error(&b, UINT32_MAX,
                                  &(struct msg_error){.code = PROTO_ERR_DRIVER,
                                                      .text = MSG_STR(text),
                                                      .cuda = -700,
                                                      .left = 5}),
                 0);
    cr_assert_eq(msg_parse(&m, b.data, b.n), 0);
    cr_assert_eq(m.type, MSG_RESPONSE);
    cr_assert_eq(m.id, UINT32_MAX);
    cr_assert_eq(m.error, PROTO_ERR_DRIVER);
    cr_assert_eq(m.error_cuda, -700);
    cr_assert_eq(m.error_left, 5);
    cr_assert_eq(m.error_text.n, strlen(expected));
    cr_assert(msg_str_eq(m.error_text, expected));
    msg_deinit(&m);
}

CAID_TEST(encode, error_texts_end_at_a_character)
{
    char text[2048], expected[1025] = {0};

    check_error_text("no such name \"caf\xc3\xa9\"", "no such name \"caf\xc3\xa9\"");
    check_error_text("", "");
    check_error_text("cut before: \xe2\x82", "cut before: ");
    memset(text, 'x', sizeof(text));
    memcpy(text + 1022, "\xe2\x82\xac", 3); /* the limit of 1,024 goes through it */
    text[2047] = '\0';
    memset(expected, 'x', 1022);
    check_error_text(text, expected);
}

/* As the other end has the params of a request; m is the caller's to end. */
static void
pass(struct msg_buf *b, struct msg *m, enum msg_method method, const void *params, void *ret)
{
    cr_assert_eq(msg_encode_request(b, 0, method, params), 0);
    cr_assert_eq(msg_parse(m, b->data, b->n), 0);
    cr_assert_eq(msg_decode_params(m, ret), 0);
}

CAID_TEST(encode, absent_and_empty_are_told_apart)
{
    static const int64_t none;
    struct msg_create_params sent = {.typestr = MSG_STR("|u1"), .shape = {&none, 0}}, got;
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    struct msg m;

    pass(&b, &m, MSG_CREATE, &sent, &got);
    cr_assert_null(got.strides.v);
    cr_assert_null(got.name.p);
    cr_assert_not_null(got.shape.v);
    cr_assert_eq(got.shape.n, 0);
    msg_deinit(&m);

    sent.strides = sent.shape;
    sent.name = MSG_STR("");
    pass(&b, &m, MSG_CREATE, &sent, &got);
    cr_assert_not_null(got.strides.v);
    cr_assert_eq(got.strides.n, 0);
    cr_assert_not_null(got.name.p);
    cr_assert_eq(got.name.n, 0);
    msg_deinit(&m);
}

CAID_TEST(encode, required_fields_are_written_when_unset)
{
    static const struct msg_open_params unset;
    struct msg_open_params got;
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    struct msg m;

    pass(&b, &m, MSG_OPEN, &unset, &got);
    cr_assert_eq(got.names.n, 0);
    cr_assert_eq(got.mode.n, 0);
    msg_deinit(&m);
}

CAID_TEST(encode, a_method_of_the_other_kind_is_refused)
{
    static const struct msg_close_params params;
    struct msg_buf b = {0};

    cr_assert_eq(msg_encode_request(&b, 0, MSG_CLOSE, &params), -EINVAL);
    cr_assert_eq(msg_encode_result(&b, 0, MSG_CLOSE, &params), -EINVAL);
    cr_assert_eq(msg_encode_notify(&b, MSG_PING, NULL), -EINVAL);
    cr_assert_eq(msg_encode_notify(&b, MSG_UNKNOWN, NULL), -EINVAL);
    cr_assert_eq(msg_encode_request(&b, 0, MSG_UNKNOWN, NULL), -EINVAL);
    cr_assert_null(b.data);
}

CAID_TEST(encode, packets_have_a_largest_size)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    _cleanup_free_ char *text = calloc(1, PROTO_PACKET_MAX + 1);
    struct msg_name_params params = {.name = {text, PROTO_PACKET_MAX}};
    struct msg m;

    memset(text, 'x', PROTO_PACKET_MAX);
    cr_assert_eq(msg_encode_request(&b, 1, MSG_SHOW, &params), -EMSGSIZE);
    cr_assert_eq(b.n, 0);
    params.name.n = 60000;
    cr_assert_eq(msg_encode_request(&b, 1, MSG_SHOW, &params), 0);
    params.name.n += (uint32_t)(PROTO_PACKET_MAX - b.n);
    cr_assert_eq(msg_encode_request(&b, 1, MSG_SHOW, &params), 0);
    cr_assert_eq(b.n, PROTO_PACKET_MAX);
    cr_assert_leq(b.capacity, PROTO_PACKET_MAX);
    cr_assert_eq(msg_parse(&m, b.data, b.n), 0);
    msg_deinit(&m);
    params.name.n++;
    cr_assert_eq(msg_encode_request(&b, 1, MSG_SHOW, &params), -EMSGSIZE);
}

CAID_TEST(encode, packets_have_a_largest_count_of_objects)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    _cleanup_free_ uint64_t *leases = calloc(PROTO_ITEMS_MAX, sizeof(*leases));
    struct msg_close_params params = {.leases = {leases, PROTO_ITEMS_MAX - 6}};
    struct msg m;

    /* envelope, type, method, map, key, list */
    cr_assert_eq(msg_encode_notify(&b, MSG_CLOSE, &params), 0);
    cr_assert_eq(msg_parse(&m, b.data, b.n), 0);
    msg_deinit(&m);
    params.leases.n++;
    cr_assert_eq(msg_encode_notify(&b, MSG_CLOSE, &params), -EMSGSIZE);
}

CAID_TEST(encode, a_buffer_is_used_again)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    struct msg_name_params params = {.name = MSG_STR("weights")};

    cr_assert_eq(msg_encode_request(&b, 1, MSG_SHOW, &params), 0);
    size_t n = b.n;
    uint8_t *data = b.data;
    cr_assert_eq(msg_encode_request(&b, 1, MSG_SHOW, &params), 0);
    cr_assert_eq(b.n, n, "replaced, not appended");
    cr_assert_eq(b.data, data);
}

/* ---- the table of errors ---- */

CAID_TEST(encode, errors_are_known_by_number)
{
#define ERROR(name, number, err, text)                 \
    cr_assert_eq(PROTO_ERR_##name, number);            \
    cr_assert_str_eq(proto_error_name(number), #name); \
    cr_assert_str_eq(proto_error_text(number), text);  \
    cr_assert_eq(proto_error_errno(number), err);
#include "errors.def"
#undef ERROR
    cr_assert_null(proto_error_name(PROTO_OK));
    cr_assert_null(proto_error_text(UINT32_MAX));
    cr_assert_eq(proto_error_errno(UINT32_MAX), EIO);
}
