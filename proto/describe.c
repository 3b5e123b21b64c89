/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the build. It prints the table's records as the structs of caid/records.h, the
 * classes of the Python module caid._answers, and the tables of docs/PROTOCOL.md.
 */
#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 100 /* columns */

struct field {
    const char *type, *name, *unit, *text; /* text NULL: the table does not document it */
    bool required;
    const char *of, *alone; /* the record of a RECORD or RECORDS; the name of a RECORD */
};

#define REQUIRED_REQ          true
#define REQUIRED_OPT          false
#define REQUIRED_ALL          false
#define UNIT(unit, ...)       #unit
#define TEXT(unit, text, ...) text

#define RECORD(r) static const struct field r##_fields[] = {
#define FIELD(r, type, name, presence, ...)                                             \
    {#type, #name, UNIT(__VA_ARGS__, ), TEXT(__VA_ARGS__, NULL, ), REQUIRED_##presence, \
     NULL,  NULL},
#define NESTED(r, of, name, ...) \
    {"[`" #of "`]", #name, "RECORDS", TEXT(, ##__VA_ARGS__, NULL, ), false, #of, NULL},
#define WIRE(r, of, name, text)    {"[`" #of "`]", #name, "WIRE", text, false, #of, NULL},
#define LOCAL(r, unit, name, text) {NULL, #name, #unit, text, false, NULL, NULL},
#define ONE(r, of, name, alone, text) \
    {"[`" #of "`]", #name, "RECORD", text, false, #of, #alone},
#define END_RECORD(r) \
    {                 \
        0             \
    }                 \
    }                 \
    ;
#include "messages.def"

static const struct record {
    const char *name, *text; /* text: of answers.def */
    bool is_result;
    const struct field *fields;
} records[] = {

#define ANSWER(r, text) {#r, text, false, r##_fields},
#define RESULT(r, text) {#r, text, true, r##_fields},
#define RECORD(r)       {#r, NULL, false, r##_fields},
#include "messages.def"
};

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
        if (f->type)
            printf("| `%s` | %s | %s | %c%s. |\n", f->name, wire_type(f->type),
                   f->required ? "required" : "optional", toupper((unsigned char)f->text[0]),
                   f->text + 1);
    putchar('\n');
}

/* ---- programs ---- */

/* A unit's type in C, with the name of a list's count, and its type in Python. % stands for the
 * name of the field or, where it is a record, for the record's. */
static const struct unit {
    const char *name, *c, *count, *python;
} units[] = {
    {"COUNT", "uint64_t ", NULL, "int"},
    {"BYTES", "uint64_t ", NULL, "int"},
    {"QUOTA", "uint64_t ", NULL, "int"},
    {"NS", "uint64_t ", NULL, "int"},
    {"NUMBER", "uint64_t ", NULL, "int"},
    {"UID", "uint32_t ", NULL, "int"},
    {"GID", "uint32_t ", NULL, "int"},
    {"MODE", "uint32_t ", NULL, "int"},
    {"FLAG", "bool ", NULL, "bool"},
    {"TEXT", "const char *", NULL, "str"},
    {"NAME", "const char *", NULL, "str"},
    {"JSON", "const char *", NULL, "Any"},
    {"DEVICE", "int32_t ", NULL, "int"},
    {"DIMS", "const int64_t *", "n_%", "Tuple[int, ...]"},
    {"CHARS(", "char ", NULL, "str"},
    {"WORDS(", "char ", NULL, "Tuple[str, ...]"},
    {"RECORDS", "const struct caid_% *const *", "n_%", "List[%]"},
    {"RECORD", "const struct caid_% *", NULL, "%"},
    {0},
};

static const struct unit *
unit_of(const struct field *f)
{
    for (const struct unit *unit = units; unit->name; unit++)
        if (strncmp(unit->name, f->unit, strlen(unit->name)) == 0)
            return unit;
    abort(); /* ends the build */
}

/* f, or the end of the list if the rest are fields of the message only, which come last. */
static const struct field *
shown(const struct field *f)
{
    static const struct field none;

    return f->name && strcmp(f->unit, "WIRE") == 0 ? &none : f;
}

static const char *
name_of(const struct field *f)
{
    return f->alone ? f->alone : f->name;
}

/* Copies form, with name in place of %. */
static void
put_name(char *ret, size_t size, const char *form, const char *name)
{
    int n = (int)strcspn(form, "%");

    snprintf(ret, size, "%.*s%s%s", n, form, form[n] ? name : "", form[n] ? form + n + 1 : "");
}

