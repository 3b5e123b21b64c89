/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: what it refuses, and that msgpack-c has no trouble with what it passes. */
#include "caid_test.h"

#include <stdio.h>

#include "sample.h"
#include "validate.h"

#define N_MUTATIONS 150000

#define BYTES(bytes) (bytes), sizeof(bytes) - 1

struct packet {
    uint8_t *data;
    size_t n;
};

static void
packet_free(struct packet *p)
{
    free(p->data);
}

static void
packet_add(struct packet *p, const void *bytes, size_t n)
{
    p->data = realloc(p->data, p->n + n);
    memcpy(p->data + p->n, bytes, n);
    p->n += n;
}

static void
packet_add_byte(struct packet *p, uint8_t byte, size_t times)
{
    while (times-- > 0)
        packet_add(p, &byte, 1);
}

static void
packet_add_count(struct packet *p, uint8_t head, uint32_t n)
{
    uint8_t bytes[] = {head, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8),
                       (uint8_t)n};
    packet_add(p, bytes, sizeof(bytes));
}

#define _cleanup_packet_ _cleanup_(packet_free)

CAID_TEST(validate, every_first_byte)
{
    /* what follows a first byte, so that the packet is whole: zeroes */
    static const struct {
        int first, last;
        size_t n_more;
        bool allowed;
    } forms[] = {
        {0x00, 0x7f, 0, true},  {0x80, 0x80, 0, true},  {0x90, 0x90, 0, true},
        {0xa0, 0xa0, 0, true},  {0xa1, 0xa1, 1, true},  {0xbf, 0xbf, 31, true},
        {0x91, 0x91, 1, true},  {0x9f, 0x9f, 15, true}, {0x81, 0x81, 2, false},
        {0xc0, 0xc0, 0, true},  {0xc1, 0xc1, 0, false}, {0xc2, 0xc3, 0, true},
        {0xc4, 0xc4, 1, false}, {0xc5, 0xc5, 2, false}, {0xc6, 0xc6, 4, false},
        {0xc7, 0xc7, 2, false}, {0xc8, 0xc8, 3, false}, {0xc9, 0xc9, 5, false},
        {0xca, 0xca, 4, false}, {0xcb, 0xcb, 8, false}, {0xcc, 0xcc, 1, true},
        {0xcd, 0xcd, 2, true},  {0xce, 0xce, 4, true},  {0xcf, 0xcf, 8, true},
        {0xd0, 0xd0, 1, true},  {0xd1, 0xd1, 2, true},  {0xd2, 0xd2, 4, true},
        {0xd3, 0xd3, 8, true},  {0xd4, 0xd4, 2, false}, {0xd5, 0xd5, 3, false},
        {0xd6, 0xd6, 5, false}, {0xd7, 0xd7, 9, false}, {0xd8, 0xd8, 17, false},
        {0xd9, 0xd9, 1, true},  {0xda, 0xda, 2, true},  {0xdb, 0xdb, 4, true},
        {0xdc, 0xdc, 2, true},  {0xdd, 0xdd, 4, true},  {0xde, 0xde, 2, true},
        {0xdf, 0xdf, 4, true},  {0xe0, 0xff, 0, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        for (int head = forms[i].first; head <= forms[i].last; head++) {
            uint8_t packet[64] = {(uint8_t)head};
            size_t n = 1 + forms[i].n_more;
            cr_assert_eq(proto_validate(packet, n), forms[i].allowed ? 0 : -EPROTO, "%02x",
                         head);
            cr_assert_eq(proto_validate(packet, n + 1), -EPROTO, "%02x and a byte more", head);
            for (size_t cut = 0; cut < n; cut++)
                cr_assert_eq(proto_validate(packet, cut), -EPROTO, "%02x cut", head);
        }
    }
}

/* Inputs that make msgpack-c reserve gigabytes. */
CAID_TEST(validate, bombs)
{
    _cleanup_packet_ struct packet nested = {0};
    _cleanup_packet_ struct packet near = {0};

    cr_assert_eq(proto_validate(BYTES("\xdd\xff\xff\xff\xff")), -EPROTO);
    cr_assert_eq(proto_validate(BYTES("\xdf\xff\xff\xff\xff")), -EPROTO);
    cr_assert_eq(proto_validate(BYTES("\xdf\x80\x00\x00\x00")), -EPROTO, "twice 2^31 entries");
    cr_assert_eq(proto_validate(BYTES("\xdd\xff\xff\xff\xff\xc0")), -EPROTO);
    cr_assert_eq(proto_validate(BYTES("\xdb\xff\xff\xff\xff"
                                      "x")),
                 -EPROTO);
    cr_assert_eq(proto_validate(BYTES("\xdd\x05\xf5\xe1\x00")), -EPROTO, "100 million");
    cr_assert_eq(proto_validate(BYTES("\xdc\xff\xff")), -EPROTO);
    cr_assert_eq(proto_validate(BYTES("\xde\xff\xff")), -EPROTO);
    for (int i = 0; i < 31; i++)
        packet_add_count(&nested, 0xdd, 100000000);
    cr_assert_eq(proto_validate(nested.data, nested.n), -EPROTO);

    /* a count that is one more than the bytes that are left */
    packet_add_count(&near, 0xdd, 101);
    packet_add_byte(&near, 0xc0, 100);
    cr_assert_eq(proto_validate(near.data, near.n), -EPROTO);
    near.data[4] = 100;
    cr_assert_eq(proto_validate(near.data, near.n), 0);
}

CAID_TEST(validate, depth)
{
    uint8_t packet[PROTO_DEPTH_MAX + 2];

    memset(packet, 0x91, sizeof(packet));
    packet[PROTO_DEPTH_MAX] = 0xc0;
    cr_assert_eq(proto_validate(packet, PROTO_DEPTH_MAX + 1), 0);
    packet[PROTO_DEPTH_MAX] = 0x90; /* an empty container is one, too */
    cr_assert_eq(proto_validate(packet, PROTO_DEPTH_MAX + 1), -EPROTO);
    packet[PROTO_DEPTH_MAX] = 0x80;
    cr_assert_eq(proto_validate(packet, PROTO_DEPTH_MAX + 1), -EPROTO);
    packet[PROTO_DEPTH_MAX] = 0x91;
    packet[PROTO_DEPTH_MAX + 1] = 0xc0;
    cr_assert_eq(proto_validate(packet, PROTO_DEPTH_MAX + 2), -EPROTO);
}

/* As deep as it goes, left, and as deep again: levels are given back. */
CAID_TEST(validate, siblings_do_not_add_depth)
{
    _cleanup_packet_ struct packet p = {0};

    packet_add_byte(&p, 0x92, 1);
    for (int i = 0; i < 2; i++) {
        packet_add_byte(&p, 0x91, PROTO_DEPTH_MAX - 1);
        packet_add_byte(&p, 0xc0, 1);
    }
    cr_assert_eq(proto_validate(p.data, p.n), 0);
}

CAID_TEST(validate, items)
{
    _cleanup_packet_ struct packet p = {0};

    packet_add_count(&p, 0xdd, PROTO_ITEMS_MAX - 1); /* the list is one itself */
    packet_add_byte(&p, 0xc0, PROTO_ITEMS_MAX - 1);
    cr_assert_eq(proto_validate(p.data, p.n), 0);
    packet_add_byte(&p, 0xc0, 1);
    p.data[3] = PROTO_ITEMS_MAX >> 8;
    p.data[4] = PROTO_ITEMS_MAX & 0xff;
    cr_assert_eq(proto_validate(p.data, p.n), -EPROTO);
}

CAID_TEST(validate, packet_size)
{
    _cleanup_packet_ struct packet p = {0};

    packet_add_count(&p, 0xdb, PROTO_PACKET_MAX - 5);
    packet_add_byte(&p, 'x', PROTO_PACKET_MAX - 5);
    cr_assert_eq(proto_validate(p.data, p.n), 0);
    packet_add_byte(&p, 'x', 1);
    p.data[4]++;
    cr_assert_eq(proto_validate(p.data, p.n), -EPROTO);
}

static void
packet_add_entry(struct packet *p, unsigned key)
{
    char text[8];
    uint8_t head = (uint8_t)(0xa0 + snprintf(text, sizeof(text), "k%u", key));

    packet_add(p, &head, 1);
    packet_add(p, text, strlen(text));
    packet_add_byte(p, 0xc0, 1);
}

CAID_TEST(validate, map_entries)
{
    _cleanup_packet_ struct packet p = {0};

    packet_add_count(&p, 0xdf, PROTO_MAP_MAX);
    for (unsigned i = 0; i < PROTO_MAP_MAX; i++)
        packet_add_entry(&p, i);
    cr_assert_eq(proto_validate(p.data, p.n), 0);
    packet_add_entry(&p, PROTO_MAP_MAX);
    p.data[4]++;
    cr_assert_eq(proto_validate(p.data, p.n), -EPROTO);
}

CAID_TEST(validate, keys)
{
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\xc0\xa1"
                                      "b\xc0")),
                 0);
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\xc0\xa2"
                                      "ab\xc0")),
                 0);
    cr_assert_eq(proto_validate(BYTES("\x82\xa2"
                                      "ab\xc0\xa1"
                                      "a\xc0")),
                 0);
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\xc0\xa1"
                                      "a\xc0")),
                 -EPROTO, "repeated");
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\xc0\xd9\x01"
                                      "a\xc0")),
                 -EPROTO, "repeated in another form");
    cr_assert_eq(proto_validate(BYTES("\x82\xa0\xc0\xa0\xc0")), -EPROTO, "empty, repeated");
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\x81\xa1"
                                      "a\xc0\xa1"
                                      "b\xc0")),
                 0, "another map's key");
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\x81\xa1"
                                      "b\xc0\xa1"
                                      "a\xc0")),
                 -EPROTO, "repeated after a nested map");
    cr_assert_eq(proto_validate(BYTES("\x92\x81\xa1"
                                      "a\xc0\x81\xa1"
                                      "a\xc0")),
                 0, "maps side by side");
    cr_assert_eq(proto_validate(BYTES("\x82\xa1"
                                      "a\xa1"
                                      "a\xa1"
                                      "b\xa1"
                                      "a")),
                 0, "values are no keys");
    cr_assert_eq(proto_validate(BYTES("\x81\x01\xc0")), -EPROTO, "a number for a key");
    cr_assert_eq(proto_validate(BYTES("\x81\xc0\xc0")), -EPROTO, "nil for a key");
    cr_assert_eq(proto_validate(BYTES("\x81\x80\xc0")), -EPROTO, "a map for a key");
    cr_assert_eq(proto_validate(BYTES("\x81\xc4\x01"
                                      "a\xc0")),
                 -EPROTO, "bin for a key");
}

