/* SPDX-License-Identifier: Apache-2.0 */
#include "value.h"

#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "core.h"

#define DURATION_MAX_NS (3600 * NSEC_PER_SEC)

/* A number in that base at the start of text, without sign or blank; *ret_end: the text after it.
 * */
static int
parse_number(const char *text, int base, uint64_t *ret, const char **ret_end)
{
    char *end;
    uintmax_t n;

    if (*text < '0' || *text > '9')
        return -EINVAL;
    errno = 0;
    n = strtoumax(text, &end, base);
    if (errno || end == text)
        return -EINVAL;
    *ret = n;
    *ret_end = end;
    return 0;
}

static int
parse_whole_number(const char *text, int base, uint64_t max, uint64_t *ret)
{
    const char *end;
    uint64_t n;

    if (parse_number(text, base, &n, &end) < 0 || *end || n > max)
        return -EINVAL;
    *ret = n;
    return 0;
}

static int
parse_count(const char *text, void *ret_field)
{
    uint64_t n;

    if (parse_whole_number(text, 10, UINT32_MAX, &n) < 0 || n == 0)
        return -EINVAL;
    *(uint32_t *)ret_field = (uint32_t)n;
    return 0;
}

static void
print_count(FILE *f, const void *field)
{
    fprintf(f, " %" PRIu32, *(const uint32_t *)field);
}

const struct value_type value_count = {parse_count, print_count,
                                       "a number from 1 to 4294967295"};

static int
parse_any_number(const char *text, void *ret_field)
{
    uint64_t n;

    if (parse_whole_number(text, 10, UINT32_MAX, &n) < 0)
        return -EINVAL;
    *(uint32_t *)ret_field = (uint32_t)n;
    return 0;
}

const struct value_type value_number = {parse_any_number, print_count,
                                        "a number from 0 to 4294967295"};

static int
parse_flag(const char *text, void *ret_field)
{
    bool yes = strcmp(text, "yes") == 0;

    if (!yes && strcmp(text, "no") != 0)
        return -EINVAL;
    *(bool *)ret_field = yes;
    return 0;
}

static void
print_flag(FILE *f, const void *field)
{
    fputs(*(const bool *)field ? " yes" : " no", f);
}

const struct value_type value_flag = {parse_flag, print_flag, "yes or no"};

/* Only digits and a point, not all that strtod(3) accepts, such as signs and exponents. The daemon
 * stays in the C locale, where strtod(3) takes "." for the point. */
static int
parse_ratio(const char *text, void *ret_field)
{
    char *end;
    double ratio;

    if (!*text || text[strspn(text, "0123456789.")])
        return -EINVAL;
    ratio = strtod(text, &end);
    if (end == text || *end || ratio > 1)
        return -EINVAL;
    *(double *)ret_field = ratio;
    return 0;
}

static void
print_ratio(FILE *f, const void *field)
{
    fprintf(f, " %g", *(const double *)field);
}

const struct value_type value_ratio = {parse_ratio, print_ratio,
                                       "a number from 0 to 1, such as 0.2"};

static const char size_units[] = "KMGT";

static int
parse_size(const char *text, void *ret_field)
{
    unsigned shift = 0;
    const char *end, *unit;
    uint64_t n;

    if (parse_number(text, 10, &n, &end) < 0)
        return -EINVAL;
    if (*end) {
        unit = strchr(size_units, *end);
        if (!unit || end[1])
            return -EINVAL;
        shift = 10 * (unsigned)(unit - size_units + 1);
    }
    if (n > UINT64_MAX >> shift)
        return -EINVAL;
    *(uint64_t *)ret_field = n << shift;
    return 0;
}

static void
print_size(FILE *f, const void *field)
{
    uint64_t n = *(const uint64_t *)field;
    size_t unit = 0;

    while (n && n % 1024 == 0 && unit < strlen(size_units)) {
        n /= 1024;
        unit++;
    }
    fprintf(f, " %" PRIu64, n);
    if (unit)
        fputc(size_units[unit - 1], f);
}

const struct value_type value_size = {parse_size, print_size,
                                      "a number of bytes, with K, M, G or T after it or none"};

static const struct {
    const char *name;
    uint64_t ns;
} duration_units[] = {
    {"ms", NSEC_PER_MSEC},
    {"s", NSEC_PER_SEC},
    {"m", 60 * NSEC_PER_SEC},
};

static int
parse_duration(const char *text, void *ret_field)
{
    const char *end;
    uint64_t n;

    if (parse_number(text, 10, &n, &end) < 0)
        return -EINVAL;
    for (size_t i = 0; i < ARRAY_SIZE(duration_units); i++) {
        if (strcmp(end, duration_units[i].name) != 0)
            continue;
        if (n == 0 || n > DURATION_MAX_NS / duration_units[i].ns)
            return -EINVAL;
        *(uint64_t *)ret_field = n * duration_units[i].ns;
        return 0;
    }
    return -EINVAL;
}

static void
print_duration(FILE *f, const void *field)
{
    uint64_t ns = *(const uint64_t *)field;

    if (ns % NSEC_PER_SEC == 0)
        fprintf(f, " %" PRIu64 "s", ns / NSEC_PER_SEC);
    else
        fprintf(f, " %" PRIu64 "ms", ns / NSEC_PER_MSEC);
}

const struct value_type value_duration = {parse_duration, print_duration,
                                          "a time such as 500ms, 2s or 1m, at most an hour"};

static int
parse_age(const char *text, void *ret_field)
{
    if (strcmp(text, "none") != 0)
        return parse_duration(text, ret_field);
    *(uint64_t *)ret_field = UINT64_MAX;
    return 0;
}

