/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging for the daemon and the tools; libcaid itself never logs. Lines go to stderr. If stderr is
 * the journal's stream (JOURNAL_STREAM names its device and inode, systemd.exec(5)), each line
 * starts with the "<N>" priority of sd-daemon(3), else with the level's name. Control characters in
 * a message are written as \xNN, so that no client string can forge a line. If stderr is the
 * journal's stream, a line with fields goes to the journal's own socket; if that does not take it
 * at once, it goes to stderr like any other line.
 */
#pragma once

#include "base/macros.h"

enum log_level {
    LOG_LEVEL_ERROR = 3, /* the numbers are syslog's */
    LOG_LEVEL_WARNING = 4,
    LOG_LEVEL_NOTICE = 5,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7,
};

/* Reads $CAID_LOG ("error" ... "debug") and finds out what stderr is. ident prefixes lines. */
void log_init(const char *ident);
/* From here on lines go to syslog(3): for a daemon that has left its terminal. */
void log_to_syslog(void);
void log_set_level(enum log_level level);
/* "error", "warning", "notice", "info", "debug" -> level, or -EINVAL. */
int log_level_parse(const char *text);

struct log_field {
    const char *name;  /* a field of the journal: "CAID_UID"; NULL: the end of the list */
    const char *value; /* "": the field is left out */
};

/* fields NULL: none. */
void log_write_fields(enum log_level level, const struct log_field *fields, const char *fmt,
                      ...) PRINTF(3, 4);

#define log_write(level, ...) log_write_fields(level, NULL, __VA_ARGS__)

#define log_error(...)   log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...)  log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...)    log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
