/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around params and results, and who may decode what. */
#include "caid_test.h"

#include "msg.h"

#define PACKET(bytes) (bytes), sizeof(bytes) - 1

static int
parse_once(const void *packet, size_t n)
{
    struct msg m;
    int r = msg_parse(&m, packet, n);
    if (r == 0)
        msg_deinit(&m);
    return r;
}

CAID_TEST(envelope, envelopes_that_are_well_formed)
{
    cr_assert_eq(parse_once(PACKET("\x94\x00\x07\xa4ping\x80")), 0);
    cr_assert_eq(parse_once(PACKET("\x94\x00\xce\xff\xff\xff\xff\xa4ping\x80")), 0);
    cr_assert_eq(parse_once(PACKET("\x94\x00\x07\xa4"
                                   "gnip\x80")),
                 0); /* unknown: no violation */
    cr_assert_eq(parse_once(PACKET("\x93\x02\xa5"
                                   "close\x80")),
                 0);
    cr_assert_eq(parse_once(PACKET("\x94\x01\x07\xc0\x80")), 0);
    cr_assert_eq(parse_once(PACKET("\x94\x01\x07\x82\xa4"
                                   "code\x06\xa4text\xa0\xc0")),
                 0);
}

CAID_TEST(envelope, envelopes_that_are_malformed)
{
    static const struct {
        const char *what, *bytes;
        size_t n;
    } cases[] = {
        {"empty", PACKET("")},
        {"no array", PACKET("\x80")},
        {"empty array", PACKET("\x90")},
        {"type only", PACKET("\x91\x00")},
        {"unknown type", PACKET("\x94\x03\x07\xa4ping\x80")},
        {"negative type", PACKET("\x94\xff\x07\xa4ping\x80")},
        {"type is no number", PACKET("\x94\xc0\x07\xa4ping\x80")},
        {"request without params", PACKET("\x93\x00\x07\xa4ping")},
        {"request with more", PACKET("\x95\x00\x07\xa4ping\x80\xc0")},
        {"notification with an id", PACKET("\x94\x02\x07\xa5"
                                           "close\x80")},
        {"id is negative", PACKET("\x94\x00\xff\xa4ping\x80")},
        {"id of 33 bits", PACKET("\x94\x00\xcf\0\0\0\1\0\0\0\0\xa4ping\x80")},
        {"id is no number", PACKET("\x94\x00\xa1"
                                   "7\xa4ping\x80")},
        {"method is no string", PACKET("\x94\x00\x07\x01\x80")},
        {"params is no map", PACKET("\x94\x00\x07\xa4ping\x90")},
        {"params is nil", PACKET("\x94\x00\x07\xa4ping\xc0")},
        {"result is no map", PACKET("\x94\x01\x07\xc0\x90")},
        {"neither error nor result", PACKET("\x94\x01\x07\xc0\xc0")},
        {"error and result", PACKET("\x94\x01\x07\x82\xa4"
                                    "code\x06\xa4text\xa0\x80")},
        {"error is no map", PACKET("\x94\x01\x07\x06\xc0")},
        {"error without code", PACKET("\x94\x01\x07\x81\xa4text\xa0\xc0")},
        {"error without text", PACKET("\x94\x01\x07\x81\xa4"
                                      "code\x06\xc0")},
        {"error 0", PACKET("\x94\x01\x07\x82\xa4"
                           "code\x00\xa4text\xa0\xc0")},
        {"error of 33 bits", PACKET("\x94\x01\x07\x82\xa4"
                                    "code\xcf\0\0\0\1\0\0\0\0\xa4text\xa0\xc0")},
        {"cuda below 32 bits", PACKET("\x94\x01\x07\x83\xa4"
                                      "code\x06\xa4text\xa0\xa4"
                                      "cuda\xd3\xff\xff\xff\xff\x7f\xff\xff\xff\xc0")},
        {"cuda of 33 bits", PACKET("\x94\x01\x07\x83\xa4"
                                   "code\x06\xa4text\xa0\xa4"
                                   "cuda\xcf\0\0\0\1\0\0\0\0\xc0")},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        cr_assert_eq(parse_once(cases[i].bytes, cases[i].n), -EPROTO, "%s", cases[i].what);
}

CAID_TEST(envelope, a_failure_leaves_the_outputs_alone)
{
    static const char bad_list[] = "\x93\x02\xa5"
                                   "close\x81\xa6leases\x92\x01\xff";
    struct msg m, before;
    struct msg_close_params params, params_before;

    memset(&m, 0x5a, sizeof(m));
    before = m;
    cr_assert_eq(msg_parse(&m, "\x91", 1), -EPROTO);
    cr_assert_eq(memcmp(&m, &before, sizeof(m)), 0);

    memset(&params, 0x5a, sizeof(params));
    params_before = params;
    cr_assert_eq(msg_parse(&m, bad_list, sizeof(bad_list) - 1), 0);
    cr_assert_eq(msg_decode_params(&m, &params), -EPROTO);
    cr_assert_eq(memcmp(&params, &params_before, sizeof(params)), 0);
    msg_deinit(&m);
}

CAID_TEST(envelope, only_what_a_message_has_can_be_decoded)
{
    struct msg m;
    uint64_t space[64];

    cr_assert_eq(msg_parse(&m, PACKET("\x94\x00\x07\xa4"
                                      "gnip\x80")),
                 0);
    cr_assert_eq(m.method, MSG_UNKNOWN);
    cr_assert(msg_str_eq(m.method_name, "gnip"));
    cr_assert_eq(msg_decode_params(&m, space), -EPROTO, "unknown method");
    cr_assert_eq(msg_decode_result(&m, MSG_PING, space), -EPROTO, "a request has no result");
    msg_deinit(&m);

    cr_assert_eq(msg_parse(&m, PACKET("\x94\x01\x07\xc0\x80")), 0);
    cr_assert_eq(msg_decode_result(&m, MSG_PING, space), 0);
    cr_assert_eq(msg_decode_params(&m, space), -EPROTO, "a response has no params");
    cr_assert_eq(msg_decode_result(&m, MSG_CLOSE, space), -EPROTO, "not a request");
    cr_assert_eq(msg_decode_result(&m, MSG_UNKNOWN, space), -EPROTO);
    msg_deinit(&m);

    cr_assert_eq(msg_parse(&m, PACKET("\x94\x01\x07\x82\xa4"
                                      "code\x06\xa4text\xa0\xc0")),
                 0);
    cr_assert_eq(msg_decode_result(&m, MSG_PING, space), -EPROTO, "refused");
    msg_deinit(&m);
}

CAID_TEST(envelope, names_of_methods)
{
    cr_assert_str_eq(msg_method_name(MSG_HELLO), "hello");
    cr_assert_null(msg_method_name(MSG_UNKNOWN));
    cr_assert(msg_method_is_request(MSG_OPEN));
    cr_assert_not(msg_method_is_request(MSG_CLOSE));
    cr_assert_not(msg_method_is_request(MSG_UNKNOWN));
}

CAID_TEST(envelope, strings_compare_whole)
{
    cr_assert(msg_str_eq(MSG_STR("rw"), "rw"));
    cr_assert(msg_str_eq(MSG_STR(""), ""));
    cr_assert_not(msg_str_eq(MSG_STR("rw"), "r"));
    cr_assert_not(msg_str_eq(MSG_STR("r"), "rw"));
    cr_assert_not(msg_str_eq((struct msg_str){"r\0w", 3}, "r"));
    cr_assert_not(msg_str_eq((struct msg_str){0}, ""), "absent is not empty");
}