static void
print_age(FILE *f, const void *field)
{
    if (*(const uint64_t *)field == UINT64_MAX)
        fputs(" none", f);
    else
        print_duration(f, field);
}

const struct value_type value_age = {parse_age, print_age,
                                     "none, or a time of at most an hour"};

static int
parse_mode(const char *text, mode_t allowed, void *ret_field)
{
    uint64_t n;

    if (parse_whole_number(text, 8, 07777, &n) < 0 || (n & ~(uint64_t)allowed))
        return -EINVAL;
    *(mode_t *)ret_field = (mode_t)n;
    return 0;
}

static int
parse_file_mode(const char *text, void *ret_field)
{
    return parse_mode(text, 0777, ret_field);
}

static int
parse_pool_mode(const char *text, void *ret_field)
{
    return parse_mode(text, 0666, ret_field);
}

static void
print_mode(FILE *f, const void *field)
{
    fprintf(f, " %04o", (unsigned)*(const mode_t *)field);
}

const struct value_type value_file_mode = {parse_file_mode, print_mode,
                                           "an octal file mode such as 0666"};
const struct value_type value_pool_mode =
    {parse_pool_mode, print_mode, "octal permission bits, of which a pool has r and w: 0660"};

static int
parse_string(const char *text, void *ret_field)
{
    char *copy = strdup(text);

    if (!copy)
        return -ENOMEM;
    free(*(char **)ret_field);
    *(char **)ret_field = copy;
    return 0;
}

static void
print_string(FILE *f, const void *field)
{
    const char *s = *(char *const *)field;

    if (s && *s)
        fprintf(f, " %s", s);
}

static int
parse_socket(const char *text, void *ret_field)
{
    return strlen(text) < sizeof(((struct sockaddr_un *)0)->sun_path)
               ? parse_string(text, ret_field)
               : -EINVAL;
}

const struct value_type value_socket = {parse_socket, print_string,
                                        "a socket's path, which has at most 107 bytes"};

static int
parse_machine(const char *text, void *ret_field)
{
    size_t n = strlen(text);

    return n == 0 || (n == 32 && strspn(text, "0123456789abcdef") == n)
               ? parse_string(text, ret_field)
               : -EINVAL;
}

const struct value_type value_machine = {parse_machine, print_string,
                                         "32 hexadecimal digits, in lower case"};

static int
parse_driver(const char *text, void *ret_field)
{
    bool is_word = strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0 ||
                   strcmp(text, "soft") == 0;

    return is_word || !*text || strchr(text, '/') ? parse_string(text, ret_field) : -EINVAL;
}

const struct value_type value_driver = {parse_driver, print_string,
                                        "one of auto, cuda, soft, or a path (with a /)"};

static int
parse_level(const char *text, void *ret_field)
{
    int level = log_level_parse(text);

    if (level < 0)
        return -EINVAL;
    *(int *)ret_field = level;
    return 0;
}

static void
print_level(FILE *f, const void *field)
{
    static const char *const names[] = {"error", "warning", "notice", "info", "debug"};

    fprintf(f, " %s", names[*(const int *)field - LOG_LEVEL_ERROR]);
}

const struct value_type value_level = {parse_level, print_level,
                                       "one of error, warning, notice, info, debug"};

static int
parse_auto_flag(const char *text, void *ret_field)
{
    bool flag = false;

    if (strcmp(text, "auto") != 0 && value_flag.parse(text, &flag) < 0)
        return -EINVAL;
    *(int *)ret_field = strcmp(text, "auto") == 0 ? FLAG_AUTO : flag;
    return 0;
}

static void
print_auto_flag(FILE *f, const void *field)
{
    int flag = *(const int *)field;

    fputs(flag == FLAG_AUTO ? " auto" : flag ? " yes" : " no", f);
}

const struct value_type value_auto_flag = {parse_auto_flag, print_auto_flag,
                                           "one of auto, yes, no"};

static int
parse_handoff(const char *text, void *ret_field)
{
    int mode = HANDOFF_AUTO;

    if (strcmp(text, "auto") != 0) {
        for (mode = 0; mode < N_HANDOFFS; mode++)
            if (strcmp(text, core_handoff_name((enum core_handoff)mode)) == 0)
                break;
        if (mode == N_HANDOFFS)
            return -EINVAL;
    }
    *(int *)ret_field = mode;
    return 0;
}

static void
print_handoff(FILE *f, const void *field)
{
    int mode = *(const int *)field;

    fprintf(f, " %s",
            mode == HANDOFF_AUTO ? "auto" : core_handoff_name((enum core_handoff)mode));
}

const struct value_type value_handoff = {parse_handoff, print_handoff,
                                         "one of auto, memops, host, events"};

/* (uid_t)-1 and (gid_t)-1 mean "no change" to the kernel: no user or group has that number. */
static int
parse_id(const char *text, uint32_t *ret)
{
    uint64_t n;

    if (parse_whole_number(text, 10, UINT32_MAX - 1, &n) < 0)
        return -EINVAL;
    *ret = (uint32_t)n;
    return 0;
}

static int
parse_user(const char *text, void *ret_field)
{
    const struct passwd *pw = getpwnam(text);

    if (!pw)
        return parse_id(text, ret_field);
    *(uid_t *)ret_field = pw->pw_uid;
    return 0;
}

static int
parse_group(const char *text, void *ret_field)
{
    const struct group *gr = getgrnam(text);

    if (!gr)
        return parse_id(text, ret_field);
    *(gid_t *)ret_field = gr->gr_gid;
    return 0;
}

static void
print_id(FILE *f, const void *field)
{
    fprintf(f, " %" PRIu32, *(const uint32_t *)field);
}

const struct value_type value_user = {parse_user, print_id, "a user's name or number"};
const struct value_type value_group = {parse_group, print_id, "a group's name or number"};
