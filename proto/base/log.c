/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>

#define LINE_MAX_BYTES 2048

static const struct {
    const char *name;
    enum log_level level;
} levels[] = {
    {"error", LOG_LEVEL_ERROR}, {"warning", LOG_LEVEL_WARNING}, {"notice", LOG_LEVEL_NOTICE},
    {"info", LOG_LEVEL_INFO},   {"debug", LOG_LEVEL_DEBUG},
};

static enum log_level max_level = LOG_LEVEL_INFO;
static bool to_journal, to_syslog;
static int journal = -1; /* a socket, as long as the process lives */
static const char *prefix = "caid";

static bool
stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uintmax_t dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &dev, &ino) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

int
log_level_parse(const char *text)
{
    for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
        if (strcmp(levels[i].name, text) == 0)
            return (int)levels[i].level;
    return -EINVAL;
}

void
log_set_level(enum log_level level)
{
    max_level = level;
}

void
log_init(const char *ident)
{
    const char *env = getenv("CAID_LOG");

    prefix = ident;
    to_journal = stderr_is_journal();
    if (to_journal && journal < 0)
        journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (env && *env) {
        int level = log_level_parse(env);
        if (level < 0)
            log_warning("CAID_LOG=%s: not one of error, warning, notice, info, debug", env);
        else
            max_level = (enum log_level)level;
    }
}

void
log_to_syslog(void)
{
    openlog(prefix, LOG_PID | LOG_NDELAY, LOG_DAEMON);
    to_syslog = true;
}

static const char *
level_name(enum log_level level)
{
    for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
        if (levels[i].level == level)
            return levels[i].name;
    return "?";
}

/* Copies text into out with control characters as \xNN; returns the end. */
static char *
append_escaped(char *out, char *end, const char *text)
{
    for (; *text && out + 4 < end; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c != 0x7f)
            *out++ = (char)c;
        else
            out += snprintf(out, 5, "\\x%02x", c);
    }
    return out;
}

/* One write(2), so that lines of several processes do not mix. If the pipe is full the line is
 * lost: the daemon must not wait for the reader of its log (I5). stderr cannot be made
 * non-blocking, since other processes may share it. */
static void
write_line(char *line, char *end)
{
    struct pollfd poll_fd = {.fd = STDERR_FILENO, .events = POLLOUT};

    if (poll(&poll_fd, 1, 0) != 1 || !(poll_fd.revents & POLLOUT))
        return;
    *end++ = '\n';
    ssize_t n UNUSED = write(STDERR_FILENO, line, (size_t)(end - line));
}

/* Sends the line by systemd's "Native Journal Protocol", in the form for values of one line. false:
 * the journal does not take it, or not now. */
static bool
send_fields(enum log_level level, const struct log_field *fields, const char *line)
{
    static const struct sockaddr_un address = {.sun_family = AF_UNIX,
                                               .sun_path = "/run/systemd/journal/socket"};
    char data[2 * LINE_MAX_BYTES], *end = data, *const limit = data + sizeof(data) - 1;

    end += snprintf(data, sizeof(data), "PRIORITY=%d\nSYSLOG_IDENTIFIER=%s\nMESSAGE=%s\n",
                    (int)level, prefix, line);
    for (; fields->name; fields++) {
        if (!*fields->value)
            continue;
        end = append_escaped(end, limit, fields->name);
        *end++ = '=';
        end = append_escaped(end, limit, fields->value);
        *end++ = '\n';
    }
    return sendto(journal, data, (size_t)(end - data), MSG_DONTWAIT | MSG_NOSIGNAL,
                  (const struct sockaddr *)&address, sizeof(address)) >= 0;
}

void
log_write_fields(enum log_level level, const struct log_field *fields, const char *fmt, ...)
{
    char message[LINE_MAX_BYTES], line[LINE_MAX_BYTES + 64];
    int saved = errno;
    va_list ap;

    if (level > max_level)
        return;

    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);

    int head = 0;
    if (!to_syslog)
        head = to_journal ? snprintf(line, sizeof(line), "<%d>", (int)level)
                          : snprintf(line, sizeof(line), "%s: %s: ", prefix, level_name(level));
    char *end = append_escaped(line + head, line + sizeof(line) - 1, message);
    *end = '\0';
    if (to_syslog)
        syslog((int)level, "%s", line);
    else if (!fields || journal < 0 || !send_fields(level, fields, line + head))
        write_line(line, end);
    errno = saved;
}
