/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of answers.def as data, one descriptor for each. By these the library decodes
 * records, caidctl prints them, and the Python extension converts them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "caid/caid.h"

#include "call.h"

/* The units of fields in messages.def, with their types in the library's structs. */
enum unit {
    UNIT_END,  /* of a list of fields */
    UNIT_TEXT, /* const char *, NULL where it is absent */
    UNIT_JSON,
    UNIT_NAME, /* the same, "" where there is none */
    UNIT_UID,  /* uint32_t */
    UNIT_GID,
    UNIT_MODE,
    UNIT_TEXT_IN, /* an array of char, "" where it is absent: CHARS(its size) */
    UNIT_WORDS,   /* the same, with a blank between each two: WORDS(its size) */
    UNIT_FLAG,    /* bool */
    UNIT_DIMS,    /* const int64_t *, then a uint32_t, how many */
    UNIT_RECORD,  /* const struct caid_<of> * */
    UNIT_RECORDS, /* const struct caid_<of> *const *, then a uint32_t */
    UNIT_DEVICE,  /* int32_t, -1: not known. This and the rest are numbers */
    UNIT_COUNT,   /* this and the rest: uint64_t */
    UNIT_NUMBER,
    UNIT_BYTES,
    UNIT_QUOTA,
    UNIT_NS,
    N_UNITS,
};

#define NOT_OF_WIRE UINT16_MAX

struct answer_field {
    enum unit unit;
    bool optional;     /* of texts: it may be absent */
    uint16_t size;     /* of an array of char */
    uint16_t from, at; /* in struct msg_<r>, or NOT_OF_WIRE, and in struct caid_<r> */
    const char *name;
    const struct answer *of;
};

struct answer {
    size_t from_size, size; /* of struct msg_<r>, and of struct caid_<r> */
    const struct answer_field *fields;
};

#define ANSWER(r, text) extern const struct answer answer_##r;
#include "answers.def"

union any_answer {
#define ANSWER(r, text) struct caid_##r r;
#include "answers.def"
};

/* Fills a struct caid_<r> from a struct msg_<r> of the reply. What it points to lives as long as
 * the reply. -EPROTO: a value is not allowed; -ENOMEM. */
int answer_fill(const struct answer *answer, const struct caid_client *client,
                const struct reply *reply, const void *from, void *ret);

/* The list of a UNIT_DIMS or UNIT_RECORDS, and its length. */
static inline const void *
answer_list(const void *at, uint32_t *ret_n)
{
    const void *list;

    memcpy(&list, at, sizeof(list));
    memcpy(ret_n, (const char *)at + sizeof(list), sizeof(*ret_n));
    return list;
}