CAID_TEST(validate, strings_are_utf8)
{
    cr_assert_eq(proto_validate(BYTES("\xa3\xe2\x82\xac")), 0);
    cr_assert_eq(proto_validate(BYTES("\xa2\xe2\x82")), -EPROTO, "cut");
    cr_assert_eq(proto_validate(BYTES("\xa3\xed\xa0\x80")), -EPROTO, "surrogate");
    cr_assert_eq(proto_validate(BYTES("\xa2\xc0\x80")), -EPROTO, "overlong");
    cr_assert_eq(proto_validate(BYTES("\x81\xa1\xff\xc0")), -EPROTO, "in a key");
    cr_assert_eq(proto_validate(BYTES("\x92\xa2\xe2\x82\xa1\xac")), -EPROTO,
                 "across two strings");
}

/* ---- against msgpack-c ---- */

/* What passes must be one object of msgpack-c's that takes up the whole packet. */
static bool
check_agreement(const uint8_t *packet, size_t n)
{
    _cleanup_(msgpack_unpacked_destroy) msgpack_unpacked unpacked = {0};
    size_t n_read = 0;

    if (proto_validate(packet, n) < 0)
        return false;
    cr_assert_eq(msgpack_unpack_next(&unpacked, (const char *)packet, n, &n_read),
                 MSGPACK_UNPACK_SUCCESS);
    cr_assert_eq(n_read, n);
    return true;
}