/* Prints text with quotation marks for backquotes, and `nothing` for the word "absent". */
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

/* Prints a line of code with its comment behind it, or above it if that would be too long. */
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
c_member(char code[WIDTH], const struct field *f)
{
    char type[WIDTH / 2];

    put_name(type, sizeof(type), unit_of(f)->c, f->of);
    int bytes = 0;
    if (sscanf(f->unit, "%*5s(%d)", &bytes) == 1)
        snprintf(code, WIDTH, "%s%s[%d];", type, name_of(f), bytes);
    else
        snprintf(code, WIDTH, "%s%s;", type, name_of(f));
}

static void
print_count(const struct field *f)
{
    char code[WIDTH];

    if (!unit_of(f)->count)
        return;
    put_name(code, sizeof(code), unit_of(f)->count, f->name);
    printf("    uint32_t %s;\n", strcmp(f->name, "shape") == 0 ? "ndim" : code);
}

static void
print_header(const struct record *record)
{
    char code[WIDTH];
    int width = 0;

    if (!record->text)
        return;
    for (const struct field *f = shown(record->fields); f->name; f = shown(f + 1)) {
        c_member(code, f);
        int n = (int)strlen(code);
        width = n > width && n < WIDTH / 3 ? n
                                           : width; /* a long one moves no others' comments */
    }
    printf("\n/* ");
    print_text(record->text, "NULL");
    printf(" */\nstruct caid_%s {\n", record->name);
    if (record->is_result)
        printf("    size_t struct_size;\n");
    for (const struct field *f = shown(record->fields); f->name; f = shown(f + 1)) {
        c_member(code, f);
        print_line(code, width + 1, f->text, strncmp(f->unit, "CHARS", 5) ? "NULL" : "\"\"",
                   "/*", " */");
        print_count(f);
    }
    printf("};\n");
}

/* timeline_entry: TimelineEntry */
static const char *
class_name(const char *name)
{
    static char class[WIDTH];
    char *at = class;

    for (bool starts = true; *name; name++) {
        if (*name != '_')
            *at++ = (char)(starts ? toupper((unsigned char)*name) : *name);
        starts = *name == '_';
    }
    *at = 0;
    return class;
}

static void
print_python_errors(void)
{
    fputs("\n\nclass ErrorCode(enum.IntEnum):\n"
          "    \"\"\"What went wrong, as the daemon and libcaid number it.\"\"\"\n\n",
          stdout);
#define ERROR(name, number, errnum, text) printf("    " #name " = %d\n", number);
#include "errors.def"
#undef ERROR
}

static void
print_python(const struct record *record)
{
    if (!record->text)
        return;
    printf("\n\nclass %s(NamedTuple):\n    \"\"\"", class_name(record->name));
    print_text(record->text, "None");
    printf("\"\"\"\n\n");
    for (const struct field *f = shown(record->fields); f->name; f = shown(f + 1)) {
        char type[WIDTH], code[2 * WIDTH];
        bool optional = f->type && !f->required &&
                        (strstr("TEXT DIMS", f->unit) || strncmp(f->unit, "CHARS", 5) == 0);
        put_name(type, sizeof(type), unit_of(f)->python, f->of ? class_name(f->of) : NULL);
        snprintf(code, sizeof(code), optional ? "%s: Optional[%s]" : "%s: %s", name_of(f),
                 type);
        print_line(code, (int)strlen(code) + 2, f->text, "None", "#:", "");
    }
}

static void
print_python_names(const struct record *record)
{
    if (record->text)
        printf("\n    \"%s\",", class_name(record->name));
}

/* ---- the program ---- */

static void
print_all(void (*print)(const struct record *record))
{
    for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++)
        print(&records[i]);
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
            "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>");
        print_all(print_header);
        puts("\n#endif");
    } else if (strcmp(what, "python") == 0) {
        printf(
            "# SPDX-License-Identifier: Apache-2.0\n"
            "\"\"\"What the daemon tells, as named tuples, and the numbers of errors.\"\"\"\n\n"
            "import enum\nfrom typing import Any, List, NamedTuple, Optional, Tuple\n\n__all__ = [");
        print_all(print_python_names);
        printf("\n]\n");
        print_python_errors();
        print_all(print_python);
    } else {
        fputs("usage: caid-describe header|python|protocol\n", stderr);
        return 1;
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
