/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <stdlib.h>

#define LIST_MAX 5

void
require(bool condition)
{
    if (!condition)
        abort();
}

void
input_init(struct input *in, const uint8_t *data, size_t size, const char *const *texts,
           size_t n_texts)
{
    in->at = data;
    in->end = data + size;
    in->texts = texts;
    in->n_texts = (uint8_t)n_texts;
    in->n_used = 0;
}

bool
input_is_over(const struct input *in)
{
    return in->at == in->end;
}

uint8_t
input_u8(struct input *in)
{
    return input_is_over(in) ? 0 : *in->at++;
}

uint32_t
input_below(struct input *in, uint32_t n)
{
    return input_u8(in) % n;
}

static uint64_t
any_u64(struct input *in)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value = value << 8 | input_u8(in);
    return value;
}

uint64_t
input_u64(struct input *in)
{
    static const uint64_t sizes[] = {512,
                                     1 << 12,
                                     1 << 16,
                                     1 << 20,
                                     1 << 21,
                                     1 << 22,
                                     1 << 26,
                                     UINT64_C(1) << 31,
                                     UINT64_C(1) << 32,
                                     UINT64_C(1) << 62,
                                     UINT64_C(1) << 63,
                                     0};
    uint8_t choice = input_u8(in);

    if (choice < 128)
        return choice;
    if (choice == 255)
        return any_u64(in);
    choice -= 128;
    return sizes[choice / 3 % ARRAY_SIZE(sizes)] + choice % 3 - 1;
}

/* Nothing where it is used up: what is made of a few bytes is small. */
static void *
take(struct input *in, size_t n)
{
    size_t n_words = (n + 7) / 8;

    if (n_words > ARRAY_SIZE(in->memory) - in->n_used)
        return NULL;
    void *memory = in->memory + in->n_used;
    in->n_used += n_words;
    return memset(memory, 0, n_words * 8);
}

static struct msg_str
any_str(struct input *in)
{
    uint32_t n = input_u8(in);
    char *text = take(in, n + 1);

    for (uint32_t i = 0; text && i < n; i++)
        text[i] = (char)input_u8(in);
    return (struct msg_str){text, text ? n : 0};
}

static struct msg_str
input_str(struct input *in)
{
    uint8_t choice = input_u8(in);

    return choice == 255 ? any_str(in) : MSG_STR(in->texts[choice % in->n_texts]);
}

static void fill(struct input *in, const struct record *record, void *ret);

static void
fill_value(struct input *in, const struct field *f, enum field_type type, void *ret)
{
    switch (type) {
    case FIELD_BOOL: *(bool *)ret = input_u8(in) & 1; break;
    case FIELD_U64:
    case FIELD_I64: *(uint64_t *)ret = input_u64(in); break;
    case FIELD_RECORD: fill(in, f->of, ret); break;
    default: *(struct msg_str *)ret = input_str(in); break;
    }
}

static void
fill_list(struct input *in, const struct field *f, void *record)
{
    uint32_t n = input_below(in, LIST_MAX);
    size_t size = field_element_size(f);
    char *list = take(in, n * size + 1);

    for (uint32_t i = 0; list && i < n; i++)
        fill_value(in, f, field_element(f), list + i * size);
    field_set_list(f, record, list, list ? n : 0);
}

static void
fill_field(struct input *in, const struct field *f, void *record)
{
    if (field_is_list(f))
        fill_list(in, f, record);
    else
        fill_value(in, f, f->type, (char *)record + f->offset);
}

static void
fill(struct input *in, const struct record *record, void *ret)
{
    for (uint32_t i = 0; i < record->n_fields; i++)
        if (record->fields[i].required || input_u8(in) % 2)
            fill_field(in, &record->fields[i], ret);
}

void *
input_record(struct input *in, const struct record *record)
{
    in->n_used = 0;
    void *ret = take(in, record->size);
    fill(in, record, ret);
    return ret;
}

void
input_change(struct input *in, const struct record *record, void *value)
{
    const struct field *f = &record->fields[input_below(in, record->n_fields)];
    uint32_t n = 0;
    const char *list = f->type == FIELD_RECORDS ? field_list(f, value, &n) : NULL;

    if (n && input_u8(in) < 192) {
        list += input_below(in, n) * field_element_size(f);
        input_change(in, f->of, (void *)(uintptr_t)list);
    } else {
        fill_field(in, f, value);
    }
}
