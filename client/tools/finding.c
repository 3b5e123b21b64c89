/* SPDX-License-Identifier: Apache-2.0 */
/* The finding of a check. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "doctor.h"
#include "format.h"

const char *
doctor_level_name(enum doctor_level level)
{
    static const char *const names[] = {"ok", "warning", "problem"};
    return names[level];
}

void
finding_set(struct finding *ret, enum doctor_level level, const char *id, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    ret->level = level;
    ret->id = id;
    ret->found = format_args(fmt, args);
    va_end(args);
}

void
finding_remedy(struct finding *ret, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    ret->remedy = format_args(fmt, args);
    va_end(args);
}

void
finding_no_answer(struct finding *ret, const struct doctor *doctor)
{
    finding_problem(ret, "no_answer", "%s", doctor->ctl->error.message);
    finding_remedy(ret, "caid's log may say why; ask again");
}

void
finding_deinit(struct finding *finding)
{
    free(finding->found);
    free(finding->remedy);
}
