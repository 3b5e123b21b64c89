/* SPDX-License-Identifier: Apache-2.0 */
/* The verb doctor: what the checks of doctor.h find, as lines. */
#include <inttypes.h>
#include <stdio.h>

#include "doctor.h"
#include "table.h"

static const struct column columns[] = {{"", false}, {"", false}, {"", false}};

struct lines {
    struct ctl *ctl;
    struct table *table;
    unsigned n[DOCTOR_N_LEVELS];
};

static void
line_json(struct json *out, const char *what, int32_t device, const struct finding *finding)
{
    json_object(out, NULL);
    json_str(out, "check", what);
    if (device >= 0)
        json_i64(out, "device", device);
    else
        json_null(out, "device");
    json_str(out, "id", finding->id);
    json_str(out, "level", doctor_level_name(finding->level));
    json_str(out, "found", finding->found);
    json_str(out, "remedy", finding->remedy);
    json_object_end(out);
}

static void
line_row(struct table *table, const char *what, int32_t device, const struct finding *finding)
{
    table_add(table, "%s", doctor_level_name(finding->level));
    if (device >= 0)
        table_add(table, "device %" PRId32 ": %s", device, what);
    else
        table_add(table, "%s", what);
    table_add(table, "%s", finding->found);
    if (!finding->remedy)
        return;
    table_add(table, "%s", "");
    table_add(table, "%s", "");
    table_add(table, "-> %s", finding->remedy);
}

static void
line_add(const char *what, int32_t device, const struct finding *finding, void *userdata)
{
    struct lines *lines = userdata;

    lines->n[finding->level]++;
    if (lines->ctl->json)
        line_json(&lines->ctl->out, what, device, finding);
    else
        line_row(lines->table, what, device, finding);
}

static void
print_end(const struct lines *lines)
{
    unsigned problems = lines->n[DOCTOR_PROBLEM], warnings = lines->n[DOCTOR_WARNING];

    printf("\n%u problem%s, %u warning%s\n", problems, problems == 1 ? "" : "s", warnings,
           warnings == 1 ? "" : "s");
}

int
verb_doctor(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_table_ struct table table;
    _cleanup_(doctor_deinit) struct doctor doctor;
    struct lines lines = {.ctl = ctl, .table = &table};

    table_init(&table, columns, ARRAY_SIZE(columns));
    doctor_init(&doctor, ctl);
    json_object(&ctl->out, NULL);
    json_list(&ctl->out, "checks");
    doctor_run(&doctor, line_add, &lines);
    json_list_end(&ctl->out);
    json_u64(&ctl->out, "problems", lines.n[DOCTOR_PROBLEM]);
    json_u64(&ctl->out, "warnings", lines.n[DOCTOR_WARNING]);
    json_object_end(&ctl->out);
    if (!ctl->json) {
        table_print(&table, false);
        print_end(&lines);
    }
    return lines.n[DOCTOR_PROBLEM] > 0 ? CTL_LOCAL : CTL_OK;
}
