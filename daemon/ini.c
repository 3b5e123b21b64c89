/* SPDX-License-Identifier: Apache-2.0 */
#include "ini.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/log.h"
#include "base/macros.h"

struct ini_reader {
    struct ini_line line;
    char *section, *name; /* of the last header */
    int (*fn)(void *userdata, const struct ini_line *line);
    void *userdata;
    int error; /* the first one */
};

/* Cuts blanks from both ends, in place. */
static char *
trim(char *s)
{
    char *end;

    s += strspn(s, " \t\r\n");
    end = s + strlen(s);
    while (end > s && strchr(" \t\r\n", end[-1]))
        *--end = '\0';
    return s;
}

static int
bad_syntax(const struct ini_reader *r, const char *what)
{
    log_error("%s:%u: %s", r->line.file, r->line.number, what);
    return -EINVAL;
}

/* Splits 'section "name"', without its brackets, at the quotes. name: NULL without quotes. */
static int
split_header(char *text, char **ret_section, char **ret_name)
{
    char *quote = strchr(text, '"'), *end = strrchr(text, '"');

    if (quote) {
        if (end == quote || end[1])
            return -EINVAL;
        *quote++ = '\0';
        *end = '\0';
    }
    text = trim(text);
    if (!*text)
        return -EINVAL;
    *ret_section = text;
    *ret_name = quote;
    return 0;
}

static int
read_header(struct ini_reader *r, char *text)
{
    size_t n = strlen(text);
    char *section, *name;

    /* Keys that follow a bad header belong to no section. */
    free(r->section);
    free(r->name);
    r->section = r->name = NULL;

    if (text[n - 1] != ']')
        return bad_syntax(r, "a section header ends with \"]\"");
    text[n - 1] = '\0';
    if (split_header(text + 1, &section, &name) < 0)
        return bad_syntax(r, "a section header is [section] or [section \"name\"]");

    r->section = strdup(section);
    if (name)
        r->name = strdup(name);
    if (!r->section || (name && !r->name))
        return -ENOMEM;
    r->line.section = r->section;
    r->line.name = r->name;
    r->line.key = r->line.value = NULL;
    return r->fn(r->userdata, &r->line);
}

static int
read_key(struct ini_reader *r, char *text)
{
    char *equals = strchr(text, '=');

    if (!equals)
        return bad_syntax(r, "neither a [section], a key = value, nor a # comment");
    *equals = '\0';
    r->line.section = r->section;
    r->line.name = r->name;
    r->line.key = trim(text);
    r->line.value = trim(equals + 1);
    if (!*r->line.key)
        return bad_syntax(r, "no key before \"=\"");
    if (!r->section)
        return bad_syntax(r, "a key before the first good [section]");
    return r->fn(r->userdata, &r->line);
}

static int
read_line(struct ini_reader *r, char *text, size_t n)
{
    if (strlen(text) != n)
        return bad_syntax(r, "a NUL byte");
    text = trim(text);
    if (!*text || *text == '#' || *text == ';')
        return 0;
    return *text == '[' ? read_header(r, text) : read_key(r, text);
}

/* The null device counts as an empty file: a link to it takes a drop-in out. */
static bool
is_readable(mode_t mode, dev_t device)
{
    return S_ISREG(mode) || (S_ISCHR(mode) && device == makedev(1, 3));
}

/* Reading a FIFO, a device or an endless file might not end. One byte more than INI_MAX is read, so
 * that a file which is too large is seen. */
static int
read_file(const char *path, char text[static INI_MAX + 1], size_t *ret_n)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    ssize_t n_read = 1;
    size_t n = 0;

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!is_readable(st.st_mode, st.st_rdev)) {
        log_error("%s: no regular file: not read", path);
        return -EINVAL;
    }
    for (; n_read > 0 && n <= INI_MAX; n += (size_t)n_read) {
        n_read = read(fd, text + n, INI_MAX + 1 - n);
        if (n_read < 0)
            return errno == EINVAL ? -EIO : -errno; /* -EINVAL means that it is logged */
    }
    if (n > INI_MAX)
        return -EFBIG;
    *ret_n = n;
    return 0;
}

int
ini_read(const char *path, int (*fn)(void *userdata, const struct ini_line *line),
         void *userdata)
{
    struct ini_reader r = {.line.file = path, .fn = fn, .userdata = userdata};
    _cleanup_free_ char *text = malloc(INI_MAX + 1);
    size_t n = 0, length;
    int error = text ? read_file(path, text, &n) : -ENOMEM;

    if (error < 0)
        return error;
    for (size_t at = 0; at < n; at += length + 1) {
        char *end = memchr(text + at, '\n', n - at);
        length = end ? (size_t)(end - text) - at : n - at;
        text[at + length] = '\0';
        r.line.number++;
        error = read_line(&r, text + at, length);
        if (error < 0 && !r.error)
            r.error = error;
    }
    free(r.section);
    free(r.name);
    return r.error;
}
