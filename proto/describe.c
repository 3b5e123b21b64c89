/* SPDX-License-Identifier: Apache-2.0 */
/* A program of the build. It prints the tables of docs/PROTOCOL.md that messages.def documents. */
#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct field {
    const char *type, *name, *text; /* NULL: the table does not document it */
    bool required;
};

#define REQUIRED_REQ          true
#define REQUIRED_OPT          false
#define TEXT(unit, text, ...) text

#define RECORD(r) static const struct field r##_fields[] = {
#define FIELD(r, type, name, presence, ...) \
    {#type, #name, TEXT(__VA_ARGS__, NULL, ), REQUIRED_##presence},
#define NESTED(r, of, name, ...) {"[`" #of "`]", #name, TEXT(, ##__VA_ARGS__, NULL, ), false},
#define END_RECORD(r) \
    {                 \
        0             \
    }                 \
    }                 \
    ;
#include "messages.def"

static const struct record {
    const char *name;
    const struct field *fields;
} records[] = {

#define RECORD(r) {#r, r##_fields},
#include "messages.def"
};

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
print_table(const struct record *record)
{
    printf("**`%s`**\n\n| field | type | presence | meaning |\n| --- | --- | --- | --- |\n",
           record->name);
    for (const struct field *f = record->fields; f->name; f++)
        printf("| `%s` | %s | %s | %c%s. |\n", f->name, wire_type(f->type),
               f->required ? "required" : "optional", toupper((unsigned char)f->text[0]),
               f->text + 1);
    putchar('\n');
}

int
main(void)
{
    for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++)
        if (records[i].fields->name && records[i].fields->text)
            print_table(&records[i]);
    return 0;
}
