/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the build, which prints what the table says of records: the structs of
 * caid/records.h, the classes of the Python module caid._answers, the tables of docs/PROTOCOL.md.
 */
#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 100 /* columns */

struct field {
    const char *type, *name, *unit, *text; /* text NULL: the table does not document it */
    bool required;
};

#define REQUIRED_REQ          true
#define REQUIRED_OPT          false
#define UNIT(unit, ...)       #unit
#define TEXT(unit, text, ...) text

#define RECORD(r) static const struct field r##_fields[] = {
#define FIELD(r, type, name, presence, ...) \
    {#type, #name, UNIT(__VA_ARGS__, ), TEXT(__VA_ARGS__, NULL, ), REQUIRED_##presence},
#define NESTED(r, of, name, ...) \
    {"[`" #of "`]", #name, "", TEXT(, ##__VA_ARGS__, NULL, ), false},
#define END_RECORD(r) \
    {                 \
        0             \
    }                 \
    }                 \
    ;
#include "messages.def"

static const struct record {
    const char *name, *text; /* text: of answers.def */
    const struct field *fields;
} records[] = {

#define ANSWER(r, text) {#r, text, r##_fields},
#define RECORD(r)       {#r, NULL, r##_fields},
#include "messages.def"
};

#define FOR_EACH(item, list) \
    for (item = list; item < (list) + sizeof(list) / sizeof(*(list)); item++)

/* ---- docs/PROTOCOL.md ---- */

static const char *
wire_type(const char *type)
{
    static const char *const types[][2] = {{"BOOL", "bool"},  {"U64", "u64"},
                                           {"I64", "i64"},    {"STR", "str"},
                                           {"I64S", "[i64]"}, {"U64S", "[u64]"},
                                           {"STRS", "[str]"}};

    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (strcmp(type, types[i][0]) == 0)
            return types[i][1];
    return type;
}

static void
print_protocol(const struct record *record)
{
    if (!record->fields->name || !record->fields->text)
        return;
    printf("**`%s`**\n\n| field | type | presence | meaning |\n| --- | --- | --- | --- |\n",
           record->name);
    for (const struct field *f = record->fields; f->name; f++)
        printf("| `%s` | %s | %s | %c%s. |\n", f->name, wire_type(f->type),
               f->required ? "required" : "optional", toupper((unsigned char)f->text[0]),
               f->text + 1);
    putchar('\n');
}

/* ---- programs ---- */

static const struct unit {
    const char *name, *c, *python;
} units[] = {
    {"COUNT", "uint64_t ", "int"},   {"BYTES", "uint64_t ", "int"},
    {"QUOTA", "uint64_t ", "int"},   {"NS", "uint64_t ", "int"},
    {"NUMBER", "uint64_t ", "int"},  {"UID", "uint32_t ", "int"},
    {"GID", "uint32_t ", "int"},     {"MODE", "uint32_t ", "int"},
    {"FLAG", "bool ", "bool"},       {"TEXT", "const char *", "str"},
    {"NAME", "const char *", "str"},
};

static const struct unit *
unit_of(const struct field *f)
{
    const struct unit *unit;

    FOR_EACH(unit, units)
    if (strcmp(unit->name, f->unit) == 0)
        return unit;
    return NULL; /* crashes the build */
}

/* With quotation marks for backquotes, and `nothing` for the word "absent". */
static void
print_text(const char *text, const char *nothing)
{
    for (; *text; text++) {
        if (strncmp(text, "absent", 6) == 0) {
            fputs(nothing, stdout);
            text += 5;
        } else {
            putchar(*text == '`' ? '"' : *text);
        }
    }
}

/* A line of code and what it is: behind it, or above it where that is too long. */
static void
print_line(const char *code, int width, const char *text, const char *nothing, const char *open,
           const char *close)
{
    bool fits = 4 + width + strlen(open) + 2 + strlen(text) + strlen(close) <= WIDTH;

    if (fits)
        printf("    %-*s%s ", width, code, open);
    else
        printf("    %s ", open);
    print_text(text, nothing);
    fputs(close, stdout);
    printf(fits ? "\n" : "\n    %s\n", code);
}

static void
print_header(const struct record *record)
{
    int width = 0;

    if (!record->text)
        return;
    for (const struct field *f = record->fields; f->name; f++) {
        int n = (int)(strlen(unit_of(f)->c) + strlen(f->name));
        width = n > width ? n : width;
    }
    printf("\n/* ");
    print_text(record->text, "NULL");
    printf(" */\nstruct caid_%s {\n", record->name);
    for (const struct field *f = record->fields; f->name; f++) {
        char code[WIDTH];
        snprintf(code, sizeof(code), "%s%s;", unit_of(f)->c, f->name);
        print_line(code, width + 2, f->text, "NULL", "/*", " */");
    }
    printf("};\n");
}

/* timeline_entry: TimelineEntry */
static void
print_class_name(const char *name)
{
    for (bool starts = true; *name; name++) {
        if (*name != '_')
            putchar(starts ? toupper((unsigned char)*name) : *name);
        starts = *name == '_';
    }
}

static void
print_python(const struct record *record)
{
    if (!record->text)
        return;
    printf("\n\nclass ");
    print_class_name(record->name);
    printf("(NamedTuple):\n    \"\"\"");
    print_text(record->text, "None");
    printf("\"\"\"\n\n");
    for (const struct field *f = record->fields; f->name; f++) {
        char code[WIDTH];
        bool optional = !f->required && strcmp(f->unit, "TEXT") == 0;
        snprintf(code, sizeof(code), "%s: %s%s%s", f->name, optional ? "Optional[" : "",
                 unit_of(f)->python, optional ? "]" : "");
        print_line(code, (int)strlen(code) + 2, f->text, "None", "#:", "");
    }
}

static void
print_python_names(const struct record *record)
{
    if (!record->text)
        return;
    printf("\n    \"");
    print_class_name(record->name);
    printf("\",");
}

/* ---- the program ---- */

static void
print_all(void (*print)(const struct record *record))
{
    const struct record *record;

    FOR_EACH(record, records)
    print(record);
}

int
main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";

    if (strcmp(what, "protocol") == 0) {
        print_all(print_protocol);
    } else if (strcmp(what, "header") == 0) {
        puts(
            "/* SPDX-License-Identifier: Apache-2.0 */\n"
            "#ifndef CAID_RECORDS_H\n#define CAID_RECORDS_H\n\n"
            "/**\n * What the daemon tells of itself, as caid.h's lists give it. A later library may\n"
            " * have more fields at a struct's end.\n */\n\n"
            "#include <stdbool.h>\n#include <stdint.h>");
        print_all(print_header);
        puts("\n#endif");
    } else if (strcmp(what, "python") == 0) {
        printf("# SPDX-License-Identifier: Apache-2.0\n"
               "\"\"\"What the daemon tells, as named tuples.\"\"\"\n\n"
               "from typing import NamedTuple, Optional\n\n__all__ = [");
        print_all(print_python_names);
        printf("\n]\n");
        print_all(print_python);
    } else {
        fputs("usage: caid-describe header|python|protocol\n", stderr);
        return 1;
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
