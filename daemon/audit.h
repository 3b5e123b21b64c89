/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the log about clients, with fields and a MESSAGE_ID: caid(8), LOG. Their number in a
 * window of time is limited, so that no uid fills the log, or keeps others out of it.
 */
#pragma once

#include <stdbool.h>

#include "base/macros.h"
#include "core/core.h"

#define AUDIT_LINES 20 /* about one uid, in one window */
#define AUDIT_UIDS  64 /* with a window of their own; further uids share the last one */

struct log_window {
    uint64_t since_ms;
    uint32_t n; /* lines, also those that were left out; 0: the window is not open */
    uid_t uid;
};

/* Whether one more line fits. */
bool log_admits(struct log_window *window, uint64_t now_ms, uint32_t max, const char *about);

struct audit { /* all zero at first */
    struct log_window windows[AUDIT_UIDS];
};

/* Logs "pid 7, uid 1000 " and the formatted text. line says who and what; its text is not used. */
void audit_log(struct audit *audit, uint64_t now_ms, const struct core_audit *line,
               const char *fmt, ...) PRINTF(4, 5);
/* Closes all windows: logs how many lines were left out. */
void audit_end(struct audit *audit);
