/* SPDX-License-Identifier: Apache-2.0 */
#include "caid_test.h"

#include "base/macros.h"
#include "utf8.h"

/* How many sequences of n bytes are one character, when the first one is from first to last. */
static uint32_t
count_characters(uint8_t *s, size_t at, size_t n, unsigned first, unsigned last)
{
    uint32_t n_found = 0;

    if (at == n)
        return utf8_prefix(s, n) == n;
    for (unsigned byte = first; byte <= last; byte++) {
        s[at] = (uint8_t)byte;
        /* What stands behind a first byte: every value, or for the last two of four bytes those
         * that are allowed and their neighbours. */
        if (n == 4 && at > 0)
            n_found += count_characters(s, at + 1, n, 0x7f, 0xc0);
        else
            n_found += count_characters(s, at + 1, n, 0x00, 0xff);
    }
    return n_found;
}

CAID_TEST(utf8, as_many_characters_as_unicode_has)
{
    uint8_t s[4];

    cr_assert_eq(count_characters(s, 0, 1, 0x00, 0xff), 0x80);
    cr_assert_eq(count_characters(s, 0, 2, 0xc0, 0xff), 0x800 - 0x80);
    cr_assert_eq(count_characters(s, 0, 3, 0xe0, 0xff),
                 0x10000 - 0x800 - 0x800); /* surrogates */
    cr_assert_eq(count_characters(s, 0, 4, 0xf0, 0xff), 0x110000 - 0x10000);
}

CAID_TEST(utf8, control_characters)
{
    cr_assert_eq(utf8_before_control("a b", 3), 3);
    cr_assert_eq(utf8_before_control("\xc2\xa0\xc3\x9f", 4), 4);
    cr_assert_eq(utf8_before_control("a\0b", 3), 1);
    cr_assert_eq(utf8_before_control("ab\x1f", 3), 2);
    cr_assert_eq(utf8_before_control("\x7f", 1), 0);
    cr_assert_eq(utf8_before_control("a\xc2\x9f", 3), 1);
    cr_assert_eq(utf8_before_control(NULL, 0), 0);
}

CAID_TEST(utf8, malformed_sequences)
{
    static const char *const bad[] = {
        "\x80",             /* a continuation alone */
        "\xc0\x80",         /* overlong U+0000 */
        "\xc1\xbf",         /* overlong U+007F */
        "\xe0\x9f\xbf",     /* overlong U+07FF */
        "\xf0\x8f\xbf\xbf", /* overlong U+FFFF */
        "\xed\xa0\x80",     /* U+D800 */
        "\xed\xbf\xbf",     /* U+DFFF */
        "\xf4\x90\x80\x80", /* U+110000 */
        "\xf5\x80\x80\x80",
        "\xff",
        "\xe2\x82",     /* cut */
        "\xe2\x82\x28", /* no continuation */
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_assert_eq(utf8_prefix(bad[i], strlen(bad[i])), 0, "case %zu", i);
}

CAID_TEST(utf8, prefixes_end_at_a_character)
{
    static const char text[] = "0123456789\xe2\x82\xac"
                               "0123456789\xf0\x9f\x90\xa7";
    static const size_t ends[] = {23, 23, 23, 27};

    cr_assert_eq(utf8_prefix("", 0), 0);
    for (size_t n = 0; n <= 10; n++)
        cr_assert_eq(utf8_prefix(text, n), n);
    cr_assert_eq(utf8_prefix(text, 11), 10);
    cr_assert_eq(utf8_prefix(text, 12), 10);
    cr_assert_eq(utf8_prefix(text, 13), 13);
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        cr_assert_eq(utf8_prefix(text, 24 + i), ends[i]);
}

/* Every place in the words of eight bytes that ASCII is skipped in. */
CAID_TEST(utf8, one_bad_byte_anywhere)
{
    uint8_t text[40];

    for (size_t bad = 0; bad < sizeof(text); bad++) {
        memset(text, 'x', sizeof(text));
        text[bad] = 0x80;
        cr_assert_eq(utf8_prefix(text, sizeof(text)), bad);
    }
}