CAID_TEST(validate, agrees_on_all_packets_of_two_bytes)
{
    uint32_t n_passed = 0;

    for (uint32_t i = 0; i < 0x10000; i++) {
        uint8_t packet[] = {(uint8_t)(i >> 8), (uint8_t)i};
        n_passed += check_agreement(packet, sizeof(packet));
    }
    /* 91 and any whole byte, cc and d0 and any, a1 and ASCII, d9 00 */
    cr_assert_eq(n_passed, 166 + 256 + 256 + 128 + 1);
}

static void
mutate(struct packet *p, uint64_t *random)
{
    static const uint8_t heads[] = {0x80, 0x81, 0x90, 0x91, 0xa1, 0xc0, 0xc1, 0xc4, 0xc7, 0xca,
                                    0xcf, 0xd3, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf};
    size_t at = random_below(random, (uint32_t)p->n);
    size_t rest = p->n - at;

    switch (random_below(random, 5)) {
    case 0: p->data[at] ^= (uint8_t)(1 << random_below(random, 8)); break;
    case 1: p->data[at] = heads[random_below(random, sizeof(heads))]; break;
    case 2: p->data[at] = (uint8_t)random_next(random); break;
    case 3: /* leave a byte out, but never the last one */
        memmove(p->data + at, p->data + at + 1, rest - 1);
        p->n -= p->n > 1;
        break;
    default: /* say a byte twice: there is room for a few */
        memmove(p->data + at + 1, p->data + at, rest);
        p->n++;
        break;
    }
}

