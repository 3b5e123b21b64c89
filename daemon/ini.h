/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of ini files: "[section]" or "[section "name"]" headers, "key = value" lines, and
 * whole-line comments after '#' or ';'. It knows no keys; each header and each line is handed to
 * the caller's function with the place it came from.
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
 * Calls fn for every header and every key. Bad syntax is logged as "file:line: ..." and reading
 * goes on, so that one run shows all mistakes; so it does when fn returns an error, which fn has
 * logged. Returns 0, the first such error, or what kept the file from being read (not logged, but
 * for -EINVAL: it is no regular file). -EFBIG: it has more than INI_MAX bytes. It never waits.
 */
int ini_read(const char *path, int (*fn)(void *userdata, const struct ini_line *line),
             void *userdata);
