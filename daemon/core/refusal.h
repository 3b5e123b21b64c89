/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A refusal on its way to the client. The function that decides fills it and returns REFUSED; the
 * dispatcher sends it.
 */
#pragma once

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "msg.h"

#define REFUSED 1

struct refusal {
    enum proto_error code;
    int32_t cuda;
    uint64_t left; /* NOT_READY: how much is not restored, in millionths; or 0 */
    uint8_t limit; /* the limit that was reached, by refuse_limit(); 0: none */
    char pool[PROTO_POOL_MAX + 1]; /* the pool whose quota was reached; "" */
    char text[512];
};

void refusal_fill(struct refusal *r, enum proto_error code, const char *fmt, ...) PRINTF(3, 4);

/* A macro, so that the compiler knows that it is never 0. */
#define refuse(...) (refusal_fill(__VA_ARGS__), REFUSED)
/* By a limit: the enum count says which. */
#define refuse_limit(limit_, r, ...) \
    (refusal_fill(r, __VA_ARGS__), (r)->limit = (uint8_t)(limit_), REFUSED)

/* "1.5 GiB", for messages */
#define SIZE_TEXT_MAX 32
const char *size_text(char buf[static SIZE_TEXT_MAX], uint64_t bytes);
#define SIZE_TEXT(bytes) size_text((char[SIZE_TEXT_MAX]){0}, bytes)

/* Arguments for %.*s: a string from a packet, cut so that a message stays readable. */
#define STR_FMT(s) (int)((s).n < 256 ? (s).n : 256), (s).p ? (s).p : ""
