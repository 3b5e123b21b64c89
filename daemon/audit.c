/* SPDX-License-Identifier: Apache-2.0 */
#include "audit.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"

#define WINDOW_MS 10000

static const char *const message_ids[] = {
    [AUDIT_REPLACE] = "90fb2613eb494729aaafc5bfbb9a1d52",
    [AUDIT_REMOVE] = "4476d8d86424480c8605fb833b7fbd69",
    [AUDIT_LIMIT] = "b6115d3c227d43f395b984be06560d79",
    [AUDIT_CLIENT] = "8342a19159d24058b788522555675589",
    [AUDIT_TICKET] = "1c6b78054d4c4da289b24c83120d4011",
    [AUDIT_DROP] = "45134b9066654ac3833f81cc1194ee08",
};

/* Closes the window, if its time is over. */
static void
window_look(struct log_window *window, uint64_t now_ms, uint32_t max, const char *about)
{
    if (!window->n || now_ms - window->since_ms < WINDOW_MS)
        return;
    if (window->n > max)
        log_notice("%u more lines about %s were left out", window->n - max, about);
    window->n = 0;
}

bool
log_admits(struct log_window *window, uint64_t now_ms, uint32_t max, const char *about)
{
    window_look(window, now_ms, max, about);
    if (!window->n)
        window->since_ms = now_ms;
    return window->n++ < max;
}

/* Closes all windows whose time is over. */
static void
audit_look(struct audit *audit, uint64_t now_ms)
{
    char about[32] = "further uids";

    for (size_t i = AUDIT_UIDS; i-- > 0;) {
        struct log_window *window = &audit->windows[i];
        if (!window->n)
            continue;
        if (i < AUDIT_UIDS - 1)
            snprintf(about, sizeof(about), "uid %u", (unsigned)window->uid);
        window_look(window, now_ms, AUDIT_LINES, about);
    }
}

/* The uid's window, a free one, or the last, which the uids without one share. */
static struct log_window *
find_window(struct audit *audit, uid_t uid)
{
    struct log_window *found = &audit->windows[AUDIT_UIDS - 1];

    for (struct log_window *w = found; w-- > audit->windows;) {
        if (w->n && w->uid == uid)
            return w;
        if (!w->n)
            found = w;
    }
    found->uid = uid;
    return found;
}

void
audit_log(struct audit *audit, uint64_t now_ms, const struct core_audit *line, const char *fmt,
          ...)
{
    char uid[12], pid[12], text[sizeof(line->text)];
    const struct log_field fields[] = {
        {"MESSAGE_ID", message_ids[line->kind]},
        {"CAID_UID", uid},
        {"CAID_PID", pid},
        {"CAID_CREATOR_UID", line->creator},
        {"CAID_POOL", line->pool},
        {"CAID_NAME", line->name},
        {NULL, NULL},
    };
    va_list ap;

    audit_look(audit, now_ms);
    if (line->n_lost)
        log_notice("%u lines were lost: out of memory", line->n_lost);
    if (!log_admits(find_window(audit, line->uid), now_ms, AUDIT_LINES, ""))
        return;
    snprintf(uid, sizeof(uid), "%u", (unsigned)line->uid);
    snprintf(pid, sizeof(pid), "%d", (int)line->pid);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_write_fields(line->kind == AUDIT_DROP ? LOG_LEVEL_INFO : LOG_LEVEL_NOTICE, fields,
                     "pid %s, uid %s %s", pid, uid, text);
}

void
audit_end(struct audit *audit)
{
    audit_look(audit, UINT64_MAX);
}
