/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of settings: how a text is parsed into a field, how a field is printed, and the words for
 * what is expected. A field is written only if the text is good.
 */
#pragma once

#include <stdio.h>

#define HANDOFF_AUTO (-1) /* the best that each device can do */
#define FLAG_AUTO    (-1) /* yes where it can be */

struct value_type {
    int (*parse)(const char *text, void *ret_field); /* 0, -EINVAL, -ENOMEM */
    void (*print)(FILE *f, const void *field);       /* after a blank; nothing for "" */
    const char *expects;                             /* "a size such as 64M or 8G" */
};

extern const struct value_type value_count;     /* uint32_t, 1 and up */
extern const struct value_type value_number;    /* uint32_t, 0 and up */
extern const struct value_type value_flag;      /* bool: yes or no */
extern const struct value_type value_auto_flag; /* int: 0, 1 or FLAG_AUTO */
extern const struct value_type value_ratio;     /* double, 0 to 1 */
extern const struct value_type value_size;      /* uint64_t, bytes: 0, 4096, 64M, 8G */
extern const struct value_type value_duration;  /* uint64_t, nanoseconds: 500ms, 2s, 1m */
extern const struct value_type value_age;       /* the same, UINT64_MAX: none */
extern const struct value_type value_file_mode; /* mode_t, octal up to 0777 */
extern const struct value_type value_pool_mode; /* mode_t, octal, r and w bits */
extern const struct value_type value_socket;    /* char *, owned: a path, or empty */
extern const struct value_type value_driver;    /* char *, owned: of drv_open(), or empty */
extern const struct value_type value_machine;   /* char *, owned: 32 hex digits, or empty */
extern const struct value_type value_level;     /* int, enum log_level */
extern const struct value_type value_handoff;   /* int, enum core_handoff or HANDOFF_AUTO */
extern const struct value_type value_user;      /* uid_t, by name or number */
extern const struct value_type value_group;     /* gid_t, by name or number */