static void
make_seed(struct msg_buf *b, uint64_t i)
{
    _cleanup_(sampler_deinit) struct sampler s;
    enum msg_method method = (enum msg_method)(i % MSG_N_METHODS);

    sampler_init(&s, i, (enum sample_mode)(i / MSG_N_METHODS % N_SAMPLE_MODES));
    if (!msg_method_is_request(method))
        cr_assert_eq(msg_encode_notify(b, method,
                                       sample_record(&s, proto_methods[method].params)),
                     0);
    else if (i & 1)
        cr_assert_eq(msg_encode_request(b, 1, method,
                                        sample_record(&s, proto_methods[method].params)),
                     0);
    else
        cr_assert_eq(msg_encode_result(b, 1, method,
                                       sample_record(&s, proto_methods[method].result)),
                     0);
}

CAID_TEST(validate, agrees_on_mutated_packets)
{
    _cleanup_(msg_buf_deinit) struct msg_buf seed = {0};
    uint64_t random = 20240229;
    uint32_t n_passed = 0;

    for (uint32_t i = 0; i < N_MUTATIONS; i++) {
        if (i % 50 == 0)
            make_seed(&seed, i / 50);
        struct packet p = {malloc(seed.n + 8), seed.n};
        memcpy(p.data, seed.data, seed.n);
        for (uint32_t n = 1 + random_below(&random, 4); n > 0; n--)
            mutate(&p, &random);
        n_passed += check_agreement(p.data, p.n);
        packet_free(&p);
    }
    cr_assert_gt(n_passed, N_MUTATIONS / 20, "too few pass to show anything");
    cr_assert_lt(n_passed, N_MUTATIONS, "too few are refused");
}
