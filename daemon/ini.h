/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of ini files: "[section]" or "[section "name"]" headers, "key = value" lines, and
 * whole-line comments after '#' or ';'. It knows no keys: the caller's function gets each header
 * and each line, with file and line number.
 */
#pragma once

#include <stddef.h>

struct ini_line {
    const char *file;
    unsigned number;
    const char *section; /* NULL before the first header */
    const char *name;    /* of [section "name"]; NULL without */
    const char *key;     /* NULL: this line is the header itself */
    const char *value;   /* may be empty */
};

#define INI_MAX ((size_t)4 << 20) /* bytes of a file */

/*
 * Calls fn for every header and every key. Bad syntax is logged as "file:line: ...". Reading goes
 * on after it, and after an error of fn, which fn has logged, so that one run shows all mistakes.
 * Returns 0, the first such error, or -errno where the file cannot be read: -EINVAL, logged, for a
 * file that is not regular; not logged else. -EFBIG: more than INI_MAX bytes. It never blocks.
 */
int ini_read(const char *path, int (*fn)(void *userdata, const struct ini_line *line),
             void *userdata);
